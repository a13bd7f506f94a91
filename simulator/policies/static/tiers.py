"""Where to: the tier that each chosen gap is spent in, by capacity and bandwidth.

A tensor that has no home of its own may go to any tier that links reach. It goes to the one with the fastest round
trip, unless that is full then, or its links are busy for longer than the step computes while those of another are
less so. What idles longest is the first to make do with a slower tier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from simulator.plan import FREE
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Idle

Run = list[Idle]
"""Gaps of one tensor that share a copy away, because no op writes between them."""


def assign(problem: Problem, gaps: Sequence[Idle]) -> tuple[Idle, ...]:
    """Return the gaps with the tier that each is spent in, and what its copies take there.

    Parameters
    ----------
    problem
        What to plan for.
    gaps
        What leaves; each goes to the best of its tiers so far.
    """
    if len(problem.neighbours) < 2:
        return tuple(gaps)
    runs = _runs(problem, gaps)
    places = _Places(problem, staged=False)
    moved = [places.put(run) for run in runs]
    if places.spilled:
        places = _Places(problem, staged=True)
        moved = [places.put(run) for run in runs]
    found = {old: new for run, new_run in zip(runs, moved, strict=True) for old, new in zip(run, new_run, strict=True)}
    return tuple(found[gap] for gap in gaps)


def _runs(problem: Problem, gaps: Sequence[Idle]) -> list[Run]:
    """Gaps that share a copy, those with the least time to spare first."""
    by_tensor: dict[int, list[Idle]] = {}
    for gap in gaps:
        by_tensor.setdefault(gap.tensor, []).append(gap)
    runs: list[Run] = []
    for tensor, mine in by_tensor.items():
        writes = problem.lifetimes.writes[tensor]
        if any(gap.wraps for gap in mine) or not writes:
            runs.append(mine)
            continue
        version: dict[int, Run] = {}
        for gap in mine:
            version.setdefault(sum(1 for op in writes if op <= gap.after), []).append(gap)
        runs += version.values()
    return sorted(runs, key=lambda run: (min(_spare_ns(gap) for gap in run), run[0].tensor, run[0].after))


def _spare_ns(gap: Idle) -> int:
    return gap.lead_ns + gap.trail_ns - gap.out_ns - gap.in_ns


class _Places:
    """What each tier holds over the step, and how long each link is busy."""

    def __init__(self, problem: Problem, *, staged: bool) -> None:
        self._problem, self._ops = problem, len(problem.graph.ops)
        self._busy_ns = dict.fromkeys(problem.links, 0)
        self._profiles = {t: self._at_home(t) for t in problem.neighbours if problem.capacities[t] != math.inf}
        self._staged = max(problem.sizes, default=0) if staged else 0
        self._passed = self._stages()
        self.spilled = False

    def _at_home(self, tier: int) -> Profile:
        """What the homes alone put there."""
        sizes, homes = self._problem.sizes, self._problem.homes
        held = sum(s for t, s in enumerate(sizes) if homes[t] == tier and self._problem.starts_with[t])
        return Profile(np.full(self._ops + 1, held, np.int64))

    def _stages(self) -> set[int]:
        """Tiers that a path to another tier passes."""
        here, problem = self._problem.compute_tier, self._problem
        ways = [(here, tier) for tier in problem.neighbours] + [(tier, here) for tier in problem.neighbours]
        return {tier for way in ways for tier in problem.path(*way)[1:-1]}

    def put(self, run: Run) -> Run:
        """Choose the tier of a run."""
        problem, first = self._problem, run[0]
        if problem.homes[first.tensor] != FREE and problem.starts_with[first.tensor]:
            tier = first.away
        else:
            tier = self._choose(run)
        for hop, taken_ns in self._copies(run, tier):
            self._busy_ns[hop] += taken_ns
        if tier in self._profiles and problem.homes[first.tensor] != tier:
            for low, high in self._stays(run):
                self._profiles[tier].add(low, high, first.size_bytes)
        here = problem.compute_tier
        return [
            replace(
                gap,
                away=tier,
                out_ns=problem.copy_ns(gap.tensor, here, tier) if gap.out_ns else 0,
                in_ns=problem.copy_ns(gap.tensor, tier, here) if gap.in_ns else 0,
            )
            for gap in run
        ]

    def _choose(self, run: Run) -> int:
        tiers = [tier for tier in self._problem.neighbours if self._fits(run, tier)]
        if not tiers:
            return self._problem.neighbours[0]
        self.spilled |= tiers[0] != self._problem.neighbours[0]
        computes_ns, load = self._problem.clock[-1], {tier: self._load_ns(run, tier) for tier in tiers}
        return next((t for t in tiers if load[t] <= computes_ns), min(tiers, key=lambda t: (load[t], tiers.index(t))))

    def _fits(self, run: Run, tier: int) -> bool:
        if tier not in self._profiles:
            return True
        room = self._problem.capacities[tier] - run[0].size_bytes - (self._staged if tier in self._passed else 0)
        return all(self._profiles[tier].peak(low, high) <= room for low, high in self._stays(run))

    def _stays(self, run: Run) -> list[tuple[int, int]]:
        """Ops during which the tier holds the tensor: from the first store to the last copy in, or always as home."""
        if any(gap.wraps for gap in run):
            return [(0, self._ops)]
        return [(min(gap.after for gap in run), max(gap.before for gap in run))]

    def _load_ns(self, run: Run, tier: int) -> int:
        return max((self._busy_ns[hop] + taken_ns for hop, taken_ns in self._copies(run, tier)), default=0)

    def _copies(self, run: Run, tier: int) -> list[tuple[tuple[int, int], int]]:
        """Links that the run's copies take, and for how long each [ns]."""
        problem, here, tensor = self._problem, self._problem.compute_tier, run[0].tensor
        out = list(pairwise(problem.path(here, tier))) if any(gap.out_ns for gap in run) else []
        back = sum(1 for gap in run if gap.in_ns)
        found = [(hop, problem.copy_ns(tensor, *hop)) for hop in out]
        return found + [(hop, back * problem.copy_ns(tensor, *hop)) for hop in pairwise(problem.path(tier, here))]
