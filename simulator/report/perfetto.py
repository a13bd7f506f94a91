"""A timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, in Chrome's JSON.

One process per rank. Threads: the training steps, one per compute stream, one for the stalls of each stream by cause,
one per channel of each link; slices of one thread never overlap. Counters: bytes that lie in each tier, in all and by
tensor kind. Arrows: from each copy into the compute tier to the first op that reads it. Times are microseconds with
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

from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.metrics import op_name, run_numbers, steps_of
from simulator.plan import COMPUTE, COPY
from simulator.report.rows import Row
from simulator.report.stalls import place, under_way
from simulator.report.usage import KINDS, Usage, usages
from simulator.trace import CAUSES, Block, Trace

Event = dict[str, Any]
_CHUNK = 20_000
_STEPS, _STREAMS, _STALLS, _LINKS, _CHANNELS = 1000, 2000, 3000, 4000, 1000
"""First thread ids of the steps, of streams, of their stalls and of channels (a thousand for each link)."""


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
    trace = row.trace
    if trace is None:
        return
    ranks = sorted({int(r) for block in trace.spans.blocks() for r in np.unique(block["rank"])}) or [0]
    yield from _names(row, trace, ranks)
    yield from _step_slices(row, trace)
    of_spans, of_waits = run_numbers(row.graph, row.hardware, trace)
    yield from _span_slices(row, trace.spans.whole(), of_spans)
    yield from _wait_slices(row, trace.waits.whole(), of_waits)
    yield from _arrows(row, trace.spans.whole())
    for rank in ranks:
        yield from _counters(row, rank)


def _names(row: Row, trace: Trace, ranks: list[int]) -> Iterator[Event]:
    spans, waits = trace.spans.whole(), trace.waits.whole()
    ran = spans["kind"] == COMPUTE
    for rank in ranks:
        yield _meta("process_name", rank, 0, name=f"{row.label}, rank")
        threads = {_STEPS: "steps"}
        for stream in np.union1d(np.unique(spans["track"][ran]), np.unique(waits["stream"])).tolist():
            threads[_STREAMS + stream] = f"stream {stream}" if stream else "compute"
            threads[_STALLS + stream] = f"stalls of stream {stream}" if stream else "stalls"
        for i, (name, link) in enumerate(row.hardware.links.items()):
            for channel in range(link.channels):
                threads[_LINKS + _CHANNELS * i + channel] = f"{name} #{channel}" if link.channels > 1 else name
        for order, (tid, name) in enumerate(sorted(threads.items())):
            yield _meta("thread_name", rank, tid, name=name)
            yield _meta("thread_sort_index", rank, tid, sort_index=order)


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    return ns / 1000


def _step_slices(row: Row, trace: Trace) -> Iterator[Event]:
    """From the end of one step to the end of the next, on the stream of each rank that ends last."""
    spans = trace.spans.whole()
    of_step = steps_of(row.graph, row.hardware, trace, spans)
    ran = spans["kind"] == COMPUTE
    for rank in np.unique(spans["rank"][ran]).tolist():
        mine, start = ran & (spans["rank"] == rank), 0
        mine &= spans["track"] == spans["track"][mine][np.argmax(spans["end_ns"][mine])]
        for step in np.unique(of_step[mine]).tolist():
            end = int(spans["end_ns"][mine & (of_step == step)].max())
            event = {"ph": "X", "name": f"step {step}", "cat": "step", "pid": rank, "tid": _STEPS}
            yield {**event, "ts": _us(start), "dur": _us(end - start)}
            start = end


def _span_slices(row: Row, block: Block, runs: NDArray[np.int64]) -> Iterator[Event]:
    ops, tensors, links = row.graph.ops, row.graph.tensors, row.hardware.link_names
    for (rank, kind, item, track, channel, _, issued, start, end), run in zip(_rows(block), runs.tolist(), strict=True):
        event: Event = {"ph": "X", "pid": rank, "ts": _us(start), "dur": _us(end - start)}
        if kind == COMPUTE:
            op = ops[item]
            phase = "recompute" if run > 1 else op.phase or "compute"
            event |= {"name": op_name(row.graph, item, run), "cat": phase, "tid": _STREAMS + track}
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


def _wait_slices(row: Row, block: Block, runs: NDArray[np.int64]) -> Iterator[Event]:
    tensors = row.graph.tensors
    for (rank, stream, op, _, start, end, cause, tensor, on, blocker), run in zip(
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
        event: Event = {"ph": "X", "name": name, "cat": "stall", "pid": rank, "tid": _STALLS + stream}
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
        rank, link, channel = (int(spans[c][copy]) for c in ("rank", "track", "channel"))
        start, end = int(spans["start_ns"][copy]), int(spans["end_ns"][copy])
        common = {"name": "read by", "cat": "first reader", "id": number, "pid": rank}
        thread = _LINKS + _CHANNELS * link + channel
        yield {**common, "ph": "s", "tid": thread, "ts": _us(max(start, end - 1))}
        reader = {"tid": _STREAMS + int(spans["track"][compute]), "ts": _us(int(spans["start_ns"][compute]))}
        yield {**common, "ph": "f", "bp": "e", **reader}


def _counters(row: Row, rank: int) -> Iterator[Event]:
    for usage in usages(row, rank):
        last = np.append(usage.time_ns[1:] != usage.time_ns[:-1], True)
        times = usage.time_ns[last]
        yield from _counter(_with_limit(row, usage), rank, times, usage.total_bytes[last])
        for k in usage.kinds:
            kind = KINDS[k].replace("_", " ")
            yield from _counter(f"{usage.tier}: {kind}", rank, times, usage.kind_bytes[k, last])


def _with_limit(row: Row, usage: Usage) -> str:
    says = usage.limit(row.hardware.compute_tier)
    return f"{usage.tier} ({says})" if says else usage.tier


def _counter(name: str, rank: int, times: NDArray[np.int64], held: NDArray[np.int64]) -> Iterator[Event]:
    """One counter, an event for each change; viewers write the unit behind its name."""
    changed = np.append(True, held[1:] != held[:-1])
    base = {"ph": "C", "pid": rank, "tid": 0, "name": name}
    for time, value in zip(times[changed].tolist(), held[changed].tolist(), strict=True):
        yield {**base, "ts": _us(time), "args": {"[B]": value}}
