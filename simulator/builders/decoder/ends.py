"""What stands before the first layer and after the last: the embedding, and the head with the loss."""

from __future__ import annotations

from simulator.builders.decoder.tape import FP32_BYTES, ID_BYTES, Tape
from simulator.builders.decoder.weights import BATCH, TENSOR
from simulator.layout import Layout

_REDUCED = 3
"""Vectors that ranks with a part of the vocabulary add up for the loss: maximum, sum, logit of the label."""


def ids(tape: Tape) -> tuple[str, int]:
    """Name and size of the token ids of this micro-batch, for the embedding and as labels."""
    name, size_bytes = f"{tape.micro}embed/ids", tape.own_tokens * ID_BYTES
    if name not in tape.held:
        tape.graph.tensor(name, size_bytes, "input", persistent=True)
        tape.held[name] = name
    return name, size_bytes


def embed(tape: Tape, residual: Layout, tokens: list[str] | None = None) -> str:
    """Look the tokens up (default: the ids); ranks with a part of the vocabulary have summands of the result."""
    tape.block = "embed"
    names = tokens or [ids(tape)[0]]
    table = tape.weight("tokens")
    entries, features = table.layout.tensor_map
    out = tape.tensor("tokens.out", table.shape[1], tape.cut(features, BATCH, entries))
    rows_bytes = tape.elements(out) * tape.element_bytes // tape.mesh.size(entries)
    read_bytes = tape.own_tokens * ID_BYTES + rows_bytes
    tape.op("tokens", [*names, tape.held[table.name]], [out], read_bytes=read_bytes)
    return tape.to(out, residual)


def embed_backward(tape: Tape, dy: str) -> None:
    """Scatter into the table's gradient: a fresh one is written as a whole, another gets the rows added."""
    tape.block = "embed"
    name, id_bytes = ids(tape)
    table = tape.weight("tokens")
    entries, features = table.layout.tensor_map
    dy = tape.to(dy, tape.cut(features))
    dy_bytes = tape.elements(dy) * tape.element_bytes
    rows_bytes = dy_bytes // tape.mesh.size(entries)
    old, new = tape.grad(table, BATCH)
    if old:
        read_bytes = id_bytes + dy_bytes + rows_bytes
        tape.op("tokens", [name, dy, *old], new, read_bytes=read_bytes, write_bytes=rows_bytes)
    else:
        tape.op("tokens", [name, dy], new)


def answer(tape: Tape, x: str, *, tied: bool, last: int = 0) -> str:
    """Final norm, logits and the next token of each sample; of the last tokens alone, if it is said how many."""
    tape.block = "head"
    if last:
        taken, x = x, tape.tensor("last.out", tape.spread[x].width, tape.cut(), rows=(last,))
        tape.op("last", [taken], [x], read_bytes=tape.made_bytes(x))
    table = tape.weights["embed/tokens.weight"] if tied else None
    logits = tape.linear("lm", tape.norm("norm", x), table)
    token = tape.name("token")
    tape.graph.tensor(token, tape.tokens(logits) * ID_BYTES)
    tape.op("sample", [logits], [token])
    return token


class Head:
    """Final norm, logits and loss of one micro-batch.

    Parameters
    ----------
    tape
        What its ops are written on.
    copies
        fp32 copies of the logits that the loss holds.
    tied
        Whether the output projection is the embedding's table.
    """

    def __init__(self, tape: Tape, copies: int, *, tied: bool) -> None:
        self.tape, self.copies, self.tied = tape, copies, tied

    def forward(self, x: str) -> None:
        """Compute the loss."""
        t = self.tape
        t.block, self.x = "head", x
        table = t.weights["embed/tokens.weight"] if self.tied else None
        self.logits = t.linear("lm", t.norm("norm", x), table)
        self.layout = t.layout(self.logits).whole
        self.logits = t.to(self.logits, self.layout)
        t.graph.tensor(t.name("loss.out"), FP32_BYTES)
        parts: list[str] = []
        if self.layout.tensor_map[1]:
            parts = [t.tensor("loss.parts", _REDUCED, t.cut((), BATCH, TENSOR), FP32_BYTES)]
        self._loss([t.name("loss.out"), *parts], self.copies)
        self.parts = [t.to(part, t.cut()) for part in parts]

    def _loss(self, writes: list[str], held: int) -> None:
        t = self.tape
        labels, label_bytes = ids(t)
        elements = t.elements(self.logits)
        copies_bytes = held * elements * FP32_BYTES
        written = sum(t.made_bytes(x) if x in t.spread else FP32_BYTES for x in writes)
        read_bytes = elements * t.element_bytes + label_bytes + copies_bytes
        reads = [self.logits, labels]
        if t.phase == "backward":
            reads += self.parts
            read_bytes += t.made_bytes(*self.parts)
        t.op(
            "loss",
            reads,
            writes,
            workspace_bytes=copies_bytes,
            read_bytes=read_bytes,
            write_bytes=written + copies_bytes,
        )

    def backward(self) -> str:
        """Return the gradient of what the head took."""
        t = self.tape
        t.block = "head"
        grad = t.tensor("lm.out.grad", t.spread[self.logits].width, self.layout)
        self._loss([grad], min(self.copies, 1))
        return t.norm_backward("norm", self.x, t.linear_backward("lm", grad))
