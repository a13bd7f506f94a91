"""Attention at inference: the kinds that a workload can name, each from the normed input to what ``attn.o`` takes.

Let n be the new tokens of a sequence, c those cached, and P = n * c + n * (n + 1) / 2 the pairs that attend.

``gqa``: 4 * heads * head_size FLOP a pair. ``mla`` has two forms of the same function (DeepSeek-V2, arXiv 2405.04434,
section 2.1.2 and appendix C; DeepSeek-V3, arXiv 2412.19437, section 2.1.1; l is the latent's width):

- *expanded*, for prefill: keys and values are made from the latents of all n + c tokens, those of an earlier chunk
  again, and each pair takes 2 * heads * (qk_nope + qk_rope + v_head) FLOP;
- *absorbed*, for decode: ``k_b`` is applied to q, and ``v_b`` to what comes out, so that heads attend to the cached
  latents themselves: 2 * heads * (2 * l + qk_rope) FLOP a pair, and l + qk_rope elements read of each cached token.

*Sparse.* Native sparse attention (NSA, arXiv 2502.11089, section 3): compressed, selected and near tokens, mixed by
gates.

A layer runs, in this order, so that what is selected can be fetched while the other two views are computed::

    attn.gate   attn.cache   attn.compress   attn.select   attn.compressed   attn.window   attn.selected   attn.mix

Let w be the elements of what is made into one (of a key or a value of one head; of a latent, whole), B sequences, p the
FLOP and k the bytes that a pair takes in full attention, and P the pairs of a view (`reach`).

- ``gate``: a linear from the layer's input to three gates for each head.
- ``compress``: blocks of l tokens that are complete now go through an MLP l * w -> w -> w, of keys and of values, all
  heads alike: 2 * w * w * (l + 1) FLOP each. (The paper prints no widths; position embeddings are l * w parameters.)
- ``select``: scores of all compressed tokens and the best blocks of each group of heads: the FLOP of their keys, which
  are read once. Scores are made again by the attention to compressed tokens rather than kept, and adding those of a
  block up, and sorting, are not counted.
- ``compressed``, ``window``, ``selected``: B * P * p FLOP. The first two read what they see once, as dense attention;
  of selected blocks each token reads its own, B * P * k bytes: blocks that several tokens select are read again.
- ``mix``: only moves bytes.

All views attend to the same keys and values; the paper gives each its own, which adds two projections. Latent attention
is absorbed in both phases, because the heads of one group share what they select.

In decode, where the cache is cut into blocks, each sequence has an op ``attn.selected.s0`` of its own, whose selected
blocks are late reads that ``attn.select`` reveals; each group of heads chooses for itself. The first and the last
blocks, which are always selected, are read for certain. Blocks that the window sees as well are in place then, and no
candidates: all choices fall on others, so that a little more is fetched than could be (7 of 1,022 blocks lie in the
window at 65,536 tokens). A block has the keys of all groups, and is fetched and read as a whole for any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simulator.builders.cache import Cache, compressed, compressed_pairs, pairs, selected_pairs
from simulator.builders.layer import projected
from simulator.builders.tape import ID_BYTES, Tape, numbered
from simulator.graph import Late
from simulator.workload import Gqa, Mla, Sparse


class Query(NamedTuple):
    """What new tokens attend with.

    Attributes
    ----------
    taken, taken_bytes
        Tensors of the queries, and what an op reads of them [B].
    new
        Tensors with the keys and values of the new tokens.
    width
        Elements of a row of what comes out.
    pair_flops
        Work of a pair of tokens [FLOP].
    scores
        The part of it that scores a key [FLOP], and what is read of a token for it [B].
    """

    taken: list[str]
    taken_bytes: int
    new: list[str]
    width: int
    pair_flops: int
    scores: tuple[int, int]


def sparse(t: Tape, part: Sparse, cache: Cache, query: Query, x: str) -> str:
    """Attend to three views of the tokens before, from the normed input to what the output projection takes."""
    return _Views(t, part, cache, query).mixed(x)


class _Views:
    """The three views of one layer and of the tokens that run now."""

    def __init__(self, tape: Tape, part: Sparse, cache: Cache, query: Query) -> None:
        self.tape, self.part, self.cache, self.query = tape, part, cache, query
        self.complete = compressed(cache.span.length, part.compress)

    def mixed(self, x: str) -> str:
        t, cache = self.tape, self.cache
        gates = t.linear("attn.gate", x)
        partial = set(cache.held).intersection(cache.added)
        new_bytes = t.made_bytes(*self.query.new)
        t.op(
            "attn.cache",
            [*self.query.new, *sorted(partial)],
            cache.added,
            read_bytes=new_bytes,
            write_bytes=cache.added_bytes,
        )
        self._compress()
        chosen = self._select()
        views = [self._compressed()] if self.complete else []
        views += [self._window(), *self._selected(chosen)]
        out = t.tensor("attn.core.out", self.query.width, t.cut())
        t.op("attn.mix", [gates, *views], [out])
        return out

    def _compress(self) -> None:
        """Make each block that is complete now into one token."""
        t, cache, about = self.tape, self.cache, self.part.compress
        before = compressed(cache.span.cached, about)
        made = cache.batch * (self.complete - before)
        weights = [t.weight(f"attn.compress.{name}") for name in compression(cache.part.kind)]
        if not made:
            return
        start, stop = before * about.stride, (self.complete - 1) * about.stride + about.block
        width = weights[0].shape[-1]
        parts = cache.part.kv_elements // width
        read_bytes = cache.batch * (stop - start) * cache.token_bytes
        t.op(
            "attn.compress",
            [*cache.store.of(start, stop), *(weight.name for weight in weights)],
            cache.compressed.of(before, self.complete),
            flops=made * parts * 2 * width * width * (about.block + 1),
            op_class="matmul",
            read_bytes=read_bytes + sum(map(t.weight_bytes, weights)),
            write_bytes=made * cache.token_bytes,
        )

    def _select(self) -> str | None:
        """Score what is compressed, and choose blocks; None as long as there are no more than are selected."""
        t, cache, about, (flops, key_bytes) = self.tape, self.cache, self.part.select, self.query.scores
        if cache.span.length <= about.top * about.block:
            return None
        out = t.tensor("attn.blocks", cache.part.groups * about.top, t.cut(), ID_BYTES)
        t.op(
            "attn.select",
            [*self.query.taken, *cache.compressed.of(0, self.complete)],
            [out],
            flops=cache.batch * compressed_pairs(cache.span, self.part.compress) * flops,
            op_class="attention",
            read_bytes=self.query.taken_bytes + cache.batch * self.complete * key_bytes,
        )
        return out

    def _compressed(self) -> str:
        cache = self.cache
        seen = compressed_pairs(cache.span, self.part.compress)
        names = cache.compressed.of(0, self.complete)
        return self._view("compressed", names, seen, cache.batch * self.complete)

    def _window(self) -> str:
        cache, window = self.cache, self.part.window
        names = cache.store.of(max(0, cache.span.cached + 1 - window), cache.span.length)
        read = cache.batch * (min(cache.span.cached, window - 1) + cache.span.new)
        return self._view("window", names, pairs(cache.span, window), read)

    def _selected(self, chosen: str | None) -> list[str]:
        cache, about = self.cache, self.part.select
        seen, length = selected_pairs(cache.span, about), cache.span.length
        first, last = about.first, -(-length // about.block) - about.last
        free = min(last, (length - self.part.window) // about.block) - first
        if chosen is None or cache.store.block is None or self.tape.phase == "prefill" or free < about.chosen:
            names = [*cache.store.of(0, length), *([chosen] if chosen else [])]
            return [self._view("selected", names, seen, cache.batch * seen)]
        certain = seen - about.chosen * about.block
        found = []
        for group, name in enumerate(numbered("selected.s", cache.batch)):
            fixed = [(0, first * about.block), (last * about.block, length)]
            known = [tensor for start, stop in fixed for tensor in cache.store.of(start, stop, group)]
            candidates = cache.store.of(first * about.block, (first + free) * about.block, group)
            samples, each = cache.part.groups, about.chosen
            late = self.tape.late(f"attn.{name}", "attn.select", candidates, samples=samples, each=each)
            found.append(self._view(name, [*known, *candidates, chosen], seen, certain, late))
        return found

    def _view(self, name: str, reads: Iterable[str], seen: int, read: int, late: Late | None = None) -> str:
        """Attend to `seen` tokens for each sequence, of which `read` are read in all; late, of one sequence."""
        t, query, cache = self.tape, self.query, self.cache
        batch = 1 if late else cache.batch
        out = t.tensor(f"attn.{name}.out", query.width, t.cut(), rows=(batch * cache.span.new,))
        t.op(
            f"attn.{name}",
            [*query.taken, *dict.fromkeys(reads)],
            [out],
            flops=batch * seen * query.pair_flops,
            op_class="attention",
            read_bytes=query.taken_bytes * batch // cache.batch + read * cache.token_bytes,
            late=late,
        )
        return out


def compression(kind: str) -> tuple[str, ...]:
    """Names of the weights that compress: of latents whole, or of keys and of values."""
    parts = ("",) if kind == "mla" else ("k.", "v.")
    return tuple(f"{part}{name}" for part in parts for name in ("in", "out", "position"))


def attended(t: Tape, cache: Cache, x: str) -> str:
    """Attend as the model's part says; latent attention in the form that is the cheaper one in this phase."""
    if isinstance(cache.part, Gqa):
        return gqa(t, cache.part, cache, x)
    form = expanded if t.phase == "prefill" and cache.part.sparse is None else absorbed
    return form(t, cache.part, cache, x)


def gqa(t: Tape, part: Gqa, cache: Cache, x: str) -> str:
    """Attend in groups of heads that share keys and values."""
    q, k, v = projected(t, x, is_normed=part.qk_norms)
    width, key_bytes = part.heads * part.head_size, cache.token_bytes // 2
    query = Query([q], t.made_bytes(q), [k, v], width, 4 * width, (2 * width, key_bytes))
    return _attend(t, cache, query, x)


def expanded(t: Tape, part: Mla, cache: Cache, x: str) -> str:
    """Attend with a key and a value for each head, made from the latents."""
    q, latent = _latent(t, part, x)
    k = _expand(t, part, cache, ("attn.k_b", latent, part.heads * part.qk_nope))
    v = _expand(t, part, cache, ("attn.v_b", latent, part.heads * part.v_head))
    flops = 2 * cache.batch * cache.pairs * part.heads * (part.qk_nope + part.qk_rope + part.v_head)
    rope_bytes = part.qk_rope * (cache.held_bytes // part.kv_elements + cache.tokens * t.element_bytes)
    read_bytes = t.made_bytes(q, k, v) + rope_bytes
    return _core(t, cache, [q, latent, k, v], part.heads * part.v_head, flops, read_bytes)


def absorbed(t: Tape, part: Mla, cache: Cache, x: str) -> str:
    """Attend to the latents themselves."""
    q, latent = _latent(t, part, x)
    nope, rope = (cache.tokens * part.heads * width * t.element_bytes for width in (part.qk_nope, part.qk_rope))
    wide = part.heads * part.kv_lora_rank
    absorbing = _absorb(t, "attn.k_b", q, (wide, nope))
    score_flops = 2 * part.heads * (part.kv_lora_rank + part.qk_rope)
    scores = (score_flops, cache.token_bytes)
    query_bytes = t.made_bytes(absorbing) + rope
    query = Query([absorbing, q], query_bytes, [latent], wide, score_flops + 2 * wide, scores)
    mixed = _attend(t, cache, query, x)
    return _absorb(t, "attn.v_b", mixed, (part.heads * part.v_head, t.made_bytes(mixed)))


def _attend(t: Tape, cache: Cache, query: Query, x: str) -> str:
    """Attend as the part says: to what is in reach, or to the three views of sparse attention."""
    if cache.part.sparse is not None:
        return sparse(t, cache.part.sparse, cache, query, x)
    flops = cache.batch * cache.pairs * query.pair_flops
    read_bytes = query.taken_bytes + t.made_bytes(*query.new) + cache.held_bytes
    return _core(t, cache, [*query.taken, *query.new], query.width, flops, read_bytes)


def _core(t: Tape, cache: Cache, taken: list[str], width: int, flops: int, read_bytes: int) -> str:
    """Attend, and cache the new tokens."""
    out = t.tensor("attn.core.out", width, t.cut())
    t.op(
        "attn.core",
        [*taken, *cache.held],
        [out, *cache.added],
        flops=flops,
        op_class="attention",
        read_bytes=read_bytes,
        write_bytes=t.made_bytes(out) + cache.added_bytes,
    )
    return out


def _latent(t: Tape, part: Mla, x: str) -> tuple[str, str]:
    """Queries of all heads, and of each token the latent with the rotary part of the key; rope works in place."""
    if part.q_lora_rank:
        q = t.linear("attn.q_b", t.norm("attn.q_a_norm", t.linear("attn.q_a", x)))
    else:
        q = t.linear("attn.q", x)
    kv = t.linear("attn.kv_a", x)
    weight = t.weight("attn.kv_a_norm")
    latent = t.tensor("attn.latent", part.kv_elements, t.cut())
    t.op("attn.kv_a_norm", [kv, weight.name], [latent])
    for name, tensor, width in (("rope.q", q, part.heads * part.qk_rope), ("rope.k", latent, part.qk_rope)):
        turned_bytes = t.own_tokens * width * t.element_bytes
        t.op(name, [tensor], [tensor], read_bytes=turned_bytes, write_bytes=turned_bytes)
    return q, latent


def _expand(t: Tape, part: Mla, cache: Cache, about: tuple[str, str, int]) -> str:
    """Multiply the latents of all tokens, cached and new, by a weight."""
    name, latent, width = about
    weight = t.weight(name)
    rows = cache.batch * (cache.seen + cache.span.new)
    out = t.tensor(f"{name}.out", width, t.cut(), rows=(rows,))
    latents_bytes = cache.held_bytes // part.kv_elements + cache.tokens * t.element_bytes
    t.op(
        name,
        [latent, *cache.held, weight.name],
        [out],
        flops=2 * rows * weight.parameters,
        op_class="matmul",
        read_bytes=part.kv_lora_rank * latents_bytes + t.weight_bytes(weight),
    )
    return out


def _absorb(t: Tape, name: str, x: str, sizes: tuple[int, int]) -> str:
    """Multiply each head by its part of a weight; `sizes` are the width made and what is read of `x` [B]."""
    weight, (width, read_bytes) = t.weight(name), sizes
    out = t.tensor(f"{name}.out", width, t.cut())
    flops, read_bytes = 2 * t.own_tokens * weight.parameters, read_bytes + t.weight_bytes(weight)
    t.op(name, [x, weight.name], [out], flops=flops, op_class="matmul", read_bytes=read_bytes)
    return out
