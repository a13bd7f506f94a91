"""`optimal`: the best plan over one lower tier for a small graph, by an integer program. A yardstick, not a compiler.

It is the best of all plans for one compute stream that

- run each op once, in program order, and never let the host wait (no `Sync`);
- keep each tensor in the compute tier or in one tier below it, with at most one copy out of each version of a tensor,
  and one copy in for each stretch between two uses that it spends away;
- give up room as soon as nobody needs it, and cross no barrier with a copy in;
- repeat themselves, if there are several steps.

Free are: which stretches are spent away; where a tensor of free home lives; when each copy goes out (also ahead of the
last use) and comes in; and the order of the copies on each link. ::

    window    of several steps, the one that counts     -> Problem
    space     what there is to decide                   -> Space
    program   the integer program, for scipy's HiGHS    -> Solution, Decisions
    write     the plan that the decisions are           -> Plan
    observe   the run of any plan, as a solution        -> Observed
    improve   start from other policies, beat, replay   -> the fastest plan, and what no plan beats

*The objective* of a plan is its step by the program alone: with the flags of a solution, the earliest whole times that
keep to every row, found as longest paths without the solver. It is the plan's if its replay takes just as long, to the
nanosecond; then the plan says so in its notes, else it says that it has none. So nothing rests on the solver's
fractions but the proof that there is nothing better.

*Proved* means: the solver finds no solution that is faster by more than one part in a million, which is what it can
tell apart; below a step of a million nanoseconds these are all whole steps.

*Several steps*: the program looks at the window of one step (see `window`), so that what it finds no step can beat, the
last one of two steps or of a hundred. It leaves out what the step before holds or copies late. A plan whose replay
reaches the objective is proved; where late copies make every step longer than that, the plan is the best that was
found, and says how far it may be from the best there is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from simulator.document import Part
from simulator.plan import Plan
from simulator.policies.optimal.improve import Search
from simulator.policies.optimal.scope import check_scope
from simulator.policies.problem import Problem

MOST_OPS = 60


class Options(Part):
    """When to stop.

    Attributes
    ----------
    time_limit_s
        Seconds after which the fastest plan so far is returned; it says then that it is not proved optimal, and what
        is left of the gap. Only a search that ends by itself gives the same plan on every machine.
    """

    time_limit_s: Annotated[float, Field(gt=0)] = Field(60, description="when the search stops [s]")


def plan(problem: Problem, options: Options) -> Plan:
    """Find the plan with the shortest step.

    Parameters
    ----------
    problem
        What to plan for: at most 60 ops, copies whose times do not depend on each other.
    options
        See `Options`.

    Raises
    ------
    ScopeError
        If the graph is too large, the machine is not one that the program describes, or the solver is not installed.
    CapacityError
        If no plan fits the budget.
    """
    check_scope(problem, MOST_OPS)
    search = Search(problem, options.time_limit_s)
    found = search.run()
    return replace(found, policy="optimal", notes=(_verdict(search, options.time_limit_s), _objective(search)))


def _verdict(search: Search, time_limit_s: float) -> str:
    others = "no plan over one lower tier"
    if search.step_ns == search.least_ns:
        return f"proved optimal: {others} has a shorter step"
    least = f"{others} takes less than {search.least_ns:,} ns"
    if search.is_proved:
        return f"proved optimal to one part in a million: {least}"
    share = search.step_ns / search.least_ns - 1 if search.least_ns else 0.0
    why = (
        "the replay delays what the program finds best"
        if search.is_over
        else f"the search stopped after {time_limit_s:g} s"
    )
    return f"not proved optimal ({why}): {least}, a gap of {share:.2%}"


def _objective(search: Search) -> str:
    if search.objective_ns is None:
        return f"objective: none, for the program cannot tell this plan: {search.premise}"
    return f"objective: {search.objective_ns:,} ns by the program alone, which is the step of the replay"
