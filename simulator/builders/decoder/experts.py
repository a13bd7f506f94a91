"""A feed-forward of experts in place of the dense one: every token goes through `top_k` of them.

The router is a linear on every rank. Routing is balanced: each expert gets tokens * top_k / experts rows. With expert
ranks, experts are cut among them and rows travel to their experts and back (dispatch and combine, an all-to-all each,
in forward and in backward). The rows of an expert rank stay cut along `data`, so that the gradient of an expert adds up
over those replicas only.
"""

from __future__ import annotations

from simulator.builders.decoder.tape import FP32_BYTES, Tape
from simulator.builders.decoder.weights import BATCH, EXPERT
from simulator.errors import ConfigError
from simulator.layout import Layout
from simulator.workload import LlamaModel


class Experts:
    """The experts of one layer and one micro-batch.

    Parameters
    ----------
    tape
        What the ops are written on; its block is the layer.
    model
        With `experts` and `top_k`.
    """

    def __init__(self, tape: Tape, model: LlamaModel) -> None:
        self.tape, self.model = tape, model
        experts = model.experts or 1
        each, left = divmod(tape.own_tokens * model.top_k, experts)
        if left:
            must = "with balanced routing every expert gets as many of a rank's tokens * top_k"
            found = f"{tape.own_tokens} x {model.top_k} for {experts} experts"
            raise ConfigError(tape.where, must, found, f"make batch * sequence * top_k a multiple of {experts}")
        self.rows = (experts, each * tape.mesh.size(BATCH))

    def forward(self, x: str) -> str:
        """Return what the experts of each token put out, weighted and summed."""
        t, h = self.tape, self.model.hidden
        self.taken = x
        x = t.to(x, t.cut())
        logits = t.linear("ffn.router", x)
        here = Layout(t.mesh, ((), BATCH, ()))
        sent = t.tensor("ffn.route.out", h, here, rows=self.rows)
        self.shares = t.tensor("ffn.route.shares", self.model.top_k, t.cut(), FP32_BYTES)
        t.op("ffn.route", [x, logits], [sent, self.shares])
        sent = t.to(sent, Layout(t.mesh, (EXPERT, ("data",), ())))
        gate, up = t.linear("ffn.gate", sent), t.linear("ffn.up", sent)
        made = t.linear("ffn.down", t.vector("ffn.mul", [t.vector("ffn.silu", [gate]), up]))
        partial = t.layout(made).partial
        self.back = t.to(made, Layout(t.mesh, here.tensor_map, partial))
        out = t.tensor("ffn.combine.out", h, t.cut((), BATCH, partial))
        t.op("ffn.combine", [self.back, self.shares], [out])
        return out

    def backward(self, dy: str) -> str:
        """Return the gradient of what the experts took."""
        t, h = self.tape, self.model.hidden
        dy, back = t.to(dy, t.cut()), t.layout(self.back)
        d_back = t.tensor("ffn.combine.in.grad", h, back.whole, rows=self.rows)
        d_shares = t.tensor("ffn.route.shares.grad", self.model.top_k, t.cut((), BATCH, back.partial), FP32_BYTES)
        t.op("ffn.combine", [dy, self.back, self.shares], [d_back, d_shares])
        silu, up, gate = (t.name(f"ffn.{n}.out") for n in ("silu", "up", "gate"))
        d_product = t.linear_backward("ffn.down", d_back)
        d_silu, d_up = t.vector_backward("ffn.mul", d_product, [silu, up], ("ffn.silu", "ffn.up"))
        (d_gate,) = t.vector_backward("ffn.silu", d_silu, [gate], ("ffn.gate",))
        d_sent = t.linear_backward("ffn.up", d_up)
        d_sent = t.accumulate("ffn.gate", d_sent, t.linear_backward("ffn.gate", d_gate))
        return self._route_backward(d_sent, t.to(d_shares, t.cut()))

    def _route_backward(self, d_sent: str, d_shares: str) -> str:
        t, partial = self.tape, self.tape.layout(d_sent).partial
        d_sent = t.to(d_sent, Layout(t.mesh, ((), BATCH, ()), partial))
        d_logits = t.tensor("ffn.router.out.grad", self.model.experts or 1, t.cut())
        dx = t.tensor("ffn.route.in.grad", self.model.hidden, t.cut((), BATCH, partial))
        t.op("ffn.route", [d_sent, d_shares, self.shares], [dx, d_logits])
        return t.accumulate("ffn.router", dx, t.linear_backward("ffn.router", d_logits), t.layout(self.taken))
