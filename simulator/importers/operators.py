"""Operators of a trace of PyTorch: which become ops, how much arithmetic they are, and what storages they use."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.formats.residency_json import VIEW
from simulator.importers.recordings import Event, Recording, Storage, collective_kind, whole

Shape = list[int]

MAKES = re.compile(r"(new_)?empty(_.*)?|resize_|_resize_.*")
"""ATen ops that only make room for a tensor, or change it."""
# ATen ops that do no work on the device, beside views.
_IDLE = re.compile(
    "result_type|lift_fresh|set_|(detach|squeeze|unsqueeze|t|as_strided|transpose)_|is_.*|size|stride|numel|to"
    "|contiguous|type_as|resolve_(conj|neg)|record_stream|pin_memory|can_cast|_has_.*|_version|requires_grad_|retain_grad"
)
STRETCHES = re.compile("expand(_as)?|broadcast_to|as_strided")
"""Views with more elements than there is memory."""

# How types of tensors begin, lower case and without ``c10::`` -> data types of hosim; of float the caller chooses.
_DTYPES = {"half": "fp16", "bfloat16": "bf16", "float8": "fp8", "float": "", "double": "fp64", "char": "int8"}


def plain(name: str) -> str:
    """The name of an ATen op without namespace and overload."""
    return name.rpartition("::")[2].partition(".")[0]


def works(name: str) -> bool:
    """Whether an op of this name does work on the device, beyond views and making room."""
    base = plain(name)
    return not (VIEW.fullmatch(base) or MAKES.fullmatch(base) or _IDLE.fullmatch(base))


def changed(schema: str) -> frozenset[int]:
    """Positions of the arguments that an op's schema marks as changed (``Tensor(a!) self``)."""
    inner = schema[:10_000].partition("(")[2].partition(") ->")[0]
    named = re.sub(r"\[[^\]]*\]", "", re.sub(r"\([^()!]*(!?)[^()]*\)", r"\1", inner)).split(",")
    return frozenset(at for at, one in enumerate(one for one in named if one.strip() != "*") if "!" in one)


class TensorView(NamedTuple):
    """A tensor as a trace names it.

    Attributes
    ----------
    tensor, storage
        Ids.
    until_bytes, size_bytes
        Where it ends in its storage, and what it has [B].
    device
        Such as ``cuda:0``.
    """

    tensor: int
    storage: int
    until_bytes: int
    size_bytes: int
    device: str


def views(value: object) -> Iterator[TensorView]:
    """Find the tensors in a value of a trace, however deep they lie in lists."""
    left = [value]
    while left:
        one = left.pop()
        if not isinstance(one, list):
            continue
        if len(one) == 6 and isinstance(one[5], str) and all(type(number) is int for number in one[:5]):
            tensor, storage, offset, elements, each = map(whole, one[:5])
            yield TensorView(tensor, storage, whole((offset + elements) * each), whole(elements * each), one[5])
        else:
            left.extend(reversed(one))


def _sizes(shapes: object, at: int) -> Shape:
    """The shape of an argument; empty if it is none."""
    shape: Any = shapes[at] if isinstance(shapes, list) and at < len(shapes) else None
    is_list = isinstance(shape, list) and len(shape) <= 20
    return shape if is_list and all(type(size) is int and 0 <= size < 1 << 40 for size in shape) else []


_LAST, _FIRST, _INNER, _KEYS = slice(-1, None), slice(1), slice(1, None), slice(-2, -1)
# Op -> its class, and its FLOPs: so many times the elements of an argument (-1: of the result) and these sizes of
# another one; of attention without a mask. Backward of a convolution is two such products; of attention five of
# forward's two.
_FLOPS: dict[str, tuple[str, int, int, int, slice]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_scaled_mm", "_int_mm"), ("matmul", 2, 0, 1, _LAST)),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "_addmm_activation"),
                    ("matmul", 2, 1, 2, _LAST)),
    **dict.fromkeys(("linear", "mkldnn_linear", "_mkl_linear"), ("matmul", 2, 0, 1, _FIRST)),
    **dict.fromkeys(
        ("convolution", "_convolution", "conv1d", "conv2d", "conv3d", "cudnn_convolution", "mkldnn_convolution",
         "miopen_convolution", "cudnn_convolution_relu", "_slow_conv2d_forward", "thnn_conv2d"),
        ("matmul", 2, -1, 1, _INNER),
    ),
    "convolution_backward": ("matmul", 4, 0, 2, _INNER),
    **{
        f"_scaled_dot_product_{kind}_attention{back}": ("attention", times, first, first + 1, _KEYS)
        for kind in ("flash", "efficient", "cudnn", "fused")
        for back, times, first in (("", 4, 0), ("_backward", 10, 1))
    },
}  # fmt: skip


def arithmetic(name: str, shapes_in: object, shapes_out: object) -> tuple[str, int]:
    """Class of an op, and its FLOPs; none of what only moves or maps elements.

    Parameters
    ----------
    name
        With namespace, and perhaps overload.
    shapes_in, shapes_out
        Lists of sizes, argument for argument.
    """
    if plain(name) not in _FLOPS:
        return "vector", 0
    kind, times, first, second, part = _FLOPS[plain(name)]
    rows, others = _sizes(shapes_out, 0) if first < 0 else _sizes(shapes_in, first), _sizes(shapes_in, second)
    return kind, whole(times * math.prod(rows) * math.prod(others[part])) if rows and others else 0


def dtype_of(types: object, of_float: str) -> str:
    """The data type of the first tensor in a list of types such as ``["Tensor(float)"]``; if unknown, `of_float`."""
    for type_ in types if isinstance(types, list) else ():
        found = re.search(r"Tensor\((?:c10::)?(\w+)", str(type_)[:200])
        match = found and next((one for one in _DTYPES if found[1].lower().startswith(one)), None)
        if match:
            return _DTYPES[match] or of_float
    return of_float


def is_number(type_: object) -> bool:
    """Whether a type such as ``Tensor(float)`` is that of whole numbers."""
    return re.search(r"Tensor\((?:c10::)?(long|int|bool|unsigned|char|short)", str(type_)[:200]) is not None


# How the names of what holds ops begin -> their phase.
_PHASES = {"Optimizer.step#": "update", "autograd::engine::evaluate_function": "backward"}
_GATHERS = "torch::autograd::AccumulateGrad"


class OperatorNode(NamedTuple):
    """An operator of a trace.

    Attributes
    ----------
    id, parent, rf_id
        Its number, that of what called it, and that by which Kineto knows it.
    name, schema
        What it is; empty of what is no operator.
    reads, writes
        Tensors of each argument; those that it puts out.
    texts
        Arguments that are texts.
    shapes_in, shapes_out, types
        Sizes of both, and types of what it reads.
    more
        Other facts by name, such as of a collective.
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
        """Whether it may do work, and does not only hold others that do."""
        return bool(self.schema or self.more.get("kernel_backend") or self.is_collective) and works(self.name)

    @property
    def is_collective(self) -> bool:
        """Whether ranks meet in it."""
        return self.name == "record_param_comms" and collective_kind(self.collective) is not None

    @property
    def collective(self) -> str:
        """The name of the collective; of versions that have no key for it, the first text that it reads."""
        return str(self.more.get("collective_name") or next(iter(self.texts), ""))


class Tree:
    """The nodes of a trace, and which of them become ops.

    Parameters
    ----------
    nodes
        By id.

    Attributes
    ----------
    nodes
        By id.
    owner
        Id of a node -> that of the op that it is, or is a part of.
    phase
        Id of a node -> its phase.
    gathers
        Ids of nodes that add to gradients.
    devices
        Those that count: all but the CPU, or the CPU if there is no other.
    trains
        Whether there is a backward.
    """

    def __init__(self, nodes: Sequence[OperatorNode]) -> None:
        self.nodes, self.owner, self.phase, self.gathers = nodes, dict[int, int](), dict[int, str](), set[int]()
        named = {view.device for node in nodes for some in (node.writes, *node.reads) for view in some} - {""}
        self.devices = frozenset(named - {"cpu"} or named)
        kept = self._kept()
        for node in nodes:
            begins = (phase for name, phase in _PHASES.items() if node.name.startswith(name))
            self.phase[node.id] = next(begins, self.phase.get(node.parent, ""))
            if node.parent in self.gathers or node.name.startswith(_GATHERS):
                self.gathers.add(node.id)
            if node.parent in self.owner or node.id in kept:
                self.owner[node.id] = self.owner.get(node.parent, node.id)
        self.trains = "backward" in self.phase.values()

    def _kept(self) -> set[int]:
        """Ids of nodes that work, with none below that do; or that write what none below writes, and so work, too."""
        kept, holds, made = set[int](), set[int](), dict[int, set[int]]()
        for node in reversed(self.nodes):
            below, beside = made.pop(node.id, set()), made.get(node.parent, set())
            fresh = self.storages(node.writes) - self.storages(*node.reads)
            in_place = self.storages(*(node.reads[at] for at in changed(node.schema) if at < len(node.reads)))
            written = fresh | {~storage for storage in in_place}  # what is made, and what is changed
            is_at_work = node.is_operator and any(map(self.here, (node.writes, *node.reads)))
            if is_at_work and (node.id not in holds or written - below):
                kept.add(node.id)
                below |= written
            elif MAKES.fullmatch(plain(node.name)):  # what makes room writes nothing, unless something fills it then
                below |= {storage for storage in fresh if ~storage in beside}
            if node.parent < node.id:
                small, large = sorted((below, beside), key=len)
                large |= small
                made[node.parent] = large
                holds.update({node.parent} if node.id in kept or node.id in holds else ())
        return kept

    def here(self, some: list[TensorView]) -> list[TensorView]:
        """Those of some tensors that are on the device and not empty."""
        return [view for view in some if view.device in self.devices and view.size_bytes]

    def storages(self, *several: list[TensorView]) -> set[int]:
        """Ids of the storages of tensors that are on the device and not empty."""
        return {view.storage for some in several for view in self.here(some)}


class Memory:
    """Storages of a trace, and what ops do with them.

    Parameters
    ----------
    tree
        The nodes.
    recording
        Takes storages.
    """

    def __init__(self, tree: Tree, recording: Recording) -> None:
        self._tree, self._recording = tree, recording
        self._known: dict[int, Storage] = {}
        self._stretched: set[int] = set()

    def _make(self, view: TensorView, kind: str = "activation", *, persistent: bool = False) -> Storage:
        self._known[view.storage] = storage = self._recording.storage(view.until_bytes, kind, persistent=persistent)
        return storage

    def _see(self, node: OperatorNode) -> None:
        """Enter what a node reads; what nothing made was there before."""
        types = node.types if isinstance(node.types, list) else []
        for at, some in enumerate(node.reads):
            kind = "input" if at < len(types) and is_number(types[at]) else "weight"
            for view in self._tree.here(some):
                if view.storage not in self._known:
                    self._make(view, kind, persistent=True)
                storage = self._known[view.storage]
                if view.tensor not in self._stretched:
                    storage.size_bytes = max(storage.size_bytes, view.until_bytes)

    def fold(self, node: OperatorNode, into: Event | None) -> None:
        """Take notice of a node that is no op: a view, an empty tensor, or what holds others."""
        base = plain(node.name)
        makes, stretches = MAKES.fullmatch(base), STRETCHES.fullmatch(base)
        taken = self._tree.storages(*node.reads)
        if into is None:
            self._see(node)
        for view in self._tree.here(node.writes):
            known = self._known.get(view.storage)
            if stretches:
                self._stretched.add(view.tensor)
            elif makes and view.storage not in taken:
                if into is None:
                    known = self._make(view)
                elif known not in into.writes:
                    into.more["workspace_bytes"] = into.more.get("workspace_bytes", 0) + view.until_bytes
            if node.id in self._tree.gathers and known is not None:
                known.kind = "gradient"

    def use(self, node: OperatorNode, op: Event) -> None:
        """Let an op read and write what its node does."""
        self._see(node)
        in_place, taken, made = changed(node.schema), self._tree.storages(*node.reads), set[int]()
        for at, some in enumerate(node.reads):
            for storage in (self._known[view.storage] for view in self._tree.here(some)):
                if storage.is_written:
                    op.reads[storage] = None
                if at in in_place or not storage.is_written:
                    op.writes[storage] = None
        for view in self._tree.here(node.writes):
            if view.storage not in taken:
                storage = self._known[view.storage] if view.storage in made else self._make(view)
                made.add(view.storage)
                storage.size_bytes = max(storage.size_bytes, view.until_bytes)
                op.writes[storage] = None
            elif not node.schema:
                op.writes[self._known[view.storage]] = None
        for storage in op.writes:
            storage.is_written = True
            if node.id in self._tree.gathers:
                storage.kind = "gradient"
