"""The step on which the open-source HyperOffload planner was measured: activations and weight gradients only.

A plain pre-norm decoder, operator by operator, without loss of anything that its planner can see. Weights and
optimizer state are not tensors here, because that planner tracks storages that are made in the step; the bytes of a
weight count in the time of the linears that read it.

Let T = batch * sequence tokens, e the bytes of an element, h = T * hidden * e, f = T * ffn * e, and 3h and so on what
the names say. An op reads, then writes; tensors are numbered as they are first written. ``embed`` makes x; then in
each layer, 10 ops forward::

    ln1 (x -> n1 h, stats 8T)   qkv (n1 -> 3h)   attn (qkv -> ctx h, lse 4 * heads * T)   proj (ctx -> h)
    add1 (x, proj -> r h)       ln2 (r -> n2 h, stats 8T)   fc1 (n2 -> u f)   gelu (u -> g f)   fc2 (g -> h)
    add2 (r, fc2 -> y h)

then ``loss`` (x -> 4 bytes), its backward (x, loss -> dy h), and in each layer, the last one first, 14 ops backward::

    fc2.dgrad (dy -> dg)      fc2.wgrad (g, dy -> dw)     gelu (dg, u -> du)   fc1.dgrad (du -> dl)
    fc1.wgrad (n2, du -> dw)  ln2 (dl, r, stats -> dn)    add2 (dy, dn -> dr)  proj.dgrad (dr -> dc)
    proj.wgrad (ctx, dr -> dw)   attn (dc, qkv, ctx, lse -> dq)   qkv.dgrad (dq -> dl)
    qkv.wgrad (n1, dq -> dw)  ln1 (dl, x, stats -> dn)    add1 (dr, dn -> the next dy)

Work: a linear takes 2 * T * inputs * outputs FLOP in forward and in each of its two backward ops; causal attention
2 * T * sequence * hidden, and 2.5 times that in backward. The weight gradients are the outputs of the graph: nothing
here consumes them, and a training loop holds them for the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.builders.decoder.tape import blocks
from simulator.errors import ConfigError
from simulator.graph import Job
from simulator.graph_builder import GraphBuilder
from simulator.workload import ResidencyAcceptanceModel, Workload

_STATISTICS_BYTES = 8
_FP32_BYTES = 4


class _Tape:
    """Writes down the step; tensors are made by the op that writes them first."""

    def __init__(self, workload: Workload, model: ResidencyAcceptanceModel) -> None:
        self.graph = GraphBuilder(workload.name, f"workload {workload.name}")
        self.dtype, self.model = workload.dtypes.compute, model
        self.element_bytes = workload.dtypes.element_bytes
        self.tokens = workload.batch * workload.sequence
        self.attention_flops = 2 * self.tokens * workload.sequence * model.hidden
        self.block, self.phase = "", "forward"
        self.outputs: list[str] = []
        self.sizes: dict[str, int] = {}
        h, f = model.hidden, model.ffn
        self.linears = {"qkv": (h, 3 * h), "proj": (h, h), "fc1": (h, f), "fc2": (f, h)}

    def wide(self, name: str, width: int) -> tuple[str, int]:
        """Name and size of what has `width` elements a token."""
        return name, self.tokens * width * self.element_bytes

    def op(
        self,
        name: str,
        reads: Iterable[str],
        writes: Iterable[tuple[str, int]],
        flops: int = 0,
        weight_bytes: int = 0,
        kind: str = "activation",
    ) -> str:
        """Add an op that makes what it writes; return the full name of the first."""
        reads, made = list(reads), []
        for tensor, size_bytes in writes:
            made.append(f"{self.block}/{tensor}")
            self.sizes[made[-1]] = size_bytes
            self.graph.tensor(made[-1], size_bytes, kind)
        short = {"forward": "fwd", "backward": "bwd"}[self.phase]
        self.graph.op(
            f"{self.block}/{short}/{name}",
            reads,
            made,
            flops=flops,
            read_bytes=weight_bytes + sum(map(self.sizes.__getitem__, reads)),
            dtype=self.dtype,
            op_class="matmul" if flops else "vector",
            phase=self.phase,
        )
        return made[0]

    def linear(self, name: str, x: str, out: str) -> str:
        """Add the forward op of a linear."""
        inputs, outputs = self.linears[name]
        weight_bytes = inputs * outputs * self.element_bytes
        return self.op(name, [x], [self.wide(out, outputs)], 2 * self.tokens * inputs * outputs, weight_bytes)

    def linear_backward(self, name: str, x: str, dy: str, out: str) -> str:
        """Add both backward ops of a linear; return the gradient of its input."""
        inputs, outputs = self.linears[name]
        flops, weight_bytes = 2 * self.tokens * inputs * outputs, inputs * outputs * self.element_bytes
        dx = self.op(f"{name}.dgrad", [dy], [self.wide(out, inputs)], flops, weight_bytes)
        self.outputs.append(self.op(f"{name}.wgrad", [x, dy], [(f"{name}.dw", weight_bytes)], flops, kind="gradient"))
        return dx


class _Layer:
    """One layer on the tape."""

    def __init__(self, tape: _Tape, block: str) -> None:
        self.tape, self.block = tape, block
        self.stats_bytes = tape.tokens * _STATISTICS_BYTES

    def forward(self, x: str) -> str:
        t, h, f = self.tape, self.tape.model.hidden, self.tape.model.ffn
        t.block, self.x = self.block, x
        self.n1 = t.op("ln1", [x], [t.wide("n1", h), ("ln1.stats", self.stats_bytes)])
        self.qkv = t.linear("qkv", self.n1, "qkv")
        lse_bytes = _FP32_BYTES * t.model.heads * t.tokens
        self.ctx = t.op("attn", [self.qkv], [t.wide("ctx", h), ("lse", lse_bytes)], t.attention_flops)
        self.r = t.op("add1", [x, t.linear("proj", self.ctx, "proj")], [t.wide("r", h)])
        self.n2 = t.op("ln2", [self.r], [t.wide("n2", h), ("ln2.stats", self.stats_bytes)])
        self.u = t.linear("fc1", self.n2, "u")
        self.g = t.op("gelu", [self.u], [t.wide("g", f)])
        return t.op("add2", [self.r, t.linear("fc2", self.g, "fc2")], [t.wide("y", h)])

    def backward(self, dy: str) -> str:
        t, h = self.tape, self.tape.model.hidden
        t.block = self.block
        dg = t.linear_backward("fc2", self.g, dy, "dg")
        du = t.op("gelu", [dg, self.u], [t.wide("du", t.model.ffn)])
        dl = t.linear_backward("fc1", self.n2, du, "fc1.dl")
        dn = t.op("ln2", [dl, self.r, f"{self.block}/ln2.stats"], [t.wide("ln2.dn", h)])
        dr = t.op("add2", [dy, dn], [t.wide("dr", h)])
        dc = t.linear_backward("proj", self.ctx, dr, "dc")
        saved = [self.qkv, self.ctx, f"{self.block}/lse"]
        dq = t.op("attn", [dc, *saved], [t.wide("dq", 3 * h)], 5 * t.attention_flops // 2)
        dl = t.linear_backward("qkv", self.n1, dq, "qkv.dl")
        dn = t.op("ln1", [dl, self.x, f"{self.block}/ln1.stats"], [t.wide("ln1.dn", h)])
        return t.op("add1", [dr, dn], [t.wide("dx", h)])


def build(workload: Workload, model: ResidencyAcceptanceModel) -> Job:
    """Build the step of `model` as `workload` runs it.

    Parameters
    ----------
    workload
        Batch, sequence, data type and number of steps.
    model
        The dimensions.

    Returns
    -------
    Job
        Of one rank: 24 ops a layer and 3 more; the outputs are the weight gradients.

    Raises
    ------
    ConfigError
        If it asks for more than one rank or micro-batch.
    """
    if workload.parallel.ranks == "all" or workload.parallel.micro_batches > 1 or workload.pools:
        must, found = "the family residency_acceptance trains on one rank", "a layout or pools"
        raise ConfigError(f"workload {workload.name}", must, found, "remove them, or use the family llama")
    tape = _Tape(workload, model)
    layers = [_Layer(tape, block) for block in blocks(model.layers)]
    tape.block = "embed"
    x = tape.op("tokens", [], [tape.wide("x", model.hidden)])
    for layer in layers:
        x = layer.forward(x)
    tape.block = "head"
    loss = tape.op("loss", [x], [("loss", _FP32_BYTES)])
    tape.phase = "backward"
    dy = tape.op("loss", [x, loss], [tape.wide("dy", model.hidden)])
    for layer in reversed(layers):
        dy = layer.backward(dy)
    return Job.of(tape.graph.build(tape.outputs, workload.steps))
