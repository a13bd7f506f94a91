"""Plans for what an allocator can give out: policies plan in bytes, and rounding, or holes, may need more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import isfinite

from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay
from simulator.units import human

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
