"""Execution traces of Chakra (``.et``): nodes in the wire format of protocol buffers, each behind its length.

The format has four messages of a few fields and has kept their numbers since its first version, so that reading it
takes fewer lines than describing it to a library would.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from simulator import garbage
from simulator.document import MOST_RANKS
from simulator.errors import ConfigError, insist
from simulator.graph import LARGEST_RUN
from simulator.importers.imported import Imported
from simulator.importers.kineto import Span, lay
from simulator.importers.operator_tree import Memory, Node, Tree
from simulator.importers.operators import View, dtype_of, plain, views
from simulator.importers.recordings import Event, Recording, collective_kind, meeting, short, unpacked, whole
from simulator.inputs import shown
from simulator.units import human

_TYPES = ("invalid", "metadata", "memory loads", "memory stores", "compute", "sends", "receives", "collective")
_COMPUTE, _COLLECTIVE = 4, 7
_COLLECTIVES = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
                "reduce_scatter", "reduce_scatter_block", "barrier")  # fmt: skip
_OLDEST = (0, 0, 4)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TEXT = frozenset((29, 31))
_MOST_DIGITS = 70


@dataclass(slots=True)
class _Node:
    """A node as it stands in the file; times in microseconds."""

    id: int = 0
    name: str = ""
    type: int = 0
    after: list[int] = field(default_factory=list)
    under: list[int] = field(default_factory=list)
    start: int = 0
    took: int = 0
    read: dict[int, bytes] = field(default_factory=dict)
    written: dict[int, bytes] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_on_host(self) -> bool:
        return bool(self.attrs.get("is_cpu_op"))

    @property
    def operator(self) -> str:
        """Its name without the number of its part."""
        return re.sub(r"\(\d+\)$", "", self.name)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = shift = 0
    while shift < _MOST_DIGITS:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a number without end")


def _messages(data: bytes) -> Iterator[bytes]:
    """The messages of a file, each behind its length."""
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        if at + size > len(data):
            raise IndexError
        yield data[at : at + size]
        at += size


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: number, and a whole number or bytes."""
    at, sizes = 0, {_FIXED64: 8, _FIXED32: 4}
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind not in (_VARINT, _BYTES, *sizes):
            raise ValueError(f"a field of wire type {kind}")
        value, end = (sizes[kind], at) if kind in sizes else _varint(data, at)
        if kind == _VARINT:
            yield key >> 3, value
            at = end
            continue
        at = end + value
        if at > len(data):
            raise IndexError
        yield key >> 3, data[end:at]


def _numbers(value: int | bytes) -> list[int]:
    """One number, or many that are packed."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _attribute(data: bytes) -> tuple[str, Any]:
    name, value = "", None
    for number, found in _fields(data):
        if number == 1 and isinstance(found, bytes):
            name = found[:200].decode(errors="replace")
        elif isinstance(found, int):
            value = found
        elif number in _TEXT:
            value = found.decode(errors="replace")
    return name, value


def _node(data: bytes) -> _Node:
    node = _Node()
    for number, value in _fields(data):
        if number in (4, 5):
            (node.under if number == 4 else node.after).extend(_numbers(value))
        elif number in (8, 9) and isinstance(value, bytes):
            texts = {key: text for key, text in _fields(value) if isinstance(text, bytes)}
            node.read, node.written = (texts, node.written) if number == 8 else (node.read, texts)
        elif number == 10 and isinstance(value, bytes):
            name, found = _attribute(value)
            node.attrs[name] = found
        elif number == 2 and isinstance(value, bytes):
            node.name = value[:1000].decode(errors="replace")
        elif number in (1, 3, 6, 7) and isinstance(value, int):
            setattr(node, {1: "id", 3: "type", 6: "start", 7: "took"}[number], value)
    return node


def _load(path: Path) -> list[_Node]:
    """Read all nodes; the first message is about the file.

    Raises
    ------
    ConfigError
        If it is no trace, or of an older version.
    """
    where, nodes = shown(path), list[_Node]()
    number = 0
    try:
        for number, message in enumerate(_messages(unpacked(path))):
            if number:
                nodes.append(_node(message))
            else:
                version = dict(_fields(message)).get(1, b"")
                _check_version(version, where)
    except (ValueError, IndexError) as error:
        found = str(error) if isinstance(error, ValueError) else "one that breaks off"
        must, do = "a Chakra trace is of messages behind their lengths", "record it again, or choose another file"
        raise ConfigError(f"{where}: message {number}", must, found, do) from None
    must, do = "a Chakra trace has nodes, each with its own id", "record it again"
    ids = {node.id for node in nodes}
    insist(nodes and len(ids) == len(nodes), where, must, f"{len(nodes):,} nodes of {len(ids):,} ids", do)
    return nodes


def _check_version(version: object, where: str) -> None:
    text = version.decode(errors="replace")[:50] if isinstance(version, bytes) else "a number"
    parts = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", text)
    is_known = text == "" or (parts is not None and tuple(map(int, parts.groups())) >= _OLDEST)
    must, do = "a Chakra trace is of schema 0.0.4 or later", "convert it by a newer chakra_converter"
    insist(is_known, where, must, repr(text), do)


def _in_order(nodes: list[_Node], where: str) -> list[_Node]:
    """Sort nodes so that each comes after those it depends on, and on the device as soon as it can.

    Old converters wrote as a control dependency what a node is a part of: if those lead in a circle, they are left out.
    """
    for with_parts in (True, False):
        found = _sorted({node.id: (node, {*node.after, *(node.under if with_parts else ())}) for node in nodes})
        if len(found) == len(nodes):
            return found
    must, do = "no node depends on itself", "record the trace again"
    raise ConfigError(where, must, f"{len(nodes) - len(found):,} nodes in a circle", do)


def _sorted(known: dict[int, tuple[_Node, set[int]]]) -> list[_Node]:
    waits = {one: len(after & known.keys()) for one, (_, after) in known.items()}
    behind: dict[int, list[int]] = defaultdict(list)
    for one, (_, after) in known.items():
        for other in after:
            behind[other].append(one)
    ready = [(known[one][0].is_on_host, one) for one, missing in waits.items() if not missing]
    heapq.heapify(ready)
    found = list[_Node]()
    while ready:
        _, one = heapq.heappop(ready)
        found.append(known[one][0])
        for other in behind[one]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (known[other][0].is_on_host, other))
    return found


_WORDS = re.compile(r"\b(?:None|True|False|nan|inf)\b")
_TENSOR = re.compile(r"""\[(\d+), (\d+), (\d+), (\d+), (\d+), ['"]([^'"]*)['"]\]""")


def _values(text: bytes) -> list[Any]:
    """The values of what a node reads or writes, which are written as Python writes lists; at least its tensors."""
    plain_text = text.decode(errors="replace")
    try:
        found = orjson.loads(_WORDS.sub("null", plain_text.replace("'", '"')))
    except orjson.JSONDecodeError:
        found = [
            [*map(whole, map(int, one[:5])), one[5]]
            for one in _TENSOR.findall(plain_text)
            if max(map(len, one[:5])) < 20
        ]
    return found if isinstance(found, list) else []


def _as_operator(node: _Node, schema: str, rf_id: int) -> Node:
    """The node as an operator of PyTorch."""
    read = _values(node.read.get(1, b"[]"))
    written: list[View] = list(views(_values(node.written.get(1, b"[]"))))
    return Node(
        id=node.id,
        parent=0,
        rf_id=rf_id,
        name=node.operator,
        schema=schema,
        reads=[list(views(value)) if isinstance(value, list) else [] for value in read],
        writes=written,
        texts=[],
        shapes_in=None,
        shapes_out=None,
        types=_values(node.read.get(3, b"[]")),
        more={},
    )


@garbage.kept()
def read_chakra(source: str | Path, *, ranks: int = 1) -> Imported:
    """Read an execution trace of Chakra: what runs on the device, its storages, collectives and recorded durations.

    Parameters
    ----------
    source
        The trace (``.et``, also packed, or the first file in a tar archive).
    ranks
        How many ranks meet in collectives that have no recorded duration.

    Raises
    ------
    ConfigError
        If the file is none, its version is too old, or nodes depend on each other in a circle.
    """
    path, recording = Path(source), Recording()
    must, do = f"from 1 to {MOST_RANKS:,} ranks meet", "correct --ranks"
    insist(1 <= ranks <= MOST_RANKS, "ranks", must, str(ranks), do)
    nodes = _load(path)
    insist(len(nodes) <= LARGEST_RUN, shown(path), f"a trace has at most {LARGEST_RUN:,} nodes", "more", "cut it")
    if all(node.is_on_host for node in nodes):
        recording.derived.append("Nothing ran on a device: the nodes of the host are the ops.")
        for node in nodes:
            node.attrs["is_cpu_op"] = 0
    recording.kept["nodes"] = f"{len(nodes):,}"
    host = [node for node in nodes if node.is_on_host]
    recording.dropped["nodes of the host"] += len(host)
    if host:
        took = sum(min(node.took, 1 << 40) for node in host)
        recording.derived.append(
            f"What the host ran took {human(took * 1000, 'ns')} beside the device; it is left out."
        )
    _Reader(_in_order(nodes, shown(path)), recording, ranks).read()
    return recording.imported(path, "A step")


class _Reader:
    """Makes ops of nodes: the kernels of one operator are one op, which reads and writes what the operator does."""

    def __init__(self, nodes: list[_Node], recording: Recording, ranks: int) -> None:
        self._nodes, self._recording, self._ranks = nodes, recording, ranks
        self._known = {node.id: node for node in nodes}
        ran = [node for node in nodes if not node.is_on_host]
        self._timed = any(node.took for node in ran)
        self._operators = {node.id: self._operator(node) for node in nodes}
        self._memory = Memory(Tree(list(self._operators.values())), recording)
        self._ops: dict[object, Event] = {}

    def _operator(self, node: _Node) -> Node:
        schema = (self._launcher(node) or node).attrs.get("op_schema")
        return _as_operator(node, schema if isinstance(schema, str) else "", 0)

    def _launcher(self, node: _Node) -> _Node | None:
        """The node of the host that launched a node of the device, which converters write as its first dependency."""
        found = (self._known[one] for one in (*node.after, *node.under) if one in self._known)
        return None if node.is_on_host else next((one for one in found if one.is_on_host), None)

    def read(self) -> None:
        """Make the ops."""
        recording = self._recording
        spans = list[tuple[Event, _Node]]()
        for node in self._nodes:
            if node.is_on_host:
                self._memory.fold(self._operators[node.id], None)
            elif node.type not in (_COMPUTE, _COLLECTIVE):
                what = _TYPES[node.type] if node.type < len(_TYPES) else "unknown"
                recording.dropped[f"nodes of kind {what}"] += 1
            elif op := self._add(node):
                spans.append((op, node))
        if not self._timed:
            recording.derived.append("The trace has no durations: the machine's roofline gives them.")
        elif spans:
            self._lay(spans, self._starts())

    def _starts(self) -> dict[int, int]:
        """When each node began [us]: as recorded, or once what it depends on has ended."""
        starts = {node.id: min(node.start, 1 << 50) for node in self._nodes}
        if any(starts.values()):
            return starts
        text = "The trace has no starts: a node begins once those it depends on have ended"
        self._recording.derived.append(f"{text}, and its thread or stream is free.")
        ends, free = dict[int, int](), defaultdict[tuple[bool, str], int](int)
        for node in self._nodes:
            at = node.is_on_host, str(node.attrs.get("tid"))
            starts[node.id] = max((ends.get(one, 0) for one in node.after), default=0)
            starts[node.id] = max(starts[node.id], free[at])
            ends[node.id] = free[at] = starts[node.id] + min(node.took, 1 << 40)
        return starts

    def _add(self, node: _Node) -> Event | None:
        launcher = self._launcher(node)
        key: object = (launcher.attrs.get("rf_id") or -launcher.id, launcher.operator) if launcher else node.id
        if key in self._ops:
            return self._ops[key]
        op = Event(short((launcher or node).operator))
        self._memory.use(self._operators[node.id], op)
        if node.type == _COLLECTIVE and not self._meet(node, op):
            return None
        if not self._timed and node.type == _COMPUTE:
            op.more["flops"] = whole(node.attrs.get("num_ops"))
            op.more["dtype"], op.more["op_class"] = dtype_of(self._operators[node.id].types, "bf16"), "matmul"
            if not op.reads and not op.writes:
                op.more["read_bytes"] = whole(node.attrs.get("tensor_size"))
        self._ops[key] = op
        self._recording.ops.append(op)
        return op

    def _meet(self, node: _Node, op: Event) -> bool:
        """Whether the collective is one that has time, or that others come to."""
        number = node.attrs.get("comm_type")
        known = _COLLECTIVES[number] if type(number) is int and 0 <= number < len(_COLLECTIVES) else plain(op.name)
        kind = collective_kind(known.removeprefix("ncclKernel_").removeprefix("ncclDevKernel_"))
        if self._timed:
            op.is_collective = True
        elif kind is None or self._ranks == 1:
            self._recording.dropped["collectives of one rank (--ranks)"] += 1
            return False
        else:
            self._recording.groups.setdefault("all", [list(range(self._ranks))])
            op.is_collective, size = True, whole(node.attrs.get("comm_size"))
            op.more["collective"] = meeting(kind, "all", size)
        return True

    def _lay(self, found: list[tuple[Event, _Node]], starts: dict[int, int]) -> None:
        found.sort(key=lambda row: starts[row[1].id])
        spans = [Span(at, at + min(node.took, 1 << 40) * 1000, node.name, "", ("", str(node.attrs.get("tid"))), {})
                 for node, at in ((node, starts[node.id] * 1000) for _, node in found)]  # fmt: skip
        lay(self._recording, spans, [op for op, _ in found], self._recording.ops)
