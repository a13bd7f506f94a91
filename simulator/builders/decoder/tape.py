"""Writes down what one rank runs: ops with the tensors that they make, and the collectives that layouts ask for."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Unpack

from simulator.builders.decoder.weights import BATCH, size_bytes
from simulator.graph import Collective, CollectiveKind, Late
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.layout import Axes, Change, Layout, Mesh, Weight
from simulator.workload import Workload

FP32_BYTES = 4
ID_BYTES = 4

_MADE = {
    None: "slice",
    CollectiveKind.ALL_GATHER: "gathered",
    CollectiveKind.REDUCE_SCATTER: "scattered",
    CollectiveKind.ALL_TO_ALL: "exchanged",
}
"""What a change of layout calls the tensor that it makes."""


def blocks(layers: int) -> list[str]:
    """Names of the layers, padded so that they sort: ``L00``, ``L01`` ..."""
    return numbered("L", layers, 2)


def numbered(prefix: str, count: int, digits: int = 1) -> list[str]:
    """Names with numbers of equal width, so that they sort.

    Parameters
    ----------
    prefix
        What comes before the number.
    count
        How many.
    digits
        Least width of the number.
    """
    width = max(digits, len(str(count - 1)))
    return [f"{prefix}{i:0{width}d}" for i in range(count)]


class Spread(NamedTuple):
    """A tensor and how it is spread: rows (tokens of all replicas; or experts, and rows of each), then features."""

    rows: tuple[int, ...]
    width: int
    layout: Layout
    element_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return (*self.rows, self.width)


class Meeting(NamedTuple):
    """A collective of the ranks that differ along some axes only, and its size [B]."""

    kind: CollectiveKind
    axes: Axes
    size_bytes: int


class _Linear(NamedTuple):
    """What a linear's backward has to know of its forward."""

    x: str
    taken: Layout
    weight: Weight
    inputs: int
    outer: Axes
    flops: int


class Tape:
    """Writes down the step of one rank: ops of the current micro-batch, block and phase.

    Names of ops and tensors are relative to `micro` and `block` (``mb0/L03``); what methods return, and take as
    tensors, are full names. Widths are elements per row of the whole model; what a rank holds follows from layouts.

    Parameters
    ----------
    workload
        What runs.
    mesh
        The ranks.
    weights
        All weights of the model, by name.
    name
        Of the graph.
    rows
        Tokens that run together, on all replicas; default: those of a micro-batch.
    """

    def __init__(self, workload: Workload, mesh: Mesh, weights: dict[str, Weight], name: str, rows: int = 0) -> None:
        self.where = f"workload {workload.name}"
        self.graph = GraphBuilder(name, self.where)
        self.mesh, self.weights = mesh, weights
        self.rows = (rows or workload.batch * workload.sequence * mesh.size(BATCH),)
        self.dtypes, self.dtype = workload.dtypes, workload.dtypes.compute
        self.element_bytes = workload.dtypes.element_bytes
        self.experts = workload.experts
        self.zero_stage = workload.parallel.zero_stage if mesh.size(BATCH) > 1 else 0
        self.micro, self.block, self.phase = "", "", "forward"
        self.kinds: dict[str, str] = {}  # last part of a name -> kind of tensor, where that is not an activation
        self.spread: dict[str, Spread] = {}
        self.held: dict[str, str] = {}  # weight -> what ops read for it
        self.graded: dict[str, str] = {}  # weight -> its gradient in this micro-batch, or of all so far
        self.summands: dict[str, Axes] = {}  # gradient -> axes along which replicas hold a summand of it
        self._linears: dict[str, _Linear] = {}
        self._changed: dict[tuple[str, Layout, str], str] = {}
        self._groups: set[str] = set()

    # names and tensors

    def name(self, tensor: str) -> str:
        """Full name of a tensor of the current block."""
        return f"{self.micro}{self.block}/{tensor}"

    def cut(self, features: Axes = (), tokens: Axes = BATCH, partial: Axes = ()) -> Layout:
        """The layout of rows cut along `tokens`, and of features cut along `features`."""
        return Layout(self.mesh, (tokens, features), partial)

    def tensor(self, name: str, width: int, layout: Layout, element_bytes: int = 0, rows: tuple[int, ...] = ()) -> str:
        """Add an activation of so many elements a row (of all tokens, unless `rows` is given); return its name."""
        return self._add(self.name(name), Spread(rows or self.rows, width, layout, element_bytes))

    def _add(self, name: str, spread: Spread) -> str:
        self.spread[name] = spread = spread._replace(element_bytes=spread.element_bytes or self.element_bytes)
        kind = self.kinds.get(name.rpartition("/")[2], "activation")
        self.graph.tensor(name, self.made_bytes(name), kind)
        return name

    def elements(self, name: str) -> int:
        """How many elements of a tensor this rank holds."""
        return self.layout(name).local_elements(self.spread[name].shape, f"{self.where}, {name}")

    def made_bytes(self, *names: str) -> int:
        """Size of what this rank holds of activations [B]."""
        return sum(self.elements(name) * self.spread[name].element_bytes for name in names)

    def tokens(self, name: str) -> int:
        """How many rows of a tensor this rank holds."""
        return prod(self.layout(name).local_shape(self.spread[name].shape)[:-1])

    @property
    def own_tokens(self) -> int:
        """How many tokens the samples of this rank have."""
        return prod(self.rows) // self.mesh.size(BATCH)

    def layout(self, name: str) -> Layout:
        """How a tensor is spread now."""
        return self.spread[name].layout

    def weight(self, name: str) -> Weight:
        """A weight of the current block; its tensor is declared when it is first named."""
        weight = self.weights[f"{self.block}/{name}.weight"]
        if weight.name not in self.held:
            self.graph.tensor(weight.name, self.weight_bytes(weight), weight.kind, persistent=True)
            self.held[weight.name] = weight.name
        return weight

    def weight_bytes(self, weight: Weight) -> int:
        """What this rank holds of a weight [B]."""
        return size_bytes(weight, self.dtypes, self.element_bytes)

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
        if known is None:
            micro = self.micro if self.zero_stage > 1 and weight.replicas else ""
            known = self.graded[weight.name] = f"{micro}{weight.name}.grad"
            self.graph.tensor(known, weight.parameters * self.element_bytes, "gradient")
            self.summands[weight.name] = self.mesh.real(tokens)
            return [], [known]
        return [known], [known]

    # ops

    def op_name(self, name: str) -> str:
        """Full name of an op of the current block and phase."""
        short = {"forward": "fwd", "backward": "bwd"}.get(self.phase, self.phase)
        return f"{self.micro}{self.block}/{short}/{name}"

    def op(self, name: str, reads: Iterable[str], writes: Iterable[str], **more: Unpack[OpFields]) -> None:
        """Add an op of the current block and phase."""
        more["phase"] = self.phase
        more.setdefault("dtype", self.dtype)
        kind = "collective" if more.get("collective") else "compute"
        self.graph.op(self.op_name(name), reads, writes, kind, **more)

    def late(self, op: str, revealed_by: str, candidates: list[str], *, samples: int, each: int) -> Late:
        """Late reads of the op of the current block that is added next."""
        return self.graph.late(self.op_name(op), self.op_name(revealed_by), candidates, samples=samples, each=each)

    def meet(self, name: str, reads: list[str], writes: list[str], about: Meeting) -> None:
        """Add a collective of the ranks that differ along some axes only."""
        group = ".".join(about.axes)
        if group not in self._groups:
            self._groups.add(group)
            self.graph.group(group, self.mesh.members(about.axes))
        self.op(name, reads, writes, collective=Collective(about.kind, group, about.size_bytes))

    def message(self, kind: CollectiveKind, tensor: str, group: str, to: int) -> None:
        """Send a tensor to the rank that is `to` stages further, or receive it from the one that is `to` before."""
        if group not in self._groups:
            self._groups.add(group)
            self.graph.group(group, self.mesh.shifted("pipeline", to))
        reads, writes = ([tensor], []) if kind is CollectiveKind.SEND else ([], [tensor])
        self.op(str(kind), reads, writes, collective=Collective(kind, group, self.made_bytes(tensor)))

    def to(self, x: str, layout: Layout) -> str:
        """Bring a tensor into a layout by the collectives that it takes; once in each phase of a micro-batch."""
        if self.layout(x) == layout:
            return x
        key = (x, layout, self.phase)
        if key not in self._changed:
            found = x
            for change in self.layout(x).changes(layout):
                found = self._change(found, change)
            self._changed[key] = found
        return self._changed[key]

    def _change(self, x: str, change: Change) -> str:
        spread, module = self.spread[x], x.rpartition("/")[2]
        if change.kind is CollectiveKind.ALL_REDUCE:
            self.spread[x] = spread._replace(layout=change.layout)
            self.meet(f"{module}.all_reduce", [x], [x], Meeting(change.kind, change.axes, self.made_bytes(x)))
            return x
        again = ".bwd" if self.phase == "backward" and not module.endswith(".grad") else ""
        made = self._add(f"{x}.{_MADE[change.kind]}{again}", spread._replace(layout=change.layout))
        if change.kind is None:
            self.op(f"{module}.slice", [x], [made], read_bytes=self.made_bytes(made))
        else:
            about = Meeting(change.kind, change.axes, max(self.made_bytes(x), self.made_bytes(made)))
            self.meet(f"{module}.{change.kind}", [x], [made], about)
        return made

    def vector(self, name: str, reads: list[str], layout: Layout | None = None) -> str:
        """Add an op of equal shapes: in the given layout, or else in the one of its inputs that is cut most."""
        target = layout or self._most_cut(reads)
        reads = [self.to(x, target) for x in reads]
        out = self.tensor(f"{name}.out", self.spread[reads[0]].width, target, rows=self.spread[reads[0]].rows)
        self.op(name, reads, [out])
        return out

    def _most_cut(self, names: list[str]) -> Layout:
        return max((self.layout(x).whole for x in names), key=lambda layout: layout.parts)

    def vector_backward(self, name: str, dy: str, saved: list[str], modules: tuple[str, ...]) -> list[str]:
        """Compute the gradients of what `modules` put out, each in the layout of what it is the gradient of."""
        target = self.layout(self.name(f"{name}.out"))
        dy, saved = self.to(dy, target), [self.to(x, target) for x in saved]
        rows, width = self.spread[dy].rows, self.spread[dy].width
        grads = [self.tensor(f"{module}.out.grad", width, target, rows=rows) for module in modules]
        self.op(name, [dy, *saved], grads)
        return [
            self.to(grad, self.layout(self.name(f"{module}.out")).whole)
            for grad, module in zip(grads, modules, strict=True)
        ]

    def accumulate(self, name: str, total: str, part: str, layout: Layout | None = None) -> str:
        """Add `part` to `total` in place; if one is a summand or cut otherwise, both come into `layout` first."""
        if self.layout(total) != self.layout(part):
            target = layout or self._most_cut([total, part])
            total, part = self.to(total, target), self.to(part, target)
        self.op(f"{name}.acc", [total, part], [total])
        return total

    def norm(self, name: str, x: str) -> str:
        """Normalise rows; the layout stays."""
        weight = self.weight(name)
        out = self.tensor(f"{name}.out", self.spread[x].width, self.layout(x), rows=self.spread[x].rows)
        self.op(name, [x, self.held[weight.name]], [out])
        return out

    def norm_backward(self, name: str, x: str, dy: str) -> str:
        """Compute the gradients of what a norm took, and of its weight."""
        weight, layout = self.weight(name), self.layout(x)
        dy = self.to(dy, layout)
        dx = self.tensor(f"{name}.in.grad", self.spread[x].width, layout)
        old, new = self.grad(weight, layout.tensor_map[0])
        self.op(name, [x, dy, self.held[weight.name], *old], [dx, *new])
        return dx

    def linear(self, name: str, x: str, weight: Weight | None = None) -> str:
        """Multiply rows by a weight; what comes out is cut, or a summand, as the weight is."""
        weight = weight or self.weight(name)
        *experts, inner, outer = weight.layout.tensor_map
        *_, inputs, outputs = weight.shape
        if weight.name.startswith("embed/"):  # a tied table is used transposed
            inner, outer, inputs, outputs = outer, inner, outputs, inputs
        tokens = tuple(axis for axis in self.layout(x).tensor_map[-2] if axis not in weight.layout.cut)
        taken = Layout(self.mesh, (*experts, tokens, inner))
        source, x = x, self.to(x, taken)
        made = Layout(self.mesh, (*experts, tokens, outer), inner)
        out = self.tensor(f"{name}.out", outputs, made, rows=self.spread[x].rows)
        flops = 2 * self.elements(x) * (outputs // self.mesh.size(outer))
        self._linears[self.name(name)] = linear = _Linear(source, taken, weight, inputs, outer, flops)
        self._matmul(name, linear, [x, self.held[weight.name]], [out])
        return out

    def linear_backward(self, name: str, dy: str) -> str:
        """Compute the gradients of what a linear took (cut, or a summand, as its weight is), and of its weight."""
        linear = self._linears[self.name(name)]
        *experts, tokens, inner = linear.taken.tensor_map
        dy = self.to(dy, Layout(self.mesh, (*experts, tokens, linear.outer)))
        made = Layout(self.mesh, (*experts, tokens, inner), linear.outer)
        dx = self.tensor(f"{name}.in.grad", linear.inputs, made, rows=self.spread[dy].rows)
        self._matmul(f"{name}.dgrad", linear, [dy, self.held[linear.weight.name]], [dx])
        x = self.to(linear.x, linear.taken)
        old, new = self.grad(linear.weight, tokens)
        self._matmul(f"{name}.wgrad", linear, [dy, x, *old], new)
        return dx

    def _matmul(self, name: str, linear: _Linear, reads: list[str], writes: list[str]) -> None:
        self.op(name, reads, writes, flops=linear.flops, op_class="matmul")
