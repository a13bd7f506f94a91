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
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from simulator.graph import CollectiveKind, Graph
from simulator.hardware import Hardware
from simulator.metrics import op_name, run_numbers, steps_of
from simulator.plan import COMPUTE, COPY
from simulator.report import meetings
from simulator.report.ranks import chosen, is_job, of_ranks, omitted
from simulator.report.rows import Row, quantity
from simulator.report.stalls import place, under_way
from simulator.report.usage import KINDS, Usage, shared_usages, space, usages
from simulator.trace import CAUSES, Block, Trace

Event = dict[str, Any]
_CHUNK = 20_000
_STEPS, _STREAMS, _LINKS, _CHANNELS = 1000, 2000, 4000, 1000
"""First thread ids of the steps, of streams and their stalls, and of channels (a thousand for each link)."""
MOST_RANKS = 64
"""So many ranks can still be found in a viewer, and their trace loads in seconds."""


def write(row: Row, path: Path) -> None:
    """Write the trace of a row as Chrome JSON; gzipped if the name ends in ``.gz``.

    Parameters
    ----------
    row
        A row with a trace.
    path
        The file.
    """
    if path.suffix == ".gz":
        with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
            _write(row, cast(IO[bytes], packed))
    else:
        with path.open("wb") as plain:
            _write(row, plain)


def _write(row: Row, out: IO[bytes]) -> None:
    out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    chunk: list[Event] = []
    between = b""
    for event in events(row):
        chunk.append(event)
        if len(chunk) == _CHUNK:
            out.write(between + orjson.dumps(chunk)[1:-1])
            chunk, between = [], b",\n"
    if chunk:
        out.write(between + orjson.dumps(chunk)[1:-1])
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
    ranks = chosen(row, MOST_RANKS)
    everybody = of_ranks(row)
    shown = [view for view in everybody if view.rank in set(ranks)]
    said = omitted(row, ranks)
    if said and is_job(row):
        yield _meta("process_labels", ranks[0], 0, labels=said)
    for view in shown:
        yield from _of_rank(view, alone=not is_job(row))
    if is_job(row):
        yield from _meetings(shown, row.trace)
        yield from _shared(row, everybody)


def _of_rank(view: Row, *, alone: bool) -> Iterator[Event]:
    """All that one rank did."""
    trace = view.trace
    if trace is None:
        return
    yield from _names(view, trace)
    yield from _step_slices(view, trace)
    of_spans, of_waits = run_numbers(view.graph, view.hardware, trace)
    yield from _span_slices(view, trace.spans.whole(), of_spans)
    yield from _wait_slices(view, trace.waits.whole(), of_waits)
    yield from _arrows(view, trace.spans.whole())
    for usage in usages(view):
        if alone or view.hardware.tiers[usage.tier].scope == "device":
            yield from _memory(view, usage, view.rank)
    if (kept := space(view)) is not None:
        yield from _counter(f"{kept.tier}: reserved", view.rank, kept.time_ns, kept.reserved_bytes)
        if kept.has_holes:
            yield from _counter(f"{kept.tier}: largest hole", view.rank, kept.time_ns, kept.hole_bytes)


def _names(view: Row, trace: Trace) -> Iterator[Event]:
    spans, waits, rank = trace.spans.whole(), trace.waits.whole(), view.rank
    ran = spans["kind"] == COMPUTE
    runs = ", ".join(filter(None, (view.label, view.program)))
    yield _meta("process_name", rank, 0, name=f"{runs}{f' x{view.stands_for}' * (view.stands_for > 1)}, rank")
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    groups = _groups(view, spans)
    threads = {_STEPS: "steps"}
    told = _told(view, waits)
    for stream in np.union1d(np.unique(spans["track"][ran]), np.unique(waits["stream"][told])).tolist():
        met = ", ".join(groups.get(stream, ()))
        name = f"collectives: {met}" if met else f"stream {stream}"
        threads[_stream(stream)] = name if stream else "compute"
        if not stream or (told & (waits["stream"] == stream)).any():
            threads[_stalls(stream)] = (f"stalls: {met}" if met else f"stalls of {name}") if stream else "stalls"
    for i, (name, link) in enumerate(view.hardware.links.items()):
        for channel in range(link.channels):
            threads[_LINKS + _CHANNELS * i + channel] = f"{name} #{channel}" if link.channels > 1 else name
    for order, (tid, name) in enumerate(sorted(threads.items())):
        yield _meta("thread_name", rank, tid, name=name)
        yield _meta("thread_sort_index", rank, tid, sort_index=order)


def _stream(number: int) -> int:
    """Thread id of a stream."""
    return _STREAMS + 2 * number


def _stalls(number: int) -> int:
    """Thread id of the stalls of a stream, which viewers then show below it."""
    return _STREAMS + 2 * number + 1


def _told(view: Row, waits: Block) -> NDArray[np.bool_]:
    """Waits that are shown: a stream of collectives stalls if these have something to wait for, and idles otherwise."""
    is_stall = np.isin(waits["cause"], [CAUSES.index(cause) for cause in ("peer", "capacity", "transfer")])
    return np.asarray((waits["stream"] == 0) | is_stall | (not view.graph.meets))


def _groups(view: Row, spans: Block) -> dict[int, list[str]]:
    """By stream, the groups whose collectives run there."""
    found: dict[int, dict[str, None]] = {}
    for one in meetings.of_rank(view):
        found.setdefault(int(spans["track"][one.span]), {})[one.what.group] = None
    return {stream: list(groups) for stream, groups in found.items()}


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    return ns / 1000


def _step_slices(view: Row, trace: Trace) -> Iterator[Event]:
    """From the end of one step to the end of the next, on the stream that ends last; among ranks, that computes."""
    spans = trace.spans.whole()
    of_step = steps_of(view.graph, view.hardware, trace, spans)
    mine, start = spans["kind"] == COMPUTE, 0
    if not mine.any():
        return
    main = 0 if view.graph.meets else spans["track"][mine][np.argmax(spans["end_ns"][mine])]
    mine &= spans["track"] == main
    for step in np.unique(of_step[mine]).tolist():
        end = int(spans["end_ns"][mine & (of_step == step)].max())
        event = {"ph": "X", "name": f"step {step}", "cat": "step", "pid": view.rank, "tid": _STEPS}
        yield {**event, "ts": _us(start), "dur": _us(end - start)}
        start = end


def _span_slices(row: Row, block: Block, runs: NDArray[np.int64]) -> Iterator[Event]:
    ops, tensors, links = row.graph.ops, row.graph.tensors, row.hardware.link_names
    met = {one.span: one for one in meetings.of_rank(row)}
    for at, ((_, kind, item, track, channel, _, issued, start, end), run) in enumerate(
        zip(_rows(block), runs.tolist(), strict=True)
    ):
        event: Event = {"ph": "X", "pid": row.rank, "ts": _us(start), "dur": _us(end - start)}
        if at in met:
            event |= {"name": op_name(row.graph, item, run), "cat": "collective", "tid": _stream(track)}
            event["args"] = {"issued_us": _us(issued), **_about(met[at])}
        elif kind == COMPUTE:
            op = ops[item]
            phase = "recompute" if run > 1 else op.phase or "compute"
            event |= {"name": op_name(row.graph, item, run), "cat": phase, "tid": _stream(track)}
            event["args"] = {"issued_us": _us(issued), "class": op.op_class, "flops": op.flops}
        else:
            tensor = tensors[item]
            event |= {"name": tensor.name, "cat": "transfer", "tid": _LINKS + _CHANNELS * track + channel}
            event["args"] = {
                "issued_us": _us(issued),
                "link": links[track],
                "kind": tensor.kind.value,
                "bytes": tensor.size_bytes,
            }
        yield event


def _about(one: meetings.Met) -> Event:
    """What a collective is; members that met have the same ``meeting``."""
    members = ", ".join(map(str, one.members[:16])) + (", ..." if len(one.members) > 16 else "")
    return {
        "kind": one.what.kind.value,
        "group": one.what.group,
        "bytes": one.what.size_bytes,
        "algorithm": one.what.algorithm,
        "members": members,
        "meeting": f"{one.what.group} of {one.members[0]}-{one.members[-1]}, number {one.number}",
    }


def _meetings(shown: list[Row], trace: Trace) -> Iterator[Event]:
    """Arrows from each send to its receive, and through the members of each collective, of the ranks that are shown."""
    met: dict[tuple[str, frozenset[int], int], list[tuple[Row, meetings.Met]]] = {}
    for view in shown:
        for one in meetings.of_rank(view):
            simulated = frozenset(trace.stands_in[member] for member in one.members)
            met.setdefault((one.what.group, simulated, one.number), []).append((view, one))
    spans = {view.rank: view.trace.spans.whole() for view in shown if view.trace is not None}
    for number, parts in enumerate(met.values()):
        if len(parts) < 2:
            continue
        message = meetings.is_message(parts[0][1].what)
        ordered = sorted(parts, key=lambda part: part[1].what.kind is CollectiveKind.RECV)
        name = "received by" if message else "meets"
        for place_, (view, one) in enumerate(ordered):
            block = spans[view.rank]
            start, end = (int(block[c][one.span]) for c in ("start_ns", "end_ns"))
            last = place_ == len(ordered) - 1
            how: Event = {"ph": "f", "bp": "e"} if last else {"ph": "t" if place_ else "s"}
            moment = max(start, end - 1) if message and last else start
            thread = _stream(int(block["track"][one.span]))
            base = {"name": name, "cat": "meeting", "id": number, "pid": view.rank, "tid": thread}
            yield {**base, **how, "ts": _us(moment)}


def _shared(row: Row, everybody: list[Row]) -> Iterator[Event]:
    """What ranks share: the memory of tiers and the load of buses, in processes behind those of the ranks."""
    known: dict[tuple[str, int], int] = {}

    def process(scope: str, instance: int) -> Iterator[Event]:
        if (scope, instance) not in known:
            known[scope, instance] = pid = row.job.ranks + len(known)
            whose = f"node {instance}" if scope == "node" else "supernode"
            yield _meta("process_name", pid, 0, name=f"shared in {whose}, id")
            yield _meta("process_sort_index", pid, 0, sort_index=pid)

    for scope, instance, usage in shared_usages(row, everybody):
        yield from process(scope, instance)
        yield from _memory(row, usage, known[scope, instance])
    for load in meetings.loads(row, everybody):
        yield from process(load.scope, load.instance)
        pid, cap = known[load.scope, load.instance], quantity(load.bandwidth_bytes_per_s, "B/s")
        flows, rate = f"{load.bus}: under way", f"{load.bus}: rate (cap {cap})"
        yield from _counter(flows, pid, load.time_ns, load.flows, "flows")
        yield from _counter(rate, pid, load.rate_ns, load.bytes_per_s, "B/s")


def _wait_slices(row: Row, block: Block, runs: NDArray[np.int64]) -> Iterator[Event]:
    tensors, told = row.graph.tensors, _told(row, block)
    block, runs = {name: column[told] for name, column in block.items()}, runs[told]
    for (_, stream, op, _, start, end, cause, tensor, on, blocker), run in zip(
        _rows(block), runs.tolist(), strict=True
    ):
        where = place(row, cause, on)
        args: Event = {"op": op_name(row.graph, op, run), "cause": CAUSES[cause]}
        if where:
            args["at"] = where
        if tensor >= 0:
            args["tensor"] = tensors[tensor].name
        if blocker >= 0:
            args["behind"] = under_way(row, cause, blocker)
        name = f"{CAUSES[cause]} at {where}" if where else CAUSES[cause]
        event: Event = {"ph": "X", "name": name, "cat": "stall", "pid": row.rank, "tid": _stalls(stream)}
        yield {**event, "ts": _us(start), "dur": _us(end - start), "args": args}


def _rows(block: Block) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in block.values()), strict=True)


def first_readers(graph: Graph, hardware: Hardware, spans: Block) -> list[tuple[int, int]]:
    """Pair each copy into the compute tier with the first op that reads the tensor afterwards.

    Parameters
    ----------
    graph, hardware
        Who reads what; where a link leads.
    spans
        All spans of a trace.

    Returns
    -------
    list of (int, int)
        Row of the copy and row of the compute in `spans`; copies that nothing reads afterwards are left out.
    """
    inward = [i for i, link in enumerate(hardware.links.values()) if link.target == hardware.compute_tier]
    copies = np.flatnonzero((spans["kind"] == COPY) & np.isin(spans["track"], inward))
    computes = np.flatnonzero(spans["kind"] == COMPUTE)
    reads: list[tuple[int, int, int, int]] = []
    for at, rank, op, start in zip(
        computes.tolist(), *(spans[c][computes].tolist() for c in ("rank", "item", "start_ns")), strict=True
    ):
        reads.extend((rank, tensor, start, at) for tensor in graph.ops[op].reads)
    if not reads or not copies.size:
        return []
    table = np.array(sorted(reads), dtype=np.int64)
    return _match(table, spans, copies)


def _match(reads: NDArray[np.int64], spans: Block, copies: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Look up, for each copy, the first of the sorted reads of its rank and tensor that starts at or after its end."""
    wanted = np.stack([spans["rank"][copies], spans["item"][copies], spans["end_ns"][copies]], axis=1)
    everything = np.concatenate([reads[:, :3], wanted])
    is_copy = np.concatenate([np.zeros(len(reads), np.int64), np.ones(len(wanted), np.int64)])
    order = np.lexsort((1 - is_copy, everything[:, 2], everything[:, 1], everything[:, 0]))
    before = np.cumsum(1 - is_copy[order])
    next_read = np.empty(len(order), dtype=np.int64)
    next_read[order] = before
    place = next_read[len(reads) :]
    found = place < len(reads)
    same = (reads[np.minimum(place, len(reads) - 1), :2] == wanted[:, :2]).all(axis=1) & found
    return [(int(c), int(reads[p, 3])) for c, p in zip(copies[same], place[same], strict=True)]


def _arrows(row: Row, spans: Block) -> Iterator[Event]:
    pairs = first_readers(row.graph, row.hardware, spans)
    for number, (copy, compute) in enumerate(pairs):
        link, channel = (int(spans[c][copy]) for c in ("track", "channel"))
        start, end = int(spans["start_ns"][copy]), int(spans["end_ns"][copy])
        common = {"name": "read by", "cat": f"first reader {row.rank}", "id": number, "pid": row.rank}
        thread = _LINKS + _CHANNELS * link + channel
        yield {**common, "ph": "s", "tid": thread, "ts": _us(max(start, end - 1))}
        reader = {"tid": _stream(int(spans["track"][compute])), "ts": _us(int(spans["start_ns"][compute]))}
        yield {**common, "ph": "f", "bp": "e", **reader}


def _memory(row: Row, usage: Usage, pid: int) -> Iterator[Event]:
    last = np.append(usage.time_ns[1:] != usage.time_ns[:-1], True)
    times = usage.time_ns[last]
    yield from _counter(_with_limit(row, usage), pid, times, usage.total_bytes[last])
    for k in usage.kinds:
        kind = KINDS[k].replace("_", " ")
        yield from _counter(f"{usage.tier}: {kind}", pid, times, usage.kind_bytes[k, last])


def _with_limit(row: Row, usage: Usage) -> str:
    says = usage.limit(row.hardware.compute_tier)
    return f"{usage.tier} ({says})" if says else usage.tier


def _counter(
    name: str, pid: int, times: NDArray[np.int64], held: NDArray[np.int64], unit: str = "B"
) -> Iterator[Event]:
    """One counter, an event for each change; viewers write the unit behind its name."""
    changed = np.append(True, held[1:] != held[:-1])
    base = {"ph": "C", "pid": pid, "tid": 0, "name": name}
    for time, value in zip(times[changed].tolist(), held[changed].tolist(), strict=True):
        yield {**base, "ts": _us(time), "args": {f"[{unit}]": value}}
