"""Inference on one rank: reading prompts (``prefill``), whole or in chunks, or adding tokens to sequences (``decode``).

Prefill runs ``batch`` prompts of ``sequence`` tokens, ``chunk`` tokens of each at a time, through all layers. What a
chunk adds to the KV cache of a layer is a tensor (``c0/L03/kv``; ``L03/kv`` if there is one chunk), which later chunks
read and which is there when the step ends. Only the last token of a prompt goes through the final norm and the logits.

Decode adds ``new_tokens`` tokens, one after another, to ``batch`` sequences that have ``sequence`` tokens cached
(``L03/kv``, persistent and only read); new ones join another tensor (``L03/kv.tail``), as paged caches do. The step is
repeated at the same lengths; what grows, grows by ``new_tokens``.

*Serving.* In one iteration sequences that decode and parts of prompts go through the layers together.

Linears, norms and the feed-forward run over all tokens at once, attention apart: ``attn.decode`` for the sequences that
add a token, ``attn.prefill`` for the parts of prompts, each counted as in `attention` (``gqa``). The last token of each
sequence that gets one goes through the final norm and the logits.

The KV cache of a layer is one tensor in the compute tier, as paged engines reserve it (``L03/kv``, written in place).
What was hit below comes out of it as a tensor of its own, which is at home there (``L03/kv.from.ddr``) and is copied in
before ``attn.prefill``, by the policy. What is stored in another tier is one that no op names (``L03/hbm.to.ddr``).
Tensors hold the tokens of all sequences together, so that a copy moves what an iteration moves in a layer.

*Two pools.* A prefill rank runs `batch` prompts of `sequence` tokens through all layers. Roped k and v of a layer are
its KV cache (2 * tokens * kv * e bytes); they are sent as soon as they are there, layer by layer, and the first token
of each answer at the end. A decode rank serves the prompts of prefill / decode ranks: it keeps what it received of a
layer in one block for each sender (``L03/kv``), which is only read, and what it adds in another (``L03/kv.tail``, room
for all new tokens), as paged caches do. Token i (from 0) of an answer attends to sequence + i + 1 tokens: 4 * h FLOP
and 2 * kv * e bytes for each of them, so that decode reads more with each token; every token reads all weights.

Head and sampling: only the last token of a prompt goes through the final norm and the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from simulator.builders.at_once import at_once
from simulator.builders.attention import attended, projected, sink_logits
from simulator.builders.cache import Cache, Room, Span, Store
from simulator.builders.layer import answer, embed, forward
from simulator.builders.tape import ID_BYTES, Tape, starts
from simulator.builders.weights import Laid, blocks, numbered
from simulator.graph import CollectiveKind, Graph, Job
from simulator.workload import Pools


def build(laid: Laid) -> Job:
    """Build the graph of prefill or of decode, for one rank or for all that share each layer."""
    t, work = Tape(laid), laid.workload
    t.phase, room, layers = work.phase, Room(t), blocks(t.model.layers)
    if t.phase == "prefill":
        spans, x = chunks(work.sequence, work.chunk), ""
        for span, t.micro in zip(spans, starts("c", len(spans)), strict=True):
            t.rows = (work.batch * span.new,)
            x = _through(t, embed(t), partial(room.read, span))
        token = answer(t, x, last=work.batch)
        outputs = [*(name for layer in layers for name in room.kept(layer)), token]
    else:
        t.rows = (work.batch,)
        for layer in layers:
            room.decode(layer)
        outputs = [*room.come, *_answers(t, starts("t", work.new_tokens), room.cache, [])]
    return Job.of(t.graph.build(outputs, steps=work.steps), t.mesh.ranks)


def _through(t: Tape, x: str, find: Callable[[str], Cache]) -> str:
    """Go through all layers; `find` says what a layer has cached."""
    for layer in blocks(t.model.layers):
        x = forward(t, layer, x, partial(attended, t, find(layer)))
    return x


def _answers(t: Tape, starts: list[str], find: Callable[[Span, str], Cache], tokens: list[str]) -> list[str]:
    """Add tokens to sequences one after another, the first behind these; return the last ones."""
    for number, t.micro in enumerate(starts):
        span = Span(t.workload.sequence + number, 1)
        tokens = [answer(t, _through(t, embed(t, tokens), partial(find, span)))]
    return tokens


def chunks(sequence: int, chunk: int | None) -> list[Span]:
    """The chunks of a prompt, in order; the last one may be shorter."""
    size = chunk or sequence
    return [Span(start, min(size, sequence - start)) for start in range(0, sequence, size)]


def build_pools(laid: Laid, pools: Pools) -> Job:
    """Build what the ranks of both pools run, each of which holds the whole model.

    Returns
    -------
    Job
        One graph for each prefill rank of a decode rank, and one for decode.
    """
    work, share = laid.workload, pools.prefill // pools.decode
    groups = numbered("kv.", share) if share > 1 else ["kv"]
    labels = [*(f"prefill for {group}" for group in groups), "decode"] if share > 1 else ["prefill", "decode"]
    prompts, graphs = work.batch * work.sequence, list[Graph]()
    for slot, label in enumerate(labels):
        met = dict(enumerate(groups)) if slot == share else {slot: groups[slot]}
        t = Tape(laid, f"{work.name} {label}", work.batch * share if slot == share else prompts)
        for sender, group in met.items():
            t.group(group, ((decode * share + sender, pools.prefill + decode) for decode in range(pools.decode)))
        graphs.append(_serve(t, pools.new_tokens, groups) if slot == share else _send_cache(t, groups[slot]))
    graph_of = tuple(rank % share for rank in range(pools.prefill)) + (share,) * pools.decode
    return Job(work.name, tuple(graphs), graph_of, tuple(labels))


def _send_cache(t: Tape, group: str) -> Graph:
    """One prefill rank."""
    t.phase, t.kinds = "prefill", {"rope.k.out": "kv_cache", "attn.v.out": "kv_cache"}
    x = embed(t)
    for layer in blocks(t.model.layers):
        x = forward(t, layer, x, partial(at_once, t))
        made = [t.name("rope.k.out"), t.name("attn.v.out")]
        t.meet("send", CollectiveKind.SEND, group, t.made_bytes(*made), made, [])
    token = answer(t, x, last=t.workload.batch)
    t.meet("send", CollectiveKind.SEND, group, t.workload.batch * ID_BYTES, [token], [])
    return t.graph.build(steps=t.workload.steps)


def _serve(t: Tape, new_tokens: int, groups: list[str]) -> Graph:
    """One decode rank."""
    t.phase, (rows,), prompts, length = "decode", t.rows, t.workload.batch, t.workload.sequence
    stores = {layer: Store() for layer in blocks(t.model.layers)}

    def receive(group: str, name: str, size_bytes: int, kind: str) -> str:
        t.graph.tensor(t.name(name), size_bytes, kind)
        t.meet(f"recv.{group}", CollectiveKind.RECV, group, size_bytes, [], [t.name(name)])
        return t.name(name)

    for t.block, store in stores.items():
        store.add(length, [receive(group, group, prompts * length * t.token_bytes, "kv_cache") for group in groups])
        t.graph.tensor(t.name("kv.tail"), rows * new_tokens * t.token_bytes, "kv_cache")
        store.add(length + new_tokens, [t.name("kv.tail")])
    t.block = "head"
    tokens = [receive(group, f"token.{group}", prompts * ID_BYTES, "activation") for group in groups]

    def find(span: Span, layer: str) -> Cache:
        t.block = layer
        return Cache(t, (stores[layer], Store()), rows, span)

    _answers(t, [f"{name}/" for name in numbered("t", new_tokens, 2)], find, tokens)
    return t.graph.build(steps=t.workload.steps)


class Iteration(NamedTuple):
    """What runs together.

    Attributes
    ----------
    decoding, context
        How many sequences add a token, and how many tokens they have cached, all together.
    reading, cached, pairs
        Of the parts of prompts, all together: tokens, tokens cached before them, and how often one attends to another.
    answers
        How many sequences get a token.
    loads
        Tier -> tokens that are copied in from there.
    stores
        (source, target) -> tokens that are copied from one tier to another.
    """

    decoding: int = 0
    context: int = 0
    reading: int = 0
    cached: int = 0
    pairs: int = 0
    answers: int = 0
    loads: tuple[tuple[str, int], ...] = ()
    stores: tuple[tuple[tuple[str, str], int], ...] = ()


def loaded(tier: str) -> str:
    """Last part of the names of tensors with what is copied in from a tier."""
    return f"kv.from.{tier}"


def stored(source: str, target: str) -> str:
    """Last part of the names of tensors with what is copied from one tier to another."""
    return f"{source}.to.{target}"


def build_iteration(laid: Laid, work: Iteration, room: int) -> Graph:
    """Build the graph of an iteration, which runs once, on one rank.

    Parameters
    ----------
    laid
        The model, with grouped-query attention.
    work
        What runs together.
    room
        How many tokens the KV cache has room for in the compute tier, less those that leave it [tokens].
    """
    rows = work.decoding + work.reading
    t = Tape(laid, rows=rows)
    t.phase = "prefill" if work.reading else "decode"
    coming = {loaded(tier): tokens for tier, tokens in work.loads}
    here = {"kv": max(0, room - sum(coming.values()))}
    leaving = {stored(*way): tokens for way, tokens in work.stores}
    for layer in blocks(t.model.layers):
        t.block = layer
        for name, tokens in (here | coming | leaving).items():
            t.graph.tensor(f"{layer}/{name}", tokens * t.token_bytes, "kv_cache", persistent=True)
    if not rows:
        t.graph.tensor("idle", 0)
        t.graph.op("idle", [], ["idle"], "compute", duration_ns=0)
        return t.graph.build(steps=1)
    x = embed(t)
    for layer in blocks(t.model.layers):
        x = forward(t, layer, x, partial(_apart, t, work))
    if work.answers:
        x = answer(t, x, last=work.answers if work.answers < rows else 0)
    return t.graph.build([x], steps=1)


def _apart(t: Tape, work: Iteration, x: str) -> str:
    """Attend apart, into one tensor: sequences that add a token, and parts of prompts."""
    taken, width, kv_elements = projected(t, x), t.layer.attention.width, t.layer.attention.kv_elements
    out, kv, sinks = t.tensor("attn.core.out", width), t.name("kv"), sink_logits(t)
    coming = [*(t.name(loaded(tier)) for tier, _ in work.loads), *([out] if work.decoding else [])]
    kinds = {
        "decode": (list[str](), work.decoding, work.context, work.context + work.decoding),
        "prefill": (coming, work.reading, work.cached, work.pairs),
    }
    for name, (more, new, cached, pairs) in kinds.items():
        if new:
            t.op(
                f"attn.{name}", [*taken, *more, kv, *sinks], [out, kv], op_class="attention", flops=4 * width * pairs,
                read_bytes=new * (width + kv_elements) * t.element_bytes + cached * t.token_bytes,
                write_bytes=new * (width * t.element_bytes + t.token_bytes),
            )  # fmt: skip
    return out
