"""An extra pass for small graphs: local improvement by replays.

Where a replay costs a millisecond the compiler can afford to try changes one by one: another position of a cache
operator, one gap less, one more, one instead of another. A change stays if the replayed step is shorter, or as long
with its ops starting earlier in sum. After a round without gain the search goes on from a neighbour of the best plan
(changes drawn with a fixed seed), until its replays are used up or the bound is met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from simulator.errors import CapacityError
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Analysis, Idle
from simulator.policies.static.augmented import Augmented, CacheOp, Role
from simulator.policies.static.insert import insert, write
from simulator.policies.static.room import Room, chooses
from simulator.policies.static.select import Selection, in_order

Place = tuple[Idle, Role]
"""Which cache operator, whatever else is chosen."""


@dataclass(frozen=True)
class State:
    """A set of gaps with positions.

    Attributes
    ----------
    gaps
        What leaves.
    points
        Program points of cache operators that are not at their default.
    tiers
        Tiers of gaps that do not go where the passes would send them.
    """

    gaps: frozenset[Idle]
    points: Mapping[Place, int]
    tiers: Mapping[Idle, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A state that was replayed.

    Attributes
    ----------
    state, gaps, augmented
        What it is, what leaves in order, and what came of it.
    cost
        Length of the step, and the sum of the starts of its ops [ns].
    """

    state: State
    gaps: tuple[Idle, ...]
    augmented: Augmented
    cost: tuple[int, int]


class Improver:
    """Local search over states.

    Parameters
    ----------
    problem, analysis
        What to plan for.
    replays
        How many replays it may use.
    """

    def __init__(self, problem: Problem, analysis: Analysis, replays: int) -> None:
        self._problem, self._analysis, self._enough_ns = problem, analysis, problem.bound_ns
        self.left = replays
        self._seen: dict[tuple[object, ...], Found | None] = {}
        self._random = Random(0)

    def run(self, selection: Selection, augmented: Augmented) -> Found | None:
        """Improve a plan; None if nothing better was found.

        Parameters
        ----------
        selection
            What it spends away, as the analysis knows it.
        augmented
            Its cache operators.
        """
        self._selection, gaps = selection, selection.gaps
        state = State(frozenset(gaps), {_place(gaps, one): one.position for one in augmented.cache_ops})
        start = best = self._try(state)
        before = -1
        while start is not None and best is not None and self._goes_on(best) and len(self._seen) > before:
            before = len(self._seen)
            best = min(best, self._climb(start), key=lambda found: found.cost)
            start = self._kick(best)
        return best

    def _goes_on(self, best: Found) -> bool:
        return self.left > 0 and best.cost[0] > self._enough_ns

    def _climb(self, best: Found) -> Found:
        """Take changes that help until none does."""
        while self._goes_on(best):
            changes = list(self._neighbours(best))
            self._random.shuffle(changes)
            tried = (self._try(state) for state in changes if self.left > 0)
            better = next((found for found in tried if found is not None and found.cost < best.cost), None)
            if better is None:
                break
            best = better
        return best

    def _kick(self, best: Found) -> Found:
        """A neighbour's neighbour, to start again from."""
        found = best
        for _ in range(3):
            changes = list(self._neighbours(found))
            if not changes:
                return best
            other = self._try(self._random.choice(changes))
            found = other or found
        return found

    def _neighbours(self, found: Found) -> Iterator[State]:
        """States that one change leads to."""
        state = found.state
        for one in found.augmented.cache_ops:
            place = _place(found.gaps, one)
            for point in _points(one):
                yield replace(state, points={**state.points, place: point})
        yield from self._other_tiers(found)
        score = self._selection.ranking.score
        movable = [gap for gap in found.gaps if gap not in self._analysis.forced and not score(gap).is_asked]
        others = [gap for gap in self._analysis.candidates if gap not in state.gaps]
        for gap in movable:
            yield replace(state, gaps=state.gaps - {gap})
            for other in others:
                yield replace(state, gaps=state.gaps - {gap} | {other})
        for other in others:
            yield replace(state, gaps=state.gaps | {other})

    def _other_tiers(self, found: Found) -> Iterator[State]:
        """States in which one gap is spent elsewhere; others then make room, or come nearer."""
        if Room(self._problem).is_scarce:
            for gap, spent in zip(found.gaps, found.augmented.gaps, strict=True):
                for tier in self._problem.neighbours:
                    if tier != spent.away and chooses(self._problem, gap.tensor):
                        yield replace(found.state, tiers={**found.state.tiers, gap: tier})

    def _try(self, state: State) -> Found | None:
        """Replay a state, unless it cannot fit or was tried before."""
        gaps = tuple(sorted(state.gaps, key=in_order))
        selection = replace(self._selection, gaps=gaps)
        augmented = insert(self._problem, self._analysis, selection, state.tiers)
        augmented = _placed(augmented, gaps, state.points)
        key = tuple((one.tensor, one.role, one.source, one.target, one.position) for one in augmented.cache_ops)
        if key in self._seen:
            return self._seen[key]
        self._seen[key] = None
        try:
            plan = write(self._problem, augmented)
            self.left -= 1
            replay = self._problem.replay(plan)
        except CapacityError:
            return None
        if replay.status == "ok":
            self._seen[key] = Found(state, gaps, augmented, (replay.step_ns, replay.begun_ns))
        return self._seen[key]


def _place(gaps: tuple[Idle, ...], one: CacheOp) -> Place:
    return gaps[one.trip], one.role


def _placed(augmented: Augmented, gaps: tuple[Idle, ...], points: Mapping[Place, int]) -> Augmented:
    """Put the cache operators where the state wants them, as far as windows and chains allow."""
    changed = {}
    for gap, own, chain in zip(gaps, augmented.gaps, augmented.chains, strict=True):
        earliest = 0
        for role in Role:
            one = chain.get(role)
            if one is None:
                continue
            point = max(points.get((gap, role), one.position), 0 if own.wraps and role is Role.PREFETCH else earliest)
            point = min(max(point, one.first), one.last)
            earliest = point
            if point != one.position:
                changed[one] = one._replace(position=point)
    return augmented.moved(changed)


def _points(one: CacheOp) -> list[int]:
    """Other points of the window, the nearest first; a detach stays where it is."""
    window = () if one.role is Role.DETACH else range(one.first, one.last + 1)
    return sorted((p for p in window if p != one.position), key=lambda p: abs(p - one.position))
