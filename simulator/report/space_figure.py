"""A picture of fragmentation: what is free, how large the largest hole is, and when holes were made one."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from simulator.report import colours
from simulator.report.drawing import INK, TEXT, byte_unit, highest, pixels, plain
from simulator.report.rows import quantity
from simulator.report.usage import Space
from simulator.units import counted

HEIGHT_IN = 1.1
HOLE, FREE = "#4477aa", "#dddddd"
"""Colours of the largest hole, and of what is free beside it."""


def marks(space: Space) -> list[tuple[str, str]]:
    """What the legend says."""
    holes = [("largest hole", HOLE), ("free, in pieces", FREE)] if space.has_holes else [("free", FREE)]
    return [("addresses", ""), *holes, ("reserved, unused", "-")]


def draw(ax: Axes, space: Space, limit_bytes: float, span: tuple[int, int, int]) -> None:
    """Draw what is free, and in it the largest hole, and as a line what is reserved and not used.

    Parameters
    ----------
    ax
        Where.
    space
        What happened.
    limit_bytes
        What may be used of the tier [B].
    span
        First and last instant shown [ns], and how many ns the unit of time has.
    """
    first, last, size = span
    edges = pixels(ax, size)
    at = highest(space.time_ns, -space.hole_bytes, edges)
    at = at[at >= 0]
    time = edges[-1 - len(at) :] / size
    free, hole = limit_bytes - space.live_bytes[at], space.hole_bytes[at]
    unused = space.reserved_bytes[at] - space.live_bytes[at]
    unit, scale = byte_unit(float(max(free.max(initial=1), unused.max(initial=1))))
    layers = [(free, FREE), (np.minimum(hole, free), HOLE)] if space.has_holes else [(free, FREE)]
    for values, colour in layers:
        ax.fill_between(time, 0, np.append(values, values[-1:]) / scale, step="post", color=colour, linewidth=0)
    ax.step(time, np.append(unused, unused[-1:]) / scale, where="post", color=INK, linewidth=0.8)
    events = [ends for ends in space.compactions_ns if ends[1] >= first and ends[0] <= last]
    for start, end in events:
        ax.axvspan(start / size, end / size, color=colours.CAUSE["compaction"], alpha=0.35, linewidth=0)
    ax.set_ylim(0, 1.25 * max(free.max(initial=0), unused.max(initial=0)) / scale or 1)
    ax.set_ylabel(f"free {space.tier} [{unit}]", **TEXT)
    count = f"{counted(len(events), 'compaction')} in what is shown"
    apart = quantity(int((free - np.minimum(hole, free)).max(initial=0)), "B")
    says = (
        f"{count}, at most {apart} free outside the largest hole" if space.has_holes else "offsets fixed before the run"
    )
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
    ax.text(0.004, 0.96, says, transform=ax.transAxes, va="top", fontsize=8, color=INK, bbox=box)
    plain(ax)
