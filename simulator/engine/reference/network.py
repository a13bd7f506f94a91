"""Sharing of bandwidth: max-min fair rates, and flows that end when their service is done.

A *pipe* is all flows of one path with the same cap. They have the same rate at all times, so one virtual clock (service
per flow since the pipe began) and one heap of finish tags serve them all, and a change costs O(log n). Ranks whose
flows go through the same resources share the path. When a flow comes or goes, new rates are set for the pipes that it
is connected with through resources in use, and only for those.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from heapq import heappop, heappush

import simpy

from simulator.cost.service import FULL_RATE, ceil_div
from simulator.engine.reference.clock import RATES, Clock


class SharedResource:
    """Something with a bandwidth that flows share: a link, a bus, a port, the compute tier, or a unit that computes.

    Attributes
    ----------
    bandwidth
        What there is to share [B/s].
    pipes
        Those that have flows.
    watch
        Called with the time [ns] and the rate of all flows together [B/s] whenever flows come, go or change theirs.
    """

    def __init__(self, bandwidth: int | float, watch: Callable[[int, int], None] | None = None) -> None:
        self.bandwidth, self.watch = bandwidth, watch
        self.pipes: list[Pipe] = []

    def rate(self) -> int:
        """Return the rate of all flows together [B/s], rounded down: never more than the bandwidth."""
        total = 0
        for pipe in self.pipes:
            count = next(count for resource, count in pipe.path.uses if resource is self)
            total += len(pipe.tags) * count * pipe.rate * _finite(pipe.path.unit)
        return total // FULL_RATE


Uses = tuple[tuple[SharedResource, int], ...]
"""Resources, each with the number of flows that a flow counts for there (see `simulator.engine.program`)."""


class Path:
    """The resources that a flow goes through.

    Attributes
    ----------
    unit
        The bandwidth that work and rates are counted against [B/s]: that of the flow's own link; if that is endless,
        that of the narrowest bus it is on.
    uses
        Resources whose bandwidth the flow shares max-min.
    shared
        These resources alone.
    even
        Whether each flow of this path gets at most an equal part of the unit, even if others leave theirs (``fifo``).
    pipes
        Those that have flows, by cap.
    watched
        Those of the resources that are watched.
    """

    def __init__(self, unit: int | float, uses: Uses, *, even: bool) -> None:
        self.unit, self.uses, self.even = unit, uses, even
        self.shared = [resource for resource, _ in uses]
        self.pipes: dict[int, Pipe] = {}
        self.watched = tuple(resource for resource in self.shared if resource.watch is not None)


class Pipe:
    """The flows of one path with one cap, and their virtual clock.

    Attributes
    ----------
    path, cap, rate
        Where they flow; the most each may get, and what each gets, as shares of the path's unit in fixed point.
    tags
        For each flow the reading of the virtual clock at which it ends, a key for ties, and its end as an event.
    due_ns
        When the next one ends at the present rate, or -1 [ns].
    """

    def __init__(self, path: Path, cap: int) -> None:
        self.path, self.cap, self.rate = path, cap, 0
        self._clock = self._since_ns = 0
        self.tags: list[tuple[int, int, simpy.Event]] = []
        self.due_ns = -1

    def advance(self, now_ns: int) -> int:
        """Advance the virtual clock to now, and return its reading."""
        if now_ns != self._since_ns:
            self._clock += self.rate * (now_ns - self._since_ns)
            self._since_ns = now_ns
        return self._clock


def max_min_rates(pipes: list[Pipe]) -> list[int]:
    """Return the rate of each flow of each pipe, as a share of the pipe's unit in fixed point, rounded down.

    Progressive filling: raise the rate of all flows together; a flow stops at its cap or when a resource on its path
    is used up; go on with the rest. Each flow ends with its own cap reached or a saturated resource on its path.

    Parameters
    ----------
    pipes
        All pipes that are connected over resources, each with at least one flow.
    """
    flows: defaultdict[Path, int] = defaultdict(int)
    for pipe in pipes:
        flows[pipe.path] += len(pipe.tags)
    caps = [min(p.cap, FULL_RATE // flows[p.path]) if p.path.even else p.cap for p in pipes]
    if len(pipes) == 1:  # what `_fill` finds, in whole numbers
        (cap,), path = caps, pipes[0].path
        for resource, count in path.uses:
            if resource.bandwidth != math.inf:
                shared_by = _finite(path.unit) * len(pipes[0].tags) * count
                cap = min(cap, int(resource.bandwidth) * FULL_RATE // shared_by)
        return [max(1, cap)]
    rates = _fill(pipes, [Fraction(cap, FULL_RATE) * _finite(p.path.unit) for cap, p in zip(caps, pipes, strict=True)])
    return [max(1, math.floor(r * FULL_RATE / _finite(p.path.unit))) for r, p in zip(rates, pipes, strict=True)]


def _finite(bandwidth: int | float) -> int:
    return FULL_RATE if bandwidth == math.inf else int(bandwidth)


def _fill(pipes: list[Pipe], caps: list[Fraction]) -> list[Fraction]:
    """Fill progressively, in exact arithmetic [B/s per flow]."""
    left = {r: Fraction(int(r.bandwidth)) for p in pipes for r in p.path.shared if r.bandwidth != math.inf}
    users = dict.fromkeys(left, 0)
    for p in pipes:
        for r, count in p.path.uses:
            if r in users:
                users[r] += len(p.tags) * count
    rates = [Fraction(0)] * len(pipes)
    rising = list(range(len(pipes)))
    while rising:
        shares = {r: left[r] / n for r, n in users.items() if n}
        level = min([*(caps[i] for i in rising), *shares.values()])
        full = {r for r, share in shares.items() if share == level}
        still = []
        for i in rising:
            path = pipes[i].path
            if caps[i] > level and full.isdisjoint(path.shared):
                still.append(i)
                continue
            rates[i] = level
            for r, count in path.uses:
                if r in left:
                    flows = len(pipes[i].tags) * count
                    left[r] -= level * flows
                    users[r] -= flows
        rising = still
    return rates


class Network:
    """All flows of a run.

    Parameters
    ----------
    clock
        The clock: rates are set anew once an instant is settled.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._touched: dict[Pipe, None] = {}

    def flow(self, path: Path, cap: int, work: int, key: int) -> simpy.Event:
        """Begin a flow now, and return its end; `key` decides among flows of a pipe that end at the same instant."""
        pipe = path.pipes.get(cap)
        if pipe is None:
            pipe = path.pipes[cap] = Pipe(path, cap)
            for resource in path.shared:
                resource.pipes.append(pipe)
        end = self.clock.event()
        heappush(pipe.tags, (pipe.advance(self.clock.now) + work, key, end))
        self._touch(pipe)
        return end

    def _touch(self, pipe: Pipe) -> None:
        if not self._touched:
            self.clock.turn(RATES).callbacks.append(self._reset_rates)
        self._touched[pipe] = None

    def _end_flows(self, pipe: Pipe, due: simpy.Event) -> None:
        """End the flows of a pipe that are done by now; do nothing if the end was rescheduled."""
        if pipe.due_ns != self.clock.now:
            return
        pipe.due_ns, reading = -1, pipe.advance(self.clock.now)
        while pipe.tags and pipe.tags[0][0] <= reading:
            heappop(pipe.tags)[2].succeed()
        self._touch(pipe)
        if not pipe.tags:
            del pipe.path.pipes[pipe.cap]
            for resource in pipe.path.shared:
                resource.pipes.remove(pipe)

    def _reset_rates(self, event: simpy.Event) -> None:
        """Share the resources again among all pipes connected with a change, and reschedule their next ends."""
        now = self.clock.now
        seen: set[Pipe] = set()
        watched: dict[SharedResource, None] = {}
        for pipe in self._touched:
            watched.update(dict.fromkeys(pipe.path.watched))
            if not (connected := _connected(pipe, seen)):
                continue
            for other, rate in zip(connected, max_min_rates(connected), strict=True):
                watched.update(dict.fromkeys(other.path.watched))
                left, other.rate = other.tags[0][0] - other.advance(now), rate
                due_ns = now + ceil_div(max(0, left), rate)
                if due_ns != other.due_ns:
                    other.due_ns = due_ns
                    self.clock.end_after(due_ns - now).callbacks.append(partial(self._end_flows, other))
        self._touched.clear()
        for resource in watched:
            if resource.watch is not None:
                resource.watch(now, resource.rate())


def _connected(pipe: Pipe, seen: set[Pipe]) -> list[Pipe]:
    """Return the pipes with flows that share resources with this one, directly or not; none if it was seen."""
    connected, frontier, resources = [], [pipe], set()
    while frontier:
        other = frontier.pop()
        if other in seen:
            continue
        seen.add(other)
        if other.tags:
            connected.append(other)
        if other.path.even:
            frontier += other.path.pipes.values()
        for resource in other.path.shared:
            if resource not in resources:
                resources.add(resource)
                frontier += resource.pipes
    return connected
