"""Second pass: which gaps a tensor spends away, so that live bytes fit a limit at the least cost."""

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
from simulator.policies.static.analyse import Analysis, Idle, Score, scored, spread
from simulator.policies.static.room import PlannedRoom, chooses

SHADES = 64
"""Scores that are the same in whole parts of this size count as alike: idle times within 1 % of one another do."""


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
    order: list[tuple[Idle, Score]]


@dataclass(frozen=True, slots=True)
class Selection:
    """What leaves.

    Attributes
    ----------
    gaps
        The chosen gaps, by op and tensor.
    live_bytes
        By op: what is live in the compute tier then, if each copy in comes right before its use [B].
    excess_bytes
        By how much the largest of these exceeds the limit [B]; 0 if all fit.
    limit_bytes
        What live bytes had to fit [B].
    ranking
        By which it was chosen.
    given_back
        Gaps that were taken, and turned out needless once others were.
    """

    gaps: tuple[Idle, ...]
    live_bytes: NDArray[np.int64]
    excess_bytes: int
    limit_bytes: int | float
    ranking: Ranking
    given_back: frozenset[Idle] = frozenset()


def ranked(analysis: Analysis, asked: frozenset[int] = frozenset()) -> Ranking:
    """Sort the candidates: those that were asked for first, then by score.

    All that one op needs must be there at once, so that of its copies in with like scores each stands behind others:
    where these are blocks of a few caches, some of each leave rather than all of a few. Those whose scores are
    alike (`SHADES`) are spread over the step, of which tensors follow the course.
    """
    found = sorted(((gap, scored(gap, asked)) for gap in analysis.candidates), key=turn)
    queues_ns: dict[tuple[int, int, int], int] = {}
    alike: dict[tuple[bool, int], list[tuple[Idle, Score]]] = {}
    for gap, alone in found:
        queue = gap.before, gap.away, round(alone.total * SHADES)
        queue_ns = queues_ns.get(queue, 0)
        queues_ns[queue] = queue_ns + gap.in_ns
        queued = scored(gap, asked, queue_ns) if queue_ns else alone
        key = not queued.is_asked, -round(queued.total * SHADES)
        alike.setdefault(key, []).append((gap, queued))
    return Ranking(asked, [pair for key in sorted(alike) for pair in spread(alike[key])])


def turn(pair: tuple[Idle, Score]) -> tuple[bool, float, int, int]:
    """Sort key of a gap with its score: those that were asked for first, then the best score."""
    gap, score = pair
    return not score.is_asked, -score.total, gap.tensor, gap.after


def select(problem: Problem, analysis: Analysis, limit_bytes: int | float, ranking: Ranking) -> Selection:
    """Take gaps in order until live bytes fit the limit everywhere, then give back those that turn out needless.

    What is asked for and hides its copies is taken in any case; another gap only if it helps somewhere. One sort, and
    a few range operations per gap. What is detached and never stored lives away, so that all of its gaps that help are
    taken with the first, and the one over the step boundary in any case.

    Parameters
    ----------
    problem
        What to plan for.
    analysis
        Its idle gaps.
    limit_bytes
        What live bytes shall not exceed [B].
    ranking
        The candidates.
    """
    taker = _Taker(problem, analysis, limit_bytes, ranking)
    taker.run()
    live, chosen, given_back = taker.live, list(analysis.forced), []
    away = Counter(gap.tensor for gap in taker.taken if not gap.wraps and gap.tensor in analysis.moving_homes)
    for gap in reversed(taker.taken):
        stays_away = gap in taker.asked or (gap.wraps and away.get(gap.tensor))
        if stays_away or exceeds(live, gap, limit_bytes - gap.size_bytes):
            chosen.append(gap)
            continue
        add(live, gap, gap.size_bytes)
        given_back.append(gap)
        if gap.tensor in away:
            away[gap.tensor] -= 1
    chosen.sort(key=in_order)
    values = live.values()
    excess = max(0, int(values.max()) - limit_bytes) if len(values) else 0
    return Selection(tuple(chosen), values, int(excess), limit_bytes, ranking, frozenset(given_back))


class _Taker:
    """Takes candidates in order; one without room in a tier below is queued again by its score in the next tier."""

    def __init__(self, problem: Problem, analysis: Analysis, limit_bytes: int | float, ranking: Ranking) -> None:
        self._problem, self._room, self._limit = problem, PlannedRoom(problem), limit_bytes
        self._asked, self._order = ranking
        self.live, self.taken = Profile(analysis.live_bytes), dict[Idle, None]()
        self.asked = dict.fromkeys(gap for gap, score in self._order if score.is_asked and not gap.exposed_ns)
        self._together: dict[int, list[Idle]] = {}
        moving = (gap for gap, _ in self._order if gap.tensor in analysis.moving_homes)
        for gap in sorted(moving, key=lambda gap: not gap.wraps):
            self._together.setdefault(gap.tensor, []).append(gap)
        for gap in analysis.forced:
            add(self.live, gap, -gap.size_bytes)
            self._room.enter((gap,), gap.away)

    def run(self) -> None:
        """Take the gaps that were asked for, and others until live bytes fit the limit."""
        for gap in self.asked:
            self._take(gap)
        last = self.live.length - 1
        over = self.live.exceeds(0, last, self._limit)
        for count, gap in enumerate(self._offers()):
            if not over:
                break
            if gap not in self.taken and exceeds(self.live, gap, self._limit):
                self._take(gap)
                over = count % 8 != 7 or self.live.exceeds(0, last, self._limit)

    def _take(self, gap: Idle) -> None:
        """Take a gap and those that go with it, and count each in the first tier that has room."""
        for one in self._together.get(gap.tensor, (gap,)):
            helps = one in self.asked or one.wraps or exceeds(self.live, one, self._limit)
            if one not in self.taken and helps:
                add(self.live, one, -one.size_bytes)
                self.taken[one] = None
                self._room.enter((one,), self._room.nearest(one))

    def _offers(self) -> Iterator[Idle]:
        if not self._room.is_scarce:
            yield from (gap for gap, _ in self._order)
            return
        tiers = self._problem.neighbours
        heap = [(turn(pair), 0, pair[0], pair[1].queue_ns) for pair in self._order]
        while heap:
            _, nth, gap, queue_ns = heappop(heap)
            fits = not self._room.is_short(tiers[nth], (gap,), gap.size_bytes)
            if fits or nth + 1 == len(tiers) or not chooses(self._problem, gap.tensor):
                yield gap
            else:
                further = gap.spent_in(self._problem, tiers[nth + 1])
                heappush(heap, (turn((further, scored(further, self._asked, queue_ns))), nth + 1, gap, queue_ns))


def in_order(gap: Idle) -> tuple[int, int, int]:
    """Sort key of chosen gaps: by op and tensor."""
    return gap.after, gap.tensor, gap.before


def add(live: Profile, gap: Idle, delta_bytes: int) -> None:
    """Add to live bytes over a gap."""
    for first, last in gap.ranges(live.length):
        live.add(first, last, delta_bytes)


def exceeds(live: Profile, gap: Idle, limit_bytes: int | float) -> bool:
    """Whether live bytes exceed a limit somewhere in a gap."""
    return any(live.exceeds(first, last, limit_bytes) for first, last in gap.ranges(live.length))
