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
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis
from simulator.policies.static.augmented import DETACH, PREFETCH, STORE, Augmented, CacheOp
from simulator.policies.static.room import held
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
    refiner = _Refiner(problem, analysis, augmented, timeline)
    stored = refiner.place_stores()
    (refiner.place_early if eager else refiner.place_late)()
    return augmented.moved(stored | refiner.settled())


class _Refiner:
    """Points of the copies, by the time and the room that there is."""

    def __init__(self, problem: Problem, analysis: Analysis, augmented: Augmented, timeline: Timeline) -> None:
        self._problem, self._timeline, self._below = problem, timeline, held(problem, augmented.gaps)
        self._copies = [one for one in augmented.cache_ops if one.role is not DETACH]
        ways = {(one.source, one.target) for one in self._copies}
        self._crowd = Crowd(problem, {hop for way in ways for hop in pairwise(problem.path(*way))})
        self._earliest, left_bytes = _leave(augmented, timeline)
        self._profile = Profile(analysis.live_bytes - left_bytes)
        self._points: dict[CacheOp, int] = {}

    def place_stores(self) -> dict[CacheOp, CacheOp]:
        """Let each channel take, whenever it is free, the store whose room is given up first."""
        by_channel: dict[int, list[CacheOp]] = {}
        for one in self._copies:
            if one.role is STORE:
                by_channel.setdefault(self._problem.queues[self._hop(one)], []).append(one)
        found: dict[CacheOp, CacheOp] = {}
        for one, wanted in chain.from_iterable(map(self._served, by_channel.values())):
            point = self._below.earliest(one, wanted, one.position)
            if point != one.position:
                self._below.move(one, point)
                found[one] = one._replace(position=point)
        return found

    def _served(self, stores: list[CacheOp]) -> Iterator[tuple[CacheOp, int]]:
        """Yield the stores of a channel in the order in which it takes them, and the point at which it does."""
        arrivals = sorted(stores, key=lambda one: (one.first, one.last, one.tensor), reverse=True)
        ready: list[tuple[int, int, int, CacheOp]] = []
        servers = [0] * self._problem.servers(self._hop(stores[0]))
        while arrivals or ready:
            while arrivals and (not ready or self._written_ns(arrivals[-1]) <= servers[0]):
                one = arrivals.pop()
                heappush(ready, (one.position, one.tensor, one.trip, one))
            _, _, _, one = heappop(ready)
            begin = max(servers[0], self._written_ns(one))
            heapreplace(servers, begin + self._crowd.copy_ns(one.tensor, self._hop(one)))
            yield one, min(max(one.first, bisect_right(self._timeline.gate_ns, begin) - 1), one.position)

    def _written_ns(self, one: CacheOp) -> int:
        """When what is stored is there [ns]."""
        starts = self._timeline.start_ns
        return starts[one.after] + self._problem.durations_ns[one.after] if one.after >= 0 else starts[one.first]

    def _hop(self, one: CacheOp) -> tuple[int, int]:
        """The link from or to the compute tier that a copy takes."""
        path = self._problem.path(one.source, one.target)
        return (path[-2], path[-1]) if one.role is PREFETCH else (path[0], path[1])

    def place_early(self) -> None:
        """Put each copy in where there is room for it from then on, behind those whose use comes first."""
        last_point: dict[int, int] = {}
        prefetches = (one for one in self._copies if one.role is PREFETCH)
        for one in sorted(prefetches, key=lambda one: (one.before, one.tensor)):
            queue = self._problem.queues[self._hop(one)]
            last_point[queue] = self._put(one, max(self._earliest[one.trip], one.first, last_point.get(queue, 0)))

    def place_late(self) -> None:
        """Let each copy in end just before its use, and before the next copy of its channel begins.

        That is the least cost by Algorithm 1. Stores that wait in the same queue as copies in keep their time.
        """
        problem, gates = self._problem, self._timeline.gate_ns
        free_until = dict[int, list[int]]()
        queues = {problem.queues[self._hop(one)] for one in self._copies if one.role is PREFETCH}
        for one in sorted(self._copies, key=lambda one: (self._due_ns(one), -one.tensor), reverse=True):
            hop = self._hop(one)
            if problem.queues[hop] not in queues:
                continue
            due = self._due_ns(one)
            servers = free_until.setdefault(problem.queues[hop], [-due] * problem.servers(hop))
            took = self._crowd.copy_ns(one.tensor, hop)
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
        most = self._problem.budget_bytes
        point = self._points[one] = self._profile.put(min(earliest, one.before), one.before, one.size_bytes, most)
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
