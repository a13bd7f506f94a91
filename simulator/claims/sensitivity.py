"""The sweep of `hosim sensitivity`: claims with other values of what their sources leave open.

It tells where each holds, and how far its figure moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.claims.validation import Judged, judged, validate
from simulator.errors import ConfigError
from simulator.report.rows import listed, present, signed
from simulator.report.view import Panel, Section, View, by, curve, texts
from simulator.report.view import Row as ShownRow
from simulator.report.view import Rows as ShownRows
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import LIMITS, Expectation
from simulator.units import human

_PARTS = 4
"""A range is cut into so many parts at first: five values show whether a figure goes up and down."""
_SEEN = 0.0005
"""A smaller change of a share is not shown."""
_MEANT = (
    "One parameter varies at a time, and nothing is fitted again. The ends of a stretch were searched by halving; "
    "between two values that were tried and both hold, or both fail on the same side, nothing was looked at."
)
_NEAR = "A figure that is only shown does not hold: told is for which values ours is near to what is printed."


def open_claims() -> list[str]:
    """Name the scenarios of the catalogue whose claim leaves parameters open."""
    found = {name: catalog.read_scenario(name) for name in catalog.names("scenario")}
    return [name for name, one in found.items() if one.claim and one.claim.unstated]


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
        Its outcomes: a verdict per parameter, value and printed figure. Its rows: one per figure and parameter, see
        `dependences`.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing is open or printed, or a document is not valid with a value.
    """
    names = open_claims() if scenarios is None else list(dict.fromkeys(map(str, scenarios)))
    loaded = [catalog.resolve(name) for name in names]
    for one in loaded:
        _check(one)
    if not loaded:
        raise ConfigError("scenarios", "a scenario whose claim leaves something open is named", "none", "name one")
    validation = validate(names, workers=workers, progress=progress)
    nominal = sweep([Study(one, figures, is_strict=True) for one in loaded], workers, progress)
    studies = []
    for one in loaded:
        verdicts = [row for row in nominal if row["scenario"] == one.scenario.name]
        studies += [_study(one, number, verdicts) for number in range(len(catalog.unstated(one)))]
    outcomes = sweep(studies, workers, progress)
    for row in outcomes:
        row["value"] = row.pop(row["parameter"])
    rows = dependences(outcomes)
    return Sweep("sensitivity", loaded, rows, sensitivity_view(rows, outcomes, validation.sentences), outcomes)


def _check(loaded: Loaded) -> None:
    """Refuse a claim that leaves nothing open, or prints nothing that ours could be held against."""
    if not catalog.unstated(loaded):
        must, do = "the claim says which parameters its source leaves open", "list them under claim: unstated"
        raise ConfigError(loaded.place("claim"), must, "none", f"{do}, with a range each")
    if not _compared(loaded):
        must = "something is held against a printed figure, or shown beside a number"
        raise ConfigError(loaded.place("expect"), must, "nothing", "add printed to an expectation")


def _study(loaded: Loaded, number: int, nominal: Rows) -> Study:
    """How one parameter is varied: a few values over its range, then between those where a figure turns."""
    one, axis, taken = catalog.unstated(loaded)[number], catalog.axis(loaded, number), catalog.taken(loaded, number)
    last = len(one.values) - 1
    points = [(taken,), *((one.values[part * last // _PARTS],) for part in range(_PARTS + 1))]
    about = {"parameter": one.parameter, "unit": one.unit or "", "taken": taken}
    known = {(taken,): nominal}
    return Study(loaded, figures, (axis,), points, one.values, _turned, about, known, is_strict=True)


def _turned(rows: Rows, others: Rows) -> bool:
    """Whether some figure holds with one of two values and not with the other, or passes what is printed."""

    def turns(one: Row, other: Row) -> bool:
        if one["holds"] or other["holds"] or one["error"] is None or other["error"] is None:
            return bool(one["holds"] != other["holds"])
        return bool((one["error"] < 0) != (other["error"] < 0))

    return any(map(turns, rows, others))


def _compared(loaded: Loaded) -> list[Expectation]:
    """What is held against a printed figure, or shown beside one number that it may be near to."""
    printed = (one for one in loaded.scenario.expect if one.printed is not None)
    return [one for one in printed if one.kind != "shown" or len(one.printed_ends) == 1]


def figures(loaded: Loaded, _: Point) -> Rows:
    """Run the rows with printed figures, and judge; what is only shown is held against what is printed, too."""
    ours: dict[str, object] = {**dict.fromkeys(LIMITS, None), "faster_than": None, "kind": "predicted"}
    compared = _compared(loaded)
    held = [one.model_copy(update=ours) if one.kind == "shown" else one for one in compared]
    return [
        Judged(loaded.scenario.name, verdict).row
        | {"claim": verdict.why or f"{verdict.row}: {verdict.column}", "kind": one.kind}
        | {"asks": verdict.asks, "holds": verdict.holds}
        for verdict, one in zip(judged(loaded, held), compared, strict=True)
    ]


def dependences(outcomes: ShownRows) -> list[dict[str, Any]]:
    """Sum up what each figure depends on.

    Parameters
    ----------
    outcomes
        One per scenario, parameter, value and figure: see `figures`.

    Returns
    -------
    list of dict
        ``scenario``, ``claim``, ``figure``, ``row``, ``column``, ``printed``, ``kind``, ``verdict``, ``tolerance``;
        ``parameter``, ``unit``; ``taken``, ``low``, ``high``, as numbers; ``obtained``, ``obtained_low``,
        ``obtained_high``, for people, and ``error``, ``error_low``, ``error_high``, as shares of what is printed, with
        what is taken and at the ends; ``error_least``, ``error_most`` over all values; ``swing``, from one to the
        other, None if no step ends with some value; ``monotone``; ``holds``, a list of stretches (of what is only
        shown: where it is near); ``tried``, with how many values.
    """
    rows = []
    for group in by(outcomes, "scenario", "asks", "parameter").values():
        own = sorted(group, key=lambda row: row["value"])
        nominal, low, high = next(row for row in own if row["value"] == row["taken"]), own[0], own[-1]
        errors = [row["error"] for row in own if present(row["error"])]
        steps = [later - earlier for earlier, later in pairwise(errors)]
        stretches = [list(run) for holds, run in groupby(own, lambda row: row["holds"]) if holds]
        ends = (("", nominal), ("_low", low), ("_high", high))
        about = ("scenario", "claim", "figure", "row", "column", "printed", "kind", "verdict", "tolerance", "asks",
                 "parameter", "unit", "taken")  # fmt: skip
        rows.append(
            {key: nominal[key] for key in about}
            | {"low": low["value"], "high": high["value"]}
            | {f"{key}{end}": row[key] for key in ("obtained", "error") for end, row in ends}
            | {"error_least": min(errors, default=None), "error_most": max(errors, default=None)}
            | {"swing": max(errors) - min(errors) if len(errors) == len(own) else None}
            | {"monotone": min(steps, default=0) >= -_SEEN or max(steps, default=0) <= _SEEN}
            | {"holds": [[stretch[0]["value"], stretch[-1]["value"]] for stretch in stretches], "tried": len(own)}
        )
    return rows


def sensitivity_view(rows: ShownRows, outcomes: ShownRows, explained: Sequence[str]) -> View:
    """Show dependences.

    Parameters
    ----------
    rows, outcomes
        What `dependences` gives, and what it sums up.
    explained
        How many free parameters explain how many figures.
    """
    sections, sentences = [], []
    for own in by(rows, "scenario", "asks").values():
        group = sorted(own, key=lambda row: -float("inf") if row["swing"] is None else -row["swing"])
        sections.append(Section(_headline(group[0]), _columns(group)))
        sentences += _told(group)
    meant = [f"{_MEANT} {_NEAR}" if any(row["kind"] == "shown" for row in rows) else _MEANT]
    panels = []
    for (scenario, parameter), own in by(outcomes, "scenario", "parameter").items():
        curves = [
            curve(claim, sorted(figure, key=lambda row: row["value"]), "value", "error", 100)
            for (claim,), figure in by(own, "claim").items()
        ]
        unit = f" [{own[0]['unit']}]" if own[0]["unit"] else ""
        panels.append(Panel(scenario, f"{parameter}{unit}, difference from what is printed; dots: holds", "%", curves))
    return View("What claims depend on", sections, [*sentences, *meant, "", *explained], panels)


def _headline(row: ShownRow) -> str:
    """Say what is claimed, printed and obtained."""
    is_shown = row["kind"] == "shown"
    told = f"{row['claim']}: {'shown' if is_shown else row['verdict']}, {row['printed']} printed"
    accepted = f", {row['tolerance']} {'is near' if is_shown else 'accepted'}" if row["tolerance"].endswith("%") else ""
    return f"{told}, {row['obtained']} obtained{accepted}"


def _value(row: ShownRow, value: float) -> str:
    if row["unit"] == "x":
        return f"{value:.3g}x"
    if row["unit"]:
        return human(value, row["unit"])
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _stretch(row: ShownRow, low: float, high: float) -> str:
    ends = dict.fromkeys(_value(row, end) for end in (low, high))
    return " to ".join(ends)


def _holds(row: ShownRow) -> str:
    if row["holds"] == [[row["low"], row["high"]]]:
        return "all"
    return listed([_stretch(row, *stretch) for stretch in row["holds"]]) or "nowhere"


def _columns(group: ShownRows) -> list[Any]:
    def at_ends(row: ShownRow) -> str:
        told = f"{signed(row['error_low'])} to {signed(row['error_high'])}"
        between = f", {signed(row['error_least'])} to {signed(row['error_most'])} between"
        return told if row["monotone"] else told + between

    return [
        texts("  what is not stated", group, lambda row: f"  {row['parameter']}"),
        texts("taken", group, lambda row: _value(row, row["taken"]), left=False),
        texts("tried", group, lambda row: _stretch(row, row["low"], row["high"]), left=False),
        texts("error at the ends", group, at_ends),
        texts("near for" if group[0]["kind"] == "shown" else "holds for", group, _holds),
    ]


def _told(group: ShownRows) -> list[str]:
    """Say of one figure for what it holds, or is near, and with what it goes up and down."""
    name, nominal = group[0]["claim"], group[0]
    does, would = ("is near", "would be near") if nominal["kind"] == "shown" else ("holds", "would hold")
    is_held = any(low <= nominal["taken"] <= high for low, high in nominal["holds"])
    some = [f"{row['parameter']} {_holds(row)}" for row in group if _holds(row) not in ("all", "nowhere")]
    wide = [row["parameter"] for row in group if _holds(row) == "all"]
    jumping = [row["parameter"] for row in group if not row["monotone"]]
    told = [f"{name} {does if is_held else would} for {listed(some)}."] if some else []
    told += [f"{name} {does} with no value that was tried."] if not some and not is_held else []
    told += [f"{name} {does} for any {listed(wide)} that was tried."] if wide else []
    jumps = f"{name} goes up and down with {listed(jumping)}, so that where it {does} is no range."
    return [*told, *([jumps] if jumping else [])]
