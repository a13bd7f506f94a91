"""The layers of a model, which are alike at training and at inference.

*Norms* stand where the model says: before a part, after it, on its sum with the residual. Where attention and
feed-forward are *parallel*, both take the layer's input, behind a norm each or one for both, and one op adds up what
they make, so that tensor ranks sum up once a layer. Without a gate a feed-forward is ``ffn.up``, ``ffn.act`` and
``ffn.down``, and saves two inner rows of a token, not four.

*Several residuals* of a token lie in one row, n * h wide (hyper-connections). Before attention and before the
feed-forward a linear makes weights of all of it, by which one op adds the residuals up, and another one adds what the
part made to each, and mixes them. Where they are *predicted* (AltUp), an op before the layer makes new ones of all, the
first one goes through the layer, and an op behind it corrects all; the products of both are counted. A layer may also
add what it makes of a row beside its input (`layer_inputs`), and what two linears of low rank make (`laurel`).

Layers that share weights (`shared`) take ``joined``, the rows of residual and embedding, and add what ``block`` makes
of their feed-forward. A weight is a tensor of the first of them, and its gradient adds up over all.

*At inference.* Which experts a token goes through is not known before it runs. So a layer with experts needs all of
them in place, and reads from the compute tier as many as are expected to be chosen at least once: T tokens that each
choose k different ones of E experts, all equally likely, miss an expert with probability (1 - k / E)^T, so that
E * (1 - (1 - k / E)^T) are read, rounded up to whole experts. Each token takes 2 FLOP for each parameter of its k.

As tensors of their own (``experts: each``), experts are read dynamically: ``ffn.route`` reveals which ones a step
needs, and one grouped op, ``ffn.experts``, takes each row through the gate, the up and the down matrix of its expert,
behind the shared expert, so that chosen experts can come in beside that. Gate, up and their product are written and
read once; they are its workspace. Chosen experts add their size to the traffic.

Where the experts are spread over R ranks, one rank has E / R of them, which the tokens of all choose: it takes in as
many rows as its own tokens send out, and reads its share of those experts that R * T tokens choose.

*In training.* The router is a linear on every rank. Routing is balanced: each expert gets tokens * top_k / experts
rows, on average, unless experts have a `skew`: then each rank is built with the rows of the busiest. With expert ranks,
experts are cut among them and rows travel to their experts and back (dispatch and combine, an all-to-all each, in
forward and in backward). The rows of an expert rank stay cut along `data`, so that the gradient of an expert adds up
over those replicas only. Tensor ranks have a part of each expert, and route the same tokens; or, if they are expert
ranks as well, have whole experts, and each routes its part of the tokens.

In all builders ``t`` is the tape that ops are added to; tensors are passed and returned by name (``x`` a layer's input,
``dy`` the gradient of an output).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil

from simulator.builders.attention_gradients import attend_across
from simulator.builders.specs import FP32_BYTES, ID_BYTES, TENSOR, numbered
from simulator.builders.tape import Tape
from simulator.builders.weights import is_matrix
from simulator.graph import HOST, chosen_number
from simulator.graph_builder import OpFields
from simulator.workload import Dense, Experts

_MATRICES = ("ffn.gate", "ffn.up", "ffn.down")
_UP = _MATRICES[1]


def forward(t: Tape, block: str, x: str, attend: Callable[[str], str]) -> str:
    """Run a layer: attention, and then or beside it a feed-forward, each normalised and added to its input.

    Parameters
    ----------
    t
        Tape that its ops are added to.
    block, x
        Name of the layer, and its input.
    attend
        Function from that input, normalised, to the input of the output projection.
    """
    t.block, is_parallel, across = block, t.model.parallel, t.model.across(t.layers[block])
    if t.model.shared and t.model.is_shared(t.layer):
        return _through_shared(t, x, attend)
    is_shared = t.layer.attention.beside is not None or t.model.norms == "shared" or t.model.laurel > 0
    t.begin("layer")
    predictions = _with_routed(t, "predict", [x], x) if t.model.predicted else ""
    x = t.lent(predictions, "first", t.model.hidden) if predictions else x
    normed, made, r = _normalise(t, "norm1", x) if is_shared else x, "", x

    def attended() -> str:
        return attend(normed if is_shared else _normalise(t, "norm1", taken))

    if t.layer.attention.kind != "none" and across != "alone":
        taken = collapsed(t, "residuals1", x)
        t.begin("attention")
        context = attended()
        t.end("attention", context, attended)
        made = t.linear("attn.o", context)
        if t.layer.attention.beside:
            made = _with_state(t, made, attended)
        made = _normalise(t, "norm1.after", made)
        r = normed if is_parallel else _normalise(t, "norm1.sum", _joined(t, "1", x, made))
        if t.model.laurel:
            low = t.norm("laurel.norm", t.linear("laurel.out", t.linear("laurel.in", normed)))
            r = t.vector("laurel.add", [r, normed, low], adds=t.residual)
    if across != "never":
        seen = t.linear("attn.across.o", attend_across(t, _normalise(t, "norm3", r, "add1")))
        r = t.vector("add3", [r, _normalise(t, "norm3.after", seen)], adds=t.residual)
        r = _normalise(t, "norm3.sum", r)
    out = r
    if t.layer.feed_forward.kind != "none":
        fed = collapsed(t, "residuals2", r)
        t.begin("feed_forward")
        fed_forward = feed_forward(t, fed, attend)
        t.end("feed_forward", fed_forward, partial(feed_forward, t, fed, attend))
        fed_forward = _normalise(t, "norm2.after", fed_forward)
        if is_parallel:  # ranks add up their parts of both at once
            both, other = t.spread[made].layout, t.spread[fed_forward].layout
            r, fed_forward = x, t.vector("add1", [made, fed_forward], adds=both if both == other else t.residual)
        out = _normalise(t, "norm2.sum", _joined(t, "2", r, fed_forward))
    out = _with_routed(t, "correct", [predictions, out], out) if predictions else out
    out = _with_input(t, out) if t.model.layer_inputs else out
    t.end("layer", out, partial(forward, t, block, x, attend))
    return out


def _with_input(t: Tape, x: str) -> str:
    """Add what a layer makes of the row that it takes beside its input."""
    given, taken, hidden = f"{t.micro}embed/layers.add.out.{t.block}", x, t.model.hidden
    if t.model.predicted:
        taken = t.joined("residuals.scale", [t.lent(x, "first", hidden)], hidden, [t.weight("residuals.scale")])
    made = t.norm("input.norm", t.linear("input.out", t.vector("input.mul", [t.linear("input.gate", taken), given])))
    if t.model.predicted:
        return t.joined("input.add", [x, made], t.model.residuals * hidden)
    return t.vector("input.add", [x, made], adds=t.residual)


def _through_shared(t: Tape, x: str, attend: Callable[[str], str]) -> str:
    """Attend with the embedding behind the residual in each row, then feed forward, without a residual between."""
    both, joined = [x, t.embedded[t.micro]], t.tensor("joined.out", 2 * t.model.hidden, t.residual)
    t.op("joined", both, [joined])

    def back(dy: str) -> None:
        wanted = [name for name in both if t.wants(name)]
        grads = [t.tensor(f"joined.grad{i}", t.model.hidden, t.residual) for i in range(len(wanted))]
        t.op("joined", [t.to(dy, t.residual)], grads)
        for position, (name, grad) in enumerate(zip(wanted, grads, strict=True)):
            t.add_gradients([name], [grad], f"joined.{position}")

    context = attend(_normalise(t, "norm1", t.record(joined, back)))
    made = feed_forward(t, t.to(t.linear("attn.o", context), t.residual), attend)
    return t.vector("add2", [x, t.linear("block", made)], adds=t.residual)


def _with_routed(t: Tape, name: str, reads: list[str], routed: str) -> str:
    """Predict residuals, or correct them, by coefficients that are made of the first elements of a row."""
    n, h, weights = t.model.residuals, t.model.hidden, [f"residuals.{part}" for part in ("router", "norm", name)]
    flops = 2 * t.spread[routed].elements // t.spread[routed].width * (n * h + n ** (3 if name == "predict" else 2))
    return t.joined(f"residuals.{name}", reads, n * h, map(t.weight, weights), flops=flops)


def collapsed(t: Tape, name: str, x: str) -> str:
    """Add up the residuals of each token, each times a weight that is made of all; as it is, where there is one."""
    if t.model.residuals == 1 or t.model.predicted:
        return x
    return t.joined(f"{name}.sum", [x, t.linear(name, x)], t.model.hidden, [t.weight(f"{name}.scale")])


def _joined(t: Tape, part: str, x: str, made: str) -> str:
    """Add what a part made to the residual, or to each of several, which may be mixed."""
    if t.model.residuals == 1 or t.model.predicted:
        return t.vector(f"add{part}", [x, made], adds=t.residual)
    return t.vector(f"residuals{part}.add", [x, t.to(made, t.residual), t.name(f"residuals{part}.out")])


def _with_state(t: Tape, made: str, attended: Callable[[], str]) -> str:
    """Add the output of the part with a state, which takes the same input, to that of attention."""
    t.mixer = "state"
    beside = t.linear("state.o", attended())
    t.mixer, both = "attn", t.spread[made].layout
    return t.vector("state.add", [made, beside], adds=both if both == t.spread[beside].layout else t.residual)


def _normalise(t: Tape, name: str, x: str, sums: str = "") -> str:
    """Normalise rows in a norm that layers of the model may have; they are whole then."""
    return t.norm(name, t.to(x, t.residual), sums) if name in t.model.layer_norms else x


# feed-forward


def _through_matrices(t: Tape, name: str, x: str) -> str:
    """Take all tokens through one feed-forward."""
    if not t.layer.feed_forward.gate:
        return t.linear(f"{name}.down", t.vector(f"{name}.act", [t.linear(f"{name}.up", x)]))
    gate, up = t.linear(f"{name}.gate", x), t.linear(f"{name}.up", x)
    if f"{name}.adapter" in t.weights[t.block]:
        gate, up = _adapted(t, t.linear(f"{name}.adapter", x), {f"{name}.gate": gate, f"{name}.up": up})
    if t.workload.swiglu == "fused":
        return t.linear(f"{name}.down", t.vector(f"{name}.swiglu", [gate, up]))
    return t.linear(f"{name}.down", t.vector(f"{name}.mul", [t.vector(f"{name}.silu", [gate]), up]))


def _adapted(t: Tape, low: str, made: dict[str, str]) -> list[str]:
    """Add to the output of each linear what a linear of the layer's own makes of a narrow row."""
    return [
        t.vector(f"{name}.add", [y, t.linear(f"{name}.adapter", low)], adds=t.spread[y].layout)
        for name, y in made.items()
    ]


def feed_forward(t: Tape, x: str, attend: Callable[[str], str]) -> str:
    """Normalise, and go through the feed-forward of a layer: a dense one, perhaps of shifted rows, or experts."""
    has_other = t.model.parallel or t.model.residuals > 1 or t.model.laurel or t.layer.attention.kind == "none"
    last = "add1" if t.model.across(t.layer) == "never" else "add3"
    sum_before = "" if has_other else last  # where gradients of its input add up
    part, x = t.layer.feed_forward, _normalise(t, "norm2", x, sums=sum_before)
    if isinstance(part, Experts):
        return _through_experts(t, part, x)
    if not isinstance(part, Dense) or not part.shifted:
        return _through_matrices(t, "ffn", x)
    t.mixer = "ffn"  # whose rows are kept as those of attention
    rows, t.mixer = attend(x), "attn"
    taken, gate = t.divided("ffn.shift.parts", rows, ("up", "gate"), t.model.hidden)
    made = _through_matrices(t, "ffn", taken), t.linear("ffn.receptance", gate)
    return t.vector("ffn.gated", [t.to(y, t.residual) for y in made])


def _through_experts(t: Tape, part: Experts, x: str) -> str:
    """Take each token through its experts, beside those that all tokens go through."""
    if t.block in t.on_host["experts"]:
        return _through_sides(t, part, x)
    experts, *_, features = t.weights[t.block][_UP].layout.tensor_map
    routed = x
    if TENSOR[0] in experts:  # each tensor rank has experts of its own, and sends a part of the tokens
        routed = t.to(x, t.cut((), (*t.batch, *TENSOR)))
    elif experts or features:  # each has a part of all experts
        routed = t.to(x, t.cut())
    sent, shares = _route(t, part, routed)
    tokens = t.spread[sent].layout.tensor_map[1]
    taken = _copy_rows(t, "ffn.dispatch", sent) if part.buffers == "apart" else sent
    taken = t.to(taken, t.lay_out((experts, tuple(axis for axis in tokens if axis not in experts), ())))
    made = _through_matrices(t, "ffn", taken) if t.workload.experts == "together" else ""
    shared = [_through_matrices(t, "ffn.shared", x)] if part.shared else []
    made = made or _grouped_experts(t, part, taken)  # behind the shared expert, so that chosen ones come in beside it
    if part.buffers == "apart":
        made = _copy_rows(t, "ffn.return", made)
    summed = t.cut((), tokens, t.spread[made].layout.partial)
    if any(t.spread[x].layout != summed for x in shared):
        shared = [t.to(x, t.spread[routed].layout) for x in shared]
    back = t.to(made, replace(t.spread[sent].layout, partial=summed.partial))
    gates = [t.linear("ffn.shared_gate", x)] if part.shared_gate else []
    gate = [t.to(y, t.spread[routed].layout) for y in gates]
    beside, shared = (shared, []) if part.latent else ([], shared)
    out = t.tensor("ffn.combine.out", part.latent or t.model.hidden, summed)
    t.op("ffn.combine", [back, shares, *shared, *gate], [out])

    def combine_back(dy: str) -> None:
        d_back = t.add(t.name("ffn.combine.in.grad"), t.spread[sent])
        d_shares = t.tensor("ffn.route.shares.grad", part.top_k, summed, FP32_BYTES)
        d_gates = [t.add(f"{y}.grad", t.spread[y], summed) for y in gate]
        scaled = [*shared, *gate] if gate else []
        d_shared = [t.add(f"{y}.scaled.grad", t.spread[y]) for y in shared] if gate else [dy for _ in shared]
        reads = [t.to(dy, t.spread[routed].layout), back, shares, *scaled]
        t.op("ffn.combine", reads, [d_back, d_shares, *d_gates, *(d_shared if gate else [])])
        t.add_gradients([made, shares, *shared, *gates], [d_back, d_shares, *d_shared, *d_gates])

    t.record(out, combine_back)
    if not part.latent:
        return out
    out = t.linear("ffn.latent_out", t.to(out, t.spread[routed].layout))
    return t.vector("ffn.latent_add", [out, *(t.to(y, t.spread[out].layout) for y in beside)], saves=False)


def _route(t: Tape, part: Experts, x: str) -> tuple[str, str]:
    """Route tokens: return the rows that go to experts, and the shares of each token's experts in its output."""
    own_tokens, tokens, taken = t.spread[x].elements // t.model.hidden, t.spread[x].layout.tensor_map[0], x
    width = part.latent or t.model.hidden
    if t.is_forward and t.workload.dtypes.router == "fp32" and t.element_bytes < FP32_BYTES:
        taken = t.vector("ffn.router.fp32", [x], saves=False, size=FP32_BYTES)
    logits, bias = t.linear("ffn.router", taken), [t.weight("ffn.router_bias").name] if part.router_bias else []
    ranks = t.mesh.size(t.weights[t.block][_UP].layout.tensor_map[0])
    each = ceil(own_tokens * part.chosen / ranks * part.busiest(ranks * part.ranks))
    rows, routed = (ranks, each * t.mesh.size(tokens)), t.lay_out(((), tokens, ()))
    x = t.linear("ffn.latent_in", x) if part.latent else x
    sent = t.tensor("ffn.route.out", width, routed, rows=rows)
    shares = t.tensor("ffn.route.shares", part.top_k, t.spread[x].layout, FP32_BYTES)
    t.op("ffn.route", [x, logits, *bias], [sent, shares])

    def back(d_sent: str) -> None:
        d_shares = t.to(t.grads.pop(shares), t.spread[shares].layout)
        summed = t.cut((), tokens, t.spread[d_sent].layout.partial)
        d_sent = t.to(d_sent, replace(routed, partial=summed.partial))
        d_logits = t.tensor(
            "ffn.router.out.grad", part.candidates, t.spread[logits].layout, t.spread[logits].element_bytes
        )
        dx = t.tensor("ffn.route.in.grad", width, summed)
        t.op("ffn.route", [d_sent, d_shares, shares], [dx, d_logits])
        t.add_gradients([x, logits], [dx, d_logits], "ffn.route")

    t.record(sent, back)
    return sent, shares


def _through_sides(t: Tape, part: Experts, x: str) -> str:
    """Take each token through its experts on the host, and through those that the accelerator has.

    Each side takes the hidden states and the choices of all tokens, and adds up what its experts make of a token.
    """
    logits, bias = t.linear("ffn.router", x), [t.weight("ffn.router_bias").name] if part.router_bias else []
    choices = t.tensor("ffn.route.choices", part.top_k, size=FP32_BYTES + ID_BYTES)
    t.op("ffn.route", [logits, *bias], [choices])
    count, each = t.workload.on.host_experts(part)
    made = [_of_side(t, part, HOST, [x, choices], (count, each))]
    made += [_through_matrices(t, "ffn.shared", x)] if part.shared else []
    if count < part.routed:
        made.append(_of_side(t, part, "accelerator", [x, choices], (part.routed - count, part.top_k - each)))
    return t.vector("ffn.combine", made)


def _of_side(t: Tape, part: Experts, side: str, taken: list[str], share: tuple[int, Fraction]) -> str:
    """Take tokens through the experts of a side in one op: so many experts, on which so many choices of each fall."""
    (count, each), names, size, parameters = share, list[str](), 0, 0
    chosen = -(-chosen_number(count * each.denominator, t.own_tokens, each.numerator) // each.denominator)
    rows = round(t.own_tokens * each)
    for module, stack in t.weights[t.block].items():
        if module.removesuffix(".bias") in _MATRICES:
            name, whole_bytes, each_bytes = stack.name, stack.size_bytes, -(-stack.size_bytes // part.routed)
            if count < part.routed:
                name, whole_bytes = f"{name}.{side}", count * each_bytes
            names.append(t.declare(name, whole_bytes, "expert"))
            size += each_bytes
            parameters += stack.parameters // part.routed * is_matrix(module, stack.shape)
    out, inside = t.tensor(f"ffn.experts.{side}.out", t.model.hidden), part.inner * rows * part.width * t.element_bytes
    read_bytes = rows * t.model.hidden * t.element_bytes + t.made_bytes(taken[1]) + inside + chosen * size
    work = OpFields(read_bytes=read_bytes, write_bytes=t.made_bytes(out) + inside, flops=2 * rows * parameters)
    work |= {"device": side, "workspace_bytes": inside, **t.product(t.weights[t.block][_UP])}
    t.op(f"ffn.experts.{side}", [*taken, *names], [out], **work)
    return out


def _copy_rows(t: Tape, name: str, x: str) -> str:
    """Copy rows from a buffer into another one."""
    out = t.add(t.name(f"{name}.out"), t.spread[x])
    t.op(name, [x], [out])
    return out


def _grouped_experts(t: Tape, part: Experts, x: str) -> str:
    """Take each row through its whole expert in one op, whose workspace holds the intermediates.

    All experts are one tensor; or each is a tensor of its own, read dynamically.
    """
    is_each, rows = t.workload.experts == "each", t.spread[x].elements // (part.latent or t.model.hidden)
    modules = [name for name in t.weights[t.block] if name.removesuffix(".bias") in _MATRICES]
    stacks = [(t.weights[t.block].__getitem__ if is_each else t.weight)(name) for name in modules]
    names, read_bytes = [t.held.get(stack.name, "") for stack in stacks], sum(map(t.read_bytes, stacks))
    if is_each:
        size, read_bytes = sum(-(-stack.size_bytes // part.routed) for stack in stacks), 0
        names = [t.declare(name, size, "expert") for name in numbered(f"{t.block}/expert.", part.routed)]
    up, *_, down = (stack for stack in stacks if len(stack.shape) == len(stacks[0].shape))
    summed = replace(t.spread[x].layout, partial=down.layout.tensor_map[1])
    out = t.add(t.name("ffn.experts.out"), t.spread[x], summed)
    inside = part.inner * rows * up.layout.local_shape(up.shape)[-1] * t.element_bytes
    flops = 2 * rows * sum(stack.parameters // part.held for stack in stacks if len(stack.shape) == len(up.shape))
    more: OpFields = {"workspace_bytes": inside, "write_bytes": t.made_bytes(out) + inside, "flops": flops}
    more |= {"read_bytes": t.made_bytes(x) + inside + read_bytes, **t.product(up)}
    if is_each:
        more["dynamic"] = t.dynamic_reads("ffn.experts", "ffn.route", names, samples=t.own_tokens, each=part.top_k)
    t.op("ffn.experts", [x, *names], [out], **more)
    return out
