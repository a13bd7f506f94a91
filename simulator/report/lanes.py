"""Lanes of a timeline: what one stream or channel did, as bars.

A picture has far fewer pixels than a run has ops. What lasts longer than a pixel is a bar; a pixel in which something
shorter happened is divided by height as its time is, so that stalls between short ops show as much as they take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from simulator.report.drawing import pixels

Times = NDArray[np.int64]
Floats = NDArray[np.float64]

_FEW = 120
"""Bars of a lane that can still be told apart, and are given a white edge."""


def bars(
    ax: Axes, band: tuple[float, float], ends: tuple[Times, Times], group: Times, tints: Sequence[str], size: int
) -> None:
    """Draw one lane.

    Parameters
    ----------
    ax
        Where; its limits of time are set, and it is placed for good.
    band
        From where to where the lane reaches, the upper end first.
    ends
        Starts and ends [ns].
    group, tints
        Which colour each has, and the colours; in a pixel that is divided the first is lowest.
    size
        Nanoseconds of one unit of the axis.
    """
    start, end = ends
    few = len(group) <= _FEW
    edges = pixels(ax, size)
    pixel = edges[1] - edges[0]
    long = end - start > pixel
    end = _closed(start, end, long, pixel)
    hair = (edges[-1] - edges[0]) / 300
    for key, tint in enumerate(tints):
        mine = long & (group == key)
        edged = mine & few & (end - start > hair)
        for chosen, width in ((edged, 0.6), (mine & ~edged, 0.0)):
            low, high = (np.full(chosen.sum(), y) for y in band)
            _draw(ax, (start[chosen] / size, end[chosen] / size), (low, high), tint, width)
    cells = _cells(edges, start[~long], end[~long])
    spent = [_spent(edges, start[group == key], end[group == key])[cells] for key in range(len(tints))]
    tops = np.cumsum(spent, axis=0)
    whole = np.where(tops[-1] > 0, tops[-1], 1)
    heights = band[1] - (band[1] - band[0]) * np.vstack([np.zeros_like(whole), tops]) / whole
    for key, tint in enumerate(tints):
        seen = spent[key] > 0
        sides = edges[cells][seen] / size, edges[cells + 1][seen] / size
        _draw(ax, sides, (heights[key + 1][seen], heights[key][seen]), tint, 0.0)


def _closed(start: Times, end: Times, long: NDArray[np.bool_], pixel: float) -> Times:
    """The ends of bars, those moved to the next bar that come less than a pixel before it.

    Else where the edges happen to lie decides whether so short a gap is a whole pixel or none.
    """
    at = np.flatnonzero(long)
    at = at[np.argsort(start[at], kind="stable")]
    gap = start[at[1:]] - end[at[:-1]]
    short = (gap > 0) & (gap < pixel)
    found = end.copy()
    found[at[:-1][short]] = start[at[1:][short]]
    return found


def _cells(edges: Floats, start: Times, end: Times) -> NDArray[np.intp]:
    """The pixels in which something begins or ends."""
    inside = (end > edges[0]) & (start < edges[-1])
    at = np.searchsorted(edges, np.concatenate([start[inside], end[inside] - 1]), "right") - 1
    return np.unique(at.clip(0, len(edges) - 2))


def _spent(edges: Floats, start: Times, end: Times) -> Floats:
    """How long each pixel is covered [ns]; twice where two lie over each other."""
    since, before = edges - edges[0], np.zeros_like(edges)
    for moments, sign in ((start, 1), (end, -1)):
        ordered = np.sort(moments.clip(edges[0], edges[-1]) - edges[0])
        passed = np.searchsorted(ordered, since, "right")
        before += sign * (passed * since - np.concatenate([[0], np.cumsum(ordered)])[passed])
    found: Floats = np.diff(before).round(3)
    return found


def _draw(ax: Axes, sides: tuple[Floats, Floats], ends: tuple[Floats, Floats], tint: str, width: float) -> None:
    if sides[0].size:
        patch = PathPatch(_rectangles(*sides, *ends), facecolor=tint, edgecolor="white", linewidth=width)
        patch.set_snap(True)
        ax.add_artist(patch)


def _rectangles(left: Floats, right: Floats, low: Floats, high: Floats) -> Path:
    """One path of many rectangles: far quicker to make and to draw than a patch for each."""
    corners = np.stack([left, low, left, high, right, high, right, low, left, low], axis=1)
    codes = np.tile(np.array([Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY], dtype=Path.code_type), len(left))
    return Path(corners.reshape(-1, 2), codes)
