"""Laws of addresses: no two places overlap, each lies in its tier, and compaction stops all that works there."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from simulator.columns import Ints
from simulator.plan import COMPUTE, COPY
from simulator.referee.facts import Facts, covered
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, Block, Trace, pick, tuples

_ENDLESS = 1 << 62


def check_addresses(facts: Facts, trace: Trace, allocator: AllocatorKind, budget_bytes: int | float) -> None:
    """Check one rank's addresses, from the rows alone.

    Parameters
    ----------
    facts, trace
        The rank's rows, and the trace.
    allocator
        Whose addresses they are; of ``ideal`` there are none.
    budget_bytes
        What may be used of the compute tier [B].
    """
    tables = (table.whole() for table in (trace.addresses, trace.reserved, trace.compactions))
    rows, kept, events = (pick(table, table["rank"] == facts.rank) for table in tables)
    if allocator == "ideal":
        if len(rows["rank"]) or len(events["rank"]):
            raise facts.broken("only places in an address space have addresses", "addresses", "some")
        return
    capacity = int(min(budget_bytes, _ENDLESS))
    over = np.flatnonzero((kept["reserved_bytes"] > capacity) | (kept["reserved_bytes"] < 0))
    if len(over):
        found = f"{int(kept['reserved_bytes'][over[0]]):,} of {capacity:,} B"
        raise facts.broken("no more is reserved than there is", f"reserved row {int(over[0]):,}", found)
    _check_apart(facts, rows, _ENDLESS if allocator == "caching" else capacity)
    _check_places(facts, rows, events, rounds=allocator == "caching")
    _check_events(facts, events, rows, allocator)


def _check_apart(facts: Facts, rows: Block, end_bytes: int) -> None:
    """Check that each range is free when it is taken, lies in the space, and is freed as it was taken."""
    live: list[tuple[int, int, int]] = []
    ranges = tuples(rows, "tensor", "offset_bytes", "delta_bytes", "time_ns")
    for number, (item, offset, delta, time) in enumerate(ranges):
        where, found = f"addresses row {number:,}", f"{item} at {offset:,} B, {delta:,} B, at {time:,} ns"
        if delta > 0:
            at = bisect_left(live, (offset, 0, 0))
            if offset < 0 or offset + delta > end_bytes:
                raise facts.broken("each place lies in its tier", where, found)
            if (at and live[at - 1][1] > offset) or (at < len(live) and live[at][0] < offset + delta):
                raise facts.broken("no two live places overlap in addresses", where, found)
            insort(live, (offset, offset + delta, item))
        else:
            at = bisect_left(live, (offset, offset - delta, item))
            if at == len(live) or live.pop(at) != (offset, offset - delta, item):
                raise facts.broken("a range is freed where, and as large as, it was taken", where, found)
    wanted = sum(1 for _, _, item in live if item >= 0)
    persistent = [t for t, tensor in enumerate(facts.program.graph.tensors) if tensor.persistent and tensor.size_bytes]
    at_home = sum(1 for t in persistent if facts.program.plan.home[t] == facts.program.compute_tier)
    if facts.complete and (wanted != at_home or len(live) != wanted):
        raise facts.broken("a run ends with the places with which it began", "addresses", f"{len(live)} places")


def _check_places(facts: Facts, rows: Block, events: Block, *, rounds: bool) -> None:
    """Check that ranges are taken and freed as the places are, beside those that a compaction moves."""
    moments = set(events["end_ns"][events["is_remap"] == 1].tolist())
    places = pick(facts.residencies, facts.residencies["tier"] == facts.program.compute_tier)
    difference: dict[tuple[int, int], list[int]] = {}
    for sign, block in ((1, rows), (-1, places)):
        for time, item, delta in tuples(block, "time_ns", "tensor", "delta_bytes"):
            taken_freed_size = difference.setdefault((time, item), [0, 0, 0])
            taken_freed_size[delta < 0] += sign
            taken_freed_size[2] += sign * abs(delta)
    for (time, item), (taken, freed, size) in difference.items():
        is_moved = taken == 1 and time in moments
        if taken != freed or not (is_moved or (taken == 0 and (size >= 0 if rounds else size == 0))):
            found = f"{item} at {time:,} ns: {taken:+} taken, {freed:+} freed and {size:+,} B beside its places"
            raise facts.broken("each place has one range, as large as it", "addresses", found)


def _check_events(facts: Facts, events: Block, rows: Block, allocator: AllocatorKind) -> None:
    """Check that nothing starts or runs where a compaction stops it, that it takes its price, and that waits say so."""
    asked, start, end, pages = (events[name] for name in ("asked_ns", "start_ns", "end_ns", "pages"))
    if allocator == "fixed" and len(asked):
        raise facts.broken("offsets chosen before the run need no compaction", "compactions", f"{len(asked)} of them")
    if (np.diff(asked) < 0).any() or (asked[1:] < end[:-1]).any() or (start < asked).any():
        raise facts.broken("compactions come one after another", "compactions", "two at once")
    price, page_bytes = facts.program.hardware.allocator.compaction, facts.program.hardware.allocator.page_bytes
    for number, is_remap in enumerate(events["is_remap"].tolist()):
        due = price.cost_ns(int(pages[number])) if is_remap and price is not None else 0
        if int(end[number] - start[number]) != due:
            found = f"{int(end[number] - start[number]):,} ns for {int(pages[number]):,} pages, not {due:,} ns"
            raise facts.broken("a compaction takes its price", f"compactions row {number:,}", found)
        if is_remap and price is not None and price.pages == "in_use" and allocator == "best_fit":
            _check_pages(facts, rows, (int(start[number]), int(pages[number])), page_bytes)
    spans, waits = facts.spans, pick(facts.waits, facts.waits["cause"] == CAUSES.index("compaction"))
    ends = np.append((facts.program.links[:, :2] == facts.program.compute_tier).any(axis=1), False)
    touches = (spans["kind"] == COMPUTE) | ends[np.where(spans["kind"] == COPY, spans["track"], -1)]
    _check_stopped(facts, pick(spans, touches & ~np.isin(spans["issue"], facts.met)), (asked, start, end))
    waited = np.zeros_like(waits["start_ns"]), waits["start_ns"], waits["end_ns"]
    holds = covered(waited, (np.zeros_like(asked), asked, end), 0, joined=True)
    law = "what waits for compaction waits while one is asked for or under way"
    facts.check(holds, law, "waits", waits, "op", "start_ns", "end_ns")


def _check_pages(facts: Facts, rows: Block, found: tuple[int, int], page_bytes: int) -> None:
    """Check the pages in use when a compaction starts: of all ranges taken by then, or freed in that very instant."""
    start, pages = found
    least = int(rows["delta_bytes"][rows["time_ns"] < start].sum())
    most = least + int(np.abs(rows["delta_bytes"][rows["time_ns"] == start]).sum())
    freed = int(rows["delta_bytes"][(rows["time_ns"] == start) & (rows["delta_bytes"] < 0)].sum())
    if not -(-(least + freed) // page_bytes) <= pages <= -(-most // page_bytes):
        raise facts.broken("a compaction counts the pages in use", "compactions", f"{pages:,} at {start:,} ns")


def _check_stopped(facts: Facts, spans: Block, times: tuple[Ints, Ints, Ints]) -> None:
    """Check that no such span starts from when a compaction is asked for to its end, or runs once it has started."""
    asked, start, end = times
    if not len(asked):
        return
    for law, moment, since in (
        ("nothing starts that works in a tier that is compacted", spans["start_ns"], asked),
        ("nothing runs that works in a tier whose places move", spans["end_ns"], start),
    ):
        before = np.searchsorted(since, moment, "left") - 1
        free = (before < 0) | (moment >= end[np.maximum(before, 0)])
        facts.check(free, law, "spans", spans, "kind", "item", "start_ns", "end_ns")
