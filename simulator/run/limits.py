"""`hosim limits`: on which figures of the machine a step hangs, and how much."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
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
    measure = Cells(policies, metrics.columns(loaded.hardware, COUNTED))
    paths = figures_of(loaded)
    axes = [Axis(path, (path,), "limits", "x") for path in paths]
    varied = (Study(loaded, measure, (axis,), [(MORE,)], probes=()) for axis in axes)
    studies = [Study(loaded, measure, is_strict=True), *varied]
    found = sweep(studies, workers or os.cpu_count() or 1, progress)
    usual = {row["policy"]: row["step_ns"] for row in found if row["status"] == "ok" and not row.keys() & paths.keys()}
    rows = []
    for row in found:
        path = next(iter(row.keys() & paths.keys()), None)
        before_ns = usual.get(row.get("policy"))
        if path is not None and before_ns and row["status"] == "ok" and row["step_ns"] != before_ns:
            about = {"policy": row["policy"], "figure": path, "value": paths[path], "step_ns": row["step_ns"]}
            share = (row["step_ns"] / before_ns - 1) / (MORE - 1)
            rows.append(about | {"origin": loaded.hardware.origin_of(path), "elasticity": share})
    rows.sort(key=lambda row: ([*usual].index(row["policy"]), -abs(row["elasticity"])))
    statuses = {row["policy"]: row["status"] for row in found if not row.keys() & paths.keys()}
    idle = [path for path in paths if path not in {row["figure"] for row in rows}]
    capped = without_effect(loaded.hardware, loaded.scenario.budget_bytes, idle)
    view = limits_view(rows, usual, len(paths), capped, loaded.scenario.title or loaded.scenario.name)
    return Sweep("limits", [loaded], rows, view, more={"statuses": statuses, "steps_ns": usual, "tried": list(paths)})


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
