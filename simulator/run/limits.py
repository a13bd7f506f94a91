"""`hosim limits`: on which figures of the machine a step hangs, and how much."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator import catalog, metrics
from simulator.catalog import Axis, Loaded
from simulator.catalog.settings import fields
from simulator.hardware import without_effect
from simulator.report.limits_view import limits_view
from simulator.run.case import Policies
from simulator.run.grid import COUNTED, Cells
from simulator.run.sweep import Progress, Study, Sweep, sweep
from simulator.scenario import Scenario
from simulator.units import parse, unit_of

MORE = 1.1
"""A figure is tried with 10 % more: enough that what a plan decides may change, as it would on such a machine."""


def limits(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run a scenario with 10 % more of each figure of its machine, one at a time, and say what that does to the steps.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    workers
        Processes; default: one for each core. The result does not depend on it.
    progress
        Called when a figure was tried.

    Returns
    -------
    Sweep
        One row per policy and figure that changes its step, the strongest first: ``policy``, ``figure`` (field path),
        ``value``, ``origin`` (``cited``, ``assumed``, ``fitted`` or ``mine``), ``step_ns`` with 10 % more of it, and
        ``elasticity``: the change of the step, as a share, over that of the figure.

    Raises
    ------
    ConfigError
        If a document is wrong.
    """
    loaded = catalog.resolve(scenario, set).asking_nothing()
    title = loaded.scenario.title or loaded.scenario.name
    return limits_at(loaded, [(loaded, policies)], workers or os.cpu_count() or 1, progress, title)


def limits_at(
    loaded: Loaded,
    places: Sequence[tuple[Loaded, Policies | None]],
    workers: int,
    progress: Progress | None,
    title: str,
) -> Sweep:
    """Say what limits rows, each on a machine of its own.

    Parameters
    ----------
    loaded
        The documents, which say where figures come from.
    places
        Machines, and the rows that run there; no row runs on two.
    workers, progress
        As for `limits`.
    title
        What was tried.
    """
    columns, paths, studies = metrics.columns(loaded.hardware, COUNTED), list[dict[str, Any]](), list[Study]()
    for number, (place, policies) in enumerate(places):
        measure, at = Cells(policies, columns), {"place": number}
        axes = [Axis(path, (path,), "limits", "x") for path in figures_of(place)]
        paths.append(figures_of(place))
        studies.append(Study(place, measure, about=at, is_strict=True))
        studies += (Study(place, measure, (axis,), [(MORE,)], about=at, probes=()) for axis in axes)
    found = sweep(studies, workers, progress)
    first = [row for row in found if not row.keys() & paths[row["place"]].keys()]
    usual = {row["policy"]: row["step_ns"] for row in first if row["status"] == "ok"}
    rows = []
    for row in found:
        path = next(iter(row.keys() & paths[row["place"]].keys()), None)
        before_ns = usual.get(row.get("policy"))
        if path is not None and before_ns and row["status"] == "ok" and row["step_ns"] != before_ns:
            value, share = paths[row["place"]][path], (row["step_ns"] / before_ns - 1) / (MORE - 1)
            about = {"policy": row["policy"], "figure": path, "value": value, "step_ns": row["step_ns"]}
            rows.append(about | {"origin": loaded.hardware.origin_of(path), "elasticity": share})
    rows.sort(key=lambda row: ([*usual].index(row["policy"]), -abs(row["elasticity"])))
    statuses, hanging = {row["policy"]: row["status"] for row in first}, {row["figure"] for row in rows}
    tried = list(dict.fromkeys(path for own in paths for path in own))
    idle, (machine, _) = [path for path in tried if path not in hanging], places[0]
    capped = without_effect(machine.hardware, machine.scenario.budget_bytes, idle) if usual else []
    why = {row["policy"]: row.get("notes") or f"it lacks room at {row.get('short_at')}" for row in first}
    unfit = [f"{name} is {status}: {why[name]}." for name, status in statuses.items() if status != "ok"]
    view = limits_view(rows, usual, len(tried), [*unfit, *capped], title)
    return Sweep("limits", [loaded], rows, view, more={"statuses": statuses, "steps_ns": usual, "tried": tried})


def figures_of(loaded: Loaded) -> dict[str, Any]:
    """Field paths of what the machine states as amounts or shares (no counts), that is neither 0 nor without end."""
    found = {}
    for path in loaded.hardware.figures():
        ((_, value),) = fields(loaded.hardware, path)
        unit = unit_of(value)
        amount = parse(value, unit) if unit else value
        if (unit or isinstance(value, float)) and isinstance(amount, int | float) and 0 < amount < math.inf:
            found[path] = value
    return found
