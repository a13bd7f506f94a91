"""What pictures are made of: a canvas, axes below each other, and a legend at the side.

Drawn with matplotlib's objects on its Agg canvas, without pyplot: there is no global state, no window, and half the
import time. A picture shows itself in a notebook.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from simulator.plan import COMPUTE
from simulator.report.rows import Row
from simulator.trace import Block

WIDTH_IN, _DPI = 13.0, 110
_TOP_IN, _BOTTOM_IN, _RIGHT_IN, _GAP_IN = 0.38, 0.55, 1.75, 0.22
"""Margins, and the gap between two axes; placing everything by hand takes half the time of a layout engine."""
INK, FAINT = "#222222", "#8a8a8a"
TEXT: dict[str, Any] = {"fontsize": 9, "color": INK, "parse_math": False}
_THIN, _WIDER, _WIDEST = 1.5, 2.5, 9.0
"""Widths: of the curve on top, how much wider the one below it is, and at most."""
_FEW_STEPS = 40
"""Steps whose ends can still be told apart."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw as matplotlib ships it, whatever a user's file or session says; `with` this, or as a decorator."""
    with rc_context():
        rcParams.update({name: value for name, value in rcParamsDefault.items() if not name.startswith("backend")})
        yield


class Picture(Figure):
    """A matplotlib figure that a notebook shows."""

    def __init__(self, height_in: float) -> None:
        super().__init__(figsize=(WIDTH_IN, height_in), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(self)

    def write(self, path: str | IO[bytes], kind: str = "png") -> None:
        """Write the picture as PNG or SVG; the same picture gives the same bytes.

        A character that the font lacks is drawn as an empty box, without a warning.
        """
        more: dict[str, Any] = {"metadata": {"Date": None}}
        if kind == "png":
            more = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 3}}
        with styled(), rc_context({"svg.hashsalt": "hosim"}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
            self.savefig(path, format=kind, **more)

    def png(self) -> bytes:
        """Return the picture as PNG."""
        out = io.BytesIO()
        self.write(out)
        return out.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def stacked(
    heights_in: list[float], labels: list[str], top_in: float = 0, apart: int = 0
) -> tuple[Picture, list[Axes]]:
    """Axes of these heights below each other with one time axis; room for the labels on the left, and more on top.

    As many as are `apart`, the first ones, have a time axis of their own.
    """
    ends = {apart - 1, len(heights_in) - 1} & set(range(len(heights_in)))
    height = _TOP_IN + top_in + sum(heights_in) + _GAP_IN * (len(heights_in) - len(ends)) + _BOTTOM_IN * len(ends)
    picture = Picture(height)
    left = 0.25 + 0.085 * max(7, *map(len, labels))
    top, axes = height - _TOP_IN - top_in, list[Axes]()
    for number, inches in enumerate(heights_in):
        place = (left / WIDTH_IN, (top - inches) / height, 1 - (left + _RIGHT_IN) / WIDTH_IN, inches / height)
        axes.append(picture.add_axes(place, sharex=axes[-1] if axes and number != apart else None))
        axes[-1].tick_params(labelbottom=number in ends)
        top -= inches + (_BOTTOM_IN if number in ends else _GAP_IN)
    return picture, axes


def pixels(ax: Axes, size: int) -> NDArray[np.float64]:
    """Where the pixels of a time axis begin, and where the last ends [ns]; `size` is how many ns its unit has."""
    return np.linspace(*ax.get_xlim(), max(1, round(ax.bbox.width)) + 1) * size


def highest(time_ns: NDArray[np.int64], value: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose for each pixel the change after which something that lasts from change to change is highest in it.

    Parameters
    ----------
    time_ns, value
        When it changes, ascending [ns], and to what; of several changes at one instant the last one counts.
    edges
        As `pixels` returns them.

    Returns
    -------
    array of int
        The number of a change; -1 for a pixel before the first.
    """
    lasting = np.flatnonzero(np.append(time_ns[1:] != time_ns[:-1], True))
    moments = time_ns[lasting]
    before = np.searchsorted(moments, edges[:-1], "right") - 1
    found = np.where(before >= 0, lasting[before], -1)
    pixel = np.searchsorted(edges, moments, "right") - 1
    inside = (pixel >= 0) & (pixel < len(found))
    changes, pixel = lasting[inside], pixel[inside]
    order = np.lexsort((value[changes], pixel))
    most = order[np.append(pixel[order][1:] != pixel[order][:-1], True)] if len(order) else order
    rises = (found[pixel[most]] < 0) | (value[changes[most]] > value[found[pixel[most]]])
    found[pixel[most][rises]] = changes[most][rises]
    return found


def units(extent_ns: int) -> tuple[str, int]:
    """Choose the unit of a time axis: its name, and how many ns it has."""
    for name, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if extent_ns >= size:
            return name, size
    return "ns", 1


def byte_unit(most: float) -> tuple[str, int]:
    """Choose the unit of an axis of bytes: its name, and how many bytes it has."""
    for name, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if most >= size:
            return name, size
    return "B", 1


def widths(curves: int) -> list[float]:
    """Widths of curves that are drawn one over another: each wider than those above it, so that it shows at a tie."""
    wider = min(_WIDER, (_WIDEST - _THIN) / max(1, curves - 1))
    return [_THIN + wider * above for above in reversed(range(curves))]


def plain(ax: Axes) -> None:
    """Draw two of the four sides, faintly, and small numbers."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FAINT)
    ax.tick_params(colors=INK, labelsize=8)


def side_legend(picture: Picture, marks: list[tuple[str, str]]) -> None:
    """Write a legend at the right: (text, colour), (heading, nothing) or (text, style of a line)."""
    height = picture.get_figheight()
    x, box, line = 1 - (_RIGHT_IN - 0.12) / WIDTH_IN, 0.17 / WIDTH_IN, 0.175 / height
    y = 1 - _TOP_IN / height
    for text, mark in marks:
        y -= line if mark else 1.25 * line
        middle = y + 0.055 / height
        if mark.startswith("#"):
            picture.add_artist(Rectangle((x, y), box, 0.11 / height, color=mark, linewidth=0))
        elif mark:
            style: dict[str, Any] = {"color": FAINT if mark == ":" else INK, "linewidth": 1.1, "linestyle": mark}
            picture.add_artist(Line2D([x, x + box], [middle, middle], **style))
        weight = "normal" if mark else "bold"
        indent = 1.5 * box if mark else 0
        picture.text(x + indent, middle, text, fontsize=8, color=INK, va="center", weight=weight)


def within(block: Block, first: int, last: int) -> Block:
    """Rows of some spans, or waits, that lie in a window [ns] at least in part."""
    return only(block, (block["end_ns"] >= first) & (block["start_ns"] <= last))


def only(block: Block, chosen: NDArray[np.bool_]) -> Block:
    """The chosen rows of some spans or waits."""
    return {name: column[chosen] for name, column in block.items()}


def step_ends(row: Row, spans: Block) -> list[int]:
    """Ends of all steps of one rank [ns], ascending."""
    ran = spans["kind"] == COMPUTE
    ends = spans["end_ns"][ran & (spans["item"] == len(row.graph.ops) - 1)]
    return [int(end) for end in np.sort(ends)]


def draw_boundaries(ax: Axes, ends: list[int], size: int) -> None:
    """Draw a dotted line where each step ends."""
    if len(ends) <= _FEW_STEPS:
        for end in ends:
            ax.axvline(end / size, color=FAINT, linewidth=0.8, linestyle=":")
