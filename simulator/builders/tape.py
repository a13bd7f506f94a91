"""Writes down what one rank runs: ops with the tensors that they make, collectives that layouts ask for, and gradients.

*Gradients.* An op of the phase ``forward`` also says how its gradients are made; `Tape.go_back` runs through a block
the other way. Where gradients of one tensor meet, they add up in place (``.acc``). A gradient that an addition passes
on to both of its inputs is nobody's own, and is added to the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from math import prod
from typing import NamedTuple, Unpack

from simulator.builders.weights import BATCH, TENSOR, Laid, numbered, size_bytes
from simulator.graph import Collective, CollectiveKind, Late, chosen_number
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.layout import Axes, Change, Layout, Weight
from simulator.workload import Attention, Experts, Layer

FP32_BYTES = 4
ID_BYTES = 4

_MADE = {
    None: "slice",
    CollectiveKind.ALL_GATHER: "gathered",
    CollectiveKind.REDUCE_SCATTER: "scattered",
    CollectiveKind.ALL_TO_ALL: "exchanged",
}
"""What a change of layout calls the tensor that it makes."""


def starts(prefix: str, count: int) -> list[str]:
    """What the names of what runs several times begin with: ``mb0/``, ``mb1/`` ...; nothing where it runs once."""
    return [f"{name}/" for name in numbered(prefix, count)] if count > 1 else [""]


Rows = tuple[int, ...]


class Spread(NamedTuple):
    """A tensor and how it is spread: rows (tokens of all replicas; or experts, and rows of each), then features.

    Its origin is the tensor that it is in another layout, if it is that.
    """

    rows: Rows
    width: int
    layout: Layout
    element_bytes: int
    origin: str = ""


Back = Callable[[str], None]
"""Makes the gradients of what an op took from that of what it made."""


_layout = lru_cache(Layout)
"""The few layouts of a model, each made once."""


class Tape:
    """Writes down the step of one rank: ops of the current micro-batch, block and phase.

    Names of ops and tensors are relative to `micro` and `block` (``mb0/L03``); what methods return, and take as
    tensors, are full names. Widths are elements per row of the whole model; what a rank holds follows from layouts.

    Parameters
    ----------
    laid
        What runs, and the weights of its model on the ranks.
    name
        Of the graph.
    rows
        Tokens that run together, on all replicas; default: those of a micro-batch.
    """

    def __init__(self, laid: Laid, name: str = "", rows: int = 0) -> None:
        workload, self.model, self.mesh, self.weights, self.layers = laid
        self.workload, self.where = workload, f"workload {workload.name}"
        self.graph = GraphBuilder(name or workload.name, self.where)
        self.rows = (rows or workload.batch * workload.sequence * self.mesh.size(BATCH),)
        self.element_bytes = workload.dtypes.element_bytes
        self._usual, self._own = self.model.layer(0), dict[Attention, Attention]()
        self.zero_stage = workload.parallel.zero_stage if self.mesh.size(BATCH) > 1 else 0
        self.residual = self.cut((), (*BATCH, *(TENSOR if workload.parallel.sequence else ())))
        self.micro, self.block, self.phase = "", "", "forward"
        self.kinds: dict[str, str] = {}  # last part of a name -> kind of tensor, where that is not an activation
        self.spread: dict[str, Spread] = {}
        self.held: dict[str, str] = {}  # weight, or what else is declared once -> what ops read for it
        self.graded: dict[str, str] = {}  # weight -> its gradient in this micro-batch, or of all so far
        self.shards: dict[str, str] = {}  # weight -> the shard of its gradient, with ZeRO
        self.summands: dict[str, Axes] = {}  # weight -> axes along which replicas hold a summand of its gradient
        self.grads: dict[str, str] = {}  # tensor -> its gradient so far
        self._backs: dict[str, list[tuple[str, Back]]] = {}  # block of a micro-batch -> how to go back through it
        self._shared = set[str]()  # gradients that are those of two tensors: none adds up in place there
        self._changed: dict[tuple[str, Layout, str], str] = {}
        self._groups: set[str] = set()

    # the current layer

    @property
    def layer(self) -> Layer:
        """The parts of the current layer, or of the first one where the current block is none."""
        return self.layers.get(self.block, self._usual)

    @property
    def attention(self) -> Attention:
        """The attention of the current layer, with the heads of this rank."""
        part = self.layer.attention
        if part not in self._own:
            self._own[part] = part.of_one(self.mesh.size(TENSOR))
        return self._own[part]

    @property
    def token_bytes(self) -> int:
        """What the KV cache of the current layer holds of a token, on this rank [B]."""
        return self.attention.kv_elements * self.workload.dtypes.kv_bytes

    # names and tensors

    def name(self, tensor: str) -> str:
        """Full name of a tensor of the current block."""
        return f"{self.micro}{self.block}/{tensor}"

    def cut(self, features: Axes = (), tokens: Axes = BATCH, partial: Axes = ()) -> Layout:
        """The layout of rows cut along `tokens`, and of features cut along `features`."""
        return _layout(self.mesh, (tokens, features), partial)

    def tensor(self, name: str, width: int, layout: Layout | None = None, size: int = 0, rows: Rows = ()) -> str:
        """Add an activation of so many elements a row to the current block; return its name.

        Rows are cut along the batch unless a layout is given, and are all tokens unless their number is; `size` is that
        of an element [B], by default of the model's data type.
        """
        layout = self.cut() if layout is None else layout
        return self.add(self.name(name), Spread(rows or self.rows, width, layout, size or self.element_bytes))

    def of_heads(self, name: str, width: int, rows: tuple[int, ...] = ()) -> str:
        """Add an activation with so many elements a row of this rank's heads; return its name."""
        return self.tensor(name, width * self.mesh.size(TENSOR), self.cut(TENSOR), rows=rows)

    def add(self, name: str, spread: Spread) -> str:
        """Add an activation with this full name that is spread so; return the name."""
        self.spread[name] = spread
        kind = self.kinds.get(name.rpartition("/")[2], "activation")
        self.graph.tensor(name, self.made_bytes(name), kind)
        return name

    def elements(self, name: str) -> int:
        """How many elements of a tensor this rank holds."""
        spread = self.spread[name]
        return spread.layout.local_elements((*spread.rows, spread.width), f"{self.where}, {name}")

    def made_bytes(self, *names: str) -> int:
        """Size of what this rank holds of activations [B]."""
        return sum(self.elements(name) * self.spread[name].element_bytes for name in names)

    @property
    def own_tokens(self) -> int:
        """How many tokens the samples of this rank have."""
        return prod(self.rows) // self.mesh.size(BATCH)

    def layout(self, name: str) -> Layout:
        """How a tensor is spread now."""
        return self.spread[name].layout

    def weight(self, name: str) -> Weight:
        """A weight of the current block; its tensor is declared when it is first named."""
        weight = self.weights[self.block][name]
        self.declare(weight.name, self.weight_bytes(weight), weight.kind)
        return weight

    def declare(self, name: str, size_bytes: int, kind: str) -> str:
        """Add a persistent tensor [B] unless it is there."""
        if name not in self.held:
            self.graph.tensor(name, size_bytes, kind, persistent=True)
            self.held[name] = name
        return name

    def weight_bytes(self, weight: Weight) -> int:
        """What this rank holds of a weight [B]."""
        return size_bytes(weight, self.workload.dtypes)

    # ops

    def op_name(self, name: str) -> str:
        """Full name of an op of the current block and phase."""
        short = {"forward": "fwd", "backward": "bwd"}.get(self.phase, self.phase)
        return f"{self.micro}{self.block}/{short}/{name}"

    def op(self, name: str, reads: Iterable[str], writes: Iterable[str], **more: Unpack[OpFields]) -> None:
        """Add an op of the current block and phase; with work it is a matrix product unless it says otherwise."""
        more["phase"] = self.phase
        more.setdefault("dtype", self.workload.dtypes.compute)
        if more.get("flops"):
            more.setdefault("op_class", "matmul")
        kind = "collective" if more.get("collective") else "compute"
        self.graph.op(self.op_name(name), reads, writes, kind, **more)

    def multiply(self, name: str, reads: list[str], read_bytes: int, *, width: int = 0, rows: int = 0) -> str:
        """Multiply each head's part of rows (default: all tokens) by its part of a weight; without gradients.

        Parameters
        ----------
        name
            Of the op and of its weight.
        reads, read_bytes
            What else is read, and how much of it [B].
        width
            Elements of a row that comes out; default: as the weight has it.
        rows
            How many.
        """
        weight, rows = self.weight(name), rows or self.own_tokens
        here = self.cut(weight.layout.tensor_map[-1])
        out = self.tensor(f"{name}.out", width or weight.shape[-1], here, rows=(rows,))
        read_bytes += self.weight_bytes(weight)
        self.op(name, [*reads, weight.name], [out], flops=2 * rows * weight.parameters, read_bytes=read_bytes)
        return out

    def late(self, op: str, revealed_by: str, candidates: list[str], *, samples: int, each: int) -> Late:
        """Dynamic reads of the op of the current block that is added next."""
        return self.graph.late(self.op_name(op), self.op_name(revealed_by), candidates, samples=samples, each=each)

    def group(self, name: str, members: Iterable[Iterable[int]]) -> str:
        """Declare a group unless it is there."""
        if name not in self._groups:
            self._groups.add(name)
            self.graph.group(name, members)
        return name

    def meet(
        self, name: str, kind: CollectiveKind, along: str | Axes, size_bytes: int, reads: list[str], writes: list[str]
    ) -> None:
        """Add a collective of so many bytes: of a group, or of the ranks that differ along some axes only."""
        group = along if isinstance(along, str) else self.group(".".join(along), self.mesh.members(along))
        self.op(name, reads, writes, collective=Collective(kind, group, size_bytes))

    def to(self, x: str, layout: Layout) -> str:
        """Bring a tensor into a layout by the collectives that it takes; once in each phase of a micro-batch."""
        if self.layout(x) == layout:
            return x
        key = (x, layout, self.phase)
        if key not in self._changed:
            made = x
            for change in self.layout(x).changes(layout):
                made = self._change(made, change)
            self._changed[key], self.spread[made] = made, self.spread[made]._replace(origin=self.spread[x].origin or x)
        return self._changed[key]

    def _change(self, x: str, change: Change) -> str:
        spread, module = self.spread[x]._replace(layout=change.layout), x.rpartition("/")[2]
        if change.kind is CollectiveKind.ALL_REDUCE:
            made, self.spread[x] = x, spread
        else:
            again = ".bwd" if self.phase == "backward" and not module.endswith(".grad") else ""
            made = self.add(f"{x}.{_MADE[change.kind]}{again}", spread)
        if change.kind is None:
            self.op(f"{module}.slice", [x], [made], read_bytes=self.made_bytes(made))
        else:
            size_bytes = max(self.made_bytes(x), self.made_bytes(made))
            self.meet(f"{module}.{change.kind}", change.kind, change.axes, size_bytes, [x], [made])
        return made

    # ops with gradients

    def vector(self, name: str, reads: list[str], *, saves: bool = True, adds: bool = False) -> str:
        """Add an op of equal shapes, in the layout of its inputs that is cut most.

        Parameters
        ----------
        name, reads
            The op.
        saves
            Whether its gradients depend on what it took.
        adds
            Whether it adds to the residual, in the layout of that; the gradient of both is that of the sum.
        """
        target = self.residual if adds else max((self.layout(x).whole for x in reads), key=lambda made: made.parts)
        taken = [self.to(x, target) for x in reads]
        out = self.tensor(f"{name}.out", self.spread[taken[0]].width, target, rows=self.spread[taken[0]].rows)
        self.op(name, taken, [out])

        def back(dy: str) -> None:
            if adds:
                self._shared.add(dy)
                self.give(reads, [dy] * len(reads))
                return
            dy, *saved = (self.to(x, self.layout(out)) for x in (dy, *(reads if saves else ())))
            grads = [self.add(f"{x}.grad", self.spread[dy]) for x in reads]
            self.op(name, [dy, *saved], grads)
            self.give(reads, [self.to(grad, self.layout(x).whole) for x, grad in zip(reads, grads, strict=True)])

        return self.record(out, back)

    def norm(self, name: str, x: str, sums: str = "", made: str = "") -> str:
        """Normalise rows, whole or head by head, into a tensor with its own name or this one; the layout stays.

        Gradients of what it took add up in an op that is named after `sums`.
        """
        weight, layout = self.weight(name), self.layout(x)
        out = self.tensor(made or f"{name}.out", self.spread[x].width, layout, rows=self.spread[x].rows)
        self.op(name, [x, self.held[weight.name]], [out])

        def back(dy: str) -> None:
            dy = self.to(dy, layout)
            dx = self.tensor(f"{name}.in.grad", self.spread[x].width, layout)
            old, new = self.grad(weight, layout.cut)
            self.op(name, [x, dy, self.held[weight.name], *old], [dx, *new])
            self.give([x], [dx], sums or name)

        return self.record(out, back)

    def turned(self, name: str, x: str, width: int) -> None:
        """Give so many elements of each row their rotary embedding in place; the gradient is turned back in place."""
        turned_bytes = self.own_tokens * width * self.element_bytes

        def turn(y: str) -> None:
            self.op(name, [y], [y], read_bytes=turned_bytes, write_bytes=turned_bytes)

        def back(dy: str) -> None:
            turn(dy)
            self.give([x], [dy])

        turn(x)
        self.record(x, back)

    def linear(self, name: str, x: str, weight: Weight | None = None) -> str:
        """Multiply rows, or the first elements of them, by a weight; what comes out is cut, or a summand, as that is.

        So is the gradient of what it took. At inference as many experts are read as are expected to be chosen.
        """
        weight, bias = weight or self.weight(name), f"{name}.bias"
        weights = [weight, *([self.weight(bias)] if bias in self.weights[self.block] else [])]
        names = [self.held[one.name] for one in weights]
        *experts, inner, outer = weight.layout.tensor_map
        *_, inputs, outputs = weight.shape
        if weight.name.startswith("embed/"):  # a tied table is used transposed
            inner, outer, inputs, outputs = outer, inner, outputs, inputs
        tokens = tuple(axis for axis in self.layout(x).tensor_map[-2] if axis not in weight.layout.cut)
        taken, made = (_layout(self.mesh, (*experts, tokens, axes)) for axes in (inner, outer))
        inside = self.to(x, taken)
        rows, used = self.spread[x].rows, self.elements(inside) * inputs // self.spread[x].width
        flops = 2 * used * (outputs // self.mesh.size(outer))
        out = self.tensor(f"{name}.out", outputs, _layout(self.mesh, made.tensor_map, inner), rows=rows)
        read_bytes = used * self.element_bytes + sum(map(self.read_bytes, weights))
        self.op(name, [inside, *names], [out], flops=flops, read_bytes=read_bytes)

        def back(dy: str) -> None:
            dy = self.to(dy, made)
            dx = self.tensor(f"{name}.in.grad", inputs, _layout(self.mesh, taken.tensor_map, outer), rows=rows)
            self.op(f"{name}.dgrad", [dy, self.held[weight.name]], [dx], flops=flops)
            saved = self.to(x, taken)
            old, new = map(
                list, map(chain.from_iterable, zip(*(self.grad(one, tokens) for one in weights), strict=True))
            )
            self.op(f"{name}.wgrad", [dy, saved, *old], new, flops=flops)
            self.give([x], [dx], name)

        return self.record(out, back)

    def read_bytes(self, weight: Weight) -> int:
        """What an op reads of a weight [B]: at inference, of experts as many as are expected to be chosen."""
        part, size = self.layer.feed_forward, self.weight_bytes(weight)
        if weight.kind != "expert" or self.phase == "forward" or not isinstance(part, Experts):
            return size
        return (
            size // part.held * -(-chosen_number(part.routed, self.own_tokens * part.ranks, part.top_k) // part.ranks)
        )

    def record(self, out: str, back: Back) -> str:
        """Keep how the gradients of what the last op took are made, if it is of a forward; return what it made."""
        if self.phase == "forward":
            self._backs.setdefault(self.name(""), []).append((out, back))
        return out

    def as_one(self, ops: int) -> None:
        """Let the last so many ops go back in the order of forward."""
        if self.phase == "forward":
            backs = self._backs[self.name("")]
            backs[-ops:] = backs[: -ops - 1 : -1]

    def go_back(self, block: str) -> None:
        """Make all gradients of a block, the last op first."""
        self.block = block
        for out, back in reversed(self._backs.pop(self.name(""))):
            back(self.grads.pop(out, ""))

    def give(self, tensors: list[str], grads: list[str], sums: str = "") -> None:
        """Note gradients of tensors, or add each to what is known of it, in an op that is named after `sums`."""
        for x, grad in zip(tensors, grads, strict=True):
            origin = self.spread[x].origin or x
            known = self.grads.get(origin)
            if known is None:
                self.grads[origin] = grad
                continue
            total, part = (grad, known) if known in self._shared else (known, grad)
            if self.layout(total) != self.layout(part):
                total, part = (self.to(one, self.layout(origin).whole) for one in (total, part))
            self.op(f"{sums}.acc", [total, part], [total])
            self.grads[origin] = total

    def grad(self, weight: Weight, tokens: Axes) -> tuple[list[str], list[str]]:
        """What an op reads and writes that adds to the gradient of a weight; the first one only writes.

        Parameters
        ----------
        weight
            The weight.
        tokens
            Axes that cut the rows over which the op sums.
        """
        known = self.graded.get(weight.name)
        if known is not None:
            return [known], [known]
        micro = self.micro if self.zero_stage > 1 and weight.replicas else ""
        known = self.graded[weight.name] = f"{micro}{weight.name}.grad"
        self.graph.tensor(known, weight.parameters * self.element_bytes, "gradient")
        self.summands[weight.name] = self.mesh.real(tokens)
        return [], [known]
