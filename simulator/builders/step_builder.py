"""Build the step of one rank: tensors and their layouts, ops, and the collectives that changes of layout take."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Unpack, cast

from simulator.builders.specs import BATCH, TENSOR
from simulator.builders.weights import Laid, replica_axes
from simulator.graph import HOST, Collective, CollectiveKind, DynamicReads
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.layout import Axes, Layout, LayoutChange, Weight
from simulator.workload import Gqa, Layer, Mixer

_MADE: dict[CollectiveKind | None, str] = {None: "slice", CollectiveKind.ALL_GATHER: "gathered"}
_MADE |= {CollectiveKind.REDUCE_SCATTER: "scattered", CollectiveKind.ALL_TO_ALL: "exchanged"}
"""End of the name of a tensor that a change of layout makes."""


_SHORT = {"forward": "fwd", "backward": "bwd"}
"""Phase -> its part of the names of ops, if that is shorter."""

Rows = tuple[int, ...]
Cut = tuple[tuple[Axes, ...], Axes]
"""A layout on the mesh: the axes that cut each dimension, and those of partial sums."""


def _cut(layout: Layout) -> Cut:
    return layout.tensor_map, layout.partial


class Spread(NamedTuple):
    """A tensor and how it is spread: rows (tokens of all replicas; or experts, and rows of each), then features.

    Attributes
    ----------
    rows, width
        Shape of the whole tensor.
    layout, element_bytes
        How it is cut, and the size of an element [B].
    origin
        The tensor that this one is another layout of, if it is one.
    elements
        Number of elements on this rank, once the tensor has a name.
    """

    rows: Rows
    width: int
    layout: Layout
    element_bytes: int
    origin: str = ""
    elements: int = 0

    @property
    def size_bytes(self) -> int:
        """Size on this rank [B]."""
        return self.elements * self.element_bytes


PendingOp = tuple[bool, tuple[str, list[str], list[str], str], OpFields]
"""Whether an op runs again within backward; its name, reads, writes and kind; and more fields."""


class StepBuilder:
    """Builder of the step of one rank: it adds ops to the current micro-batch, block and phase.

    Names of ops and tensors are relative to `micro` and `block` (``mb0/L03``); what methods return, and take as
    tensors, are full names. Widths are elements per row of the whole model; what a rank holds follows from layouts.

    Parameters
    ----------
    laid
        The workload, and the weights of its model on the ranks.
    name
        Name of the graph.
    rows
        Tokens that run together, on all replicas; default: those of a micro-batch.
    """

    def __init__(self, laid: Laid, name: str = "", rows: int = 0) -> None:
        workload, self.model, self.mesh, self.weights, self.layers, self.attentions = laid
        self.workload, self.where = workload, f"workload {workload.name}"
        self.graph = GraphBuilder(name or workload.name, self.where)
        self.batch = replica_axes(self.mesh)
        self.rows = (rows or workload.batch * workload.sequence * self.mesh.size(BATCH),)
        self.dtype, self.element_bytes = workload.dtypes.compute, workload.dtypes.element_bytes
        self.zero_stage = workload.parallel.zero_stage if self.replicas > 1 else 0
        self._layouts: dict[Cut, Layout] = {}
        self.whole_rows = self.cut()
        self.residual = self.cut((), (*self.batch, *(TENSOR if workload.parallel.sequence else ())))
        self.micro, self.block, self.phase = "", "", "forward"
        self.is_eager = workload.kernels == "eager"
        self.mixer = "attn"  # or "state", the part beside attention; or "ffn", which shifts rows
        self.on_host = {part: workload.on.blocks(part, [*self.layers]) for part in ("layers", "experts")}
        self.again = ""  # end of the names of tensors that are made again within backward
        self.last_keys: dict[object, tuple[str, list[str]]] = {}  # what layers share -> the last one, keys and values
        self.wanting = set[str]()  # tensors that have a gradient, and weights that are trained
        self.pending: list[PendingOp] | None = None  # ops to be added later
        self.kinds: dict[str, str] = {}  # last part of a name -> kind of tensor, if not an activation
        self.spread: dict[str, Spread] = {}
        self.held: dict[str, str] = {}  # weight, or other tensor declared once -> the tensor that ops read for it
        self._stands_for: dict[str, str] = {}  # another name of a tensor -> its own
        self._narrow = set[str]()  # other names of a part of each row
        self._changed: dict[tuple[str, Cut, str], str] = {}  # tensor, layout, phase -> tensor in that layout
        self._changes: dict[tuple[Cut, Cut], list[LayoutChange]] = {}  # from a layout to another

    # the current layer

    @property
    def layer(self) -> Layer:
        """The parts of the current layer."""
        return self.layers[self.block]

    @property
    def attention(self) -> Mixer:
        """The attention of the current layer, which has one, with the heads of this rank."""
        part = self.attentions[self.block]
        return cast(Mixer, part.beside if self.mixer == "state" else part)

    @property
    def whole_attention(self) -> Mixer:
        """The same with the heads of all ranks."""
        part = self.layer.attention
        return cast(Mixer, part.beside if self.mixer == "state" else part)

    @property
    def token_bytes(self) -> int:
        """Size of a token in the KV cache of the current layer, or of that which it reuses, on this rank [B]."""
        part = self.attention
        elements = part.seen_elements if isinstance(part, Gqa) and part.reuses else part.kv_elements
        return elements * self.workload.dtypes.kv_bytes

    @property
    def keeper(self) -> str:
        """The layer whose keys and values the current one attends to: itself, or the last one alike before it."""
        part = self.attention
        return self.last_keys[part.alike][0] if isinstance(part, Gqa) and part.reuses else self.block

    @property
    def own_tokens(self) -> int:
        """Number of tokens in the samples of this rank."""
        return prod(self.rows) // self.replicas

    @property
    def replicas(self) -> int:
        """Number of replicas, which have tokens of their own."""
        return self.mesh.size(self.batch)

    @property
    def is_forward(self) -> bool:
        """Whether ops are those of forward: for the first time, or again within backward."""
        return self.phase in {"forward", "again"}

    # names and tensors

    def name(self, tensor: str) -> str:
        """Return the full name of a tensor of the current block."""
        return f"{self.micro}{self.block}/{tensor}{self.again}"

    def cut(self, features: Axes = (), tokens: Axes | None = None, partial: Axes = ()) -> Layout:
        """Return the layout of rows cut along `tokens` (default: the batch), and of features cut along `features`."""
        return self.lay_out((self.batch if tokens is None else tokens, features), partial)

    def lay_out(self, tensor_map: tuple[Axes, ...], partial: Axes = ()) -> Layout:
        """Return a layout on the mesh; a model has few, and each is made once."""
        if (tensor_map, partial) not in self._layouts:
            self._layouts[tensor_map, partial] = Layout(self.mesh, tensor_map, partial)
        return self._layouts[tensor_map, partial]

    def tensor(self, name: str, width: int, layout: Layout | None = None, size: int = 0, rows: Rows = ()) -> str:
        """Add an activation of `width` elements a row to the current block; return its name.

        By default rows are cut along the batch, and are all tokens; `size` is that of an element [B], by default of the
        model's data type.
        """
        spread = Spread(rows or self.rows, width, layout or self.whole_rows, size or self.element_bytes)
        return self.add(self.name(name), spread)

    def of_heads(self, name: str, width: int, rows: Rows = ()) -> str:
        """Add an activation with `width` elements a row for this rank's heads; return its name."""
        whole = tuple(self.replicas * count for count in rows)
        return self.tensor(name, width * self.mesh.size(TENSOR), self.cut(TENSOR), rows=whole)

    def add(self, name: str, spread: Spread, layout: Layout | None = None) -> str:
        """Add an activation by its full name and its spread, perhaps in another layout; return the name."""
        layout = layout or spread.layout
        elements = prod(layout.local_shape((*spread.rows, spread.width), self.where, name))
        made = self.spread[name] = spread._replace(layout=layout, elements=elements)
        if self.phase != "again":  # else it is declared once its op is known to run again
            kind = self.kinds.get(name.rpartition("/")[2], "activation") if self.kinds else "activation"
            self.graph.tensor(name, made.size_bytes, kind)
        return name

    def alias(self, name: str, end: str, width: int = 0) -> str:
        """Return another name to read a tensor by, or `width` elements of each row; no gradient goes back by it."""
        other, spread = f"{name}.{end}", self.spread[name]
        if width:
            self._narrow.add(other)
            spread = spread._replace(width=width, elements=spread.elements * width // spread.width)
        self.spread[other], self._stands_for[other] = spread._replace(origin=""), name
        return other

    def made_bytes(self, *names: str) -> int:
        """Return the size of activations on this rank, together [B]."""
        return sum(self.spread[name].size_bytes for name in names)

    def weight(self, name: str) -> Weight:
        """Return a weight of the current block, declared when it is first named; if trained, it wants a gradient."""
        weight = self.weights[self.block][name]
        self.declare(weight.name, weight.size_bytes, weight.kind)
        if weight.is_trained:
            self.wanting.add(self.held[weight.name])
        return weight

    def declare(self, name: str, size_bytes: int, kind: str) -> str:
        """Add a persistent tensor [B] unless it is there."""
        if name not in self.held:
            self.graph.tensor(name, size_bytes, kind, persistent=True)
            self.held[name] = name
        return name

    def given(self, name: str, width: int, rows: int) -> str:
        """Declare an input of so many rows, on all replicas, that another program makes."""
        elements = prod(self.whole_rows.local_shape((rows, width), self.where, name))
        self.spread[name] = Spread((rows,), width, self.whole_rows, self.element_bytes, "", elements)
        return self.declare(name, elements * self.element_bytes, "input")

    def join_rows(self, x: str, rows: int) -> None:
        """Let so many neighbouring rows of a tensor be one from here on."""
        spread = self.spread[x]
        self.spread[x] = spread._replace(rows=(spread.rows[0] // rows,), width=spread.width * rows)

    # ops

    def op_name(self, name: str) -> str:
        """Return the full name of an op of the current block and phase."""
        return f"{self.micro}{self.block}/{_SHORT.get(self.phase, self.phase)}/{name}"

    def op(self, name: str, reads: Iterable[str], writes: Iterable[str], **more: Unpack[OpFields]) -> None:
        """Add an op of the current block and phase; if it has FLOPs, its class is ``matmul`` by default."""
        is_again, reads, made = self.phase == "again", [*reads], [*writes]
        more["phase"] = "backward" if is_again else self.phase
        if "dtype" not in more:
            more["dtype"] = self.dtype
        if more.get("flops") and "op_class" not in more:
            more["op_class"] = "matmul"
        if self.block in self.on_host["layers"]:
            more["device"] = HOST
        if self.is_forward and not self.wanting.isdisjoint(reads):
            self.wanting.update(made)
        if self._narrow and not self._narrow.isdisjoint(reads):
            more.setdefault("read_bytes", self.made_bytes(*(x for x in reads if x in self.spread)))
        names = [self._stands_for.get(x, x) for x in reads] if self._stands_for else reads
        op = self.op_name(name), names, made, "collective" if more.get("collective") else "compute"
        if self.pending is None:
            self.graph.op(*op, **more)
        else:
            self.pending.append((is_again, op, more))

    def multiply(
        self, name: str, reads: list[str], read_bytes: int, *, rows: int = 0, made: Rows = (0, 0), out: str = ""
    ) -> str:
        """Multiply each head's part of rows (default: all tokens) by its part of a weight; without gradients.

        Parameters
        ----------
        name
            Name of the op and of its weight.
        reads, read_bytes
            Other inputs, and how much of them is read [B].
        rows
            Number of rows of this rank.
        made
            Rows of this rank that exist at a time, and elements of each row of the output; default: all rows, as wide
            as the weight.
        out
            Tensor that the output is a part of; default: a tensor of its own.
        """
        weight, rows = self.weight(name), rows or self.own_tokens
        ready = self.converted_weight(name, weight)
        layout = self.cut(weight.layout.tensor_map[-1])
        rows_of_all = (self.replicas * (made[0] or rows),)
        out = out or self.tensor(f"{name}.out", made[1] or weight.shape[-1], layout, rows=rows_of_all)
        read_bytes += self.read_bytes(weight)
        write_bytes = self.spread[out].size_bytes * self.replicas * rows // self.spread[out].rows[0]
        work = OpFields(flops=2 * rows * weight.parameters, read_bytes=read_bytes, write_bytes=write_bytes)
        self.op(name, [*reads, ready], [out], **work | self.product(weight))
        return out

    def is_packed(self, weight: Weight) -> bool:
        """Return whether a weight is stored in another format than that of activations."""
        return weight.size_bytes != weight.parameters * self.element_bytes

    def product(self, weight: Weight) -> OpFields:
        """Return the data type in which a weight multiplies, and the class of its kernels, which may convert it."""
        dtype = self.workload.dtypes.arithmetic if self.is_packed(weight) else self.dtype
        bits = 16 if dtype or self.workload.dequantizes_before else 8 * weight.size_bytes // weight.parameters
        kernels = "matmul_w4" if bits < 8 else "matmul_w8" if bits < 16 else "matmul"
        return {"dtype": dtype or self.dtype, "op_class": kernels}

    def converted_weight(self, name: str, weight: Weight) -> str:
        """Return the tensor that an op reads for a weight: as it is stored, or one that an op made ready before."""
        if not (self.is_packed(weight) and self.workload.dequantizes_before):
            return self.held[weight.name]
        again = ".bwd" if self.phase == "backward" else self.again
        spread = Spread(weight.shape[:-1], weight.shape[-1], weight.layout, self.element_bytes)
        made = self.add(f"{self.micro}{weight.name}.ready{again}", spread)
        ready_bytes = self.read_bytes(weight)  # of experts only as many are made ready as are read
        work = OpFields(op_class="dequantize", write_bytes=ready_bytes)
        work["read_bytes"] = weight.size_bytes * ready_bytes // (weight.parameters * self.element_bytes)
        self.op(f"{name}.ready", [self.held[weight.name]], [made], **work)
        return made

    def read_bytes(self, weight: Weight) -> int:
        """Return what an op reads of a weight [B], made ready or as it is stored."""
        is_as_stored = self.is_packed(weight) and not self.workload.dequantizes_before
        return weight.size_bytes if is_as_stored else weight.parameters * self.element_bytes

    def dynamic_reads(
        self, op: str, revealed_by: str, candidates: list[str], *, samples: int, each: int
    ) -> DynamicReads:
        """Return the dynamic reads of the op of the current block that is added next."""
        return self.graph.dynamic_reads(
            self.op_name(op), self.op_name(revealed_by), candidates, samples=samples, each=each
        )

    def meet(
        self, name: str, kind: CollectiveKind, along: str | Axes, size_bytes: int, reads: list[str], writes: list[str]
    ) -> None:
        """Add a collective of so many bytes: of a group, or of the ranks that differ along some axes only."""
        group = along if isinstance(along, str) else ".".join(along)
        if group not in self.graph.groups:
            self.graph.group(group, self.mesh.members(along))
        self.op(name, reads, writes, collective=Collective(kind, group, size_bytes))

    def copies_group(self, copies: int) -> str:
        """Return the group of neighbouring tensor ranks that hold the same KV heads, so many at a time."""
        name = f"tensor.copies{copies}"
        if name not in self.graph.groups:
            lines = self.mesh.members(TENSOR)
            self.graph.group(name, [line[i : i + copies] for line in lines for i in range(0, len(line), copies)])
        return name

    def to(self, x: str, layout: Layout) -> str:
        """Bring a tensor into a layout by the collectives that it takes; once in each phase of a micro-batch."""
        spread = self.spread[x]
        if spread.layout is layout or spread.layout == layout:
            return x
        key, way = (x, _cut(layout), self.phase), (_cut(spread.layout), _cut(layout))
        if key in self._changed:
            return self._changed[key]
        made = x
        if way not in self._changes:
            self._changes[way] = spread.layout.changes(layout)
        for change in self._changes[way]:
            taken, module = made, made.rpartition("/")[2]
            if change.kind is CollectiveKind.ALL_REDUCE:
                self.spread[taken] = self.spread[taken]._replace(layout=change.layout)
            else:
                end = ".bwd" if self.phase == "backward" and not module.endswith(".grad") else self.again
                made = self.add(f"{taken}.{_MADE[change.kind]}{end}", self.spread[taken], change.layout)
            made_bytes = self.spread[made].size_bytes
            if change.kind is None:
                self.op(f"{module}.slice", [taken], [made], read_bytes=made_bytes)
            else:
                size_bytes = max(self.spread[taken].size_bytes, made_bytes)
                self.meet(f"{module}.{change.kind}", change.kind, change.axes, size_bytes, [taken], [made])
        self._changed[key], self.spread[made] = made, self.spread[made]._replace(origin=self.spread[x].origin or x)
        return made
