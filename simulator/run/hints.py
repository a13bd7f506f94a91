"""What someone who reads the rows of a run should know of what went in: what has no effect, and what was not said."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.graph import TensorKind
from simulator.hardware import without_effect
from simulator.report.rows import Row, listed
from simulator.run.case import Case
from simulator.units import human


def hints(case: Case, rows: Sequence[Row]) -> list[str]:
    """Say which figures that were set change nothing, that runtimes decide for free, and which experts were forgotten.

    Parameters
    ----------
    case, rows
        What ran, and its rows.
    """
    scenario = case.loaded.scenario
    found = without_effect(case.hardware, scenario.budget_bytes, scenario.set_)
    for row in rows:
        own = case.choice(row.label).set_
        found += [f"{row.label}: {one}" for one in without_effect(row.hardware, scenario.budget_bytes, own)]
    return [*dict.fromkeys(found), *_free_runtimes(case, rows), *_experts(case)]


def _free_runtimes(case: Case, rows: Sequence[Row]) -> list[str]:
    runtimes = [row.label for row in rows if any(plan.fixed is None for plan in row.plans)]
    if not runtimes or "host" in case.hardware.model_fields_set:
        return []
    decisions = f"decisions of {listed(runtimes)} are free"
    return [f"{case.hardware.name} states no costs of a host, so that {decisions}: add the key host."]


def _experts(case: Case) -> list[str]:
    """That weights have another home, and experts none."""
    homes, here = case.loaded.scenario.homes, case.hardware.compute_tier
    if homes.get(TensorKind.WEIGHT, here) == here:
        return []
    named = {one for pattern in homes for graph in case.job.graphs for one in graph.matching(pattern)}
    graph = case.job.graphs[0]
    left = [
        one.size_bytes
        for number, one in enumerate(graph.tensors)
        if one.kind is TensorKind.EXPERT and number not in named
    ]
    if not left:
        return []
    forgotten = f"{human(sum(left), 'B')} of experts live in {here}: give expert a home as well"
    return [f"homes names weight and not expert, so that {forgotten}."]
