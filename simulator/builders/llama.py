"""The training step of a LLaMA-like decoder, operator by operator, counted from its dimensions.

Let T = batch * sequence tokens, h = hidden, kv = h * kv_heads / heads, f = ffn, V = vocabulary, and e the bytes of
an element (2 for bf16). All matrices are dense and all kernels unfused, but for flash attention.

Forward, 16 ops a layer::

    norm1   attn.q attn.k attn.v   rope.q rope.k   attn.core   attn.o   add1
    norm2   ffn.gate ffn.up   ffn.silu   ffn.mul   ffn.down   add2

Backward, 26 ops a layer: each linear has an op for the gradient of its input (``.dgrad``) and one for that of its
weight (``.wgrad``), 14 in all; one each for silu, mul, attention, both ropes and both norms (weight gradient
included); and five additions in place where gradients of one tensor meet (``.acc``).

Saved for backward per layer, in units of T * h * e bytes: the inputs of norm1 and norm2, both norms' outputs, roped
q and the attention's output (1 each), roped k and v (kv/h each), gate, up, silu and their product (f/h each): 20.5
for LLaMA3-8B, plus the attention's row statistics (fp32, heads * T * 4 bytes). Norm statistics are recomputed. Each
tensor dies at its true last use.

Work: a linear of i inputs and o outputs takes 2*T*i*o FLOP in forward, and as much again in each of its two backward
ops. Causal attention takes 2*T*sequence*h (half of the square) and 2.5 times that in backward. Other ops only move
bytes: their arithmetic is below 0.1 % of the whole, runs on other units, and is not counted (0 FLOP).

The loss holds ``logits_copies_fp32`` fp32 copies of the logits as its workspace, each written and read once; its
backward holds one of them (if there is any) while it writes the gradient of the logits.

Each weight has one gradient, alive until the update of that weight at the end of the step. With ZeRO stage 1 the
optimizer state is this device's shard (parameters / data of each weight, rounded up to whole parameters), and an
update moves the bytes of that shard only.

Not modelled on one device: the collectives of data parallelism (gradient reduction, gathering updated weights).
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

from simulator.builders.naming import blocks
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.workload import LlamaModel, Workload

_FP32_BYTES = 4
_ID_BYTES = 4


class _Linear(NamedTuple):
    """What a linear's backward has to know of its forward."""

    x: str
    weight: str
    inputs: int
    outputs: int


class _Tape:
    """Writes down the step: ops of the current block and phase, with the tensors that they make.

    Names of ops and tensors are relative to `block` (``embed``, ``L03``, ``head``); what methods return, and take
    as tensors, are full names. Widths are elements per token.
    """

    def __init__(self, workload: Workload) -> None:
        self.graph = GraphBuilder(workload.name, f"workload {workload.name}")
        self.tokens = workload.batch * workload.sequence
        self.dtype = workload.dtypes.compute
        self.element_bytes = workload.dtypes.element_bytes
        self.block, self.phase = "", "forward"
        self.parameters: dict[str, int] = {}
        self._graded: set[str] = set()
        self._linears: dict[str, _Linear] = {}

    def name(self, tensor: str) -> str:
        return f"{self.block}/{tensor}"

    def tensor(self, name: str, width: int, element_bytes: int = 0) -> str:
        size_bytes = self.tokens * width * (element_bytes or self.element_bytes)
        self.graph.tensor(self.name(name), size_bytes)
        return self.name(name)

    def weight(self, name: str, parameters: int) -> str:
        weight = self.name(f"{name}.weight")
        self.parameters[weight] = parameters
        self.graph.tensor(weight, parameters * self.element_bytes, "weight", persistent=True)
        return weight

    def grad(self, weight: str) -> str:
        """Name the gradient of `weight`; it is declared when it is first named."""
        grad = f"{weight}.grad"
        if weight not in self._graded:
            self._graded.add(weight)
            self.graph.tensor(grad, self.parameters[weight] * self.element_bytes, "gradient")
        return grad

    def op(self, name: str, reads: list[str], writes: list[str], **more: Unpack[OpFields]) -> None:
        short = {"forward": "fwd", "backward": "bwd", "update": "update"}[self.phase]
        more["phase"] = self.phase
        more.setdefault("dtype", self.dtype)
        self.graph.op(f"{self.block}/{short}/{name}", reads, writes, **more)

    def vector(self, name: str, reads: list[str], width: int) -> str:
        out = self.tensor(f"{name}.out", width)
        self.op(name, reads, [out])
        return out

    def vector_backward(self, name: str, reads: list[str], modules: tuple[str, ...], width: int) -> list[str]:
        """Compute the gradients of what `modules` put out."""
        grads = [self.tensor(f"{module}.out.grad", width) for module in modules]
        self.op(name, reads, grads)
        return grads

    def accumulate(self, name: str, total: str, part: str) -> str:
        """Add `part` to `total` in place."""
        self.op(f"{name}.acc", [total, part], [total])
        return total

    def norm(self, name: str, x: str, width: int) -> str:
        return self.vector(name, [x, self.weight(name, width)], width)

    def norm_backward(self, name: str, x: str, dy: str, width: int) -> str:
        weight, dx = self.name(f"{name}.weight"), self.tensor(f"{name}.in.grad", width)
        self.op(name, [x, dy, weight], [dx, self.grad(weight)])
        return dx

    def linear(self, name: str, x: str, inputs: int, outputs: int, weight: str = "") -> str:
        weight = weight or self.weight(name, inputs * outputs)
        linear = self._linears[self.name(name)] = _Linear(x, weight, inputs, outputs)
        out = self.tensor(f"{name}.out", outputs)
        self._matmul(name, linear, [x, weight], out)
        return out

    def linear_backward(self, name: str, dy: str) -> str:
        linear = self._linears[self.name(name)]
        dx = self.tensor(f"{name}.in.grad", linear.inputs)
        self._matmul(f"{name}.dgrad", linear, [dy, linear.weight], dx)
        self._matmul(f"{name}.wgrad", linear, [dy, linear.x], self.grad(linear.weight))
        return dx

    def _matmul(self, name: str, linear: _Linear, reads: list[str], out: str) -> None:
        flops = 2 * self.tokens * linear.inputs * linear.outputs
        self.op(name, reads, [out], flops=flops, op_class="matmul")


class _Layer:
    """One decoder layer on the tape; `x` and `y` are its input and output."""

    def __init__(self, tape: _Tape, model: LlamaModel, sequence: int, block: str) -> None:
        self.tape, self.block = tape, block
        self.h, self.f = model.hidden, model.ffn
        self.kv = model.hidden * model.kv_heads // model.heads
        self.heads = model.heads
        self.attention_flops = 2 * tape.tokens * sequence * model.hidden

    def forward(self, x: str) -> str:
        t, h, kv, f = self.tape, self.h, self.kv, self.f
        t.block, self.x = self.block, x
        n1 = t.norm("norm1", x, h)
        q, k, v = (t.linear(f"attn.{n}", n1, h, width) for n, width in (("q", h), ("k", kv), ("v", kv)))
        q, k = t.vector("rope.q", [q], h), t.vector("rope.k", [k], kv)
        context, statistics = t.tensor("attn.core.out", h), t.tensor("attn.core.lse", self.heads, _FP32_BYTES)
        t.op(
            "attn.core",
            [q, k, v],
            [context, statistics],
            flops=self.attention_flops,
            op_class="attention",
        )
        r = t.vector("add1", [x, t.linear("attn.o", context, h, h)], h)
        n2 = t.norm("norm2", r, h)
        gate, up = t.linear("ffn.gate", n2, h, f), t.linear("ffn.up", n2, h, f)
        product = t.vector("ffn.mul", [t.vector("ffn.silu", [gate], f), up], f)
        return t.vector("add2", [r, t.linear("ffn.down", product, f, h)], h)

    def backward(self, dy: str) -> str:
        t = self.tape
        t.block = self.block
        dn2 = self._feed_forward_backward(dy)
        dr = t.norm_backward("norm2", t.name("add1.out"), dn2, self.h)
        dr = t.accumulate("add1", dr, dy)
        dn1 = self._attention_backward(dr)
        dx = t.norm_backward("norm1", self.x, dn1, self.h)
        return t.accumulate("norm1", dx, dr)

    def _feed_forward_backward(self, dy: str) -> str:
        t, f = self.tape, self.f
        silu, up, gate = (t.name(f"ffn.{n}.out") for n in ("silu", "up", "gate"))
        d_product = t.linear_backward("ffn.down", dy)
        d_silu, d_up = t.vector_backward("ffn.mul", [d_product, silu, up], ("ffn.silu", "ffn.up"), f)
        (d_gate,) = t.vector_backward("ffn.silu", [d_silu, gate], ("ffn.gate",), f)
        dn2 = t.linear_backward("ffn.up", d_up)
        return t.accumulate("ffn.gate", dn2, t.linear_backward("ffn.gate", d_gate))

    def _attention_backward(self, dr: str) -> str:
        t, h, kv = self.tape, self.h, self.kv
        d_context = t.linear_backward("attn.o", dr)
        saved = [t.name(n) for n in ("rope.q.out", "rope.k.out", "attn.v.out", "attn.core.out", "attn.core.lse")]
        dq, dk, dv = (t.tensor(f"{n}.out.grad", width) for n, width in (("rope.q", h), ("rope.k", kv), ("attn.v", kv)))
        t.op(
            "attn.core",
            [*saved, d_context],
            [dq, dk, dv],
            flops=5 * self.attention_flops // 2,
            op_class="attention",
            workspace_bytes=self.heads * t.tokens * _FP32_BYTES,
        )
        (dq,) = t.vector_backward("rope.q", [dq], ("attn.q",), h)
        (dk,) = t.vector_backward("rope.k", [dk], ("attn.k",), kv)
        dn1 = t.linear_backward("attn.q", dq)
        dn1 = t.accumulate("attn.k", dn1, t.linear_backward("attn.k", dk))
        return t.accumulate("attn.v", dn1, t.linear_backward("attn.v", dv))


def build(workload: Workload, model: LlamaModel) -> Graph:
    """Build the training step of `model` as `workload` runs it.

    Parameters
    ----------
    workload
        Batch, sequence, data types, layout and number of steps.
    model
        The dimensions.

    Returns
    -------
    Graph
        42 ops a layer for forward and backward, then one update per weight, run `workload.steps` times.
    """
    tape = _Tape(workload)
    layers = [_Layer(tape, model, workload.sequence, block) for block in blocks(model.layers)]
    x = _embed(tape, model)
    for layer in layers:
        x = layer.forward(x)
    dx = _head(tape, model, workload.dtypes.logits_copies_fp32, x)
    for layer in reversed(layers):
        dx = layer.backward(dx)
    _embed_backward(tape, model, dx)
    _update(tape, workload)
    return tape.graph.build(steps=workload.steps)


def _embed(tape: _Tape, model: LlamaModel) -> str:
    tape.block = "embed"
    id_bytes = tape.tokens * _ID_BYTES
    tape.graph.tensor("embed/ids", id_bytes, "input", persistent=True)
    table, out = tape.weight("tokens", model.vocabulary * model.hidden), tape.tensor("tokens.out", model.hidden)
    row_bytes = tape.tokens * model.hidden * tape.element_bytes
    tape.op("tokens", ["embed/ids", table], [out], read_bytes=id_bytes + row_bytes)
    return out


def _embed_backward(tape: _Tape, model: LlamaModel, dy: str) -> None:
    """Scatter into the table's gradient: a fresh one is written as a whole, a tied one gets the rows added."""
    tape.block = "embed"
    id_bytes, row_bytes = tape.tokens * _ID_BYTES, tape.tokens * model.hidden * tape.element_bytes
    reads, grad = ["embed/ids", dy], tape.grad("embed/tokens.weight")
    if model.tied_embeddings:
        read_bytes, write_bytes = id_bytes + 2 * row_bytes, row_bytes
        tape.op("tokens", [*reads, grad], [grad], read_bytes=read_bytes, write_bytes=write_bytes)
    else:
        tape.op("tokens", reads, [grad])


def _head(tape: _Tape, model: LlamaModel, copies: int, x: str) -> str:
    """Final norm, logits and loss, forward and backward; return the gradient of `x`."""
    tape.block, h = "head", model.hidden
    table = "embed/tokens.weight" if model.tied_embeddings else ""
    logits = tape.linear("lm", tape.norm("norm", x, h), h, model.vocabulary, table)
    logits_bytes = tape.tokens * model.vocabulary * tape.element_bytes
    copy_bytes = tape.tokens * model.vocabulary * _FP32_BYTES
    tape.graph.tensor("head/loss.out", _FP32_BYTES)

    def loss(reads: list[str], out: str, out_bytes: int, held: int) -> None:
        traffic, read_bytes = held * copy_bytes, logits_bytes + tape.tokens * _ID_BYTES
        tape.op(
            "loss",
            reads,
            [out],
            workspace_bytes=traffic,
            read_bytes=read_bytes + traffic,
            write_bytes=out_bytes + traffic,
        )

    loss([logits, "embed/ids"], "head/loss.out", _FP32_BYTES, copies)
    tape.phase = "backward"
    loss([logits, "embed/ids"], tape.tensor("lm.out.grad", model.vocabulary), logits_bytes, min(copies, 1))
    return tape.norm_backward("norm", x, tape.linear_backward("lm", "head/lm.out.grad"), h)


def _update(tape: _Tape, workload: Workload) -> None:
    tape.phase = "update"
    shards = workload.parallel.data if workload.parallel.zero_stage else 1
    per_parameter = workload.dtypes.optimizer_bytes_per_parameter
    for weight, parameters in tape.parameters.items():
        tape.block, module = weight.removesuffix(".weight").split("/")
        shard = -(-parameters // shards)
        state = f"{weight}.state"
        tape.graph.tensor(state, shard * per_parameter, "optimizer_state", persistent=True)
        tape.op(
            module,
            [tape.grad(weight), state, weight],
            [state, weight],
            read_bytes=shard * (per_parameter + 2 * tape.element_bytes),
            write_bytes=shard * (per_parameter + tape.element_bytes),
            dtype="fp32",
        )
