"""Claims with other values of the parameters that their sources leave open, one at a time.

``python tests/sensitivity.py NAME ...``, or ``--all``, prints for which values each printed figure holds.

The result says for which values each figure holds, and how far it moves.

*Screening.* At inference a peak is known before a run, so settings that cannot reproduce it are dropped. A plan that
moves nothing holds exactly what is live at once. One that moves only some kinds of tensors (`static` with the option
``move``) holds at least that less all bytes of these
kinds, where everything has room.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from unstated import Opened, names, open_parameters, opened

from simulator import builders, catalog, metrics
from simulator.catalog import Loaded
from simulator.claims import Judged, judged
from simulator.errors import HosimError, insist
from simulator.lifetime import live_bytes
from simulator.metrics.figures import present
from simulator.metrics.statistics import by
from simulator.report.tables import Column
from simulator.report.views import Panel, Section, SweepView
from simulator.report.views import Row as ShownRow
from simulator.report.views import Rows as ShownRows
from simulator.report.words import signed
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import LIMITS, Expectation
from simulator.scenario.claim import WITHIN
from simulator.units import human, listed

_PARTS = 4
"""Parts into which a range is cut at first: five values show whether a figure goes up and down again."""
_MEANT = (
    "One parameter varies at a time, and nothing is fitted again. The ends of a stretch were searched by halving; "
    "between two values that were tried and both hold, or both fail on the same side, nothing was looked at. "
    "A figure that is only shown does not hold: told is for which values ours is near to what is printed."
)
_WEIGHTS_ALONE: dict[str, Any] = {"model": {"feed_forward": {"ranks", "copies"}}, "dtypes": {"weights"}}
"""Fields of a workload that change only its weights, at inference."""
_NO_WEIGHTS: dict[str, Any] = dict.fromkeys(("batch", "sequence", "chunk", "experts"), True)
"""Fields of a workload that change no weight."""


def sensitivity(
    scenarios: Sequence[str | Path] | None = None, *, workers: int = 1, progress: Progress | None = None
) -> Sweep:
    """Recompute claims with other values of the parameters that their sources leave open, one parameter at a time.

    Parameters
    ----------
    scenarios
        Names in the catalogue, or paths that end in ``.yaml``; default: all whose claims leave parameters open.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called after each value that is tried.

    Returns
    -------
    Sweep
        Points: a verdict per parameter, value and printed figure. Rows: one per figure and parameter, see
        `dependences`.

    Raises
    ------
    ConfigError
        If a document is wrong or not valid with a value, or a claim has no open parameter or no printed figure.
    """
    loaded = read(scenarios, lambda stated: stated.claim.unstated)
    points = sweep([study for base in loaded for study in _studies(base)], workers, progress)
    for row in points:
        row["value"] = row.pop(row["parameter"])
    rows = dependences(points)
    return Sweep("sensitivity", loaded, rows, sensitivity_view(rows, points), {"points": points})


def read(scenarios: Sequence[str | Path] | None, has: Callable[[Opened], object]) -> list[Loaded]:
    """Read the named scenarios, or all that leave something open and meet a predicate."""
    loaded = [catalog.resolve(name) for name in (names() if scenarios is None else dict.fromkeys(map(str, scenarios)))]
    return [base for base in loaded if scenarios is not None or has(opened(base))]


def _studies(loaded: Loaded) -> list[Study]:
    """Vary each parameter: over all listed values; or over a few, and then between those where a figure turns."""
    studies = []
    for unstated, axis, taken in open_parameters(loaded):
        spread = (unstated.tried[part * (len(unstated.tried) - 1) // _PARTS] for part in range(_PARTS + 1))
        about = {"parameter": unstated.parameter, "unit": unstated.unit or "", "taken": taken}
        turned = None if unstated.options else _turns  # nothing lies between two names
        points = [(value,) for value in unstated.options or (taken, *spread)]
        studies.append(Study(loaded, figures, (axis,), points, unstated.tried, turned, about, is_strict=True))
    rule = "a claim leaves parameters open, and prints numbers to compare ours with"
    do = "list parameters under unstated, with a range or values each, and add printed to an expectation"
    is_whole, lacking = studies and compared_to_printed(loaded), "no number" if studies else "no parameter"
    insist(is_whole, loaded.place("claim"), rule, lacking, do)
    return studies


def _turns(rows: Rows, others: Rows) -> bool:
    """Tell whether, between two values, some figure starts or ceases to hold, or crosses the printed one."""

    def turns(row: Row, other: Row) -> bool:
        if row["holds"] or other["holds"] or row["error"] is None or other["error"] is None:
            return bool(row["holds"] != other["holds"])
        return bool((row["error"] < 0) != (other["error"] < 0))

    return any(map(turns, rows, others))


def compared_to_printed(loaded: Loaded) -> list[Expectation]:
    """List the expectations that are compared with a printed figure, or shown beside a single printed number."""
    printed = (expected for expected in loaded.scenario.expect if expected.printed is not None)
    return [expected for expected in printed if expected.kind != "shown" or len(expected.ends("printed")) == 1]


def figures(loaded: Loaded, point: Point) -> Rows:
    """Run the rows with printed figures, and judge them; figures that are only shown are compared, too."""
    compared = compared_to_printed(loaded)
    held = [held_to_printed(stated) if stated.kind == "shown" else stated for stated in compared]
    of_bounds = metrics.columns(loaded.hardware, ("bound",))
    with_bounds = any(column in of_bounds for expected in held for column in expected.columns)
    return [
        Judged(loaded.scenario.name, verdict).row
        | {"kind": stated.kind, "asks": verdict.asks, "holds": verdict.holds, "within": ours.within}
        | {"verdict": "shown" if stated.kind == "shown" else verdict.word}
        for verdict, stated, ours in zip(judged(loaded, held, with_bounds=with_bounds), compared, held, strict=True)
    ]


def held_to_printed(expected: Expectation) -> Expectation:
    """Make a prediction of a figure that is only shown; with a guard (`about`), `within` was the guard's tolerance."""
    ours = dict.fromkeys((*LIMITS, "faster_than")) | {"kind": "predicted"}
    return expected.model_copy(update=ours if expected.about is None else {**ours, "within": WITHIN})


def dependences(points: ShownRows) -> list[dict[str, Any]]:
    """Summarise how each figure depends on each parameter.

    Parameters
    ----------
    points
        One per scenario, parameter, value and figure: see `figures`.

    Returns
    -------
    list of dict
        ``scenario``, ``claim``, ``figure``, ``row``, ``column``, ``printed``, ``kind``, ``verdict``, ``tolerance``;
        ``parameter``, ``unit``; ``taken``, ``low``, ``high``, the value taken and the ends, as numbers; for each of
        these ``obtained``, ``obtained_low``, ``obtained_high``, for people, and ``error``, ``error_low``,
        ``error_high``, as shares of the printed figure; ``swing``, from the least error to the largest, None if some
        value gave none; ``holds``, a list of ranges (for a figure that is only shown: where it is near); ``tried``, the
        number of values; ``named``, the values if they are names, as ``taken``, ``low`` and ``high`` then are.
    """
    rows = []
    for group in by(points, "scenario", "asks", "parameter").values():
        ordered = sorted(group, key=_by_value)
        nominal, low, high = next(row for row in ordered if row["value"] == row["taken"]), ordered[0], ordered[-1]
        errors = [row["error"] for row in ordered if present(row["error"])]
        stretches = [list(run) for holds, run in groupby(ordered, lambda row: row["holds"]) if holds]
        rows.append(
            {key: value for key, value in nominal.items() if key not in ("value", "holds")}
            | {f"{key}_{end}": row[key] for end, row in (("low", low), ("high", high)) for key in ("obtained", "error")}
            | {"low": low["value"], "high": high["value"], "tried": len(ordered)}
            | {"named": [row["value"] for row in ordered if isinstance(row["value"], str)]}
            | {"swing": max(errors) - min(errors) if len(errors) == len(ordered) else None}
            | {"holds": [[stretch[0]["value"], stretch[-1]["value"]] for stretch in stretches]}
        )
    return rows


def sensitivity_view(rows: ShownRows, points: ShownRows) -> SweepView:
    """Show how figures depend on parameters.

    Parameters
    ----------
    rows, points
        The dependences, and the points that they summarise.
    """
    sections = []
    ours = by((point for point in points if present(point["error"])), "scenario", "asks")
    for figure, group in by(rows, "scenario", "asks").items():
        group.sort(key=lambda row: float("-inf") if row["swing"] is None else -row["swing"])
        row, errors = group[0], (" to ".join((signed(row["error_low"]), signed(row["error_high"]))) for row in group)
        head = f"{row['claim']}: {row['verdict']}, {row['printed']} printed, {row['obtained']} obtained"
        if row["range"]:
            least, largest = (end(ours[figure], key=itemgetter("error"))["obtained"] for end in (min, max))
            head += f", {least} to {largest} in all"
        columns = [
            Column("  what is not stated", (f"  {row['parameter']}" for row in group)),
            Column("taken", (_written_value(row, row["taken"]) for row in group), left=False),
            Column("tried", (_stretch(row, row["low"], row["high"]) for row in group), left=False),
            Column("error at the ends", errors),
            Column("near for" if row["kind"] == "shown" else "holds for", map(_where_it_holds, group)),
        ]
        sections.append(Section(f"{head}, {row['tolerance']} accepted", columns))
    panels = []
    for (scenario, parameter), group in by(points, "scenario", "parameter").items():
        if isinstance(group[0]["value"], str):  # names have no distances to draw
            continue
        unit = f" [{group[0]['unit']}]" if group[0]["unit"] else ""
        axis = f"{parameter}{unit}, difference from what is printed; dots: holds"
        panels.append(Panel(scenario, axis, "%", sorted(group, key=_by_value), "value", "error", of="claim"))
    return SweepView("What claims depend on", sections, [_MEANT], panels)


def _by_value(row: ShownRow) -> Any:
    """Return a key that sorts numbers in ascending order and leaves names in their order."""
    return 0 if isinstance(row["value"], str) else row["value"]


def _written_value(row: ShownRow, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if row["unit"] not in ("", "x"):
        return human(value, row["unit"])
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}{row['unit']}"


def _stretch(row: ShownRow, low: float | str, high: float | str) -> str:
    if row["named"]:
        return ", ".join(row["named"][row["named"].index(low) : row["named"].index(high) + 1])
    return " to ".join(dict.fromkeys(_written_value(row, end) for end in (low, high)))


def _where_it_holds(row: ShownRow) -> str:
    if row["holds"] == [[row["low"], row["high"]]]:
        return "all"
    return listed([_stretch(row, *stretch) for stretch in row["holds"]]) or "nowhere"


def screened(study: Study, workers: int, progress: Progress | None) -> Study:
    """Keep the settings of a claim that may reproduce the selecting peaks; all if the claim does not screen.

    Parameters
    ----------
    study
        All settings.
    workers, progress
        As for a sweep. Settings that differ only in weights are built once.

    Raises
    ------
    ConfigError
        If the screening figure is no such peak, or a model cannot run with a setting.
    """
    loaded, column = study.loaded, f"peak_{study.loaded.hardware.compute_tier}_bytes"
    stated, rows = opened(loaded), {choice.row: choice for choice in loaded.scenario.policies}
    claim = stated.claim
    if claim.screens is None:
        return study
    peaks = [expected for expected in compared_to_printed(loaded) if expected.column == column and not expected.over]
    peaks = [held_to_printed(peak) for peak in peaks if peak.figure in claim.selects]
    still = [peak for peak in peaks if peak.figure == claim.screens and rows[peak.row].policy == "resident"]
    rule = f"a screening figure is one of selects: {column} of one row with the policy resident, at inference"
    is_inference, do = loaded.workload.phase in ("prefill", "decode"), "name such a figure, or remove screens"
    insist(len(still) == 1 and is_inference, stated.place("screens"), rule, repr(claim.screens), do)
    least, most = ((1 + sign * still[0].within) * float(still[0].ends("printed")[0]) for sign in (-1, 1))
    moved = [(rows[peak.row].options.get("move"), peak) for peak in peaks if rows[peak.row].policy == "static"]
    limits = [(kinds, (1 + peak.within) * float(peak.ends("printed")[0])) for kinds, peak in moved if kinds]
    settings = {point: study.at(point) for point in study.points}
    alike = {point: _without(setting, _WEIGHTS_ALONE) for point, setting in settings.items()}
    first = {key: point for point, key in alike.items()}
    built = sweep([replace(study, measure=count_besides, points=[*first.values()], is_strict=True)], workers, progress)
    by_key, weights, points = dict(zip(first, built, strict=True)), dict[str, int](), []
    for point, setting in settings.items():
        key, row = _without(setting, _NO_WEIGHTS), by_key[alike[point]]
        weights[key] = weights.get(key) or sum(weight.size_bytes for weight in builders.layouts(setting.work).values())
        peak_bytes = weights[key] + row["besides_bytes"]
        stays = ((peak_bytes - sum(row["kinds"][kind] for kind in kinds), limit) for kinds, limit in limits)
        if least <= peak_bytes <= most and all(held <= limit for held, limit in stays):
            points.append(point)
    return replace(study, points=points)


def _without(loaded: Loaded, fields: dict[str, Any]) -> str:
    """Return the workload as text, without some of its fields."""
    return repr(loaded.workload.model_dump(mode="json", exclude=fields))


def count_besides(loaded: Loaded, _: Point) -> Rows:
    """Build the graph of a setting, and count what it holds besides weights.

    Returns
    -------
    list of dict
        One, with ``besides_bytes``: most that is live at once besides weights, workspaces included; and ``kinds``: kind
        of tensor -> bytes of all tensors of that kind.
    """
    graph = builders.build_job(loaded.workload, loaded.workload_dir).graphs[0]
    kinds = Counter[str]()
    for tensor in graph.tensors:
        kinds[tensor.kind] += tensor.size_bytes
    besides_bytes = int(live_bytes(graph).max()) - kinds["weight"] - kinds["expert"]  # which are always live
    return [{"besides_bytes": besides_bytes, "kinds": kinds}]


def main(function: Callable[..., Sweep]) -> None:
    """Take scenarios from the command line, and print what comes of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--all", action="store_true", help="all whose claims leave something open")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="write all results into this folder")
    given = parser.parse_args()
    if bool(given.scenarios) == given.all:
        parser.error("name scenarios, or say --all")
    try:
        found = function(given.scenarios or None, workers=given.workers)
    except HosimError as error:
        sys.exit(str(error))
    if given.out:
        found.write(given.out)
    print(found)


if __name__ == "__main__":
    main(sensitivity)
