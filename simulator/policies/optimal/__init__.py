"""`optimal`: the best plan that there is for a small graph, by an integer program. A yardstick, not a compiler.

It is the best of all plans for one compute stream that

- run each op once, in program order, and never let the host wait (no `Sync`);
- keep each tensor in the compute tier or in one tier below it, with at most one copy out of each version of a tensor,
  and one copy in for each stretch between two uses that it spends away;
- give up room as soon as nobody needs it, and cross no barrier with a copy in.

Free are: which stretches are spent away; where a tensor of free home lives; when each copy goes out (also ahead of the
last use) and comes in; and the order of the copies on each link. ::

    space     what there is to decide                   -> Space
    program   the integer program, for scipy's HiGHS    -> Decisions
    write     the plan that the decisions are           -> Plan
    improve   start from other policies, beat, replay   -> the fastest plan, and what no plan beats

The step of the plan is that of its replay, in whole nanoseconds. *Proved* means: the program has no solution that is
faster by more than one part in a million, which is what the solver can tell apart.
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
        What to plan for: at most 60 ops, one step, copies whose times do not depend on each other.
    options
        See `Options`.

    Raises
    ------
    ConfigError
        If the graph is too large, the machine is not one that the program describes, or the solver is not installed.
    CapacityError
        If no plan fits the budget.
    """
    check_scope(problem, MOST_OPS)
    search = Search(problem, options.time_limit_s)
    found = search.run()
    return replace(found, policy="optimal", notes=(_verdict(search, options.time_limit_s),))


def _verdict(search: Search, time_limit_s: float) -> str:
    if search.is_proved:
        return "proved optimal: no plan of its kind has a shorter step"
    share = search.step_ns / search.least_ns - 1 if search.least_ns else 0.0
    why = f"the search was stopped after {time_limit_s:g} s" if not search.is_over else "the engine starts copies early"
    return f"not proved optimal ({why}): no plan takes less than {search.least_ns:,} ns, a gap of {share:.2%}"
