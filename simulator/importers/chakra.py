"""Execution traces of Chakra (``.et``): length-delimited nodes in the wire format of protocol buffers.

The format has four messages with few fields, whose numbers have never changed, so decoding it here takes fewer lines
than a schema for a library would.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import orjson

from simulator import formats
from simulator.document import MOST_RANKS
from simulator.errors import ConfigError, insist
from simulator.graph import Collective, Graph
from simulator.importers import recordings
from simulator.importers.imported import Imported
from simulator.importers.operators import Memory, OperatorNode, Tree, arithmetic, base_name, dtype_of, views
from simulator.importers.recordings import ALONE, Event, Recording, Storage, collective_kind, short, unpacked, whole
from simulator.importers.streams import Activity, replay
from simulator.inputs import shown
from simulator.interrupts import no_garbage_search

MOST_NODES = 1_000_000
"""Most nodes of a trace: each takes 4 to 12 kB of memory, with its op and the replay."""

_TYPES = ("invalid", "metadata", "memory loads", "memory stores", "compute", "sends", "receives", "collective")
_COMPUTE, _COLLECTIVE = 4, 7
_OWN = "hosim_graph", "hosim_plan", "hosim_op"  # what `hosim export --to chakra` writes: lines, and the op's place
_ATTRIBUTES = ("rf_id", "comm_type", "comm_size", "num_ops", "tensor_size", *_OWN)  # kept for each node
_COLLECTIVES = "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter reduce_scatter barrier"
_SIZES = {1: 8, 2: -1, 5: 4}  # wire type -> bytes of a value; type 0 is a varint, type 2 is length-delimited
_PLAN = ".plan.jsonl"
_LONGEST_US = 1 << 40  # 13 days: sums of such times fit the integers of a graph


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the 64-bit varint at an offset; return it and the offset of its end."""
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, offset
    raise ValueError("a number without end")


def _chunk(data: bytes, offset: int, size: int = -1) -> tuple[bytes, int]:
    """Read `size` bytes at an offset (by default, after their length); return them and the offset of their end."""
    if size < 0:
        size, offset = _varint(data, offset)
    if offset + size > len(data):
        raise IndexError
    return data[offset : offset + size], offset + size


class _Message:
    """A protocol buffer message: the values of each field, by field number."""

    def __init__(self, data: bytes) -> None:
        self.numbers, self.texts = defaultdict[int, list[int]](list), defaultdict[int, list[bytes]](list)
        offset = 0
        while offset < len(data):
            key, offset = _varint(data, offset)
            wire = key & 7
            if wire == 0:
                value, offset = _varint(data, offset)
                self.numbers[key >> 3].append(value)
            elif wire in _SIZES:
                text, offset = _chunk(data, offset, _SIZES[wire])
                self.texts[key >> 3].append(text)
            else:
                raise ValueError(f"a field of wire type {wire}")

    def number(self, field: int) -> int:
        """Return the last number of a field; 0 if it has none."""
        return (self.numbers[field] or [0])[-1]

    def text(self, field: int) -> bytes:
        """Return the last byte string of a field; an empty one if it has none."""
        return (self.texts[field] or [b""])[-1]

    def all_numbers(self, field: int) -> array[int]:
        """Return all numbers of a field, repeated or packed, at 8 bytes each: a node may depend on hundreds."""
        values = array("Q", self.numbers[field])
        for packed in self.texts[field]:
            offset = 0
            while offset < len(packed):
                value, offset = _varint(packed, offset)
                values.append(value)
        return values


_WORDS = re.compile(r"\b(?:None|True|False|nan|inf)\b")
_TENSOR = re.compile(r"""\[(?:(?:0|[1-9]\d{0,17}), ){5}"[^"]*"\]""")


@lru_cache(1024)
def _values(text: bytes) -> list[Any]:
    """Parse a list in Python's notation (single quotes), or at least its tensors; equal texts share one object."""
    words = _WORDS.sub("null", text.decode(errors="replace").replace("'", '"'))
    try:
        values = orjson.loads(words or "[]")
    except orjson.JSONDecodeError:
        tensors = (tensor for tensor in _TENSOR.findall(words) if "\\" not in tensor and tensor.isprintable())
        return list(map(orjson.loads, tensors))
    return values if isinstance(values, list) else []


@lru_cache(1024)
def _attribute(data: bytes) -> tuple[str, int | str]:
    """Return name and value of an attribute, a number if it has one; cached, as many nodes share attributes."""
    attribute = _Message(data)
    numbers = (value for values in attribute.numbers.values() for value in values)
    return attribute.text(1)[:200].decode(errors="replace"), next(numbers, attribute.text(29).decode(errors="replace"))


class _Node:
    """A node of the file, reduced to what hosim uses; times in microseconds."""

    def __init__(self, data: bytes) -> None:
        fields = _Message(data)
        self.id, self.type = fields.number(1), fields.number(3)
        self.start, self.took = min(fields.number(6), _LONGEST_US << 10), min(fields.number(7), _LONGEST_US)
        self.under, self.after = fields.all_numbers(4), fields.all_numbers(5)
        self.name = re.sub(r"\(\d+\)$", "", fields.text(2)[:1000].decode(errors="replace"))
        attrs = dict(map(_attribute, fields.texts[10]))
        self.is_on_host, self.stream = bool(attrs.get("is_cpu_op")), str(attrs.get("tid"))
        self.attrs = {name: attrs[name] for name in _ATTRIBUTES if name in attrs}
        schema, inputs, outputs = attrs.get("op_schema"), _Message(fields.text(8)), _Message(fields.text(9))
        reads, writes = [list(views(value)) for value in _values(inputs.text(1))], list(views(_values(outputs.text(1))))
        about = self.id, 0, 0, self.name, schema if isinstance(schema, str) else "", reads, writes
        types = _values(inputs.text(2)), _values(outputs.text(2)), _values(inputs.text(3))
        self.operator = OperatorNode(*about, (), *types)
        self.launcher: _Node | None = None
        self.op: Event | None = None


def _check_version(header: _Message, where: str, derived: list[str]) -> None:
    """Accept only schemas 0.0.4 to 1.x, whose nodes are alike; some converters give the version as an attribute."""
    named = (attribute.text(29) for attribute in map(_Message, header.texts[2]) if attribute.text(1) == b"schema")
    version = (header.text(1) or next(named, b"")).rpartition(b"chakra.")[2].decode(errors="replace")[:50]
    parts = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version or "0.0.4")
    numbers, must = tuple(map(int, parts.groups())) if parts else (), "hosim reads schemas 0.0.4 to 1.x of Chakra"
    insist((0, 0, 4) <= numbers < (2,), where, must, repr(version), "convert it by a chakra_converter of one of them")
    if numbers > (1, 0, 0):
        derived.append(f"Schema {version} of Chakra is read as 1.0.0, the newest known: what it adds is left out.")


def _load(path: Path, derived: list[str]) -> tuple[dict[str, int | str], dict[int, _Node]]:
    """Read the header's attributes, and then all nodes, by id.

    Raises
    ------
    ConfigError
        If the file is no trace, or of an unsupported version.
    """
    where, nodes, data, header = shown(path), dict[int, _Node](), unpacked(path), _Message(b"")
    index = offset = 0
    try:
        while offset < len(data):
            message, offset = _chunk(data, offset)
            if index:
                node = _Node(message)
                nodes[node.id] = node
            else:
                header = _Message(message)
                _check_version(header, where, derived)
            must = f"a Chakra trace has at most {MOST_NODES:,} nodes, each with its own id"
            insist(len(nodes) == index <= MOST_NODES, f"{where}: message {index}", must, "one more")
            index += 1
        return dict(map(_attribute, header.texts[2])), nodes
    except (ValueError, IndexError) as error:
        found = str(error) if isinstance(error, ValueError) else "one that breaks off"
        must, do = "a Chakra trace is of length-delimited messages", "record it again, or choose another file"
        raise ConfigError(f"{where}: message {index}", must, found, do) from None


def _own(path: Path, header: dict[str, int | str], nodes: list[_Node]) -> Imported:
    """Read what hosim wrote: each node carries the lines of the graph and of the plan that it is."""
    graph, plan = (
        [str(header.get(name, "")), *(str(n.attrs.get(name, "")) for n in order)]
        for name, order in ((_OWN[0], sorted(nodes, key=lambda node: whole(node.attrs.get(_OWN[2])))), (_OWN[1], nodes))
    )
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{path.stem}{end}" for end in (".jsonl", _PLAN)]
        for file, lines in zip(files, (graph, plan), strict=True):
            file.write_text("".join(lines), encoding="utf-8")
        try:
            imported, tiers = recordings.read_graph(files[0]), formats.jsonl.first(files[1]).get("tiers", ())
            formats.read_plan(files[1], cast(Graph, imported.graph), tuple(tiers))
        except ConfigError as error:
            raise ConfigError(f"{shown(path)}: lines that hosim wrote", *error.args[1:]) from None
    derived = f"The plan is that of the trace: name *{_PLAN} as a policy of a scenario on the same tiers."
    contents = {**imported.files, _PLAN: "".join(plan).encode()}
    return replace(imported, files=contents, derived=(*imported.derived, derived))


def _in_order(nodes: dict[int, _Node], where: str) -> list[_Node]:
    """Sort nodes topologically, those of the device as early as possible.

    Old converters wrote a node's parent as a control dependency: if these make a cycle, they are ignored.
    """
    for parents_count in (True, False):
        sorter, ready, ordered = TopologicalSorter[int](), list[tuple[bool, int]](), list[_Node]()
        for node in nodes.values():
            sorter.add(node.id, *(nodes.keys() & {*node.after, *(node.under if parents_count else ())}))
        with suppress(CycleError):
            sorter.prepare()
            while sorter.is_active():
                for node_id in sorter.get_ready():
                    heapq.heappush(ready, (nodes[node_id].is_on_host, node_id))
                ordered.append(nodes[heapq.heappop(ready)[1]])
                sorter.done(ordered[-1].id)
            return ordered
    raise ConfigError(where, "no node depends on itself", "nodes in a circle", "record the trace again")


@no_garbage_search()
def read_chakra(source: str | Path, *, ranks: int = 1) -> Imported:
    """Read an execution trace of Chakra: the device's ops, their storages, collectives and recorded durations.

    Parameters
    ----------
    source
        The trace (``.et``, perhaps compressed, or the first file in a tar archive).
    ranks
        Number of ranks in collectives that have no recorded duration.

    Raises
    ------
    ConfigError
        If the file is no trace, its version is not supported, or its dependencies form a cycle.
    """
    path, recording = Path(source), Recording()
    insist(1 <= ranks <= MOST_RANKS, "ranks", f"from 1 to {MOST_RANKS:,} ranks meet", str(ranks), "correct --ranks")
    header, nodes = _load(path, recording.derived)
    if _OWN[0] in header:
        return _own(path, header, sorted(nodes.values(), key=attrgetter("id")))
    recording.kept["nodes"] = f"{len(nodes):,}"
    if all(node.is_on_host for node in nodes.values()):
        recording.derived.append("Nothing ran on a device: the nodes of the host are the ops.")
        for node in nodes.values():
            node.is_on_host = False
    recording.dropped["nodes of the host"] = sum(node.is_on_host for node in nodes.values())
    _Reader(nodes, _in_order(nodes, shown(path)), recording, ranks).read()
    return recording.imported(path, "A step")


class _Reader:
    """Turns nodes into ops: the kernels of one operator form one op, which reads and writes what the operator does."""

    def __init__(self, by_id: dict[int, _Node], nodes: list[_Node], recording: Recording, ranks: int) -> None:
        self._nodes, self._recording, self._ranks = nodes, recording, ranks
        on_device = [node for node in nodes if not node.is_on_host]
        for node in on_device:  # a kernel's launcher is its first dependency
            before = (by_id[node_id] for node_id in (*node.after, *node.under) if node_id in by_id)
            if launcher := next((other for other in before if other.is_on_host), None):
                node.launcher, node.operator = launcher, node.operator._replace(schema=launcher.operator.schema)
        self._timed = any(node.took for node in on_device)
        self._memory = Memory(Tree([node.operator for node in nodes]), recording)
        self._ops, self._links = dict[object, Event](), dict[int, Storage]()

    def read(self) -> None:
        """Make the ops."""
        recording = self._recording
        for node in self._nodes:
            if node.is_on_host:
                self._memory.fold(node.operator, None)
            elif node.type in (_COMPUTE, _COLLECTIVE):
                node.op = self._op(node)
            else:
                recording.dropped[f"nodes of kind {dict(enumerate(_TYPES)).get(node.type, 'unknown')}"] += 1
        if not self._timed:
            recording.derived.append("Without times a roofline gives them; float counts as bf16.")
        elif recording.ops:
            self._replay()
        if recording.groups:
            text = "Collectives without a duration take the machine's time, and so the recorded step is not known."
            recording.derived.append(text)
            recording.step_ns = 0
            for op in recording.ops:
                if "collective" in op.more:
                    op.more["duration_ns"] = None

    def _replay(self) -> None:
        """Give ops the times of their nodes: as recorded, or as soon as the nodes that they depend on have ended."""
        if not any(node.start for node in self._nodes):
            text = "The trace has no starts: a node begins once those it depends on have ended"
            self._recording.derived.append(f"{text}, and its thread or stream is free.")
            ends, free = dict[int, int](), defaultdict[tuple[bool, str], int](int)
            for node in self._nodes:
                stream = node.is_on_host, node.stream
                node.start = max((free[stream], *(ends.get(other, 0) for other in node.after)))
                ends[node.id] = free[stream] = node.start + node.took
        ran = dict[int, Activity]()
        for node in sorted(self._nodes, key=attrgetter("start")):
            if node.op:
                launcher, start_ns = node.launcher, 1000 * node.start
                launched_ns = min(start_ns, 1000 * (launcher.start + launcher.took)) if launcher else None
                after = [ran[other] for other in node.after if other in ran and ran[other].end_ns <= start_ns]
                times_ns = start_ns, start_ns + 1000 * node.took
                ran[node.id] = Activity(node.op, *times_ns, node.stream, launched_ns, after=after)
        replay(self._recording, ran.values(), self._recording.ops, calls=((), ()))

    def _op(self, node: _Node) -> Event | None:
        """Return the op that a node belongs to; None for a collective that no other rank joins."""
        launcher, operator = node.launcher or node, node.operator
        key = (launcher.attrs.get("rf_id") or -launcher.id, launcher.name) if node.launcher else node.id
        if key in self._ops:
            return self._ops[key]
        op = Event(short(launcher.name))
        self._memory.use(operator, op)
        if node.type == _COLLECTIVE and not self._joins_collective(node, op):
            return None
        if not op.reads and not op.writes:  # its dependencies become tensors of 0 bytes
            op.reads.update((self._links[other], None) for other in node.after if other in self._links)
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

    def _joins_collective(self, node: _Node, op: Event) -> bool:
        """Make an op a collective; return whether it has a recorded duration or other ranks join it."""
        names = dict[object, str](enumerate(_COLLECTIVES.split()))
        kind = collective_kind(names.get(node.attrs.get("comm_type", -1), base_name(op.name)))
        op.is_collective = True
        if node.took:
            return True
        if kind is None or self._ranks == 1:
            self._recording.dropped[ALONE] += 1
            return False
        self._recording.groups.setdefault("all", [list(range(self._ranks))])
        op.more["collective"] = Collective(kind, "all", whole(node.attrs.get("comm_size")))
        return True
