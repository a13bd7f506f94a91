"""Operators of a PyTorch trace: which become ops, their FLOPs, and the storages that they use."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.formats.residency_json import VIEW
from simulator.importers.imported import FACTS
from simulator.importers.recordings import Event, Recording, Storage, collective_kind, whole

_ALLOCATES = re.compile(r"(new_)?empty(_.*)?|resize_|_resize_.*")
"""ATen ops that only allocate or resize a tensor."""
# ATen ops, besides views, that do no work on the device.
_IDLE = re.compile(FACTS["aten"]["idle"])
_EXPANDS = re.compile("expand(_as)?|broadcast_to|as_strided")
"""Views that may have more elements than their storage."""

# Prefix of a tensor's type, in lower case and without ``c10::`` -> data type; the caller chooses that of float.
_DTYPES = {"half": "fp16", "bfloat16": "bf16", "float8": "fp8", "float": "", "double": "fp64", "char": "int8"}


def base_name(name: str) -> str:
    """Return the name of an ATen op without namespace or overload."""
    return name.rpartition("::")[2].partition(".")[0]


def mutated(schema: str) -> frozenset[int]:
    """Return the positions of the arguments that an op's schema marks as mutated (``Tensor(a!) self``)."""
    inner = schema[:10_000].partition("(")[2].partition(") ->")[0]
    arguments = re.sub(r"\[[^\]]*\]", "", re.sub(r"\([^()!]*(!?)[^()]*\)", r"\1", inner)).split(",")
    arguments = [argument for argument in arguments if argument.strip() != "*"]
    return frozenset(position for position, argument in enumerate(arguments) if "!" in argument)


class TensorView(NamedTuple):
    """A tensor of a trace.

    Attributes
    ----------
    device
        Such as ``cuda:0``.
    """

    tensor: int
    storage: int
    end_bytes: int
    size_bytes: int
    device: str


def views(value: object) -> Iterator[TensorView]:
    """Yield the tensors in a value of a trace, at any depth of nested lists."""
    left = [value]
    while left:
        node = left.pop()
        if not isinstance(node, list):
            continue
        if len(node) == 6 and isinstance(node[5], str) and all(type(field) is int for field in node[:5]):
            tensor, storage, offset, elements, each = map(whole, node[:5])
            yield TensorView(tensor, storage, whole((offset + elements) * each), whole(elements * each), node[5])
        else:
            left.extend(reversed(node))


def _shape(shapes: object, argument: int) -> list[int]:
    """Return the shape of an argument; an empty one if it has none."""
    shape: Any = shapes[argument] if isinstance(shapes, list) and argument < len(shapes) else None
    is_list = isinstance(shape, list) and len(shape) <= 20
    return shape if is_list and all(type(size) is int and 0 <= size < 1 << 40 for size in shape) else []


_FLOPS = {name: figures for names, figures in FACTS["aten"]["flops"].items() for name in names.split()}


def arithmetic(name: str, shapes_in: object, shapes_out: object) -> tuple[str, int]:
    """Return the class of an op and its FLOPs; 0 for one that only moves or maps elements.

    Parameters
    ----------
    name
        With namespace and perhaps overload.
    shapes_in, shapes_out
        Sizes of each argument, and of each result.
    """
    if base_name(name) not in _FLOPS:
        return "vector", 0
    kind, times, first, second, *ends = _FLOPS[base_name(name)]
    rows, others = _shape(shapes_out, 0) if first < 0 else _shape(shapes_in, first), _shape(shapes_in, second)
    return kind, whole(times * math.prod(rows) * math.prod(others[slice(*ends)])) if rows and others else 0


def dtype_of(types: object, of_float: str) -> str:
    """Return the data type of the first tensor in types such as ``["Tensor(float)"]``; `of_float` if unknown."""
    for type_ in types if isinstance(types, list) else ():
        element = re.search(r"Tensor\((?:c10::)?(\w+)", str(type_)[:200])
        prefix = next(filter(element[1].lower().startswith, _DTYPES), None) if element else None
        if prefix:
            return _DTYPES[prefix] or of_float
    return of_float


def is_number(type_: object) -> bool:
    """Tell whether a type such as ``Tensor(long)`` is an integer type."""
    return re.search(r"Tensor\((?:c10::)?(long|int|bool|unsigned|char|short)", str(type_)[:200]) is not None


# Prefix of a node's name -> phase of the ops below it.
_PHASES = {"Optimizer.step#": "update", "autograd::engine::evaluate_function": "backward"}
_ACCUMULATES = "torch::autograd::AccumulateGrad"


class OperatorNode(NamedTuple):
    """An operator of a trace.

    Attributes
    ----------
    id, parent, rf_id
        Ids: its own, its caller's, and its id in Kineto's trace.
    name, schema
        Name and schema; only operators have a schema.
    reads, writes
        Tensors of each argument; tensors that it returns.
    shapes_in, shapes_out, types
        Shapes of arguments and results, and types of arguments.
    more
        Other facts by name, such as those of a collective.
    """

    id: int
    parent: int
    rf_id: int
    name: str
    schema: str
    reads: list[list[TensorView]]
    writes: list[TensorView]
    texts: Sequence[str] = ()
    shapes_in: Any = None
    shapes_out: Any = None
    types: Any = None
    more: Mapping[str, Any] = {}

    @property
    def is_operator(self) -> bool:
        """Whether it may do work on the device itself, beyond views and allocations, and not only call others."""
        is_idle = any(pattern.fullmatch(base_name(self.name)) for pattern in (VIEW, _ALLOCATES, _IDLE))
        return bool(self.schema or self.more.get("kernel_backend") or self.is_collective) and not is_idle

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective of several ranks."""
        return self.name == "record_param_comms" and collective_kind(self.collective) is not None

    @property
    def collective(self) -> str:
        """The name of the collective; in versions without a key for it, its first string argument."""
        return str(self.more.get("collective_name") or next(iter(self.texts), ""))


class Tree:
    """The nodes of a trace, and which of them become ops.

    Parameters
    ----------
    nodes
        By id.

    Attributes
    ----------
    owner
        Id of a node -> id of the node whose op it belongs to.
    phase
        Id of a node -> its phase; ``forward`` if none is known and the trace has a backward phase.
    accumulators
        Ids of nodes that accumulate gradients.
    devices
        Devices that count: all but the CPU, or the CPU if there is no other.
    """

    def __init__(self, nodes: Sequence[OperatorNode]) -> None:
        self.nodes, self.owner, self.phase, self.accumulators = nodes, dict[int, int](), dict[int, str](), set[int]()
        devices = {view.device for node in nodes for some in (node.writes, *node.reads) for view in some} - {""}
        self.devices = frozenset(devices - {"cpu"} or devices)
        working = self._working()
        for node in nodes:
            begins = (phase for name, phase in _PHASES.items() if node.name.startswith(name))
            self.phase[node.id] = next(begins, self.phase.get(node.parent, ""))
            if node.parent in self.accumulators or node.name.startswith(_ACCUMULATES):
                self.accumulators.add(node.id)
            if node.parent in self.owner or node.id in working:
                self.owner[node.id] = self.owner.get(node.parent, node.id)
        if "backward" in self.phase.values():
            self.phase = {node: phase or "forward" for node, phase in self.phase.items()}

    def _working(self) -> set[int]:
        """Return the ids of nodes that do work: no node below them does, or they write what none below writes."""
        working, holders, written_below = set[int](), set[int](), dict[int, set[int]]()
        for node in reversed(self.nodes):
            below, beside = written_below.pop(node.id, set()), written_below.get(node.parent, set())
            fresh = self.storages(node.writes) - self.storages(*node.reads)
            in_place = self.storages(*(node.reads[index] for index in mutated(node.schema) if index < len(node.reads)))
            written = fresh | {~storage for storage in in_place}  # what is made, and what is mutated
            is_at_work = node.is_operator and any(map(self.on_device, (node.writes, *node.reads)))
            if is_at_work and (node.id not in holders or written - below):
                working.add(node.id)
                below |= written
            elif _ALLOCATES.fullmatch(base_name(node.name)):  # writes nothing, unless a sibling then fills it
                below |= {storage for storage in fresh if ~storage in beside}
            if node.parent < node.id:
                small, large = sorted((below, beside), key=len)
                large |= small
                written_below[node.parent] = large
                holders.update({node.parent} if node.id in working or node.id in holders else ())
        return working

    def on_device(self, tensors: list[TensorView]) -> list[TensorView]:
        """Return the tensors that are on the device and not empty."""
        return [view for view in tensors if view.device in self.devices and view.size_bytes]

    def storages(self, *several: list[TensorView]) -> set[int]:
        """Return the ids of the storages of the tensors that are on the device and not empty."""
        return {view.storage for tensors in several for view in self.on_device(tensors)}


class Memory:
    """Storages of a trace, and their use by ops.

    Parameters
    ----------
    tree
        The nodes.
    recording
        Collects the storages.
    """

    def __init__(self, tree: Tree, recording: Recording) -> None:
        self._tree, self._recording, self._storages, self._expanded = tree, recording, dict[int, Storage](), set[int]()

    def _make(self, view: TensorView, kind: str = "activation", *, persistent: bool = False) -> Storage:
        self._storages[view.storage] = storage = self._recording.storage(view.end_bytes, kind, persistent=persistent)
        return storage

    def _enter_reads(self, node: OperatorNode) -> None:
        """Add the storages that a node reads; those that no node made existed before."""
        types = node.types if isinstance(node.types, list) else []
        for argument, tensors in enumerate(node.reads):
            kind = "input" if argument < len(types) and is_number(types[argument]) else "weight"
            for view in self._tree.on_device(tensors):
                storage = self._storages.get(view.storage) or self._make(view, kind, persistent=True)
                if view.tensor not in self._expanded:
                    storage.size_bytes = max(storage.size_bytes, view.end_bytes)

    def fold(self, node: OperatorNode, into: Event | None) -> None:
        """Account for a node that is no op: a view, an allocation, or a caller of other nodes."""
        base = base_name(node.name)
        allocates, expands = _ALLOCATES.fullmatch(base), _EXPANDS.fullmatch(base)
        read = self._tree.storages(*node.reads)
        if into is None:
            self._enter_reads(node)
        for view in self._tree.on_device(node.writes):
            storage = self._storages.get(view.storage)
            if expands:
                self._expanded.add(view.tensor)
            elif allocates and view.storage not in read:
                if into is None:
                    storage = self._make(view)
                elif storage not in into.writes:
                    into.more["workspace_bytes"] = into.more.get("workspace_bytes", 0) + view.end_bytes
            if node.id in self._tree.accumulators and storage is not None:
                storage.kind = "gradient"

    def use(self, node: OperatorNode, op: Event) -> None:
        """Make an op read and write what its node does."""
        self._enter_reads(node)
        in_place, read, made = mutated(node.schema), self._tree.storages(*node.reads), set[int]()
        for argument, tensors in enumerate(node.reads):
            for storage in (self._storages[view.storage] for view in self._tree.on_device(tensors)):
                if storage.is_written:
                    op.reads[storage] = None
                if argument in in_place or not storage.is_written:
                    op.writes[storage] = None
        for view in self._tree.on_device(node.writes):
            if view.storage not in read:
                storage = self._storages[view.storage] if view.storage in made else self._make(view)
                made.add(view.storage)
                storage.size_bytes = max(storage.size_bytes, view.end_bytes)
                op.writes[storage] = None
            elif not node.schema:
                op.writes[self._storages[view.storage]] = None
        for storage in op.writes:
            storage.is_written = True
            if node.id in self._tree.accumulators:
                storage.kind = "gradient"
