"""The picture of a scaling curve: step and efficiency over ranks; or step and tokens per second over a field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, Picture, plain, units
from simulator.report.scaling import axes, is_over_ranks

_HEIGHT_IN = 4.4
_PANELS = ((0.06, 0.13, 0.41, 0.68), (0.555, 0.13, 0.41, 0.68))
_APART = 0.09
"""Share of the axis that a label takes; a point closer to the last one with a label has none."""
_DECADES = 100
"""Values that differ by more are drawn on a logarithmic axis."""
Rows = Sequence[Mapping[str, Any]]


def scaling_picture(rows: Rows, title: str) -> Picture:
    """Draw two panels: the step beside its compute, and the efficiency, or the tokens per second.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    title
        What is drawn.
    """
    picture = Picture(_HEIGHT_IN)
    steps, shares = (picture.add_axes(place) for place in _PANELS)
    unit, size = units(max((row.get("step_ns") or 0 for row in rows), default=0))
    over_ranks, (head, key), places = is_over_ranks(rows), axes(rows)[0], _places(rows)
    figure, scale = ("efficiency", 100) if over_ranks else ("tokens_per_s", 1)
    for number, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        own = [row for row in rows if row["policy"] == policy and row.get("step_ns") is not None]
        colour, at = colours.GROUPS[number % len(colours.GROUPS)], [places[row[key]] for row in own]
        steps.plot(at, [row["step_ns"] / size for row in own], color=colour, marker="o", label=policy)
        computed = [(row["compute_ns"] + row["recompute_ns"]) / size for row in own]
        steps.plot(at, computed, color=colour, linestyle=":", label=f"{policy}, of it compute")
        compared = [row for row in own if row[figure] is not None]
        shares.plot([places[row[key]] for row in compared], [scale * row[figure] for row in compared],
                    color=colour, marker="o")  # fmt: skip
    if over_ranks:
        shares.axhline(100, color=FAINT, linewidth=0.8, linestyle=":")
    _finish(steps, places, head, f"one step [{unit}]")
    _finish(shares, places, head, "efficiency against the first point [%]" if over_ranks else "tokens per second")
    picture.text(0.01, 0.97, title, va="top", fontsize=11, color=INK, parse_math=False)
    marks, texts = steps.get_legend_handles_labels()
    picture.legend(marks, texts, loc="upper left", bbox_to_anchor=(0.05, 0.92), ncols=4, fontsize=8, frameon=False)
    return picture


def _places(rows: Rows) -> dict[Any, float]:
    """Where on a logarithmic axis each value of the first axis is; what is not a number stands side by side."""
    values = list(dict.fromkeys(row[axes(rows)[0][1]] for row in rows))
    if all(isinstance(value, int | float) and value > 0 for value in values):
        return {value: float(value) for value in values}
    return {value: 2.0**number for number, value in enumerate(values)}


def _finish(ax: Axes, places: Mapping[Any, float], head: str, label: str) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(list(places.values())))
    ax.xaxis.set_minor_locator(NullLocator())
    apart, labels = _APART * math.log(max(places.values()) / min(places.values())), []
    last = -math.inf
    for value, place in places.items():
        is_near = math.log(place) - last < apart
        labels.append("" if is_near else f"{value:,}" if isinstance(value, int) else str(value))
        last = last if is_near else math.log(place)
    ax.set_xticklabels(labels)
    ax.set_xlabel(head, fontsize=9)
    ax.set_ylabel(label, fontsize=9)
    if ax.dataLim.y1 > _DECADES * ax.dataLim.y0 > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, 1.08 * ax.dataLim.y1 if ax.dataLim.y1 > 0 else 1)
    plain(ax)
