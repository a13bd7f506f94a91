"""Decides as a row does: over few steps, with the allocator of the row, as if alone or with start offsets.

*Start offsets*: while ranks that share a link do the same at the same time, the link is crowded when all pull, and idle
when none does. A rank that begins later pulls while others compute. That lasts, because ranks which never meet keep
their distance. It cannot beat the time in which the shared link carries the bytes of all, so nothing is won where that
is never idle; and ranks that meet in each step wait for the last one to begin, so that they are left alone (both
proofs: docs/explanation/many-ranks.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import inf, isfinite

from simulator.cost.service import ceil_div
from simulator.errors import CapacityError
from simulator.plan import COPY, Plan
from simulator.policies.problem import Problem, Replay
from simulator.scenario import PolicyChoice
from simulator.units import human

Policy = Callable[[Problem], Plan]
"""What decides: any function from a problem to a plan."""

_PARTS = 256
"""The budget is searched in such parts of it."""
_DOUBLED = (1, 2, 4, 8, 16, 32, 64, 128)
"""So many parts are left out at first: most plans that block lack little, and each is planned anew."""
_NS_PER_S = 10**9


def decided(choice: PolicyChoice, decide: Policy, problem: Problem) -> Plan:
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
    few = problem.rehearsal
    if choice.allocator != "ideal":
        few, decide = replace(few, allocator=choice.allocator), partial(granted, decide=decide)
    plan = staggered(few, decide) if choice.staggered else decide(few.alone if choice.alone else few)
    return replace(plan, repeats=problem.graph.steps)


def granted(problem: Problem, decide: Policy) -> Plan:
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
    def smaller(parts: int) -> Plan | None:
        """A plan with a budget that is smaller by so many parts, if there is one and it runs in the whole one."""
        less = replace(problem, budget_bytes=whole - whole * parts // _PARTS, trial=partial(_tried_in, problem))
        try:
            plan = decide(less)
            return plan if problem.replay(plan).status == "ok" else None
        except CapacityError:
            return None

    enough = next((parts for parts in _DOUBLED if smaller(parts)), 0)
    if not enough:
        return plan
    parts = bisect_left(range(enough), True, enough // 2 + 1, key=lambda parts: smaller(parts) is not None)
    amounts = f"{human(whole - whole * parts // _PARTS, 'B')} of {human(whole, 'B')}"
    note = f"planned with {amounts}, as a plan with all of it blocks itself under this allocator"
    return _noted(smaller(parts) or plan, note)


def _tried_in(whole: Problem, less: Problem, plan: Plan) -> Replay:
    """What comes of a plan for a smaller budget in the whole one: what it takes more is no fault of the plan."""
    replay = whole.trial(replace(less, budget_bytes=whole.budget_bytes), plan)
    tier = less.tiers[less.compute_tier]
    peak = min(replay.peak_bytes[tier], int(less.budget_bytes))
    return replace(replay, peak_bytes={**replay.peak_bytes, tier: peak})


def staggered(problem: Problem, decide: Policy) -> Plan:
    """Decide, and let ranks begin in turn if the step is then shorter, or as short with less asked for at once.

    Parameters
    ----------
    problem
        What is to be solved; `Problem.turns` says into how many groups its ranks may be divided.
    decide
        The policy. Its plan is tried, and also the one it makes as if each rank were alone: with offsets, it nearly is.

    Returns
    -------
    Plan
        The fastest by replay, with a note that says so; the plan that begins together if no offsets are better.
    """
    plan = decide(problem)
    if not problem.turns or plan.fixed is None:
        why = "they share no link, meet in each step, or run for less than three steps with a fixed plan"
        return _noted(plan, f"ranks begin together: {why}")
    together = problem.replay(plan)
    if together.status != "ok":
        return plan
    best, least = plan, _cost(together)
    for base in (plan, decide(problem.alone)):
        step_ns, supply_ns = problem.replay(base).step_ns, _supply_ns(problem, base)
        for groups in problem.turns:
            turned = replace(base, starts_ns=tuple(step_ns * turn // groups for turn in range(groups)))
            replay = problem.replay(turned)
            lasts = replay.status == "ok" and replay.step_ns >= supply_ns
            if lasts and _cost(replay) < least:
                best, least = turned, _cost(replay)
    if best is plan:
        return _noted(plan, "ranks begin together: no turns are faster")
    steps = f"{human(least[0], 'ns')} a step in place of {human(together.step_ns, 'ns')}"
    late = f"ranks begin in {len(best.starts_ns)} turns, up to {human(max(best.starts_ns), 'ns')} late, once"
    return _noted(best, f"{late}: {steps}")


def _cost(replay: Replay) -> tuple[int, float]:
    """The step, and how much more than it carries the most crowded link is asked for."""
    return replay.step_ns, max(replay.demand.values(), default=0.0)


def _supply_ns(problem: Problem, plan: Plan) -> int:
    """No offsets make a step shorter: the time for which a shared bus is busy with the bytes of all ranks [ns]."""
    moved, hardware, supply_ns = Counter[str](), problem.hardware, 0
    for kind, tensor, source, target in plan.fixed or ():
        if kind == COPY:
            moved[problem.link_names[source, target]] += problem.sizes[tensor]
    for name, ranks in problem.sharers.items():
        bus = hardware.buses[name]
        size = ranks * sum(times * moved[link] for link, times in hardware.passing(bus.links).items())
        if bus.bandwidth_bytes_per_s != inf:
            supply_ns = max(supply_ns, ceil_div(size * _NS_PER_S, int(bus.bandwidth_bytes_per_s)))
    return supply_ns


def _noted(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
