"""The elements of pictures: axes with a title and one legend, bars that hide nothing, and colours.

They draw with matplotlib's objects on its Agg canvas, without pyplot: no global state, no window, and half the import
time. In a notebook axes show their whole picture. Colours are from Paul Tol's schemes, which colour-blind readers can
tell apart: light fills for tensor kinds, vibrant tones for causes of stalls, greys for compute; pages use the same.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, cycle, pairwise
from typing import IO, Any, cast
from zlib import Z_RLE

import numpy as np
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.offsetbox import OffsetBox
from matplotlib.patches import Patch, StepPatch
from numpy.typing import NDArray
from PIL import Image

from simulator.metrics.rows import DRAINED
from simulator.trace import Ints

KIND = {
    "weight": "#77aadd",
    "gradient": "#ee8866",
    "optimizer_state": "#aaaa00",
    "activation": "#44bb99",
    "kv_cache": "#eedd88",
    "expert": "#ffaabb",
    "workspace": "#dddddd",
    "input": "#99ddff",
}
"""Tensor kind -> colour of its memory and of its transfers."""
CAUSE = {
    "capacity": "#ee7733",
    "transfer": "#cc3311",
    "host": "#ee3377",
    "compaction": "#663333",
    "peer": "#33bbee",
    "order": "#0077bb",
    "collective": "#ccbb44",
    "host_compute": "#997700",
}
"""Cause of a wait -> colour of the stall."""
PHASE = {"forward": "#8d99a6", "backward": "#5d6b7a", "update": "#2f3b47", "prefill": "#8d99a6", "decode": "#5d6b7a"}
PHASE["delay"] = "#b8a9c9"
"""Phase of an op, or its being a delay -> colour of its bar."""
COMPUTE, RECOMPUTE, DRAIN = "#75828f", "#aa4499", "#bfc6cd"
"""Colours of: compute of an op without a phase; recompute in any phase; copies after the last op."""
SPENT = {"compute": COMPUTE, "recompute": RECOMPUTE, "delay": PHASE["delay"]}
SPENT |= {**{f"stall: {cause}": tint for cause, tint in CAUSE.items()}, DRAINED: DRAIN}
"""Part of a step -> its colour."""
PEAK = "#b4c4d4"
"""The peak of a memory."""
GROUPS = ("#332288", "#117733", "#882255", "#88ccee", "#999933", "#44aa99")
"""Colours of groups of ranks, and of curves, in turn."""
INK, FAINT = "#222222", "#8a8a8a"
LIMIT: dict[str, Any] = {"color": INK, "linewidth": 1.1, "linestyle": (0, (5, 2))}
"""The line of a limit, such as a budget."""
TEXT: dict[str, Any] = {"fontsize": 9, "color": INK, "parse_math": False}

WIDTH_IN, HEAD_IN, _DPI = 13.0, 0.8, 110
"""Width of a picture, and height of its title with the legend."""
_LETTERS = 190
"""Letters of the legend that fit in a line, as measured."""
_TITLE, _LINE, _LEFT, _BOTTOM, _LABEL, _APART = 20, 12.5, 48, 32, 36, 8.5
"""Of a picture of lanes: heights of its title and of a line of its legend, margins if names of lanes are short, the way
from a vertical axis to the middle of its label, and what keeps parts apart [points]."""
_MARKERS = "osD^vP"
_THIN, _WIDER, _WIDEST = 1.5, 2.5, 9.0
"""Widths [points]: of the top curve, by how much each curve below it is wider, and of the widest."""
_FEW = 120
"""Most bars of a lane that white lines separate: more cannot be told apart."""
Drawn = Axes
"""The axes that were drawn into; of a picture, its first axes."""
Given = Axes | Sequence[Axes] | None
"""Axes to draw into, the first for the main part; a part without axes is left out."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw with matplotlib's defaults, whatever the user's settings are; a context manager and a decorator.

    A character that the font lacks is drawn as an empty box, without a warning.
    """
    with rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        default = {name: value for name, value in rcParamsDefault.items() if not name.startswith("backend")}
        default["text.hinting"] = "no_hinting"  # letters fitted to pixels look no better, and take twice the time
        rcParams.update({name: value for name, value in default.items() if rcParams[name] != value})
        yield


class _Layout(ConstrainedLayoutEngine):
    """Matplotlib's constrained layout, with rounded positions.

    The solver's last digit depends on memory addresses, and would change the names of clip paths in an SVG.
    """

    def execute(self, fig: Figure) -> None:
        super().execute(fig)
        for ax in fig.axes:
            left, bottom, width, height = (round(edge, 9) for edge in ax.get_position(original=True).bounds)
            ax.set_position((left, bottom, width, height))
            ax.set_in_layout(True)


class Picture(Figure):
    """A matplotlib figure with its legend above all axes.

    Parameters
    ----------
    height_in
        Height of the picture without its title [in].

    Attributes
    ----------
    head_lines
        Lines of its legend.
    """

    head_lines = 0

    def __init__(self, height_in: float) -> None:
        super().__init__(figsize=(WIDTH_IN, HEAD_IN + height_in), dpi=_DPI, facecolor="white", layout=_Layout())
        self._agg: Any = FigureCanvasAgg(self)  # which has no types

    def write(self, path: str | IO[bytes], kind: str = "png") -> None:
        """Write the picture as PNG or SVG; the same picture gives the same bytes."""
        with styled(), rc_context({"svg.hashsalt": "hosim"}):
            if kind == "png":  # `savefig` would draw everything twice, and write that all is opaque
                with self.legends_measured_once():
                    self._agg.draw()
                drawn = Image.fromarray(np.asarray(self._agg.buffer_rgba())).convert("RGB")
                drawn.save(path, kind, compress_type=Z_RLE, dpi=(self.dpi, self.dpi))  # as small, and sooner done
            else:
                self.savefig(path, format=kind, metadata={"Date": None})

    @contextmanager
    def legends_measured_once(self) -> Iterator[None]:
        """Measure each box of the legends once, not anew for every box around it."""
        legends = [*self.legends, *filter(None, (ax.get_legend() for ax in self.axes))]
        boxes = [box for legend in legends for box in legend.findobj(OffsetBox)]
        for box in boxes:
            vars(box)["get_bbox"] = cache(box.get_bbox)
        yield
        for box in boxes:
            del vars(box)["get_bbox"]

    def png(self) -> bytes:
        """Return the picture as PNG."""
        out = io.BytesIO()
        self.write(out)
        return out.getvalue()


class NotebookAxes(Axes):
    """Axes that show their whole picture in a notebook."""

    def _repr_png_(self) -> bytes:
        return picture(self).png()


def picture(ax: Axes) -> Picture:
    """Return the picture that hosim's own axes belong to."""
    return cast("Picture", ax.figure)


def places(given: Given, height_in: float, shape: tuple[int, int] = (1, 1), **how: Any) -> list[Axes]:
    """Return the axes to draw into: the given ones, or all of a new picture.

    Parameters
    ----------
    given
        The user's own axes, if any.
    height_in, shape
        The height of the picture without its title [in], and its rows and columns of axes.
    **how
        See `Figure.subplots`.
    """
    if given is not None:
        return list(np.ravel(np.array(given, dtype=object)))
    axes = Picture(height_in).subplots(*shape, squeeze=False, subplot_kw={"axes_class": NotebookAxes}, **how)
    for ax in axes[:-1].flat if how.get("sharex") else ():
        ax.xaxis.set_visible(False)  # its ticks are those of the axis at the bottom, and each takes time
    return list(axes.flat)


def emptied(ax: Axes) -> list[Axes]:
    """Take all that was drawn out of the picture of axes, and return its axes: new ones take a quarter of its time."""
    figure = picture(ax)
    parts = [(*part.patches, *part.lines, *part.collections, *part.texts) for part in figure.axes]
    for artist in (*figure.legends, *chain.from_iterable(parts)):
        artist.remove()
    return figure.axes


def head(ax: Axes, title: str, marks: Mapping[str, str | Mapping[str, Any]]) -> None:
    """Write the title and the legend above a picture, or above the user's own axes."""
    handles = [
        Patch(color=look, label=text) if isinstance(look, str) else Line2D([], [], label=text, **look)
        for text, look in marks.items()
    ]
    whole, above = isinstance(ax.figure, Picture), {"loc": "lower left", "bbox_to_anchor": (0, 1.02)}
    letters = _LETTERS * (1 if whole else ax.get_window_extent().width / ax.figure.dpi / WIDTH_IN)
    look: dict[str, Any] = {"loc": "outside upper left"} if whole else above
    columns = max(1, int(letters) // (7 + max(map(len, marks), default=0)))
    look |= {"ncols": columns, "title_fontsize": 11}
    look |= {"fontsize": 8, "alignment": "left", "frameon": False, "handlelength": 1.2}
    key = (ax.figure if whole else ax).legend(handles=handles, title=title, **look)
    for text in (*key.get_texts(), key.get_title()):
        text.set_parse_math(False)
    if isinstance(ax.figure, Picture):
        ax.figure.head_lines = -(-len(marks) // columns)


def settle(ax: Axes) -> None:
    """Place the axes of a picture, one below the other, so that pixels are known; call it once labels are set.

    All but the legend and the names of lanes have known sizes. A layout engine would lay out all texts to find them,
    and take longer than the bars do.
    """
    figure = ax.figure.canvas.figure
    if not isinstance(figure, Picture):
        figure.draw_without_rendering()
        return
    figure.set_layout_engine(None)
    (width, height), point = figure.get_size_inches() * 72, 72 / figure.dpi
    names = max(text.get_window_extent().width * point for text in ax.get_yticklabels())
    left, lines, below = max(_LEFT, names + _APART), figure.head_lines + bool(ax.get_title("left")), figure.axes[1:]
    top = height - _TITLE - _LINE * lines - _APART
    cell = (top - _BOTTOM - _APART * len(below)) / len(figure.axes)
    sides = {"left": left / width, "right": 1 - _APART / width, "bottom": _BOTTOM / height, "top": top / height}
    figure.subplots_adjust(**sides, hspace=_APART / cell)
    for memory in below:
        memory.yaxis.set_label_coords(-_LABEL / (width - left - _APART), 0.5)


def label(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Label axes with a title and axis labels; hide the upper and right spines."""
    ax.set_title(title, loc="left", **TEXT)
    ax.set_xlabel(x, **TEXT)
    ax.set_ylabel(y, **TEXT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(which="both", colors=INK, labelsize=8)


def name_lanes(ax: Axes, names: Sequence[str]) -> None:
    """Name the lanes of an axis, the first one on top."""
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), names, **TEXT)
    ax.tick_params(axis="y", length=0)


def curve_styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Choose the style of each curve: wider than those drawn after it, so that it still shows where they tie."""
    wider, styles = min(_WIDER, (_WIDEST - _THIN) / max(1, len(labels) - 1)), {}
    for text, below, color, marker in zip(labels, reversed(range(len(labels))), cycle(GROUPS), cycle(_MARKERS)):
        width = _THIN + wider * below
        styles[text] = {"color": color, "marker": marker, "linewidth": width, "markersize": width + 2}
    return styles


def steps(ax: Axes, heights: NDArray[np.float64], edges: NDArray[np.float64], **look: Any) -> StepPatch:
    """Draw a step curve as `Axes.stairs` does, but without updating limits, which takes much longer."""
    drawn = StepPatch(heights, edges, **{"fill": False} | look)
    ax.add_artist(drawn)
    return drawn


def bars(
    ax: Axes, band: tuple[float, float], ends: tuple[Ints, Ints], group: Ints, tints: Sequence[str], size: float
) -> None:
    """Draw one lane, of a stream or a channel, as bars.

    A picture has far fewer pixels than a run has ops. The height of a pixel is divided as its busy time is, so that
    stalls between short ops show in proportion, and nothing is too short to be seen; idle time does not count.

    Parameters
    ----------
    ax
        The axes, with time limits set and the layout settled (`settle`).
    band
        The upper and the lower end of the lane.
    ends
        Starts and ends [ns].
    group, tints
        The index of each bar's colour, and the colours; in a divided pixel the first is lowest.
    size
        The unit of the axis [ns].
    """
    (start, end), pixels = ends, max(1, round(ax.bbox.width))
    edges = np.linspace(*ax.get_xlim(), pixels + 1) * size
    spent = {key: _spent(edges, start[group == key], end[group == key]) for key in np.unique(group).tolist()}
    tops = np.cumsum([np.zeros(len(edges) - 1), *spent.values()], axis=0)
    heights = band[1] - (band[1] - band[0]) * tops / np.where(tops[-1] > 0, tops[-1], 1)
    for key, (below, above) in zip(spent, pairwise(heights), strict=True):
        steps(ax, above, edges / size, baseline=below, fill=True, color=tints[key], linewidth=0).set_snap(True)
    if len(start) <= _FEW:
        wide = start[(end - start > 3 * (edges[1] - edges[0])) & (start > edges[0])]
        ax.vlines(wide / size, *band, color="white", linewidth=0.6)


def _spent(edges: NDArray[np.float64], start: Ints, end: Ints) -> NDArray[np.float64]:
    """Return how long each pixel is covered by bars [ns]; overlapping bars count twice."""
    since, before = edges - edges[0], np.zeros_like(edges)
    for moments, sign in ((start, 1), (end, -1)):
        ordered = np.sort(moments.clip(edges[0], edges[-1]) - edges[0])
        passed = np.searchsorted(ordered, since, "right")
        before += sign * (passed * since - np.concatenate([[0], np.cumsum(ordered)])[passed])
    covered_ns: NDArray[np.float64] = np.diff(before).round(3)
    return covered_ns
