"""What pictures of a sweep are drawn from: curves over one axis, and maps over two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Rows = Sequence[Mapping[str, Any]]


class Panel(NamedTuple):
    """Curves over one axis.

    Attributes
    ----------
    title, axis, unit
        What is drawn, over what, in which unit: ``ns``, ``B``, ``%``, or none.
    rows, x, y, of
        The points, and their columns: value on the axis, height, and the name of the curve. Points without a height are
        left out; those that hold (``holds``) have a large dot.
    scale
        What heights are multiplied by.
    band
        Columns of the ends of a band around each curve, which thin lines show.
    limit
        A height that is drawn if it is near.
    dense
        Of many points, which have no marks: the scale of the axis, ``log`` if they are far apart on it.
    """

    title: str
    axis: str
    unit: str
    rows: Rows
    x: str
    y: str
    of: str = "policy"
    scale: float = 1
    band: tuple[str, ...] = ()
    limit: float = math.inf
    dense: Literal["", "linear", "log"] = ""


class Map(NamedTuple):
    """Heights over two axes.

    Attributes
    ----------
    title
        What is drawn.
    axes
        What varies from left to right, and from bottom to top.
    ticks
        Their values, as they are written.
    heights
        From bottom to top a line of heights from left to right; None where nothing ran.
    best
        What heights are held against: contours show how many times as high they are.
    """

    title: str
    axes: tuple[str, str]
    ticks: tuple[Sequence[str], Sequence[str]]
    heights: Sequence[Sequence[float | None]]
    best: float
