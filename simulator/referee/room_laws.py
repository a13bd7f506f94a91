"""Laws of room and of addresses.

No tier overflows, ranks store what they share once, and the first in line starts as soon as it fits. Where places have
addresses, no two of them overlap, each lies in its tier, and a compaction stops all that works there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

import numpy as np

from simulator.graph import Job, Tensor
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, NOWHERE, Plan
from simulator.referee.facts import Facts, broken, covered, require
from simulator.referee.start_laws import NEVER_NS, RoomRequests
from simulator.scenario import AllocatorKind
from simulator.trace import CAUSES, NONE, Block, Ints, Trace, distinct, instances, lasts, pick, running, tuples


class TierRoom:
    """Checks that each tier instance holds between 0 B and its capacity, and the line for its room.

    A rank that stands for others counts, on its instance of a shared tier, for those of them that use this instance. As
    long as the first in line for room waits, it does not fit.

    Parameters
    ----------
    hardware, stands_in, rooms
        The machine; for each rank the rank simulated in its place, and what it may use of the compute tier [B].
    spare
        By tier and instance, by how much the rows exceed what is stored (see `stored_once`) [B].
    """

    def __init__(self, hardware: Hardware, stands_in: Sequence[int], rooms: Sequence[int | float], spare: Ints) -> None:
        self._names, ranks, sharing = hardware.tier_names, len(stands_in), hardware.topology.sharing
        alike = {name: [tier.usable_bytes] * ranks for name, tier in hardware.tiers.items()}
        capacities = (alike | {hardware.compute_tier: [*rooms]}).values()  # of instances; that of a device is its rank
        self._capacity = np.array([[int(min(size, NEVER_NS)) for size in sizes] for sizes in capacities]).ravel()
        sharers = [instances(sharing[tier.scope], stands_in) for tier in hardware.tiers.values()]
        instance, self._counts = (np.array(column) for column in zip(*sharers, strict=True))
        self._instance, self._ranks = instance + np.arange(len(sharers))[:, None] * ranks, ranks
        self._spare = spare.ravel()

    def check_held(self, rows: Block) -> Ints:
        """Check, at each row, that time moves forward, and what each tier instance holds.

        Parameters
        ----------
        rows
            Rows of the residencies.

        Returns
        -------
        array
            For each instance and instant with changes: the instance, the time [ns], what is stored from then on [B].
        """
        time, tier, tiers = rows["time_ns"], rows["tier"], len(self._names)
        before = np.append(0, time)[:-1]

        def where(i: int) -> str:
            return f"trace, residencies row {i:,}"

        shown = ("at ns", time), ("after ns", before)
        require(time >= before, "places are taken and freed in the order of time", where, *shown)
        require((tier >= 0) & (tier < tiers), f"a place lies in one of the {tiers} tiers", where, ("tier", tier))
        instance = self._instance[tier, rows["rank"]]
        used = running(instance, rows["delta_bytes"] * self._counts[tier, rows["rank"]])
        stored = used - self._spare[instance]
        capacity = self._capacity[instance]
        for index, name in enumerate(self._names):
            has_room = (tier != index) | ((used >= 0) & (stored <= capacity))
            law = f"a tier holds at least 0 B and at most its capacity ({name})"
            require(has_room, law, where, ("holds B", used), ("of B", capacity), ("at ns", time))
        order = np.argsort(instance, kind="stable")
        order = order[lasts(instance[order], time[order])]
        return np.stack((instance[order], time[order], stored[order]))

    def check_lines(self, changes: Ints, requests: Mapping[int, RoomRequests]) -> None:
        """Check the lines for room.

        Parameters
        ----------
        changes
            The changes that `check_held` returned.
        requests
            By rank, the actions that only room kept from starting.
        """
        columns = [
            np.stack((self._instance[asked.tier, rank], np.full(len(asked.tier), rank), *asked[1:]))
            for rank, asked in requests.items()
        ]
        rows = np.concatenate(columns, axis=1)
        for instance in np.unique(rows[0]).tolist():
            self._check_line(instance, changes[1:, changes[0] == instance], rows[1:, rows[0] == instance])

    def _check_line(self, instance: int, changes: Ints, rows: Ints) -> None:
        times, used = changes
        rank, size, since, start, is_copy, issue = rows
        points = distinct(np.concatenate((times, since, start[start != NEVER_NS])))
        begin, end = np.searchsorted(points, since), np.searchsorted(points, start)
        first = np.full(len(points), NONE)
        for row in np.lexsort((issue, rank, is_copy))[::-1].tolist():
            first[begin[row] : end[row]] = row
        waited = np.flatnonzero(first != NONE)
        head, tier = first[waited], instance // self._ranks
        now = np.append(0, used)[np.searchsorted(times, points[waited], "right")]
        wrong = np.flatnonzero(now + size[head] <= self._capacity[instance])
        if len(wrong):
            i, row = int(wrong[0]), int(head[wrong[0]])
            must = f"the first in line for room of a tier ({self._names[tier]}) starts when it fits"
            found = f"{int(size[row]):,} B beside {int(now[i]):,} B at {int(points[waited[i]]):,} ns do not start"
            raise broken(f"trace, rank {int(rank[row])}, action {int(issue[row]):,}", must, found)


def _instances(hardware: Hardware, ranks: int) -> list[Ints]:
    """Return, by tier and rank, the instance of the tier: the number of the node if nodes have their own, else 0."""
    each = hardware.topology.devices_per_node
    return [np.arange(ranks) // (each if tier.scope == "node" else ranks) for tier in hardware.tiers.values()]


def stored_once(job: Job, hardware: Hardware, plans: Sequence[Plan]) -> Ints:
    """Add up, by tier and instance, how much more shared tensors would take if each rank stored its own [B].

    Parameters
    ----------
    job, hardware, plans
        The graphs of all ranks, the machine, and the plan of each rank.
    """
    scopes, instance = [tier.scope for tier in hardware.tiers.values()], _instances(hardware, job.ranks)
    spare = np.zeros((len(scopes), job.ranks), np.int64)
    shared: dict[int, list[tuple[Tensor, int]]] = {}
    stored = set[tuple[int, int, int, str, int]]()
    for rank, plan in enumerate(plans):
        if id(plan) not in shared:
            homes = zip(job.graph(rank).tensors, plan.home, strict=True)
            at_home = [(t, home) for t, home in homes if t.shared and t.persistent and home != NOWHERE]
            shared[id(plan)] = [(t, home) for t, home in at_home if scopes[home] != "device"]
        for t, home in shared[id(plan)]:
            sharer = rank // hardware.topology.devices_per_node if t.shared == "node" else 0
            place = (home, int(instance[home][rank]), sharer, t.name, t.size_bytes)
            spare[place[:2]] += t.size_bytes if place in stored else 0
            stored.add(place)
    return spare


def check_stored_once(hardware: Hardware, trace: Trace, spare: Ints) -> None:
    """Check `Trace.stored_once`, for each instance of a tier that has a simulated rank.

    Parameters
    ----------
    hardware, trace, spare
        The machine, the trace, and what `stored_once` returned.
    """
    recorded, instance = np.zeros_like(spare), _instances(hardware, spare.shape[1])
    for rank, tier, _, size in trace.stored_once:
        recorded[tier, instance[tier][rank]] += size
    for tier, name in enumerate(hardware.tiers):
        for i in np.unique(instance[tier][list(trace.stands_in)]).tolist():
            if recorded[tier, i] != spare[tier, i]:
                must = f"a tensor stored once in {name} counts once"
                found = f"{recorded[tier, i]:,} B less on instance {i}, not {spare[tier, i]:,} B"
                raise broken("trace, stored_once", must, found)


_ENDLESS = 1 << 62
"""More bytes than any tier has, in 64 bits."""


def check_addresses(facts: Facts, trace: Trace, allocator: AllocatorKind, budget_bytes: int | float) -> None:
    """Check one rank's addresses, from the rows alone.

    Parameters
    ----------
    facts, trace
        The rank's rows, and the trace.
    allocator
        The allocator that gave the addresses; ``ideal`` gives none.
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
    _check_places(facts, rows, events, rounds_up=allocator == "caching")
    _check_events(facts, events, rows, allocator)


def _check_apart(facts: Facts, rows: Block, end_bytes: int) -> None:
    """Check that each range is free when it is taken, lies in the space, and is freed as it was taken."""
    live: list[tuple[int, int, int]] = []
    ranges = tuples(rows, "tensor", "offset_bytes", "delta_bytes", "time_ns")
    for row, (item, offset, delta, time) in enumerate(ranges):
        where, found = f"addresses row {row:,}", f"{item} at {offset:,} B, {delta:,} B, at {time:,} ns"
        if delta > 0:
            i = bisect_left(live, (offset, 0, 0))
            if offset < 0 or offset + delta > end_bytes:
                raise facts.broken("each place lies in its tier", where, found)
            if (i and live[i - 1][1] > offset) or (i < len(live) and live[i][0] < offset + delta):
                raise facts.broken("no two live places overlap in addresses", where, found)
            insort(live, (offset, offset + delta, item))
        else:
            i = bisect_left(live, (offset, offset - delta, item))
            if i == len(live) or live.pop(i) != (offset, offset - delta, item):
                raise facts.broken("a range is freed where, and as large as, it was taken", where, found)
    wanted = sum(1 for _, _, item in live if item >= 0)
    persistent = [t for t, tensor in enumerate(facts.program.graph.tensors) if tensor.persistent and tensor.size_bytes]
    at_home = sum(1 for t in persistent if facts.program.plan.home[t] == facts.program.compute_tier)
    if facts.complete and (wanted != at_home or len(live) != wanted):
        raise facts.broken("a run ends with the places with which it began", "addresses", f"{len(live)} places")


def _check_places(facts: Facts, rows: Block, events: Block, *, rounds_up: bool) -> None:
    """Check that ranges are taken and freed with their places, apart from those that a compaction moves."""
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
        if taken != freed or not (is_moved or (taken == 0 and (size >= 0 if rounds_up else size == 0))):
            found = f"{item} at {time:,} ns: {taken:+} taken, {freed:+} freed and {size:+,} B beside its places"
            raise facts.broken("each place has one range, as large as it", "addresses", found)


def _check_events(facts: Facts, events: Block, rows: Block, allocator: AllocatorKind) -> None:
    """Check that compactions take their price and stop what works in their tier, and that waits for them are right."""
    asked, start, end, pages = (events[name] for name in ("asked_ns", "start_ns", "end_ns", "pages"))
    if allocator == "fixed" and len(asked):
        raise facts.broken("offsets chosen before the run need no compaction", "compactions", f"{len(asked)} of them")
    if (np.diff(asked) < 0).any() or (asked[1:] < end[:-1]).any() or (start < asked).any():
        raise facts.broken("compactions come one after another", "compactions", "two at once")
    price, page_bytes = facts.program.hardware.allocator.compaction, facts.program.hardware.allocator.page_bytes
    for row, is_remap in enumerate(events["is_remap"].tolist()):
        due = price.cost_ns(int(pages[row])) if is_remap and price is not None else 0
        if int(end[row] - start[row]) != due:
            found = f"{int(end[row] - start[row]):,} ns for {int(pages[row]):,} pages, not {due:,} ns"
            raise facts.broken("a compaction takes its price", f"compactions row {row:,}", found)
        if is_remap and price is not None and price.pages == "in_use" and allocator == "best_fit":
            _check_pages(facts, rows, (int(start[row]), int(pages[row])), page_bytes)
    spans, waits = facts.spans, pick(facts.waits, facts.waits["cause"] == CAUSES.index("compaction"))
    ends = np.append((facts.program.links[:, :2] == facts.program.compute_tier).any(axis=1), False)
    is_host = facts.program.is_host[np.where(spans["kind"] == COMPUTE, spans["item"], 0)]
    touches = ((spans["kind"] == COMPUTE) & ~is_host) | ends[np.where(spans["kind"] == COPY, spans["track"], -1)]
    _check_stopped(facts, pick(spans, touches & ~np.isin(spans["issue"], facts.met)), (asked, start, end))
    waited = np.zeros_like(waits["start_ns"]), waits["start_ns"], waits["end_ns"]
    holds = covered(waited, (np.zeros_like(asked), asked, end), 0, joined=True)
    law = "a wait for compaction lasts while one is asked for or under way"
    facts.check(holds, law, "waits", waits, "op", "start_ns", "end_ns")


def _check_pages(facts: Facts, rows: Block, compaction: tuple[int, int], page_bytes: int) -> None:
    """Check the pages that a compaction counts: of all ranges in use when it starts, or freed in that instant."""
    start, pages = compaction
    least = int(rows["delta_bytes"][rows["time_ns"] < start].sum())
    most = least + int(np.abs(rows["delta_bytes"][rows["time_ns"] == start]).sum())
    freed = int(rows["delta_bytes"][(rows["time_ns"] == start) & (rows["delta_bytes"] < 0)].sum())
    if not -(-(least + freed) // page_bytes) <= pages <= -(-most // page_bytes):
        raise facts.broken("a compaction counts the pages in use", "compactions", f"{pages:,} at {start:,} ns")


def _check_stopped(facts: Facts, spans: Block, times: tuple[Ints, Ints, Ints]) -> None:
    """Check that no span starts between the request for a compaction and its end, or runs once it has started."""
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
