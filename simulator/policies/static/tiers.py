"""Where to: the tier that each chosen gap is spent in, by capacity and bandwidth.

A tensor that has no home of its own may go to any tier that links reach. It goes to the one with the fastest round
trip, unless its links are busy for longer than the step computes while those of another are less so; a staged link
keeps those busy that it goes via, so that a tier behind another one's link relieves it of nothing. What is then too
much for a tier goes on to the next: that one is to it what the first is to the compute tier, so that the same score
chooses, with the prices of the longer way. What a link sheds may come too late elsewhere, so that all can be asked
for without it. A step lasts as long as its busiest link at least, and idle times count in
that time. Of those with about the same score every other one goes, or every fourth, evenly over the step: neither
way then waits while the other has all to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from simulator.cost import transfer_ns
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
    *,
    sheds: bool = True,
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
    sheds
        Whether a link that is busy for longer than the step computes sheds load to another.
    """
    if len(problem.neighbours) < 2:
        return tuple(gaps)
    by_spare_time = sorted(runs(problem, gaps), key=lambda run: (_spare_ns(run), run[0].tensor, run[0].after))
    places = _Places(problem, by_spare_time, settled or {}, sheds)
    for tier, further in pairwise(problem.neighbours):
        places.relieve(tier, further, score)
    moved: dict[Idle, Idle] = {}
    for run, tier in places.chosen():
        moved.update((gap, gap.spent_in(problem, tier)) for gap in run)
    return tuple(moved[gap] for gap in gaps)


def _spare_ns(run: Run) -> int:
    return min(gap.lead_ns + gap.trail_ns - gap.out_ns - gap.in_ns for gap in run)


class _Places:
    """The tier of each run, what the tiers hold then, and how long each link is busy."""

    def __init__(self, problem: Problem, found: Sequence[Run], settled: Mapping[Idle, int], sheds: bool) -> None:
        self._problem, self._runs, self._room, self._sheds = problem, found, Room(problem), sheds
        self._settled = [next((settled[gap] for gap in run if gap in settled), NOWHERE) for run in found]
        self._busy_ns = dict.fromkeys(problem.hardware.links, 0)
        self._tiers = [self._put(run, tier) for run, tier in zip(found, self._settled, strict=True)]

    def chosen(self) -> Iterator[tuple[Run, int]]:
        """Yield each run with its tier."""
        return zip(self._runs, self._tiers, strict=True)

    def _put(self, run: Run, settled: int) -> int:
        """Choose the tier of a run by bandwidth, unless it is settled."""
        if not chooses(self._problem, run[0].tensor):
            tier = run[0].away
        else:
            tier = self._choose(run) if settled == NOWHERE else settled
        for wire, taken_ns in self._copies(run, tier):
            self._busy_ns[wire] += taken_ns
        self._room.enter(run, tier)
        return tier

    def _choose(self, run: Run) -> int:
        first, *others = self._problem.neighbours
        if not self._sheds:
            return first
        tiers = [first, *(tier for tier in others if not self._room.is_short_for(run, tier, run[0].size_bytes))]
        computes_ns, load = self._problem.clock[-1], {tier: self._load_ns(run, tier) for tier in tiers}
        return next((t for t in tiers if load[t] <= computes_ns), min(tiers, key=lambda t: (load[t], tiers.index(t))))

    def _load_ns(self, run: Run, tier: int) -> int:
        return max((self._busy_ns[wire] + taken_ns for wire, taken_ns in self._copies(run, tier)), default=0)

    def _copies(self, run: Run, tier: int) -> list[tuple[str, int]]:
        """Links that the run's copies keep busy, and for how long each [ns]."""
        here, size = self._problem.compute_tier, run[0].size_bytes
        out, back = any(gap.out_ns for gap in run), sum(1 for gap in run if gap.in_ns)
        found = self._passes(size, here, tier) if out else []
        return found + [(wire, back * taken_ns) for wire, taken_ns in self._passes(size, tier, here)]

    def _passes(self, size_bytes: int, source: int, target: int) -> list[tuple[str, int]]:
        links = self._problem.hardware.links
        wires = (wire for hop in pairwise(self._problem.path(source, target)) for wire in self._problem.wires(hop))
        return [(wire, transfer_ns(size_bytes, links[wire])) for wire in wires]

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
        times_ns = max(self._busy_ns.values(), default=0), self._problem.clock[-1]
        for number, run in enumerate(self._runs):
            is_settled = self._settled[number] != NOWHERE or not chooses(self._problem, run[0].tensor)
            if self._tiers[number] == tier and not is_settled:
                scores = [score(gap.spent_in(self._problem, further).stretched(*times_ns)) for gap in run]
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
