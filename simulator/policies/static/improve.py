"""Extra pass for small graphs: local search by replays.

Where a replay takes a millisecond, the compiler can afford to try changes one by one: move a cache operator; drop, add
or swap an idle interval. A change stays if the replayed step is shorter, or just as long with a lower sum of the starts
of its ops. After a round without gain the search goes on from a neighbour of the best plan (drawn with a fixed seed),
until its replays are used up or the bound is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple

from simulator.policies.problem import Replay
from simulator.policies.static.analyse import PricedIdle
from simulator.policies.static.cache_ops import CacheOp, Role
from simulator.policies.static.place import Augmented, insert
from simulator.policies.static.select import by_op_and_tensor

REPLAYS = 250
"""Most replays of a search: about a second of planning."""

Offer = Callable[[Augmented], Replay | None]
CacheOpKey = tuple[PricedIdle, Role]
"""A cache operator by its idle interval and role, whatever else is chosen."""


State = tuple[frozenset[PricedIdle], Mapping[CacheOpKey, int]]
"""Idle intervals that are spent away, and the program points of cache operators that are not at their default."""


class Trial(NamedTuple):
    """A replayed state.

    Attributes
    ----------
    cost
        Length of the step, and the sum of the starts of all computes [ns].
    state, augmented
        The state, and the graph that it leads to.
    """

    cost: tuple[int, int]
    state: State
    augmented: Augmented


class Improver:
    """Local search over states.

    Parameters
    ----------
    base
        Augmented graph that the search starts from.
    offer
        Replays a candidate and keeps the fastest; None if it does not fit.
    """

    def __init__(self, base: Augmented, offer: Offer) -> None:
        self._base, self._analysis, self._offer = base.selection, base.selection.analysis, offer
        self._enough_ns, self.left = base.problem.bound_ns, REPLAYS
        self._seen: dict[tuple[object, ...], Trial | None] = {}
        self._random = Random(0)
        intervals = base.selection.intervals
        points = {(intervals[cache_op.trip], cache_op.role): cache_op.position for cache_op in base.cache_ops}
        self._start = frozenset(intervals), points

    def run(self) -> None:
        """Search for better plans."""
        start = best = self._try(self._start)
        states_before = -1
        while start is not None and best is not None and self._goes_on(best) and len(self._seen) > states_before:
            states_before = len(self._seen)
            best = min(best, self._climb(start), key=lambda trial: trial.cost)
            start = self._kick(best)

    def _goes_on(self, best: Trial) -> bool:
        return self.left > 0 and best.cost[0] > self._enough_ns

    def _climb(self, best: Trial) -> Trial:
        """Make changes that help until none does."""
        while self._goes_on(best):
            changes = list(self._neighbours(best))
            self._random.shuffle(changes)
            tried = (self._try(state) for state in changes if self.left > 0)
            better = next((trial for trial in tried if trial is not None and trial.cost < best.cost), None)
            if better is None:
                break
            best = better
        return best

    def _kick(self, best: Trial) -> Trial:
        """Change the best state three times at random, to start again from there."""
        start = best
        for _ in range(3):
            changes = list(self._neighbours(start))
            if not changes:
                return best
            other = self._try(self._random.choice(changes))
            start = other or start
        return start

    def _neighbours(self, trial: Trial) -> Iterator[State]:
        """Yield the states that one change leads to."""
        (chosen, points), intervals = trial.state, trial.augmented.selection.intervals
        for cache_op in trial.augmented.cache_ops:
            key = intervals[cache_op.trip], cache_op.role
            for point in _other_points(cache_op):
                yield chosen, {**points, key: point}
        forced, asked = {*self._analysis.forced}, self._analysis.asked
        movable = [idle for idle in intervals if idle not in forced and idle.tensor not in asked]
        others = [idle for idle in self._analysis.candidates if idle not in chosen]
        for idle in movable:
            yield chosen - {idle}, points
            for other in others:
                yield chosen - {idle} | {other}, points
        for other in others:
            yield chosen | {other}, points

    def _try(self, state: State) -> Trial | None:
        """Replay a state, unless it cannot fit or was tried before."""
        chosen, points = state
        selection = replace(self._base, intervals=tuple(sorted(chosen, key=by_op_and_tensor)))
        augmented = _move_to(insert(selection), points)
        key = tuple((c.tensor, c.role, c.source, c.target, c.position) for c in augmented.cache_ops)
        if key not in self._seen:
            self._seen[key], replay = None, self._offer(augmented)
            self.left -= replay is not None
            if replay is not None and replay.status == "ok":
                self._seen[key] = Trial((replay.step_ns, replay.begun_ns), state, augmented)
        return self._seen[key]


def _move_to(augmented: Augmented, points: Mapping[CacheOpKey, int]) -> Augmented:
    """Move cache operators to the points of a state, as far as windows and chains allow."""
    changed, intervals = {}, augmented.selection.intervals
    for idle, spent, chain in zip(intervals, augmented.intervals, augmented.chains, strict=True):
        earliest = 0
        for role in Role:
            cache_op = chain.get(role)
            if cache_op is None:
                continue
            least = 0 if spent.wraps and role is Role.PREFETCH else earliest
            point = min(max(points.get((idle, role), cache_op.position), least, cache_op.first), cache_op.last)
            earliest = point
            if point != cache_op.position:
                changed[cache_op] = cache_op._replace(position=point)
    return augmented.moved(changed)


def _other_points(cache_op: CacheOp) -> list[int]:
    """List the other points of the window, the nearest first; a detach does not move."""
    window = () if cache_op.role is Role.DETACH else range(cache_op.first, cache_op.last + 1)
    return sorted((p for p in window if p != cache_op.position), key=lambda p: abs(p - cache_op.position))
