"""A timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, in Chrome's JSON: a dump of the trace's tables.

Each rank is a process, with a thread for the steps, one for each stream and its stalls, and one for each channel of a
link; a slice is a line of `simulator.metrics.Frames`. Counters: the bytes in each tier, in all and by tensor kind; if
places have addresses, the reserved bytes and the largest hole. Shared tiers and buses have processes of their own after
those of ranks, with counters. Of a large job only some ranks are written; the label of the first process says so.
Times are microseconds with nanoseconds as decimals. Viewers write the id of a process behind its name (so the name
needs no rank), and call a thread that has the id of its process the main thread (so no thread has a small id).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import orjson

from simulator.metrics.rows import Row, chosen, of_ranks
from simulator.report.readings import KINDS, Columns, Usage, columns, space, usages
from simulator.report.words import omitted, quantity
from simulator.trace import Block, Ints, lasts, pick

Event = bytes
"""An event as JSON."""
Events = Callable[[int], Iterable[Event]]
"""Makes events of the process with this id."""
_CHUNK = 20_000
_FIRST = 100_000
"""Id of the first thread, above the ids of all processes."""
MOST_RANKS = 64
"""Most ranks of a file: a reader can still find one in a viewer, and the trace loads in seconds."""


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the traces of rows as Chrome JSON, gzipped; the processes of each come after those of the row before.

    Parameters
    ----------
    rows
        Rows with traces.
    path
        The file.
    """
    between, every = b"", chain.from_iterable(_of_all(rows))
    with path.open("wb") as plain, gzip.GzipFile("", "wb", compresslevel=1, fileobj=plain, mtime=0) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        while chunk := b",".join(islice(every, _CHUNK)):
            out.write(between + chunk)
            between = b",\n"
        out.write(b"\n]}\n")


def _of_all(rows: Sequence[Row]) -> Iterator[Iterable[Event]]:
    first = behind = 0
    for row in rows:
        for pid, some in _by_process(row, "process" if rows[1:] else "rank"):
            behind = max(behind, first + pid + 1)
            yield some(first + pid)
        first = behind


def events(row: Row) -> Iterator[Event]:
    """Iterate over the events of a row's trace: names, slices and counters, rank by rank.

    Parameters
    ----------
    row
        A row with a trace.
    """
    return chain.from_iterable(_of_all([row]))


def _by_process(row: Row, numbered: str) -> Iterator[tuple[int, Events]]:
    """Iterate over the events of a row's trace, some at a time, each with the id of their process.

    Parameters
    ----------
    row
        A row with a trace.
    numbered
        What viewers number: the ids of processes.
    """
    if row.trace is None:
        return
    ranks = chosen(row, MOST_RANKS)
    yield 0, partial(_meta, "process_labels", labels=omitted(row, ranks))
    for view in of_ranks(row, ranks):
        times = f" x{view.stands_for}" if view.stands_for > 1 else ""
        name = ", ".join(filter(None, (row.label, view.program)))
        yield view.rank, partial(_meta, "process_name", name=f"{name}{times}, {numbered}")
        yield view.rank, partial(_slices, view)
        for usage in usages(view):
            if usage.scope == "device" or not row.is_job:
                yield view.rank, partial(_memory, usage)
        if (kept := space(view)) is not None:
            tier = row.hardware.compute_tier
            yield view.rank, partial(_counter, f"{tier}: reserved", kept.time_ns, kept.reserved_bytes)
            if kept.has_holes:
                yield view.rank, partial(_counter, f"{tier}: largest hole", kept.time_ns, kept.hole_bytes)
    if row.is_job:
        yield from _shared(row, row.trace.rates.whole())


def _meta(name: str, pid: int, tid: int = 0, /, **args: object) -> list[Event]:
    return [orjson.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args})]


def _events(about: Columns, args: Columns) -> Iterator[Event]:
    """Iterate over events: what they are about, and their arguments, without empty values but the first of each.

    A text or a number stands for a column of it.
    """
    forms, cells = list[bytes](), list[Sequence[bytes]]()
    for table in (about, args):
        form = b""
        for key, values in table.items():
            start = b",%b:" % orjson.dumps(key)
            if isinstance(values, str | int):
                form += (start + orjson.dumps(values)).replace(b"%", b"%%") if values != "" else b""
            elif set(map(type, values)) <= {int, float}:  # most are different: written at once
                form += start.replace(b"%", b"%%") + b"%b"
                cells.append(orjson.dumps(values)[1:-1].split(b",") if values else ())
            else:
                form += b"%b"
                text_of = {value: start + orjson.dumps(value) for value in set(values)} | dict.fromkeys(("", None), b"")
                cells.append([*map(text_of.__getitem__, values)])
        forms.append(form[1:])
    return map((b'{%b,"args":{%b}}' % (*forms,)).__mod__, zip(*cells, strict=True))


def _slices(view: Row, pid: int) -> Iterable[Event]:
    """Return the threads of a rank and their slices: steps, spans and waits."""
    spans, waits, ends = columns(view, "spans"), columns(view, "waits"), dict[int, int]()
    of_phase = zip(spans["phase"], spans["kind"], strict=True)
    spans["cat"] = [kind if kind == "delay" else phase or kind for phase, kind in of_phase]
    places = zip(spans["kind"], spans["track"], spans["channel"], strict=True)
    spans["lane"] = [f"{track} #{channel}" if kind == "transfer" else track for kind, track, channel in places]
    for lane, kind, step, end in zip(*(spans[key] for key in ("lane", "kind", "step", "end_ns")), strict=True):
        if kind != "transfer" and (lane == "stream 0" or not view.graph.meets):
            ends[step] = max(end, ends.get(step, 0))
    waits["lane"], waits["cat"] = [f"stream {stream} stalls" for stream in waits["stream"]], "stall"
    waits["name"] = [f"{cause} at {on}" if on else cause for cause, on in zip(waits["cause"], waits["on"], strict=True)]
    order = sorted(ends)
    steps: Columns = {"lane": ["steps"] * len(ends), "name": [f"step {step}" for step in order], "cat": "step"}
    steps |= {"step": order, "start_ns": [0, *sorted(ends.values())][: len(ends)], "end_ns": [ends[k] for k in order]}
    lanes = sorted({*steps["lane"], *spans["lane"], *waits["lane"]}, key=lambda lane: ("#" in lane, lane))
    threads = {lane: tid for tid, lane in enumerate(lanes, _FIRST)}
    made = list[Iterable[Event]]()
    for lane, tid in threads.items():
        of_host = any(lane.startswith(f"stream {stream}") for stream in view.graph.host_streams)
        made.append(_meta("thread_name", pid, tid, name=f"host, {lane}" if of_host else lane))
        made.append(_meta("thread_sort_index", pid, tid, sort_index=tid))
    for args in (steps, spans, waits):
        lane, starts, finishes = args.pop("lane"), args.pop("start_ns"), args.pop("end_ns")
        about: Columns = {"ph": "X", "pid": pid, "tid": [threads[each] for each in lane]}
        about |= {"name": args.pop("name"), "cat": args.pop("cat"), "ts": [start / 1000 for start in starts]}
        about["dur"] = [(end - start) / 1000 for start, end in zip(starts, finishes, strict=True)]
        made.append(_events(about, args))
    return chain.from_iterable(made)


def _shared(row: Row, rates: Block) -> Iterator[tuple[int, Events]]:
    """Iterate over counters of the tiers and buses that ranks share, in processes of their own."""
    processes: dict[str, int] = {}

    def process(scope: str, instance: int) -> int:
        name = f"{scope} {instance}" if scope == "node" else scope
        return processes.setdefault(name, row.job.ranks + len(processes))

    for usage in usages(row):
        yield process(usage.scope, usage.instance), partial(_memory, usage)
    for index, (name, bus) in enumerate(row.hardware.caps.items()):
        of_bus = pick(rates, rates["bus"] == index)
        title = f"{name}: rate (cap {quantity(bus.bandwidth_bytes_per_s, 'B/s')})"
        for instance in np.unique(of_bus["instance"]).tolist():
            changes, pid = pick(of_bus, of_bus["instance"] == instance), process(bus.scope, instance)
            yield pid, partial(_counter, title, changes["time_ns"], changes["bytes_per_s"], unit="B/s")
    for where, pid in processes.items():
        yield pid, partial(_meta, "process_name", name=f"shared in {where}, id")


def _memory(usage: Usage, pid: int) -> Iterable[Event]:
    counted = {f"{usage.tier} ({usage.allowed})" if usage.allowed else usage.tier: usage.total_bytes}
    counted |= {f"{usage.tier}: {KINDS[k].replace('_', ' ')}": usage.kind_bytes[k] for k in usage.kinds}
    return chain.from_iterable([_counter(name, usage.time_ns, held, pid) for name, held in counted.items()])


def _counter(name: str, times: Ints, held: Ints, pid: int, unit: str = "B") -> Iterator[Event]:
    """Iterate over the changes of a counter; viewers write its unit behind its name."""
    last = np.flatnonzero(lasts(times))
    changes = last[np.diff(held[last], prepend=held[last[:1]] - 1) != 0]
    moments = [time / 1000 for time in times[changes].tolist()]
    about = {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": moments}
    return _events(about, {f"[{unit}]": held[changes].tolist()})
