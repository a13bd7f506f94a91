"""The picture of several ranks: where the step of each goes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from simulator.report import colours
from simulator.report.drawing import FAINT, LIMIT, TEXT, Picture, side_legend, stacked, styled, units
from simulator.report.ranks import of_ranks
from simulator.report.rows import Row
from simulator.trace import CAUSES

_APART = 64
"""So many ranks are told apart by a line between two."""
_FEW = 16
"""So few changes of the program are marked."""
_SPENT = {
    "compute": ("compute_ns", colours.COMPUTE),
    "recompute": ("recompute_ns", colours.RECOMPUTE),
    **{f"stall: {cause}": (f"wait_{cause}_ns", colours.CAUSE[cause]) for cause in CAUSES},
}
"""What a rank spends its step on -> its column, and its colour."""


@styled()
def spent(row: Row) -> Picture:
    """Draw where each rank's step goes: compute, recompute, and waits by cause, rank beside rank.

    Parameters
    ----------
    row
        A row of several ranks that ran to its end.
    """
    counts = {view.rank: view.summary for view in of_ranks(row)}
    summaries = [counts[by] for by in (row.trace.stands_in if row.trace is not None else ())]
    most = max(summary["step_ns"] for summary in summaries)
    unit, size = units(int(most))
    picture, (ax,) = stacked([2.4])
    edges, below = np.arange(len(summaries) + 1) - 0.5, np.zeros(len(summaries))
    marks = []
    for name, (column, shade) in _SPENT.items():
        values = np.array([summary.get(column) or 0 for summary in summaries]) / size
        if values.any():
            ax.stairs(below + values, edges, baseline=below, fill=True, color=shade)
            marks.append((name, shade))
        below += values
    met = np.array([summary.get("collective_ns") or 0 for summary in summaries]) / size
    ax.stairs(met, edges, baseline=None, **LIMIT)
    if len(summaries) <= _APART:
        for edge in edges[1:-1]:
            ax.axvline(edge, color="white", linewidth=0.8)
    _mark_programs(ax, row)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.08 * most / size)
    ax.set_ylabel(f"one step [{unit}]", **TEXT)
    ax.set_xlabel("rank", **TEXT)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    side_legend(picture, [*marks, ("collectives under way", "--")])
    picture.title(f"{row.label}: where the step of each rank goes")
    return picture


def _mark_programs(ax: Axes, row: Row) -> None:
    """Draw a line where the program changes from one rank to the next, if that is seldom."""
    changes = np.flatnonzero(np.diff(row.job.graph_of)) + 0.5
    for at in changes if len(changes) < _FEW else ():
        ax.axvline(at, color=FAINT, linewidth=1.1, linestyle=":")
