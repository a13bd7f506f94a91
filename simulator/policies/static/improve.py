"""Extra pass for small graphs: local search by replays.

Where a replay takes a millisecond, the compiler can afford to try changes one by one. A *state* is a set of idle
intervals, the order in which copies come in, and program points that differ from those that `place` chooses. A change

- lets a copy in come ahead of the one before it, or of those for its own op too: a large one for a later use may need
  the room first, which a small one that comes early would hold;
- takes an idle interval out, adds one, or swaps two. The set is then *repaired*: by the ranking, what is short of room
  is made up for, and what turns out needless is given back. So several intervals may take the place of one;
- moves a cache operator to the next point.

A change stays if the replayed step is shorter, or just as long with a lower sum of the starts of its ops.

*Homes first.* What lives away costs a copy in each step, whatever else is done, so the lower bound for given homes says
what they can come to. From the homes of the start, the search goes on to those that differ by one tensor or two, in the
order of their bounds, and looks for a good order of copies with each: with what must be away, and with a few more idle
intervals, whose room lets copies begin earlier. Then the best state is changed in all ways until nothing helps, and
again from its neighbours (drawn with a fixed seed), until the replays are used up or the bound is met. Homes whose
bound is no better than the best plan are never tried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from simulator.policies.problem import Replay
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import PricedIdle
from simulator.policies.static.cache_ops import DETACH, PREFETCH, CacheOp, Role
from simulator.policies.static.place import Augmented, insert, place
from simulator.policies.static.select import add, by_op_and_tensor, exceeds

REPLAYS = 500
"""Most replays of a search, of which a graph of more than `TINY` ops has half: about a second of planning."""

TINY = 64
"""Most ops of a graph whose replays cost so little that it has all of them."""

_HOMES_SHARE = 0.6
"""Share of the replays that may be spent on other homes before all else is tried."""

_MOST_HOMES = 200
"""Most homes of which a bound is computed: each costs about as much as a replay."""

MORE = (0, 2, 4)
"""Counts of idle intervals that are added to those that must be away: their room lets copies begin earlier."""

_PATIENCE = 10
"""Rounds in a row without a replay after which a search ends."""

Chosen = frozenset[PricedIdle]
Offer = Callable[[Augmented], Replay | None]
CacheOpKey = tuple[PricedIdle, Role]
"""A cache operator by its idle interval and role, whatever else is chosen."""

EARLY, URGENT, LATE = PLACEMENTS = range(3)
"""Copies in as early as there is room: the next use first, or first what must begin first to be hidden; or just in
time."""


class State(NamedTuple):
    """What is spent away, and when its copies are issued.

    Attributes
    ----------
    chosen
        Idle intervals that are spent away.
    turns, points
        Turns and program points of cache operators that differ from that.
    """

    chosen: Chosen
    placement: int
    turns: Mapping[CacheOpKey, float]
    points: Mapping[CacheOpKey, int]

    @property
    def key(self) -> Hashable:
        """The state, to be told from others."""
        return self.chosen, self.placement, frozenset(self.turns.items()), frozenset(self.points.items())


Change = Callable[[], State | None]
"""Makes the state that a change leads to, when its turn comes."""


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

    Attributes
    ----------
    best
        The trial of least cost; None if none ran.
    """

    def __init__(self, base: Augmented, offer: Offer) -> None:
        self._base, self._analysis, self._offer = base.selection, base.selection.analysis, offer
        self._problem, self._random = base.problem, Random(0)
        self.left = REPLAYS if len(self._problem.graph.ops) <= TINY else REPLAYS // 2
        self._tried: dict[Hashable, Trial | None] = {}
        self._seen: dict[Hashable, Trial | None] = {}
        self._bounds: dict[Chosen, int] = {}
        self._ranking = [idle for idle, _ in self._analysis.ranking]
        asked = (idle for idle in self._ranking if idle.tensor in self._analysis.asked)
        self._kept = {*self._analysis.forced, *asked}
        points = {_key(base, cache_op): cache_op.position for cache_op in base.cache_ops}
        self.best: Trial | None = None
        self._try(State(frozenset(base.selection.intervals), LATE, {}, points))

    def run(self) -> None:
        """Search for better plans."""
        for state in self._elsewhere():
            self._climb(self._try(state), self._orders)
        start, patience = self.best, _PATIENCE
        while self._goes_on() and patience:
            left_before = self.left
            self._climb(start, self._orders, self._changes)
            start = self.best
            for _ in range(3):  # the best state, changed three times at random, to start again from there
                changes = [] if start is None else [*self._orders(start), *self._changes(start)]
                start = (self._try(self._random.choice(changes)()) if changes else None) or start
            patience = _PATIENCE if self.left < left_before else patience - 1

    def _goes_on(self) -> bool:
        return self.left > 0 and self.best is not None and self.best.cost[0] > self._problem.bound_ns

    def _climb(self, trial: Trial | None, *kinds: Callable[[Trial], Iterator[Change]]) -> None:
        """Make changes of some kinds that help until none does, those of the first kind first."""
        while trial is not None and self._goes_on():
            start, trial = trial, None
            for kind in kinds:
                changes = [*kind(start)]
                self._random.shuffle(changes)
                tried = (self._try(change()) for change in changes if self.left > 0)
                trial = next((other for other in tried if other is not None and other.cost < start.cost), None)
                if trial is not None:
                    break

    def _elsewhere(self) -> Iterator[State]:
        """Yield states whose homes promise most, each a step away from others, while replays may be spent on them."""
        wraps, budget = [i for i in self._ranking if i.wraps], self._problem.budget_bytes
        start = frozenset(wraps).intersection(self._base.intervals)
        heap, seen, until = [(0, 0, start)], {start}, self.left * (1 - _HOMES_SHARE)
        while heap and self._goes_on() and self.left > until:
            bound_ns, _, homes = heappop(heap)
            if self.best is not None and bound_ns >= self.best.cost[0]:
                break
            chosen = self._repaired(homes.union(self._analysis.forced), frozenset(wraps))
            more = [i for i in self._ranking if not (i in chosen or i.wraps or i.exposed_ns)]
            live = self._live(chosen)
            for count in MORE if not live.exceeds(0, live.length - 1, budget) else ():
                yield from (State(chosen.union(more[:count]), placement, {}, {}) for placement in (EARLY, URGENT))
            for idle in wraps:
                swaps = (homes ^ {idle, other} for other in wraps if idle not in homes and other in homes)
                for others in (homes ^ {idle}, *swaps):
                    if others not in seen and len(seen) < _MOST_HOMES:
                        seen.add(others)
                        heappush(heap, (self._bound_ns(others), len(seen), others))

    def _bound_ns(self, chosen: Chosen) -> int:
        """Return a lower bound of the step with the homes that these idle intervals lead to [ns].

        A tensor at home in the compute tier stays there for a bound; one that may leave between uses counts as free.
        """
        problem, wraps = self._problem, frozenset(idle for idle in chosen if idle.wraps)
        if wraps not in self._bounds:
            homes = list(problem.homes)
            leaves = {idle.tensor for idle in self._ranking if not idle.wraps}
            for idle in self._ranking:
                if idle.wraps and idle not in wraps and idle.tensor not in leaves:
                    homes[idle.tensor] = problem.compute_tier
                elif idle in wraps and not problem.neighbours[1:]:
                    homes[idle.tensor] = idle.away
            self._bounds[wraps] = replace(problem, homes=tuple(homes)).bound_ns
        return self._bounds[wraps]

    def _orders(self, trial: Trial) -> Iterator[Change]:
        """Yield changes that let a copy in come ahead of one before it."""
        state, augmented = trial.state, trial.augmented
        comes = sorted((c for c in augmented.cache_ops if c.role is PREFETCH), key=lambda c: (c.turn, c.tensor))
        for index, then in enumerate(comes):
            ahead = comes[index - 1 : index]
            ahead += [first for first in comes[:index] if first.before != then.before][-1:]
            for first in dict.fromkeys(ahead):
                turns = {**state.turns, _key(augmented, then): first.turn - 0.25}
                yield partial(state._replace, turns=turns, points={})

    def _changes(self, trial: Trial) -> Iterator[Change]:
        """Yield all other changes: of points, of the placement, and of the idle intervals that are spent away."""
        state, augmented = trial.state, trial.augmented
        for cache_op in augmented.cache_ops:
            key = _key(augmented, cache_op)
            for point in range(cache_op.first, cache_op.last + 1) if cache_op.role is not DETACH else ():
                if point != cache_op.position:
                    yield partial(state._replace, points={**state.points, key: point})
        movable = [idle for idle in self._ranking if idle in state.chosen and idle not in self._kept]
        others = [idle for idle in self._ranking if idle not in state.chosen]
        swaps = ({idle, other} for idle in movable for other in others)
        for change in (*({idle} for idle in (*movable, *others)), *swaps):
            yield partial(self._changed, trial, frozenset(change))
        for placement in PLACEMENTS:
            yield partial(State, state.chosen, placement, {}, {})

    def _changed(self, trial: Trial, change: Chosen) -> State | None:
        """Return a state with some idle intervals taken out or added; None if its homes promise nothing."""
        chosen = trial.state.chosen ^ change
        if self._random.random() < 0.5:
            chosen = self._repaired(chosen, change)
        if self._bound_ns(chosen) >= trial.cost[0]:
            return None
        placement = self._random.choice((*PLACEMENTS, None))
        return trial.state._replace(chosen=chosen) if placement is None else State(chosen, placement, {}, {})

    def _repaired(self, chosen: Chosen, fixed: Chosen) -> Chosen:
        """Add idle intervals until live bytes fit the budget, and take out needless ones; leave some as they are."""
        live, limit, repaired = self._live(chosen), self._problem.budget_bytes, set(chosen)
        for idle in self._ranking:
            if idle not in repaired and idle not in fixed and exceeds(live, idle, limit):
                repaired.add(idle)
                add(live, idle, -idle.size_bytes)
        for idle in reversed(self._ranking):
            is_free = idle in repaired and idle not in fixed and idle not in self._kept
            if is_free and not exceeds(live, idle, limit - idle.size_bytes):
                repaired.remove(idle)
                add(live, idle, idle.size_bytes)
        return frozenset(repaired)

    def _live(self, chosen: Chosen) -> Profile:
        """Return live bytes by op if these idle intervals are spent away [B]."""
        live = Profile(self._analysis.live_bytes)
        for idle in chosen:
            add(live, idle, -idle.size_bytes)
        return live

    def _try(self, state: State | None) -> Trial | None:
        """Replay a state, unless it cannot fit or was tried before, and note the best."""
        if state is None:
            return None
        if (key := state.key) not in self._tried:
            self._tried[key] = self._replayed(state)
        return self._tried[key]

    def _replayed(self, state: State) -> Trial | None:
        """Replay the graph that a state leads to, unless another did; many do, as windows and chains limit points."""
        intervals, clock = tuple(sorted(state.chosen, key=by_op_and_tensor)), self._problem.clock
        augmented = insert(replace(self._base, intervals=intervals, live_bytes=self._live(state.chosen).values()))
        turned = {}
        for cache_op in augmented.cache_ops:
            is_urgent = state.placement == URGENT and cache_op.role is PREFETCH
            turn = clock[cache_op.before] - cache_op.alone_ns if is_urgent else cache_op.turn
            turned[cache_op] = cache_op._replace(turn=state.turns.get(_key(augmented, cache_op), turn))
        augmented = _move_to(place(augmented.moved(turned), eager=state.placement != LATE), state.points)
        key = tuple((c.tensor, c.role, c.source, c.target, c.position) for c in augmented.cache_ops)
        if key not in self._seen:
            self._seen[key], replay = None, self._offer(augmented)
            self.left -= replay is not None
            if replay is not None and replay.status == "ok":
                trial = self._seen[key] = Trial((replay.step_ns, replay.begun_ns), state, augmented)
                if self.best is None or trial.cost < self.best.cost:
                    self.best = trial
        return self._seen[key]


def _key(augmented: Augmented, cache_op: CacheOp) -> CacheOpKey:
    return augmented.selection.intervals[cache_op.trip], cache_op.role


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
