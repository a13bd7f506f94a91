"""`static`: a compiler that places every copy before the run, by time, bandwidth and room.

Its passes are pure functions: `analyse` finds the idle intervals of tensors; `select` picks the best intervals to spend
away until live bytes fit; `insert` adds a store, a detach and a prefetch for each; `place` moves these to the positions
of least cost. The candidates are replayed, and the fastest is kept. If ops may be rerun, `mix` rewrites the graph
first, and the same passes compile it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import Field

from simulator.document import Part
from simulator.errors import CapacityError, ScopeError
from simulator.interrupts import no_garbage_search
from simulator.plan import Plan
from simulator.policies.decide import Best
from simulator.policies.problem import Problem, Replay
from simulator.policies.static.analyse import analyse
from simulator.policies.static.improve import Improver
from simulator.policies.static.mix import LARGEST, Rewritten, rewrites
from simulator.policies.static.place import Augmented, insert, place
from simulator.policies.static.select import Selection, select

_GOOD_ENOUGH = 1.001
"""The search ends with a plan within 0.1 % of the lower bound: hardly anything is left to gain."""

_RESERVES = (0, 1, 2, 4, 8, 16)
"""Room that candidates keep free for copies in under way, in units of the largest tensor that moves."""

EFFORT = 40_000
"""Most ops of all candidates together, unless one alone has more: so planning time stays linear in large graphs."""

FEW = 8
"""A graph for which `EFFORT` allows fewer candidates than this begins with those that do best on large graphs."""

PLACEMENTS = (False, True)
"""Whether copies in come as early as there is room, or just in time. Early is faster where links are the limit; late
leaves room for tensors that need a hole of their own (fixed offsets: 44 %) and for dynamic reads (`hybrid`: 6 %), so it
comes first and wins ties. A large graph with few candidates begins with early."""

TRIES = 6
"""Most candidates that are replayed: in no shipped scenario was a later one the fastest."""

SMALL = 128
"""Most ops of a graph on which single changes are tried: each costs a replay."""


_MIXES = 3
"""Most rewritten problems that are compiled beside the one that needs no copies: each is planned from the start."""


class Options(Part):
    """Options of the compiler: recompute, and tensors that leave.

    Attributes
    ----------
    recompute
        Whether ops may be rerun where that is faster than moving their outputs.
    move
        Kinds of tensors, or patterns of their names, that leave wherever compute hides their copies, and first of all
        under memory pressure.
    """

    recompute: bool = Field(False, description="rerun ops where that is faster than copies")
    move: list[str] = Field([], description="kinds or name patterns of tensors that leave where they can")

    def asked(self, problem: Problem) -> frozenset[int]:
        """Return the tensors that the option `move` names.

        Parameters
        ----------
        problem
            Problem to plan for.

        Raises
        ------
        ScopeError
            If a pattern matches no tensor that may leave.
        """
        asked: set[int] = set()
        for pattern in self.move:
            tensors = problem.graph.matching(pattern)
            if not tensors:
                must = "option move names kinds, or patterns of names, of tensors"
                raise ScopeError("policy 'static'", must, repr(pattern), "take a name that `hosim plan` prints")
            may_leave = [tensor for tensor in tensors if not problem.pinned(tensor)]
            if not may_leave:
                must, found = "tensors of option move may leave the compute tier", f"{pattern!r}, which is at home"
                raise ScopeError("policy 'static'", must, f"{found} there", "give it another home, or free")
            asked.update(may_leave)
        return frozenset(asked)


class CandidateSearch:
    """Search that replays candidates and keeps the fastest.

    Parameters
    ----------
    problem, options
        Problem to plan for; see `Options`.

    Attributes
    ----------
    analysis
        Idle intervals of the problem.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        self._problem, self.analysis = problem, analyse(problem, options.asked(problem))
        self.best: Best[Augmented] = Best(problem)

    def run(self) -> Augmented:
        """Try several limits, and on a small graph single changes, and return the candidate with the fastest replay.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        for augmented in self._candidates():
            if not augmented.intervals:
                return augmented
            self._offer(augmented)
            if self._is_enough(augmented.selection):
                break
        if self.best.candidate is None:
            for selection in self._selections():
                self._offer(insert(selection))
        start = self.best.candidate
        if start is not None and len(self._problem.graph.ops) <= SMALL and not self._is_met():
            Improver(start, self._offer).run()
        return self.best.chosen()

    def first_fit(self) -> Augmented:
        """Return the selection for the whole budget, copied on demand, without a search for a faster one.

        Raises
        ------
        CapacityError
            If it does not fit.
        """
        augmented = insert(select(self.analysis, self._problem.budget_bytes))
        if augmented.intervals:
            self._offer(augmented)
            return self.best.chosen()
        return augmented

    def _candidates(self) -> Iterator[Augmented]:
        """Yield each selection with its cache operators placed just in time, and early if that differs."""
        for selection in self._selections():
            on_demand, seen = insert(selection), None
            for eager in reversed(PLACEMENTS) if self._has_few(selection) else PLACEMENTS:
                augmented = place(on_demand, eager=eager)
                if augmented.cache_ops != seen:
                    yield augmented
                seen = augmented.cache_ops

    def _selections(self) -> Iterator[Selection]:
        """Yield selections for the whole budget, and for smaller ones that can be met.

        Where only few candidates are tried, the first ones keep room for all that comes in for any one op: otherwise
        these copies wait until what they replace has left. Among so many intervals a few more make no difference.
        """
        budget, seen = self._problem.budget_bytes, []
        whole = select(self.analysis, budget)
        unit = max((g.size_bytes for g in whole.intervals), default=0)
        limits = [budget - reserve * unit for reserve in _RESERVES]
        if self._has_few(whole):
            returning = Counter[int]()  # by op, what comes back in for it [B]
            for idle in whole.intervals:
                returning[idle.before] += idle.size_bytes if idle.in_ns else 0
            limits.insert(0, budget - max(returning.values(), default=0))
        for limit in limits:
            selection = whole if limit == budget else select(self.analysis, limit)
            if selection.intervals not in seen and (limit == budget or selection.live_bytes.max() <= limit):
                seen.append(selection.intervals)
                yield selection

    def _offer(self, augmented: Augmented) -> Replay | None:
        """Replay a candidate, unless it holds too much as issued."""
        with self.best.trying():
            return self.best.offer(augmented.plan, augmented)
        return None

    def _is_met(self, share: float = 1.0) -> bool:
        """Return whether the fastest plan is within a factor of the lower bound, which is only computed if needed."""
        step_ns = self.best.step_ns
        if step_ns <= self._problem.clock[-1] * share:
            return True
        return step_ns < math.inf and step_ns <= self._problem.bound_ns * share

    def _is_enough(self, selection: Selection) -> bool:
        """Return whether to stop: the next candidate would exceed the effort, or could hardly be faster."""
        spent = (self.best.replays + 1) * self._effort(selection)
        return self.best.replays >= TRIES or spent > EFFORT or self._is_met(_GOOD_ENOUGH)

    def _has_few(self, selection: Selection) -> bool:
        """Return whether the graph is so large that `EFFORT` allows only few candidates."""
        return FEW * self._effort(selection) > EFFORT

    def _effort(self, selection: Selection) -> int:
        """Return the effort of a candidate: its ops, or its idle intervals if they are more."""
        return max(len(self._problem.graph.ops), len(selection.intervals))


def plan(problem: Problem, options: Options) -> Plan:
    """Compile a plan that fits the budget and stalls least.

    Parameters
    ----------
    problem
        Problem to plan for.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If no plan was found that fits; the report tells the least demand reached.
    """
    return compiled(problem, options).plan


def witness(problem: Problem, options: Options) -> Plan:
    """Compile a plan to show that one fits, however slow it is; a large graph gets a single candidate.

    Parameters
    ----------
    problem, options
        As for `plan`.

    Raises
    ------
    CapacityError
        If no plan was found that fits.
    """
    with no_garbage_search():
        try:
            return CandidateSearch(problem, options).first_fit().plan
        except CapacityError:
            if FEW * len(problem.graph.ops) <= EFFORT:
                return plan(problem, options)
            rewritten = rewrites(problem, options.asked(problem)) if options.recompute else []
            if not rewritten:
                raise
        last = rewritten[-1].written
        return last.translated(CandidateSearch(last.problem, options).first_fit().plan)


@dataclass(frozen=True)
class Compiled:
    """A compiled plan with what led to it, recompute included.

    Attributes
    ----------
    augmented
        The chosen graph with its cache operators, of the problem that was compiled: as given, or rewritten.
    plan
        The plan for the problem as given.
    replayed_ns
        Its step [ns]; infinite if it was not replayed.
    rewritten
        The rewritten problem, if ops run again; it translates plans back.
    """

    augmented: Augmented
    plan: Plan
    replayed_ns: int | float
    rewritten: Rewritten | None = None

    @cached_property
    def step_ns(self) -> int | float:
        """Length of the step [ns]; infinite if the plan blocks itself."""
        if self.replayed_ns < math.inf:
            return self.replayed_ns
        replay = self.augmented.problem.replay(self.augmented.plan)
        return replay.step_ns if replay.status == "ok" else math.inf


def compiled(problem: Problem, options: Options) -> Compiled:
    """Compile a plan, with recompute if that is allowed and faster; return it with what led to it."""
    with no_garbage_search():
        try:
            best: Compiled | CapacityError = _compile_once(problem, options)
        except CapacityError as error:
            best = error
        if options.recompute and (isinstance(best, CapacityError) or best.augmented.intervals):
            best = _compile_mixes(problem, options, best)
    if isinstance(best, CapacityError):
        raise best
    return best


def _compile_once(problem: Problem, options: Options) -> Compiled:
    search = CandidateSearch(problem, options)
    augmented = search.run()
    return Compiled(augmented, augmented.plan, search.best.step_ns)


def _compile_mixes(problem: Problem, options: Options, pure: Compiled | CapacityError) -> Compiled | CapacityError:
    """Compile the rewritten problems that promise most, and return the fastest plan."""
    best = pure
    best_ns = math.inf if isinstance(pure, CapacityError) else pure.step_ns
    if best_ns <= problem.clock[-1] * _GOOD_ENOUGH:
        return pure
    tried = rewrites(problem, options.asked(problem))
    most = max(1, LARGEST // len(problem.graph.ops))
    for promising in (*tried[:-1][:_MIXES], *tried[-1:])[:most]:
        if promising.least_ns * _GOOD_ENOUGH >= best_ns:
            continue  # the lower bound, which takes long, would tell the same
        rewritten = promising.written
        if rewritten.problem.bound_ns * _GOOD_ENOUGH >= best_ns:
            continue
        try:
            mixed = _compile_once(rewritten.problem, options)
        except CapacityError:
            continue
        if mixed.step_ns < best_ns:
            plan = rewritten.translated(mixed.plan)
            plan = replace(plan, notes=(*plan.notes, rewritten.note))
            best = replace(mixed, plan=plan, rewritten=rewritten)
            best_ns = mixed.step_ns
    return best
