"""The sweep of `hosim sensitivity`: claims with other values of what their sources leave open.

It tells where each holds, and how far its figure moves.

*Screening.* Some settings cannot reproduce a peak, which is told before a run, at inference. A plan that moves nothing
holds what ops need at once, and no more. One that moves some kinds of tensors alone holds all else of that at least,
whenever it moves them: `static` with the option move, where all has room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from simulator import builders, catalog, metrics
from simulator.catalog import Loaded
from simulator.claims import Judged, judged, read
from simulator.errors import ConfigError, insist
from simulator.lifetime import live_bytes
from simulator.report.rows import listed, present, signed
from simulator.report.tables import Column
from simulator.report.views import Panel, Section, SweepView, by
from simulator.report.views import Row as ShownRow
from simulator.report.views import Rows as ShownRows
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import LIMITS, Claim, Expectation
from simulator.scenario.claim import WITHIN
from simulator.units import human

_PARTS = 4
"""A range is cut into so many parts at first: five values show whether a figure goes up and down."""
_MEANT = (
    "One parameter varies at a time, and nothing is fitted again. The ends of a stretch were searched by halving; "
    "between two values that were tried and both hold, or both fail on the same side, nothing was looked at. "
    "A figure that is only shown does not hold: told is for which values ours is near to what is printed."
)
_WEIGHTS_ALONE: dict[str, Any] = {"model": {"feed_forward": {"ranks", "copies"}}, "dtypes": {"weights"}}
"""What a workload may say otherwise and change nothing but its weights, at inference."""
_NO_WEIGHTS: dict[str, Any] = dict.fromkeys(("batch", "sequence", "chunk", "experts"), True)
"""What it may say otherwise and change no weight."""


def sensitivity(
    scenarios: Sequence[str | Path] | None = None, *, workers: int = 1, progress: Progress | None = None
) -> Sweep:
    """Recompute claims with other values of each parameter that their sources leave open, one at a time.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all of the catalogue that say what is open.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called when a value was tried.

    Returns
    -------
    Sweep
        Its points: a verdict per parameter, value and printed figure. Its rows: one per figure and parameter, see
        `dependences`.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing is open or printed, or a document is not valid with a value.
    """
    must = "a scenario whose claim leaves something open is named"
    loaded = read(scenarios, must, lambda one: one.claim and one.claim.unstated)
    points = sweep([study for one in loaded for study in _studies(one)], workers, progress)
    for row in points:
        row["value"] = row.pop(row["parameter"])
    rows = dependences(points)
    return Sweep("sensitivity", loaded, rows, sensitivity_view(rows, points), {"points": points})


def _studies(loaded: Loaded) -> list[Study]:
    """How each parameter is varied: all that is listed; or a few values, then between those where a figure turns."""
    studies = []
    for one, axis, taken in catalog.left_open(loaded):
        spread = (one.tried[part * (len(one.tried) - 1) // _PARTS] for part in range(_PARTS + 1))
        about = {"parameter": one.parameter, "unit": one.unit or "", "taken": taken}
        turned = None if one.options else _turned  # between two names there is nothing
        points = [(value,) for value in one.options or (taken, *spread)]
        studies.append(Study(loaded, figures, (axis,), points, one.tried, turned, about, is_strict=True))
    if not studies or not compared_to_printed(loaded):
        must = "a claim leaves parameters open, and prints numbers that ours are held against"
        do = "list parameters under claim: unstated, with a range or values each, and add printed to an expectation"
        raise ConfigError(loaded.place("claim"), must, "no number" if studies else "no parameter", do)
    return studies


def _turned(rows: Rows, others: Rows) -> bool:
    """Whether some figure holds with one of two values and not with the other, or passes what is printed."""

    def turns(one: Row, other: Row) -> bool:
        if one["holds"] or other["holds"] or one["error"] is None or other["error"] is None:
            return bool(one["holds"] != other["holds"])
        return bool((one["error"] < 0) != (other["error"] < 0))

    return any(map(turns, rows, others))


def compared_to_printed(loaded: Loaded) -> list[Expectation]:
    """What is held against a printed figure, or shown beside one number that it may be near to."""
    printed = (one for one in loaded.scenario.expect if one.printed is not None)
    return [one for one in printed if one.kind != "shown" or len(one.ends("printed")) == 1]


def figures(loaded: Loaded, point: Point) -> Rows:
    """Run the rows with printed figures, and judge; what is only shown is held against what is printed, too."""
    compared = compared_to_printed(loaded)
    held = [held_to_printed(one) if one.kind == "shown" else one for one in compared]
    of_bounds = metrics.columns(loaded.hardware, ("bound",))
    with_bounds = any(column in of_bounds for one in held for column in one.columns)
    return [
        Judged(loaded.scenario.name, verdict).row
        | {"kind": one.kind, "asks": verdict.asks, "holds": verdict.holds, "within": ours.within}
        | {"verdict": "shown" if one.kind == "shown" else verdict.word}
        for verdict, one, ours in zip(judged(loaded, held, with_bounds=with_bounds), compared, held, strict=True)
    ]


def held_to_printed(one: Expectation) -> Expectation:
    """What is only shown, as if it were held; beside a guard of our own, `within` is the guard's tolerance."""
    ours = dict.fromkeys((*LIMITS, "faster_than")) | {"kind": "predicted"}
    return one.model_copy(update=ours if one.about is None else {**ours, "within": WITHIN})


def dependences(points: ShownRows) -> list[dict[str, Any]]:
    """Sum up what each figure depends on.

    Parameters
    ----------
    points
        One per scenario, parameter, value and figure: see `figures`.

    Returns
    -------
    list of dict
        ``scenario``, ``claim``, ``figure``, ``row``, ``column``, ``printed``, ``kind``, ``verdict``, ``tolerance``;
        ``parameter``, ``unit``; ``taken``, ``low``, ``high``, as numbers; ``obtained``, ``obtained_low``,
        ``obtained_high``, for people, and ``error``, ``error_low``, ``error_high``, as shares of what is printed, with
        what is taken and at the ends; ``swing``, from the least error to the largest, None if no step ends with some
        value; ``holds``, a list of stretches (of what is only shown: where it is near); ``tried``, with how many
        values; ``named``, what these are called if they were listed, which ``taken``, ``low`` and ``high`` then say.
    """
    rows = []
    for group in by(points, "scenario", "asks", "parameter").values():
        own = sorted(group, key=_by_value)
        nominal, low, high = next(row for row in own if row["value"] == row["taken"]), own[0], own[-1]
        errors = [row["error"] for row in own if present(row["error"])]
        stretches = [list(run) for holds, run in groupby(own, lambda row: row["holds"]) if holds]
        rows.append(
            {key: value for key, value in nominal.items() if key not in ("value", "holds")}
            | {f"{key}_{end}": row[key] for end, row in (("low", low), ("high", high)) for key in ("obtained", "error")}
            | {"low": low["value"], "high": high["value"], "tried": len(own)}
            | {"named": [row["value"] for row in own if isinstance(row["value"], str)]}
            | {"swing": max(errors) - min(errors) if len(errors) == len(own) else None}
            | {"holds": [[stretch[0]["value"], stretch[-1]["value"]] for stretch in stretches]}
        )
    return rows


def sensitivity_view(rows: ShownRows, points: ShownRows) -> SweepView:
    """Show dependences.

    Parameters
    ----------
    rows, points
        What `dependences` gives, and what it sums up.
    """
    sections = []
    for own in by(rows, "scenario", "asks").values():
        group = sorted(own, key=lambda row: float("-inf") if row["swing"] is None else -row["swing"])
        row, errors = group[0], (" to ".join((signed(row["error_low"]), signed(row["error_high"]))) for row in group)
        head = f"{row['claim']}: {row['verdict']}, {row['printed']} printed, {row['obtained']} obtained"
        columns = [
            Column.texts("  what is not stated", (f"  {row['parameter']}" for row in group)),
            Column.texts("taken", (_value(row, row["taken"]) for row in group), left=False),
            Column.texts("tried", (_stretch(row, row["low"], row["high"]) for row in group), left=False),
            Column.texts("error at the ends", errors),
            Column.texts("near for" if row["kind"] == "shown" else "holds for", map(_holds, group)),
        ]
        sections.append(Section(f"{head}, {row['tolerance']} accepted", columns))
    panels = []
    for (scenario, parameter), own in by(points, "scenario", "parameter").items():
        if isinstance(own[0]["value"], str):  # names have no distance that could be drawn
            continue
        unit = f" [{own[0]['unit']}]" if own[0]["unit"] else ""
        axis, drawn = f"{parameter}{unit}, difference from what is printed; dots: holds", sorted(own, key=_by_value)
        panels.append(Panel(scenario, axis, "%", drawn, "value", "error", of="claim"))
    return SweepView("What claims depend on", sections, [_MEANT], panels)


def _by_value(row: ShownRow) -> Any:
    """Numbers ascend; what is named stays as it is listed."""
    return 0 if isinstance(row["value"], str) else row["value"]


def _value(row: ShownRow, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if row["unit"] not in ("", "x"):
        return human(value, row["unit"])
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}{row['unit']}"


def _stretch(row: ShownRow, low: float | str, high: float | str) -> str:
    if row["named"]:
        return ", ".join(row["named"][row["named"].index(low) : row["named"].index(high) + 1])
    return " to ".join(dict.fromkeys(_value(row, end) for end in (low, high)))


def _holds(row: ShownRow) -> str:
    if row["holds"] == [[row["low"], row["high"]]]:
        return "all"
    return listed([_stretch(row, *stretch) for stretch in row["holds"]]) or "nowhere"


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
    besides_bytes = int(live_bytes(graph).max()) - kinds["weight"] - kinds["expert"]  # which are there all the time
    return [{"besides_bytes": besides_bytes, "kinds": kinds}]
