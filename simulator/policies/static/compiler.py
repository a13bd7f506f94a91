"""The passes in a row; with recompute, once for the graph as it is and once for the one in which some ops run again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import Field

from simulator import garbage
from simulator.document import Part
from simulator.errors import CapacityError, ScopeError
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Analysis
from simulator.policies.static.mix import Rewritten, rewrites
from simulator.policies.static.validate import EFFORT as CANDIDATES_EFFORT
from simulator.policies.static.validate import FEW, GOOD_ENOUGH, Candidate, Validator

MIXES = 3
"""How many rewritten problems are compiled at most, beside the one that needs no copies."""

EFFORT = 25_000
"""Ops of all rewritten problems that are compiled; at least one is, so that planning stays linear."""


class Options(Part):
    """What the compiler may do, and what it is told to.

    Attributes
    ----------
    recompute
        Whether ops may run again, where that is faster than moving what they made.
    move
        Kinds of tensors, or patterns of their names: these leave wherever that hides their copies, and before all
        others where room is short.
    """

    recompute: bool = Field(False, description="run ops again where that is faster than copies")
    move: list[str] = Field([], description="kinds or name patterns of tensors that leave where they can")

    def asked(self, problem: Problem) -> frozenset[int]:
        """Tensors that leave where they can.

        Parameters
        ----------
        problem
            What is planned for.

        Raises
        ------
        ScopeError
            If a pattern matches none that may leave.
        """
        found: set[int] = set()
        for pattern in self.move:
            tensors = problem.graph.matching(pattern)
            if not tensors:
                must = "what option move names is a kind, or a pattern of names, of some tensor"
                raise ScopeError("policy 'static'", must, repr(pattern), "take a name that `hosim plan` prints")
            may_leave = [tensor for tensor in tensors if not problem.pinned(tensor)]
            if not may_leave:
                must, what = "what option move names may leave the compute tier", f"{pattern!r}, which is at home there"
                raise ScopeError("policy 'static'", must, what, "give it another home, or free")
            found.update(may_leave)
        return frozenset(found)


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
            return Validator(problem, options.asked(problem)).first().plan
        except CapacityError:
            if FEW * len(problem.graph.ops) <= CANDIDATES_EFFORT:
                return plan(problem, options)
            found = rewrites(problem, options.asked(problem)) if options.recompute else []
            if not found:
                raise
        last = found[-1]
        return last.translated(Validator(last.problem, options.asked(last.problem)).first().plan)


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
    validator = Validator(problem, options.asked(problem))
    candidate = validator.run()
    return Compiled(problem, validator.analysis, candidate, candidate.plan, validator.best.step_ns)


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
