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

from simulator.builders.tape import FP32_BYTES, Tape, blocks
from simulator.errors import ConfigError
from simulator.graph import Job
from simulator.layout import Mesh
from simulator.workload import AXES, ResidencyAcceptanceModel, Workload

_STATISTICS_BYTES = 8


class _Step(Tape):
    """The tape of the step; tensors are made by the op that writes them first."""

    def __init__(self, workload: Workload, model: ResidencyAcceptanceModel) -> None:
        super().__init__(workload, Mesh((1,) * len(AXES), AXES), {}, workload.name)
        self.model, self.outputs = model, list[str]()
        self.attention_flops = 2 * self.own_tokens * workload.sequence * model.hidden
        h, f = model.hidden, model.ffn
        self.linears = {"qkv": (h, 3 * h), "proj": (h, h), "fc1": (h, f), "fc2": (f, h)}
        self.kinds = {f"{name}.dw": "gradient" for name in self.linears}

    def wide(self, name: str, width: int, element_bytes: int = 0) -> str:
        """Add a tensor of `width` elements a token."""
        return self.tensor(name, width, self.cut(), element_bytes)

    def made(self, name: str, reads: list[str], writes: list[str], flops: int = 0, weight_bytes: int = 0) -> str:
        """Add an op; return what it writes first."""
        read_bytes, op_class = weight_bytes + self.made_bytes(*reads), "matmul" if flops else "vector"
        self.op(name, reads, writes, flops=flops, read_bytes=read_bytes, op_class=op_class)
        return writes[0]

    def linear_forward(self, name: str, x: str, out: str) -> str:
        """Add the forward op of a linear."""
        inputs, outputs = self.linears[name]
        flops, weight_bytes = 2 * self.own_tokens * inputs * outputs, inputs * outputs * self.element_bytes
        return self.made(name, [x], [self.wide(out, outputs)], flops, weight_bytes)

    def gradients(self, name: str, x: str, dy: str, out: str) -> str:
        """Add both backward ops of a linear; return the gradient of its input."""
        inputs, outputs = self.linears[name]
        flops, weight_bytes = 2 * self.own_tokens * inputs * outputs, inputs * outputs * self.element_bytes
        dx = self.made(f"{name}.dgrad", [dy], [self.wide(out, inputs)], flops, weight_bytes)
        weight = self.tensor(f"{name}.dw", outputs, self.cut(), rows=(inputs,))
        self.outputs.append(self.made(f"{name}.wgrad", [x, dy], [weight], flops))
        return dx


class _Layer:
    """One layer on the tape."""

    def __init__(self, tape: _Step, block: str) -> None:
        self.tape, self.block = tape, block

    def forward(self, x: str) -> str:
        t, h, f = self.tape, self.tape.model.hidden, self.tape.model.ffn
        t.block, self.x = self.block, x
        self.n1 = t.made("ln1", [x], [t.wide("n1", h), t.wide("ln1.stats", 1, _STATISTICS_BYTES)])
        self.qkv = t.linear_forward("qkv", self.n1, "qkv")
        lse = ("lse", t.model.heads, FP32_BYTES)
        self.ctx = t.made("attn", [self.qkv], [t.wide("ctx", h), t.wide(*lse)], t.attention_flops)
        self.r = t.made("add1", [x, t.linear_forward("proj", self.ctx, "proj")], [t.wide("r", h)])
        self.n2 = t.made("ln2", [self.r], [t.wide("n2", h), t.wide("ln2.stats", 1, _STATISTICS_BYTES)])
        self.u = t.linear_forward("fc1", self.n2, "u")
        self.g = t.made("gelu", [self.u], [t.wide("g", f)])
        return t.made("add2", [self.r, t.linear_forward("fc2", self.g, "fc2")], [t.wide("y", h)])

    def backward(self, dy: str) -> str:
        t, h = self.tape, self.tape.model.hidden
        t.block = self.block
        dg = t.gradients("fc2", self.g, dy, "dg")
        du = t.made("gelu", [dg, self.u], [t.wide("du", t.model.ffn)])
        dl = t.gradients("fc1", self.n2, du, "fc1.dl")
        dn = t.made("ln2", [dl, self.r, f"{self.block}/ln2.stats"], [t.wide("ln2.dn", h)])
        dr = t.made("add2", [dy, dn], [t.wide("dr", h)])
        dc = t.gradients("proj", self.ctx, dr, "dc")
        saved = [self.qkv, self.ctx, f"{self.block}/lse"]
        dq = t.made("attn", [dc, *saved], [t.wide("dq", 3 * h)], 5 * t.attention_flops // 2)
        dl = t.gradients("qkv", self.n1, dq, "qkv.dl")
        dn = t.made("ln1", [dl, self.x, f"{self.block}/ln1.stats"], [t.wide("ln1.dn", h)])
        return t.made("add1", [dr, dn], [t.wide("dx", h)])


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
    tape = _Step(workload, model)
    layers = [_Layer(tape, block) for block in blocks(model.layers)]
    tape.block = "embed"
    x = tape.made("tokens", [], [tape.wide("x", model.hidden)])
    for layer in layers:
        x = layer.forward(x)
    tape.block = "head"
    loss = tape.made("loss", [x], [tape.tensor("loss", 1, tape.cut(), FP32_BYTES, (1,))])
    tape.phase = "backward"
    dy = tape.made("loss", [x, loss], [tape.wide("dy", model.hidden)])
    for layer in reversed(layers):
        dy = layer.backward(dy)
    return Job.of(tape.graph.build(tape.outputs, workload.steps))
