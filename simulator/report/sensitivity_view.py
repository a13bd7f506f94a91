"""How claims depend on what their sources leave open: where each holds, and how far its figure moves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from simulator.report.expectations import signed
from simulator.report.rows import listed, present
from simulator.report.view import Panel, Row, Rows, Section, View, by, curve, texts
from simulator.units import human

_SEEN = 0.0005
"""A smaller change of a share is not shown."""
_MEANT = (
    "One parameter varies at a time, and nothing is fitted again. The ends of a stretch were searched by halving; "
    "between two values that were tried and both hold, or both fail on the same side, nothing was looked at."
)
_NEAR = "A figure that is only shown does not hold: told is for which values ours is near to what is printed."


def dependences(outcomes: Rows) -> list[dict[str, Any]]:
    """Sum up what each figure depends on.

    Parameters
    ----------
    outcomes
        One per scenario, parameter, value and figure: see `simulator.run.sensitivity`.

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


def sensitivity_view(rows: Rows, outcomes: Rows, explained: Sequence[str]) -> View:
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


def _headline(row: Row) -> str:
    """Say what is claimed, printed and obtained."""
    is_shown = row["kind"] == "shown"
    told = f"{row['claim']}: {'shown' if is_shown else row['verdict']}, {row['printed']} printed"
    accepted = f", {row['tolerance']} {'is near' if is_shown else 'accepted'}" if row["tolerance"].endswith("%") else ""
    return f"{told}, {row['obtained']} obtained{accepted}"


def _value(row: Row, value: float) -> str:
    if row["unit"] == "x":
        return f"{value:.3g}x"
    if row["unit"]:
        return human(value, row["unit"])
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _stretch(row: Row, low: float, high: float) -> str:
    ends = dict.fromkeys(_value(row, end) for end in (low, high))
    return " to ".join(ends)


def _holds(row: Row) -> str:
    if row["holds"] == [[row["low"], row["high"]]]:
        return "all"
    return listed([_stretch(row, *stretch) for stretch in row["holds"]]) or "nowhere"


def _columns(group: Rows) -> list[Any]:
    def at_ends(row: Row) -> str:
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


def _told(group: Rows) -> list[str]:
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
