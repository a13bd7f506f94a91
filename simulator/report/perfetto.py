"""A timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, in Chrome's JSON.

One process per rank. Threads: the training steps, one per compute stream, one for the collectives of each group with a
stream of its own, one for the stalls of each stream by cause, one per channel of each link; slices of one thread never
overlap.
Counters: bytes that lie in each tier, in all and by tensor kind; where places have addresses, what is reserved and the
largest hole. Arrows: from each copy into the compute tier to the
first op that reads it, from each send to its receive, and through the members of each collective. What ranks share has
processes of its own, with counters of the tiers and of the buses. Of a large job the ranks that tell most are written,
which its first process says. Times are microseconds with
nanoseconds as decimals. Viewers write the id behind the name of a process (so that it needs no rank of its own) and
of a thread, and call a thread with the id of its process the main one (so that no thread has a small id).
"""

from __future__ import annotations

import gzip
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from simulator.graph import PAIRED, CollectiveKind, Graph
from simulator.hardware import Hardware
from simulator.metrics import blocker_name, laid_out, op_name, place_name
from simulator.plan import COMPUTE, COPY
from simulator.report.ranks import Met, chosen, collectives, is_job, of_ranks, omitted
from simulator.report.rows import Row, grouped, only, quantity
from simulator.report.usage import KINDS, Usage, lasting, loads, shared_usages, space, usages
from simulator.trace import CAUSES, Block, Trace

Ints = NDArray[np.int64]
Event = dict[str, Any]
_CHUNK = 20_000
_STEPS, _STREAMS, _LINKS, _CHANNELS = 1000, 2000, 4000, 1000
"""First thread ids of the steps, of streams and their stalls, and of channels (a thousand for each link)."""
MOST_RANKS = 64
"""So many ranks can still be found in a viewer, and their trace loads in seconds."""
_NAMED = 16
"""So many members of a collective are named."""


def write(row: Row, path: Path) -> None:
    """Write the trace of a row as Chrome JSON, gzipped.

    Parameters
    ----------
    row
        A row with a trace.
    path
        The file.
    """
    between, every = b"", events(row)
    with path.open("wb") as plain, gzip.GzipFile("", "wb", compresslevel=1, fileobj=plain, mtime=0) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        while chunk := list(islice(every, _CHUNK)):
            out.write(between + orjson.dumps(chunk)[1:-1])
            between = b",\n"
        out.write(b"\n]}\n")


def events(row: Row) -> Iterator[Event]:
    """Iterate over the events of a row's trace: names first, then slices, arrows and counters.

    Parameters
    ----------
    row
        A row with a trace.
    """
    if row.trace is None:
        return
    ranks, everybody = chosen(row, MOST_RANKS), of_ranks(row)
    shown = [view for view in everybody if view.rank in set(ranks)]
    if is_job(row) and (said := omitted(row, ranks)):
        yield _meta("process_labels", ranks[0], 0, labels=said)
    for view in shown:
        yield from _of_rank(view, alone=not is_job(row))
    if is_job(row):
        yield from _meetings(shown, row.trace)
        yield from _shared(row, everybody)


def _of_rank(view: Row, *, alone: bool) -> Iterator[Event]:
    """All that one rank did."""
    if view.trace is None:
        return
    spans, waits = laid_out(view.graph, view.hardware, view.trace)
    is_stall = np.isin(waits["cause"], [CAUSES.index(cause) for cause in ("peer", "capacity", "transfer")])
    # a stream of collectives stalls if these have something to wait for, and idles otherwise
    waits = only(waits, (waits["stream"] == 0) | is_stall | (not view.graph.meets))
    met = {one.span: one for one in collectives(view)}
    yield from _names(view, spans, waits, met)
    yield from _step_slices(view, spans, spans["step"])
    yield from _span_slices(view, spans, met)
    yield from _wait_slices(view, waits)
    yield from _arrows(view, spans)
    for usage in usages(view):
        if alone or view.hardware.tiers[usage.tier].scope == "device":
            yield from _memory(view, usage, view.rank)
    if (kept := space(view)) is not None:
        yield from _counter(f"{kept.tier}: reserved", view.rank, kept.time_ns, kept.reserved_bytes)
        if kept.has_holes:
            yield from _counter(f"{kept.tier}: largest hole", view.rank, kept.time_ns, kept.hole_bytes)


def _names(view: Row, spans: Block, waits: Block, met: Mapping[int, Met]) -> Iterator[Event]:
    runs, rank = ", ".join(filter(None, (view.label, view.program))), view.rank
    times = f" x{view.stands_for}" if view.stands_for > 1 else ""
    yield _meta("process_name", rank, 0, name=f"{runs}{times}, rank")
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    groups: dict[int, dict[str, None]] = {}
    for at, one in met.items():
        groups.setdefault(int(spans["track"][at]), {})[one.what.group] = None
    threads, stalled = {_STEPS: "steps"}, set(waits["stream"].tolist())
    for stream in sorted(stalled | set(spans["track"][spans["kind"] == COMPUTE].tolist())):
        those = f": {', '.join(groups[stream])}" if stream in groups else ""
        threads[_stream(stream)] = (f"collectives{those}" if those else f"stream {stream}") if stream else "compute"
        if not stream or stream in stalled:
            threads[_stalls(stream)] = f"stalls{those or f' of stream {stream}'}" if stream else "stalls"
    for i, (name, link) in enumerate(view.hardware.links.items()):
        for channel in range(link.channels):
            threads[_channel(i, channel)] = f"{name} #{channel}" if link.channels > 1 else name
    for order, (tid, name) in enumerate(sorted(threads.items())):
        yield _meta("thread_name", rank, tid, name=name)
        yield _meta("thread_sort_index", rank, tid, sort_index=order)


def _stream(number: int) -> int:
    """Thread id of a stream."""
    return _STREAMS + 2 * number


def _stalls(number: int) -> int:
    """Thread id of the stalls of a stream, which viewers then show below it."""
    return _STREAMS + 2 * number + 1


def _channel(link: int, number: int) -> int:
    """Thread id of a channel of a link."""
    return _LINKS + _CHANNELS * link + number


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    return ns / 1000


def _slice(where: tuple[int, int], name: str, category: str, ends_ns: tuple[int, int], args: Event) -> Event:
    """A slice of a thread of a process."""
    (pid, tid), (start, end) = where, ends_ns
    event: Event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid}
    return event | {"ts": _us(start), "dur": _us(end - start)} | ({"args": args} if args else {})


def _step_slices(view: Row, spans: Block, of_step: Ints) -> Iterator[Event]:
    """From the end of one step to the end of the next, on the stream that ends last; among ranks, that computes."""
    mine, start = spans["kind"] == COMPUTE, 0
    if not mine.any():
        return
    main = 0 if view.graph.meets else spans["track"][mine][np.argmax(spans["end_ns"][mine])]
    mine &= spans["track"] == main
    for step in np.unique(of_step[mine]).tolist():
        end = int(spans["end_ns"][mine & (of_step == step)].max())
        yield _slice((view.rank, _STEPS), f"step {step}", "step", (start, end), {})
        start = end


def _span_slices(view: Row, spans: Block, met: Mapping[int, Met]) -> Iterator[Event]:
    graph, links = view.graph, view.hardware.link_names
    rows = zip(*(column.tolist() for column in spans.values()), strict=True)
    for at, (_, kind, item, track, channel, _, issued, start, end, _, run) in enumerate(rows):
        about: Event = {"issued_us": _us(issued)}
        thread, name = (view.rank, _stream(track)), op_name(graph, item, run) if kind == COMPUTE else ""
        if at in met:
            yield _slice(thread, name, "collective", (start, end), about | _about(met[at]))
        elif kind == COMPUTE:
            op = graph.ops[item]
            phase = "recompute" if run > 1 else op.phase or "compute"
            about |= {"class": op.op_class, "flops": op.flops}
            yield _slice(thread, name, phase, (start, end), about)
        else:
            tensor, thread = graph.tensors[item], (view.rank, _channel(track, channel))
            about |= {"link": links[track], "kind": tensor.kind.value, "bytes": tensor.size_bytes}
            yield _slice(thread, tensor.name, "transfer", (start, end), about)


def _about(one: Met) -> Event:
    """What a collective is; members that met have the same ``meeting``."""
    members = ", ".join(map(str, one.members[:_NAMED])) + (", ..." if len(one.members) > _NAMED else "")
    return {
        "kind": one.what.kind.value,
        "group": one.what.group,
        "bytes": one.what.size_bytes,
        "algorithm": one.what.algorithm,
        "members": members,
        "meeting": f"{one.what.group} of {one.members[0]}-{one.members[-1]}, number {one.number}",
    }


def _wait_slices(view: Row, waits: Block) -> Iterator[Event]:
    graph = view.graph
    rows = zip(*(column.tolist() for column in waits.values()), strict=True)
    for _, stream, op, _, start, end, cause, tensor, on, blocker, _, run in rows:
        where = place_name(view.hardware, cause, on)
        lacked = graph.tensors[tensor].name if tensor >= 0 else ""
        more = {"at": where, "tensor": lacked, "behind": blocker_name(graph, cause, blocker)}
        about: Event = {"op": op_name(graph, op, run), "cause": CAUSES[cause]}
        about |= {key: name for key, name in more.items() if name}
        name = f"{CAUSES[cause]} at {where}" if where else CAUSES[cause]
        yield _slice((view.rank, _stalls(stream)), name, "stall", (start, end), about)


def first_readers(graph: Graph, hardware: Hardware, spans: Block) -> list[tuple[int, int]]:
    """Pair each copy into the compute tier with the first op that reads the tensor afterwards.

    Parameters
    ----------
    graph, hardware
        Who reads what; where a link leads.
    spans
        All spans of a trace of one rank.

    Returns
    -------
    list of (int, int)
        Row of the copy and row of the compute in `spans`; copies that nothing reads afterwards are left out.
    """
    inward = [i for i, link in enumerate(hardware.links.values()) if link.target == hardware.compute_tier]
    copies = np.flatnonzero((spans["kind"] == COPY) & np.isin(spans["track"], inward))
    computes = np.flatnonzero(spans["kind"] == COMPUTE)
    item, start, end = (spans[name].tolist() for name in ("item", "start_ns", "end_ns"))
    readers: dict[int, list[int]] = defaultdict(list)
    for at in computes[np.argsort(spans["start_ns"][computes], kind="stable")].tolist():
        for tensor in graph.ops[item[at]].reads:
            readers[tensor].append(at)
    found = []
    for copy in copies.tolist():
        reading = readers[item[copy]]
        first = bisect_left(reading, end[copy], key=start.__getitem__)
        found += [(copy, at) for at in reading[first : first + 1]]
    return found


def _arrows(view: Row, spans: Block) -> Iterator[Event]:
    track, channel, start, end = (spans[name].tolist() for name in ("track", "channel", "start_ns", "end_ns"))
    for number, (copy, at) in enumerate(first_readers(view.graph, view.hardware, spans)):
        base: Event = {"name": "read by", "cat": f"first reader {view.rank}", "id": number, "pid": view.rank}
        leaves = view.rank, _channel(track[copy], channel[copy]), max(start[copy], end[copy] - 1)
        yield from _arrow(base, [leaves, (view.rank, _stream(track[at]), start[at])])


def _arrow(base: Event, points: Sequence[tuple[int, int, int]]) -> Iterator[Event]:
    """An arrow through threads of processes, at these times [ns]."""
    for place, (pid, tid, ns) in enumerate(points):
        how: Event = {"ph": "f", "bp": "e"} if place == len(points) - 1 else {"ph": "t" if place else "s"}
        yield {**base, **how, "pid": pid, "tid": tid, "ts": _us(ns)}


def _meetings(shown: Sequence[Row], trace: Trace) -> Iterator[Event]:
    """Arrows from each send to its receive, and through the members of each collective, of the ranks that are shown."""

    def meeting(part: tuple[Row, Met]) -> tuple[str, frozenset[int], int]:
        return part[1].what.group, frozenset(trace.stands_in[member] for member in part[1].members), part[1].number

    met = grouped(((view, one) for view in shown for one in collectives(view)), meeting)
    spans = {view.rank: view.trace.spans.whole() for view in shown if view.trace is not None}
    for number, parts in enumerate(met.values()):
        if len(parts) < 2:
            continue
        is_message = parts[0][1].what.kind in PAIRED
        points = []
        for view, one in sorted(parts, key=lambda part: part[1].what.kind is CollectiveKind.RECV):
            start, end, stream = (int(spans[view.rank][c][one.span]) for c in ("start_ns", "end_ns", "track"))
            points.append((view.rank, _stream(stream), start))
        if is_message:
            points[-1] = (*points[-1][:2], max(start, end - 1))
        yield from _arrow({"name": "received by" if is_message else "meets", "cat": "meeting", "id": number}, points)


def _shared(row: Row, everybody: Sequence[Row]) -> Iterator[Event]:
    """What ranks share: the memory of tiers and the load of buses, in processes behind those of the ranks."""
    known: dict[tuple[str, int], int] = {}

    def process(scope: str, instance: int) -> Iterator[Event]:
        if (scope, instance) not in known:
            known[scope, instance] = pid = row.job.ranks + len(known)
            whose = f"node {instance}" if scope == "node" else "supernode"
            yield _meta("process_name", pid, 0, name=f"shared in {whose}, id")
            yield _meta("process_sort_index", pid, 0, sort_index=pid)

    for scope, instance, usage in shared_usages(row):
        yield from process(scope, instance)
        yield from _memory(row, usage, known[scope, instance])
    for load in loads(row, everybody):
        yield from process(load.scope, load.instance)
        pid, cap = known[load.scope, load.instance], quantity(load.bandwidth_bytes_per_s, "B/s")
        yield from _counter(f"{load.bus}: under way", pid, load.time_ns, load.flows, "flows")
        yield from _counter(f"{load.bus}: rate (cap {cap})", pid, load.rate_ns, load.bytes_per_s, "B/s")


def _memory(row: Row, usage: Usage, pid: int) -> Iterator[Event]:
    last = lasting(usage.time_ns)
    limit = usage.limit(row.hardware.compute_tier)
    name = f"{usage.tier} ({limit})" if limit else usage.tier
    yield from _counter(name, pid, usage.time_ns[last], usage.total_bytes[last])
    for k in usage.kinds:
        kind = KINDS[k].replace("_", " ")
        yield from _counter(f"{usage.tier}: {kind}", pid, usage.time_ns[last], usage.kind_bytes[k, last])


def _counter(name: str, pid: int, times: Ints, held: Ints, unit: str = "B") -> Iterator[Event]:
    """One counter, an event for each change; viewers write the unit behind its name."""
    changed = np.append(True, held[1:] != held[:-1])
    base = {"ph": "C", "pid": pid, "tid": 0, "name": name}
    for time, value in zip(times[changed].tolist(), held[changed].tolist(), strict=True):
        yield {**base, "ts": _us(time), "args": {f"[{unit}]": value}}
