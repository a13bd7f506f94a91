"""The feed-forward at inference: dense, or experts of which a router chooses some for each token.

Which experts a token goes through is not known before it runs. So a layer with experts needs all of them in place, and
reads from the compute tier as many as are expected to be chosen at least once: of E experts, T tokens that each choose
k different ones, all equally likely, leave out each one with probability (1 - k / E)^T, so that
E * (1 - (1 - k / E)^T) are read, rounded up to whole experts. Each token takes 2 FLOP for each parameter of its k.

As tensors of their own (``experts: each``), experts are read late: ``ffn.route`` reveals which ones a step needs, and
one grouped op, ``ffn.experts``, takes each row through the gate, the up and the down matrix of its expert, behind the
shared expert, so that what is chosen can come in beside that. Gate, up and their product are written and read once;
they are its workspace. What is chosen adds its size to the traffic.

Where the experts are spread over R ranks, one rank has E / R of them, which the tokens of all choose: it takes in as
many rows as its own tokens send out, and reads its share of those experts that R * T tokens choose.
"""

from __future__ import annotations

from simulator.builders.decoder.cache import made_bytes
from simulator.builders.decoder.tape import FP32_BYTES, Tape
from simulator.builders.naming import numbered
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
    if t.experts == "each":
        shared = [gated(t, "ffn.shared", x)] if part.shared else []
        return _combine(t, hidden, [_grouped(t, part, sent), shares, *shared])
    read = -(-chosen_number(part.routed, tokens * part.ranks, part.top_k) // part.ranks)
    gate, up = (_through(t, f"ffn.{name}", sent, read) for name in ("gate", "up"))
    made = _through(t, "ffn.down", t.vector("ffn.mul", [t.vector("ffn.silu", [gate]), up]), read)
    shared = [gated(t, "ffn.shared", x)] if part.shared else []
    return _combine(t, hidden, [made, shares, *shared])


def _combine(t: Tape, hidden: int, reads: list[str]) -> str:
    out = t.tensor("ffn.combine.out", hidden, t.cut())
    t.op("ffn.combine", reads, [out])
    return out


def _grouped(t: Tape, part: Experts, x: str) -> str:
    """Take each row through all of its expert in one op, which reads late those experts that are chosen."""
    stacks = [t.weights[f"{t.block}/ffn.{name}.weight"] for name in ("gate", "up", "down")]
    size = sum(-(-t.weight_bytes(stack) // part.routed) for stack in stacks)
    names = numbered(f"{t.block}/expert.", part.routed)
    for name in names:
        if name not in t.held:
            t.graph.tensor(name, size, "expert", persistent=True)
            t.held[name] = name
    rows = t.spread[x].rows
    out = t.tensor("ffn.experts.out", stacks[2].shape[2], t.cut(), rows=rows)
    within = 3 * rows[0] * part.width * t.element_bytes
    t.op(
        "ffn.experts",
        [x, *names],
        [out],
        flops=2 * rows[0] * sum(stack.parameters // part.routed for stack in stacks),
        op_class="matmul",
        read_bytes=made_bytes(t, x) + within,
        write_bytes=made_bytes(t, out) + within,
        workspace_bytes=within,
        late=t.late("ffn.experts", "ffn.route", names, samples=t.own_tokens, each=part.top_k),
    )
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
