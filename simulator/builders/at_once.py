"""Attention of whole sequences to themselves: in training, and where prompts are read for another pool.

*Softmax.* Keys have k elements and values v. Half of the square of T tokens in sequences of s takes T * s * heads *
(k + v) FLOP, and T * s * heads * (3 * k + 2 * v) in backward, which makes the scores again; where a token sees at most
m, the part m * (2 * s - m) / s^2 of it. Saved are queries, keys, values, what comes out, and a number for each row.

*Chosen tokens* (DeepSeek-V3.2, arXiv 2512.02556, section 2.1). The indexer (H heads of d elements) learns from a loss
of its own in each layer: how its scores diverge from what all heads attend to, added up. Its input is detached, and
nothing but that loss reaches it. Kernels are those of TileLang's ``examples/dsa_sparse_finetune``: attention is
absorbed (k is the latent with its rotary part, v the latent), and saved are absorbed queries and what comes out (heads
* (2 * l + qk_rope) elements a token), what the indexer scores with (H * d + H + d), and the number and the score of
each chosen token (4 bytes each). In backward ``attn.index.target`` adds up what all heads attend to (2 * heads * k FLOP
a pair), over tensor ranks as well, and ``attn.index`` makes the gradients (6 * H * d). In forward it scores all pairs
(2 * H * d).

Where each token sees all before it (``top`` is at least the sequence), attention is expanded and dense, no token is
chosen, and in backward the scores of all pairs are a workspace (fp32). That is the warm-up, if all weights but the
indexer's are ``frozen`` (section 2.1.1, dense warm-up stage): then nothing else has a backward.

*Linear.* Lightning attention saves q, k and v, and makes the states of blocks again (Lightning Attention-2, arXiv
2401.04658, algorithm 2; ``lightning_attn2.py`` of its authors): five products in backward for two in forward, within a
block and between blocks alike.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.builders.attention import drawn, finished, indexed, latents, linear_flops, projected, sink_logits
from simulator.builders.tape import FP32_BYTES, ID_BYTES, Tape
from simulator.builders.weights import TENSOR
from simulator.workload import Gqa, Indexer, Linear, Mla


class Heads(NamedTuple):
    """What heads attend with.

    Attributes
    ----------
    own, shared
        Tensors with a part for each head, and those that all heads read.
    sizes
        Elements of a key and of a value of a head.
    most
        Tokens that each token sees at most.
    scoring
        What the indexer scores with, if there is one.
    chosen
        Which ones, if they are chosen; and their scores, if the indexer learns.
    """

    own: list[str]
    shared: list[str]
    sizes: tuple[int, int]
    most: int
    scoring: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()


def at_once(t: Tape, x: str) -> str:
    """Attend to a whole sequence without a cache, each rank with its heads; with gradients in training."""
    part, sequence = t.layer.attention, t.workload.sequence
    if isinstance(part, Linear):
        return finished(t, _lightning(t, part, drawn(t, x)), x)
    most = min(sequence, (part.window or sequence) + part.sinks)
    if isinstance(part, Gqa):
        return _core(t, Heads(projected(t, x), [], part.key_and_value, most))
    q, latent = latents(t, part.of_one(t.mesh.size(TENSOR)), x)
    index = tuple(t.to(one, t.cut()) for one in indexed(t, part, part.indexer, x)) if part.indexer else ()
    if part.indexer and part.indexer.top < sequence:
        return _absorbed(t, part, part.indexer, index, (q, latent))
    own, shared = [q, *(t.linear(f"attn.{name}", latent) for name in ("k_b", "v_b"))], [latent]
    if t.workload.kernels == "eager":
        own, shared = [q, _whole_keys(t, part, own[1], latent), own[2]], []
    context = _core(t, Heads(own, shared, part.key_and_value, most, index))
    if t.workload.kernels == "eager":  # heads stand before tokens, as in what was put together
        return t.vector("attn.copy", [context], saves=False)
    return context


def _pairs(t: Tape, heads: Heads, out: str) -> int:
    """Twice the pairs of tokens that attend, of all heads of this rank."""
    sequence, most = t.workload.sequence, heads.most
    return t.elements(out) * most * (2 * sequence - most) // (sequence * heads.sizes[1])


def _core(t: Tape, heads: Heads) -> str:
    """What heads put out; in training with the numbers of rows from which their scores are made again."""
    here = t.cut(max((t.layout(x).tensor_map[1] for x in heads.own), key=len))
    taken, sinks = [*(t.to(x, here) for x in heads.own), *heads.shared, *heads.chosen[:1]], sink_logits(t)
    (key, value), number = heads.sizes, t.layer.attention.heads
    context = t.tensor("attn.core.out", number * value, here)
    statistics = [t.tensor("attn.core.lse", number, here, FP32_BYTES)] if t.is_forward else []
    pairs = _pairs(t, heads, context)
    t.op("attn.core", [*taken, *sinks], [context, *statistics], op_class="attention", flops=pairs * (key + value))

    def back(dy: str) -> None:
        dy, *saved = (t.to(x, here) for x in (dy, *heads.own))
        grads = [t.add(f"{x}.grad", t.spread[one]) for x, one in zip(heads.own, saved, strict=True)]
        summed = t.cut(partial=here.tensor_map[1])
        shared = [t.add(f"{x}.grad", t.spread[x]._replace(layout=summed)) for x in heads.shared]
        old, new = t.grad(t.weight("attn.sinks"), here.tensor_map[0]) if sinks else ([], [])
        reads, size_bytes = (
            [*saved, *heads.shared, *heads.chosen[:1], context, *statistics, dy],
            t.made_bytes(*statistics),
        )
        reads, writes = [*reads, *sinks, *old], [*grads, *shared, *new]
        flops = pairs * (3 * key + 2 * value)
        t.op("attn.core", reads, writes, op_class="attention", flops=flops, workspace_bytes=size_bytes)
        whole = (t.to(grad, t.layout(x).whole) for grad, x in zip(grads, heads.own, strict=True))
        t.give([*heads.own, *heads.shared], [*whole, *shared])

    t.record(context, back)
    _teach(t, heads, context, statistics)
    return context


def _whole_keys(t: Tape, part: Mla, k: str, latent: str) -> str:
    """Keys of heads with the rotary part of each its own; what they are made of is saved, as values are views of it."""
    out = t.tensor("attn.keys.out", part.heads * part.key_and_value[0], t.layout(k))
    t.op("attn.keys", [k, latent], [out])

    def back(dy: str) -> None:
        summed = t.spread[latent]._replace(layout=t.cut(partial=t.layout(k).tensor_map[1]))
        grads = [t.add(f"{k}.grad", t.spread[k]), t.add(f"{latent}.grad", summed)]
        t.op("attn.keys", [dy, k], grads)
        t.give([k, latent], grads)

    return t.record(out, back)


def _lightning(t: Tape, part: Linear, taken: list[str]) -> str:
    """The core of lightning attention."""
    here = t.cut(max((t.layout(x).tensor_map[1] for x in taken), key=len))
    out, taken = t.tensor("attn.core.out", part.width, here), [t.to(x, here) for x in taken]
    flops = linear_flops(t, part, out, t.workload.sequence)
    t.op("attn.core", taken, [out], op_class="attention", flops=flops)

    def back(dy: str) -> None:
        grads = [t.add(f"{x}.grad", t.spread[x]) for x in taken]
        t.op("attn.core", [*taken, t.to(dy, here)], grads, op_class="attention", flops=5 * flops // 2)
        t.give(taken, grads)

    return t.record(out, back)


# chosen tokens


def _absorbed(t: Tape, part: Mla, about: Indexer, index: tuple[str, ...], taken: tuple[str, str]) -> str:
    """Attend to the latents of the tokens that an indexer chooses."""
    q, latent = taken
    chosen = t.tensor("attn.index.out", about.top, size=ID_BYTES)
    scores = [t.tensor("attn.index.scores", about.top, size=FP32_BYTES)] if any(map(t.wants, index)) else []
    flops = t.own_tokens * t.workload.sequence * about.heads * about.head_size
    t.op("attn.index", index, [chosen, *scores], op_class="attention", flops=flops)
    q, sizes = t.linear("attn.k_b", q, heads=part.heads * part.latent), (part.latent, part.kv_lora_rank)
    context = _core(t, Heads([q], [latent], sizes, about.top, index, (t.detached(chosen), *scores)))
    return t.linear("attn.v_b", context, heads=part.width)


def _teach(t: Tape, heads: Heads, context: str, statistics: list[str]) -> None:
    """Give an indexer its gradients, as far as it is trained: from the scores of all heads, added up."""
    taught, here, about = [x for x in heads.scoring if t.wants(x)], t.layout(context), t.layer.attention
    if not taught or not isinstance(about, Mla) or not about.indexer:
        return
    each = about.indexer.heads * about.indexer.head_size

    def back(_: str) -> None:
        target = t.tensor("attn.index.target", heads.most, t.cut(partial=here.tensor_map[1]), FP32_BYTES)
        keys, flops = [t.to(x, here) for x in heads.own[:2]], _pairs(t, heads, context) * heads.sizes[0]
        reads = [*keys, *heads.shared, *statistics, *heads.chosen[:1]]
        t.op("attn.index.target", reads, [target], op_class="attention", flops=flops)
        target, scores_bytes = t.to(target, t.cut()), 0 if heads.chosen else t.made_bytes(target)
        grads = [t.add(f"{x}.grad", t.spread[x]) for x in taught]
        flops = 3 * each * (t.own_tokens * heads.most * (2 * t.workload.sequence - heads.most) // t.workload.sequence)
        reads = [*heads.scoring, *heads.chosen, target]
        t.op("attn.index", reads, grads, op_class="attention", flops=flops, workspace_bytes=scores_bytes)
        t.give(taught, grads)

    t.record(taught[0], back)
