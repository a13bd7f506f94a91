"""One decoder layer on the tape, forward and backward, with a feed-forward that is dense or of experts.

*At inference.* Which experts a token goes through is not known before it runs. So a layer with experts needs all of
them in place, and reads from the compute tier as many as are expected to be chosen at least once: of E experts, T
tokens that each choose k different ones, all equally likely, leave out each one with probability (1 - k / E)^T, so that
E * (1 - (1 - k / E)^T) are read, rounded up to whole experts. Each token takes 2 FLOP for each parameter of its k.

As tensors of their own (``experts: each``), experts are read late: ``ffn.route`` reveals which ones a step needs, and
one grouped op, ``ffn.experts``, takes each row through the gate, the up and the down matrix of its expert, behind the
shared expert, so that what is chosen can come in beside that. Gate, up and their product are written and read once;
they are its workspace. What is chosen adds its size to the traffic.

Where the experts are spread over R ranks, one rank has E / R of them, which the tokens of all choose: it takes in as
many rows as its own tokens send out, and reads its share of those experts that R * T tokens choose.

*In training.* The router is a linear on every rank. Routing is balanced: each expert gets tokens * top_k / experts
rows. With expert ranks, experts are cut among them and rows travel to their experts and back (dispatch and combine, an
all-to-all each, in forward and in backward). The rows of an expert rank stay cut along `data`, so that the gradient of
an expert adds up over those replicas only.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.builders.decoder.tape import FP32_BYTES, Tape, numbered
from simulator.builders.decoder.weights import BATCH, EXPERT
from simulator.errors import ConfigError
from simulator.graph import chosen_number
from simulator.layout import Layout
from simulator.workload import DecoderModel, Experts, LlamaModel

Step = Callable[[str], str]
"""From one tensor to the next."""


def gated(t: Tape, name: str, x: str) -> str:
    """All tokens through one gated feed-forward."""
    gate, up = t.linear(f"{name}.gate", x), t.linear(f"{name}.up", x)
    return t.linear(f"{name}.down", t.vector(f"{name}.mul", [t.vector(f"{name}.silu", [gate]), up]))


def _gated_backward(t: Tape, dy: str) -> str:
    silu, up, gate = (t.name(f"ffn.{n}.out") for n in ("silu", "up", "gate"))
    d_product = t.linear_backward("ffn.down", dy)
    d_silu, d_up = t.vector_backward("ffn.mul", d_product, [silu, up], ("ffn.silu", "ffn.up"))
    (d_gate,) = t.vector_backward("ffn.silu", d_silu, [gate], ("ffn.gate",))
    dx = t.linear_backward("ffn.up", d_up)
    return t.accumulate("ffn.gate", dx, t.linear_backward("ffn.gate", d_gate))


def projected(t: Tape, x: str, *, is_normed: bool = False) -> list[str]:
    """Queries, keys and values of heads, with their rotary embeddings; queries and keys normalised if that is said."""
    q, k, v = (t.linear(f"attn.{name}", x) for name in "qkv")
    if is_normed:
        q, k = t.norm("attn.q_norm", q), t.norm("attn.k_norm", k)
    return [t.vector("rope.q", [q]), t.vector("rope.k", [k]), v]


def fed(t: Tape, model: DecoderModel, x: str) -> str:
    """The feed-forward of a layer at inference: experts, if the layer has some."""
    part = model.feed_forward
    if isinstance(part, Experts) and f"{t.block}/ffn.router.weight" in t.weights:
        return routed(t, part, model.hidden, x)
    return gated(t, "ffn", x)


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
        read_bytes=t.made_bytes(x) + within,
        write_bytes=t.made_bytes(out) + within,
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
    read_bytes = t.made_bytes(x) + t.weight_bytes(weight) // experts * read
    t.op(name, [x, weight.name], [out], flops=flops, op_class="matmul", read_bytes=read_bytes)
    return out


class _Experts:
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
        made = gated(t, "ffn", sent)
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
        d_sent, d_shares = _gated_backward(t, d_back), t.to(d_shares, t.cut())
        partial = t.layout(d_sent).partial
        d_sent = t.to(d_sent, Layout(t.mesh, ((), BATCH, ()), partial))
        d_logits = t.tensor("ffn.router.out.grad", self.model.experts or 1, t.cut())
        dx = t.tensor("ffn.route.in.grad", h, t.cut((), BATCH, partial))
        t.op("ffn.route", [d_sent, d_shares, self.shares], [dx, d_logits])
        return t.accumulate("ffn.router", dx, t.linear_backward("ffn.router", d_logits), t.layout(self.taken))


def forward(t: Tape, block: str, x: str, attend: Step, feed_forward: Step) -> str:
    """What every layer is: attention, then a feed-forward, each behind a norm and added to what it took.

    Parameters
    ----------
    t
        What its ops are written on.
    block, x
        Name of the layer, and what it takes.
    attend
        From the normed input to what the output projection takes.
    feed_forward
        From the second norm to what is added.
    """
    t.block, residual = block, t.layout(x)
    context = attend(t.norm("norm1", x))
    r = t.vector("add1", [x, t.linear("attn.o", context)], residual)
    n2 = t.norm("norm2", r)
    return t.vector("add2", [r, feed_forward(n2)], residual)


class Layer:
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
        self.tape, self.model, self.sequence, self.block = tape, model, sequence, block

    def forward(self, x: str) -> str:
        """Return what the layer puts out."""
        self.x = x
        return forward(self.tape, self.block, x, self.attend, self.feed_forward)

    def attend(self, x: str) -> str:
        """Attend in groups of heads that share keys and values, each rank with its heads and all its tokens."""
        t = self.tape
        self.qkv = projected(t, x)
        self.attended = t.cut(max((t.layout(x).tensor_map[1] for x in self.qkv), key=len))
        taken = [t.to(x, self.attended) for x in self.qkv]
        context = t.tensor("attn.core.out", self.model.hidden, self.attended)
        made = [context]
        if t.phase == "forward":
            made.append(t.tensor("attn.core.lse", self.model.heads, self.attended, FP32_BYTES))
        flops = 2 * self.sequence * t.elements(context)
        t.op("attn.core", taken, made, flops=flops, op_class="attention")
        return context

    def feed_forward(self, x: str) -> str:
        """Go through the experts, if there are some."""
        if self.model.experts:
            self.experts = _Experts(self.tape, self.model)
            return self.experts.forward(x)
        return gated(self.tape, "ffn", x)

    def backward(self, dy: str) -> str:
        """Return the gradient of what the layer took."""
        t = self.tape
        t.block = self.block
        dn2 = self.experts.backward(dy) if self.model.experts else _gated_backward(t, dy)
        dr = t.norm_backward("norm2", t.name("add1.out"), dn2)
        dr = t.accumulate("add1", dr, dy)
        dn1 = self._attention_backward(dr)
        dx = t.norm_backward("norm1", self.x, dn1)
        return t.accumulate("norm1", dx, dr)

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
