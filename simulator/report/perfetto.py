"""A timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, in Chrome's JSON.

One process per rank. Threads: one per compute stream, one for the stalls of each stream by cause, one per channel of
each link; slices of one thread never overlap. Counters: what lies in each tier, in all and by tensor kind. Arrows:
from each copy into the compute tier to the first op that reads it. Times are microseconds with nanoseconds as decimals.
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
from simulator.metrics import op_name, run_numbers
from simulator.plan import COMPUTE, COPY
from simulator.report.rows import Row
from simulator.report.usage import KINDS, usages
from simulator.trace import CAUSES, Block, Trace

Event = dict[str, Any]
_CHUNK = 20_000
_STALLS, _LINKS, _CHANNELS = 1000, 2000, 1000
"""Thread ids: streams from 0, their stalls from 1000, channels from 2000, a thousand for each link."""


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
    of_spans, of_waits = run_numbers(row.graph, row.hardware, trace)
    yield from _span_slices(row, trace.spans.whole(), of_spans)
    yield from _wait_slices(row.graph, row.hardware, trace.waits.whole(), of_waits)
    yield from _arrows(row, trace.spans.whole())
    for rank in ranks:
        yield from _counters(row, rank)


def _names(row: Row, trace: Trace, ranks: list[int]) -> Iterator[Event]:
    links = row.hardware.links
    spans, waits = trace.spans.whole(), trace.waits.whole()
    for rank in ranks:
        yield _meta("process_name", rank, 0, name=f"{row.label}, rank {rank}")
        threads: dict[int, str] = {}
        ran = spans["kind"] == COMPUTE
        for stream in np.union1d(np.unique(spans["track"][ran]), np.unique(waits["stream"])).tolist():
            threads[stream] = f"compute, stream {stream}"
            threads[_STALLS + stream] = f"stalls of stream {stream}"
        for i, (name, link) in enumerate(links.items()):
            for channel in range(link.channels):
                threads[_LINKS + _CHANNELS * i + channel] = f"{name}, channel {channel}"
        for order, (tid, name) in enumerate(sorted(threads.items())):
            yield _meta("thread_name", rank, tid, name=name)
            yield _meta("thread_sort_index", rank, tid, sort_index=order)


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    return ns / 1000


def _span_slices(row: Row, block: Block, runs: NDArray[np.int64]) -> Iterator[Event]:
    ops, tensors, links = row.graph.ops, row.graph.tensors, row.hardware.link_names
    for (rank, kind, item, track, channel, _, issued, start, end), run in zip(_rows(block), runs.tolist(), strict=True):
        event: Event = {"ph": "X", "pid": rank, "ts": _us(start), "dur": _us(end - start)}
        if kind == COMPUTE:
            op = ops[item]
            phase = "recompute" if run > 1 else op.phase or "compute"
            event |= {"name": op_name(row.graph, item, run), "cat": phase, "tid": track}
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


def _wait_slices(graph: Graph, hardware: Hardware, block: Block, runs: NDArray[np.int64]) -> Iterator[Event]:
    links, tiers = hardware.link_names, hardware.tier_names
    for (rank, stream, op, _, start, end, cause, tensor, on, blocker), run in zip(
        _rows(block), runs.tolist(), strict=True
    ):
        args: Event = {"op": op_name(graph, op, run), "cause": CAUSES[cause]}
        if tensor >= 0:
            args["tensor"] = graph.tensors[tensor].name
        if on >= 0:
            args["on"] = tiers[on] if CAUSES[cause] in ("capacity", "compaction") else links[on]
        if blocker >= 0:
            args["behind"] = graph.tensors[blocker].name
        yield {
            "ph": "X",
            "name": CAUSES[cause],
            "cat": "stall",
            "pid": rank,
            "tid": _STALLS + stream,
            "ts": _us(start),
            "dur": _us(end - start),
            "args": args,
        }


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
        reader = {"tid": int(spans["track"][compute]), "ts": _us(int(spans["start_ns"][compute]))}
        yield {**common, "ph": "f", "bp": "e", **reader}


def _counters(row: Row, rank: int) -> Iterator[Event]:
    for usage in usages(row, rank):
        last = np.append(usage.time_ns[1:] != usage.time_ns[:-1], True)
        times = usage.time_ns[last]
        yield from _counter(f"{usage.tier} [GB]", rank, times, usage.total_bytes[last])
        for k in usage.kinds:
            yield from _counter(f"{usage.tier}: {KINDS[k]} [GB]", rank, times, usage.kind_bytes[k, last])


def _counter(name: str, rank: int, times: NDArray[np.int64], held: NDArray[np.int64]) -> Iterator[Event]:
    """One counter, an event for each change."""
    changed = np.append(True, held[1:] != held[:-1])
    base = {"ph": "C", "pid": rank, "tid": 0, "name": name}
    for time, value in zip(times[changed].tolist(), (held[changed] / 1e9).tolist(), strict=True):
        yield {**base, "ts": _us(time), "args": {"used": value}}
