"""Predefined studies: `hosim scaling`, `hosim limits` and `hosim robust`.

*Scaling*: a step at each point of a curve, from a few ranks to many, or over a field. *Limits*: which figures of the
machine a step depends on, and how much.

*Robust*: a plan made for the nominal machine runs under other conditions, compared with a policy that decides while it
runs. The *tested* policy plans once, for machine and workload as documented, and its plan is replayed unchanged under
each condition. The *other* one is reactive: it sees what happens. Both run under the same draws. A plan that blocks or
no longer fits is an outcome, and counts as slower than any that runs. The conditions are

``jitter``
    Random times of ops and links: see `simulator.run.conditions.jittered`.
``slower links``
    The bandwidth of every link is multiplied by ``1 - level``, and its latency divided by it.
``inspection``
    The level is the time that a reactive policy takes to inspect the state before each compute; nobody has measured it.
``longer sequence``
    The model is built with its sequence times ``1 + level``, rounded; a fixed plan is replayed on the same ops and
    tensors, a reactive policy decides anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from simulator import catalog
from simulator.catalog import Axis, Loaded, Named
from simulator.catalog.settings import amounts
from simulator.errors import CapacityError, insist
from simulator.hardware import without_effect
from simulator.metrics.statistics import INSPECTION, NOMINAL, SEQUENCE, quantiles
from simulator.report.answers import limits_view
from simulator.report.grids import scaling_view
from simulator.report.uncertain import robust_view
from simulator.run.case import Policies, prepare, rows_named
from simulator.run.conditions import Once
from simulator.run.grid import Cells
from simulator.run.sweep import Progress, Study, Sweep, sweep

MORE = 1.1
"""Each figure is tried with 10 % more: enough for a policy's decisions to change, as they would on such a machine."""


def points_of(loaded: Loaded) -> Study:
    """Return the study of a scenario's ``scaling``, without the scenario's expectations and questions.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.

    Raises
    ------
    ConfigError
        If the scenario lists no points.
    """
    scaling = loaded.scenario.scaling
    rule, do = "a scenario that is scaled lists points", "add for example 'scaling: {parallel.data: [8, 16, 32]}'"
    insist(scaling, loaded.place("scaling"), rule, "none", do)
    place, listed = partial(loaded.place, "scaling"), scaling.items()
    made = [Axis.listing(key, (f"workload.{key}",), place(key), values) for key, values in listed]
    axes, columns = zip(*made, strict=True)
    return Study(loaded.without_questions(), Cells(), axes, list(zip(*columns, strict=True)))


def scaling(
    scenario: Named,
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
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one.
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
            Tokens that all ranks train on, read or add in a step; None for a graph from a file that does not say.
        ``efficiency``
            Tokens per second and rank, relative to the policy's first point that ran. With equal work per rank at all
            points (weak scaling), that is the step there over the step here.

    Raises
    ------
    ConfigError
        If a document is wrong. A failure at a point is a row.
    """
    loaded = catalog.resolve(scenario, set)
    study = points_of(loaded)
    labels = list(prepare(study.loaded, with_bounds=False).rows(policies))
    study = replace(study, measure=Cells(policies))
    measured = sweep([study], workers, progress)  # a point that fails does so for all rows
    rows = [{**row, "policy": label} for label in labels for row in measured if row.get("policy", label) == label]
    first: dict[str, float] = {}
    for row in rows:
        each = row.get("tokens_per_s") and row["tokens_per_s"] / row["ranks"]
        row["efficiency"] = each and each / first.setdefault(row["policy"], each)
    machine, asked = loaded.hardware, loaded.scenario
    budget = machine.tiers[machine.compute_tier].usable_bytes if asked.budget_bytes is None else asked.budget_bytes
    view = scaling_view(rows, [axis.name for axis in study.axes], machine, budget, asked.heading)
    return Sweep("scaling", [loaded], rows, view)


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


JITTER, LINKS = "jitter", "slower links"
LEVELS = {
    JITTER: (0.01, 0.02, 0.05, 0.1, 0.2),
    LINKS: (0.1, 0.2, 0.3, 0.5),
    INSPECTION: (100, 500, 1000, 2000, 5000),
    SEQUENCE: (0.01, 0.05, 0.1, 0.25, 0.5),
}
"""Perturbation -> its default levels: shares, or times [ns]."""
MOST = {JITTER: 1, LINKS: 0.99, INSPECTION: 1e9, SEQUENCE: 99}
"""Perturbation -> its highest level."""
DRAWS = 20
"""Default number of draws of jitter at each level."""


def robustness(  # noqa: PLR0913 - what is compared, under which conditions
    scenario: Named,
    *,
    policy: str = "static",
    against: str = "reactive",
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    jitter: Sequence[float] | None = None,
    slower_links: Sequence[float] | None = None,
    inspect: Sequence[float] | None = None,
    longer: Sequence[float] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    headroom: float = 0.0,
    workers: int = 1,
    progress: Progress | None = None,
) -> Sweep:
    """Replay a plan made for nominal conditions under others, and compare it with a policy that decides as it runs.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one.
    policy, against
        Rows of the scenario or names of policies: the tested one, and the one that it is compared with.
    set
        Changes to the nominal machine, as in `simulator.run`.
    jitter, slower_links, longer
        Levels, as shares (0.05 is 5 %); default: `LEVELS`. An empty list leaves the perturbation out.
    inspect
        Times to inspect the state [ns], in the same way.
    draws, seed
        Number of draws of jitter at each level, and their seed.
    headroom
        Share of the budget that the tested plan leaves free, in reserve; the run may use the whole budget.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called after each replay.

    Returns
    -------
    Sweep
        Points, one per policy, condition and draw: ``policy``, ``perturbation``, ``level``, ``draw``, ``status``,
        ``step_ns``, ``slowdown`` (against the same policy under nominal conditions) and ``why`` it did not run. Rows:
        their quantiles.

    Raises
    ------
    HosimError
        If a document, a policy or a level is wrong.
    CapacityError
        If the tested policy has no plan under nominal conditions.
    """
    loaded = catalog.resolve(scenario, set)
    choices = [rows_named(loaded.scenario, [name])[0] for name in (policy, against)]
    tested, other = (choice.row for choice in choices)
    rule, do = "two different rows are compared, with the same changes to the machine", "name two such rows"
    are_alike = choices[0].set_ == choices[1].set_
    insist(tested != other and are_alike, "policies", rule, f"{tested!r} and {other!r}", do)
    insist(0 <= headroom < 1, "headroom", "it is at least 0 % and below 100 %", f"{100 * headroom:g} %")
    once = Once(loaded.without_questions(), (tested, other), headroom)
    asked = {JITTER: jitter, LINKS: slower_links, INSPECTION: inspect, SEQUENCE: longer}
    studies = list(_studies(once, asked, draws, seed))
    if isinstance(plan := once.plans[tested], CapacityError):
        raise plan
    points = sweep(studies, workers, progress)
    steps = {row["policy"]: row.get("step_ns") for row in points if row["perturbation"] == NOMINAL}
    for row in points:
        nominal_ns, step_ns = steps[row["policy"]], row.setdefault("step_ns", None)
        row["slowdown"] = step_ns / nominal_ns if nominal_ns and step_ns is not None else None
        row["why"] = row.get("notes") or row.get("short_at") or ""
    columns = ("policy", "perturbation", "level", "draw", "status", "step_ns", "slowdown", "why")
    tidy = [{column: row[column] for column in columns} for row in points]
    rows = quantiles(tidy)
    return Sweep("robust", [loaded], rows, robust_view(rows, (tested, other)), {"points": tidy}, {"seed": seed})


MOST_DRAWS = 10_000
"""Most draws at a level: each is a replay and a row, and more hardly change the quantiles."""


def _studies(once: Once, asked: Mapping[str, Sequence[float] | None], draws: int, seed: int) -> Iterator[Study]:
    """Make a study for each perturbation and level, nominal conditions first; its points are draws."""
    loaded = once.loaded
    rule = f"the number of draws is a whole number, at least 1 and at most {MOST_DRAWS:,}, and the seed at least 0"
    insist(isinstance(draws, int) and 1 <= draws <= MOST_DRAWS and seed >= 0, "draws", rule, f"{draws} and {seed}")
    levels = [(NOMINAL, 0.0)]
    for name, given in asked.items():
        usual = LEVELS[name] if name != SEQUENCE or loaded.workload.decoder is not None else ()
        levels += [(name, level) for level in sorted({*(usual if given is None else given)})]
    for name, level in levels:
        where = f"levels of {name}"
        most = MOST.get(name, 0)
        rule = f"a level is above 0 and at most {most:g}, as a share, or as a time in ns"
        insist(name == NOMINAL or 0 < level <= most, where, rule, f"{level:g}")
        axes = (*(varied := _perturbed_fields(loaded, name, level)), Axis("draw", (), where))
        points = [(*varied.values(), draw) for draw in range(draws if name == JITTER else 1)]
        about = {"perturbation": name, "level": level}
        cells = Cells(once.policies, jitter=level if name == JITTER else 0, seed=seed, once=once, with_bounds=False)
        yield Study(loaded, cells, axes, points, about=about, is_strict=True)


def _perturbed_fields(loaded: Loaded, name: str, level: float) -> dict[Axis, Any]:
    """Return the fields that a perturbation changes, with their values; jitter changes none."""
    where = f"levels of {name}"
    if name == LINKS:
        speed, latency = (Axis(f"{name}, {key}", (f"links.*.{key}",), where, "x") for key in ("bandwidth", "latency"))
        return {speed: 1 - level, latency: 1 / (1 - level)}
    if name == INSPECTION:
        return {Axis(name, ("host.reactive.inspect",), where, "ns"): round(level)}
    if name == SEQUENCE:
        rule, tokens = "only the step of a model can be built for a longer sequence", loaded.workload.sequence
        insist(tokens is not None and loaded.workload.decoder, where, rule, "a graph without tokens", "leave them out")
        return {Axis(name, ("workload.sequence",), where): max(1, round((tokens or 1) * (1 + level)))}
    return {}
