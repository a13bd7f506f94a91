"""Second pass: select the idle intervals that tensors spend away, so that live bytes fit a limit at the least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, PricedIdle, Score, scored, spread
from simulator.policies.static.room import PlannedRoom, chooses

SHADES = 64
"""Parts of a score to which it is rounded to count as alike: idle times within 1 % of one another do."""


class Ranking(NamedTuple):
    """The candidates, best first.

    Attributes
    ----------
    asked
        Tensors that it was asked for to leave.
    order
        Each with its score.
    """

    asked: frozenset[int]
    order: list[tuple[PricedIdle, Score]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The idle intervals that are spent away.

    Attributes
    ----------
    intervals
        The chosen idle intervals, by op and tensor.
    live_bytes
        By op: what is live in the compute tier then, if each copy in comes right before its use [B].
    excess_bytes
        By how much the largest of these exceeds the limit [B]; 0 if all fit.
    limit_bytes
        What live bytes had to fit [B].
    ranking
        By which it was chosen.
    given_back
        Idle intervals that were taken, and turned out needless once others were.
    """

    intervals: tuple[PricedIdle, ...]
    live_bytes: NDArray[np.int64]
    excess_bytes: int
    limit_bytes: int | float
    ranking: Ranking
    given_back: frozenset[PricedIdle] = frozenset()


def ranked(analysis: Analysis, asked: frozenset[int] = frozenset()) -> Ranking:
    """Sort the candidates: those that were asked for first, then by score.

    All that one op needs must be there at once, so that of its copies in with like scores each stands behind others:
    where these are blocks of a few caches, some of each leave rather than all of a few. Those whose scores are
    alike (`SHADES`) are spread over the step, of which tensors follow the course.
    """
    scored_intervals = sorted(((idle, scored(idle, asked)) for idle in analysis.candidates), key=turn)
    queues_ns: dict[tuple[int, int, int], int] = {}
    alike: dict[tuple[bool, int], list[tuple[PricedIdle, Score]]] = {}
    for idle, alone in scored_intervals:
        queue = idle.before, idle.away, round(alone.total * SHADES)
        queue_ns = queues_ns.get(queue, 0)
        queues_ns[queue] = queue_ns + idle.in_ns
        queued = scored(idle, asked, queue_ns) if queue_ns else alone
        key = not queued.is_asked, -round(queued.total * SHADES)
        alike.setdefault(key, []).append((idle, queued))
    return Ranking(asked, [pair for key in sorted(alike) for pair in spread(alike[key])])


def turn(pair: tuple[PricedIdle, Score]) -> tuple[bool, float, int, int]:
    """Return the sort key of an idle interval with its score: those that were asked for first, then the best score."""
    idle, score = pair
    return not score.is_asked, -score.total, idle.tensor, idle.after


def select(problem: Problem, analysis: Analysis, limit_bytes: int | float, ranking: Ranking) -> Selection:
    """Take idle intervals in order until live bytes fit the limit everywhere; then give back those that are needless.

    What is asked for and hides its copies is taken in any case; another interval only if it helps somewhere. One
    sort, and a few range operations per interval. What is detached and never stored lives away, so that all of its
    intervals that help are taken with the first, and the one over the step boundary in any case.

    Parameters
    ----------
    problem
        What to plan for.
    analysis
        Its idle intervals.
    limit_bytes
        What live bytes shall not exceed [B].
    ranking
        The candidates.
    """
    taker = _Taker(problem, analysis, limit_bytes, ranking)
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
    chosen.sort(key=in_order)
    values = live.values()
    excess = max(0, int(values.max()) - limit_bytes) if len(values) else 0
    return Selection(tuple(chosen), values, int(excess), limit_bytes, ranking, frozenset(given_back))


class _Taker:
    """Takes candidates in order; one without room in a tier below is queued again by its score in the next tier."""

    def __init__(self, problem: Problem, analysis: Analysis, limit_bytes: int | float, ranking: Ranking) -> None:
        self._problem, self._room, self._limit = problem, PlannedRoom(problem), limit_bytes
        self._asked, self._order = ranking
        self.live, self.taken = Profile(analysis.live_bytes), dict[PricedIdle, None]()
        self.asked = dict.fromkeys(idle for idle, score in self._order if score.is_asked and not idle.exposed_ns)
        self._together: dict[int, list[PricedIdle]] = {}
        moving = (idle for idle, _ in self._order if idle.tensor in analysis.moving_homes)
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
                over = count % 8 != 7 or self.live.exceeds(0, last, self._limit)

    def _take(self, idle: PricedIdle) -> None:
        """Take an idle interval and those that go with it, and count each in the first tier that has room."""
        for interval in self._together.get(idle.tensor, (idle,)):
            helps = interval in self.asked or interval.wraps or exceeds(self.live, interval, self._limit)
            if interval not in self.taken and helps:
                add(self.live, interval, -interval.size_bytes)
                self.taken[interval] = None
                self._room.enter((interval,), self._room.nearest(interval))

    def _offers(self) -> Iterator[PricedIdle]:
        if not self._room.is_scarce:
            yield from (idle for idle, _ in self._order)
            return
        tiers = self._problem.neighbours
        heap = [(turn(pair), 0, pair[0], pair[1].queue_ns) for pair in self._order]
        while heap:
            _, nth, idle, queue_ns = heappop(heap)
            fits = not self._room.is_short(tiers[nth], (idle,), idle.size_bytes)
            if fits or nth + 1 == len(tiers) or not chooses(self._problem, idle.tensor):
                yield idle
            else:
                further = idle.spent_in(self._problem, tiers[nth + 1])
                heappush(heap, (turn((further, scored(further, self._asked, queue_ns))), nth + 1, idle, queue_ns))


def in_order(idle: PricedIdle) -> tuple[int, int, int]:
    """Return the sort key of chosen idle intervals: by op and tensor."""
    return idle.after, idle.tensor, idle.before


def add(live: Profile, idle: PricedIdle, delta_bytes: int) -> None:
    """Add to live bytes over an idle interval."""
    for first, last in idle.ranges(live.length):
        live.add(first, last, delta_bytes)


def exceeds(live: Profile, idle: PricedIdle, limit_bytes: int | float) -> bool:
    """Return whether live bytes exceed a limit somewhere in an idle interval."""
    return any(live.exceeds(first, last, limit_bytes) for first, last in idle.ranges(live.length))
