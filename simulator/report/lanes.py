"""Lanes of a timeline: what one stream or channel did, as bars.

A picture has far fewer pixels than a run has ops. A pixel is divided by height as its time is, so that stalls between
short ops show as much as they take; what is free of it does not count, so that nothing is too short to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from simulator.report.drawing import pixels

Times = NDArray[np.int64]
Floats = NDArray[np.float64]

_FEW = 120
"""Bars of a lane that can still be told apart, and are parted by white lines."""


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
    edges, (start, end) = pixels(ax, size), ends
    spent = [_spent(edges, start[group == key], end[group == key]) for key in range(len(tints))]
    tops = np.vstack([np.zeros(len(edges) - 1), np.cumsum(spent, axis=0)])
    heights = band[1] - (band[1] - band[0]) * tops / np.where(tops[-1] > 0, tops[-1], 1)
    for key, tint in enumerate(tints):
        if spent[key].any():
            lane = ax.stairs(heights[key + 1], edges / size, baseline=heights[key], fill=True, color=tint, linewidth=0)
            lane.set_snap(True)
    if len(start) <= _FEW:
        wide = start[(end - start > 3 * (edges[1] - edges[0])) & (start > edges[0])]
        ax.vlines(wide / size, *band, color="white", linewidth=0.6)


def _spent(edges: Floats, start: Times, end: Times) -> Floats:
    """How long each pixel is covered [ns]; twice where two lie over each other."""
    since, before = edges - edges[0], np.zeros_like(edges)
    for moments, sign in ((start, 1), (end, -1)):
        ordered = np.sort(moments.clip(edges[0], edges[-1]) - edges[0])
        passed = np.searchsorted(ordered, since, "right")
        before += sign * (passed * since - np.concatenate([[0], np.cumsum(ordered)])[passed])
    found: Floats = np.diff(before).round(3)
    return found
