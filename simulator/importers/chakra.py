"""Execution traces of Chakra (``.et``): nodes in the wire format of protocol buffers, each behind its length.

The format has four messages of a few fields and has kept their numbers since its first version, so that reading it
takes fewer lines than describing it to a library would.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import orjson

from simulator.document import MOST_RANKS
from simulator.errors import ConfigError, insist
from simulator.graph import Collective
from simulator.importers.imported import Imported
from simulator.importers.operators import Memory, OperatorNode, Tree, arithmetic, dtype_of, plain, views
from simulator.importers.recordings import ALONE, Event, Recording, Storage, collective_kind, short, unpacked, whole
from simulator.importers.streams import Activity, lay
from simulator.inputs import shown
from simulator.interrupts import no_garbage_search

MOST_NODES = 1_000_000
"""Most nodes of a trace: they take 4 to 12 kB of memory each, with their ops and the replay."""

_TYPES = ("invalid", "metadata", "memory loads", "memory stores", "compute", "sends", "receives", "collective")
_COMPUTE, _COLLECTIVE = 4, 7
_ATTRIBUTES = ("rf_id", "comm_type", "comm_size", "num_ops", "tensor_size")  # those of which a node keeps the value
_COLLECTIVES = "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter reduce_scatter barrier"
_SIZES = {1: 8, 2: -1, 5: 4}  # wire type -> bytes of a value; 0 is a number, and 2 has its length before it
_LONGEST_US = 1 << 40


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, of 64 bits, and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, at
    raise ValueError("a number without end")


def _behind_length(data: bytes, at: int, size: int = -1) -> tuple[bytes, int]:
    """The bytes that begin there, of a size that stands before them if it is not given; and where they end."""
    if size < 0:
        size, at = _varint(data, at)
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


class _Message:
    """A message of protocol buffers: fields by number."""

    def __init__(self, data: bytes) -> None:
        self.numbers, self.texts, at = defaultdict[int, list[int]](list), defaultdict[int, list[bytes]](list), 0
        while at < len(data):
            key, at = _varint(data, at)
            wire = key & 7
            if wire == 0:
                number, at = _varint(data, at)
                self.numbers[key >> 3].append(number)
            elif wire in _SIZES:
                text, at = _behind_length(data, at, _SIZES[wire])
                self.texts[key >> 3].append(text)
            else:
                raise ValueError(f"a field of wire type {wire}")

    def number(self, field: int) -> int:
        """The last value of a field; 0 if there is none."""
        return self.numbers[field][-1] if self.numbers[field] else 0

    def text(self, field: int) -> bytes:
        """The last value of a field; empty if there is none."""
        return self.texts[field][-1] if self.texts[field] else b""

    def all_numbers(self, field: int) -> array[int]:
        """All numbers of a field, one by one or packed, each in 8 bytes: a node may depend on hundreds."""
        found = array("Q", self.numbers[field])
        for packed in self.texts[field]:
            at = 0
            while at < len(packed):
                number, at = _varint(packed, at)
                found.append(number)
        return found


_WORDS = re.compile(r"\b(?:None|True|False|nan|inf)\b")
_TENSOR = re.compile(r"""\[(?:(?:0|[1-9]\d{0,17}), ){5}"[^"]*"\]""")


@lru_cache(1024)
def _values(text: bytes) -> list[Any]:
    """Values as Python writes a list, in single quotes, or at least the tensors among them; of one text one object."""
    words = _WORDS.sub("null", text.decode(errors="replace").replace("'", '"'))
    try:
        found = orjson.loads(words or "[]")
    except orjson.JSONDecodeError:
        found = [orjson.loads(one) for one in _TENSOR.findall(words) if "\\" not in one and one.isprintable()]
    return found if isinstance(found, list) else []


@lru_cache(1024)
def _attribute(data: bytes) -> tuple[str, int | str]:
    """Name and value of an attribute, a number if it has one: many attributes are alike in all nodes."""
    about = _Message(data)
    numbers = (value for values in about.numbers.values() for value in values)
    return about.text(1)[:200].decode(errors="replace"), next(numbers, about.text(29).decode(errors="replace"))


class _Node:
    """A node as it stands in the file, with what is read of it; times in microseconds."""

    def __init__(self, data: bytes) -> None:
        found = _Message(data)
        self.id, self.type = found.number(1), found.number(3)
        self.start, self.took = min(found.number(6), _LONGEST_US << 10), min(found.number(7), _LONGEST_US)
        self.under, self.after = found.all_numbers(4), found.all_numbers(5)
        self.name = re.sub(r"\(\d+\)$", "", found.text(2)[:1000].decode(errors="replace"))
        attrs = dict(map(_attribute, found.texts[10]))
        self.is_on_host, self.stream = bool(attrs.get("is_cpu_op")), str(attrs.get("tid"))
        self.attrs = {name: attrs[name] for name in _ATTRIBUTES if name in attrs}
        schema, read, written = attrs.get("op_schema"), _Message(found.text(8)), _Message(found.text(9))
        reads, writes = map(list, map(views, _values(read.text(1)))), list(views(_values(written.text(1))))
        about = self.id, 0, 0, self.name, schema if isinstance(schema, str) else "", list(reads), writes
        shapes = _values(read.text(2)), _values(written.text(2))
        self.operator = OperatorNode(*about, (), *shapes, _values(read.text(3)))


def _check_version(about: _Message, where: str, derived: list[str]) -> None:
    """Refuse schemas but 0.0.4 to 1.x, in which a node is the same; some converters name it in an attribute."""
    named = (one.text(29) for one in map(_Message, about.texts[2]) if one.text(1) == b"schema")
    version = (about.text(1) or next(named, b"")).rpartition(b"chakra.")[2].decode(errors="replace")[:50]
    parts = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version or "0.0.4")
    numbers, must = tuple(map(int, parts.groups())) if parts else (), "hosim reads schemas 0.0.4 to 1.x of Chakra"
    insist((0, 0, 4) <= numbers < (2,), where, must, repr(version), "convert it by a chakra_converter of one of them")
    if numbers > (1, 0, 0):
        derived.append(f"Schema {version} of Chakra is read as 1.0.0, the newest known: what it adds is left out.")


def _load(path: Path, derived: list[str]) -> dict[int, _Node]:
    """Read all nodes, by id; the first message is about the file.

    Raises
    ------
    ConfigError
        If it is no trace, or of an older version.
    """
    where, nodes, data = shown(path), dict[int, _Node](), unpacked(path)
    number = at = 0
    try:
        while at < len(data):
            message, at = _behind_length(data, at)
            if number:
                node = _Node(message)
                nodes[node.id] = node
            else:
                _check_version(_Message(message), where, derived)
            must = f"a Chakra trace has at most {MOST_NODES:,} nodes, each with its own id"
            insist(len(nodes) == number <= MOST_NODES, f"{where}: message {number}", must, "one more")
            number += 1
    except (ValueError, IndexError) as error:
        found = str(error) if isinstance(error, ValueError) else "one that breaks off"
        must, do = "a Chakra trace is of messages behind their lengths", "record it again, or choose another file"
        raise ConfigError(f"{where}: message {number}", must, found, do) from None
    return nodes


def _in_order(known: dict[int, _Node], where: str) -> list[_Node]:
    """Sort nodes so that each comes after those it depends on, and on the device as soon as it can.

    Old converters wrote as a control dependency what a node is a part of: if those lead in a circle, they are left out.
    """
    for parts in (True, False):
        sorter, ready, found = TopologicalSorter[int](), list[tuple[bool, int]](), list[_Node]()
        for node in known.values():
            sorter.add(node.id, *(known.keys() & {*node.after, *(node.under if parts else ())}))
        with suppress(CycleError):
            sorter.prepare()
            while sorter.is_active():
                for one in sorter.get_ready():
                    heapq.heappush(ready, (known[one].is_on_host, one))
                found.append(known[heapq.heappop(ready)[1]])
                sorter.done(found[-1].id)
            return found
    raise ConfigError(where, "no node depends on itself", "nodes in a circle", "record the trace again")


@no_garbage_search()
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
    insist(1 <= ranks <= MOST_RANKS, "ranks", f"from 1 to {MOST_RANKS:,} ranks meet", str(ranks), "correct --ranks")
    nodes = _load(path, recording.derived)
    recording.kept["nodes"], where = f"{len(nodes):,}", shown(path)
    if all(node.is_on_host for node in nodes.values()):
        recording.derived.append("Nothing ran on a device: the nodes of the host are the ops.")
        for node in nodes.values():
            node.is_on_host = False
    recording.dropped["nodes of the host"] = sum(node.is_on_host for node in nodes.values())
    _Reader(nodes, _in_order(nodes, where), recording, ranks).read()
    return recording.imported(path, "A step")


class _Reader:
    """Makes ops of nodes: the kernels of one operator are one op, which reads and writes what the operator does."""

    def __init__(self, known: dict[int, _Node], nodes: list[_Node], recording: Recording, ranks: int) -> None:
        self._nodes, self._recording, self._ranks = nodes, recording, ranks
        self._launchers = dict[int, _Node]()
        for node in (one for one in self._nodes if not one.is_on_host):  # a kernel's launcher is its first dependency
            hosts = (known[one] for one in (*node.after, *node.under) if one in known and known[one].is_on_host)
            self._launchers[node.id] = launcher = next(hosts, node)
            node.operator = node.operator._replace(schema=launcher.operator.schema)
        self._timed = any(node.took for node in self._nodes if not node.is_on_host)
        self._memory = Memory(Tree([node.operator for node in self._nodes]), recording)
        self._ops: dict[object, Event] = {}
        self._links: dict[int, Storage] = {}

    def read(self) -> None:
        """Make the ops."""
        recording, op_of = self._recording, dict[int, Event]()
        for node in self._nodes:
            if node.is_on_host:
                self._memory.fold(node.operator, None)
            elif node.type not in (_COMPUTE, _COLLECTIVE):
                what = _TYPES[node.type] if node.type < len(_TYPES) else "unknown"
                recording.dropped[f"nodes of kind {what}"] += 1
            elif op := self._op(node):
                op_of[node.id] = op
        if not self._timed:
            recording.derived.append("Without times a roofline gives them; float counts as bf16.")
        elif op_of:
            self._lay(op_of)
        if recording.groups:
            text = "Collectives without a duration take the machine's time, and so the recorded step is not known."
            recording.derived.append(text)
            recording.step_ns = 0
            for op in (one for one in recording.ops if "collective" in one.more):
                op.more["duration_ns"] = None

    def _lay(self, op_of: Mapping[int, Event]) -> None:
        """Give ops the times of their nodes."""
        starts, ran = self._starts(), dict[int, Activity]()
        for node in sorted((one for one in self._nodes if one.id in op_of), key=lambda one: starts[one.id]):
            start, launcher = starts[node.id], self._launchers[node.id]
            launched = None if launcher is node else 1000 * min(start, starts[launcher.id] + launcher.took)
            after = [ran[one] for one in node.after if one in ran and ran[one].end_ns <= 1000 * start]
            times = 1000 * start, 1000 * (start + node.took)
            ran[node.id] = Activity(op_of[node.id], *times, node.stream, launched, after=after)
        lay(self._recording, ran.values(), self._recording.ops)

    def _starts(self) -> dict[int, int]:
        """When each node began [us]: as recorded, or once what it depends on has ended."""
        starts = {node.id: node.start for node in self._nodes}
        if any(starts.values()):
            return starts
        text = "The trace has no starts: a node begins once those it depends on have ended"
        self._recording.derived.append(f"{text}, and its thread or stream is free.")
        ends, free = dict[int, int](), defaultdict[tuple[bool, str], int](int)
        for node in self._nodes:
            at = node.is_on_host, node.stream
            starts[node.id] = max((free[at], *(ends.get(one, 0) for one in node.after)))
            ends[node.id] = free[at] = starts[node.id] + node.took
        return starts

    def _op(self, node: _Node) -> Event | None:
        """The op that a node is a part of; none for a collective that nobody comes to."""
        launcher = self._launchers[node.id]
        key = (launcher.attrs.get("rf_id") or -launcher.id, launcher.name) if launcher is not node else node.id
        if key in self._ops:
            return self._ops[key]
        op, operator = Event(short(launcher.name)), node.operator
        self._memory.use(operator, op)
        if node.type == _COLLECTIVE and not self._meet(node, op):
            return None
        if not op.reads and not op.writes:  # what it depends on are tensors of no bytes
            op.reads.update((self._links[one], None) for one in node.after if one in self._links)
            self._links[node.id] = self._recording.storage(0)
            op.writes[self._links[node.id]] = None
        if node.type == _COMPUTE:
            by_shapes = arithmetic(launcher.name, operator.shapes_in, operator.shapes_out)
            stated = 0 if self._timed else whole(node.attrs.get("num_ops"))
            op.more["op_class"], op.more["flops"] = ("matmul", stated) if stated else by_shapes
            op.more["dtype"] = dtype_of(operator.types, "tf32" if self._timed else "bf16")
            if node.id in self._links and not self._timed:
                op.more["read_bytes"] = whole(node.attrs.get("tensor_size"))
        self._ops[key] = op
        self._recording.ops.append(op)
        return op

    def _meet(self, node: _Node, op: Event) -> bool:
        """Whether the collective is one that has time, or that others come to."""
        number = node.attrs.get("comm_type", -1)
        kind = collective_kind(dict[object, str](enumerate(_COLLECTIVES.split())).get(number, plain(op.name)))
        op.is_collective = True
        if node.took:
            return True
        if kind is None or self._ranks == 1:
            self._recording.dropped[ALONE] += 1
            return False
        self._recording.groups.setdefault("all", [list(range(self._ranks))])
        op.more["collective"] = Collective(kind, "all", whole(node.attrs.get("comm_size")))
        return True
