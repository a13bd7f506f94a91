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
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from simulator.report.readings import KINDS, Usage, lines, space, usages
from simulator.report.rows import Row, chosen, of_ranks, omitted, quantity
from simulator.trace import Block, Ints, lasts, pick

Event = dict[str, Any]
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
    between, every = b"", _of_all(rows)
    with path.open("wb") as plain, gzip.GzipFile("", "wb", compresslevel=1, fileobj=plain, mtime=0) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        while chunk := list(islice(every, _CHUNK)):
            out.write(between + orjson.dumps(chunk)[1:-1])
            between = b",\n"
        out.write(b"\n]}\n")


def _of_all(rows: Sequence[Row]) -> Iterator[Event]:
    first = behind = 0
    for row in rows:
        for event in events(row, "process" if rows[1:] else "rank"):
            event["pid"] += first
            behind = max(behind, event["pid"] + 1)
            yield event
        first = behind


def events(row: Row, numbered: str = "rank") -> Iterator[Event]:
    """Iterate over the events of a row's trace: names, slices and counters, rank by rank.

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
    yield _meta("process_labels", ranks[0], 0, labels=omitted(row, ranks))
    for view in of_ranks(row, ranks):
        times = f" x{view.stands_for}" if view.stands_for > 1 else ""
        name = ", ".join(filter(None, (row.label, view.program)))
        yield _meta("process_name", view.rank, 0, name=f"{name}{times}, {numbered}")
        yield from _slices(view)
        for usage in usages(view):
            if usage.scope == "device" or not row.is_job:
                yield from _memory(usage, view.rank)
        if (kept := space(view)) is not None:
            tier = row.hardware.compute_tier
            yield from _counter(f"{tier}: reserved", view.rank, kept.time_ns, kept.reserved_bytes)
            if kept.has_holes:
                yield from _counter(f"{tier}: largest hole", view.rank, kept.time_ns, kept.hole_bytes)
    if row.is_job:
        yield from _shared(row, row.trace.rates.whole())


def _meta(name: str, pid: int, tid: int, /, **args: object) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _slices(view: Row) -> Iterator[Event]:
    """Iterate over the threads of a rank and their slices: steps, spans and waits."""
    spans, waits, ends = lines(view, "spans"), lines(view, "waits"), dict[int, int]()
    for span in spans:
        span["cat"] = span["phase"] or span["kind"]
        span["lane"] = span["track"] if span["kind"] == "compute" else f"{span['track']} #{span['channel']}"
        if span["kind"] == "compute" and (span["track"] == "stream 0" or not view.graph.meets):
            ends[span["step"]] = max(span["end_ns"], ends.get(span["step"], 0))
    for wait in waits:
        wait["lane"], wait["cat"] = f"stream {wait['stream']} stalls", "stall"
        wait["name"] = f"{wait['cause']} at {wait['on']}" if wait["on"] else wait["cause"]
    steps = [
        {"lane": "steps", "name": f"step {step}", "cat": "step", "step": step, "start_ns": start, "end_ns": ends[step]}
        for step, start in zip(sorted(ends), (0, *sorted(ends.values())), strict=False)
    ]
    slices = [*steps, *spans, *waits]
    lanes = sorted({each["lane"] for each in slices}, key=lambda lane: ("#" in lane, lane))
    threads = {lane: tid for tid, lane in enumerate(lanes, _FIRST)}
    for lane, tid in threads.items():
        yield _meta("thread_name", view.rank, tid, name=lane)
        yield _meta("thread_sort_index", view.rank, tid, sort_index=tid)
    for args in slices:
        about = {"ph": "X", "pid": view.rank, "tid": threads[args.pop("lane")], "name": args.pop("name")}
        start, end = args.pop("start_ns"), args.pop("end_ns")
        about |= {"cat": args.pop("cat"), "ts": start / 1000, "dur": (end - start) / 1000}
        yield about | {"args": {key: value for key, value in args.items() if value not in ("", None)}}


def _shared(row: Row, rates: Block) -> Iterator[Event]:
    """Iterate over counters of the tiers and buses that ranks share, in processes of their own."""
    processes: dict[str, int] = {}

    def process(scope: str, instance: int) -> int:
        name = f"{scope} {instance}" if scope == "node" else scope
        return processes.setdefault(name, row.job.ranks + len(processes))

    for usage in usages(row):
        yield from _memory(usage, process(usage.scope, usage.instance))
    for index, (name, bus) in enumerate(row.hardware.buses.items()):
        of_bus = pick(rates, rates["bus"] == index)
        title = f"{name}: rate (cap {quantity(bus.bandwidth_bytes_per_s, 'B/s')})"
        for instance in np.unique(of_bus["instance"]).tolist():
            changes, pid = pick(of_bus, of_bus["instance"] == instance), process(bus.scope, instance)
            yield from _counter(title, pid, changes["time_ns"], changes["bytes_per_s"], "B/s")
    for where, pid in processes.items():
        yield _meta("process_name", pid, 0, name=f"shared in {where}, id")


def _memory(usage: Usage, pid: int) -> Iterator[Event]:
    name = f"{usage.tier} ({usage.allowed})" if usage.allowed else usage.tier
    yield from _counter(name, pid, usage.time_ns, usage.total_bytes)
    for k in usage.kinds:
        yield from _counter(f"{usage.tier}: {KINDS[k].replace('_', ' ')}", pid, usage.time_ns, usage.kind_bytes[k])


def _counter(name: str, pid: int, times: Ints, held: Ints, unit: str = "B") -> Iterator[Event]:
    """Iterate over the changes of a counter; viewers write its unit behind its name."""
    last = np.flatnonzero(lasts(times))
    changes = last[np.diff(held[last], prepend=held[last[:1]] - 1) != 0]
    for time, value in zip(times[changes].tolist(), held[changes].tolist(), strict=True):
        yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": time / 1000, "args": {f"[{unit}]": value}}
