"""One decoder layer of one micro-batch on the tape, forward and backward."""

from __future__ import annotations

from abc import ABC, abstractmethod

from simulator.builders.decoder.experts import Experts
from simulator.builders.decoder.feed_forward import gated
from simulator.builders.decoder.tape import FP32_BYTES, Tape
from simulator.layout import Layout
from simulator.workload import LlamaModel


class Block(ABC):
    """What every layer is: attention, then a feed-forward, each behind a norm and added to what it took.

    Parameters
    ----------
    tape
        What its ops are written on.
    block
        Name of the layer.
    """

    def __init__(self, tape: Tape, block: str) -> None:
        self.tape, self.block = tape, block

    def forward(self, x: str) -> str:
        """Return what the layer puts out."""
        t = self.tape
        t.block, self.x, self.residual = self.block, x, t.layout(x)
        context = self.attend(t.norm("norm1", x))
        r = t.vector("add1", [x, t.linear("attn.o", context)], self.residual)
        n2 = t.norm("norm2", r)
        return t.vector("add2", [r, self.feed_forward(n2)], self.residual)

    @abstractmethod
    def attend(self, x: str) -> str:
        """From the normed input to what the output projection takes."""

    @abstractmethod
    def feed_forward(self, x: str) -> str:
        """From the second norm to what is added."""


class Layer(Block):
    """One decoder layer to be trained; what it takes and puts out has the layout of the residual.

    Parameters
    ----------
    tape
        What its ops are written on.
    model
        The dimensions.
    sequence
        Tokens that attend to one another.
    block
        Name of the layer.
    """

    def __init__(self, tape: Tape, model: LlamaModel, sequence: int, block: str) -> None:
        super().__init__(tape, block)
        self.model, self.sequence = model, sequence

    def attend(self, x: str) -> str:
        """Attend in groups of heads that share keys and values."""
        t = self.tape
        q, k, v = (t.linear(f"attn.{n}", x) for n in "qkv")
        q, k = t.vector("rope.q", [q]), t.vector("rope.k", [k])
        return self.attention(q, k, v)

    def attention(self, q: str, k: str, v: str) -> str:
        """Attend, each rank with its heads and all tokens of its samples."""
        t, self.attended = self.tape, self._attended(q, k, v)
        self.qkv = [q, k, v]
        taken = [t.to(x, self.attended) for x in self.qkv]
        context = t.tensor("attn.core.out", self.model.hidden, self.attended)
        made = [context]
        if t.phase == "forward":
            made.append(t.tensor("attn.core.lse", self.model.heads, self.attended, FP32_BYTES))
        flops = 2 * self.sequence * t.elements(context)
        t.op("attn.core", taken, made, flops=flops, op_class="attention")
        return context

    def _attended(self, *qkv: str) -> Layout:
        features = max((self.tape.layout(x).tensor_map[1] for x in qkv), key=len)
        return self.tape.cut(features)

    def feed_forward(self, x: str) -> str:
        """Go through the experts, if there are some."""
        if self.model.experts:
            self.experts = Experts(self.tape, self.model)
            return self.experts.forward(x)
        return gated(self.tape, "ffn", x)

    def backward(self, dy: str) -> str:
        """Return the gradient of what the layer took."""
        t = self.tape
        t.block = self.block
        dn2 = self._feed_forward_backward(dy)
        dr = t.norm_backward("norm2", t.name("add1.out"), dn2)
        dr = t.accumulate("add1", dr, dy)
        dn1 = self._attention_backward(dr)
        dx = t.norm_backward("norm1", self.x, dn1)
        return t.accumulate("norm1", dx, dr)

    def _feed_forward_backward(self, dy: str) -> str:
        t = self.tape
        if self.model.experts:
            return self.experts.backward(dy)
        silu, up, gate = (t.name(f"ffn.{n}.out") for n in ("silu", "up", "gate"))
        d_product = t.linear_backward("ffn.down", dy)
        d_silu, d_up = t.vector_backward("ffn.mul", d_product, [silu, up], ("ffn.silu", "ffn.up"))
        (d_gate,) = t.vector_backward("ffn.silu", d_silu, [gate], ("ffn.gate",))
        dn2 = t.linear_backward("ffn.up", d_up)
        return t.accumulate("ffn.gate", dn2, t.linear_backward("ffn.gate", d_gate))

    def _attention_backward(self, dr: str) -> str:
        t = self.tape
        d_context = t.to(t.linear_backward("attn.o", dr), self.attended)
        taken = [t.to(x, self.attended) for x in self.qkv]
        context, statistics = t.name("attn.core.out"), t.name("attn.core.lse")
        widths = [
            (f"{n}.out.grad", t.spread[x].width) for n, x in zip(("rope.q", "rope.k", "attn.v"), taken, strict=True)
        ]
        grads = [t.tensor(name, width, self.attended) for name, width in widths]
        t.op(
            "attn.core",
            [*taken, context, statistics, d_context],
            grads,
            flops=5 * self.sequence * t.elements(context),
            op_class="attention",
            workspace_bytes=t.elements(statistics) * FP32_BYTES,
        )
        dq, dk, dv = (t.to(grad, t.layout(x).whole) for grad, x in zip(grads, self.qkv, strict=True))
        (dq,) = t.vector_backward("rope.q", dq, [], ("attn.q",))
        (dk,) = t.vector_backward("rope.k", dk, [], ("attn.k",))
        dn1 = t.linear_backward("attn.q", dq)
        dn1 = t.accumulate("attn.k", dn1, t.linear_backward("attn.k", dk))
        return t.accumulate("attn.v", dn1, t.linear_backward("attn.v", dv))
