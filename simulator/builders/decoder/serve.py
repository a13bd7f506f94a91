"""Serving from two pools: prefill ranks read prompts and send their KV cache, decode ranks receive it and answer.

A prefill rank runs `batch` prompts of `sequence` tokens through all layers. Roped k and v of a layer are its KV cache
(2 * tokens * kv * e bytes); they are sent as soon as they are there, layer by layer, and the first token of each answer
at the end. A decode rank serves the prompts of prefill / decode ranks: it keeps what it received of a layer in one
block for each sender (``L03/kv``), which is only read, and what it adds in another (``L03/kv.tail``, room for all new
tokens), as paged caches do. Token i (from 0) of an answer attends to sequence + i + 1 tokens: 4 * h FLOP and 2 * kv * e
bytes for each of them, so that decode reads more with each token; every token reads all weights.

Head and sampling: only the last token of a prompt goes through the final norm and the logits.
"""

from __future__ import annotations

from simulator.builders.decoder.ends import answer, embed
from simulator.builders.decoder.layer import Layer
from simulator.builders.decoder.tape import ID_BYTES, Tape
from simulator.builders.naming import blocks, numbered
from simulator.graph import Collective, CollectiveKind, Graph, Job
from simulator.layout import Mesh, Weight
from simulator.workload import LlamaModel, Pools, Workload


def build(workload: Workload, model: LlamaModel, pools: Pools, mesh: Mesh, weights: dict[str, Weight]) -> Job:
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
    rows = workload.batch * workload.sequence
    graphs = []
    for group, label in zip(groups, labels, strict=True):
        tape = Tape(workload, mesh, weights, f"{workload.name} {label}", rows)
        tape.graph.group(group, members[group])
        graphs.append(_Prefill(tape, workload, model).graph(group))
    tape = Tape(workload, mesh, weights, f"{workload.name} decode", workload.batch * share)
    for group in groups:
        tape.graph.group(group, members[group])
    graphs.append(_Decode(tape, workload, model, pools).graph(groups))
    graph_of = tuple(rank % share for rank in range(pools.prefill)) + (share,) * pools.decode
    return Job(workload.name, tuple(graphs), graph_of, (*labels, "decode"))


class _Prefill:
    """One prefill rank."""

    def __init__(self, tape: Tape, workload: Workload, model: LlamaModel) -> None:
        self.tape, self.workload, self.model = tape, workload, model
        tape.phase = "prefill"
        tape.kinds = {"rope.k.out": "kv_cache", "attn.v.out": "kv_cache"}

    def graph(self, group: str) -> Graph:
        t = self.tape
        x = embed(t, t.cut())
        for block in blocks(self.model.layers):
            x = Layer(t, self.model, self.workload.sequence, block).forward(x)
            kept = [t.name("rope.k.out"), t.name("attn.v.out")]
            self._send(group, kept, sum(t.elements(name) for name in kept) * t.element_bytes)
        t.block = "head"
        last = t.tensor("last.out", self.model.hidden, t.cut(), rows=(self.workload.batch,))
        t.op("last", [x], [last], read_bytes=t.elements(last) * t.element_bytes)
        token = answer(t, last, tied=self.model.tied_embeddings)
        self._send(group, [token], self.workload.batch * ID_BYTES)
        return t.graph.build(steps=self.workload.steps)

    def _send(self, group: str, tensors: list[str], size_bytes: int) -> None:
        self.tape.op("send", tensors, [], collective=Collective(CollectiveKind.SEND, group, size_bytes))


class _Decode:
    """One decode rank."""

    def __init__(self, tape: Tape, workload: Workload, model: LlamaModel, pools: Pools) -> None:
        self.tape, self.workload, self.model, self.new_tokens = tape, workload, model, pools.new_tokens
        self.blocks = blocks(model.layers)
        self.kv = model.hidden * model.kv_heads // model.heads
        tape.phase = "decode"

    def graph(self, groups: list[str]) -> Graph:
        t, e = self.tape, self.tape.element_bytes
        received_bytes = 2 * self.workload.batch * self.workload.sequence * self.kv * e
        caches = {}
        for t.block in self.blocks:
            caches[t.block] = [self._receive(group, group, received_bytes, "kv_cache") for group in groups]
            t.graph.tensor(t.name("kv.tail"), 2 * t.own_tokens * self.new_tokens * self.kv * e, "kv_cache")
        t.block = "head"
        tokens = [
            self._receive(group, f"token.{group}", self.workload.batch * ID_BYTES, "activation") for group in groups
        ]
        for number, step in enumerate(numbered("t", self.new_tokens, 2)):
            t.micro = f"{step}/"
            x = embed(t, t.cut(), tokens)
            for block in self.blocks:
                x = _DecodeLayer(t, self.model, (self.workload.sequence, number), block, caches[block]).forward(x)
            tokens = [answer(t, x, tied=self.model.tied_embeddings)]
        return t.graph.build(steps=self.workload.steps)

    def _receive(self, group: str, name: str, size_bytes: int, kind: str) -> str:
        t = self.tape
        t.graph.tensor(t.name(name), size_bytes, kind)
        about = Collective(CollectiveKind.RECV, group, size_bytes)
        t.op(f"recv.{group}", [], [t.name(name)], collective=about)
        return t.name(name)


class _DecodeLayer(Layer):
    """A layer that adds one token to each sample."""

    def __init__(self, tape: Tape, model: LlamaModel, lengths: tuple[int, int], block: str, caches: list[str]) -> None:
        super().__init__(tape, model, sum(lengths) + 1, block)
        self.caches, self.added = caches, lengths[1]

    def attention(self, q: str, k: str, v: str) -> str:
        """Attend to all that is cached and to the new token, which joins the tail."""
        t, tail = self.tape, f"{self.block}/kv.tail"
        context = t.tensor("attn.core.out", self.model.hidden, t.layout(q))
        new = [k, v]
        new_bytes = sum(t.elements(x) for x in new) * t.element_bytes
        q_bytes = t.elements(q) * t.element_bytes
        t.op(
            "attn.core",
            [q, *new, *self.caches, *([tail] if self.added else [])],
            [context, tail],
            flops=4 * self.sequence * t.elements(context),
            op_class="attention",
            read_bytes=q_bytes + self.sequence * new_bytes,
            write_bytes=t.elements(context) * t.element_bytes + new_bytes,
        )
        return context
