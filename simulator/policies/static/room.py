"""Room in the tiers below: what each holds at each program point, and in which tier each chosen interval is spent.

Only a tier that could not hold all tensors at once is *scarce*, and counted. A tensor takes room there from its store
to its last copy back, or always if the tier is its home; in a tier that its copies only pass, at their points alone.

A tensor without a home of its own may go to any tier that links reach: first to the one with the fastest round trip.
What overflows a tier goes on to the next, just as what overflows the compute tier goes to the first: by the same score,
with the copy times of the longer path. For it, idle times are scaled to a step as long as the busiest link needs, which
no step beats. Of intervals with about the same score every other or every fourth goes on, evenly over the step, so that
no link idles while another has all the work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simulator.plan import FREE
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import PricedIdle, scored, spread
from simulator.policies.static.cache_ops import STORE, CacheOp

Stay = tuple[PricedIdle, ...]
"""Idle intervals of one tensor that share a copy away, because no op writes between them: one stay in a lower tier."""


def stays(problem: Problem, intervals: Sequence[PricedIdle]) -> list[Stay]:
    """Group intervals by the copy away that they share.

    Parameters
    ----------
    problem
        Problem to plan for.
    intervals
        Idle intervals that are spent away.
    """
    wrapping, writes = {idle.tensor for idle in intervals if idle.wraps}, problem.lifetimes.writes
    by_version: dict[tuple[int, int], list[PricedIdle]] = {}
    for idle in intervals:
        version = 0 if idle.tensor in wrapping else bisect_right(writes[idle.tensor], idle.after)
        by_version.setdefault((idle.tensor, version), []).append(idle)
    return [tuple(stay) for stay in by_version.values()]


def is_tier_free(problem: Problem, tensor: int) -> bool:
    """Return whether the planner may choose the tier in which a tensor is away."""
    return problem.homes[tensor] == FREE or tensor not in problem.lifetimes.inputs


class PlannedRoom:
    """Bytes in scarce tiers at each program point; at first those of the tensors at home there.

    Parameters
    ----------
    problem
        Problem to plan for.
    intervals
        Idle intervals, with the tiers in which they are spent. They count there, and not where copies only pass.
    """

    def __init__(self, problem: Problem, intervals: Sequence[PricedIdle] = ()) -> None:
        self._problem, self._end = problem, len(problem.graph.ops)
        self._last = set[tuple[int, int]]()  # prefetches that end a stay
        everything = sum(problem.sizes)
        self._profiles = dict[int, Profile]()
        for tier in (tier for tier in problem.neighbours if problem.capacities[tier] < everything):
            at_home = (t for t, home in enumerate(problem.homes) if home == tier and t in problem.lifetimes.inputs)
            self._profiles[tier] = Profile(np.full(self._end + 1, sum(problem.sizes[t] for t in at_home), np.int64))
        for stay in stays(problem, intervals) if self.is_scarce else ():
            self._count(stay, stay[0].away, stay[0].size_bytes)
            if not any(idle.wraps for idle in stay):
                self._last.add((stay[0].tensor, max(idle.before for idle in stay)))

    @property
    def is_scarce(self) -> bool:
        """Whether any tier is scarce."""
        return bool(self._profiles)

    def is_short(self, tier: int, stay: Stay = (), extra_bytes: int = 0) -> bool:
        """Return whether a tier would overflow with some more bytes: during a stay, or at any point."""
        profile = self._profiles.get(tier)
        if profile is None:
            return False
        room = self._problem.capacities[tier] - extra_bytes
        return profile.exceeds(*self._span(stay), room)

    def nearest(self, idle: PricedIdle) -> int:
        """Find the first tier with room for an idle interval; if none has, the last that it may go to."""
        tiers = self._problem.neighbours if is_tier_free(self._problem, idle.tensor) else (idle.away,)
        return next((t for t in tiers if not self.is_short(t, (idle,), idle.size_bytes)), tiers[-1])

    def settle(self, size_bytes: int) -> int:
        """Take room for a tensor that is never copied: in the furthest tier that has it, else in the first."""
        for tier in reversed(self._problem.neighbours):
            if not self.is_short(tier, extra_bytes=size_bytes):
                if tier in self._profiles:
                    self._profiles[tier].add(0, self._end, size_bytes)
                return tier
        return self._problem.neighbours[0]

    def enter(self, stay: Stay, tier: int, sign: int = 1) -> None:
        """Count a stay in its tier and in those that its copies pass; a sign of -1 takes it out again."""
        self._count(stay, tier, sign * stay[0].size_bytes)
        stored, fetched = {i.after + 1 for i in stay if i.out_ns}, {i.before for i in stay if i.in_ns}
        for passed in self._profiles.keys() & self._problem.path(self._problem.compute_tier, tier)[1:-1]:
            for point in stored | fetched:
                self._profiles[passed].add(point, point, sign * stay[0].size_bytes)

    def _count(self, stay: Stay, tier: int, delta_bytes: int) -> None:
        lives_there = self._problem.homes[stay[0].tensor] == tier and stay[0].tensor in self._problem.lifetimes.inputs
        if tier in self._profiles and not lives_there:
            self._profiles[tier].add(*self._span(stay), delta_bytes)

    def _span(self, stay: Stay) -> tuple[int, int]:
        """Return the first and last point of a stay; all points if none is given."""
        if not stay or any(idle.wraps for idle in stay):
            return 0, self._end
        return min(idle.after for idle in stay) + 1, max(idle.before for idle in stay)

    def earliest(self, cache_op: CacheOp, point: int, latest: int) -> int:
        """Find the first point from the wanted one on at which a copy fits into the tiers on its path.

        Parameters
        ----------
        cache_op
            A store, or a prefetch.
        point, latest
            The wanted point, and one at which the copy surely fits.
        """
        for tier in self._problem.path(cache_op.source, cache_op.target)[1:] if self._profiles else ():
            profile = self._profiles.get(tier)
            room = self._problem.capacities[tier] - cache_op.size_bytes
            until = latest - 1 if tier == cache_op.target else point
            if profile is not None and profile.exceeds(point, until, room):
                point = profile.last_above(point, latest - 1, room) + 1
        return point

    def move(self, cache_op: CacheOp, point: int) -> None:
        """Count a copy that is moved to an earlier point: a store fills its tier, a last prefetch empties it."""
        is_store = cache_op.role is STORE
        profile = self._profiles.get(cache_op.target if is_store else cache_op.source)
        if profile is not None and is_store:
            profile.add(point, cache_op.position - 1, cache_op.size_bytes)
        elif profile is not None and (cache_op.tensor, cache_op.before) in self._last:
            profile.add(point + 1, cache_op.before, -cache_op.size_bytes)


_DIGITS = 1
"""Decimal digits to which scores are rounded to count as the same: a tenth of a doubling, 7 % of room times time."""


def assign_tiers(problem: Problem, intervals: Sequence[PricedIdle]) -> tuple[PricedIdle, ...]:
    """Choose the tier of each idle interval; return the intervals with their tiers and the times of their copies.

    Parameters
    ----------
    problem
        Problem to plan for.
    intervals
        Idle intervals that are spent away.
    """
    if len(problem.neighbours) < 2:
        return tuple(intervals)
    room, tiers = PlannedRoom(problem), {stay: stay[0].away for stay in stays(problem, intervals)}
    for stay, tier in tiers.items():
        room.enter(stay, tier)

    def move(stay: Stay, tier: int) -> None:
        room.enter(stay, tiers[stay], -1)
        room.enter(stay, tier)
        tiers[stay] = tier

    lasts_ns = max(_busy_ns(intervals), problem.clock[-1])
    for tier, further in pairwise(problem.neighbours):
        gone, movable = [], [stay for stay in tiers if tiers[stay] == tier and is_tier_free(problem, stay[0].tensor)]
        for stay in _ranked(problem, movable, further, lasts_ns) if room.is_short(tier) else ():
            if room.is_short(tier, stay):
                move(stay, further)
                gone.append(stay)
        for stay in reversed(gone):
            move(stay, tier)
            if room.is_short(tier, stay):
                move(stay, further)
    moved = {idle: idle.spent_in(problem, tier) for stay, tier in tiers.items() for idle in stay}
    return tuple(moved[idle] for idle in intervals)


def _ranked(problem: Problem, candidates: Sequence[Stay], tier: int, lasts_ns: int) -> list[Stay]:
    """Order stays that may go on to a tier by the score of their worst idle interval there, the best first."""
    alike: dict[float, list[Stay]] = {}
    for stay in sorted(candidates, key=lambda stay: (stay[0].before, stay[0].tensor)):
        spent = (idle.stretched(lasts_ns, problem.clock[-1]).spent_in(problem, tier) for idle in stay)
        alike.setdefault(-round(min(scored(idle).total for idle in spent), _DIGITS), []).append(stay)
    return [stay for key in sorted(alike) for stay in spread(alike[key])]


def _busy_ns(intervals: Sequence[PricedIdle]) -> int:
    """Return how long these intervals keep the busiest path to or from a tier busy [ns]; no step is shorter."""
    busy = Counter[tuple[int, bool]]()
    for idle in intervals:
        busy[idle.away, True] += idle.in_ns
        busy[idle.away, False] += idle.out_ns
    return max(busy.values(), default=0)
