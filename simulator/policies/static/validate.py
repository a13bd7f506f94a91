"""Last pass: build candidates, predict them, replay those that promise to be better, and keep the fastest that fits."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import CapacityError
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.search import Best
from simulator.policies.static.analyse import Analysis
from simulator.policies.static.insert import insert
from simulator.policies.static.predict import predict
from simulator.policies.static.refine import refine
from simulator.policies.static.select import Selection, select

RESERVES = (0, 1, 4, 16)
"""Room kept for copies in under way, in units of the largest tensor that moves."""

SLACKS = (0, 1, 4, 16)
"""How much earlier than needed a copy in ends, in units of the longest copy in."""

GOOD_ENOUGH = 1.001
"""The search ends within 0.1 % of what the stores alone force."""


def best_plan(problem: Problem, analysis: Analysis, alpha: float, tries: int) -> Plan:
    """Try several limits and slacks and return the plan whose replay is fastest.

    The search ends at a plan that is as fast as the stores alone force it to be (copies in that take no time): a lower
    limit only adds stores. A candidate that is predicted to be no faster than one that was replayed is left out.

    Parameters
    ----------
    problem, analysis
        What to plan for.
    alpha
        Weight of residency.
    tries
        How many candidates are replayed at most.

    Raises
    ------
    CapacityError
        If none fits: that of the least demand.
    """
    best = Best(problem)
    for selection in _selections(problem, analysis):
        try:
            on_demand = insert(problem, analysis, selection, {})
        except CapacityError as error:
            best.refuse(error)
            continue
        if not selection.gaps:
            return on_demand
        if _try_slacks(problem, analysis, (selection, on_demand), (alpha, tries), best):
            break
    return best.plan()


def _selections(problem: Problem, analysis: Analysis) -> Iterator[Selection]:
    """What leaves under the whole budget, and under less if that can be met."""
    first = last = select(problem, analysis, problem.budget_bytes)
    yield first
    unit = max((g.size_bytes for g in first.gaps), default=0)
    for reserve in RESERVES[1:]:
        selection = select(problem, analysis, problem.budget_bytes - reserve * unit)
        if selection.excess_bytes == 0 and selection.gaps != last.gaps:
            last = selection
            yield selection


def _try_slacks(
    problem: Problem,
    analysis: Analysis,
    chosen: tuple[Selection, Plan],
    knobs: tuple[float, int],
    best: Best,
) -> bool:
    """Place the copies in of one selection with several slacks; say whether there is no more to gain."""
    selection, on_demand = chosen
    alpha, tries = knobs
    timeline = predict(problem, on_demand, free_copies_in=True)
    unit_ns, moved = max(g.in_ns for g in selection.gaps), sum(g.size_bytes for g in selection.gaps)
    note = f"{len(selection.gaps)} gaps are spent away, {moved:,} B in all"
    seen = None
    for slack in SLACKS:
        if best.replays >= tries or best.step_ns <= timeline.step_ns * GOOD_ENOUGH:
            return True
        positions = refine(problem, analysis, selection, timeline, alpha, slack * unit_ns)
        if positions == seen:
            continue
        seen = positions
        try:
            plan = insert(problem, analysis, selection, positions, (note,))
        except CapacityError as error:
            best.refuse(error)
            continue
        predicted_ns = predict(problem, plan).step_ns
        if predicted_ns < best.predicted_ns:
            best.predicted_ns = predicted_ns
            best.offer(plan)
    return best.step_ns <= timeline.step_ns * GOOD_ENOUGH
