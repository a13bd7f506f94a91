"""Attention to chosen tokens and to compressed ones, at inference; with gradients in `attention_gradients`.

*Chosen tokens* (DeepSeek-V3.2-Exp report, section 1). An indexer of H heads of d elements scores all tokens before
each new one, which attends to the best n of them, absorbed in both phases::

    attn.index.q attn.index.weights   attn.index.k attn.index.k_norm   rope.index.q rope.index.k
    attn.cache   attn.index   attn.core

``attn.index`` takes 2 * H * d FLOP a pair and reads the key of d elements of each token once; of the n latents each
token reads its own. Both lie in the same tensor of the cache. Every rank has the whole indexer.

*Compressed tokens* (DeepSeek-V4). All heads attend to one row of each token in a window, its key and its value, and to
compressed tokens, which are sums of the rows of a block of s tokens, weighted by as many others; with overlap the block
before joins by rows of its own. An indexer may choose among them, which compresses tokens for itself. ::

    attn.q_a attn.q_a_norm attn.q_b attn.q_norm   attn.kv_a attn.kv_a_norm   rope.q rope.k
    attn.pool.rows attn.pool.weights   attn.index.q attn.index.weights   attn.index.pool.rows attn.index.pool.weights
    attn.pool   attn.index   attn.core   rope.out   attn.o_a

``attn.pool`` keeps the rows of tokens until their block is complete (``L03/pool``: of two blocks, where they overlap),
and writes a compressed token of w elements for each that is; it only moves bytes. ``attn.core`` takes 4 * heads * w
FLOP a pair. Compressed tokens are read once, or each chosen one by each token. ``attn.o_a`` multiplies each group of
heads by a part of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.builders.cache import Cache, own_bytes
from simulator.builders.specs import ID_BYTES
from simulator.builders.states import kept_states
from simulator.builders.tape import Tape
from simulator.layout import Weight
from simulator.reach import Reach
from simulator.workload import Gqa, Indexer, Mla, Mqa, Pool


class Query(NamedTuple):
    """Tensors that new tokens attend with.

    Attributes
    ----------
    taken, taken_bytes
        Tensors of the queries, and what an op reads of them [B].
    new
        Tensors with the keys and values of the new tokens.
    seen_bytes
        What attention to all in reach reads of keys and values, new and cached [B].
    width
        Elements of an output row.
    pair_flops
        Work of a pair of tokens [FLOP].
    scores
        Of that, the work to score a key [FLOP]; and what is read of a token for it [B].
    """

    taken: list[str]
    taken_bytes: int
    new: list[str]
    seen_bytes: int
    width: int
    pair_flops: int
    scores: tuple[int, int] = (0, 0)


def of_scores(t: Tape) -> tuple[list[Weight], list[str]]:
    """Return weights that join scores, which are small, of attending to nothing and of distances; and their tensors."""
    small = [t.weight(name) for name in ("attn.sinks", "attn.relative.bias") if name in t.weights[t.block]]
    return small, [t.held[weight.name] for weight in small]


def attend_chosen(t: Tape, indexer: Indexer, cache: Cache, query: Query, made: list[str]) -> str:
    """Attend to the tokens that score best."""
    *scoring, _ = made or [""]
    made = [*query.new, *made[-1:]]
    reads, read_bytes = [*made, *sorted({*cache.held}.intersection(cache.added))], own_bytes(t, cache, *made)
    t.op("attn.cache", reads, cache.added, read_bytes=read_bytes, write_bytes=cache.added_bytes)
    key_bytes, held = indexer.cached * t.workload.dtypes.kv_bytes, dict.fromkeys([*cache.held, *cache.added])
    most = min(indexer.top, -(-cache.longest // indexer.block) or indexer.top)
    most *= indexer.heads if indexer.block > 1 else 1  # each of which chooses for itself
    best, best_bytes = list[str](), cache.tokens * most * ID_BYTES
    if not indexer.again:
        best = [t.tensor("attn.index.out", most, size=ID_BYTES)]
        flops, read_bytes = 2 * cache.pairs * indexer.heads * indexer.head_size, own_bytes(t, cache, *scoring)
        read_bytes += (cache.seen + cache.tokens) * key_bytes
        t.op("attn.index", [*scoring, *held], best, op_class="attention", flops=flops, read_bytes=read_bytes)
    is_last = isinstance(t.attention, Gqa)
    (_, seen), out = cache.within(Reach.chosen(indexer)), (is_last and cache.out) or ""
    out = out or t.of_heads("attn.core.out", query.width)
    read_bytes = query.taken_bytes + best_bytes + seen * (t.token_bytes - key_bytes)
    taken = [*query.taken, *best, *held, *of_scores(t)[1], *(cache.after if is_last else ())]
    t.op("attn.core", taken, [out], op_class="attention", flops=seen * query.pair_flops, read_bytes=read_bytes)
    return out


def index_inputs(t: Tape, part: Gqa | Mla, indexer: Indexer, x: str) -> list[str]:
    """Make the queries, perhaps head weights, and keys of an indexer, from inputs to which no gradient goes back."""
    x, turned = t.alias(x, "detached"), part.qk_rope if isinstance(part, Mla) else indexer.head_size
    q, *weights = _scoring(t, x) if isinstance(part, Mla) else [_index_row(t, "q", x)]
    k = _index_row(t, "k", x)
    for letter, row, heads in (("q", q, indexer.heads), ("k", k, 1)) if turned else ():
        t.rotate(f"rope.index.{letter}", row, heads * turned)
    return [q, *weights, k]


def _index_row(t: Tape, letter: str, x: str) -> str:
    return t.norm(f"attn.index.{letter}_norm", t.linear(f"attn.index.{letter}", x))


def _scoring(t: Tape, x: str) -> tuple[str, str]:
    """Make the queries, of the latent of queries if there is one, and the weights of heads of an indexer."""
    latent = t.alias(t.name("attn.q_a_norm.out"), "detached") if "attn.q_a" in t.weights[t.block] else x
    return t.linear("attn.index.q", latent), t.linear("attn.index.weights", x)


def pool_inputs(t: Tape, part: Mqa, pool: Pool, x: str) -> list[str]:
    """Make the rows that compressed tokens are sums of, and what weights them; then the same of an indexer."""
    made = [t.linear(f"attn.pool.{name}", x) for name in ("rows", "weights")]
    if indexer := pool.indexer:
        q, weights = _scoring(t, x := t.alias(x, "detached"))
        t.rotate("rope.index.q", q, indexer.heads * part.qk_rope)
        made += [q, weights, *(t.linear(f"attn.index.pool.{name}", x) for name in ("rows", "weights"))]
    return made


def attend_to_rows(t: Tape, part: Mqa, cache: Cache, taken: list[str]) -> str:
    """Attend to one row of each near token, and of compressed ones."""
    (q, latent, *made), pairs = taken, cache.pairs
    reads, read_bytes = [q, latent, *cache.held], own_bytes(t, cache, q, latent) + cache.held_bytes
    if part.pool:
        stored = _compress_rows(t, part, part.pool, cache, made)
        more, seen, more_bytes = _compressed_seen(t, part.pool, cache, made[2:4], stored)
        reads, pairs, read_bytes = [*reads, *more], pairs + seen, read_bytes + more_bytes
    out = cache.out or t.of_heads("attn.core.out", part.width)
    t.op(
        "attn.core", [*reads, *of_scores(t)[1], *cache.after], [out, *cache.added], op_class="attention",
        flops=4 * pairs * part.width, read_bytes=read_bytes,
        write_bytes=own_bytes(t, cache, out) + cache.added_bytes, device=t.workload.on.attention,
    )  # fmt: skip
    return out


def _compress_rows(t: Tape, part: Mqa, pool: Pool, cache: Cache, made: list[str]) -> list[str]:
    """Keep the rows of tokens until their block is complete, and compress it; return all compressed tokens."""
    dtypes, small = t.workload.dtypes, small_of_pools(t, ".pool.")
    before, complete = (pool.compress.number(n) for n in (cache.span.cached, cache.span.length))
    (size_bytes,) = part.kept_bytes(t.element_bytes, dtypes.state_bytes).values()
    states, taken = kept_states(t, cache, "pool", size_bytes), [*made[:2], *made[4:]]
    (_, completed), stored = cache.within(Reach(sparse=pool, counted="made")), cache.compressed.of(before, complete)
    found_bytes, kept_bytes = cache.within(Reach(block=pool.stride))[0] * size_bytes, cache.sequences * size_bytes
    if t.phase == "decode":  # a token adds its rows, and those of a block are read when it is complete
        row_bytes = 2 * pool.rows * part.compressed_elements * t.element_bytes
        found_bytes, kept_bytes = completed * size_bytes, cache.tokens * row_bytes
    read_bytes = own_bytes(t, cache, *taken) + found_bytes + sum(weight.size_bytes for weight in small)
    write_bytes = kept_bytes + completed * part.compressed_elements * dtypes.kv_bytes
    reads = [*taken, *(t.held[weight.name] for weight in small), *(states * cache.goes_on)]
    t.op("attn.pool", reads, [*dict.fromkeys([*states, *stored])], read_bytes=read_bytes, write_bytes=write_bytes)
    return cache.compressed.of(0, complete)


def small_of_pools(t: Tape, part: str) -> list[Weight]:
    """Return the weights of ops that compress tokens, which are no linears, by a part of their names."""
    return [t.weight(name) for name in t.weights[t.block] if part in name and name.endswith((".bias", ".norm"))]


def _compressed_seen(
    t: Tape, pool: Pool, cache: Cache, scoring: list[str], stored: list[str]
) -> tuple[list[str], int, int]:
    """Return what attention reads of compressed tokens, all or chosen ones; its pairs; and how much it reads [B]."""
    indexer, row_bytes = pool.indexer, t.token_bytes
    before, pairs = cache.within(Reach(sparse=pool))
    complete = before + cache.within(Reach(sparse=pool, counted="made"))[1]
    if not indexer or not stored:
        return stored, pairs, complete * row_bytes
    most = min(indexer.top, cache.longest // pool.stride or indexer.top)
    best, kv_bytes = t.tensor("attn.index.out", most, size=ID_BYTES), t.workload.dtypes.kv_bytes
    flops = 2 * pairs * indexer.heads * indexer.head_size
    read_bytes = own_bytes(t, cache, *scoring) + complete * indexer.head_size * kv_bytes
    t.op("attn.index", [*scoring, *stored], [best], op_class="attention", flops=flops, read_bytes=read_bytes)
    seen = cache.within(Reach.chosen(indexer, pool))[1]
    return [best, *stored], seen, cache.tokens * most * ID_BYTES + seen * row_bytes
