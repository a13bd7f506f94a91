"""The passes in a row; with recompute, once for the graph as it is and once for the one in which some ops run again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from simulator import garbage
from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Analysis, analyse
from simulator.policies.static.explanation import Explanation, explanation
from simulator.policies.static.mix import Rewritten, rewrites
from simulator.policies.static.options import Options
from simulator.policies.static.remade import remade, with_alternatives
from simulator.policies.static.score import Scorer
from simulator.policies.static.select import explain
from simulator.policies.static.validate import EFFORT as CANDIDATES_EFFORT
from simulator.policies.static.validate import FEW, GOOD_ENOUGH, Candidate, Validator

MIXES = 3
"""How many rewritten problems are compiled at most, beside the one that needs no copies."""

EFFORT = 25_000
"""Ops of all rewritten problems that are compiled; at least one is, so that planning stays linear."""


def plan(problem: Problem, options: Options) -> Plan:
    """Compile a plan that fits the budget and stalls least.

    Parameters
    ----------
    problem
        What to plan for.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If no plan was found that fits; the report tells the least demand reached.
    """
    return compiled(problem, options).plan


def witness(problem: Problem, options: Options) -> Plan:
    """Compile a plan that shows that one fits, however fast it is: of a large graph, a single candidate.

    Parameters
    ----------
    problem, options
        As for `plan`.

    Raises
    ------
    CapacityError
        If no plan was found that fits.
    """
    with garbage.kept():
        try:
            return _validator(problem, options)[1].first().plan
        except CapacityError:
            if FEW * len(problem.graph.ops) <= CANDIDATES_EFFORT:
                return plan(problem, options)
            found = rewrites(problem, options.asked(problem)) if options.recompute else []
            if not found:
                raise
        last = found[-1]
        return last.translated(_validator(last.problem, options)[1].first().plan)


def _validator(problem: Problem, options: Options) -> tuple[Analysis, Validator]:
    analysis = analyse(problem)
    return analysis, Validator(problem, analysis, Scorer(problem, options.asked(problem)))


def explained(problem: Problem, options: Options) -> Explanation:
    """Compile a plan and say why it is as it is.

    Parameters
    ----------
    problem, options
        As for `plan`.

    Raises
    ------
    CapacityError
        If no plan was found that fits.
    """
    found = compiled(problem, options)
    selection, spent = found.candidate.selection, found.candidate.augmented.gaps
    choices = explain(found.problem, selection, spent, found.analysis.forced)
    if options.recompute:
        choices = with_alternatives(found.problem, choices)
    if found.rewritten is not None:
        choices += remade(found.rewritten, spent, selection.ranking.score)
    return explanation(found.problem, found.candidate, choices, found.plan)


@dataclass(frozen=True)
class Compiled:
    """A plan with what led to it.

    Attributes
    ----------
    problem
        What was compiled: the problem as given, or rewritten so that some ops run again.
    analysis
        Its gaps.
    candidate
        What was chosen for that problem.
    plan
        The plan for the problem as given.
    replayed_ns
        Its step [ns]; infinite if it was not replayed.
    rewritten
        The way from the problem as given to what was compiled, if ops run again.
    """

    problem: Problem
    analysis: Analysis
    candidate: Candidate
    plan: Plan
    replayed_ns: int | float
    rewritten: Rewritten | None = None

    @cached_property
    def step_ns(self) -> int | float:
        """Length of the step [ns]; infinite if the plan blocks itself."""
        if self.replayed_ns < math.inf:
            return self.replayed_ns
        replay = self.problem.replay(self.candidate.plan)
        return replay.step_ns if replay.status == "ok" else math.inf


def compiled(problem: Problem, options: Options) -> Compiled:
    """Compile a plan, with recompute if that may be and is faster, and keep what led to it."""
    with garbage.kept():
        try:
            best: Compiled | CapacityError = _passes(problem, options)
        except CapacityError as error:
            best = error
        if options.recompute and (isinstance(best, CapacityError) or best.candidate.selection.gaps):
            best = _mixed(problem, options, best)
    if isinstance(best, CapacityError):
        raise best
    return best


def _passes(problem: Problem, options: Options) -> Compiled:
    analysis, validator = _validator(problem, options)
    candidate = validator.run()
    return Compiled(problem, analysis, candidate, candidate.plan, validator.best.step_ns)


def _mixed(problem: Problem, options: Options, pure: Compiled | CapacityError) -> Compiled | CapacityError:
    """Compile the rewritten problems that promise most, and return the fastest plan."""
    best = pure
    best_ns = math.inf if isinstance(pure, CapacityError) else pure.step_ns
    if best_ns <= problem.clock[-1] * GOOD_ENOUGH:
        return pure
    found = rewrites(problem, options.asked(problem))
    most = max(1, EFFORT // len(problem.graph.ops))
    for rewritten in (*found[:-1][:MIXES], *found[-1:])[:most]:
        if rewritten.problem.bound_ns * GOOD_ENOUGH >= best_ns:
            continue
        try:
            mixed = _passes(rewritten.problem, options)
        except CapacityError:
            continue
        if mixed.step_ns < best_ns:
            plan = rewritten.translated(mixed.plan)
            plan = replace(plan, notes=(*plan.notes, rewritten.note))
            best = replace(mixed, plan=plan, rewritten=rewritten)
            best_ns = mixed.step_ns
    return best
