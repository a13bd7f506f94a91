"""What pictures are made of: a canvas with a layout, axes below each other, and a legend at the side.

Drawn with matplotlib's objects on its Agg canvas, without pyplot: there is no global state, no window, and half the
import time. A picture shows itself in a notebook.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from numpy.typing import NDArray

from simulator.report import colours

Ints = NDArray[np.int64]

WIDTH_IN, _DPI = 13.0, 110
_AXIS_IN, _HEAD_IN, _LINE_IN = 0.5, 0.45, 0.175
"""What a time axis with its label takes, a title, and a line of the legend."""
_THIN, _WIDER, _WIDEST = 1.5, 2.5, 9.0
"""Widths: of the curve on top, how much wider the one below it is, and at most."""

_FEW = 120
"""Bars of a lane that can still be told apart, and are parted by white lines."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw as matplotlib ships it, whatever a user's file or session says; `with` this, or as a decorator.

    A character that the font lacks is drawn as an empty box, without a warning.
    """
    with rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        rcParams.update({name: value for name, value in rcParamsDefault.items() if not name.startswith("backend")})
        yield


class _Layout(ConstrainedLayoutEngine):
    """Matplotlib's constrained layout, its places rounded.

    The last digit its solver gives depends on where objects lie in memory, and the name of a clip path in an SVG on it.
    """

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for ax in fig.axes:
            left, bottom, width, height = (round(edge, 9) for edge in ax.get_position(original=True).bounds)
            ax.set_position((left, bottom, width, height))
            ax.set_in_layout(True)


class Picture(Figure):
    """A matplotlib figure that a notebook shows.

    Parameters
    ----------
    height_in
        Its height [in].
    """

    def __init__(self, height_in: float) -> None:
        super().__init__(figsize=(WIDTH_IN, height_in), dpi=_DPI, facecolor="white", layout=_Layout())
        FigureCanvasAgg(self)

    def title(self, text: str, handles: Sequence[Artist] = (), beside: int = 12) -> None:
        """Write above the picture what it shows, and what some marks mean, so many of them beside each other."""
        if not handles:
            self.suptitle(text, x=0.01, ha="left", **(colours.TEXT | {"fontsize": 11}))
            return
        look = {"loc": "outside upper left", "title": text, "title_fontsize": 11, "alignment": "left"}
        self.key(handles, **look, ncols=beside, columnspacing=1.4)

    def key(self, handles: Sequence[Artist], **look: Any) -> list[Text]:
        """Write what marks mean, and return the texts of it."""
        legend = self.legend(handles=handles, fontsize=8, frameon=False, handlelength=1.2, **look)
        texts = [*legend.get_texts(), legend.get_title()]
        for written in texts:
            written.set_parse_math(False)
        return texts[:-1]

    def settle(self) -> None:
        """Place everything for good, so that axes know their pixels: what they are labelled with is known by now."""
        self.draw_without_rendering()
        self.set_layout_engine("none")

    def write(self, path: str | IO[bytes], kind: str = "png") -> None:
        """Write the picture as PNG or SVG; the same picture gives the same bytes."""
        more: dict[str, Any] = {"metadata": {"Date": None}}
        if kind == "png":
            more = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 3}}
        with styled(), rc_context({"svg.hashsalt": "hosim"}):
            self.savefig(path, format=kind, **more)

    def png(self) -> bytes:
        """Return the picture as PNG."""
        out = io.BytesIO()
        self.write(out)
        return out.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def stacked(heights_in: Sequence[float], apart: int = 0, legend_lines: int = 0) -> tuple[Picture, list[Axes]]:
    """Axes of about these heights below each other with one time axis.

    As many as are `apart`, the first ones, have a time axis of their own. The picture is high enough for a legend of so
    many lines.
    """
    ends = {apart - 1, len(heights_in) - 1} & set(range(len(heights_in)))
    height = sum(heights_in) + 0.1 * len(heights_in) + _AXIS_IN * len(ends)
    picture = Picture(_HEAD_IN + max(height, _LINE_IN * legend_lines))
    axes = list(picture.subplots(len(heights_in), height_ratios=heights_in, squeeze=False)[:, 0])
    for number, ax in enumerate(axes):
        plain(ax)
        ax.sharex(axes[0 if number < apart else apart])
        ax.tick_params(labelbottom=number in ends)
    return picture, axes


def side_legend(picture: Picture, marks: Iterable[tuple[str, str]]) -> None:
    """Write a legend at the right: (text, colour), (heading, nothing) or (text, style of a line)."""
    marks = list(marks)
    handles: list[Artist] = []
    for text, mark in marks:
        style: dict[str, Any] = {
            "color": colours.FAINT if mark == ":" else colours.INK,
            "linewidth": 1.1,
            "linestyle": mark,
        }
        handles.append(Patch(color=mark, label=text) if mark.startswith("#") else Line2D([], [], label=text, **style))
    texts = picture.key(handles, loc="outside right upper", labelspacing=0.35)
    for written, (_, mark) in zip(texts, marks, strict=True):
        written.set_fontweight("normal" if mark else "bold")


def name_lanes(ax: Axes, names: Sequence[str]) -> None:
    """Name the lanes of an axis, the first one on top."""
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), names, **colours.TEXT)
    ax.tick_params(axis="y", length=0)


def pixels(ax: Axes, size: int) -> NDArray[np.float64]:
    """Where the pixels of a time axis begin, and where the last ends [ns]; `size` is how many ns its unit has."""
    return np.linspace(*ax.get_xlim(), max(1, round(ax.bbox.width)) + 1) * size


def units(extent_ns: int) -> tuple[str, int]:
    """Choose the unit of a time axis: its name, and how many ns it has."""
    return _unit(extent_ns, (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1)))


def byte_unit(most: float) -> tuple[str, int]:
    """Choose the unit of an axis of bytes: its name, and how many bytes it has."""
    return _unit(most, (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1)))


def _unit(most: float, known: Sequence[tuple[str, int]]) -> tuple[str, int]:
    return next((unit for unit in known if most >= unit[1]), known[-1])


def widths(curves: int) -> list[float]:
    """Widths of curves that are drawn one over another: each wider than those above it, so that it shows at a tie."""
    wider = min(_WIDER, (_WIDEST - _THIN) / max(1, curves - 1))
    return [_THIN + wider * above for above in reversed(range(curves))]


def plain(ax: Axes) -> None:
    """Draw two of the four sides, faintly, and small numbers."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(colours.FAINT)
    ax.tick_params(colors=colours.INK, labelsize=8)


def bars(
    ax: Axes, band: tuple[float, float], ends: tuple[Ints, Ints], group: Ints, tints: Sequence[str], size: int
) -> None:
    """Draw one lane: what one stream or channel did, as bars.

    A picture has far fewer pixels than a run has ops. A pixel is divided by height as its time is, so that stalls
    between short ops show as much as they take; what is free of it does not count: nothing is too short to be seen.

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
    tops = np.cumsum([np.zeros(len(edges) - 1), *spent], axis=0)
    heights = band[1] - (band[1] - band[0]) * tops / np.where(tops[-1] > 0, tops[-1], 1)
    for key, tint in enumerate(tints):
        if spent[key].any():
            lane = ax.stairs(heights[key + 1], edges / size, baseline=heights[key], fill=True, color=tint, linewidth=0)
            lane.set_snap(True)
    if len(start) <= _FEW:
        wide = start[(end - start > 3 * (edges[1] - edges[0])) & (start > edges[0])]
        ax.vlines(wide / size, *band, color="white", linewidth=0.6)


def _spent(edges: NDArray[np.float64], start: Ints, end: Ints) -> NDArray[np.float64]:
    """How long each pixel is covered [ns]; twice where two lie over each other."""
    since, before = edges - edges[0], np.zeros_like(edges)
    for moments, sign in ((start, 1), (end, -1)):
        ordered = np.sort(moments.clip(edges[0], edges[-1]) - edges[0])
        passed = np.searchsorted(ordered, since, "right")
        before += sign * (passed * since - np.concatenate([[0], np.cumsum(ordered)])[passed])
    found: NDArray[np.float64] = np.diff(before).round(3)
    return found
