"""What readers of recordings share: JSON files, and a step's ops and storages, which become a graph."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from simulator import formats, inputs
from simulator.document import MOST_RANKS
from simulator.errors import ConfigError, insist
from simulator.formats import jsonl, residency_json
from simulator.graph import LARGEST, LARGEST_RUN, CollectiveKind, Graph
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.importers.imported import FACTS, Imported, named
from simulator.lifetime import live_bytes
from simulator.units import FieldError, counted, human
from simulator.workload import Workload

MOST_BYTES = 400_000_000
"""Most bytes of a recording, unpacked; all of its text is held in memory."""
ALONE = "collectives of one rank (--ranks)"
"""Name of dropped collectives that no other rank joins."""
MOST_VALUES = 40_000_000
"""Most values of a recording in JSON: short ones take many times their length in memory."""


def json_of(path: Path, most: int | None = None, shape: Any = None) -> Any:
    """Read a file in JSON.

    Parameters
    ----------
    path, most
        The file, and its largest size [B].
    shape
        Type for msgspec whose records stay text until `objects` decodes them: as Python objects a recording takes many
        times its size, and readers need few at once. A file that does not match is decoded whole. Without a shape, a
        key that occurs twice in an object is an error; with one, the last occurrence counts.

    Raises
    ------
    ConfigError
        As for `inputs.unpacked`, or if the file is not JSON.
    """
    text = inputs.unmarked(inputs.unpacked(path, most or MOST_BYTES), path)
    values, must = sum(map(text.count, (b",", b"[", b"{"))), f"a recording has at most {MOST_VALUES:,} values"
    insist(values <= MOST_VALUES, inputs.shown(path), must, f"about {values:,}", "record fewer steps")
    try:
        if shape:
            with suppress(*_UNREAD):  # if it is not JSON or does not match, decode it whole to tell why
                return msgspec.json.decode(text, type=shape)
        parsed = orjson.loads(text)
        if not shape:
            with suppress(RecursionError):  # nested deeper than json can read, though orjson can
                json.loads(text, object_pairs_hook=jsonl.distinct)
        return parsed
    except FieldError as error:
        raise error.at(inputs.shown(path)) from None
    except orjson.JSONDecodeError as error:
        if b"Infinity" in text or b"NaN" in text:  # not JSON, but Python writes it
            with suppress(ValueError, RecursionError):
                return json.loads(text)
        where, found = f"{inputs.shown(path)}:{error.lineno}", f"{error.msg} (column {error.colno})"
        raise ConfigError(where, "the file is JSON", found, "write it again, or choose another one") from None


_Value = list[msgspec.Raw] | dict[str, Any] | str | float | bool | None


def records_of(path: Path, most: int | None = None) -> Any:
    """Read a list, an execution trace or a profile with `json_of`, leaving records as text for `objects`."""
    return json_of(path, most, shape=dict[str, _Value] | list[msgspec.Raw])


_UNREAD = (msgspec.MsgspecError, RecursionError, ValueError)


def objects(records: Iterable[Any], where: str, must: str) -> Iterator[dict[str, Any]]:
    """Decode the records that `json_of` left as text; an error names the position of one that is no object."""
    for position, record in enumerate(records):
        try:
            value = msgspec.json.decode(record) if isinstance(record, msgspec.Raw) else record
        except _UNREAD:
            value = bytes(record)
        if not isinstance(value, dict):
            raise ConfigError(f"{where}[{position}]", must, f"{value!r:.60}", "record the trace again")
        yield value


def whole(value: object) -> int:
    """Return a value if it is a whole number that a graph can hold, else 0."""
    return value if type(value) is int and 0 <= value <= LARGEST else 0


def short(name: object) -> str:
    """Return the name of an op or kernel, without types and parameters, in printable characters."""
    plain = str(name)[:1000].replace("(anonymous namespace)::", "").removeprefix("void ")
    text = re.split("[<(]", plain, maxsplit=1)[0].strip() or str(name)[:80]
    return "".join(c if c.isprintable() else "?" for c in text[-100:]) or "op"


def unique(name: str, taken: Counter[str]) -> str:
    """Return an unused name; from its second use on a name is numbered."""
    taken[name] += 1
    return name if taken[name] == 1 else f"{name}#{taken[name]}"


@dataclass(eq=False, slots=True)
class Storage:
    """A piece of device memory, from its first to its last use.

    Attributes
    ----------
    persistent
        Whether it existed before the recording began.
    stays
        Whether it still exists when the recording ends.
    is_written
        Whether an op has written it so far.
    name
        Name of its tensor; default: its number.
    """

    size_bytes: int
    kind: str = "activation"
    persistent: bool = False
    stays: bool = False
    is_written: bool = False
    name: str = ""


@dataclass(eq=False, slots=True)
class Event:
    """An op as it was recorded.

    Attributes
    ----------
    reads, writes
        Storages, as keys in order.
    more
        Other fields of the graph's op.
    is_collective
        Whether several ranks run it together.
    """

    name: str
    reads: dict[Storage, None] = field(default_factory=dict)
    writes: dict[Storage, None] = field(default_factory=dict)
    more: OpFields = field(default_factory=OpFields)
    is_collective: bool = False


Groups = dict[str, list[list[int]]]
"""Name of a group -> lists of the ranks that meet."""


@dataclass
class Recording:
    """A recorded step, which each reader of recordings fills.

    Attributes
    ----------
    storages, ops
        Storages in the order of the recording; ops in program order.
    groups
        Groups of ranks that collectives use.
    kept, derived, dropped
        As for an `Imported`; the method `imported` adds to `kept` what the graph tells.
    step_ns, peak_bytes
        Recorded time of the step [ns] and peak of the memory [B]; 0 if unknown.
    """

    storages: list[Storage] = field(default_factory=list)
    ops: list[Event] = field(default_factory=list)
    groups: Groups = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    derived: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    step_ns: int = 0
    peak_bytes: int = 0
    marked_ns: int = 0

    def storage(self, size_bytes: int, kind: str = "activation", *, persistent: bool = False) -> Storage:
        """Add a storage."""
        self.storages.append(Storage(min(size_bytes, LARGEST), kind, persistent, persistent, persistent))
        return self.storages[-1]

    def add_lifetime(self, size_bytes: int, first: Event | None, last: Event | None) -> None:
        """Add a storage that `first` makes (None: it existed before) and `last` reads last (None: it stays)."""
        kind = "activation" if first else "input" if last else "weight"
        storage = self.storage(size_bytes, kind, persistent=not (first or last))
        storage.stays = last is None
        if first is not None:
            first.writes[storage] = None
        if first is None or (last and last is not first):
            (last or self.ops[0]).reads[storage] = None

    def _graph(self, name: str, where: str) -> Graph:
        """Make the graph of one step."""
        do = "say how many ranks meet: --ranks" if self.dropped[ALONE] else "record with the device's activities"
        insist(self.ops, where, "a recording has ops of a device", "none", do)
        must = f"a graph has at most {LARGEST_RUN:,} ops"
        insist(len(self.ops) <= LARGEST_RUN, where, must, f"{len(self.ops):,}", "record fewer steps")
        used = {storage for op in self.ops for storage in (*op.reads, *op.writes)}
        storages = [storage for storage in self.storages if storage in used]
        self.dropped["storages that no op of the device uses"] += len(self.storages) - len(storages)
        for position, storage in enumerate(storages):
            storage.name = storage.name or f"s{position:0{len(str(len(self.storages)))}d}"
        for position, op in enumerate(self.ops):
            op.name = f"{position:0{len(str(len(self.ops)))}d}/{op.name}"
        self.ops.reverse()
        ops = (self.ops.pop() for _ in range(len(self.ops)))  # larger than the graph, so free them as it grows
        return graph_of(GraphBuilder(name, where), storages, ops, self.groups)

    def imported(self, path: Path, noun: str) -> Imported:
        """Make the graph, and a workload that runs it; report what was kept.

        Parameters
        ----------
        path
            The recording.
        noun
            The kind of recording, for the title.

        Raises
        ------
        ConfigError
            If there is no op, or the graph breaks a rule.
        """
        name = named(path.name.partition(".")[0])
        graph = self._graph(name, inputs.shown(path))
        before = sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)
        took, most = [op.duration_ns for op in graph.ops if op.duration_ns is not None], int(live_bytes(graph).max())
        kept = {
            **self.kept,
            "there before the step": human(before, "B") if before else "",
            "most at once": human(most, "B") if most else "",
            "measured times": f"{human(sum(took), 'ns')} in all, of {counted(len(took), 'op')}" if took else "",
            "recorded peak": human(self.peak_bytes, "B") if self.peak_bytes else "",
            "marked step": human(self.marked_ns, "ns") if self.marked_ns else "",
        }
        frees = any(not graph.tensors[t].persistent for t in graph.inputs)
        why = "it frees memory from before it" if frees else "the first warms up, the last is counted"
        about = {"name": name, "title": f"{noun} of {path.name}", "graph": ".jsonl", "steps": 1 if frees else 2}
        workload = Workload.model_validate({**about, "assumed": {"steps": why}})
        kept = {key: value for key, value in kept.items() if value}
        figures = self.step_ns, self.peak_bytes, self.marked_ns
        return Imported({".yaml": workload, ".jsonl": graph}, kept, tuple(self.derived), +self.dropped, *figures)


def graph_of(builder: GraphBuilder, storages: Iterable[Storage], ops: Iterable[Event], groups: Groups) -> Graph:
    """Build a graph from named storages and ops."""
    outputs = list[str]()
    for storage in storages:
        builder.tensor(storage.name, storage.size_bytes, storage.kind, persistent=storage.persistent)
        outputs += [storage.name] if storage.stays and not storage.persistent else []
    for group, members in groups.items():
        builder.group(group, members)
    for op in ops:
        reads, writes = ([storage.name for storage in accessed] for accessed in (op.reads, op.writes))
        builder.op(op.name, reads, writes, "collective" if op.is_collective else "compute", **op.more)
    return builder.build(outputs)


_COLLECTIVES = {prefix: CollectiveKind(kind) for prefix, kind in FACTS["collectives"].items()}


def collective_kind(name: object) -> CollectiveKind | None:
    """Return the kind of a collective by name, such as ``_allgather_base`` or ``ALL_REDUCE``; None if it is unknown."""
    plain = str(name)[:200].lower().replace("_", "").replace("-", "")
    return _COLLECTIVES.get(max(filter(plain.startswith, _COLLECTIVES), key=len, default=""))


def blocks(world: int, ranks: Sequence[int]) -> list[list[int]]:
    """Divide all ranks into groups like that of some, each shifted; if they do not divide so, return that alone."""
    taken, alike = set[int](), list[list[int]]()
    for first in range(world if world <= MOST_RANKS else 0):
        if first not in taken:
            alike.append([first + rank - ranks[0] for rank in ranks])
            if not taken.isdisjoint(alike[-1]) or not 0 <= min(alike[-1]) <= max(alike[-1]) < world:
                return [list(ranks)]
            taken.update(alike[-1])
    return alike if list(ranks) in alike else [list(ranks)]


def read_graph(source: str | Path, *, views: residency_json.Views = "reads") -> Imported:
    """Read a graph file, and make a workload that runs it.

    Parameters
    ----------
    source
        The file: ``hosim-graph/1`` (JSON lines) or ``residency-trace/1`` (JSON).
    views
        With residency-trace/1: whether an op that only makes a view of a tensor reads it, or also writes it.

    Raises
    ------
    ConfigError
        If the file is wrong.
    """
    path = Path(source)
    graph, is_trace = formats.read_graph(path, views), formats.sniff(path) == residency_json.SCHEMA
    measured_ns = sum(op.duration_ns or 0 for op in graph.ops)
    kept = {"measured times of ops": human(measured_ns, "ns")} if measured_ns else {}
    derived = [f"The graph is that of {path.name}; it runs {'once' if is_trace else 'as often as the file says'}."]
    if is_trace:
        derived.append(f"Ops that only make a view {views.removesuffix('s')} what they view (--views).")
    workload = Workload(name=named(graph.name), title=f"The graph of {path.name}", graph=".jsonl")
    dropped = residency_json.unused(path) if is_trace else {}
    return Imported({".yaml": workload, ".jsonl": graph}, kept, tuple(derived), dropped)
