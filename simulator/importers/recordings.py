"""What readers of recordings have in common: files, and ops and storages as they are found."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from simulator import formats, inputs
from simulator.errors import ConfigError, insist
from simulator.formats import jsonl, residency_json
from simulator.formats.residency_json import Views
from simulator.graph import LARGEST, LARGEST_RUN, CollectiveKind, Graph
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.importers.imported import Imported, named
from simulator.lifetime import live_bytes
from simulator.units import FieldError, counted, human
from simulator.workload import Workload

MOST_BYTES = 400_000_000
"""Most bytes of a recording, unpacked; its text is in memory as a whole."""
ALONE = "collectives of one rank (--ranks)"
MOST_VALUES = 40_000_000
"""Most values of one in JSON: short ones take many times their bytes."""


def unpacked(path: Path, most: int | None = None) -> bytes:
    """Read a recording; of an archive (``.tar``, ``.tar.gz``, ``.tgz``) the first file whose name does not hide.

    Raises
    ------
    ConfigError
        If it cannot be read, is too large or empty, or is a pickle.
    """
    where, data = inputs.shown(path), inputs.whole(path, most or MOST_BYTES)
    if path.name.endswith((".tar", ".tar.gz", ".tgz")):
        data = _first_file(data, where)
    inputs.data_only(data, path)
    insist(data and not data.isspace(), where, "a file holds something", "an empty one", "write it again")
    return data


def _first_file(data: bytes, where: str) -> bytes:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                hides = member.name.rpartition("/")[2].startswith(".")
                if member.isreg() and not member.issparse() and not hides and member.size <= len(data):
                    file = archive.extractfile(member)
                    return file.read() if file else b""
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        found = str(error) or "another file"
        raise ConfigError(where, "a file of this name is a tar archive", found, "correct its name") from None
    raise ConfigError(where, "the archive holds a file", "none", "pack the recording into it")


def json_of(path: Path, most: int | None = None, *, distinct: bool = False, shape: Any = None) -> Any:
    """Read a file in JSON.

    Parameters
    ----------
    path, most
        The file, and how many bytes it may have.
    distinct
        Whether a key that comes twice in an object is an error; else the last one counts.
    shape
        Its type, as msgspec has them: a recording takes many times its size as objects of Python, and its readers need
        little of that at once, so that records may stay text for `objects`. A file of another type is read as it is.

    Raises
    ------
    ConfigError
        As of `unpacked`, or if the file is no JSON.
    """
    text = inputs.unmarked(unpacked(path, most), path)
    values = sum(map(text.count, (b",", b"[", b"{")))
    must = f"a recording has at most {MOST_VALUES:,} values"
    insist(values <= MOST_VALUES, inputs.shown(path), must, f"about {values:,}", "record fewer steps")
    try:
        if shape:
            with suppress(*_UNREAD):  # what is no JSON, or has another shape, is read as a whole, to tell what is wrong
                return msgspec.json.decode(text, type=shape)
        parsed = orjson.loads(text)
        if distinct:
            with suppress(RecursionError):  # a depth that orjson reads
                json.loads(text, object_pairs_hook=jsonl.distinct)
        return parsed
    except FieldError as error:
        raise ConfigError(inputs.shown(path), error.must, error.found, error.do) from None
    except orjson.JSONDecodeError as error:
        if b"Infinity" in text or b"NaN" in text:  # which Python writes though JSON has none
            with suppress(ValueError, RecursionError):
                return json.loads(text)
        where, found = f"{inputs.shown(path)}:{error.lineno}", f"{error.msg} (column {error.colno})"
        raise ConfigError(where, "the file is JSON", found, "write it again, or choose another one") from None


_Value = list[msgspec.Raw] | dict[str, Any] | str | float | bool | None


def records_of(path: Path, most: int | None = None) -> Any:
    """Read a list, an execution trace or a profile, whose records stay text for `objects`; as for `json_of`."""
    return json_of(path, most, shape=dict[str, _Value] | list[msgspec.Raw])


_UNREAD = (msgspec.MsgspecError, RecursionError, ValueError)


def objects(records: Iterable[Any], where: str, must: str) -> Iterator[dict[str, Any]]:
    """Read the records that `json_of` left as text; an error tells the place of one that is not what each must be."""
    for number, record in enumerate(records):
        try:
            found = msgspec.json.decode(record) if isinstance(record, msgspec.Raw) else record
        except _UNREAD:
            found = bytes(record)
        if not isinstance(found, dict):
            raise ConfigError(f"{where}[{number}]", must, f"{found!r:.60}", "record the trace again")
        yield found


def whole(value: object) -> int:
    """The number, if it is a whole one that a graph can have; else 0."""
    return value if type(value) is int and 0 <= value <= LARGEST else 0


_NAME = re.compile(r"(?:void )?([^<(]*)")


def short(name: object) -> str:
    """The name of an op or a kernel without types and parameters, printable."""
    found = _NAME.match(str(name)[:1000].replace("(anonymous namespace)::", ""))
    text = (found.group(1) if found else "").strip() or str(name)[:80]
    return "".join(c if c.isprintable() else "?" for c in text[-100:]) or "op"


@dataclass(eq=False, slots=True)
class Storage:
    """Memory of the device from when it is made to when it is used last.

    Attributes
    ----------
    size_bytes, kind
        As of a `Tensor`.
    persistent
        It was there before the recording began.
    stays
        It is still there when the recording ends.
    is_written
        Some op has written it so far.
    name
        Of its tensor; a number where it is empty.
    """

    size_bytes: int
    kind: str = "activation"
    persistent: bool = False
    stays: bool = False
    is_written: bool = False
    name: str = ""


@dataclass(slots=True)
class Event:
    """An op as it was recorded.

    Attributes
    ----------
    name
        For people.
    reads, writes
        Storages; dictionaries keep their order.
    more
        What else a graph says of it.
    is_collective
        Whether it is one of several ranks.
    """

    name: str
    reads: dict[Storage, None] = field(default_factory=dict)
    writes: dict[Storage, None] = field(default_factory=dict)
    more: OpFields = field(default_factory=OpFields)
    is_collective: bool = False


@dataclass
class Recording:
    """A step as it was recorded, and what was made of it.

    Attributes
    ----------
    storages, ops
        In the order in which they were found; ops in program order.
    groups
        Name -> those who meet.
    kept, derived, dropped
        As of an `Imported`; of what is kept, what this class cannot know.
    step_ns, peak_bytes
        What the recording says that the step took and held; 0 if it does not.
    """

    storages: list[Storage] = field(default_factory=list)
    ops: list[Event] = field(default_factory=list)
    groups: dict[str, list[list[int]]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    derived: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    step_ns: int = 0
    peak_bytes: int = 0

    def storage(self, size_bytes: int, kind: str = "activation", *, persistent: bool = False) -> Storage:
        """Add a storage."""
        self.storages.append(Storage(min(size_bytes, LARGEST), kind, persistent, persistent, persistent))
        return self.storages[-1]

    def hold(self, size_bytes: int, kind: str, first: Event | None, last: Event | None) -> None:
        """Add a storage that one op makes, or that was there before; and that another one reads last, or that stays."""
        was_there = first is None
        storage = self.storage(size_bytes, "input" if was_there and last else kind, persistent=was_there and not last)
        storage.stays = last is None
        if first is not None:
            first.writes[storage] = None
        if was_there or (last and last is not first):
            (last or self.ops[0]).reads[storage] = None

    def graph(self, name: str, where: str) -> Graph:
        """Make the graph of one step.

        Raises
        ------
        ConfigError
            If there is no op, or the whole breaks a rule of a graph.
        """
        do = "say how many ranks meet: --ranks" if self.dropped[ALONE] else "record with the device's activities"
        insist(self.ops, where, "a recording has ops of a device", "none", do)
        must = f"a graph has at most {LARGEST_RUN:,} ops"
        insist(len(self.ops) <= LARGEST_RUN, where, must, f"{len(self.ops):,}", "record fewer steps")
        used = {storage for op in self.ops for storage in (*op.reads, *op.writes)}
        storages = [storage for storage in self.storages if storage in used]
        self.dropped["storages that no op of the device uses"] += len(self.storages) - len(storages)
        width = len(str(len(self.storages)))
        for number, storage in enumerate(storages):
            storage.name = f"s{number:0{width}d}"
        width = len(str(len(self.ops)))
        for number, op in enumerate(self.ops):
            op.name = f"{number:0{width}d}/{op.name}"
        self.ops.reverse()
        ops = (self.ops.pop() for _ in range(len(self.ops)))  # they take more memory than the graph, and go as it grows
        return graph_of(GraphBuilder(name, where), storages, ops, self.groups)

    def imported(self, path: Path, what: str) -> Imported:
        """Make the graph and a workload that runs it, and say what was kept.

        Parameters
        ----------
        path
            The recording.
        what
            What it is, for the title.

        Raises
        ------
        ConfigError
            As of `graph`.
        """
        name = named(path.name.partition(".")[0])
        graph = self.graph(name, inputs.shown(path))
        there = sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)
        took, most = [op.duration_ns for op in graph.ops if op.duration_ns is not None], int(live_bytes(graph).max())
        kept = {
            **self.kept,
            "there before the step": human(there, "B") if there else "",
            "most at once": human(most, "B") if most else "",
            "measured times": f"{human(sum(took), 'ns')} in all, of {counted(len(took), 'op')}" if took else "",
            "recorded peak": human(self.peak_bytes, "B") if self.peak_bytes else "",
        }
        frees = any(not graph.tensors[t].persistent for t in graph.inputs)
        why = "it frees what was there before it" if frees else "the first warms up, the last is counted"
        about = {"name": name, "title": f"{what} of {path.name}", "graph": ".jsonl", "steps": 1 if frees else 2}
        workload = Workload.model_validate({**about, "assumed": {"steps": why}})
        kept = {key: value for key, value in kept.items() if value}
        return Imported({".yaml": workload, ".jsonl": graph}, kept, tuple(self.derived), +self.dropped, self.step_ns)


def graph_of(
    builder: GraphBuilder,
    storages: Iterable[Storage],
    ops: Iterable[Event],
    groups: Mapping[str, list[list[int]]],
) -> Graph:
    """Make the graph of ops that use storages, all of which have their names."""
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


KINDS: Mapping[str, CollectiveKind] = {
    **dict.fromkeys(("allreduce", "reduce", "barrier"), CollectiveKind.ALL_REDUCE),
    **dict.fromkeys(("allgather", "gather"), CollectiveKind.ALL_GATHER),
    **dict.fromkeys(("broadcast", "scatter"), CollectiveKind.BROADCAST),
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
}
"""How the names of collectives begin, without strokes -> what they do here; of a name the longest that fits."""


def collective_kind(name: object) -> CollectiveKind | None:
    """What a collective of a name such as ``_allgather_base`` or ``ALL_REDUCE`` does; None of other names."""
    plain = str(name)[:200].lower().replace("_", "").replace("-", "")
    return next((KINDS[one] for one in sorted(KINDS, key=len, reverse=True) if plain.startswith(one)), None)


def blocks(world: int, start: int, stride: int, size: int) -> list[list[int]]:
    """Cut all ranks into groups like the one of `size` ranks from `start` on, each `stride` after the one before.

    If the ranks do not divide so, that one alone.
    """
    span = stride * size
    if world % span or start + span - stride >= world:
        return [[start + i * stride for i in range(size)]]
    return [[base + off + i * stride for i in range(size)] for base in range(0, world, span) for off in range(stride)]


def read_graph(source: str | Path, *, views: Views = "reads") -> Imported:
    """Read a graph file, and make a workload that runs it.

    Parameters
    ----------
    source
        A ``hosim-graph/1`` (JSON lines) or a ``residency-trace/1`` (JSON).
    views
        Whether in a recorded trace an op that only makes a view of a tensor reads it, or writes it too.

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
    dropped = residency_json.unused(path) if is_trace else {}
    if is_trace:
        derived.append(f"Ops that only make a view {'read' if views == 'reads' else 'write'} what they view (--views).")
    workload = Workload(name=named(graph.name), title=f"The graph of {path.name}", graph=".jsonl")
    return Imported({".yaml": workload, ".jsonl": graph}, kept, tuple(derived), dropped)
