"""One row: its policy decides, the referee checks, the engine replays, the referee checks again, and metrics count.

`rows_of` runs the rows of a case, and `row_of` one of them: it asks the policy for plans, which `checked` replays
between the two checks of the referee; `replayed` counts the trace and compares the row with its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import itemgetter
from time import monotonic
from typing import Any, NamedTuple, cast

from simulator import catalog, metrics, referee
from simulator.catalog import Axis
from simulator.errors import CapacityError, ConfigError, InvariantError, PlanError, Shortfall
from simulator.metrics.rows import OF_FIXED, UNBOUNDED, by_place, by_step
from simulator.plan import Code, Plan, View
from simulator.policies import POLICIES
from simulator.policies.decide import Policy
from simulator.processes import forked
from simulator.run.advice import advised
from simulator.run.case import Case, Policies, execute, prepare
from simulator.run.results import Result
from simulator.run.sweep import Progress, silent
from simulator.run.task import Task
from simulator.trace import Trace
from simulator.units import listed

_Ran = tuple[Trace, referee.Findings, metrics.RankRun | None]
"""What `checked` returns."""


def rows_of(
    case: Case,
    policies: Policies | None = None,
    progress: Progress = silent,
    each: Callable[[Result], dict[str, Any]] | None = None,
    *,
    advice: bool = True,
    in_forks: bool = False,
) -> list[Result]:
    """Run rows, and compute how much slower each is than the fastest one, and than compute alone.

    Parameters
    ----------
    case, policies, progress, each, in_forks
        As for `simulator.run.run_case`.
    advice
        Whether to look for levers where a row does not fit.
    """
    rows = case.rows(policies)
    if in_forks:
        results = _rows_in_forks(case, rows, progress, each, advice=advice)
    else:
        results = [row_of(case, label, decide, progress, advice=advice) for label, decide in rows.items()]
    relate(results)
    return results


def relate(rows: Sequence[Result]) -> None:
    """Add to rows how many times as long each takes as the fastest of them, and as its computes."""
    best = next((row.summary["step_ns"] for row in by_step(rows)), 0)
    for row in rows:
        if row.is_ok and best:
            row.summary["slowdown_vs_fastest"] = row.summary["step_ns"] / best
            compute_ns = row.case.compute_ns
            row.summary["slowdown_vs_compute"] = row.summary["step_ns"] / compute_ns if compute_ns else None


def unmoved_row(case: Case) -> dict[str, Any]:
    """Return the figures of a case with all data in the compute tier, whatever room that takes, so that nothing moves.

    It has the stalls that a job has without offloading: for collectives, peers, other streams, and a host.
    """
    capacity = f"tiers.{case.hardware.compute_tier}.capacity"
    changes: dict[str, Any] = {"homes": {}, "budget_bytes": None, "policies": (), "expect": ()}
    loaded = replace(case.loaded, scenario=case.loaded.scenario.model_copy(update=changes))
    roomy = prepare(catalog.at(loaded, {Axis(capacity, (capacity,), "unmoved"): "inf"}), case.job, with_bounds=False)
    return rows_of(roomy, ["resident"], advice=False)[0].summary


def _rows_in_forks(
    case: Case, rows: Mapping[str, Policy], progress: Progress, each: Callable[[Result], Any] | None, *, advice: bool
) -> list[Result]:
    """Run each row in a fork."""
    for label in rows:  # rows share bounds: computed here, no fork has to compute them itself
        on_machine = case.for_row(label)
        if not on_machine.unfit(label) and on_machine.with_bounds:
            on_machine.bound(may_repeat=on_machine.may_repeat(label), in_turn=False)

    def sent_back(label: str, decide: Policy, tell: Progress) -> _Sent:
        row = row_of(case, label, decide, tell, advice=advice)
        way = next(i for i, way in enumerate(case.ways(label)) if way is row.case)
        return _Sent.of(row, way, None if each is None else each(row))

    with closing(forked([partial(sent_back, *row) for row in rows.items()], progress)) as ended:
        sent = dict(ended)
    return [sent[position].row(case, label) for position, label in enumerate(rows)]


class _Sent(NamedTuple):
    """What a fork sends back of a row: all but its case, which is here, and the tables of its trace."""

    way: int
    summary: dict[str, Any]
    shortfall: Shortfall | None
    remarks: tuple[str, ...]
    tries: int
    seconds: float
    plans: tuple[Plan, ...]
    trace: Trace | None
    section: dict[str, Any] | None
    waits_by_place: list[dict[str, str | int]]

    @classmethod
    def of(cls, row: Result, way: int, section: dict[str, Any] | None) -> _Sent:
        plans = tuple(plan if plan.fixed is not None else replace(plan, actions=_refuse) for plan in row.plans)
        trace = row.trace and Trace(row.trace.status, blocked=row.trace.blocked, stands_in=row.trace.stands_in)
        counts = row.summary, row.shortfall, row.remarks, row.tries, row.seconds
        return cls(way, *counts, plans, trace, section, by_place(row))

    def row(self, case: Case, label: str) -> Result:
        """Return the row of a case."""
        more = self._asdict()
        return Result.of(case.ways(label)[more.pop("way")], label, **more)


def _refuse(view: View) -> Iterator[Code]:
    """Refuse to decide: the function of a reactive plan stays in the fork that ran it."""
    raise InvariantError("a reactive plan", "a plan decides in the process that runs it", "another", "run it again")


def row_of(case: Case, label: str, decide: Policy, progress: Progress, *, advice: bool = True) -> Result:
    """Run one row; plan nothing if no plan of its kind can fit.

    If the policy finds no plan that fits for several graphs, the row reports the one that lacks most room. If a plan is
    wrong, or a law is broken, the row is ``failed`` and says so.

    Parameters
    ----------
    case, label, decide
        What runs, the name of the row, and its policy.
    progress
        Called now and then.
    advice
        Whether to look for levers if the row does not fit.
    """
    begun_s, rows = monotonic(), list[Result]()
    entry = POLICIES.get(case.choice(label).policy)  # which compares all ways, or takes the first that fits
    for way in case.ways(label):
        if not rows or not rows[0].is_ok or (entry and entry.chooses):
            rows.append(_row_of(way, label, decide, progress))
            rows.sort(key=lambda row: (not row.is_ok, row.summary.get("step_ns", 0)))
    if case.others and rows[0].is_ok:
        _tell_choice(case, rows)
    shortfall = rows[0].shortfall
    if advice and shortfall is not None:
        tell = partial(progress, f"{label}, how much room is enough")
        shortfall = advised(rows[0].case, label, decide, shortfall, tell)
    return replace(rows[0], shortfall=shortfall, seconds=monotonic() - begun_s)


def _tell_choice(case: Case, rows: Sequence[Result]) -> None:
    """Say in the first of these rows which sides it has, and bound it as the least bounded of all that ran."""
    best, sides = rows[0].summary, rows[0].case.loaded.workload.settled[0].on
    ran = [f"{part} on the {getattr(sides, part)}" for part, side in case.loaded.workload.on if side == "any"]
    best["notes"] = "; ".join(filter(None, [f"runs {listed(ran)}", best["notes"]]))
    bounded = [row.summary for row in rows if row.is_ok and row.summary.get("bound_ns")]
    if best.get("bound_ns"):
        least = min(bounded, key=itemgetter("bound_ns"))
        gap = best["step_ns"] / least["bound_ns"] - 1
        best |= {"bound_ns": least["bound_ns"], "bounded_by": least["bounded_by"], "gap_fraction": gap}


def _row_of(case: Case, label: str, decide: Policy, progress: Progress) -> Result:
    plans, errors = list[Plan](), list[CapacityError]()
    try:
        if unfit := case.unfit(label):
            raise CapacityError(unfit)
        progress(label, 0, 0)
        case.trials.begin(lambda tries: progress(f"{label}, plan {tries:,} is tried", 0, 0))
        for task in case.tasks:
            try:
                plans.append(decide(task.problem))
            except CapacityError as error:
                errors.append(error)
        if errors:
            raise max(errors, key=lambda error: error.report.short_bytes)
        for plan in plans:
            if not isinstance(plan, Plan):
                rule, do = "a policy returns a Plan", "return the plan of `Writer` or your own"
                raise ConfigError(f"policy {label!r}", rule, repr(plan), do)
        return replayed(case, label, plans, partial(progress, label))
    except CapacityError as error:
        short = error.report
        summary = {"policy": label, "status": error.status, "short_bytes": short.short_bytes, "short_at": short.at}
        return Result.of(case, label, summary, shortfall=short)
    except (ConfigError, PlanError, InvariantError) as error:  # other rows are sound
        if error.status == "failed" and isinstance(error, ConfigError) and not case.choice(label).is_file:
            raise  # what people wrote in Python, or in the document, is to be mended before anything is told
        return Result.of(case, label, {"policy": label, "status": error.status, "notes": error.reason})


def checked(case: Case, label: str, plans: Sequence[Plan], progress: Callable[[int, int], None] | None = None) -> _Ran:
    """Replay the plans of a case between the two checks of the referee.

    Parameters
    ----------
    case, label, plans, progress
        As for `replayed`.

    Returns
    -------
    tuple
        The trace, the referee's remarks that are no breach, and the run from which the row of one rank is counted.

    Raises
    ------
    PlanError, CapacityError
        As for `replayed`.
    """
    allocator, job = case.choice(label).allocator, case.job
    decided = [allocator, *(replace(plan, policy="", notes=()) for plan in plans)]
    if case.ran[:1] == [decided]:
        return cast(_Ran, case.ran[1])
    by_rank = [
        referee.RankPlan(plans[i], task.draws(rank), allocator, task.pinned, task.delays_ns(rank))
        for rank, i, task in ((rank, i, case.tasks[i]) for rank, i in enumerate(job.graph_of))
    ]
    for task, plan in zip(case.tasks, plans, strict=True):
        referee.check_plan(task.graph, case.hardware, plan, task.pinned, by_rank[task.ranks[0]].draws)
    referee.check_order(job, [of_rank.plan for of_rank in by_rank])
    switches = case.loaded.scenario.switches
    trace = execute(case, plans, progress, allocator)
    findings = referee.check_trace(job, case.hardware, by_rank, trace, case.rooms, switches)
    ran = trace, findings, metrics.RankRun.of(case.graph, case.hardware, trace) if job.ranks == 1 else None
    case.ran[:] = (decided, ran) if job.ranks > 1 and all(plan.fixed is not None for plan in plans) else ()
    return ran


def replayed(
    case: Case, label: str, plans: Sequence[Plan], progress: Callable[[int, int], None] | None = None
) -> Result:
    """Replay the plans of a case between the two checks of the referee, count, and compare with the bounds.

    Parameters
    ----------
    case, label, plans
        What runs, the name of the row, and the plan of each graph of the job; checked plans get the name of the
        row.
    progress
        Called now and then.

    Raises
    ------
    PlanError
        If a plan is wrong.
    CapacityError
        If the homes alone do not fit.
    InvariantError
        If a law is broken, including that of the bound.
    """
    trace, findings, ran = checked(case, label, plans, progress)
    kind = {"may_repeat": metrics.repeats(case.job, trace), "in_turn": any(any(plan.starts_ns) for plan in plans)}
    keeps = not case.with_bounds or trace.status != "ok" or _keep_program(case, plans, trace, ran)
    bound = case.bound(**kind) if keeps and case.with_bounds else None
    counts = metrics.summarise(case.job, case.hardware, trace, bound, ran)
    summary = {"policy": label, **counts}
    summary |= metrics.derived(case.hardware, counts, case.job.ranks, **case.loaded.handled)
    if not keeps:
        summary |= {"bound_ns": None, "bounded_by": UNBOUNDED, "gap_fraction": None}
    elif bound is not None and trace.status == "ok":
        summary["least_peak_bytes"] = case.least_peak_bytes(summary["step_ns"], **kind)
        summary |= _against_laps(case.tasks[0], plans[0], summary) if len(case.tasks) == 1 else {}
        if summary["gap_fraction"] is not None and summary["gap_fraction"] < 0:
            step, limit = (f"{summary[name]:,} ns" for name in ("step_ns", "bound_ns"))
            found = f"a step of {step}, bounded by {limit} ({summary['bounded_by']})"
            raise InvariantError(label, "no step is shorter than its bound", found, "report this: it is a bug of hosim")
    if trace.status == "ok":
        rank = counts.get("slowest_rank") or 0
        graph, task = case.job.graph(rank), case.tasks[case.job.graph_of[rank]]
        delays, pinned = any(of_ranks.delays for of_ranks in case.job.graphs), case.loaded.copies_pinned
        took_ns, links = task.problem.durations_ns, case.hardware.links
        pacer = metrics.pace_of(graph, took_ns, links, counts, pinned=pinned, delays=delays)
        summary |= metrics.real_figures(counts, pacer, catalog.measured_ratios())
        summary |= {} if case.order_bound_ns is None else {"order_bound_ns": case.order_bound_ns}
        if any(of_ranks.dynamic_reads for of_ranks in case.job.graphs):
            draws = [case.tasks[i].draws(rank) for rank, i in enumerate(case.job.graph_of)]
            summary["chosen_hit_fraction"] = metrics.hit_fraction(case.job, case.hardware, trace, draws)
    reasons = trace.blocked[:1] or notes(case, plans)
    summary |= {"notes": "; ".join(reasons), "remarks": "; ".join(findings.remarks)}
    named = tuple(plan if plan.file else replace(plan, policy=label) for plan in plans)
    about = {"remarks": findings.remarks, "tries": case.trials.begun}
    return Result.of(case, label, summary, plans=named, trace=trace, **about)


def _keep_program(case: Case, plans: Sequence[Plan], trace: Trace, ran: metrics.RankRun | None) -> bool:
    """Return whether all ranks ran their ops in program order, as the bounds assume."""
    for task, plan in zip(case.tasks, plans, strict=True):
        codes = trace.issued[task.ranks[0]].whole()
        starts = ran.starts if ran else metrics.step_starts(task.graph, plan.home, case.hardware, codes)
        if not metrics.keeps_program(task.graph, plan, task.problem.streams, codes, starts):
            return False
    return True


def _against_laps(task: Task, plan: Plan, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a plan that repeats, which cannot know what dynamic reads choose, with the bound on its mean lap."""
    if not task.graph.dynamic_reads or plan.fixed is None or plan.repeats != task.graph.steps or plan.repeats == 1:
        return {}
    least = task.lap_bound
    if least.ns <= summary["bound_ns"]:
        return {}
    gap = summary["makespan_ns"] / (plan.repeats * least.ns) - 1
    return {"bound_ns": least.ns, "bounded_by": least.kind + OF_FIXED, "gap_fraction": gap}


def notes(case: Case, plans: Sequence[Plan]) -> list[str]:
    """List the notes of a row's plans, each once, and naming its graphs unless all plans have it.

    Parameters
    ----------
    case, plans
        The graphs, and the plan of each.
    """
    by_note: dict[str, list[str]] = {}
    for task, plan in zip(case.tasks, plans, strict=True):
        for note in plan.notes:
            by_note.setdefault(note, []).append(task.label)
    return [note if len(who) == len(plans) else f"{'; '.join(who)}: {note}" for note, who in by_note.items()]
