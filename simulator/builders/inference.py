"""Inference on one rank: reading prompts (``prefill``), whole or in chunks, or adding tokens to sequences (``decode``).

Prefill runs ``batch`` prompts of ``sequence`` tokens, ``chunk`` tokens of each at a time, through all layers. What a
chunk adds to the KV cache of a layer is a tensor (``c0/L03/kv``; ``L03/kv`` if there is one chunk), which later chunks
read and which is there when the step ends. Only the last token of a prompt goes through the final norm and the logits.

Decode adds ``new_tokens`` tokens, one after another, to ``batch`` sequences that have ``sequence`` tokens cached
(``L03/kv``, persistent and only read); new ones join another tensor (``L03/kv.tail``), as paged caches do. The step is
repeated at the same lengths; what grows, grows by ``new_tokens``.

*Serving.* In one iteration sequences that decode and parts of prompts go through the layers together.

Linears, norms and the feed-forward run over all tokens at once, attention apart: ``attn.decode`` for the sequences that
add a token, ``attn.prefill`` for the parts of prompts, each counted as in `attention.gqa`. The last token of each
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

from simulator.builders.attention import attended
from simulator.builders.cache import Cache, Room, Span, Store
from simulator.builders.layer import answer, embed, fed, forward, projected
from simulator.builders.layer import attended as trained
from simulator.builders.tape import ID_BYTES, Tape, blocks, numbered
from simulator.graph import Graph, Job
from simulator.layout import Mesh, Weight
from simulator.workload import DecoderModel, Gqa, Pools, Workload


def build(workload: Workload, model: DecoderModel, mesh: Mesh, weights: dict[str, Weight]) -> Job:
    """Build the graph of prefill or of decode.

    Parameters
    ----------
    workload, model
        What runs.
    mesh, weights
        Of one rank, which holds the whole model.
    """
    t = Tape(workload, mesh, weights)
    t.phase, room, layers = workload.phase, Room(t, model.attention), blocks(model.layers)
    if t.phase == "prefill":
        spans, x = chunks(workload.sequence, workload.chunk), ""
        for span, name in zip(spans, numbered("c", len(spans)), strict=True):
            t.micro = f"{name}/" if len(spans) > 1 else ""
            t.rows = (workload.batch * span.new,)
            x = _through(t, model, embed(t, t.cut()), partial(room.read, span))
        token = answer(t, x, is_tied=model.tied_embeddings, last=workload.batch)
        outputs = [*(name for layer in layers for name in room.kept(layer)), token]
    else:
        t.rows = (workload.batch,)
        for layer in layers:
            room.decode(layer)
        names = [f"{name}/" for name in numbered("t", workload.new_tokens)] if workload.new_tokens > 1 else [""]
        outputs = [*room.come, *_answers(t, model, names, room.cache, [])]
    return Job.of(t.graph.build(outputs, steps=workload.steps))


def _through(t: Tape, model: DecoderModel, x: str, find: Callable[[str], Cache]) -> str:
    """Go through all layers; `find` says what a layer has cached."""
    for layer in blocks(model.layers):
        x = forward(t, layer, x, partial(attended, t, find(layer)), partial(fed, t, model))
    return x


def _answers(
    t: Tape, model: DecoderModel, names: list[str], find: Callable[[Span, str], Cache], tokens: list[str]
) -> list[str]:
    """Add tokens to sequences one after another, the first behind these; return the last ones."""
    for number, t.micro in enumerate(names):
        span = Span(t.workload.sequence + number, 1)
        x = _through(t, model, embed(t, t.cut(), tokens), partial(find, span))
        tokens = [answer(t, x, is_tied=model.tied_embeddings)]
    return tokens


def chunks(sequence: int, chunk: int | None) -> list[Span]:
    """The chunks of a prompt, in order; the last one may be shorter."""
    size = chunk or sequence
    return [Span(start, min(size, sequence - start)) for start in range(0, sequence, size)]


def build_pools(workload: Workload, model: DecoderModel, pools: Pools, mesh: Mesh, weights: dict[str, Weight]) -> Job:
    """Build what the ranks of both pools run.

    Parameters
    ----------
    workload, model, pools
        What is served, and by how many ranks.
    mesh, weights
        Of one rank, which holds the whole model.

    Returns
    -------
    Job
        One graph for each prefill rank of a decode rank, and one for decode.
    """
    share = pools.prefill // pools.decode
    groups = numbered("kv.", share) if share > 1 else ["kv"]
    labels = [f"prefill for {group}" for group in groups] if share > 1 else ["prefill"]

    def tape(label: str, rows: int, met: list[str]) -> Tape:
        t = Tape(workload, mesh, weights, f"{workload.name} {label}", rows)
        for group in met:
            slot = groups.index(group)
            t.group(group, ((decode * share + slot, pools.prefill + decode) for decode in range(pools.decode)))
        return t

    prompts = workload.batch * workload.sequence
    graphs = [
        _send_cache(tape(label, prompts, [group]), model, group) for group, label in zip(groups, labels, strict=True)
    ]
    graphs.append(_serve(tape("decode", workload.batch * share, groups), model, pools.new_tokens, groups))
    graph_of = tuple(rank % share for rank in range(pools.prefill)) + (share,) * pools.decode
    return Job(workload.name, tuple(graphs), graph_of, (*labels, "decode"))


def _send_cache(t: Tape, model: DecoderModel, group: str) -> Graph:
    """One prefill rank."""
    t.phase, t.kinds = "prefill", {"rope.k.out": "kv_cache", "attn.v.out": "kv_cache"}
    x, attend = embed(t, t.cut()), partial(trained, t, model.attention.heads, t.workload.sequence)
    for layer in blocks(model.layers):
        x = forward(t, layer, x, attend, partial(fed, t, model))
        t.send([t.name("rope.k.out"), t.name("attn.v.out")], group)
    token = answer(t, x, is_tied=model.tied_embeddings, last=t.workload.batch)
    t.send([token], group, t.workload.batch * ID_BYTES)
    return t.graph.build(steps=t.workload.steps)


def _serve(t: Tape, model: DecoderModel, new_tokens: int, groups: list[str]) -> Graph:
    """One decode rank."""
    t.phase, part, (rows,), prompts = "decode", model.attention, t.rows, t.workload.batch
    token_bytes, length = part.kv_elements * t.element_bytes, t.workload.sequence
    stores = {layer: Store() for layer in blocks(model.layers)}

    def receive(group: str, name: str, size_bytes: int, kind: str) -> str:
        t.graph.tensor(t.name(name), size_bytes, kind)
        return t.receive(f"recv.{group}", t.name(name), group, size_bytes)

    for t.block, store in stores.items():
        store.add(length, [receive(group, group, prompts * length * token_bytes, "kv_cache") for group in groups])
        t.graph.tensor(t.name("kv.tail"), rows * new_tokens * token_bytes, "kv_cache")
        store.add(length + new_tokens, [t.name("kv.tail")])
    t.block = "head"
    tokens = [receive(group, f"token.{group}", prompts * ID_BYTES, "activation") for group in groups]

    def find(span: Span, layer: str) -> Cache:
        return Cache(part, (stores[layer], Store()), rows, span, token_bytes)

    _answers(t, model, [f"{name}/" for name in numbered("t", new_tokens, 2)], find, tokens)
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


def build_iteration(workload: Workload, weights: dict[str, Weight], mesh: Mesh, work: Iteration, room: int) -> Graph:
    """Build the graph of an iteration, which runs once.

    Parameters
    ----------
    workload
        With a model of the family decoder.
    weights, mesh
        The whole model, on one rank.
    work
        What runs together.
    room
        How many tokens the KV cache has room for in the compute tier, less those that leave it [tokens].
    """
    model, rows = workload.model, work.decoding + work.reading
    if not isinstance(model, DecoderModel) or not isinstance(model.attention, Gqa):
        raise TypeError(f"an iteration is of a decoder with grouped-query attention, not of {model!r}")
    t = Tape(workload, mesh, weights, rows=rows)
    t.phase = "prefill" if work.reading else "decode"
    token_bytes = model.attention.kv_elements * workload.dtypes.kv_bytes
    coming = {loaded(tier): tokens for tier, tokens in work.loads}
    here = {"kv": max(0, room - sum(coming.values()))}
    leaving = {stored(*way): tokens for way, tokens in work.stores}
    for layer in blocks(model.layers):
        for name, tokens in (here | coming | leaving).items():
            t.graph.tensor(f"{layer}/{name}", tokens * token_bytes, "kv_cache", persistent=True)
    if not rows:
        t.graph.tensor("idle", 0)
        t.graph.op("idle", [], ["idle"], "compute", duration_ns=0)
        return t.graph.build(steps=1)
    x = embed(t, t.cut())
    for layer in blocks(model.layers):
        x = forward(t, layer, x, partial(_apart, t, model.attention, work), partial(fed, t, model))
    if work.answers:
        x = answer(t, x, is_tied=model.tied_embeddings, last=work.answers if work.answers < rows else 0)
    return t.graph.build([x], steps=1)


def _apart(t: Tape, part: Gqa, work: Iteration, x: str) -> str:
    """Attend apart, into one tensor: sequences that add a token, and parts of prompts."""
    taken = projected(t, x, is_normed=part.qk_norms)
    width, size, row_bytes = part.heads * part.head_size, t.element_bytes, part.kv_elements * t.workload.dtypes.kv_bytes
    out, kv = t.tensor("attn.core.out", width), t.name("kv")
    parts = []
    if work.decoding:
        parts.append(("decode", list[str](), (work.decoding, work.context, work.context + work.decoding)))
    if work.reading:
        more = [*(t.name(loaded(tier)) for tier, _ in work.loads), *([out] if work.decoding else [])]
        parts.append(("prefill", more, (work.reading, work.cached, work.pairs)))
    for name, more, (new, cached, pairs) in parts:
        reads, flops = [*taken, *more, kv], 4 * width * pairs
        read_bytes, write_bytes = (
            new * (width + part.kv_elements) * size + cached * row_bytes,
            new * (width * size + row_bytes),
        )
        t.attention(f"attn.{name}", reads, [out, kv], flops, read_bytes=read_bytes, write_bytes=write_bytes)
    return out
