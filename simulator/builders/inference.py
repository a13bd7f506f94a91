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

from collections import Counter
from functools import partial
from typing import NamedTuple

from simulator.builders.attention import attended
from simulator.builders.cache import Cache, Room, Span, Store
from simulator.builders.layer import answer, balanced, embed, fed, forward, projected
from simulator.builders.layer import attended as trained
from simulator.builders.tape import ID_BYTES, Tape, blocks, numbered
from simulator.graph import Graph, Job
from simulator.layout import Mesh, Weight
from simulator.workload import DecoderModel, Gqa, LlamaModel, Pools, Workload


def build(workload: Workload, model: DecoderModel, mesh: Mesh, weights: dict[str, Weight]) -> Job:
    """Build the graph of prefill or of decode.

    Parameters
    ----------
    workload, model
        What runs.
    mesh
        Of one rank, which holds the whole model.
    weights
        The whole model.
    """
    tape = Tape(workload, mesh, weights, workload.name)
    tape.phase = workload.phase
    run = _prefill if workload.phase == "prefill" else _decode
    names = blocks(model.layers)
    outputs = run(tape, workload, model, Room(tape, workload, model.attention, names), names)
    return Job.of(tape.graph.build(outputs, steps=workload.steps))


def _prefill(t: Tape, work: Workload, model: DecoderModel, room: Room, layers: list[str]) -> list[str]:
    """Read the prompts chunk by chunk; return what the step puts out."""
    spans, x = chunks(work.sequence, work.chunk), ""
    for span, name in zip(spans, numbered("c", len(spans)), strict=True):
        t.micro = f"{name}/" if len(spans) > 1 else ""
        t.rows = (work.batch * span.new,)
        x = embed(t, t.cut())
        for block in layers:
            x = _layer(t, model, block, room.read(block, span), x)
    token = answer(t, x, is_tied=model.tied_embeddings, last=work.batch)
    return [*(name for block in layers for name in room.kept(block)), token]


def _decode(t: Tape, work: Workload, model: DecoderModel, room: Room, layers: list[str]) -> list[str]:
    """Add tokens one after another; return what the step puts out."""
    t.rows = (work.batch,)
    for block in layers:
        room.decode(block)
    tokens: list[str] = []
    for number, step in enumerate(numbered("t", work.new_tokens)):
        t.micro = f"{step}/" if work.new_tokens > 1 else ""
        x = embed(t, t.cut(), tokens)
        for block in layers:
            x = _layer(t, model, block, room.cache(block, Span(work.sequence + number, 1)), x)
        tokens = [answer(t, x, is_tied=model.tied_embeddings)]
    return [*room.come, *tokens]


def _layer(t: Tape, model: DecoderModel, block: str, cache: Cache, x: str) -> str:
    """Attend to what is cached, and go through the feed-forward."""
    return forward(t, block, x, lambda normed: attended(t, cache, normed), lambda normed: fed(t, model, normed))


def chunks(sequence: int, chunk: int | None) -> list[Span]:
    """The chunks of a prompt, in order; the last one may be shorter."""
    size = chunk or sequence
    return [Span(start, min(size, sequence - start)) for start in range(0, sequence, size)]


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
    left
        (source, target) -> tokens of a layer, all layers together, whose copies earlier iterations have not begun.
    """

    decoding: int = 0
    context: int = 0
    reading: int = 0
    cached: int = 0
    pairs: int = 0
    answers: int = 0
    loads: tuple[tuple[str, int], ...] = ()
    stores: tuple[tuple[tuple[str, str], int], ...] = ()
    left: tuple[tuple[tuple[str, str], int], ...] = ()

    @property
    def ways(self) -> list[tuple[str, str]]:
        """From where to where something is stored."""
        return sorted({*dict(self.stores), *dict(self.left)})

    def stored(self, layers: int, layer: int) -> dict[tuple[str, str], int]:
        """Of one layer of so many, how many tokens are copied each way; what was left is spread over layers."""
        found = Counter(dict(self.stores))
        for way, tokens in self.left:
            found[way] += tokens // layers + (layer < tokens % layers)
        return {way: tokens for way, tokens in found.items() if tokens}


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
    model, tokens = workload.model, work.decoding + work.reading
    if not isinstance(model, DecoderModel) or not isinstance(model.attention, Gqa):
        raise TypeError(f"an iteration is of a decoder with grouped-query attention, not of {model!r}")
    t = Tape(workload, mesh, weights, workload.name, tokens)
    t.phase = "prefill" if work.reading else "decode"
    layers = [_Mixed(t, model.attention, block, work) for block in blocks(model.layers)]
    for number, layer in enumerate(layers):
        layer.cache(room, work.stored(model.layers, number))
    if not tokens:
        t.graph.tensor("idle", 0)
        t.graph.op("idle", [], ["idle"], "compute", duration_ns=0)
        return t.graph.build(steps=1)
    x = embed(t, t.cut())
    for layer in layers:
        x = forward(t, layer.block, x, layer.attend, lambda normed: fed(t, model, normed))
    if work.answers:
        x = answer(t, x, is_tied=model.tied_embeddings, last=work.answers if work.answers < tokens else 0)
    return t.graph.build([x], steps=1)


class _Mixed:
    """The attention of a layer in which two kinds of tokens attend."""

    def __init__(self, tape: Tape, part: Gqa, block: str, work: Iteration) -> None:
        self.tape, self.part, self.block, self.work = tape, part, block, work
        self.token_bytes = part.kv_elements * tape.workload.dtypes.kv_bytes

    def cache(self, room: int, stores: dict[tuple[str, str], int]) -> None:
        """Declare what is cached, what comes in, and what is stored."""
        coming = {f"{self.block}/{loaded(tier)}": tokens for tier, tokens in self.work.loads}
        leaving = {f"{self.block}/{stored(*way)}": tokens for way, tokens in stores.items()}
        here = {f"{self.block}/kv": max(0, room - sum(coming.values()))}
        for name, tokens in (here | coming | leaving).items():
            self.tape.graph.tensor(name, tokens * self.token_bytes, "kv_cache", persistent=True)
        self.own, self.coming = [*here], [*coming]

    def attend(self, x: str) -> str:
        """Attend apart, into one tensor."""
        t, work = self.tape, self.work
        taken = projected(t, x, is_normed=self.part.qk_norms)
        out = t.tensor("attn.core.out", self.part.heads * self.part.head_size, t.cut())
        if work.decoding:
            self._core("attn.decode", taken, [out], (work.decoding, work.context, work.context + work.decoding))
        if work.reading:
            there = [out] if work.decoding else []
            self._core("attn.prefill", [*taken, *self.coming, *there], [out], (work.reading, work.cached, work.pairs))
        return out

    def _core(self, name: str, taken: list[str], out: list[str], about: tuple[int, int, int]) -> None:
        """Attend with some of the tokens, and cache them: so many, with so many cached before, and so many pairs."""
        t, (new, cached, pairs) = self.tape, about
        width = self.part.heads * self.part.head_size
        taken_bytes = new * (width * t.element_bytes + self.part.kv_elements * t.element_bytes)
        t.op(
            name,
            [*taken, *self.own],
            [*out, *self.own],
            flops=4 * width * pairs,
            op_class="attention",
            read_bytes=taken_bytes + cached * self.token_bytes,
            write_bytes=new * (width * t.element_bytes + self.token_bytes),
        )


def build_pools(workload: Workload, model: LlamaModel, pools: Pools, mesh: Mesh, weights: dict[str, Weight]) -> Job:
    """Build what the ranks of both pools run.

    Parameters
    ----------
    workload, model, pools
        What is served, and by how many ranks.
    mesh
        Of one rank: each holds the whole model.
    weights
        The whole model.

    Returns
    -------
    Job
        One graph for each prefill rank of a decode rank, and one for decode.
    """
    share = pools.prefill // pools.decode
    groups = numbered("kv.", share) if share > 1 else ["kv"]
    members = {
        group: [(decode * share + slot, pools.prefill + decode) for decode in range(pools.decode)]
        for slot, group in enumerate(groups)
    }
    labels = [f"prefill for {group}" for group in groups] if share > 1 else ["prefill"]
    graphs = []
    for group, label in zip(groups, labels, strict=True):
        tape = Tape(workload, mesh, weights, f"{workload.name} {label}", workload.batch * workload.sequence)
        tape.graph.group(group, members[group])
        graphs.append(_prefill_rank(tape, workload, model, group))
    tape = Tape(workload, mesh, weights, f"{workload.name} decode", workload.batch * share)
    for group in groups:
        tape.graph.group(group, members[group])
    graphs.append(_decode_rank(tape, workload, model, pools.new_tokens, groups))
    graph_of = tuple(rank % share for rank in range(pools.prefill)) + (share,) * pools.decode
    return Job(workload.name, tuple(graphs), graph_of, (*labels, "decode"))


def _prefill_rank(t: Tape, workload: Workload, model: LlamaModel, group: str) -> Graph:
    """One prefill rank."""
    t.phase, t.kinds = "prefill", {"rope.k.out": "kv_cache", "attn.v.out": "kv_cache"}
    attend, feed = partial(trained, t, model, workload.sequence), partial(balanced, t, model)
    x = embed(t, t.cut())
    for block in blocks(model.layers):
        x = forward(t, block, x, attend, feed)
        t.send([t.name("rope.k.out"), t.name("attn.v.out")], group)
    token = answer(t, x, is_tied=model.tied_embeddings, last=workload.batch)
    t.send([token], group, workload.batch * ID_BYTES)
    return t.graph.build(steps=workload.steps)


def _decode_rank(t: Tape, workload: Workload, model: LlamaModel, new_tokens: int, groups: list[str]) -> Graph:
    """One decode rank."""
    t.phase, part, batch = "decode", model.decoder.attention, t.own_tokens
    token_bytes, caches = part.kv_elements * t.element_bytes, {}
    for t.block in blocks(model.layers):
        size_bytes = workload.batch * workload.sequence * token_bytes
        store = caches[t.block] = Store()
        store.add(workload.sequence, [_receive(t, group, group, size_bytes, "kv_cache") for group in groups])
        t.graph.tensor(t.name("kv.tail"), batch * new_tokens * token_bytes, "kv_cache")
        store.add(workload.sequence + new_tokens, [t.name("kv.tail")])
    t.block = "head"
    tokens = [_receive(t, group, f"token.{group}", workload.batch * ID_BYTES, "activation") for group in groups]
    for number, step in enumerate(numbered("t", new_tokens, 2)):
        t.micro, span = f"{step}/", Span(workload.sequence + number, 1)
        x = embed(t, t.cut(), tokens)
        for block, store in caches.items():
            cache = Cache(part, store, batch, span, token_bytes, Store())
            x = forward(t, block, x, partial(attended, t, cache), partial(balanced, t, model))
        tokens = [answer(t, x, is_tied=model.tied_embeddings)]
    return t.graph.build(steps=workload.steps)


def _receive(t: Tape, group: str, name: str, size_bytes: int, kind: str) -> str:
    t.graph.tensor(t.name(name), size_bytes, kind)
    return t.receive(f"recv.{group}", t.name(name), group, size_bytes)
