"""Pictures: the timeline of one row, and the rows beside each other.

Drawn with matplotlib's objects on its Agg canvas, without pyplot: there is no global state, no window, and half the
import time. A picture shows itself in a notebook.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from simulator.metrics import run_numbers
from simulator.plan import COMPUTE as COMPUTE_STEP
from simulator.plan import COPY
from simulator.report import colours
from simulator.report.rows import Row, causes, is_ok, present, quantity, recomputed_ns
from simulator.report.usage import KINDS, Usage, tensor_kinds, usages
from simulator.trace import CAUSES, Block

Times = NDArray[np.int64]
Floats = NDArray[np.float64]

_WIDTH_IN, _DPI = 13.0, 110
_TOP_IN, _BOTTOM_IN, _RIGHT_IN, _GAP_IN = 0.38, 0.55, 1.75, 0.22
"""Margins, and the gap between two axes; placing everything by hand takes half the time of a layout engine."""
_INK, _FAINT = "#222222", "#8a8a8a"
_TEXT: dict[str, Any] = {"fontsize": 9, "color": _INK, "parse_math": False}
_COLUMNS = 4000
"""Points of a memory curve: more than a picture has pixels across."""
_FEW = 120
"""Spans of a lane that can still be told apart."""


class Picture(Figure):
    """A matplotlib figure that a notebook shows."""

    def __init__(self, height_in: float) -> None:
        super().__init__(figsize=(_WIDTH_IN, height_in), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(self)

    def write(self, path: str | IO[bytes], kind: str = "png") -> None:
        """Write the picture as PNG or SVG; the same picture gives the same bytes.

        A character that the font lacks is drawn as an empty box, without a warning.
        """
        from matplotlib import rc_context  # noqa: PLC0415 - a picture on the screen does not need it

        more: dict[str, Any] = {"metadata": {"Date": None}}
        if kind == "png":
            more = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 3}}
        with rc_context({"svg.hashsalt": "hosim"}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
            self.savefig(path, format=kind, **more)

    def png(self) -> bytes:
        """Return the picture as PNG."""
        out = io.BytesIO()
        self.write(out)
        return out.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


def timeline(row: Row, *, window_ns: tuple[int, int] | None = None, rank: int = 0) -> Picture:
    """Draw what happened: compute and stalls by cause, every channel, and the memory of each tier by tensor kind.

    Parameters
    ----------
    row
        A row with a trace.
    window_ns
        First and last instant shown [ns]; if None all of it, or the last two of more than three steps.
    rank
        Which rank.

    Raises
    ------
    ValueError
        If the row has no trace, because no plan fits.
    """
    if row.trace is None:
        raise ValueError(f"{row.label!r} has no timeline: nothing ran, because no such plan fits")
    runs = run_numbers(row.graph, row.hardware, row.trace)[0]
    everything = _of_rank({**row.trace.spans.whole(), "run": runs}, rank)
    ends = _step_ends(row, everything)
    first, last = window_ns or (ends[-3] if len(ends) > 3 else 0, row.summary["makespan_ns"] or 1)
    spans = _within(everything, first, last)
    waits = _within(_of_rank(row.trace.waits.whole(), rank), first, last)
    tiers = usages(row, rank)
    lanes = _lanes(row, spans)
    heights = [0.45 + 0.34 * len(lanes)] + [1.65] * len(tiers)
    picture, axes = stacked(heights, [lane[0] for lane in lanes])
    unit, size = units(last - first)
    axes[0].set_xlim(first / size, last / size)
    _draw_lanes(axes[0], row, (spans, waits), lanes, size)
    limits = [_draw_memory(ax, row, u, (first, last, size)) for ax, u in zip(axes[1:], tiers, strict=True)]
    for ax in axes:
        _draw_boundaries(ax, [end for end in ends[:-1] if first < end < last], size)
    axes[-1].set_xlabel(f"time [{unit}]", **_TEXT)
    picture.text(0.01, 1 - 0.1 / picture.get_figheight(), _title(row), va="top", **(_TEXT | {"fontsize": 11}))
    marks = [*_marks(row, spans, waits, tiers), *([("room", "--")] if any(limits) else [])]
    _side_legend(picture, [*marks, *([("end of a step", ":")] if row.graph.steps > 1 else [])])
    return picture


def stacked(heights_in: list[float], labels: list[str]) -> tuple[Picture, list[Axes]]:
    """Axes of these heights below each other with one time axis; room for the labels on the left."""
    height = _TOP_IN + sum(heights_in) + _GAP_IN * (len(heights_in) - 1) + _BOTTOM_IN
    picture = Picture(height)
    left = 0.25 + 0.085 * max(7, *map(len, labels))
    top, axes = height - _TOP_IN, list[Axes]()
    for inches in heights_in:
        place = (left / _WIDTH_IN, (top - inches) / height, 1 - (left + _RIGHT_IN) / _WIDTH_IN, inches / height)
        axes.append(picture.add_axes(place, sharex=axes[0] if axes else None))
        top -= inches + _GAP_IN
    for ax in axes[:-1]:
        ax.tick_params(labelbottom=False)
    return picture, axes


def _of_rank(block: Block, rank: int) -> Block:
    chosen = block["rank"] == rank
    return {name: column[chosen] for name, column in block.items()}


def _within(block: Block, first: int, last: int) -> Block:
    chosen = (block["end_ns"] >= first) & (block["start_ns"] <= last)
    return {name: column[chosen] for name, column in block.items()}


def _title(row: Row) -> str:
    if not is_ok(row):
        return f"{row.label}: {row.summary['status']}"
    stall = quantity(row.summary.get("stall_ns"), "ns")
    again = f", {quantity(recomputed_ns(row), 'ns')} recomputed" if recomputed_ns(row) else ""
    return f"{row.label}: {quantity(row.summary.get('step_ns'), 'ns')} a step, {stall} of it stalled{again}"


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


Lane = tuple[str, int, int, int]
"""Name of a lane, kind of its spans, its track (stream or link) and its channel."""


def _lanes(row: Row, spans: Block) -> list[Lane]:
    keys = np.unique(np.stack([spans["kind"], spans["track"], spans["channel"]]), axis=1).T.tolist()
    streams = sorted({track for kind, track, _ in keys if kind == COMPUTE_STEP}) or [0]
    links = row.hardware.link_names
    lanes: list[Lane] = [("compute" if s == 0 else f"stream {s}", COMPUTE_STEP, s, -1) for s in streams]
    for kind, track, channel in keys:
        if kind == COPY:
            number = f" #{channel}" if row.hardware.links[links[track]].channels > 1 else ""
            lanes.append((f"{links[track]}{number}", COPY, track, channel))
    return lanes


def _draw_lanes(ax: Axes, row: Row, blocks: tuple[Block, Block], lanes: list[Lane], size: int) -> None:
    spans, waits = blocks
    phases = [op.phase for op in row.graph.ops]
    for y, (_, kind, track, channel) in enumerate(lanes):
        here = (spans["kind"] == kind) & (spans["track"] == track)
        if kind == COPY:
            here &= spans["channel"] == channel
            group = tensor_kinds(row.graph, spans["item"][here])
            colour_of = {k: colours.KIND[KINDS[k]] for k in range(len(KINDS))}
        else:
            names = sorted(set(phases))
            number = np.array([names.index(p) for p in phases] or [0])
            group = np.where(spans["run"][here] > 1, len(names), number[spans["item"][here]])
            colour_of = {i: colours.PHASE.get(p, colours.COMPUTE) for i, p in enumerate(names)}
            colour_of[len(names)] = colours.RECOMPUTE
            stalled = waits["stream"] == track
            cause = {i: colours.CAUSE[c] for i, c in enumerate(CAUSES)}
            _bars(ax, y, (waits["start_ns"][stalled], waits["end_ns"][stalled]), waits["cause"][stalled], cause, size)
        _bars(ax, y, (spans["start_ns"][here], spans["end_ns"][here]), group, colour_of, size)
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.set_yticks(range(len(lanes)), [lane[0] for lane in lanes], **_TEXT)
    ax.tick_params(axis="y", length=0)
    plain(ax)


def _bars(ax: Axes, y: int, ends: tuple[Times, Times], group: Times, colour_of: dict[int, str], size: int) -> None:
    """Draw one lane; where there are many spans, those of one colour that touch become one bar."""
    few, shown = len(group) <= _FEW, ax.get_xlim()
    hair = (shown[1] - shown[0]) / 300
    for key, colour in colour_of.items():
        mine = group == key
        start, end = ends[0][mine], ends[1][mine]
        if not start.size:
            continue
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        apart = np.concatenate([[True], (start[1:] > end[:-1]) | few])
        left = start[apart] / size
        right = end[np.concatenate([apart[1:], [True]])] / size
        wide = (right - left > hair) & few
        for chosen, edge in ((wide, 0.6), (~wide, 0.0)):
            if chosen.any():
                path = _rectangles(left[chosen], right[chosen], y - 0.4, y + 0.4)
                ax.add_artist(PathPatch(path, facecolor=colour, edgecolor="white", linewidth=edge))


def _rectangles(left: Floats, right: Floats, low: float, high: float) -> Path:
    """One path of many rectangles: far quicker to make and to draw than a patch for each."""
    bottom, top = np.full_like(left, low), np.full_like(left, high)
    corners = np.stack([left, bottom, left, top, right, top, right, bottom, left, bottom], axis=1)
    codes = np.tile(np.array([Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY], dtype=Path.code_type), len(left))
    return Path(corners.reshape(-1, 2), codes)


def _draw_memory(ax: Axes, row: Row, usage: Usage, span: tuple[int, int, int]) -> bool:
    """Draw what lies in a tier, and say whether its limit is in the picture."""
    first, last, size = span
    limit, total = usage.limit_bytes, usage.total_bytes
    peak = int(total.max())
    shown = math.isfinite(limit) and limit <= 4 * peak
    unit, scale = byte_unit(max(peak, float(limit) if shown else 0))
    at = _thin(usage, (first, last))
    time = np.append(usage.time_ns[at], last) / size
    tops = np.cumsum(usage.kind_bytes[:, at] / scale, axis=0)
    for k in reversed(usage.kinds):  # the highest first, each down to 0, so that no seam shows between two
        top = np.append(tops[k], tops[k, -1])
        ax.fill_between(time, 0, top, step="post", color=colours.KIND[KINDS[k]], linewidth=0)
    if shown:
        ax.axhline(float(limit) / scale, color=_INK, linewidth=1.1, linestyle=(0, (5, 2)))
    ax.set_ylim(0, 1.25 * max(peak, float(limit) if shown else 0) / scale or 1)
    ax.set_ylabel(f"{usage.tier} [{unit}]", **_TEXT)
    says = f"peak {quantity(peak, 'B')}"
    if allowed := usage.limit(row.hardware.compute_tier):
        says += f", {allowed}" + ("" if shown else " (beyond the picture)")
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
    ax.text(0.004, 0.975, says, transform=ax.transAxes, va="top", fontsize=8, color=_INK, bbox=box)
    plain(ax)
    return shown


def _thin(usage: Usage, window: tuple[int, int]) -> NDArray[np.int64]:
    """Choose which changes to draw: in each of many equal stretches of time the one with most memory, and the last."""
    time, total = usage.time_ns, usage.total_bytes
    last_of_instant = np.append(time[1:] != time[:-1], True)
    at = np.flatnonzero(last_of_instant & (time <= window[1]))
    at = at[max(0, int(np.searchsorted(time[at], window[0], "right")) - 1) :]
    if at.size <= _COLUMNS:
        return at
    column = (time[at] - window[0]) * (_COLUMNS // 2) // max(1, window[1] - window[0])
    order = np.lexsort((total[at], column))
    most = order[np.append(column[order][1:] != column[order][:-1], True)]
    final = np.flatnonzero(np.append(column[1:] != column[:-1], True))
    chosen: NDArray[np.int64] = at[np.union1d(most, final)]
    return chosen


def _step_ends(row: Row, spans: Block) -> list[int]:
    """Ends of all steps [ns], ascending."""
    ran = spans["kind"] == COMPUTE_STEP
    ends = spans["end_ns"][ran & (spans["item"] == len(row.graph.ops) - 1)]
    return [int(end) for end in np.sort(ends)]


def _draw_boundaries(ax: Axes, ends: list[int], size: int) -> None:
    if len(ends) <= 40:
        for end in ends:
            ax.axvline(end / size, color=_FAINT, linewidth=0.8, linestyle=":")


def plain(ax: Axes) -> None:
    """Draw two of the four sides, faintly, and small numbers."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(_FAINT)
    ax.tick_params(colors=_INK, labelsize=8)


def _marks(row: Row, spans: Block, waits: Block, tiers: list[Usage]) -> list[tuple[str, str]]:
    phases = dict.fromkeys(op.phase for op in row.graph.ops)
    moved = tensor_kinds(row.graph, spans["item"][spans["kind"] == COPY])
    kinds = sorted({k for usage in tiers for k in usage.kinds} | set(moved.tolist()), reverse=True)
    marks = [("compute", "")]
    marks += [(phase or "any op", colours.PHASE.get(phase, colours.COMPUTE)) for phase in phases]
    if (spans["run"] > 1).any():
        marks.append(("recompute", colours.RECOMPUTE))
    if waits["cause"].size:
        marks.append(("stall, by cause", ""))
        marks += [(CAUSES[c], colours.CAUSE[CAUSES[c]]) for c in np.unique(waits["cause"])]
    marks.append(("tensors", ""))
    return marks + [(KINDS[k].replace("_", " "), colours.KIND[KINDS[k]]) for k in kinds]


def _side_legend(picture: Picture, marks: list[tuple[str, str]]) -> None:
    """Write a legend at the right: (text, colour), (heading, nothing) or (text, style of a line)."""
    height = picture.get_figheight()
    x, box, line = 1 - (_RIGHT_IN - 0.12) / _WIDTH_IN, 0.17 / _WIDTH_IN, 0.175 / height
    y = 1 - _TOP_IN / height
    for text, mark in marks:
        y -= line if mark else 1.25 * line
        middle = y + 0.055 / height
        if mark.startswith("#"):
            picture.add_artist(Rectangle((x, y), box, 0.11 / height, color=mark, linewidth=0))
        elif mark:
            style: dict[str, Any] = {"color": _FAINT if mark == ":" else _INK, "linewidth": 1.1, "linestyle": mark}
            picture.add_artist(Line2D([x, x + box], [middle, middle], **style))
        weight = "normal" if mark else "bold"
        indent = 1.5 * box if mark else 0
        picture.text(x + indent, middle, text, fontsize=8, color=_INK, va="center", weight=weight)


def comparison(rows: Sequence[Row]) -> Picture:
    """Draw the rows beside each other: compute, stalls by cause, and the bound.

    Parameters
    ----------
    rows
        Rows of one table; those that did not run to their end are named without a bar.
    """
    picture, (ax,) = stacked([max(0.42 * len(rows), 1.2)], [row.label for row in rows])
    most = max([row.summary["step_ns"] for row in rows if is_ok(row)], default=1)
    unit, size = units(int(most))
    for y, row in enumerate(rows):
        if not is_ok(row):
            ax.text(0, y, f"  {row.summary['status']}", va="center", fontsize=9, color=_FAINT)
            continue
        left, pieces = 0.0, [(colours.COMPUTE, row.summary["compute_ns"]), (colours.RECOMPUTE, recomputed_ns(row))]
        pieces += [(colours.CAUSE[cause], ns) for cause, ns in causes(row)]
        for colour, ns in [*pieces, (colours.DRAIN, row.summary.get("drain_ns") or 0)]:
            ax.barh(y, ns / size, left=left, color=colour, height=0.7)
            left += ns / size
        ax.text(left, y, f" {quantity(row.summary['step_ns'], 'ns')}", va="center", fontsize=9, color=_INK)
        if present(row.summary.get("bound_ns")):
            bound = row.summary["bound_ns"] / size
            ax.plot([bound, bound], [y - 0.42, y + 0.42], color=_INK, linewidth=1.4)
    used = [c for c in CAUSES if any(c == cause for row in rows if is_ok(row) for cause, _ in causes(row))]
    marks = [("compute", colours.COMPUTE), *((f"stall: {c}", colours.CAUSE[c]) for c in used), ("bound", "-")]
    if any(map(recomputed_ns, rows)):
        marks.insert(1, ("recompute", colours.RECOMPUTE))
    _side_legend(picture, marks)
    ax.set_yticks(range(len(rows)), [row.label for row in rows], **_TEXT)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 1.1 * most / size)
    ax.set_xlabel(f"one step [{unit}]", **_TEXT)
    plain(ax)
    return picture
