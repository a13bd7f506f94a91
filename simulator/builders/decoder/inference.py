"""Inference on one rank: reading prompts (``prefill``), whole or in chunks, or adding tokens to sequences (``decode``).

Prefill runs ``batch`` prompts of ``sequence`` tokens, ``chunk`` tokens of each at a time, through all layers. What a
chunk adds to the KV cache of a layer is a tensor (``c0/L03/kv``; ``L03/kv`` if there is one chunk), which later chunks
read and which is there when the step ends. Only the last token of a prompt goes through the final norm and the logits.

Decode adds ``new_tokens`` tokens, one after another, to ``batch`` sequences that have ``sequence`` tokens cached
(``L03/kv``, persistent and only read); new ones join another tensor (``L03/kv.tail``), as paged caches do. The step is
repeated at the same lengths; what grows, grows by ``new_tokens``.
"""

from __future__ import annotations

from simulator.builders.decoder.attention import absorbed, expanded, gqa
from simulator.builders.decoder.cache import Cache
from simulator.builders.decoder.ends import answer, embed
from simulator.builders.decoder.feed_forward import gated, routed
from simulator.builders.decoder.layer import Block
from simulator.builders.decoder.reach import Span
from simulator.builders.decoder.room import Room
from simulator.builders.decoder.tape import Tape
from simulator.builders.naming import blocks, numbered
from simulator.graph import Graph, Job
from simulator.layout import Mesh, Weight
from simulator.workload import DecoderModel, Experts, Gqa, Workload


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
    run = _Inference(tape, workload, model)
    return Job.of(run.prefill() if workload.phase == "prefill" else run.decode())


class _Inference:
    """One rank."""

    def __init__(self, tape: Tape, workload: Workload, model: DecoderModel) -> None:
        self.tape, self.workload, self.model = tape, workload, model
        self.blocks = blocks(model.layers)
        self.room = Room(tape, workload, model.attention, self.blocks)

    def prefill(self) -> Graph:
        t, spans = self.tape, chunks(self.workload.sequence, self.workload.chunk)
        x = ""
        for span, name in zip(spans, numbered("c", len(spans)), strict=True):
            t.micro = f"{name}/" if len(spans) > 1 else ""
            t.rows = (self.workload.batch * span.new,)
            x = embed(t, t.cut())
            for block in self.blocks:
                x = _Layer(t, self.model, block, self.room.read(block, span)).forward(x)
        t.block, t.rows = "head", (self.workload.batch,)
        last = t.tensor("last.out", self.model.hidden, t.cut())
        t.op("last", [x], [last], read_bytes=t.elements(last) * t.element_bytes)
        token = answer(t, last, tied=self.model.tied_embeddings)
        kept = [name for block in self.blocks for name in self.room.kept(block)]
        return t.graph.build([*kept, token], steps=self.workload.steps)

    def decode(self) -> Graph:
        t, work = self.tape, self.workload
        t.rows = (work.batch,)
        for block in self.blocks:
            self.room.decode(block)
        tokens: list[str] | None = None
        for number, step in enumerate(numbered("t", work.new_tokens)):
            t.micro = f"{step}/" if work.new_tokens > 1 else ""
            x = embed(t, t.cut(), tokens)
            for block in self.blocks:
                cache = self.room.cache(block, Span(work.sequence + number, 1))
                x = _Layer(t, self.model, block, cache).forward(x)
            tokens = [answer(t, x, tied=self.model.tied_embeddings)]
        return t.graph.build([*self.room.come, *(tokens or [])], steps=work.steps)


class _Layer(Block):
    """A layer that attends to what is cached."""

    def __init__(self, tape: Tape, model: DecoderModel, block: str, cache: Cache) -> None:
        super().__init__(tape, block)
        self.model, self.cache = model, cache

    def attend(self, x: str) -> str:
        """Attend as the model's part says; latent attention in the form that is the cheaper one in this phase."""
        part = self.model.attention
        if isinstance(part, Gqa):
            return gqa(self.tape, part, self.cache, x)
        form = expanded if self.tape.phase == "prefill" and part.sparse is None else absorbed
        return form(self.tape, part, self.cache, x)

    def feed_forward(self, x: str) -> str:
        """Go through the experts, if the layer has some."""
        part = self.model.feed_forward
        if isinstance(part, Experts) and f"{self.block}/ffn.router.weight" in self.tape.weights:
            return routed(self.tape, part, self.model.hidden, x)
        return gated(self.tape, "ffn", x)


def chunks(sequence: int, chunk: int | None) -> list[Span]:
    """The chunks of a prompt, in order; the last one may be shorter."""
    size = chunk or sequence
    return [Span(start, min(size, sequence - start)) for start in range(0, sequence, size)]
