"""Last pass: build candidates, predict them, replay those that promise to be better, and keep the fastest that fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies.crowd import Crowd
from simulator.policies.problem import Problem
from simulator.policies.search import Best
from simulator.policies.static.analyse import Analysis
from simulator.policies.static.augmented import Augmented
from simulator.policies.static.improve import Improver
from simulator.policies.static.insert import insert
from simulator.policies.static.refine import Knobs, refine
from simulator.policies.static.score import Rank, Stretched
from simulator.policies.static.select import Ranking, Selection, ranked, select
from simulator.policies.static.tiers import assign
from simulator.policies.static.timeline import Timeline, observe, predict
from simulator.policies.static.write import write
from simulator.units import counted, human

RESERVES = (0, 1, 2, 4, 8, 16)
"""Room kept for copies in under way, in units of the largest tensor that moves."""

SLACKS = (0, 1, 2, 4, 8, 16)
"""How much earlier than needed a copy in ends, in units of the longest copy in."""

GOOD_ENOUGH = 1.001
"""The search ends within 0.1 % of what the stores alone force."""

EFFORT = 40_000
"""Ops of all candidates together, beyond the first: a large graph gets few candidates, and planning stays linear."""

FEW = 8
"""Where the effort is spent with fewer candidates than that, those that promise most on large graphs come first."""

CORRECTIONS = 2
"""How often positions are chosen anew by what a replay shows."""

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
    problem, analysis
        What to plan for.
    score
        Scores gaps.
    alpha
        Weight of residency.
    tries
        How many candidates are replayed at most.
    sheds
        Whether links that are busy for long shed load.

    Attributes
    ----------
    has_shed
        Whether any link shed load, in any selection so far.
    best
        The fastest so far.
    """

    def __init__(
        self, problem: Problem, analysis: Analysis, score: Rank, alpha: float, tries: int, *, sheds: bool = True
    ) -> None:
        self._problem, self._analysis, self._score = problem, analysis, score
        self._ranking = ranked(problem, analysis, score)
        self._alpha, self._tries, self._sheds = alpha, tries, sheds
        self._candidates = 0
        self._promising: list[Candidate] = []
        self._overrated = 1.0
        self._without: tuple[Candidate, Timeline] | None = None
        self.has_shed = False
        self.best: Best[Candidate] = Best(problem)

    def run(self, improve: int = 0) -> Candidate:
        """Try several limits, slacks and ways to store, and return the candidate whose replay is fastest.

        The search ends at a plan that is as fast as the stores alone force it to be (copies in that take no time): a
        lower limit only adds stores. Candidates beyond the first are predicted, and those that promise most are
        replayed. If the winner does not do as predicted, positions are chosen anew by what its replay shows.

        Parameters
        ----------
        improve
            How many replays single changes may take, if the graph is small.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        plain: list[Candidate] = []
        for on_demand, knobs in self._trials(plain):
            if not on_demand.selection.gaps:
                return on_demand
            if self._place(on_demand, knobs):
                break
        self._replay_promising()
        self._fall_back(plain)
        self._correct()
        self._improve(improve)
        return self.best.chosen()

    def first(self) -> Candidate:
        """Return what the whole budget asks for, copied on demand, without a search for anything faster.

        Raises
        ------
        CapacityError
            If that does not fit.
        """
        selection = self._select(self._problem.budget_bytes, self._ranking)
        augmented = insert(self._problem, self._analysis, selection, self._score, sheds=self._sheds)
        candidate = self._write(selection, augmented)
        if candidate is not None and not selection.gaps:
            return candidate
        if candidate is not None:
            self.best.offer(candidate.plan, candidate)
        return self.best.chosen()

    def _selections(self) -> Iterator[Selection]:
        """What leaves under the whole budget, and under less if that can be met.

        Where the effort is spent with few candidates, the first keep room for what any one op waits for: without it
        these copies in wait until what they replace has left, and of so many gaps a few more make no difference.
        """
        budget, seen = self._problem.budget_bytes, []
        whole = self._select(budget, self._ranking)
        unit = max((g.size_bytes for g in whole.gaps), default=0)
        if FEW * self._effort(whole) > EFFORT:
            room = max(_returning(whole).values(), default=0)
            roomy = self._select(budget - room, self._ranking)
            if roomy.excess_bytes == 0:
                seen.append(roomy.gaps)
                yield roomy
        for selection in self._of_whole_budget(whole):
            if selection.gaps not in seen:
                seen.append(selection.gaps)
                yield selection
        for reserve in RESERVES[1:]:
            selection = self._select(budget - reserve * unit, self._ranking)
            if selection.excess_bytes == 0 and selection.gaps not in seen:
                seen.append(selection.gaps)
                yield selection

    def _select(self, limit_bytes: int | float, ranking: Ranking) -> Selection:
        return select(self._problem, self._analysis, limit_bytes, ranking, sees_below=True)

    def _of_whole_budget(self, whole: Selection) -> Iterator[Selection]:
        """What leaves by the score as it is; in a step that lasts as long as the copies; and blind to room below.

        In a step that copies make longer than its ops it counts how long they take in all, and not which of them the
        ops alone would hide.
        """
        yield whole
        budget, busy_ns = self._problem.budget_bytes, Counter[tuple[str, int]]()
        for gap in whole.gaps:
            busy_ns.update({("in", gap.away): gap.in_ns, ("out", gap.away): gap.out_ns})
        lasts_ns, computes_ns = max(busy_ns.values(), default=0), self._problem.clock[-1]
        if lasts_ns > computes_ns:
            stretched = Stretched(self._score, lasts_ns, computes_ns)
            yield self._select(budget, ranked(self._problem, self._analysis, stretched))
        yield select(self._problem, self._analysis, budget, self._ranking)

    def _trials(self, plain: list[Candidate]) -> Iterator[tuple[Candidate, Sequence[Knobs]]]:
        """Yield each selection, copied on demand, with ways to place its cache operators; keep those that fit."""
        rounds: list[Sequence[Knobs]] = []
        for selection in self._selections():
            augmented = insert(self._problem, self._analysis, selection, self._score, sheds=self._sheds)
            self.has_shed = self.has_shed or self._differs_nearer(selection, augmented)
            candidate = self._write(selection, augmented)
            if candidate is not None:
                rounds = rounds or self._rounds(candidate)
                plain.append(candidate)
                yield candidate, rounds[0]
        for knobs in rounds[1:]:
            yield from ((candidate, knobs) for candidate in plain)

    def _differs_nearer(self, selection: Selection, augmented: Augmented) -> bool:
        """Whether anything would go elsewhere if no link shed load."""
        return augmented.gaps != assign(self._problem, selection.gaps, self._score, sheds=False)

    def _place(self, on_demand: Candidate, knobs: Iterable[Knobs]) -> bool:
        """Place the cache operators of one selection in several ways; say whether there is no more to gain."""
        problem, selection = self._problem, on_demand.selection
        timeline = self._without_copies_in(on_demand)
        enough_ns = max(timeline.step_ns, problem.clock[-1]) * GOOD_ENOUGH
        unit_ns = max(gap.in_ns for gap in selection.gaps)
        seen = None
        for one in knobs:
            if self._is_spent(selection) or self._promised_ns <= enough_ns or self._is_met(self._promised_ns):
                return True
            in_time = replace(one, slack_ns=one.slack_ns * unit_ns)
            augmented = refine(problem, self._analysis, on_demand.augmented, timeline, in_time)
            if augmented.cache_ops != seen:
                seen = augmented.cache_ops
                self._candidates += 1
                self._offer(selection, augmented, timeline)
        return self._promised_ns <= enough_ns

    def _without_copies_in(self, on_demand: Candidate) -> Timeline:
        """Predict a candidate as if its copies in took no time; the last one asked for is at hand."""
        if self._without is None or self._without[0] is not on_demand:
            self._without = on_demand, predict(self._problem, on_demand.plan, free_copies_in=True)
        return self._without[1]

    def _rounds(self, on_demand: Candidate) -> list[Sequence[Knobs]]:
        """Ways to place the cache operators of each selection, round by round; slack in units of the longest copy in.

        Where copies in take longer than the step would without them, none can be hidden by slack, and it counts how
        much moves: all selections are tried with copies as early as there is room for them, before anything finer.
        """
        just_in_time = [Knobs(self._alpha, slack, early_stores=early) for slack in SLACKS for early in (False, True)]
        eager = Knobs(self._alpha, early_stores=True, eager=True)
        busy_ns: dict[int, int] = {}
        for gap in on_demand.augmented.gaps:
            busy_ns[gap.away] = busy_ns.get(gap.away, 0) + gap.in_ns
        if not busy_ns or max(busy_ns.values()) <= self._without_copies_in(on_demand).step_ns:
            return [[*just_in_time, eager]]
        return [[just_in_time[0], eager], just_in_time[1:]]

    @property
    def _promised_ns(self) -> int | float:
        """The shortest step that was replayed or predicted so far [ns]."""
        return min(self.best.step_ns, self.best.predicted_ns)

    def _offer(self, selection: Selection, augmented: Augmented, timeline: Timeline) -> None:
        """Replay the first candidate, and keep others if they are predicted to be better than all before.

        A prediction knows buses at their worst only; by so much as it overrates the first one, it does the others.
        """
        candidate = self._write(selection, augmented, timeline)
        if candidate is None:
            return
        if self.best.replays == 0:
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
            if self.best.replays >= self._tries:
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

    def _correct(self) -> None:
        """If ops wait for transfers, choose positions by what the replay shows instead of by the model."""
        for _ in range(CORRECTIONS):
            best, replay = self.best.candidate, self.best.replay
            if best is None or replay is None or replay.trace is None or self._is_spent(best.selection):
                return
            if replay.wait_ns.get("transfer", 0) * 1000 < replay.step_ns or self._is_met(replay.step_ns):
                return
            self._candidates += 1
            timeline = observe(self._problem, best.plan, replay.trace)
            knobs = Knobs(self._alpha, max(g.in_ns for g in best.selection.gaps))
            augmented = refine(self._problem, self._analysis, best.augmented, timeline, knobs)
            candidate = self._write(best.selection, augmented, timeline)
            if candidate is None or not self.best.offer(candidate.plan, candidate):
                return

    def _is_met(self, step_ns: int | float) -> bool:
        """Whether a step is as short as the bound, which takes long to find and is asked for last."""
        return step_ns < math.inf and step_ns <= self._problem.bound_ns

    def _is_spent(self, selection: Selection) -> bool:
        """Whether another candidate would take more effort than is given."""
        each = self._effort(selection)
        return self.best.replays >= self._tries or (self._candidates + 1) * each > max(EFFORT, each)

    def _effort(self, selection: Selection) -> int:
        """Effort of a candidate: its ops, or what moves if that is more."""
        return max(len(self._problem.graph.ops), len(selection.gaps))

    def _improve(self, replays: int) -> None:
        """On a small graph, go on with single changes."""
        start = self.best.candidate
        problem = self._problem
        if start is None or len(problem.graph.ops) > SMALL or self._is_met(self.best.step_ns):
            return
        improver = Improver(problem, self._analysis, self._score, replays, sheds=self._sheds)
        found = improver.run(start.selection, start.augmented)
        if found is not None and found.cost[0] < self.best.step_ns:
            selection = replace(start.selection, gaps=found.gaps)
            candidate = self._write(selection, found.augmented)
            if candidate is not None:
                self.best.offer(candidate.plan, candidate)


def _returning(selection: Selection) -> Counter[int]:
    """How much comes back for each op [B]."""
    found: Counter[int] = Counter()
    for gap in selection.gaps:
        if gap.in_ns:
            found[gap.before] += gap.size_bytes
    return found
