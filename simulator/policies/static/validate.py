"""Last pass: build candidates, predict them, replay those that promise to be better, and keep the fastest that fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.search import Best
from simulator.policies.static.analyse import Scorer, analyse
from simulator.policies.static.augmented import Augmented
from simulator.policies.static.improve import Improver
from simulator.policies.static.insert import insert, write
from simulator.policies.static.refine import refine
from simulator.policies.static.select import Selection, ranked, select
from simulator.policies.static.step_model import Crowd, Timeline, predict
from simulator.units import counted, human

RESERVES = (0, 1, 2, 4, 8, 16)
"""Room kept for copies in under way, in units of the largest tensor that moves."""

GOOD_ENOUGH = 1.001
"""The search ends within 0.1 % of what the stores alone force."""

EFFORT = 40_000
"""Ops of all candidates together, beyond the first: a large graph gets few candidates, and planning stays linear."""

FEW = 8
"""Where the effort is spent with fewer candidates than that, those that promise most on large graphs come first."""

PLACEMENTS = (False, True)
"""Copies in just in time, or as early as there is room. Early is faster by up to 1.1 % where links are the limit; late
leaves room to what needs a hole of its own (fixed offsets: 29 %) and to what only the run chooses (`hybrid`: 6 %), so
that it wins a tie. A large graph with few candidates begins with early."""

TRIES = 6
"""Candidates that are replayed at most: beyond these none was ever the fastest of a shipped scenario."""

IMPROVE = 250
"""Replays that single changes may take on a small graph: about a second of planning."""

SMALL = 128
"""Ops of a run up to which single changes are tried."""


@dataclass(frozen=True)
class Candidate:
    """A plan with how it came about.

    Attributes
    ----------
    selection, augmented, plan
        What leaves, where the cache operators are, and the steps.
    timeline
        What its positions were chosen by.
    """

    selection: Selection
    augmented: Augmented
    plan: Plan
    timeline: Timeline | None = None


class Validator:
    """Tries candidates and keeps the best.

    Parameters
    ----------
    problem
        What to plan for.
    asked
        Tensors that it was asked for to leave.

    Attributes
    ----------
    analysis
        Its gaps.
    best
        The fastest so far.
    """

    def __init__(self, problem: Problem, asked: frozenset[int]) -> None:
        self._problem, self.analysis = problem, analyse(problem)
        self._ranking = ranked(problem, self.analysis, Scorer(problem, asked))
        self._candidates = 0
        self._promising: list[Candidate] = []
        self._overrated = 1.0
        self.best: Best[Candidate] = Best(problem)

    def run(self) -> Candidate:
        """Try several limits, and return the candidate whose replay is fastest.

        The search ends at a plan that is as fast as the stores alone force it to be (copies in that take no time): a
        lower limit only adds stores. Candidates beyond the first are predicted, and those that promise most are
        replayed.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        plain: list[Candidate] = []
        for on_demand in filter(None, map(self._inserted, self._selections())):
            if not on_demand.selection.gaps:
                return on_demand
            plain.append(on_demand)
            if self._place(on_demand):
                break
        self._replay_promising()
        self._fall_back(plain)
        self._improve()
        return self.best.chosen()

    def first(self) -> Candidate:
        """Return what the whole budget asks for, copied on demand, without a search for anything faster.

        Raises
        ------
        CapacityError
            If that does not fit.
        """
        candidate = self._inserted(self._select(self._problem.budget_bytes))
        if candidate is not None:
            if not candidate.selection.gaps:
                return candidate
            self.best.offer(candidate.plan, candidate)
        return self.best.chosen()

    def _selections(self) -> Iterator[Selection]:
        """What leaves under the whole budget, and under less if that can be met.

        Where the effort is spent with few candidates, the first keep room for what any one op waits for: without it
        these copies in wait until what they replace has left, and of so many gaps a few more make no difference.
        """
        budget, seen = self._problem.budget_bytes, []
        whole = self._select(budget)
        unit = max((g.size_bytes for g in whole.gaps), default=0)
        limits = [budget - reserve * unit for reserve in RESERVES]
        if FEW * self._effort(whole) > EFFORT:
            limits.insert(0, budget - max(_returning(whole).values(), default=0))
        for limit in limits:
            selection = whole if limit == budget else self._select(limit)
            if selection.gaps not in seen and (limit == budget or selection.excess_bytes == 0):
                seen.append(selection.gaps)
                yield selection

    def _select(self, limit_bytes: int | float) -> Selection:
        return select(self._problem, self.analysis, limit_bytes, self._ranking)

    def _inserted(self, selection: Selection) -> Candidate | None:
        """A selection, copied on demand."""
        return self._write(selection, insert(self._problem, self.analysis, selection))

    def _place(self, on_demand: Candidate) -> bool:
        """Place the cache operators of one selection by time; say whether there is no more to gain."""
        problem, selection = self._problem, on_demand.selection
        timeline = predict(problem, on_demand.plan, free_copies_in=True)
        enough_ns = max(timeline.step_ns, problem.clock[-1]) * GOOD_ENOUGH
        seen = None
        has_few = FEW * self._effort(selection) > EFFORT
        for eager in reversed(PLACEMENTS) if has_few else PLACEMENTS:
            if self._is_spent(selection) or self._promised_ns <= enough_ns or self._is_met(self._promised_ns):
                return True
            augmented = refine(problem, self.analysis, on_demand.augmented, timeline, eager=eager)
            if augmented.cache_ops != seen:
                seen = augmented.cache_ops
                self._candidates += 1
                self._offer(selection, augmented, timeline)
        return self._promised_ns <= enough_ns

    @property
    def _promised_ns(self) -> int | float:
        """The shortest step that was replayed or predicted so far [ns]."""
        return min(self.best.step_ns, self.best.predicted_ns)

    def _offer(self, selection: Selection, augmented: Augmented, timeline: Timeline) -> None:
        """Replay the first candidate of each placement, and keep others if they are predicted to be better than all.

        A prediction knows buses at their worst only; by so much as it overrates the first one, it does the others.
        """
        candidate = self._write(selection, augmented, timeline)
        if candidate is None:
            return
        if self.best.replays < len(PLACEMENTS):
            self.best.offer(candidate.plan, candidate)
            self.best.predicted_ns = self.best.step_ns
            if Crowd(self._problem, self._problem.links).is_felt and self.best.step_ns < math.inf:
                said_ns = predict(self._problem, candidate.plan).step_ns
                self._overrated = max(1.0, said_ns / self.best.step_ns)
            return
        predicted_ns = int(predict(self._problem, candidate.plan).step_ns / self._overrated)
        if predicted_ns < self.best.predicted_ns:
            self.best.predicted_ns = predicted_ns
            self._promising.append(candidate)

    def _replay_promising(self) -> None:
        """Replay what is predicted to be better than all before it, the best first."""
        for candidate in reversed(self._promising):
            if self.best.replays >= TRIES:
                return
            if self.best.offer(candidate.plan, candidate) and self.best.step_ns <= self.best.predicted_ns:
                return

    def _fall_back(self, plain: Iterable[Candidate]) -> None:
        """If nothing that was placed by time completes in the room below, copy on demand."""
        for candidate in plain:
            if self.best.candidate is None:
                self.best.offer(candidate.plan, candidate)

    def _write(self, selection: Selection, augmented: Augmented, timeline: Timeline | None = None) -> Candidate | None:
        notes = (self._note(selection),)
        try:
            return Candidate(selection, augmented, write(self._problem, augmented, notes), timeline)
        except CapacityError as error:
            self.best.refuse(error)
            return None

    def _note(self, selection: Selection) -> str:
        """What the plan says about itself."""
        if selection.gaps:
            moved = sum(gap.size_bytes for gap in selection.gaps)
            return f"{counted(len(selection.gaps), 'gap')} spent away, {human(moved, 'B')} in all"
        most, budget = int(selection.live_bytes.max(initial=0)), self._problem.budget_bytes
        return f"nothing moves: at most {human(most, 'B')} are live at once, of a budget of {human(budget, 'B')}"

    def _is_met(self, step_ns: int | float) -> bool:
        """Whether a step is as short as the bound, which takes long to find and is asked for last."""
        return step_ns < math.inf and step_ns <= self._problem.bound_ns

    def _is_spent(self, selection: Selection) -> bool:
        """Whether another candidate would take more effort than is given."""
        each = self._effort(selection)
        return self.best.replays >= TRIES or (self._candidates + 1) * each > max(EFFORT, each)

    def _effort(self, selection: Selection) -> int:
        """Effort of a candidate: its ops, or what moves if that is more."""
        return max(len(self._problem.graph.ops), len(selection.gaps))

    def _improve(self) -> None:
        """On a small graph, go on with single changes."""
        start = self.best.candidate
        problem = self._problem
        if start is None or len(problem.graph.ops) > SMALL or self._is_met(self.best.step_ns):
            return
        found = Improver(problem, self.analysis, IMPROVE).run(start.selection, start.augmented)
        if found is not None and found.cost[0] < self.best.step_ns:
            candidate = self._write(replace(start.selection, gaps=found.gaps), found.augmented)
            if candidate is not None:
                self.best.offer(candidate.plan, candidate)


def _returning(selection: Selection) -> Counter[int]:
    """How much comes back for each op [B]."""
    found: Counter[int] = Counter()
    for gap in selection.gaps:
        if gap.in_ns:
            found[gap.before] += gap.size_bytes
    return found
