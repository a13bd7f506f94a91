"""One row: plans are checked, replayed, checked again, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulator import metrics, referee
from simulator.plan import Plan
from simulator.report.rows import OF_FIXED, UNBOUNDED
from simulator.run.case import LEAST_PEAK, Case
from simulator.run.execute import execute
from simulator.run.results import Result
from simulator.run.task import Task
from simulator.trace import Trace


def replayed(
    case: Case, label: str, plans: Sequence[Plan], progress: Callable[[int, int], None] | None = None
) -> Result:
    """Replay the plans of a case between the two checks of the referee, and count.

    Parameters
    ----------
    case, label, plans
        What runs, what the row is called, and what was decided for each graph of the job; plans that are found right
        are called by their row.
    progress
        Called now and then.

    Raises
    ------
    PlanError
        If a plan is wrong.
    CapacityError
        If the homes alone do not fit.
    """
    draws = [case.tasks[number].draws(rank) for rank, number in enumerate(case.job.graph_of)]
    for task, plan in zip(case.tasks, plans, strict=True):
        referee.check_plan(task.graph, case.hardware, plan, task.pinned, draws[task.ranks[0]])
    of_ranks = [plans[number] for number in case.job.graph_of]
    referee.check_order(case.job, of_ranks)
    trace = execute(case, plans, progress, case.choice(label).allocator)
    budget, switches = case.problem.budget_bytes, case.loaded.scenario.switches
    allocator = case.choice(label).allocator
    ran = [referee.Drawn(plan, drawn, allocator) for plan, drawn in zip(of_ranks, draws, strict=True)]
    findings = referee.check_trace(case.job, case.hardware, ran, trace, budget, switches)
    kind = {"may_repeat": metrics.recomputes(case.job, trace), "in_turn": any(any(plan.starts_ns) for plan in plans)}
    is_bounded = all(_is_bounded(task, plan, trace) for task, plan in zip(case.tasks, plans, strict=True))
    bound = case.bound(**kind) if is_bounded else None
    summary = {"policy": label, **metrics.summarise(case.job, case.hardware, trace, bound)}
    if not is_bounded:
        summary |= {"bound_ns": None, "bound_kind": UNBOUNDED, "gap_fraction": None}
    elif trace.status == "ok":
        summary[LEAST_PEAK] = case.least_peak_bytes(summary["step_ns"], **kind)
        summary |= _against_laps(case.tasks[0], plans[0], summary) if len(case.tasks) == 1 else {}
    summary |= {"notes": "; ".join(notes(case, plans)), "remarks": "; ".join(findings.remarks)}
    named = tuple(plan if plan.file else replace(plan, policy=label) for plan in plans)
    result = Result(case, label, summary, plans=named, trace=trace, remarks=findings.remarks)
    if trace.status == "ok":
        for task, plan, recorded in zip(case.tasks, plans, result.recordings, strict=True):
            if plan.fixed is None:
                referee.check_plan(task.graph, case.hardware, recorded, task.pinned, draws[task.ranks[0]])
    return result


def _is_bounded(task: Task, plan: Plan, trace: Trace) -> bool:
    """Whether the bounds hold of a plan: of a run that did not end, as of any; else if it keeps the program."""
    if trace.status != "ok":
        return True
    return metrics.keeps_program(task.graph, plan, task.problem.streams, trace, task.ranks[0])


def _against_laps(task: Task, plan: Plan, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Hold a plan that cannot know what late reads choose against what no such plan beats, over all its laps."""
    if not task.graph.has_late or plan.fixed is None or plan.repeats != task.graph.steps or plan.repeats == 1:
        return {}
    least = task.lap_bound
    if least.ns <= summary["bound_ns"]:
        return {}
    gap = summary["makespan_ns"] / (plan.repeats * least.ns) - 1
    return {"bound_ns": least.ns, "bound_kind": least.kind + OF_FIXED, "gap_fraction": gap}


def notes(case: Case, plans: Sequence[Plan]) -> list[str]:
    """What the plans of a row say of themselves, each note once, with whose it is where not all of them say so.

    Parameters
    ----------
    case, plans
        The graphs, and the plan of each.
    """
    who: dict[str, list[str]] = {}
    for task, plan in zip(case.tasks, plans, strict=True):
        for note in plan.notes:
            who.setdefault(note, []).append(task.said)
    return [note if len(said) == len(plans) else f"{'; '.join(said)}: {note}" for note, said in who.items()]
