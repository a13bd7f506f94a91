"""Room in the tiers below: what each holds at each program point, as the plan issues its copies.

Only a tier that could not hold all tensors at once is *scarce*, and counted. A tensor takes room there from its store
to its last copy back, or always if the tier is its home; in a tier that its copies only pass, at their points alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from simulator.plan import FREE
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Idle
from simulator.policies.static.augmented import PREFETCH, STORE, CacheOp

Run = tuple[Idle, ...]
"""Gaps of one tensor that share a copy away, because no op writes between them."""


def runs(problem: Problem, gaps: Sequence[Idle]) -> list[Run]:
    """Group gaps by the copy away that they share.

    Parameters
    ----------
    problem
        What is planned for.
    gaps
        What leaves.
    """
    by_tensor: dict[int, list[Idle]] = {}
    for gap in gaps:
        by_tensor.setdefault(gap.tensor, []).append(gap)
    found: list[Run] = []
    for tensor, mine in by_tensor.items():
        writes = problem.lifetimes.writes[tensor]
        if any(gap.wraps for gap in mine) or not writes:
            found.append(tuple(mine))
            continue
        version: dict[int, list[Idle]] = {}
        for gap in mine:
            version.setdefault(bisect_right(writes, gap.after), []).append(gap)
        found += map(tuple, version.values())
    return found


def chooses(problem: Problem, tensor: int) -> bool:
    """Whether the planner may choose the tier in which a tensor is away."""
    return problem.homes[tensor] == FREE or not problem.starts_with[tensor]


class Room:
    """What scarce tiers hold, by program point; at first what lives there.

    Parameters
    ----------
    problem
        What is planned for.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._end = problem, len(problem.graph.ops)
        self._last: set[tuple[int, int]] = set()
        everything = sum(problem.sizes)
        self._profiles = {t: self._homes(t) for t in problem.neighbours if problem.capacities[t] < everything}

    def _homes(self, tier: int) -> Profile:
        sizes, homes = self._problem.sizes, self._problem.homes
        held = sum(s for t, s in enumerate(sizes) if homes[t] == tier and self._problem.starts_with[t])
        return Profile(np.full(self._end + 1, held, np.int64))

    @property
    def is_scarce(self) -> bool:
        """Whether there is anything to count."""
        return bool(self._profiles)

    def is_short(self, tier: int) -> bool:
        """Whether a tier holds more than it can at some point."""
        profile = self._profiles.get(tier)
        return profile is not None and profile.exceeds(0, self._end, self._problem.capacities[tier])

    def is_short_for(self, run: Run, tier: int, extra_bytes: int = 0) -> bool:
        """Whether a tier holds more than it can while a run is away, some more bytes included."""
        profile = self._profiles.get(tier)
        if profile is None:
            return False
        room = self._problem.capacities[tier] - extra_bytes
        return any(profile.exceeds(low, high, room) for low, high in self._stays(run))

    def nearest(self, gap: Idle) -> int:
        """The first tier that has room for a gap, or the last of those that it may go to."""
        tiers = self._problem.neighbours if chooses(self._problem, gap.tensor) else (gap.away,)
        return next((t for t in tiers if not self.is_short_for((gap,), t, gap.size_bytes)), tiers[-1])

    def settle(self, size_bytes: int) -> int:
        """The furthest tier that has room for what is never copied, from now on taken; the first if none has."""
        for tier in reversed(self._problem.neighbours):
            profile = self._profiles.get(tier)
            if profile is None:
                return tier
            if not profile.exceeds(0, self._end, self._problem.capacities[tier] - size_bytes):
                profile.add(0, self._end, size_bytes)
                return tier
        return self._problem.neighbours[0]

    def enter(self, run: Run, tier: int, sign: int = 1) -> None:
        """Count a run that is spent in a tier, also in those that its copies pass; no longer, by a sign of -1."""
        self._stay(run, tier, sign * run[0].size_bytes)
        for passed in self._problem.path(self._problem.compute_tier, tier)[1:-1]:
            if passed in self._profiles:
                stored, fetched = {gap.after + 1 for gap in run if gap.out_ns}, {gap.before for gap in run if gap.in_ns}
                for point in stored | fetched:
                    self._profiles[passed].add(point, point, sign * run[0].size_bytes)

    def visit(self, run: Run) -> None:
        """Count a run in its own tier alone."""
        self._stay(run, run[0].away, run[0].size_bytes)
        if not any(gap.wraps for gap in run):
            self._last.add((run[0].tensor, max(gap.before for gap in run)))

    def _stay(self, run: Run, tier: int, delta_bytes: int) -> None:
        lives_there = self._problem.homes[run[0].tensor] == tier and self._problem.starts_with[run[0].tensor]
        if tier in self._profiles and not lives_there:
            for low, high in self._stays(run):
                self._profiles[tier].add(low, high, delta_bytes)

    def _stays(self, run: Run) -> Iterator[tuple[int, int]]:
        """Points at which its tier holds a run."""
        if any(gap.wraps for gap in run):
            yield 0, self._end
        else:
            yield min(gap.after for gap in run) + 1, max(gap.before for gap in run)

    def passes(self, one: CacheOp) -> bool:
        """Whether a copy passes a scarce tier on its way."""
        return self.is_scarce and any(
            tier in self._profiles for tier in self._problem.path(one.source, one.target)[1:-1]
        )

    def earliest(self, one: CacheOp, point: int, latest: int) -> int:
        """The first point from a wanted one on at which a copy fits into the tiers that it comes to.

        Parameters
        ----------
        one
            A store, or a prefetch.
        point, latest
            The point that is wanted, and one at which it fits.
        """
        for tier in self._problem.path(one.source, one.target)[1:] if self._profiles else ():
            profile = self._profiles.get(tier)
            room = self._problem.capacities[tier] - one.size_bytes
            stays = latest - 1 if tier == one.target else point
            if profile is not None and profile.exceeds(point, stays, room):
                point = profile.last_above(point, latest - 1, room) + 1
        return point

    def move(self, one: CacheOp, point: int) -> None:
        """Count a copy that is issued sooner than it was: a store fills its tier, a last prefetch empties it."""
        if one.role is STORE and one.target in self._profiles:
            self._profiles[one.target].add(point, one.position - 1, one.size_bytes)
        elif one.role is PREFETCH and one.source in self._profiles and (one.tensor, one.before) in self._last:
            self._profiles[one.source].add(point + 1, one.before, -one.size_bytes)


def held(problem: Problem, gaps: Sequence[Idle]) -> Room:
    """Count gaps in the tiers in which they are spent; copies that pass through are left out.

    Parameters
    ----------
    problem
        What is planned for.
    gaps
        What leaves, and where to.
    """
    room = Room(problem)
    for run in runs(problem, gaps) if room.is_scarce else ():
        room.visit(run)
    return room
