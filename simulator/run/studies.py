"""The sweeps of `hosim scaling`, `hosim largest` and `hosim least`.

*Scaling*: the same step at each point of a curve, from a few ranks to many or over a field. *Largest* and *least*: up
to which value of a field of the workload, or down to which value of one of the machine, each row still fits, and what
its step is there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import ConfigError, insist
from simulator.policies import POLICIES
from simulator.policies.decide import Policy
from simulator.report.views import largest_view, scaling_view
from simulator.run.case import Policies, prepare
from simulator.run.grid import Cells
from simulator.run.row import row_of, silent
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import COMPUTE, Largest, Least, Scenario
from simulator.scenario.claim import WORKLOAD
from simulator.units import nearest

Given = Mapping[str, Any]
_NONE: Given = {}
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
    return Study(loaded.asking_nothing(), Cells(), axes, list(zip(*scaling.values(), strict=True)))


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
        ``tokens``
            What all ranks train on, read or add in a step; None of a graph from a file that does not say.
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
    study = replace(study, measure=Cells(policies))
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


def largest(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    kind: type[Largest] = Largest,
    **asked: str | int | Sequence[str] | None,
) -> Sweep:
    """Search the largest value of a field of the workload with which each row still fits.

    Values are halved between one that fits and one that does not, so it is taken for granted that what fits also fits
    with less. Where a value that was tried shows that it does not, that is told.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    progress
        Called when a value was tried.
    kind
        The question; see `least`.
    asked
        What is searched, how far, in which multiples, and how slow a step may be: ``field``, ``at_most``, ``at_least``,
        ``multiple_of``, ``over``, ``slowdown``, as in a scenario under ``largest``; default: as this one says.

    Returns
    -------
    Sweep
        One row per policy and slowdown: the columns of `simulator.run`'s summary with the largest value, and

        ``within``
            How many times as long as that of the row ``over`` a step may be; ``inf`` if it may be any.
        ``largest_<field>``
            That value; None if the row fits with none of those that may be tried.
        ``slowdown``
            How many times as long a step is with it.
        ``bound_<field>``
            No plan of the row's kind fits with more; None if nothing is known to be in the way of what may be tried, or
            if a step may not be any.
        ``tried``
            With how many values it was tried.
        ``next``, ``next_slowdown``
            The least value beyond with which it was found not to fit, and how slow it is if it only is too slow; None
            if it fits with the largest one that may be tried.
        ``holes``
            Values before that with which it was found not to fit.
        ``limit``, ``limit_at``, ``limit_demand_bytes``, ``limit_capacity_bytes``
            What is in the way of that: the tier and the moment, what must be there at once, and what there is room for.
            If the plan blocks itself, only ``limit`` says so.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing says what is searched, or the workload is not valid with a value.
    """
    loaded = catalog.resolve(scenario, set)
    return searched(loaded, catalog.question(loaded, kind, asked), policies, progress, asked)


def least(scenario: str | Path | Scenario, **asked: Any) -> Sweep:
    """Search the least capacity of a tier with which each row still fits.

    What rows set for themselves of it does not count.

    Parameters
    ----------
    scenario, asked
        As for `largest`, ``set``, ``policies`` and ``progress`` among it; in a scenario the question stands under
        ``least``.

    Returns
    -------
    Sweep
        As of `largest`, with ``least_<field>`` in place of ``largest_<field>``, and less in place of more.

    Raises
    ------
    ConfigError
        As for `largest`.
    """
    return largest(scenario, kind=Least, **asked)


def searched(
    loaded: Loaded, question: Largest, policies: Policies | None, progress: Progress | None, given: Given = _NONE
) -> Sweep:
    """Answer a question about a scenario.

    Parameters
    ----------
    loaded, question
        The scenario, and what is searched.
    policies, progress
        As for `largest`.
    given
        What of the question is not the scenario's: a message about it names the option.

    Raises
    ------
    ConfigError
        If the question names no field, or no row.
    """
    where = partial(catalog.asked_at, loaded, question.direction, given)
    known = tuple(dict.fromkeys([*(row.row for row in loaded.scenario.policies), COMPUTE, *POLICIES]))
    must, do = "steps are held against those of a row, or against compute", nearest(question.over, known)
    insist(question.over in known, where("over"), must, repr(question.over), do)
    search, values = _Search(loaded.asking_nothing(), question, where("field")), question.values
    rows = search.built(values[-1]).rows(policies)
    about = (search.axis,), [(values[-1],), (values[0],)], values, search.differ
    studies = [Study(search.base, partial(search.tried, *one), *about, is_strict=True) for one in rows.items()]
    tried = sweep(studies, progress=progress)
    own = {label: [row for row in tried if row["policy"] == label] for label in rows}
    found = [search.answer(own[label], limit) for label in rows for limit in question.limits]
    view = largest_view(found, question, loaded.hardware.compute_tier, loaded.scenario.title or loaded.scenario.name)
    return Sweep(question.direction, [loaded], found, view)


class _Search:
    """Tries rows with values of a field."""

    def __init__(self, loaded: Loaded, question: Largest, where: str) -> None:
        path, rows = question.field if question.sign < 0 else WORKLOAD + question.field, loaded.scenario.policies
        kept = [{key: one.set_[key] for key in one.set_ if not _overlap(path, key)} for one in rows]
        free = tuple(one.model_copy(update={"set_": own}) for one, own in zip(rows, kept, strict=True))
        self.base = replace(loaded, scenario=loaded.scenario.model_copy(update={"policies": free}))
        self.axis = Axis(question.field, (path,), where, question.unit)
        self.built = lru_cache(_KEPT)(lambda value: prepare(catalog.at(self.base, {self.axis: value})))
        self.question, self.pace_ns = question, cache(self._pace_ns)

    def _pace_ns(self, value: int) -> int | None:
        """Step that others are held against [ns]; None if it does not run."""
        case, over = self.built(value), self.question.over
        return case.compute_ns if over == COMPUTE else self._run(over, case.rows([over])[over], value).get("step_ns")

    def differ(self, fewer: Rows, more: Rows) -> bool:
        """Whether a boundary lies between two values."""
        return any(_met(fewer[0], limit) != _met(more[0], limit) for limit in self.question.limits)

    def tried(self, label: str, decide: Policy, _: Loaded, point: Point) -> Rows:
        """Try whether a row fits with a value, and how slow it is: what is in the way, if something is."""
        found = self._run(label, decide, point[0])
        beside = point[0] if self.question.sign > 0 else self.question.values[-1]
        pace_ns = self.pace_ns(beside) if found["status"] == "ok" else None
        return [found | {"slowdown": pace_ns and found["step_ns"] / pace_ns}]

    def _run(self, label: str, decide: Policy, value: int) -> Row:
        case = self.built(value)
        if case.choice(label).is_file:
            why = "a plan from a file is of one graph; name a policy"
            return {"policy": label, "status": "refused", "notes": why}
        ran = row_of(case, label, decide, silent, advice=False)
        if short := ran.shortfall:
            sizes = {"limit_demand_bytes": short.demand_bytes, "limit_capacity_bytes": short.capacity_bytes}
            return ran.summary | {"limit": short.tier, "limit_at": short.at, **sizes}
        return ran.summary if ran.is_ok else ran.summary | {"limit": ran.status}

    def answer(self, rows: Rows, within: float) -> Row:
        """Sum up the search for one row, and steps of some length."""
        question, label = self.question, rows[0]["policy"]
        rows = sorted(rows, key=lambda row: question.sign * row[question.field])  # the hardest to fit is the last
        last = max((at for at, row in enumerate(rows) if _met(row, within)), default=-1)
        ran = {**rows[last], question.column: rows[last][question.field]} if last >= 0 else {"status": "infeasible"}
        found = {"policy": label, question.column: None, **ran, "within": within}
        if refused := [row for row in rows if row["status"] == "refused"]:
            return found | {"status": "refused", "notes": refused[0]["notes"]}
        holes = [row[question.field] for row in rows[: last + 1] if not _met(row, within)]
        found |= {f"bound_{question.field}": None, "tried": len(rows), "holes": holes}
        if last + 1 == len(rows):
            return found
        limit, order = rows[last + 1], question.values[:: question.sign]
        lacks = {key: value for key, value in limit.items() if key.startswith("limit")} or {"limit": "step"}
        if within == math.inf:
            start = order.index(limit[question.field])
            first = bisect_left(order, True, start, key=lambda at: self.built(at).of(label).unfit(label) is not None)
            found[f"bound_{question.field}"] = order[first - 1] if 0 < first < len(order) else None
        return found | {"next": limit[question.field], "next_slowdown": limit["slowdown"], **lacks}


def _overlap(path: str, other: str) -> bool:
    """Whether one of two paths, whose parts may be patterns, names what the other does."""
    return fnmatchcase(path, other) or fnmatchcase(other, path)


def _met(row: Row, within: float) -> bool:
    """Whether a row fits, and its step is short enough."""
    return row["status"] == "ok" and (within == math.inf or (row["slowdown"] or math.inf) <= within)
