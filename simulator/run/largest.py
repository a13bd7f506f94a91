"""The sweep of `hosim largest`: up to which value of a field of the workload each row still fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import CapacityError, ScopeError, Shortfall
from simulator.policies.decide import Policy
from simulator.report.views import largest_view
from simulator.run.case import Case, Policies, execute, prepare
from simulator.run.row import plans_of, row_of, silent
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import Largest, Scenario

_KEPT = 4
"""Workloads that are kept built: rows are tried with the same values first."""
_ONE_GRAPH = "a plan from a file is of one graph; name a policy"


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
        Study(base, partial(_tried, built, *one), (axis,), ends, question.values, _differ, {"policy": one[0]},
              is_strict=True)
        for one in decide.items()
    ]  # fmt: skip
    rows = sweep(studies, progress=progress)
    found = [
        _answer([row for row in rows if row["policy"] == label], question, built, decide[label]) for label in decide
    ]
    title = loaded.scenario.title or loaded.scenario.name
    return Sweep("largest", [loaded], found, largest_view(found, question, loaded.hardware.compute_tier, title))


def _differ(fewer: Rows, more: Rows) -> bool:
    """Whether the boundary lies between two values."""
    return not fewer[0].keys() & {"limit", "notes"} and "limit" in more[0]


def _tried(built: Callable[[int], Case], label: str, decide: Policy, _: Loaded, point: Point) -> Rows:
    """Try whether a row fits with a value: what is in the way, if something is."""
    case = built(point[0]).of(label)
    if case.choice(label).is_file:
        return [{"status": "refused", "notes": _ONE_GRAPH}]
    if unfit := case.unfit(label):
        return [_lacking(unfit) | {"is_proved": True}]
    try:
        trace = execute(case, plans_of(case, label, decide, silent), allocator=case.choice(label).allocator)
    except CapacityError as error:
        return [_lacking(error.report)]
    except ScopeError as error:
        return [{"status": "refused", "notes": error.reason}]
    return [{"status": "ok"} if trace.status == "ok" else {"limit": trace.status}]


def _lacking(short: Shortfall) -> Row:
    sizes = {"limit_demand_bytes": short.demand_bytes, "limit_capacity_bytes": short.capacity_bytes}
    return {"limit": short.tier, "limit_at": short.at, **sizes}


def _answer(rows: Rows, question: Largest, built: Callable[[int], Case], decide: Policy) -> Row:
    """Sum up the search for one row."""
    label, column = rows[0]["policy"], question.column
    if refused := [row for row in rows if row.get("status") == "refused"]:
        return {"policy": label, column: None} | {key: refused[0][key] for key in ("status", "notes")}
    fits = max((row[question.field] for row in rows if "limit" not in row), default=None)
    limit = min((row for row in rows if "limit" in row), key=lambda row: int(row[question.field]), default=None)
    ran: Row = {"policy": label, "status": "infeasible"}
    if fits is not None:
        ran = row_of(built(fits), label, decide, silent).summary
    found = {**ran, column: fits, question.bound: None, "tried": len(rows)}
    if limit is None:
        return found
    told = {key: value for key, value in limit.items() if key.startswith("limit")}
    if not limit.get("is_proved"):

        def is_unfit(value: int) -> bool:
            case = built(value).of(label)
            return case.unfit(label) is not None

        values = question.values
        first = bisect_left(values, True, values.index(limit[question.field]), key=is_unfit)
        found[question.bound] = values[first - 1] if first < len(values) else None
    else:
        found[question.bound] = fits
    return found | {"next": limit[question.field], **told}
