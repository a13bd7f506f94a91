"""Second pass: select the idle intervals that tensors spend away, so that live bytes fit a limit at the least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, PricedIdle, ranking_key, scored
from simulator.policies.static.room import PlannedRoom, is_tier_free
from simulator.units import counted, human


@dataclass(frozen=True, slots=True)
class Selection:
    """The idle intervals that are spent away.

    Attributes
    ----------
    intervals
        The chosen idle intervals, by op and tensor.
    live_bytes
        By op: bytes that are then live in the compute tier, if each copy in comes right before its use [B].
    given_back
        Idle intervals that were taken at first, and that others taken later made needless.
    """

    analysis: Analysis
    intervals: tuple[PricedIdle, ...]
    live_bytes: NDArray[np.int64]
    limit_bytes: int | float
    given_back: frozenset[PricedIdle] = frozenset()

    @property
    def note(self) -> str:
        """Sentence about the chosen idle intervals."""
        if self.intervals:
            moved = sum(idle.size_bytes for idle in self.intervals)
            return f"{counted(len(self.intervals), 'idle interval')} spent away, {human(moved, 'B')} in all"
        most, budget = int(self.live_bytes.max(initial=0)), self.analysis.problem.budget_bytes
        return f"nothing moves: at most {human(most, 'B')} are live at once, of a budget of {human(budget, 'B')}"


def select(analysis: Analysis, limit_bytes: int | float) -> Selection:
    """Take idle intervals in order until live bytes fit the limit everywhere; then give back those that are needless.

    Intervals that option `move` asks for are always taken if they hide their copies, others only if live bytes exceed
    the limit there: one sort, and a few range operations per interval. With the first interval of a tensor that lives
    away if it moves (`moving_homes`), its others that help are taken too, and always the one over the step boundary.

    Parameters
    ----------
    analysis
        Analysis of the problem.
    limit_bytes
        The limit of live bytes [B].
    """
    if not analysis.asked and not analysis.forced and analysis.live_bytes.max(initial=0) <= limit_bytes:
        return Selection(analysis, (), analysis.live_bytes, limit_bytes)
    taker = _Taker(analysis, limit_bytes)
    taker.run()
    live, chosen, given_back = taker.live, list(analysis.forced), []
    away = Counter(idle.tensor for idle in taker.taken if not idle.wraps and idle.tensor in analysis.moving_homes)
    for idle in reversed(taker.taken):
        stays_away = idle in taker.asked or (idle.wraps and away.get(idle.tensor))
        if stays_away or exceeds(live, idle, limit_bytes - idle.size_bytes):
            chosen.append(idle)
            continue
        add(live, idle, idle.size_bytes)
        given_back.append(idle)
        if idle.tensor in away:
            away[idle.tensor] -= 1
    chosen.sort(key=by_op_and_tensor)
    return Selection(analysis, tuple(chosen), live.values(), limit_bytes, frozenset(given_back))


class _Taker:
    """Take candidates in order; one for which a tier below has no room is queued again by its score in the next."""

    def __init__(self, analysis: Analysis, limit_bytes: int | float) -> None:
        self._analysis, self._room, self._limit = analysis, PlannedRoom(analysis.problem), limit_bytes
        self.live, self.taken, order = Profile(analysis.live_bytes), dict[PricedIdle, None](), analysis.ranking
        self.asked = dict.fromkeys(idle for idle, score in order if score.is_asked and not idle.exposed_ns)
        self._together: dict[int, list[PricedIdle]] = {}
        moving = (idle for idle, _ in order if idle.tensor in analysis.moving_homes)
        for idle in sorted(moving, key=lambda idle: not idle.wraps):
            self._together.setdefault(idle.tensor, []).append(idle)
        for idle in analysis.forced:
            add(self.live, idle, -idle.size_bytes)
            self._room.enter((idle,), idle.away)

    def run(self) -> None:
        """Take the intervals that were asked for, and others until live bytes fit the limit."""
        for idle in self.asked:
            self._take(idle)
        last = self.live.length - 1
        over = self.live.exceeds(0, last, self._limit)
        for count, idle in enumerate(self._offers()):
            if not over:
                break
            if idle not in self.taken and exceeds(self.live, idle, self._limit):
                self._take(idle)
                # Only every eighth time: checking all live bytes takes as long as a few candidates.
                over = count % 8 != 7 or self.live.exceeds(0, last, self._limit)

    def _take(self, idle: PricedIdle) -> None:
        """Take an idle interval and those taken with it, and count each in the first tier that has room."""
        for interval in self._together.get(idle.tensor, (idle,)):
            helps = interval in self.asked or interval.wraps or exceeds(self.live, interval, self._limit)
            if interval not in self.taken and helps:
                add(self.live, interval, -interval.size_bytes)
                self.taken[interval] = None
                self._room.enter((interval,), self._room.nearest(interval))

    def _offers(self) -> Iterator[PricedIdle]:
        order, problem, asked = self._analysis.ranking, self._analysis.problem, self._analysis.asked
        if not self._room.is_scarce:
            yield from (idle for idle, _ in order)
            return
        tiers = problem.neighbours
        heap = [(ranking_key(pair), 0, pair[0], pair[1].queue_ns) for pair in order]
        while heap:
            _, nth, idle, queue_ns = heappop(heap)
            fits = not self._room.is_short(tiers[nth], (idle,), idle.size_bytes)
            if fits or nth + 1 == len(tiers) or not is_tier_free(problem, idle.tensor):
                yield idle
            else:
                further = idle.spent_in(problem, tiers[nth + 1])
                heappush(heap, (ranking_key((further, scored(further, asked, queue_ns))), nth + 1, idle, queue_ns))


def by_op_and_tensor(idle: PricedIdle) -> tuple[int, int, int]:
    """Return the sort key of chosen idle intervals: by op and tensor."""
    return idle.after, idle.tensor, idle.before


def add(live: Profile, idle: PricedIdle, delta_bytes: int) -> None:
    """Add to live bytes over an idle interval."""
    for first, last in idle.ranges(live.length):
        live.add(first, last, delta_bytes)


def exceeds(live: Profile, idle: PricedIdle, limit_bytes: int | float) -> bool:
    """Return whether live bytes exceed a limit somewhere in an idle interval."""
    return any(live.exceeds(first, last, limit_bytes) for first, last in idle.ranges(live.length))
