"""Attention of whole sequences to themselves, with its gradients; also where prompts are read for another pool.

*Softmax.* Keys have k elements and values v. Half of the square of T tokens in sequences of s takes T * s * heads *
(k + v) FLOP, and T * s * heads * (3 * k + 2 * v) in backward, which makes the scores again; where a token sees at most
m, the part m * (2 * s - m) / s^2 of it. Saved are queries, keys, values, the output, and a statistic for each row.
Where scores are held (`Dtypes.scores_bytes`) all pairs are computed, and their scores saved in place of statistics, and
not made again; ``attn.core.softmax`` is what reads and writes them beside (`eager`).

*Encoders.* Each token sees all T * s pairs: twice the work; within a window, half of it before a token and half behind.

*An encoder's output* (``attn.across``, behind a norm, with projections of its own; arXiv 1706.03762, section 3.2.3). It
has R rows a sequence: T * R * heads * (k + v) * 2 FLOP. Inference makes its keys and values once, in the first chunk
of a prompt, and keeps them for all layers (``L03/kv.across``). Training takes it as an input, and adds its gradient up
over layers, unless some weights are frozen.

*Chosen tokens* (DeepSeek-V3.2, arXiv 2512.02556, section 2.1). The indexer (H heads of d elements) learns from a loss
of its own in each layer: the divergence of its scores from the attention of all heads, added up. Its input is detached,
and only that loss reaches it. Kernels are those of TileLang's ``examples/dsa_sparse_finetune``: attention is
absorbed (k is the latent with its rotary part, v the latent), and saved are absorbed queries and the output (heads *
(2 * l + qk_rope) elements a token), what the indexer scores with (H * d + H + d), and the index and the score of
each chosen token (4 bytes each). In backward ``attn.index.target`` adds up what all heads attend to (2 * heads * k FLOP
a pair), over tensor ranks as well, and ``attn.index`` makes the gradients (6 * H * d). In forward it scores all pairs
(2 * H * d).

Where each token sees all before it (``top`` is at least the sequence), attention is expanded and dense, no token is
chosen, and in backward the scores of all pairs are a workspace (fp32). That is the warm-up, if all weights but the
indexer's are ``frozen`` (section 2.1.1, dense warm-up stage): then nothing else has a backward.

*Compressed tokens* (DeepSeek-V4, `chosen`). The rows of near and of compressed tokens are read by all heads in one op,
and both have a gradient. ``attn.pool`` saves its inputs. An indexer learns as above, from compressed tokens alone.

*Three views* (NSA, arXiv 2502.11089, section 3). Each view is a softmax as above over the pairs that it sees, with a
key and a value of its own or the same as the others, and saves its output and a statistic for each row: they run as
kernels of their own, as in ``fla-org/native-sparse-attention``. Latent attention is absorbed. ::

    attn.q attn.k attn.v   rope.q rope.k   attn.gate   attn.compress   attn.select
    attn.compressed attn.window attn.selected   attn.mix

``attn.compress`` lays blocks of l tokens out, adds their positions, and takes them through two linears; of each that
comes out l + 3 times as much is saved (the block, before and behind the activation, and itself). ``attn.select`` has no
gradient; saved are the indices of the blocks (4 bytes each). ``attn.mix`` saves the gates and the output of each view.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from simulator.builders.attention import attention_inputs, gated_output, groups_of_heads
from simulator.builders.chosen import of_scores, small_of_pools
from simulator.builders.eager import SCORES, traffic
from simulator.builders.specs import BATCH, FP32_BYTES, ID_BYTES
from simulator.builders.states import go_through, shifted_rows
from simulator.builders.tape import Tape
from simulator.graph_builder import OpFields
from simulator.layout import Layout
from simulator.reach import Reach, TokenSpan
from simulator.workload import Compress, Gqa, Indexer, Mla, Mqa, Pool, Recurrent, Sparse, attends_whole


class Heads(NamedTuple):
    """Tensors that heads attend with.

    Attributes
    ----------
    own, shared
        Tensors with a part for each head, and those that all heads read.
    sizes
        Elements of a key and of a value of a head.
    pairs
        Twice the pairs of tokens of a sequence that attend.
    scoring
        Tensors that the indexer scores with, if there is one.
    chosen
        Indices of the chosen tokens or blocks, if there are; and their scores, if the indexer learns.
    view
        Name of the view, if these heads see one of three.
    scored
        Twice the pairs that the indexer's loss is of; default: those that attend.
    """

    own: list[str]
    shared: list[str]
    sizes: tuple[int, int]
    pairs: int
    scoring: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    view: str = ""
    scored: int = 0


def attend_whole(t: Tape, x: str) -> str:
    """Let each token of a sequence attend to those before it, without a KV cache; each rank computes its own heads."""
    if t.mixer == "ffn":
        return shifted_rows(t, x)
    attention, sequence, inputs = t.whole_attention, t.workload.sequence, attention_inputs(t, x)
    if isinstance(attention, Recurrent):
        return gated_output(t, go_through(t, inputs), x)
    most = min(sequence, (attention.window or sequence) + attention.sinks)
    pairs = most * (2 * sequence - most)
    if not t.model.causal:  # a window is half before a token and half behind it
        most = min(sequence - 1, (attention.window or 2 * sequence) // 2)
        pairs = 2 * (sequence * (2 * most + 1) - most * (most + 1))
    if attends_whole(attention) and (t.workload.masked == "computed" or t.workload.dtypes.scores_bytes):
        pairs = 2 * sequence**2
    if isinstance(attention, Gqa):
        index, chosen = tuple([t.to(score, t.cut()) for score in inputs[3:]]), tuple[str, ...]()
        if (indexer := attention.indexer) and indexer.top * indexer.block < sequence:
            chosen, pairs = _choose_tokens(t, indexer, index)
        heads = Heads(inputs[:3], [], attention.key_and_value, pairs, index, chosen)
        out = _attend(t, heads) if attention.sparse is None else _attend_in_views(t, attention.sparse, heads, x)
    elif isinstance(attention, Mqa):
        out = _attend_to_rows(t, attention, inputs, pairs)
    else:
        out = _attend_to_latents(t, attention, inputs, pairs, x)
    return gated_output(t, out, x)


def _attend_to_latents(t: Tape, mla: Mla, inputs: list[str], pairs: int, x: str) -> str:
    """Attend with a key and a value for each head, made from the latents; or to the latents themselves (absorbed).

    The latter in three views, or to the tokens that an indexer chooses.
    """
    (q, latent, *scoring), indexer = inputs, mla.indexer
    index = tuple([t.to(score, t.cut()) for score in scoring])
    if mla.sparse or (indexer and indexer.top < t.workload.sequence):
        chosen, pairs = _choose_tokens(t, indexer, index) if indexer else ((), 0)
        q = t.linear("attn.k_b", q, heads=mla.heads * mla.latent)
        heads = Heads([q], [latent], (mla.latent, mla.kv_lora_rank), pairs, index, chosen)
        context = _attend_in_views(t, mla.sparse, heads, x) if mla.sparse else _attend(t, heads)
        return t.linear("attn.v_b", context, heads=mla.width)
    k, v = t.linear("attn.k_b", latent), t.linear("attn.v_b", latent)
    if not t.is_eager:
        return _attend(t, Heads([q, k, v], [latent], mla.key_and_value, pairs, index))
    context = _attend(t, Heads([q, _whole_keys(t, mla, k, latent), v], [], mla.key_and_value, pairs, index))
    return t.vector("attn.copy", [context], saves=False)  # heads stand before tokens, as in what was put together


def given_rows(t: Tape) -> str:
    """Return the output of an encoder, an input, whose gradient is made if this model is trained as a whole."""
    rows = t.model.encoded * t.workload.batch * t.mesh.size(BATCH)
    encoded = t.given(f"{t.micro if t.is_forward else ''}encoded", t.model.hidden, rows)
    t.wanting.update([encoded] if t.is_forward and not (t.workload.lora or t.workload.frozen) else [])
    return encoded


def attend_across(t: Tape, x: str) -> str:
    """Let each token attend to all rows of an encoder's output; inference caches their keys and values once a layer."""
    part, rows, q = t.whole_attention, t.model.encoded, _across(t, "q", x)
    cached, made = f"{t.block}/kv.across", list[str]()
    size_bytes = t.workload.batch * rows * cast(Gqa, t.attention).seen_elements * t.workload.dtypes.kv_bytes
    if t.phase == "decode":  # the weights of keys and values stay, for other sequences
        t.declare(cached, size_bytes, "kv_cache")
        for name in t.weights[t.block]:
            t.weight(name)
    elif cached not in t.held:  # chunks after the first one find it
        encoded = given_rows(t)
        made = [_across(t, name, encoded) for name in "kv"]
    if t.is_forward and isinstance(part, Gqa):
        return _attend(t, Heads([q, *made], [], part.key_and_value, 2 * t.workload.sequence * rows, view="across"))
    if made:
        t.graph.tensor(cached, size_bytes, "kv_cache")
        t.held[cached] = cached
    out = t.of_heads("attn.across.out", t.attention.width)
    t.op(
        "attn.across", [q, *(made or [cached])], [out, *[cached] * bool(made)], op_class="attention",
        flops=4 * t.own_tokens * rows * t.attention.width, write_bytes=t.made_bytes(out) + size_bytes * bool(made),
        read_bytes=t.made_bytes(q, *made) + (0 if made else size_bytes),
    )  # fmt: skip
    return out


def _across(t: Tape, name: str, x: str) -> str:
    made, norm = t.linear(f"attn.across.{name}", x), f"attn.across.{name}_norm"
    return t.norm(norm, made) if norm in t.weights[t.block] else made


def _pairs(t: Tape, heads: Heads, out: str) -> int:
    """Count the pairs of tokens that attend, twice, over all sequences and heads of this rank."""
    return t.spread[out].elements * heads.pairs // (t.workload.sequence * heads.sizes[1])


def _passes(t: Tape, scores: str) -> dict[str, OpFields]:
    """Return what the softmax reads and writes, forward and backward."""
    return traffic(SCORES[t.is_eager], t.spread[scores].elements * t.element_bytes)


def _scores(t: Tape, heads: Heads, taken: list[str], layout: Layout) -> list[str]:
    """Make the scores of all pairs, if training holds them."""
    name, size = f"attn.{heads.view or 'core'}", t.workload.dtypes.scores_bytes * (heads.view in ("", "across"))
    if not (size and t.is_forward and attends_whole(t.whole_attention)):
        return []
    width = t.whole_attention.heads * heads.pairs // (2 * t.workload.sequence)
    scores = t.tensor(f"{name}.scores", width, layout, size)
    t.op(f"{name}.softmax", taken, [scores], **_passes(t, scores)["forward"])
    return [scores]


def _attend(t: Tape, heads: Heads) -> str:
    """Attend with these heads; training saves a statistic for each row, or the scores that these make again."""
    name, end = f"attn.{heads.view or 'core'}", f"{heads.view and '.'}{heads.view}.grad"
    features, keys = max((t.spread[x].layout.tensor_map[1] for x in heads.own), key=len), len(heads.own) - 1
    layouts = [layout := t.cut(features), *[t.cut(features, BATCH)] * keys]  # context ranks gather keys and values
    brought = [t.to(x, whole) for x, whole in zip(heads.own, layouts, strict=True)]
    taken = [*brought, *heads.shared, *heads.chosen[:1]]
    small, sinks = ([], []) if heads.view == "across" else of_scores(t)
    (key, value), part = heads.sizes, t.whole_attention
    context = t.tensor(f"{name}.out", part.heads * value, layout)
    scores = _scores(t, heads, taken, layout) if t.workload.dtypes.scores_bytes else []
    statistics = [t.tensor(f"{name}.lse", part.heads, layout, FP32_BYTES)] if t.is_forward and not scores else scores
    made, pairs = [context, *(() if scores else statistics)], _pairs(t, heads, context)
    t.op(name, [*taken, *scores, *sinks], made, op_class="attention", flops=pairs * (key + value))

    def back(dy: str) -> None:
        dy, *saved = (t.to(x, whole) for x, whole in zip((dy, *heads.own), (layout, *layouts), strict=True))
        sums = [layout, *[t.cut(features, BATCH, t.batch[len(BATCH) :])] * keys]
        grads = [t.add(f"{x}{end}", t.spread[y], summed) for x, y, summed in zip(heads.own, saved, sums, strict=True)]
        summed = t.cut(partial=layout.tensor_map[1])
        shared = [t.add(f"{x}{end}", t.spread[x], summed) for x in heads.shared]
        old, new = t.weight_gradients(layout.tensor_map[0], *small)
        if scores:
            t.op(f"{name}.softmax", [*scores, dy], [], **_passes(t, *scores)["backward"])
        reads = [*saved, *heads.shared, *heads.chosen[:1], context, *statistics, dy, *sinks, *old]
        flops, size_bytes = pairs * ((2 if scores else 3) * key + 2 * value), t.made_bytes(*statistics)
        made = [*grads, *shared, *new]
        t.op(name, reads, made, op_class="attention_backward", flops=flops, workspace_bytes=size_bytes)
        whole = (t.to(grad, t.spread[x].layout.whole) for grad, x in zip(grads, heads.own, strict=True))
        for letter, x, grad in zip("qkvl", (*heads.own, *heads.shared), (*whole, *shared), strict=False):
            t.add_gradients([x], [grad], f"{name}.{letter}")

    t.record(context, back)
    if any(map(t.wants, heads.scoring)):
        _train_indexer(t, heads, context, statistics)
    return context


def _whole_keys(t: Tape, mla: Mla, k: str, latent: str) -> str:
    """Give each head a whole key, with the rotary part; its inputs stay saved, as values are views of them."""
    out = t.tensor("attn.keys.out", mla.heads * mla.key_and_value[0], t.spread[k].layout)
    t.op("attn.keys", [k, latent], [out])

    def back(dy: str) -> None:
        summed = t.cut(partial=t.spread[k].layout.tensor_map[1])
        grads = [t.add(f"{k}.grad", t.spread[k]), t.add(f"{latent}.grad", t.spread[latent], summed)]
        t.op("attn.keys", [dy, k], grads)
        t.add_gradients([k, latent], grads)

    return t.record(out, back)


# chosen tokens


def _attend_to_rows(t: Tape, part: Mqa, inputs: list[str], pairs: int) -> str:
    """Attend to one row of each near token, and of compressed ones, perhaps those that an indexer chooses."""
    (q, latent, *made), pool, sequence = inputs, part.pool, t.workload.sequence
    if not pool or sequence < pool.stride:
        return _attend(t, Heads([q], [latent], part.key_and_value, pairs))
    seen = Reach(pool.indexer.top if pool.indexer else None, sparse=pool, counted="chosen")
    index, chosen = tuple[str, ...](), tuple[str, ...]()
    shared, scored = [latent, _pooled(t, pool, "attn.pool", made[:2])], 2 * seen.seen(sequence)
    if indexer := pool.indexer:
        index = (*made[2:4], _pooled(t, pool, "attn.index.pool", made[4:]))
        scores = t.own_tokens // sequence * seen._replace(window=None).seen(sequence)
        flops = 2 * scores * indexer.heads * indexer.head_size
        chosen = _chosen(t, index, min(indexer.top, sequence // pool.stride), flops)
    return _attend(t, Heads([q], shared, part.key_and_value, pairs + scored, index, chosen, scored=scored))


def _pooled(t: Tape, pool: Pool, name: str, taken: list[str]) -> str:
    """Compress blocks of tokens into the sums of rows, weighted by others; backward makes the weights again."""
    sequence, weights = t.workload.sequence, small_of_pools(t, f"{name}.")
    rows = t.rows[0] // sequence * (sequence // pool.stride)
    return t.joined(name, taken, t.spread[taken[0]].width // pool.rows, weights, rows=(rows,))


def _choose_tokens(t: Tape, indexer: Indexer, index: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Let an indexer choose tokens: return them, with their scores if it learns, and twice the pairs that attend."""
    sequence = t.workload.sequence
    pairs = indexer.top * (2 * sequence - indexer.top)
    pairs = 2 * Reach.chosen(indexer).seen(sequence) if indexer.block > 1 else pairs
    if indexer.again:
        return (), pairs
    most = indexer.top * (indexer.heads if indexer.block > 1 else 1)
    return _chosen(t, index, most, t.own_tokens * sequence * indexer.heads * indexer.head_size), pairs


def _chosen(t: Tape, index: tuple[str, ...], most: int, flops: int) -> tuple[str, ...]:
    """Let an indexer choose at most so many for each token: return them, with their scores if it learns."""
    chosen = t.tensor("attn.index.out", most, size=ID_BYTES)
    scores = [t.tensor("attn.index.scores", most, size=FP32_BYTES)] if any(map(t.wants, index)) else []
    t.op("attn.index", index, [chosen, *scores], op_class="attention", flops=flops)
    return (t.alias(chosen, "detached"), *scores)


def _train_indexer(t: Tape, heads: Heads, context: str, statistics: list[str]) -> None:
    """Train an indexer: it learns to score tokens as all heads together attend to them."""
    taught, layout = [x for x in heads.scoring if t.wants(x)], t.spread[context].layout
    indexer = cast(Indexer, cast(Gqa | Mla | Mqa, t.whole_attention).indexer)
    each, pairs = indexer.heads * indexer.head_size, heads.scored or heads.pairs
    most = t.spread[heads.chosen[0]].width if heads.chosen else min(indexer.top, t.workload.sequence)

    def back(_: str) -> None:
        target = t.tensor("attn.index.target", most, t.cut(partial=layout.tensor_map[1]), FP32_BYTES)
        keys, flops = heads.own[:2], _pairs(t, heads._replace(pairs=pairs), context) * heads.sizes[0]
        reads = [*(t.to(x, layout) for x in keys), *heads.shared[-1:], *statistics, *heads.chosen[:1]]
        t.op("attn.index.target", reads, [target], op_class="attention", flops=flops)
        target, scores_bytes = t.to(target, t.cut()), 0 if heads.chosen else t.made_bytes(target)
        grads = [t.add(f"{x}.grad", t.spread[x]) for x in taught]
        reads, flops = [*heads.scoring, *heads.chosen, target], 3 * each * (t.own_tokens * pairs // t.workload.sequence)
        t.op("attn.index", reads, grads, op_class="attention", flops=flops, workspace_bytes=scores_bytes)
        t.add_gradients(taught, grads)

    t.record(taught[0], back)


# three views


def _attend_in_views(t: Tape, sparse: Sparse, heads: Heads, x: str) -> str:
    """Attend to compressed, selected and near tokens, and mix the three results by gates, which are made from `x`."""
    sequence, gates = t.workload.sequence, t.linear("attn.gate", x)
    keys_and_values, query = heads.shared or heads.own[1:], heads.own[:1]
    ends, parts = ("compressed", "selected", "near"), [[y] * 3 for y in keys_and_values]  # whole rows, or thirds
    if sparse.caches == "own":
        parts = [t.divided(f"attn.views.{y.rpartition('/')[2]}", y, ends, t.spread[y].width // 3) for y, *_ in parts]
    compress, selected, near = map(list, zip(*parts, strict=True))
    made = _compress(t, sparse.compress, compress)
    blocks = _select_blocks(t, sparse, heads, made)

    def view(name: str, seen: list[str], pairs: int, chosen: tuple[str, ...] = ()) -> str:
        by_head, shared = (query, seen) if heads.shared else ([*query, *seen], [])
        return _attend(t, Heads(by_head, shared, heads.sizes, 2 * pairs, chosen=chosen, view=name))

    mixed = [
        view("compressed", made, sparse.compress.seen(sequence)),
        view("window", near, Reach(sparse.window).pairs(TokenSpan(0, sequence))),
        view("selected", selected, sparse.select.seen(sequence), blocks),
    ]
    return t.vector("attn.mix", [*mixed, gates])


def _compress(t: Tape, compress: Compress, seen: list[str]) -> list[str]:
    """Compress each block of keys and of values, or of latents, into one."""
    sequence, layout = t.workload.sequence, t.cut(t.spread[seen[0]].layout.tensor_map[1])
    weights = [t.weight(name) for name in t.weights[t.block] if name.startswith("attn.compress.")]
    held, rows = [t.held[weight.name] for weight in weights], (t.rows[0] // sequence * compress.number(sequence),)
    widths = dict(zip("kv", (t.spread[x].width for x in seen), strict=False))
    made = [t.tensor(f"attn.compress.{name}", width, layout, rows=rows) for name, width in widths.items()]
    inner = [t.tensor(f"attn.inner.{name}", (compress.block + 2) * n, layout, rows=rows) for name, n in widths.items()]
    flops = sum(t.spread[x].elements for x in made) * 2 * weights[0].shape[-1] * (compress.block + 1)
    t.op("attn.compress", [*seen, *held], [*made, *inner], flops=flops)

    def back(dy: str) -> None:
        grads = [t.to(grad, layout) for grad in (dy, *map(t.grads.pop, made[1:]))]
        dx = [t.add(f"{x}.compress.grad", t.spread[x]) for x in seen]
        old, new = t.weight_gradients(layout.cut, *weights)
        t.op("attn.compress", [*grads, *inner, *held, *old], [*dx, *new], flops=2 * flops)
        for name, x, grad in zip("kv", seen, dx, strict=False):
            t.add_gradients([x], [grad], f"attn.compress.{name}")

    t.record(made[0], back)
    return made


def _select_blocks(t: Tape, sparse: Sparse, heads: Heads, made: list[str]) -> tuple[str, ...]:
    """Select blocks by the scores of compressed keys; none if the sequence has so few that each sees all of them."""
    sequence, q = t.workload.sequence, heads.own[0]
    if sequence <= sparse.select.top * sparse.select.block:
        return ()
    layout = t.cut(() if heads.shared else t.spread[q].layout.tensor_map[1])
    groups = groups_of_heads(t.whole_attention) * (1 if heads.shared else t.weights[t.block]["attn.k"].copies)
    blocks = t.tensor("attn.select.out", groups * sparse.select.top, layout, ID_BYTES)
    flops = 2 * t.spread[q].elements * sparse.compress.seen(sequence) // sequence
    t.op("attn.select", [q, made[0]], [blocks], op_class="attention", flops=flops)
    return (t.alias(blocks, "detached"),)
