"""The picture of a scaling curve: step and efficiency over the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, Picture, plain, units

_HEIGHT_IN = 4.4
_PANELS = ((0.06, 0.13, 0.41, 0.68), (0.555, 0.13, 0.41, 0.68))
Rows = Sequence[Mapping[str, Any]]


def scaling_picture(rows: Rows, title: str) -> Picture:
    """Draw two panels over a logarithmic axis of ranks: the step beside its compute, and the efficiency.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    title
        What is drawn.
    """
    picture = Picture(_HEIGHT_IN)
    steps, shares = (picture.add_axes(place) for place in _PANELS)
    unit, size = units(max((row["step_ns"] or 0 for row in rows), default=0))
    for number, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        own = [row for row in rows if row["policy"] == policy and row["step_ns"] is not None]
        colour, ranks = colours.GROUPS[number % len(colours.GROUPS)], [row["ranks"] for row in own]
        steps.plot(ranks, [row["step_ns"] / size for row in own], color=colour, marker="o", label=policy)
        computed = [(row["compute_ns"] + row["recompute_ns"]) / size for row in own]
        steps.plot(ranks, computed, color=colour, linestyle=":", label=f"{policy}, of it compute")
        compared = [row for row in own if row["efficiency"] is not None]
        shares.plot([row["ranks"] for row in compared], [100 * row["efficiency"] for row in compared],
                    color=colour, marker="o")  # fmt: skip
    shares.axhline(100, color=FAINT, linewidth=0.8, linestyle=":")
    _finish(steps, rows, f"one step [{unit}]")
    _finish(shares, rows, "efficiency against the first point [%]")
    picture.text(0.01, 0.97, title, va="top", fontsize=11, color=INK, parse_math=False)
    marks, texts = steps.get_legend_handles_labels()
    picture.legend(marks, texts, loc="upper left", bbox_to_anchor=(0.05, 0.92), ncols=4, fontsize=8, frameon=False)
    return picture


def _finish(ax: Axes, rows: Rows, label: str) -> None:
    ranks = sorted({row["ranks"] for row in rows})
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(ranks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{count:,}" for count in ranks])
    ax.set_xlabel("ranks", fontsize=9)
    ax.set_ylabel(label, fontsize=9)
    ax.set_ylim(0, 1.08 * ax.dataLim.y1 if ax.dataLim.y1 > 0 else 1)
    plain(ax)
