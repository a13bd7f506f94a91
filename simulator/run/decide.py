"""Decides as a row does: over few steps, with the allocator of the row, as if alone or in turns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import isfinite

from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay
from simulator.policies.turns import staggered
from simulator.scenario import PolicyChoice
from simulator.units import human

REHEARSED = 16
"""Most steps in which policies try their plans.

All steps of a graph are alike, so that a plan is chosen by how it does when it has settled. What a lap of a fixed plan
leaves to the next is shorter than a lap: persistent tensors are at home in between. A runtime also leaves a cache; one
that holds more than this many steps choose is judged while it still fills. What is chosen so runs, and is checked, over
all steps.
"""


def decided(choice: PolicyChoice, decide: Callable[[Problem], Plan], problem: Problem) -> Plan:
    """Decide as a row does.

    Parameters
    ----------
    choice
        The row.
    decide
        What its policy does.
    problem
        What is to be solved.
    """
    if problem.rehearsal is None:
        return _decided(choice, decide, problem)
    return replace(_decided(choice, decide, problem.rehearsal), repeats=problem.graph.steps)


def _decided(choice: PolicyChoice, decide: Callable[[Problem], Plan], problem: Problem) -> Plan:
    if choice.allocator != "ideal" and problem.under is not None:
        problem, decide = problem.under(choice.allocator), partial(granted, decide=decide)
    if choice.staggered:
        return staggered(problem, decide)
    return decide(problem.lone or problem if choice.alone else problem)


_PARTS = 256
"""The budget is searched in such parts of it."""
_DOUBLED = (1, 2, 4, 8, 16, 32, 64, 128)
"""So many parts are left out at first: most plans that block lack little, and each is planned anew."""


def granted(problem: Problem, decide: Callable[[Problem], Plan]) -> Plan:
    """Decide; where a plan that is made before the run blocks itself under the allocator, plan with less.

    The replay keeps all of the budget. Every budget that is tried is planned with and replayed: less by one part, by
    two, by four and so on until a plan runs, and then halved. No larger one is promised to block.

    Parameters
    ----------
    problem
        What is to be solved, with plans tried under the allocator of the row.
    decide
        What its policy does.

    Returns
    -------
    Plan
        The first plan if it runs, or if no other does; else one with a note that says with how much it was planned.
    """
    plan = decide(problem)
    if plan.fixed is None or not isfinite(problem.budget_bytes) or problem.replay(plan).status == "ok":
        return plan
    whole = int(problem.budget_bytes)

    @cache
    def planned(parts: int) -> Plan | None:
        return _running(problem, decide, whole - whole * parts // _PARTS)

    enough = next((parts for parts in _DOUBLED if planned(parts) is not None), None)
    if enough is None:
        return plan
    parts = bisect_left(range(enough), True, enough // 2 + 1, key=lambda number: planned(number) is not None)
    amounts = f"{human(whole - whole * parts // _PARTS, 'B')} of {human(whole, 'B')}"
    said = f"planned with {amounts}, as a plan with all of it blocks itself under this allocator"
    smaller = planned(parts) or plan
    return replace(smaller, notes=(*smaller.notes, said))


def _running(problem: Problem, decide: Callable[[Problem], Plan], budget_bytes: int) -> Plan | None:
    """A plan with a smaller budget, if there is one and it runs in the whole one."""

    def replay(plan: Plan) -> Replay:
        done = problem.replay(plan)
        peak = min(done.peak_bytes[tier], budget_bytes)
        return replace(done, peak_bytes={**done.peak_bytes, tier: peak})

    tier = problem.tiers[problem.compute_tier]
    try:
        plan = decide(replace(problem, budget_bytes=budget_bytes, replay=replay))
        return plan if problem.replay(plan).status == "ok" else None
    except CapacityError:
        return None
