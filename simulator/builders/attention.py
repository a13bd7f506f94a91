"""Attention: the kinds that a workload can name, each from the normed input to the input of ``attn.o``.

In training a whole sequence attends to itself (`attention_gradients`); at inference new tokens attend to themselves and
to what is cached (`attend_to_cache`).

Let n be the new tokens of a sequence, c those cached, and P = n * c + n * (n + 1) / 2 the pairs that attend.

``gqa``: 4 * heads * head_size FLOP a pair. ``mla`` has two forms of the same function (DeepSeek-V2, arXiv 2405.04434,
section 2.1.2 and appendix C; DeepSeek-V3, arXiv 2412.19437, section 2.1.1; l is the latent's width):

- *expanded*, for prefill: keys and values are made from the latents of all n + c tokens, those of an earlier chunk
  again, and each pair takes 2 * heads * (qk_nope + qk_rope + v_head) FLOP;
- *absorbed*, for decode: ``k_b`` is applied to q, and ``v_b`` to the output, so that heads attend to the cached
  latents themselves: 2 * heads * (2 * l + qk_rope) FLOP a pair, and l + qk_rope elements read of each cached token.

*Sparse.* Native sparse attention (NSA, arXiv 2502.11089, section 3): compressed, selected and near tokens, mixed by
gates.

A layer runs, in this order, so that what is selected can be fetched while the other two views are computed::

    attn.gate   attn.cache   attn.compress   attn.select   attn.compressed   attn.window   attn.selected   attn.mix

Let w be the elements of what is compressed (a key or a value of one head; a whole latent), B the number of sequences, p
the FLOP and k the bytes that a pair takes in full attention, and P the pairs of a view (`reach`).

- ``gate``: a linear from the layer's input to three gates for each head.
- ``compress``: blocks of l tokens that are complete now go through an MLP l * w -> w -> w, of keys and of values, all
  heads alike: 2 * w * w * (l + 1) FLOP each. (The paper prints no widths; position embeddings are l * w parameters.)
- ``select``: scores of all compressed tokens and the best blocks of each group of heads: the FLOP of their keys, which
  are read once. The attention to compressed tokens makes the scores again rather than keep them; adding those of a
  block up, and sorting, are not counted.
- ``compressed``, ``window``, ``selected``: B * P * p FLOP. The first two read what they see once, as dense attention;
  of selected blocks each token reads its own, B * P * k bytes: blocks that several tokens select are read again.
- ``mix``: only moves bytes.

All views attend to the same keys and values, or each to its own, which two more projections make (``caches: own``). A
block of the cache then has those of all three, and is fetched whole.
Latent attention is absorbed in both phases, because the heads of one group share what they select.

In decode, where the cache is cut into blocks, each sequence has an op ``attn.selected.s0`` of its own, whose selected
blocks are dynamic reads that ``attn.select`` reveals; each group of heads chooses for itself. The first and the last
blocks, which are always selected, are read for certain. Blocks that the window sees as well are in place then, and not
candidates: all choices fall on others, so that slightly more is fetched than needed (7 of 1,022 blocks lie in the
window at 65,536 tokens). A block has the keys of all groups, and is fetched and read as a whole for any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from simulator.builders.cache import Cache, own_bytes
from simulator.builders.chosen import Query, attend_chosen, attend_to_rows, index_inputs, of_scores, pool_inputs
from simulator.builders.specs import ID_BYTES, numbered
from simulator.builders.states import gated_state, go_through, shifted_rows, state_inputs
from simulator.builders.tape import Tape
from simulator.graph import DynamicReads
from simulator.reach import Reach
from simulator.workload import Gqa, Mixer, Mla, Mqa, Recurrent, Sparse


def groups_of_heads(part: Mixer) -> int:
    """Return how many groups of heads choose blocks together: those that share a key."""
    return part.kv_heads if isinstance(part, Gqa) else 1


def attend_to_cache(t: Tape, cache: Cache, x: str) -> str:
    """Attend as the layer's kind of attention; return the input of the output projection."""
    if t.mixer == "ffn":
        return shifted_rows(t, x, cache)
    cache = cache.beside() if t.mixer == "state" else cache
    return gated_output(t, attend(t, cache, attention_inputs(t, x, cache), x), x)


def attention_inputs(t: Tape, x: str, cache: Cache | None = None) -> list[str]:
    """Make the tensors that tokens attend with: queries, what is cached of tokens, and what an indexer scores with.

    Queries and keys have their rotary embeddings, and are normalised before if the model says so. All tokens find what
    is cached, if anything is.
    """
    attention = t.attention
    if isinstance(attention, Recurrent):
        return state_inputs(t, attention, x, cache)
    if isinstance(attention, Mqa):
        q, latent = t.norm("attn.q_norm", _query(t, x)), _latent(t, x)
        t.rotate("rope.q", q, attention.heads * attention.qk_rope)
        t.rotate("rope.k", latent, attention.qk_rope)
        return [q, latent, *(pool_inputs(t, attention, attention.pool, x) if attention.pool else [])]
    if isinstance(attention, Mla):
        q, latent, indexer = _query(t, x), _latent(t, x), attention.indexer
        if attention.rotary and attention.qk_rope:
            t.rotate("rope.q", q, attention.heads * attention.qk_rope)
            t.rotate("rope.k", latent, attention.views * attention.qk_rope)
        return [q, latent, *(index_inputs(t, attention, indexer, x) if indexer and not indexer.again else [])]
    q = t.linear("attn.q", x)
    if attention.reuses:
        q = t.norm("attn.q_norm", q) if "attn.q_norm" in t.weights[t.block] else q
        q = t.vector("rope.q", [q], saves=False, kind="rotary") if attention.rotary else q
        lent = t.last_keys[attention.alike][1]
        return [q, *(t.lent(x, t.block, sums=f"attn.{kind}.lent") for kind, x in zip("kv", lent, strict=False))]
    k = t.linear("attn.k", x)
    v = t.linear("attn.v", x) if attention.values == "own" else t.norm("attn.values", k)
    t.go_back_in_order(3 if attention.values == "own" else 2)
    if "attn.q_norm" in t.weights[t.block]:
        q, k = t.norm("attn.q_norm", q), t.norm("attn.k_norm", k)
    if attention.rotary:
        q, k = t.vector("rope.q", [q], saves=False, kind="rotary"), t.vector("rope.k", [k], saves=False, kind="rotary")
        t.go_back_in_order(2)
    t.last_keys[attention.alike] = t.block, [k, v] if t.is_forward else []
    return [q, k, v, *(index_inputs(t, attention, attention.indexer, x) if attention.indexer else [])]


def attend(t: Tape, cache: Cache, taken: list[str], x: str) -> str:
    """Let the current tokens attend to cached tokens and to one another.

    Latent attention takes the form that is cheaper in this phase.

    Parameters
    ----------
    t, cache
        Tape, and the cache that the current tokens find.
    taken, x
        Output and input of `attention_inputs`, perhaps for more tokens.
    """
    attention = t.attention
    if isinstance(attention, Recurrent):
        return go_through(t, taken, cache)
    if isinstance(attention, Mqa):
        return attend_to_rows(t, attention, cache, taken)
    indexer, sparse = attention.indexer, attention.sparse
    is_absorbed = isinstance(attention, Mla) and (t.phase != "prefill" or sparse is not None or indexer is not None)
    if isinstance(attention, Gqa):
        (q, *new), width, seen_bytes = taken[:3], attention.width, cache.held_bytes
        scores, seen_bytes = (2 * width, t.token_bytes // 2), seen_bytes + own_bytes(t, cache, *new)
        pair_flops = 2 * attention.heads * sum(attention.key_and_value)
        query = Query([q], own_bytes(t, cache, q), new, seen_bytes, width, pair_flops, scores)
    else:
        query = (_absorbed_query if is_absorbed else _expanded_query)(t, attention, cache, *taken[:2])
    if sparse is not None:
        out = _attend_in_views(t, sparse, cache, query, x)
    elif indexer is not None:
        out = attend_chosen(t, indexer, cache, query, taken[2 if is_absorbed else 3 :])
    else:
        out = (not is_absorbed and cache.out) or t.of_heads("attn.core.out", query.width)
        reads, after = [*query.taken, *query.new, *cache.held, *of_scores(t)[1]], [] if is_absorbed else cache.after
        scores_bytes, computes_masked = t.workload.dtypes.scores_bytes, t.workload.masked == "computed"
        keys = (cache.seen + cache.tokens) // cache.sequences if scores_bytes or computes_masked else 0
        pairs = cache.tokens * keys or cache.pairs
        t.op(
            "attn.core", [*reads, *after], [out, *cache.added], op_class="attention",
            flops=pairs * query.pair_flops, read_bytes=query.taken_bytes + query.seen_bytes,
            write_bytes=own_bytes(t, cache, out) + cache.added_bytes, device=t.workload.on.attention,
            workspace_bytes=scores_bytes * attention.heads * pairs,
        )  # fmt: skip
    return t.multiply("attn.v_b", [out, *cache.after], t.made_bytes(out), out=cache.out) if is_absorbed else out


def gated_output(t: Tape, out: str, x: str) -> str:
    """Return the input of the output projection: the output of attention, gated if the layer does so."""
    if isinstance(t.attention, Recurrent):
        return gated_state(t, t.attention, out, x)
    if isinstance(part := t.whole_attention, Mqa):
        turned = t.vector("rope.out", [out], saves=False, kind="rotary")
        return t.linear("attn.o_a", turned, heads=part.out_groups * part.out_rank)
    return t.vector("attn.gated", [out, t.linear("attn.gate", x)]) if t.attention.gate else out


def _expanded_query(t: Tape, mla: Mla, cache: Cache, q: str, latent: str) -> Query:
    """Attend with a key and a value for each head, made from the latents."""
    rows, taken = cache.seen + cache.tokens, [latent, *cache.held]
    latents_bytes = cache.held_bytes // mla.kv_elements + cache.tokens * t.element_bytes
    read_bytes, held = mla.kv_lora_rank * latents_bytes, cache.expanded + cache.tokens
    k, v = (t.multiply(f"attn.{name}", taken, read_bytes, rows=rows, made=(held, 0)) for name in ("k_b", "v_b"))
    seen_bytes = t.made_bytes(k, v) * rows // held + mla.qk_rope * latents_bytes
    pair_flops = 2 * mla.heads * sum(mla.key_and_value)
    return Query([q], own_bytes(t, cache, q), [latent, k, v], seen_bytes, mla.width, pair_flops)


def _absorbed_query(t: Tape, mla: Mla, cache: Cache, q: str, latent: str) -> Query:
    """Attend to the latents themselves."""
    nope, rope = (cache.tokens * mla.heads * width * t.element_bytes for width in (mla.qk_nope, mla.qk_rope))
    wide, score_flops = mla.heads * mla.kv_lora_rank, 2 * mla.heads * mla.latent
    absorbing = t.multiply("attn.k_b", [q], nope, made=(0, t.layer.attention.heads * mla.kv_lora_rank))
    seen_bytes = own_bytes(t, cache, latent) + cache.held_bytes
    taken, taken_bytes, pair_flops = [absorbing, q], t.made_bytes(absorbing) + rope, score_flops + 2 * wide
    return Query(taken, taken_bytes, [latent], seen_bytes, wide, pair_flops, (score_flops, t.token_bytes))


def _query(t: Tape, x: str) -> str:
    """Make the queries of all heads, perhaps of a latent."""
    if "attn.q" in t.weights[t.block]:
        return t.linear("attn.q", x)
    return t.linear("attn.q_b", t.norm("attn.q_a_norm", t.linear("attn.q_a", x)))


def _latent(t: Tape, x: str) -> str:
    """Make the row of each token that all heads attend to, of which each rank has all."""
    return t.norm("attn.kv_a_norm", t.to(t.linear("attn.kv_a", x), t.cut()), made="attn.latent")


def _attend_in_views(t: Tape, sparse: Sparse, cache: Cache, query: Query, x: str) -> str:
    """Attend to compressed tokens, to near ones and to selected blocks, and mix the outputs by gates."""
    before, compressed_pairs = cache.within(Reach(sparse=sparse, counted="compressed"))
    made, span = cache.within(Reach(sparse=sparse, counted="made"))[1], cache.span
    complete, stored = before + made, cache.compressed.of(0, sparse.compress.number(span.length))
    gates = cache.gates or t.linear("attn.gate", x)
    reads, write_bytes = [*query.new, *sorted({*cache.held}.intersection(cache.added))], cache.added_bytes
    t.op("attn.cache", reads, cache.added, read_bytes=own_bytes(t, cache, *query.new), write_bytes=write_bytes)
    _compress(t, sparse, cache, made)
    chosen = list[str]()
    if complete and (not cache.longest or cache.longest > sparse.select.top * sparse.select.block):
        chosen = [t.tensor("attn.blocks", groups_of_heads(t.attention) * sparse.select.top, size=ID_BYTES)]
        flops, read_bytes = compressed_pairs * query.scores[0], query.taken_bytes + complete * query.scores[1]
        taken = [*query.taken, *stored]
        t.op("attn.select", taken, chosen, op_class="attention", flops=flops, read_bytes=read_bytes)

    def view(name: str, reads: Iterable[str], seen: int, read: int, dynamic: DynamicReads | None = None) -> str:
        """Attend to `seen` pairs and read `read` tokens: of one sequence if reads are `dynamic`, else of all."""
        sequences = cache.sequences if dynamic else 1
        out = t.of_heads(f"attn.{name}.out", query.width, rows=(cache.tokens // sequences,))
        read_bytes = query.taken_bytes // sequences + read * t.token_bytes
        taken, flops = [*query.taken, *dict.fromkeys(reads)], seen * query.pair_flops
        t.op(f"attn.{name}", taken, [out], op_class="attention", flops=flops, read_bytes=read_bytes, dynamic=dynamic)
        return out

    views = [view("compressed", stored, compressed_pairs, complete)] if complete else []
    (near, seen), start = cache.within(Reach(sparse.window)), max(0, span.cached + 1 - sparse.window)
    views.append(view("window", cache.store.of(start, span.length), seen, near + cache.tokens))
    views += _attend_selected(t, sparse, cache, chosen, view)
    is_last = isinstance(t.attention, Gqa)
    out = (is_last and cache.out) or t.of_heads("attn.core.out", query.width)
    read_bytes, after = own_bytes(t, cache, gates) + t.made_bytes(*views), cache.after if is_last else []
    t.op("attn.mix", [gates, *views, *after], [out], read_bytes=read_bytes, write_bytes=own_bytes(t, cache, out))
    return out


def _compress(t: Tape, sparse: Sparse, cache: Cache, made: int) -> None:
    """Compress each newly complete block of tokens into one token."""
    weights = [t.weight(name) for name in t.weights[t.block] if name.startswith("attn.compress.")]
    if not made:
        return
    compress, width = sparse.compress, weights[0].shape[-1]
    before, complete = map(compress.number, (cache.span.cached, cache.span.length))
    start, stop = before * compress.stride, (complete - 1) * compress.stride + compress.block
    flops = made * (t.attention.kv_elements // width) * 2 * width * width * (compress.block + 1)
    begun = cache.within(Reach(sparse=sparse, counted="makes"))[1]
    tokens = made * compress.stride + begun * (compress.block - compress.stride)
    read_bytes = tokens * t.token_bytes + sum(weight.size_bytes for weight in weights)
    reads, writes = [*cache.store.of(start, stop), *(w.name for w in weights)], cache.compressed.of(before, complete)
    t.op("attn.compress", reads, writes, flops=flops, read_bytes=read_bytes, write_bytes=made * t.token_bytes)


def _attend_selected(t: Tape, sparse: Sparse, cache: Cache, chosen: list[str], view: Callable[..., str]) -> list[str]:
    """Attend to the selected blocks of all sequences; or of each, as dynamic reads, if some can be left out."""
    select, span, seen = sparse.select, cache.span, cache.within(Reach(sparse=sparse, counted="selected"))[1]
    first, last = select.first, -(-span.length // select.block) - select.last
    free = min(last, (span.length - sparse.window) // select.block) - first
    if not chosen or cache.store.block is None or t.phase == "prefill" or free < select.chosen:
        return [view("selected", [*cache.store.of(0, span.length), *chosen], seen, seen)]
    start, stop, views = first * select.block, (first + free) * select.block, list[str]()
    samples, each, seen = groups_of_heads(t.attention), select.chosen, seen // cache.sequences
    for group, name in enumerate(numbered("selected.s", cache.sequences)):
        certain = [*cache.store.of(0, start, group), *cache.store.of(last * select.block, span.length, group)]
        candidates = cache.store.of(start, stop, group)
        dynamic = t.dynamic_reads(f"attn.{name}", "attn.select", candidates, samples=samples, each=each)
        views += [view(name, [*certain, *candidates, *chosen], seen, seen - select.chosen * select.block, dynamic)]
    return views
