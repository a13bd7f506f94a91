"""Where to: the tier that each chosen gap is spent in, by capacity and bandwidth.

A tensor that has no home of its own may go to any tier that links reach. It goes to the one with the fastest round
trip. What is then too much for a tier goes on to the next: that one is to it what the first is to the compute tier, so
that the same score chooses, with the prices of the longer way. A step lasts as long as its busiest link at least, and
idle times count in that time. Of those with about the same score every other one goes,
or every fourth, evenly over the step: neither way then waits while the other has all to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from simulator.plan import NOWHERE
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Idle
from simulator.policies.static.room import Room, Run, chooses, runs
from simulator.policies.static.score import Rank, spread

DIGITS = 1
"""Scores that agree to so many digits are the same: to a tenth of a power of two, 7 % of room times time."""


def assign(
    problem: Problem,
    gaps: Sequence[Idle],
    score: Rank,
    settled: Mapping[Idle, int] | None = None,
) -> tuple[Idle, ...]:
    """Return the gaps with the tier that each is spent in, and what its copies take there.

    Parameters
    ----------
    problem
        What to plan for.
    gaps
        What leaves.
    score
        Tells which of those that are too much for a tier go further.
    settled
        Tiers that are chosen already, by gap.
    """
    if len(problem.neighbours) < 2:
        return tuple(gaps)
    by_spare_time = sorted(runs(problem, gaps), key=lambda run: (_spare_ns(run), run[0].tensor, run[0].after))
    places = _Places(problem, by_spare_time, settled or {})
    for tier, further in pairwise(problem.neighbours):
        places.relieve(tier, further, score)
    moved: dict[Idle, Idle] = {}
    for run, tier in places.chosen():
        moved.update((gap, gap.spent_in(problem, tier)) for gap in run)
    return tuple(moved[gap] for gap in gaps)


def _busy_ns(found: Iterable[Run]) -> int:
    """How long the busiest way to or from a tier is busy with these runs [ns]: a step lasts as long at least."""
    busy = Counter[tuple[int, bool]]()
    for run in found:
        for gap in run:
            busy[gap.away, True] += gap.in_ns
            busy[gap.away, False] += gap.out_ns
    return max(busy.values(), default=0)


def _spare_ns(run: Run) -> int:
    return min(gap.lead_ns + gap.trail_ns - gap.out_ns - gap.in_ns for gap in run)


class _Places:
    """The tier of each run, what the tiers hold then, and how long each link is busy."""

    def __init__(self, problem: Problem, found: Sequence[Run], settled: Mapping[Idle, int]) -> None:
        self._problem, self._runs, self._room = problem, found, Room(problem)
        self._settled = [next((settled[gap] for gap in run if gap in settled), NOWHERE) for run in found]
        self._tiers = [self._put(run, tier) for run, tier in zip(found, self._settled, strict=True)]
        self._lasts_ns = _busy_ns(found)

    def chosen(self) -> Iterator[tuple[Run, int]]:
        """Yield each run with its tier."""
        return zip(self._runs, self._tiers, strict=True)

    def _put(self, run: Run, settled: int) -> int:
        """Put a run in the tier with the fastest round trip, unless its tier is settled."""
        tier = run[0].away
        if chooses(self._problem, run[0].tensor):
            tier = self._problem.neighbours[0] if settled == NOWHERE else settled
        self._room.enter(run, tier)
        return tier

    def relieve(self, tier: int, further: int, score: Rank) -> None:
        """Let what is too much for a tier go on to another, by the score there, and take back what was needless."""
        gone = []
        for number in self._ranked(tier, further, score) if self._room.is_short(tier) else ():
            if not self._room.is_short(tier):
                break
            if self._room.is_short_for(self._runs[number], tier):
                self._move(number, further)
                gone.append(number)
        for number in reversed(gone):
            self._move(number, tier)
            if self._room.is_short_for(self._runs[number], tier):
                self._move(number, further)

    def _ranked(self, tier: int, further: int, score: Rank) -> list[int]:
        """Runs that may leave a tier, first those whose worst gap has the best score in the other."""
        alike: dict[tuple[bool, float], list[int]] = {}
        for number, run in enumerate(self._runs):
            is_settled = self._settled[number] != NOWHERE or not chooses(self._problem, run[0].tensor)
            if self._tiers[number] == tier and not is_settled:
                gaps = (gap.stretched(self._lasts_ns, self._problem.clock[-1]) for gap in run)
                scores = [score(gap.spent_in(self._problem, further)) for gap in gaps]
                last_resort, worst = any(one.last_resort for one in scores), min(one.total for one in scores)
                alike.setdefault((last_resort, -round(worst, DIGITS)), []).append(number)
        return [number for key in sorted(alike) for number in spread(sorted(alike[key], key=self._turn))]

    def _turn(self, number: int) -> tuple[int, int]:
        first = self._runs[number][0]
        return first.before, first.tensor

    def _move(self, number: int, tier: int) -> None:
        self._room.enter(self._runs[number], self._tiers[number], -1)
        self._room.enter(self._runs[number], tier)
        self._tiers[number] = tier
