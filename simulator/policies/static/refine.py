"""Fourth pass: where each cache operator is issued.

The cost of a position is ``max(0, C_trans - C_overlap) + alpha * residency`` (Algorithm 1 of HyperOffload): what the
copy lasts beyond the compute time that it overlaps, and the share of the budget that it holds, over the time it holds
it before its use. Moving a copy earlier lowers the cost by 1 ns per ns until it is hidden, and from there on raises it
slowly. So the cheapest position is that kink, or the earliest feasible one if the kink lies before it.

*Just in time* goes backwards over the deadlines: a copy must end before its use and before the next copy of its channel
begins, so that what would overlap is staggered. *Early* lets copies in come as soon as there is room for them until
their use, the next use first. Room is what the live bytes and the stores really leave. Stores go forwards: a channel
that is free takes the store whose room is given up first, also before its last reader has run, but behind its writer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis
from simulator.policies.static.augmented import DETACH, PREFETCH, STORE, Augmented, CacheOp
from simulator.policies.static.room import Room, held
from simulator.policies.static.step_model import Crowd, Timeline

ALPHA = 0.1
"""What residency costs in Algorithm 1: ns of stall that are as bad as holding the whole budget for a ns. It explains a
position and chooses none, so that its value moves no plan."""


def refine(problem: Problem, analysis: Analysis, augmented: Augmented, timeline: Timeline, *, eager: bool) -> Augmented:
    """Choose where each cache operator is issued, and note the cost there.

    Parameters
    ----------
    problem, analysis
        What the plan is for.
    augmented
        The graph with its cache operators.
    timeline
        Starts of the ops, and when rooms are free.
    eager
        Whether copies in come as early as there is room, the next use first, instead of just in time.
    """
    below = held(problem, augmented.gaps)
    stores = [one for one in augmented.cache_ops if one.role is STORE]
    changed = _forwards(problem, stores, timeline, below, _crowd(problem, augmented))
    placement = _Placement(problem, analysis, augmented, timeline, below)
    if eager:
        placement.place_early()
    else:
        placement.place_late()
    return augmented.moved(changed | placement.settled())


def _crowd(problem: Problem, augmented: Augmented) -> Crowd:
    """The copies of all cache operators."""
    ways = {(one.source, one.target) for one in augmented.cache_ops if one.role is not DETACH}
    return Crowd(problem, {hop for source, target in ways for hop in pairwise(problem.path(source, target))})


def _forwards(
    problem: Problem, stores: Iterable[CacheOp], timeline: Timeline, below: Room, crowd: Crowd
) -> dict[CacheOp, CacheOp]:
    """Let each channel take, whenever it is free, the store whose room is given up first."""
    by_channel: dict[int, list[CacheOp]] = {}
    for one in stores:
        by_channel.setdefault(problem.queues[_first_hop(problem, one)], []).append(one)
    found: dict[CacheOp, CacheOp] = {}
    for mine in by_channel.values():
        for one, wanted in _served(problem, mine, timeline, crowd):
            point = below.earliest(one, wanted, one.position)
            if point != one.position:
                below.move(one, point)
                found[one] = one._replace(position=point)
    return found


def _served(problem: Problem, stores: list[CacheOp], timeline: Timeline, crowd: Crowd) -> Iterator[tuple[CacheOp, int]]:
    """Yield the stores of a channel in the order in which it takes them, and the point at which it does."""
    gates = timeline.gate_ns
    arrivals = sorted(stores, key=lambda one: (one.first, one.last, one.tensor), reverse=True)
    ready: list[tuple[int, int, int, CacheOp]] = []
    servers = [0] * problem.servers(_first_hop(problem, stores[0]))
    heapify(servers)
    starts, durations = timeline.start_ns, problem.durations_ns
    while arrivals or ready:
        while arrivals and (not ready or _written_ns(arrivals[-1], starts, durations) <= servers[0]):
            one = arrivals.pop()
            heappush(ready, (one.position, one.tensor, one.trip, one))
        _, _, _, one = heappop(ready)
        begin = max(servers[0], _written_ns(one, starts, durations))
        heapreplace(servers, begin + crowd.copy_ns(one.tensor, _first_hop(problem, one)))
        yield one, min(max(one.first, bisect_right(gates, begin) - 1), one.position)


def _written_ns(one: CacheOp, starts: tuple[int, ...], durations: list[int]) -> int:
    return starts[one.after] + durations[one.after] if one.after >= 0 else starts[one.first]


class _Placement:
    """Points of the copies in, by the room that there is."""

    def __init__(
        self, problem: Problem, analysis: Analysis, augmented: Augmented, timeline: Timeline, below: Room
    ) -> None:
        self._problem, self._timeline, self._below, self._augmented = problem, timeline, below, augmented
        self._earliest, left_bytes = _leave(augmented, timeline)
        self._profile = Profile(analysis.live_bytes - left_bytes)
        self._points: dict[CacheOp, int] = {}

    def place_early(self) -> None:
        """Put each copy in where there is room for it from then on, behind those whose use comes first."""
        last_point: dict[int, int] = {}
        prefetches = (one for one in self._augmented.cache_ops if one.role is PREFETCH)
        for one in sorted(prefetches, key=lambda one: (one.before, one.tensor)):
            queue = self._problem.queues[_last_hop(self._problem, one)]
            last_point[queue] = self._put(one, max(self._earliest[one.trip], one.first, last_point.get(queue, 0)))

    def place_late(self) -> None:
        """Let each copy in end just before its use, and before the next copy of its channel begins.

        That is the least cost by Algorithm 1. Stores that wait in the same queue as copies in keep their time.
        """
        problem, gates = self._problem, self._timeline.gate_ns
        copies = [one for one in self._augmented.cache_ops if one.role is not DETACH]
        crowd, free_until = _crowd(problem, self._augmented), dict[int, list[int]]()
        queues = {problem.queues[_last_hop(problem, one)] for one in copies if one.role is PREFETCH}
        for one in sorted(copies, key=lambda one: (self._due_ns(one), -one.tensor), reverse=True):
            hop = (_last_hop if one.role is PREFETCH else _first_hop)(problem, one)
            if problem.queues[hop] not in queues:
                continue
            due = self._due_ns(one)
            servers = free_until.setdefault(problem.queues[hop], [-due] * problem.servers(hop))
            took = crowd.copy_ns(one.tensor, hop)
            if one.role is STORE:
                heapreplace(servers, -(min(due, -servers[0]) - took))
                continue
            begin = min(due, -servers[0]) - (one.alone_ns - problem.copy_ns(one.tensor, *hop) + took)
            earliest = max(self._earliest[one.trip], one.first)
            point = self._put(one, max(bisect_right(gates, begin) - 1, earliest))
            heapreplace(servers, -max(begin, gates[point]))

    def _due_ns(self, one: CacheOp) -> int:
        """When a copy should have ended: a copy in at its use, a store when it can at the earliest [ns]."""
        if one.role is PREFETCH:
            return self._timeline.start_ns[one.before]
        return self._timeline.gate_ns[one.position] + one.alone_ns

    def _put(self, one: CacheOp, earliest: int) -> int:
        """Put a copy in at the first point from the earliest on with room for it from then on."""
        room = self._problem.budget_bytes - one.size_bytes
        point = self._profile.last_above(min(earliest, one.before), one.before - 1, room) + 1
        self._profile.add(point, one.before - 1, one.size_bytes)
        self._points[one] = point
        self._below.move(one, point)
        return point

    def settled(self) -> dict[CacheOp, CacheOp]:
        """Return what was placed with its cost; what passes a tier that is full then comes when there is room."""
        starts, gates = self._timeline.start_ns, self._timeline.gate_ns
        placed = {}
        for one, first in self._points.items():
            position = self._below.earliest(one, first, one.before) if self._below.passes(one) else first
            lead = max(0, starts[one.before] - gates[position])
            residency_ns = round(ALPHA * lead * one.size_bytes / self._problem.budget_bytes)
            stall_ns = max(0, one.alone_ns - lead)
            placed[one] = one._replace(position=position, stall_ns=stall_ns, residency_ns=residency_ns)
        return placed


def _first_hop(problem: Problem, one: CacheOp) -> tuple[int, int]:
    source, target = problem.path(one.source, one.target)[:2]
    return source, target


def _last_hop(problem: Problem, one: CacheOp) -> tuple[int, int]:
    source, target = problem.path(one.source, one.target)[-2:]
    return source, target


def _leave(augmented: Augmented, timeline: Timeline) -> tuple[list[int], NDArray[np.int64]]:
    """Find the first position of each trip's copy in, and by op what is really away [B]."""
    starts, ops = timeline.start_ns, len(timeline.start_ns) - 1
    detached = {one.trip: one.position for one in augmented.cache_ops if one.role is DETACH}
    earliest, change = [], [0] * (ops + 1)
    for trip, gap in enumerate(augmented.gaps):
        point, gone = detached.get(trip), ops
        if point is not None:
            freed = timeline.freed_ns.get((gap.tensor, point - 1), 0)
            gone = max(point, bisect_left(starts, freed, point, ops))
        if gap.wraps:
            change[0] += gap.size_bytes
            earliest.append(0)
        else:
            gone = min(gone, gap.before)
            earliest.append(gone)
        change[gone] += gap.size_bytes
        change[gap.before] -= gap.size_bytes
    return earliest, np.cumsum(change[:ops], dtype=np.int64)
