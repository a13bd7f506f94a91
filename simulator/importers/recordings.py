"""What readers of recordings have in common: files, ops and storages as they are found, and one stream's timeline.

A recording tells of a device what happened when, on several streams. hosim replays a rank on one compute stream (what
has no recorded duration may meet others on streams of their own). So all is laid on one stream, by `laid`: what runs
while something else still runs counts from that one's end on, and where nothing runs, an op ``host`` takes the time.
The sum is the recorded time.
"""

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

import orjson

from simulator import inputs
from simulator.errors import ConfigError, insist
from simulator.formats import jsonl
from simulator.graph import LARGEST, LARGEST_RUN, Collective, CollectiveKind, Graph
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.importers.imported import Imported, named
from simulator.lifetime import live_bytes
from simulator.units import FieldError, human
from simulator.workload import Workload

MOST_BYTES = 400_000_000
"""Most bytes of a recording, unpacked; it is in memory as a whole, as objects several times as large."""
MOST_VALUES = 40_000_000
"""Most values of one in JSON: short ones take many times their bytes."""


def unpacked(path: Path, most: int | None = None) -> bytes:
    """Read a recording; of an archive (``.tar``, ``.tar.gz``, ``.tgz``) the first file whose name does not hide.

    Raises
    ------
    ConfigError
        If it cannot be read, is too large or empty, or is a pickle.
    """
    most = most or MOST_BYTES
    with inputs.opened(path, is_packed=False) as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    with inputs.opened(path, is_packed=is_packed) as file:
        data = file.read(most + 1)
    where, must = inputs.shown(path), f"an input has at most {most:,} bytes, unpacked"
    found = f"more, in a file of {path.stat().st_size:,} bytes"
    insist(len(data) <= most, where, must, found, "check that it is the right file, or write less into it")
    if path.name.endswith((".tar", ".tar.gz", ".tgz")):
        data = _first_file(data, where)
    inputs.data_only(data, path)
    insist(data.strip(), where, "a file holds something", "an empty one", "write it again")
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
        do = "pack it again, or correct its name"
        raise ConfigError(where, "a file of this name is a tar archive", str(error) or "another file", do) from None
    raise ConfigError(where, "the archive holds a file", "none", "pack the recording into it")


def json_of(path: Path, most: int | None = None, *, distinct: bool = False) -> Any:
    """Read a file in JSON, of at most so many bytes; errors as of `unpacked`, or if it is none.

    If all keys are to be `distinct`, one that comes twice in an object is an error, too.
    """
    text = inputs.unmarked(unpacked(path, most), path)
    values = sum(map(text.count, (b",", b"[", b"{")))
    must = f"a recording has at most {MOST_VALUES:,} values"
    insist(values <= MOST_VALUES, inputs.shown(path), must, f"about {values:,}", "record fewer steps")
    try:
        found = orjson.loads(text)
        if distinct:
            with suppress(RecursionError):  # which orjson knows none of
                json.loads(text, object_pairs_hook=jsonl.distinct)
        return found
    except FieldError as error:
        raise ConfigError(inputs.shown(path), error.must, error.found, error.do) from None
    except orjson.JSONDecodeError as error:
        if b"Infinity" in text or b"NaN" in text:  # which Python writes though JSON has none
            with suppress(ValueError, RecursionError):
                return json.loads(text)
        where, found = f"{inputs.shown(path)}:{error.lineno}", f"{error.msg} (column {error.colno})"
        raise ConfigError(where, "the file is JSON", found, "write it again, or choose another one") from None


def whole(value: object) -> int:
    """The number, if it is a whole one that a graph can have; else 0."""
    return value if type(value) is int and 0 <= value <= LARGEST else 0


_NAME = re.compile(r"(?:void )?([^<(]*)")


def short(name: object) -> str:
    """The name of an op or a kernel without types and parameters, printable."""
    found = _NAME.match(str(name)[:1000].replace("(anonymous namespace)::", ""))
    text = (found.group(1) if found else "").strip() or str(name)[:80]
    return "".join(c if c.isprintable() else "?" for c in text[-100:]) or "op"


@dataclass(slots=True)
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
    """

    size_bytes: int
    kind: str = "activation"
    persistent: bool = False
    stays: bool = False
    is_written: bool = False


@dataclass(slots=True)
class Event:
    """An op as it was recorded.

    Attributes
    ----------
    name
        For people; a number makes it unique.
    reads, writes
        Storages; dictionaries keep their order.
    more
        What else a graph says of it.
    is_collective
        Whether it is one of several ranks.
    """

    name: str
    reads: dict[int, None] = field(default_factory=dict)
    writes: dict[int, None] = field(default_factory=dict)
    more: OpFields = field(default_factory=OpFields)
    is_collective: bool = False


@dataclass
class Recording:
    """A step as it was recorded, and what was made of it.

    Attributes
    ----------
    storages, ops
        A storage's position is its number; ops in program order.
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

    def storage(self, size_bytes: int, kind: str = "activation", *, persistent: bool = False) -> int:
        """Add a storage and return its number."""
        self.storages.append(Storage(min(size_bytes, LARGEST), kind, persistent, persistent, persistent))
        return len(self.storages) - 1

    def graph(self, name: str, where: str) -> Graph:
        """Make the graph of one step.

        Raises
        ------
        ConfigError
            If there is no op, or the whole breaks a rule of a graph.
        """
        insist(self.ops, where, "a recording has ops of a device", "none", "record with the device's activities")
        must = f"a graph has at most {LARGEST_RUN:,} ops"
        insist(len(self.ops) <= LARGEST_RUN, where, must, f"{len(self.ops):,}", "record fewer steps")
        builder, used = GraphBuilder(name, where), set[int]().union(*((*op.reads, *op.writes) for op in self.ops))
        names = {t: f"s{t:0{len(str(len(self.storages)))}d}" for t in sorted(used)}
        self.dropped["storages that no op of the device uses"] += len(self.storages) - len(used)
        for t, text in names.items():
            one = self.storages[t]
            builder.tensor(text, one.size_bytes, one.kind, persistent=one.persistent)
        for group, members in self.groups.items():
            builder.group(group, members)
        width = len(str(len(self.ops)))
        for number, op in enumerate(self.ops):
            reads, writes = ([names[t] for t in accessed] for accessed in (op.reads, op.writes))
            kind = "collective" if op.is_collective else "compute"
            builder.op(f"{number:0{width}d}/{op.name}", reads, writes, kind, **op.more)
        stay = [text for t, text in names.items() if self.storages[t].stays and not self.storages[t].persistent]
        return builder.build(stay)

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
        sizes = sum(tensor.size_bytes for tensor in graph.tensors)
        there = sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)
        durations = [op.duration_ns for op in graph.ops if op.duration_ns is not None]
        kept = {
            **self.kept,
            "ops": f"{len(graph.ops):,}",
            "tensors": f"{len(graph.tensors):,}, of {human(sizes, 'B')} in all" if sizes else "",
            "there before the step": human(there, "B") if there else "",
            "most at once": human(int(live_bytes(graph).max()), "B") if sizes else "",
            "measured times of ops": f"{human(sum(durations), 'ns')} in all, of {len(durations):,}"
            if durations
            else "",
            "recorded peak": human(self.peak_bytes, "B") if self.peak_bytes else "",
        }
        once = any(not graph.tensors[t].persistent for t in graph.inputs)
        steps, why = (
            (1, "it frees what was there before it") if once else (2, "the first warms up, the last is counted")
        )
        about = {"name": name, "title": f"{what} of {path.name}", "graph": ".jsonl", "steps": steps}
        workload = Workload.model_validate({**about, "assumed": {"steps": why}})
        return Imported(
            files={".yaml": workload, ".jsonl": graph},
            kept={key: value for key, value in kept.items() if value},
            derived=tuple(self.derived),
            dropped={key: times for key, times in self.dropped.items() if times},
            recorded_ns=self.step_ns,
        )


def laid(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Lay spans that may overlap on one stream: for each the idle time before it, and what is left of it.

    Parameters
    ----------
    spans
        (start, end) [ns], by start.
    """
    until = None
    for start, end in spans:
        until = start if until is None else until
        yield max(0, start - until), max(0, end - max(start, until))
        until = max(until, end)


KINDS: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "reduce": CollectiveKind.ALL_REDUCE,
    "barrier": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "gather": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "scatter": CollectiveKind.BROADCAST,
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


def meeting(kind: CollectiveKind, group: str, size_bytes: int) -> Collective:
    """Make a collective of the algorithm that is fastest on the machine."""
    return Collective(kind, group, min(size_bytes, LARGEST))
