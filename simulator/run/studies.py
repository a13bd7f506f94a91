"""The sweeps of `hosim scaling` and `hosim largest`.

*Scaling*: the same step at each point of a curve, from a few ranks to many or over a field. *Largest*: up to which
value of a field of the workload each row still fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import CapacityError, ConfigError, ScopeError, Shortfall
from simulator.policies.decide import Policy
from simulator.report.views import largest_view, scaling_view
from simulator.run.case import Case, Policies, execute, prepare
from simulator.run.row import plans_of, row_of, rows_of, silent
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import Largest, Scenario

_KEPT = 4
"""Workloads that are kept built: rows are tried with the same values first."""


def points_of(loaded: Loaded) -> Study:
    """Return the points of a scenario's ``scaling``, where nothing is expected and no largest value is searched.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.

    Raises
    ------
    ConfigError
        If the scenario lists no point.
    """
    scaling = loaded.scenario.scaling
    if not scaling:
        must, do = "a scenario that is scaled lists points", "add such as 'scaling: {parallel.data: [8, 16, 32]}'"
        raise ConfigError(loaded.place("scaling"), must, "none", do)
    axes = tuple(Axis(key, (f"workload.{key}",), loaded.place("scaling", key)) for key in scaling)
    return Study(loaded.asking_nothing(), measured, axes, list(zip(*scaling.values(), strict=True)))


def scaling(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Sweep:
    """Run a scenario at each point of its ``scaling``.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called when a point is measured.

    Returns
    -------
    Sweep
        One row per policy and point: the columns of `simulator.run`'s summary, the fields that are set, and

        ``ranks``
            Ranks of the job.
        ``tokens``, ``tokens_per_s``
            What all ranks train on, read or add in a step, and in a second; None of a graph from a file.
        ``efficiency``
            Tokens per second and rank, against those of the policy's first point that ran to its end. With as much
            for each rank everywhere (weak scaling) that is the step there over the step here.

    Raises
    ------
    ConfigError
        If a document is wrong. What fails at a point is a row.
    """
    loaded = catalog.resolve(scenario, set)
    study = points_of(loaded)
    labels = list(prepare(study.at(study.points[0])).rows(policies))
    study = replace(study, measure=partial(measured, policies=policies))
    found = sweep([study], workers, progress)  # a point that fails does so for all rows
    rows = [{**row, "policy": label} for label in labels for row in found if row.get("policy", label) == label]
    first: dict[str, float] = {}
    for row in rows:
        each = row.get("tokens_per_s") and row["tokens_per_s"] / row["ranks"]
        row["efficiency"] = each and each / first.setdefault(row["policy"], each)
    machine, asked, fields = loaded.hardware, loaded.scenario, [axis.name for axis in study.axes]
    budget = machine.tiers[machine.compute_tier].usable_bytes if asked.budget_bytes is None else asked.budget_bytes
    view = scaling_view(rows, fields, machine, budget, asked.title or asked.name)
    return Sweep("scaling", [loaded], rows, view)


def measured(loaded: Loaded, point: Point, policies: Policies | None = None) -> Rows:
    """Run all rows at a point, and count what they make of its tokens."""
    case, tokens = prepare(loaded), loaded.workload.tokens
    rows = [row.summary | {"ranks": case.job.ranks, "tokens": tokens} for row in rows_of(case, policies)]
    for row in rows:
        row["tokens_per_s"] = tokens * 10**9 / row["step_ns"] if tokens and row.get("step_ns") else None
    return rows


def largest(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    **asked: str | int | None,
) -> Sweep:
    """Search the largest value of a field of the workload with which each row still fits.

    Values are halved between one that fits and one that does not, so it is taken for granted that what fits also fits
    with less.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    progress
        Called when a value was tried.
    asked
        What is searched, how far, and in which multiples: ``field``, ``at_most``, ``multiple_of``, as in a scenario
        under ``largest``; default: as this one says.

    Returns
    -------
    Sweep
        One row per policy: the columns of `simulator.run`'s summary with the largest value, and

        ``largest_<field>``
            That value; None if the row fits with none of those that may be tried.
        ``bound_<field>``
            No plan of the row's kind fits with more; None if nothing is known to be in the way of what may be tried.
        ``tried``
            With how many values it was tried.
        ``next``
            The least value with which it was found not to fit; None if it fits with the largest one that may be tried.
        ``limit``, ``limit_at``, ``limit_demand_bytes``, ``limit_capacity_bytes``
            What is in the way of that: the tier and the moment, what must be there at once, and what there is room for.
            If the plan blocks itself, only ``limit`` says so.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing says what is searched, or the workload is not valid with a value.
    """
    loaded = catalog.resolve(scenario, set)
    return searched(loaded, catalog.question(loaded, asked), policies, progress)


def searched(loaded: Loaded, question: Largest, policies: Policies | None, progress: Progress | None) -> Sweep:
    """Answer a question about a scenario.

    Parameters
    ----------
    loaded, question
        The scenario, and what is searched.
    policies, progress
        As for `largest`.
    """
    axis = Axis(question.field, (f"workload.{question.field}",), loaded.place("largest", "field"))
    base = loaded.asking_nothing()
    built = lru_cache(_KEPT)(lambda value: prepare(catalog.at(base, {axis: value})))
    ends = [(question.values[-1],), (question.values[0],)]
    decide = built(question.values[-1]).rows(policies)
    studies = [
        Study(base, partial(_tried, built, *one), (axis,), ends, question.values, _differ, is_strict=True)
        for one in decide.items()
    ]
    rows = sweep(studies, progress=progress)
    found = [
        _answer([row for row in rows if row["policy"] == label], question, built, decide[label]) for label in decide
    ]
    title = loaded.scenario.title or loaded.scenario.name
    return Sweep("largest", [loaded], found, largest_view(found, question, loaded.hardware.compute_tier, title))


def _differ(fewer: Rows, more: Rows) -> bool:
    """Whether the boundary lies between two values."""
    return fewer[0]["status"] == "ok" and more[0]["status"] not in ("ok", "refused")


def _tried(built: Callable[[int], Case], label: str, decide: Policy, _: Loaded, point: Point) -> Rows:
    """Try whether a row fits with a value: what is in the way, if something is."""
    case, found = built(point[0]).of(label), {"policy": label}
    if case.choice(label).is_file:
        return [found | {"status": "refused", "notes": "a plan from a file is of one graph; name a policy"}]
    unfit: Shortfall | None = case.unfit(label)
    try:
        if unfit is not None:
            raise CapacityError(unfit)
        trace = execute(case, plans_of(case, label, decide, silent), allocator=case.choice(label).allocator)
    except CapacityError as error:
        short = error.report
        sizes = {"limit_demand_bytes": short.demand_bytes, "limit_capacity_bytes": short.capacity_bytes}
        return [found | {"status": "infeasible", "limit": short.tier, "limit_at": short.at, **sizes}]
    except ScopeError as error:
        return [found | {"status": "refused", "notes": error.reason}]
    return [found | {"status": trace.status} | ({} if trace.status == "ok" else {"limit": trace.status})]


def _answer(rows: Rows, question: Largest, built: Callable[[int], Case], decide: Policy) -> Row:
    """Sum up the search for one row."""
    label, column, values = rows[0]["policy"], question.column, question.values
    if refused := [row for row in rows if row["status"] == "refused"]:
        return {"policy": label, column: None, "status": "refused", "notes": refused[0]["notes"]}
    fits = max((row[question.field] for row in rows if row["status"] == "ok"), default=None)
    limit = min((row for row in rows if row["status"] != "ok"), key=lambda row: int(row[question.field]), default=None)
    ran: Row = {"policy": label, "status": "infeasible"}
    if fits is not None:
        ran = row_of(built(fits), label, decide, silent).summary
    found = {**ran, column: fits, question.bound: None, "tried": len(rows)}
    if limit is None:
        return found

    def is_unfit(value: int) -> bool:
        case = built(value).of(label)
        return case.unfit(label) is not None

    first = bisect_left(values, True, values.index(limit[question.field]), key=is_unfit)
    found[question.bound] = values[first - 1] if 0 < first < len(values) else None
    lacks = {key: value for key, value in limit.items() if key.startswith("limit")}
    return found | {"next": limit[question.field], **lacks}
