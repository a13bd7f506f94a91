"""Panels of memory over time: what lies in a tier by tensor kind, and what is free where places have addresses."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, LIMIT, TEXT, byte_unit, pixels
from simulator.report.rows import quantity
from simulator.report.usage import KINDS, Space, Usage
from simulator.units import counted

Ints = NDArray[np.int64]
HOLE, FREE = "#4477aa", "#dddddd"
"""Colours of the largest hole, and of what is free beside it."""
_FAR = 4
"""A limit so many times the peak is left out of the picture."""


class UsagePanel:
    """What lies in a tier, by tensor kind, and its limit.

    Parameters
    ----------
    ax, usage
        Where, and what.
    compute_tier
        Name of the tier whose limit is the budget.
    """

    HEIGHT_IN = 1.65

    def __init__(self, ax: Axes, usage: Usage, compute_tier: str) -> None:
        self._ax, self._usage, limit = ax, usage, float(usage.limit_bytes)
        peak = int(usage.total_bytes.max())
        self.shows_limit = math.isfinite(limit) and limit <= _FAR * peak
        allowed = usage.limit(compute_tier)
        beyond = "" if self.shows_limit else " (beyond the picture)"
        says = f"peak {quantity(peak, 'B')}" + (f", {allowed}{beyond}" if allowed else "")
        self._scale = _labelled(ax, usage.tier, max(peak, limit if self.shows_limit else 0), says)

    def draw(self, size: int) -> None:
        """Draw the most that lies in the tier within each pixel; `size` is how many ns a unit of time has."""
        usage, ax, edges = self._usage, self._ax, pixels(self._ax, size)
        at = highest(usage.time_ns, usage.total_bytes, edges)
        tops = np.cumsum(np.where(at >= 0, usage.kind_bytes[:, at], 0) / self._scale, axis=0)
        for k in reversed(usage.kinds):  # the highest first, each down to 0, so that no seam shows between two
            _fill(ax, edges / size, tops[k], colours.KIND[KINDS[k]])
        ax.stairs(tops[-1], edges / size, color=FAINT, linewidth=0.6)
        if self.shows_limit:
            ax.axhline(float(usage.limit_bytes) / self._scale, **LIMIT)


class SpacePanel:
    """What is free of a tier, in it the largest hole, and as a line what is reserved and not used.

    Parameters
    ----------
    ax, space
        Where, and what happened.
    limit_bytes
        What may be used of the tier [B].
    window_ns
        First and last instant shown [ns].
    """

    HEIGHT_IN = 1.1

    def __init__(self, ax: Axes, space: Space, limit_bytes: float, window_ns: tuple[int, int]) -> None:
        self._ax, self._space = ax, space
        self._free, self._unused = limit_bytes - space.live_bytes, space.reserved_bytes - space.live_bytes
        self._hole = np.minimum(space.hole_bytes, self._free)
        self._events = [ends for ends in space.compactions_ns if ends[1] >= window_ns[0] and ends[0] <= window_ns[1]]
        apart = quantity(int((self._free - self._hole).max(initial=0)), "B")
        count = f"{counted(len(self._events), 'compaction')} in what is shown"
        says = f"{count}, at most {apart} free outside the largest hole"
        most = float(max(self._free.max(initial=0), self._unused.max(initial=0)))
        label = f"free {space.tier}"
        self._scale = _labelled(ax, label, most, says if space.has_holes else "offsets fixed before the run")

    @property
    def marks(self) -> list[tuple[str, str]]:
        """What the legend says."""
        holes = [("largest hole", HOLE), ("free, in pieces", FREE)] if self._space.has_holes else [("free", FREE)]
        return [("addresses", ""), *holes, ("reserved, unused", "-")]

    def draw(self, size: int) -> None:
        """Draw the smallest largest hole within each pixel; `size` is how many ns a unit of time has."""
        ax, edges = self._ax, pixels(self._ax, size)
        at = highest(self._space.time_ns, -self._space.hole_bytes, edges)
        at = at[at >= 0]
        time = edges[-1 - len(at) :] / size
        _fill(ax, time, self._free[at] / self._scale, FREE)
        if self._space.has_holes:
            _fill(ax, time, self._hole[at] / self._scale, HOLE)
        ax.stairs(self._unused[at] / self._scale, time, baseline=None, color=INK, linewidth=0.8)
        for start, end in self._events:
            ax.axvspan(start / size, end / size, color=colours.CAUSE["compaction"], alpha=0.35, linewidth=0)


def _labelled(ax: Axes, what: str, most: float, says: str) -> int:
    """Say what a panel shows, in which unit; return how many bytes that has."""
    unit, scale = byte_unit(most)
    ax.set_ylim(0, 1.25 * most / scale or 1)
    ax.set_ylabel(f"{what} [{unit}]", **TEXT)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
    ax.text(0.004, 0.97, says, transform=ax.transAxes, va="top", fontsize=8, color=INK, bbox=box)
    return scale


def _fill(ax: Axes, edges: NDArray[np.float64], values: NDArray[np.float64], colour: str) -> None:
    ax.fill_between(edges, 0, np.append(values, values[-1:]), step="post", color=colour, linewidth=0)


def highest(time_ns: Ints, value: Ints, edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose for each pixel the change after which something that lasts from change to change is highest in it.

    Parameters
    ----------
    time_ns, value
        When it changes, ascending [ns], and to what; of several changes at one instant the last one counts.
    edges
        As `simulator.report.drawing.pixels` returns them.

    Returns
    -------
    array of int
        The number of a change; -1 for a pixel before the first.
    """
    lasting = np.flatnonzero(np.append(time_ns[1:] != time_ns[:-1], True))
    first = np.searchsorted(time_ns[lasting], edges[:-1], "right") - 1
    last = np.searchsorted(time_ns[lasting], edges[1:], "left") - 1
    found = np.where(first >= 0, lasting[first], -1)
    for pixel in np.flatnonzero(last > first):
        inside = lasting[max(first[pixel], 0) : last[pixel] + 1]
        found[pixel] = inside[value[inside].argmax()]
    return found
