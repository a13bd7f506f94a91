"""What stands before the first layer of a model and after the last one: embedding, head and loss.

Rows of further tables (positions, segments) join the embedding, each in an op that reads the rows of all tokens. A
*stem* makes rows of numbers: a linear for each convolution, whose input counts as laid out (taps * channels elements a
row). Rows that layers take beside their input (`layer_inputs`) are made once for all layers, of a table and of the
embedding. What a model without a head puts out gets its gradient from what follows on it, as an input of the step.
"""

from __future__ import annotations

from functools import partial
from math import prod

from simulator.builders.attention_gradients import given_rows
from simulator.builders.layer import collapsed
from simulator.builders.specs import FP32_BYTES, ID_BYTES, TABLES, TENSOR, Parts, ends
from simulator.builders.tape import Tape
from simulator.graph_builder import OpFields

_REDUCED = 3
"""Vectors that ranks with a part of the vocabulary add up for the loss: maximum, sum, logit of the label."""


def embed(t: Tape, tokens: list[str] | None = None) -> str:
    """Look tokens up (default: the ids); ranks with a part of the vocabulary have partial sums of the result.

    Its gradient is scattered into that of the table: a fresh one is written as a whole, another gets the rows added.
    """
    t.block = "embed"
    if t.model.stem:  # rows of numbers, those of a picture or of sound
        rows = _patches(t) * prod(part.rows * part.pooled for part in t.model.stem)
        x = t.given(f"{t.micro}embed/rows", t.model.stem[0].taken or 0, rows)
        x = t.to(_through(t, x, ends(t.model)["stem"]), t.residual)
    else:
        x = _look_up(t, tokens)
    is_late = t.model.head_transform  # what joins the embedding is as narrow
    x = t.linear("in", x) if t.model.embedding_width and not is_late else x
    for name in TABLES:
        x = _add_rows(t, name, x) if name in t.weights["embed"] else x
    if t.model.encoded and t.is_forward:  # layers have added its gradient up, perhaps a part on each rank
        encoded = given_rows(t)
        t.record(encoded, lambda dy: t.add_gradients([encoded], [t.to(dy, t.whole_rows)]))
    x = t.norm("norm", x) if t.model.embedding_norm else x
    x = t.linear("in", x) if t.model.embedding_width and is_late else x
    if t.model.layer_inputs:  # each layer takes its part of a row of a further table and of the embedding
        normed = t.norm("layers.norm", t.linear("layers.in", x))
        both = t.vector("layers.add", [_look_up(t, tokens, "layers.tokens"), normed], adds=t.residual)
        t.divided("layers.parts", both, t.layers, t.model.layer_inputs.width)
    t.embedded[t.micro] = x
    made = [t.linear("residuals", x)] if t.model.predicted else []
    return t.joined("residuals.all", [x, *made], t.model.residuals * t.model.hidden) if t.model.residuals > 1 else x


def _patches(t: Tape) -> int:
    """Return how many rows are no registers."""
    return t.rows[0] - t.rows[0] // t.workload.sequence * t.model.registers


def _through(t: Tape, x: str, parts: Parts) -> str:
    """Take rows through the parts of an end of a tower."""
    for name, part in parts:
        x = t.to(x, t.cut()) if part.norm or part.rows * part.pooled > 1 else x
        if part.pooled > 1:
            x = t.joined(f"{name}.pool", [x], t.spread[x].width, rows=(t.spread[x].rows[0] // part.pooled,))
        t.join_rows(x, part.rows)
        x = t.norm(f"{name}.norm", x) if part.norm else x
        gates = [t.linear(f"{name}.gate", x)] if part.activation == "gated" else []
        x = t.linear(name, x) if part.width else x
        x = t.vector(f"{name}.act", [x, *gates]) if part.activation else x
    return x


def _look_up(t: Tape, tokens: list[str] | None, name: str = "tokens") -> str:
    """Look tokens up; the gradient is scattered into that of the table."""
    id_bytes = t.own_tokens * ID_BYTES
    names, table = tokens or [t.declare(f"{t.micro}embed/ids", id_bytes, "input")], t.weight(name)
    entries, features = table.layout.tensor_map
    out = t.tensor(f"{name}.out", table.shape[1], t.cut(features, partial=entries))
    read_bytes = id_bytes + t.made_bytes(out) // t.mesh.size(entries)
    t.op(name, [*names, t.held[table.name]], [out], read_bytes=read_bytes)

    def back(dy: str) -> None:
        dy = t.to(dy, t.cut(features))
        dy_bytes, (old, new) = t.made_bytes(dy), t.weight_gradients(t.batch, table)
        size = t.workload.dtypes.gradient_bytes
        added_bytes = dy_bytes * size // (t.element_bytes * t.mesh.size(entries)) if old else 0
        read_bytes, write_bytes = id_bytes + dy_bytes + added_bytes, added_bytes or table.parameters * size
        t.op(name, [*names, dy, *old], new, read_bytes=read_bytes, write_bytes=write_bytes)

    return t.to(t.record(out, back), t.residual)


def _add_rows(t: Tape, name: str, x: str) -> str:
    """Add a row of a further table to each token's, or put its rows before those of a sequence (``registers``)."""
    table, (_, width, layout, *_) = t.weight(name), t.spread[x]
    out = t.tensor(f"{name}.out", width, layout)
    row_bytes = min(t.spread[x].elements, table.parameters) * t.element_bytes
    t.op(name, [x, t.held[table.name]], [out], read_bytes=t.made_bytes(x) + row_bytes)

    def back(dy: str) -> None:
        dy = t.to(dy, layout)
        if table.is_trained:
            old, new = t.weight_gradients(layout.cut, table)
            t.op(name, [dy, *old], new)
        t.add_gradients([x], [dy])

    return t.record(out, back)


def finish(t: Tape, x: str) -> list[str]:
    """Make what a model puts out without a head from the rows of the last layer."""
    t.block = "head"
    out = t.norm("norm", x) if t.model.final_norm else x
    _, *mergers = ends(t.model).items()
    return [_merged(t, x if index else out, *merger) for index, merger in enumerate(mergers)] or [out]


def _merged(t: Tape, x: str, name: str, parts: Parts) -> str:
    """Make rows for a decoder, without registers; other mergers take the same rows."""
    x = t.to(t.lent(x, name) if len(t.model.mergers) > 1 else x, t.cut())
    x = t.joined(f"{name}.rows", [x], t.model.hidden, rows=(_patches(t),)) if t.model.registers else x
    return t.to(_through(t, x, parts), t.cut())


def _final(t: Tape, x: str) -> str:
    """Make the rows that the output projection takes from those of the last layer."""
    if t.model.predicted:
        weight, rows = t.weight("residuals"), t.spread[x].elements // t.spread[x].width
        x = t.joined("residuals", [x], t.model.hidden, [weight], flops=2 * rows * weight.parameters)
    x = collapsed(t, "residuals", x)
    x = t.norm("norm", x) if t.model.final_norm else x
    if t.model.head_transform:
        x = t.norm("transform.norm", t.vector("transform.act", [t.linear("transform", x)]))
    return t.linear("out", x) if "out" in t.weights["head"] else x


def _logits(t: Tape, x: str) -> str:
    """Make the final norm and the logits; the output projection may be the embedding's table."""
    return t.linear("lm", _final(t, x), t.weights["embed"]["tokens"] if t.model.tied_embeddings else None)


def sample_tokens(t: Tape, x: str, last: int = 0) -> str:
    """Make the final norm, logits and the next token of each sample; of a rank's `last` tokens alone, unless 0.

    Where tensor ranks cut the tokens, these few rows reach all of them in no time.
    """
    t.block = "head"
    if last:
        taken, x = x, t.tensor("last.out", t.spread[x].width, rows=(t.replicas * last,))
        t.op("last", [taken], [x], read_bytes=t.made_bytes(x))
    logits, token = _logits(t, x), t.name("token")
    t.graph.tensor(token, t.spread[logits].rows[0] // t.replicas * ID_BYTES)
    t.op("sample", [logits], [token])
    return token


def loss(t: Tape, x: str) -> None:
    """Make the final norm, logits and loss of one micro-batch; or take the gradients of what a model puts out."""
    t.block = "head"
    if not t.model.head:
        for out in finish(t, x):
            t.record(out, partial(_take_gradient, t, out))
        return
    if t.workload.loss_chunks:
        _loss_in_chunks(t, _final(t, x), t.workload.loss_chunks)
        return
    logits = _logits(t, x)
    logits = t.to(logits, t.spread[logits].layout.whole)
    out, parts, dtypes = t.name("loss.out"), list[str](), t.workload.dtypes
    copies, again = dtypes.logits_copies_fp32, dtypes.gradient_copies_fp32

    def op(reads: list[str], writes: list[str], copies: int, made_bytes: int) -> None:
        """Add an op that works on so many copies of the logits, each written and read once."""
        label_bytes, copies_bytes = t.own_tokens * ID_BYTES, copies * t.spread[logits].elements * FP32_BYTES
        labels = t.declare(f"{t.micro}embed/ids", label_bytes, "input")
        more: OpFields = {"workspace_bytes": copies_bytes, "write_bytes": made_bytes + copies_bytes}
        more["read_bytes"] = t.made_bytes(logits, *reads) + label_bytes + copies_bytes
        t.op("loss", [logits, labels, *reads], writes, **more)

    t.graph.tensor(out, FP32_BYTES)
    if t.spread[logits].layout.tensor_map[1]:
        parts = [t.tensor("loss.parts", _REDUCED, t.cut(partial=TENSOR), FP32_BYTES)]
    op([], [out, *parts], copies, FP32_BYTES + t.made_bytes(*parts))
    parts = [t.to(part, t.cut()) for part in parts]

    def back(_: str) -> None:
        grad = t.add(f"{logits}.grad", t.spread[logits])
        op(parts, [grad], min(copies, 1) if again is None else again, t.made_bytes(grad))
        t.add_gradients([logits], [grad])

    t.record(out, back)


def _take_gradient(t: Tape, x: str, _: str) -> None:
    """Take the gradient of what a model puts out, which comes from what follows on it."""
    t.add_gradients([x], [t.given(f"{x}.grad", t.spread[x].width, t.spread[x].rows[0])])


def _loss_in_chunks(t: Tape, x: str, chunks: int) -> None:
    """Make the loss and the gradients of its input and of the logits' weight in one op, a chunk of tokens at a time.

    The logits of a chunk, which their gradient replaces, are its workspace; each product reads the weight once a chunk.
    """
    weight = t.weights["embed"]["tokens"] if t.model.tied_embeddings else t.weight("lm")
    out, labels, tokens = t.name("loss.out"), f"{t.micro}embed/ids", t.own_tokens
    label_bytes, each = tokens * ID_BYTES, -(-tokens // chunks)
    chunks, logits_bytes = -(-tokens // each), weight.parameters // t.spread[x].width * t.element_bytes
    t.graph.tensor(out, FP32_BYTES)
    dx = [t.tensor("lm.in.grad", t.spread[x].width)] if t.wants(x) else []
    old, new = t.weight_gradients(t.batch, weight)
    products, grad_bytes = 1 + len(dx) + len(new), weight.parameters * t.workload.dtypes.gradient_bytes
    read_bytes = (1 + len(new)) * t.made_bytes(x) + (1 + len(dx)) * chunks * weight.size_bytes + label_bytes
    read_bytes += products * tokens * logits_bytes + (len(old) * chunks or len(new) * (chunks - 1)) * grad_bytes
    write_bytes = 2 * tokens * logits_bytes + t.made_bytes(*dx) + len(new) * chunks * grad_bytes + FP32_BYTES
    t.op(
        "loss", [x, t.held[weight.name], t.declare(labels, label_bytes, "input"), *old], [out, *dx, *new],
        flops=products * 2 * tokens * weight.parameters, read_bytes=read_bytes, write_bytes=write_bytes,
        workspace_bytes=each * logits_bytes,
    )  # fmt: skip
    t.record(out, lambda _: t.add_gradients([x] * len(dx), dx))
