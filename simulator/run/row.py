"""One row: a plan is checked, replayed, checked again, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator import metrics, referee
from simulator.plan import Plan
from simulator.run.case import LEAST_PEAK, Case, execute
from simulator.run.results import Result


def replayed(case: Case, label: str, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Result:
    """Replay a plan of a case between the two checks of the referee, and count.

    Parameters
    ----------
    case, label, plan
        What runs, what the row is called, and what was decided; a plan that is found right is called by its row.
    progress
        Called now and then with the computes that are done, and those that there are in all.

    Raises
    ------
    PlanError
        If the plan is wrong.
    CapacityError
        If its homes alone do not fit.
    """
    graph, hardware, budget = case.graph, case.hardware, case.problem.budget_bytes
    referee.check_plan(graph, hardware, plan, case.pinned)
    trace = execute(case, plan, progress)
    findings = referee.check_trace(graph, hardware, [plan], trace, budget, case.loaded.scenario.switches)
    may_repeat = metrics.recomputes(graph, trace)
    summary = {"policy": label, **metrics.summarise(graph, hardware, trace, case.bound(may_repeat=may_repeat))}
    if trace.status == "ok":
        summary[LEAST_PEAK] = case.limits(may_repeat=may_repeat).peak_bytes(summary["step_ns"])
    summary |= {"notes": "; ".join(plan.notes), "remarks": "; ".join(findings.remarks)}
    result = Result(case, label, summary, plan=replace(plan, policy=label), trace=trace, remarks=findings.remarks)
    if plan.fixed is None and trace.status == "ok":
        referee.check_plan(graph, hardware, result.recorded, case.pinned)
    return result
