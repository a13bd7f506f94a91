"""The study of `hosim limits`: which figures of the machine a step depends on, and how much."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from simulator import catalog
from simulator.catalog import Axis, Loaded, Named
from simulator.catalog.settings import amounts
from simulator.hardware import without_effect
from simulator.report.answers import limits_view
from simulator.run.case import Policies
from simulator.run.grid import Cells
from simulator.run.sweep import Progress, Study, Sweep, sweep

MORE = 1.1
"""Each figure is tried with 10 % more: enough for a policy's decisions to change, as they would on such a machine."""


def limits(
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run a scenario with 10 % more of each figure of its machine, one at a time, and compare the steps.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one.
    set, policies
        As in `simulator.run`.
    workers
        Processes; default: one for each core. The result does not depend on it.
    progress
        Called after each figure that is tried.

    Returns
    -------
    Sweep
        One row per policy and figure that changes its step, the strongest first: ``policy``, ``figure`` (field path),
        ``value``, ``origin`` (``cited``, ``assumed``, ``fitted`` or ``mine``), ``step_ns`` with 10 % more, and
        ``elasticity``: the relative change of the step over that of the figure.

    Raises
    ------
    ConfigError
        If a document is wrong.
    """
    loaded = catalog.resolve(scenario, set).without_questions()
    workers = workers or os.cpu_count() or 1
    return limits_at(loaded, [(loaded, policies)], workers, progress, loaded.scenario.heading)


def limits_at(
    loaded: Loaded,
    places: Sequence[tuple[Loaded, Policies | None]],
    workers: int,
    progress: Progress | None,
    title: str,
) -> Sweep:
    """Find the figures of a machine on which the steps of rows depend.

    Parameters
    ----------
    loaded
        The documents, which hold the origins of the figures.
    places
        Documents, each with the rows that run there; no row occurs twice.
    workers, progress
        As for `limits`.
    title
        Title of the table.
    """
    studies, tried = list[Study](), dict[str, None]()
    for place, policies in places:
        measure, values = Cells(policies, with_bounds=False), amounts(place.stated)
        studies.append(Study(place, measure, about={"figure": None}, is_strict=True))
        for path, value in values.items():
            axis, about = Axis(path, (path,), "limits", "x"), {"figure": path, "value": value}
            studies.append(Study(place, measure, (axis,), [(MORE,)], about=about, probes=()))
        tried |= dict.fromkeys(values)
    measured, rows = sweep(studies, workers, progress), list[dict[str, Any]]()
    nominal = {row["policy"]: row for row in measured if row["figure"] is None}
    failed = {row["figure"]: row["notes"] for row in measured if "policy" not in row}
    tried = {path: None for path in tried if path not in failed}
    usual = {policy: row["step_ns"] for policy, row in nominal.items() if row["status"] == "ok"}
    for row in measured:
        before_ns = usual.get(row.get("policy"))
        if before_ns and row["status"] == "ok" and row["step_ns"] != before_ns:
            about = {key: row[key] for key in ("policy", "figure", "value", "step_ns")}
            share = (row["step_ns"] / before_ns - 1) / (MORE - 1)
            rows.append(about | {"origin": loaded.stated.origin_of(row["figure"]), "elasticity": share})
    rows.sort(key=lambda row: ([*usual].index(row["policy"]), -abs(row["elasticity"])))
    depended, machine = {row["figure"] for row in rows}, places[0][0]
    idle = [path for path in tried if path not in depended]
    capped = without_effect(machine.hardware, machine.scenario.budget_bytes, idle) if usual else []
    unfit = [
        f"{policy} is {row['status']}: {row.get('notes') or 'memory is short at ' + str(row.get('short_at'))}."
        for policy, row in nominal.items()
        if row["status"] != "ok"
    ]
    unfit += [f"{path} is not tried with 10 % more: {why}." for path, why in failed.items()]
    view = limits_view(rows, usual, len(tried), [*unfit, *capped], title)
    statuses = {policy: row["status"] for policy, row in nominal.items()}
    return Sweep("limits", [loaded], rows, view, more={"statuses": statuses, "steps_ns": usual, "tried": [*tried]})
