"""One iteration of serving: sequences that decode and parts of prompts go through the layers together.

Linears, norms and the feed-forward run over all tokens at once, attention apart: ``attn.decode`` for the sequences that
add a token, ``attn.prefill`` for the parts of prompts, each counted as in `attention.gqa`. The last token of each
sequence that gets one goes through the final norm and the logits.

The KV cache of a layer is one tensor in the compute tier, as paged engines reserve it (``L03/kv``, written in place).
What was hit below comes out of it as a tensor of its own, which is at home there (``L03/kv.from.ddr``) and is copied in
before ``attn.prefill``, by the policy. What is stored in another tier is one that no op names (``L03/hbm.to.ddr``).
Tensors hold the tokens of all sequences together, so that a copy moves what an iteration moves in a layer.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from simulator.builders.decoder.cache import made_bytes
from simulator.builders.decoder.ends import answer, embed
from simulator.builders.decoder.feed_forward import gated, routed
from simulator.builders.decoder.layer import Block
from simulator.builders.decoder.tape import Tape
from simulator.builders.naming import blocks
from simulator.graph import Graph
from simulator.layout import Mesh, Weight
from simulator.workload import DecoderModel, Experts, Gqa, Workload


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


def build(workload: Workload, weights: dict[str, Weight], mesh: Mesh, work: Iteration, room: int) -> Graph:
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
    model = workload.model
    if not isinstance(model, DecoderModel) or not isinstance(model.attention, Gqa):
        raise TypeError(f"an iteration is of a decoder with grouped-query attention, not of {model!r}")
    tape = Tape(workload, mesh, weights, workload.name, work.decoding + work.reading)
    tape.phase = "prefill" if work.reading else "decode"
    layers = [_Layer(tape, model, block, work) for block in blocks(model.layers)]
    for number, layer in enumerate(layers):
        layer.cache(room, work.stored(model.layers, number))
    if not work.decoding + work.reading:
        tape.graph.tensor("idle", 0)
        tape.graph.op("idle", [], ["idle"], "compute", duration_ns=0)
        return tape.graph.build(steps=1)
    x = embed(tape, tape.cut())
    for layer in layers:
        x = layer.forward(x)
    return tape.graph.build(_answers(tape, x, work, tied=model.tied_embeddings), steps=1)


def _answers(t: Tape, x: str, work: Iteration, *, tied: bool) -> list[str]:
    """The next token of each sequence that gets one."""
    if not work.answers:
        return [x]
    t.block = "head"
    if work.answers < work.decoding + work.reading:
        t.rows = (work.answers,)
        last = t.tensor("last.out", t.spread[x].width, t.cut())
        t.op("last", [x], [last], read_bytes=made_bytes(t, last))
        x = last
    return [answer(t, x, tied=tied)]


class _Layer(Block):
    """A layer in which two kinds of tokens attend."""

    def __init__(self, tape: Tape, model: DecoderModel, block: str, work: Iteration) -> None:
        super().__init__(tape, block)
        self.model, self.work = model, work
        self.part: Gqa = model.attention  # type: ignore[assignment]
        self.token_bytes = self.part.kv_elements * tape.dtypes.kv_bytes

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
        q, k, v = (t.linear(f"attn.{name}", x) for name in "qkv")
        if self.part.qk_norms:
            q, k = t.norm("attn.q_norm", q), t.norm("attn.k_norm", k)
        taken = [t.vector("rope.q", [q]), t.vector("rope.k", [k]), v]
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

    def feed_forward(self, x: str) -> str:
        """Go through the experts, if the layer has some."""
        part = self.model.feed_forward
        if isinstance(part, Experts) and f"{self.block}/ffn.router.weight" in self.tape.weights:
            return routed(self.tape, part, self.model.hidden, x)
        return gated(self.tape, "ffn", x)
