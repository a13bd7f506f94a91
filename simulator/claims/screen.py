"""Settings that cannot reproduce a peak, told before a run, at inference.

A plan that moves nothing holds what ops need at once, and no more. One that moves some kinds of tensors alone holds all
else of that at least, whenever it moves them: `static` with the option move, where all has room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import Any

from simulator import builders
from simulator.catalog import Loaded
from simulator.claims.sensitivity import compared_to_printed, held_to_printed
from simulator.errors import insist
from simulator.graph import Graph
from simulator.lifetime import NEVER, Lifetimes
from simulator.run.sweep import Point, Progress, Rows, Study, sweep
from simulator.scenario import Claim

_WEIGHTS_ALONE: dict[str, Any] = {"model": {"feed_forward": {"ranks", "copies"}}, "dtypes": {"weights"}}
"""What a workload may say otherwise and change nothing but its weights, at inference."""
_NO_WEIGHTS: dict[str, Any] = dict.fromkeys(("batch", "sequence", "chunk", "experts"), True)
"""What it may say otherwise and change no weight."""


def screened(study: Study, workers: int, progress: Progress | None) -> Study:
    """Keep the settings of a claim that may reproduce the peaks that select; all if the claim screens none.

    Parameters
    ----------
    study
        All settings.
    workers, progress
        As for a sweep. What differs in weights alone is built once.

    Raises
    ------
    ConfigError
        If what screens is no such peak, or a model cannot run as a setting says.
    """
    loaded, column = study.loaded, f"peak_{study.loaded.hardware.compute_tier}_bytes"
    claim, rows = loaded.scenario.claim, {one.row: one for one in loaded.scenario.policies}
    if not isinstance(claim, Claim) or claim.screens is None:
        return study
    peaks = [one for one in compared_to_printed(loaded) if one.column == column and one.over is None]
    peaks = [held_to_printed(one) for one in peaks if one.figure in claim.selects]
    still = [one for one in peaks if one.figure == claim.screens and rows[one.row].policy == "resident"]
    must = f"what screens is one of selects, and {column} of one row of the policy resident, at inference"
    is_told = len(still) == 1 and loaded.workload.phase in ("prefill", "decode")
    insist(
        is_told, loaded.place("claim", "screens"), must, repr(claim.screens), "name such a figure, or remove screens"
    )
    least, most = ((1 + sign * still[0].within) * float(still[0].ends("printed")[0]) for sign in (-1, 1))
    moved = [(rows[one.row].options.get("move"), one) for one in peaks if rows[one.row].policy == "static"]
    limits = [(kinds, (1 + one.within) * float(one.ends("printed")[0])) for kinds, one in moved if kinds]
    settings = {point: study.at(point) for point in study.points}
    alike = {point: _but(one, _WEIGHTS_ALONE) for point, one in settings.items()}
    first = {key: point for point, key in alike.items()}
    built = sweep([replace(study, measure=besides, points=[*first.values()], is_strict=True)], workers, progress)
    found, weights, points = dict(zip(first, built, strict=True)), dict[str, int](), []
    for point, one in settings.items():
        key, own = _but(one, _NO_WEIGHTS), found[alike[point]]
        weights[key] = weights.get(key) or builders.weight_bytes(one.workload)
        peak = weights[key] + own["besides_bytes"]
        stays = ((peak - sum(own["kinds"][kind] for kind in kinds), limit) for kinds, limit in limits)
        if least <= peak <= most and all(held <= limit for held, limit in stays):
            points.append(point)
    return replace(study, points=points)


def _but(loaded: Loaded, what: dict[str, Any]) -> str:
    """What the workload says, but for some of it."""
    return repr(loaded.workload.model_dump(mode="json", exclude=what))


def besides(loaded: Loaded, _: Point) -> Rows:
    """Build what runs at a setting, and say what it holds besides weights.

    Returns
    -------
    list of dict
        One, with ``besides_bytes``: most that lives at once, workspace of ops included; and ``kinds``: kind of tensor
        -> bytes of all that are of it.
    """
    graph = builders.build_job(loaded.workload, loaded.workload_dir).graphs[0]
    kinds = Counter[str]()
    for tensor in graph.tensors:
        kinds[tensor.kind] += tensor.size_bytes
    return [{"besides_bytes": besides_bytes(graph), "kinds": kinds}]


def besides_bytes(graph: Graph) -> int:
    """Most that lives at once besides weights, workspace of ops included [B].

    Parameters
    ----------
    graph
        The graph, run once.
    """
    found, changes = Lifetimes(graph), [0] * (len(graph.ops) + 1)
    for tensor, born, dies in zip(graph.tensors, found.born, found.dies, strict=True):
        start = 0 if tensor.persistent else born
        if tensor.kind not in ("weight", "expert") and start != NEVER:
            changes[start] += tensor.size_bytes
            changes[dies + 1] -= tensor.size_bytes
    return max(live + op.workspace_bytes for live, op in zip(accumulate(changes), graph.ops, strict=False))
