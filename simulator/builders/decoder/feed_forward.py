"""The feed-forward at inference: dense, or experts of which a router chooses some for each token.

Which experts a token goes through is not known before it runs. So a layer with experts needs all of them in place, and
reads from the compute tier as many as are expected to be chosen at least once: of E experts, T tokens that each choose
k different ones, all equally likely, leave out each one with probability (1 - k / E)^T, so that
E * (1 - (1 - k / E)^T) are read, rounded up to whole experts. Each token takes 2 FLOP for each parameter of its k.

Where the experts are spread over R ranks, one rank has E / R of them, which the tokens of all choose: it takes in as
many rows as its own tokens send out, and reads its share of those experts that R * T tokens choose.
"""

from __future__ import annotations

from simulator.builders.decoder.cache import made_bytes
from simulator.builders.decoder.tape import FP32_BYTES, Tape
from simulator.graph import chosen_number
from simulator.workload import Experts


def gated(t: Tape, name: str, x: str) -> str:
    """All tokens through one gated feed-forward."""
    gate, up = t.linear(f"{name}.gate", x), t.linear(f"{name}.up", x)
    return t.linear(f"{name}.down", t.vector(f"{name}.mul", [t.vector(f"{name}.silu", [gate]), up]))


def routed(t: Tape, part: Experts, hidden: int, x: str) -> str:
    """Each token through those experts that the router chooses for it, and through the shared ones."""
    tokens = t.own_tokens
    logits, rows = t.linear("ffn.router", x), (tokens * part.top_k,)
    bias = [t.weight("ffn.router_bias").name] if part.router_bias else []
    sent = t.tensor("ffn.route.out", hidden, t.cut(), rows=rows)
    shares = t.tensor("ffn.route.shares", part.top_k, t.cut(), FP32_BYTES)
    t.op("ffn.route", [x, logits, *bias], [sent, shares])
    read = -(-chosen_number(part.routed, tokens * part.ranks, part.top_k) // part.ranks)
    gate, up = (_through(t, f"ffn.{name}", sent, read) for name in ("gate", "up"))
    made = _through(t, "ffn.down", t.vector("ffn.mul", [t.vector("ffn.silu", [gate]), up]), read)
    shared = [gated(t, "ffn.shared", x)] if part.shared else []
    out = t.tensor("ffn.combine.out", hidden, t.cut())
    t.op("ffn.combine", [made, shares, *shared], [out])
    return out


def _through(t: Tape, name: str, x: str, read: int) -> str:
    """Multiply each row by the weight of its expert; so many experts are read."""
    weight = t.weight(name)
    experts, _, outputs = weight.shape
    rows = t.spread[x].rows
    out = t.tensor(f"{name}.out", outputs, t.cut(), rows=rows)
    flops = 2 * rows[0] * (weight.parameters // experts)
    read_bytes = made_bytes(t, x) + t.weight_bytes(weight) // experts * read
    t.op(name, [x, weight.name], [out], flops=flops, op_class="matmul", read_bytes=read_bytes)
    return out
