"""Fourth pass: where each cache operator is issued. Algorithm 1 of HyperOffload, with time, channels and room.

The cost of a position is ``max(0, C_trans - C_overlap) + alpha * residency``: what the copy lasts beyond the
compute time that it overlaps, and the share of the budget that it holds, over the time it holds it before its use.
Moving a copy earlier lowers the cost by 1 ns per ns until it is hidden, and from there on raises it by
``alpha * size / budget``. So the cheapest position is that kink, or the earliest feasible one if the kink lies before
it (or the use itself where residency costs more than stall): it is found by bisection, and no position is tried.

Channel occupancy comes in by going backwards over the deadlines: a copy must end before its use and before the next
copy of its channel begins, so that what would overlap is staggered. Room comes in by the live bytes that the stores
really leave. Stores go the other way, forwards: a channel that is free takes the store whose room is given up first,
also before its last reader has run, once its last writer has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.policies.crowd import Crowd
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis
from simulator.policies.static.augmented import DETACH, PREFETCH, STORE, Augmented, CacheOp
from simulator.policies.static.room import Room, held
from simulator.policies.static.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a candidate is made with.

    Attributes
    ----------
    alpha
        Weight of residency.
    slack_ns
        How much before its use a copy in should have ended [ns].
    early_stores
        Whether a store may be issued before the last reader has run.
    eager
        Whether copies in come as early as there is room, the next use first, instead of just in time.
    """

    alpha: float
    slack_ns: int = 0
    early_stores: bool = False
    eager: bool = False


def refine(problem: Problem, analysis: Analysis, augmented: Augmented, timeline: Timeline, knobs: Knobs) -> Augmented:
    """Move each cache operator to its cheapest position, and note the cost there.

    Parameters
    ----------
    problem, analysis
        What the plan is for.
    augmented
        The graph with its cache operators.
    timeline
        Starts of the ops, and when rooms are free.
    knobs
        See `Knobs`.
    """
    changed: dict[CacheOp, CacheOp] = {}
    below = held(problem, augmented.gaps)
    if knobs.early_stores:
        stores = [one for one in augmented.cache_ops if one.role is STORE]
        changed.update(_forwards(problem, stores, timeline, below, _crowd(problem, augmented)))
    changed.update(_backwards(_Layout(problem, analysis, augmented, timeline, knobs, below), augmented))
    return augmented.moved(changed)


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
        by_channel.setdefault(problem.queue(_first_hop(problem, one)), []).append(one)
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


def _backwards(layout: _Layout, augmented: Augmented) -> dict[CacheOp, CacheOp]:
    """Let each copy in end just before its use, and before the next copy of its channel begins."""
    problem = layout.problem
    if layout.knobs.eager:
        prefetches = (one for one in augmented.cache_ops if one.role is PREFETCH)
        for one in sorted(prefetches, key=lambda one: (one.before, one.tensor)):
            layout.place_early(one)
        return layout.settled()
    copies = [one for one in augmented.cache_ops if one.role is not DETACH]
    one_of_each_way = {(one.source, one.target): one for one in copies if one.role is PREFETCH}
    queues = {problem.queue(_last_hop(problem, one)) for one in one_of_each_way.values()}
    for one in sorted(copies, key=layout.latest_ns, reverse=True):
        if one.role is PREFETCH:
            layout.place(one)
        elif problem.queue(_first_hop(problem, one)) in queues:
            layout.reserve(one)
    return layout.settled()


class _Layout:
    """The copies of each channel, laid out backwards."""

    def __init__(
        self,
        problem: Problem,
        analysis: Analysis,
        augmented: Augmented,
        timeline: Timeline,
        knobs: Knobs,
        below: Room,
    ) -> None:
        self.problem, self._timeline, self.knobs, self._below = problem, timeline, knobs, below
        self._crowd = _crowd(problem, augmented)
        earliest, left_bytes = _leave(augmented, timeline)
        self._earliest, self._profile = earliest, Profile(analysis.live_bytes - left_bytes)
        self._free_until: dict[int, list[int]] = {}
        self._last_point: dict[int, int] = {}
        self._found: dict[CacheOp, tuple[int, int]] = {}

    def latest_ns(self, one: CacheOp) -> tuple[int, int]:
        """When a copy should have ended: a copy in at its use, a store when it can at the earliest [ns]."""
        if one.role is PREFETCH:
            return self._timeline.start_ns[one.before], -one.tensor
        return self._timeline.gate_ns[one.position] + one.alone_ns, -one.tensor

    def _servers(self, hop: tuple[int, int], due: int) -> list[int]:
        """Until when each server of the hop's queue is free, negative, as a heap."""
        return self._free_until.setdefault(self.problem.queue(hop), [-due] * self.problem.servers(hop))

    def reserve(self, one: CacheOp) -> None:
        """Keep time for a store where copies in use the same queue."""
        hop, due = _first_hop(self.problem, one), self.latest_ns(one)[0]
        servers = self._servers(hop, due)
        heapreplace(servers, -(min(due, -servers[0]) - self._crowd.copy_ns(one.tensor, hop)))

    def place(self, one: CacheOp) -> None:
        """Put a copy in at its cheapest position."""
        problem, starts, gates, knobs = self.problem, self._timeline.start_ns, self._timeline.gate_ns, self.knobs
        budget, hop = problem.budget_bytes, _last_hop(problem, one)
        took = one.alone_ns - problem.copy_ns(one.tensor, *hop) + self._crowd.copy_ns(one.tensor, hop)
        due = starts[one.before] - knobs.slack_ns
        servers = self._servers(hop, due)
        begin = min(due, -servers[0]) - took
        position = one.before
        if knobs.alpha * one.size_bytes < budget:
            feasible = max(self._earliest[one.trip], one.first)
            position = min(max(bisect_right(gates, begin) - 1, feasible), one.before)
            position = self._profile.last_above(position, one.before - 1, budget - one.size_bytes) + 1
        self._profile.add(position, one.before - 1, one.size_bytes)
        heapreplace(servers, -max(begin, gates[position]))
        self._note(one, position, took)

    def place_early(self, one: CacheOp) -> None:
        """Put a copy in where there is room for it from then on, behind those whose use comes first."""
        queue = self.problem.queue(_last_hop(self.problem, one))
        earliest = max(self._earliest[one.trip], one.first, self._last_point.get(queue, 0))
        room = self.problem.budget_bytes - one.size_bytes
        position = self._profile.last_above(min(earliest, one.before), one.before - 1, room) + 1
        self._profile.add(position, one.before - 1, one.size_bytes)
        self._last_point[queue] = position
        self._note(one, position, one.alone_ns)

    def _note(self, one: CacheOp, position: int, took: int) -> None:
        """Note a position, and how long the copy takes there."""
        self._found[one] = position, took
        self._below.move(one, position)

    def settled(self) -> dict[CacheOp, CacheOp]:
        """Return what was placed with its cost; what passes a tier that is full then comes when there is room."""
        starts, gates, knobs = self._timeline.start_ns, self._timeline.gate_ns, self.knobs
        placed = {}
        for one, (first, took) in self._found.items():
            position = self._below.earliest(one, first, one.before) if self._below.passes(one) else first
            lead = max(0, starts[one.before] - gates[position])
            residency_ns = round(knobs.alpha * lead * one.size_bytes / self.problem.budget_bytes)
            placed[one] = one._replace(position=position, stall_ns=max(0, took - lead), residency_ns=residency_ns)
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
