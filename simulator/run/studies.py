"""`hosim scaling`: the same step at each point of a curve, from a few ranks to many or over a field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.errors import ConfigError
from simulator.report.views import scaling_view
from simulator.run.case import Policies, prepare
from simulator.run.grid import Cells
from simulator.run.sweep import Progress, Study, Sweep, sweep
from simulator.scenario import Scenario


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
