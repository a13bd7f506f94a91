"""Pictures of tables: the steps and peaks of rows, the steps of ranks, and the curves and maps of a sweep."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulator.metrics.figures import present
from simulator.metrics.rows import Row, of_ranks
from simulator.metrics.statistics import by
from simulator.report import drawing
from simulator.report.drawing import FAINT, LIMIT, SPENT, Given, curve_styles, head, label, name_lanes, styled
from simulator.report.views import Map, Panel
from simulator.report.words import held_to, percent, quantity, units, written
from simulator.scenario.question import BOUNDS

_ROW_IN, _AXIS_IN = 0.34, 0.6
"""Heights of a row, and of an axis with the text above and below it [in]."""
_STEP_WIDTH = 2.4
"""Width of the panel of steps, which shows the most, relative to that of the panel of a memory."""
_NEAR = 2
"""A limit is drawn up to this multiple of the longest bar; a higher one would shrink the bars too far."""
_HALF = 0.36
"""Half the height of a bar, relative to its row: leaves a gap between two."""
_REAL = "80 % of real steps"
_HOLLOW: dict[str, Any] = {"facecolor": "none", "edgecolor": FAINT, "linestyle": "--"}
_BOUNDS = ("-", (0, (1, 1)), (0, (3, 1, 1, 1)))
"""Line styles of bounds that cover different plans."""
_BESIDE, _PANEL_IN = 3, 2.7
"""Panels of curves side by side, so that their labels stay readable, and the height of a line of them [in]."""
_FAR = 8
"""An axis is logarithmic if its values differ by more than this factor: else its left half would be crowded."""
_DECADES = 100
"""Heights that differ by a larger factor are drawn on a logarithmic axis, so that the least can be told from 0."""
_LABELS = 8
"""Most values on an axis of which each has a label; more labels would overlap."""


@styled()
def comparison(rows: Sequence[Row], title: str, given: Given = None) -> Axes:
    """Compare rows: the parts of each step, its lower bound, and the peak of each memory in use.

    Parameters
    ----------
    rows
        Rows of one table. One that did not run shows its status; one that does not fit has a hollow bar for the peak
        that it would need.
    title
        The title.
    given
        Axes for the steps, and for memories; default: those of a new picture.
    """
    machine = rows[0].hardware
    peaks = {tier: max(_peak_bytes(row, tier) for row in rows) for tier in machine.tiers}
    used = [tier for tier, most in peaks.items() if most or tier == machine.compute_tier]
    widths, height_in = [_STEP_WIDTH, *[1] * len(used)], _AXIS_IN + _ROW_IN * len(rows)
    steps, *memories = drawing.places(given, height_in, (1, len(widths)), sharey=True, width_ratios=widths)
    shorten = partial(textwrap.wrap, width=30, max_lines=2, placeholder=" …")
    name_lanes(steps, ["\n".join(shorten(row.label)) for row in rows])
    marks = _draw_steps(steps, rows)
    for ax, tier in zip(memories, used, strict=False):
        marks |= _draw_peaks(ax, rows, tier)
        ax.set_ylim(steps.get_ylim())
        ax.yaxis.set_visible(False)  # its ticks are those of the first panel, and each takes time
    head(steps, title, marks)
    return steps


def _write_beside(ax: Axes, texts: Iterable[str]) -> None:
    """Write a text for each row to the right of the panel, clear of bars and limits."""
    for y, text in enumerate(texts):
        ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), va="center", **drawing.TEXT | {"fontsize": 8})


def _tick(ax: Axes, y: int, x: float, look: Mapping[str, Any]) -> None:
    """Draw a vertical line through the bar of a row."""
    ax.plot([x, x], [y - 0.48, y + 0.48], **look)


def _draw_steps(ax: Axes, rows: Sequence[Row]) -> dict[str, Any]:
    """Draw the parts of each step and its lower bound; write its time and stall, or why there is none."""
    running = [row for row in rows if row.is_ok]
    unit, size = units(max((row.summary["step_ns"] for row in running), default=0))
    label(ax, x=f"one step [{unit}]" if running else "one step")
    if not running:
        ax.set_xticks([])
    marks: dict[str, Any] = {}
    for part, left, right in _stacked(rows):
        has = np.flatnonzero(right > left)
        ax.barh(has, (right - left)[has] / size, left=left[has] / size, height=2 * _HALF, color=SPENT[part])
        marks[part] = SPENT[part]
    lines = cycle(_BOUNDS)
    for y, row in enumerate(rows):
        if row.is_ok and present(row.summary.get("bound_ns")):
            kind = held_to(rows, row)
            marks[kind] = marks.get(kind) or {"color": drawing.INK, "linestyle": next(lines)}
            _tick(ax, y, row.summary["bound_ns"] / size, marks[kind])
        if row.is_ok and present(row.summary.get("real_low_ns")):
            low, high = (row.summary[f"real_{end}_ns"] / size for end in ("low", "high"))
            marks[_REAL] = {"color": drawing.INK, "marker": "|"}
            ax.plot([low, high], [y, y], **marks[_REAL], linewidth=1)
    ax.set_xlim(left=0)
    _write_beside(ax, map(_length, rows))
    return marks


def _stacked(rows: Sequence[Row]) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Stack the parts of steps: yield the name of each, and its start and end in each row [ns]."""
    parts, end = [row.spent if row.is_ok else {} for row in rows], np.zeros(len(rows))
    for name in SPENT:
        start, end = end, end + [part.get(name, 0) for part in parts]
        if (end > start).any():
            yield name, start, end


def _length(row: Row) -> str:
    """Write the step time of a row and the share of stalls, or why there is none."""
    if row.is_ok:
        step, stall = row.summary["step_ns"], row.summary.get("stall_ns") or 0
        return quantity(step, "ns") + (f", {percent(stall / step)} stall" if stall else "")
    short = f", short by {quantity(row.shortfall.short_bytes, 'B')}" if row.shortfall else ""
    return f"{row.summary['status']}{short}"


def _peak_bytes(row: Row, tier: str) -> int:
    """Return the peak of a row in a memory [B], or what it would need if it does not fit."""
    if row.shortfall is not None:
        return row.shortfall.demand_bytes if row.shortfall.tier == tier else 0
    return int(row.summary.get(f"peak_{tier}_bytes") or 0) if row.is_ok else 0


def _draw_peaks(ax: Axes, rows: Sequence[Row], tier: str) -> dict[str, Any]:
    """Draw the peaks of a memory, and its limit if that is near or exceeded."""
    is_budgeted = tier == rows[0].hardware.compute_tier
    limits = [row.budget_bytes if is_budgeted else row.hardware.tiers[tier].usable_bytes for row in rows]
    held, marks = [_peak_bytes(row, tier) for row in rows], dict[str, Any]()
    unit, size = units(max(held), "B")
    for y, (row, most, limit) in enumerate(zip(rows, held, limits, strict=True)):
        if most:
            ax.barh(y, most / size, height=2 * _HALF, **({"color": drawing.PEAK} if row.is_ok else _HOLLOW))
            marks |= {} if row.is_ok else {"would need": {"color": FAINT, "linestyle": "--"}}
        if limit <= _NEAR * max(held):
            _tick(ax, y, limit / size, LIMIT)
            marks["room"] = LIMIT
    room = quantity(limits[0], "B") if len(set(limits)) == 1 and math.isfinite(limits[0]) else ""
    label(ax, f"{'budget' if is_budgeted else 'capacity'} {room}" if room else "", f"peak of {tier} [{unit}]")
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    _write_beside(ax, [quantity(most, "B") if most or row.is_ok else "" for row, most in zip(rows, held, strict=True)])
    return marks


@styled()
def by_rank(row: Row, given: Given = None) -> Axes:
    """Draw the parts of the step of each rank: compute, recompute, and waits by cause.

    Parameters
    ----------
    row
        A row of several ranks that ran to its end.
    given
        Axes; default: those of a new picture.
    """
    views = {view.rank: view for view in of_ranks(row, row.simulated)}
    shown = [views[by] for by in (row.trace.stands_in if row.trace is not None and row.is_job else (0,))]
    unit, size = units(max(view.summary["step_ns"] for view in shown))
    ax, edges = drawing.places(given, 3.0)[0], np.arange(len(shown) + 1) - 0.5
    marks: dict[str, Any] = {}
    for part, below, above in _stacked(shown):
        ax.stairs(above / size, edges, baseline=below / size, fill=True, color=SPENT[part])
        marks[part] = SPENT[part]
    met = np.array([view.summary.get("collective_ns") or 0 for view in shown]) / size
    ax.stairs(met, edges, baseline=None, **LIMIT)
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(ax, x="rank", y=f"one step [{unit}]")
    title = f"{row.label}: where the step of each rank goes ({row.job.name} on {row.hardware.name})"
    head(ax, title, marks | {"collectives under way": LIMIT})
    return ax


@styled()
def curves(title: str, panels: Sequence[Panel], given: Given = None) -> Axes:
    """Draw a grid of panels with curves.

    Parameters
    ----------
    title, panels
        The title, and the panels.
    given
        Axes, one for each panel; default: those of a new picture.
    """
    places = _beside(given, len(panels), _PANEL_IN)
    names = dict.fromkeys(str(row[panel.of]) for panel in panels for row in panel.rows if present(row.get(panel.y)))
    edges = [name for name in names if name in BOUNDS]
    styles = curve_styles([name for name in names if name not in edges])
    for name, line in zip(edges, _BOUNDS, strict=False):
        styles[name] = {"color": drawing.INK, "linestyle": line, "linewidth": 1, "marker": ""}
    for ax, panel in zip(places, panels, strict=False):
        _draw(ax, panel, styles)
    head(places[0], title, styles)
    return places[0]


def _beside(given: Given, count: int, height_in: float) -> list[Axes]:
    """Return `count` axes in a grid, each of height `height_in` [in], unless axes are given."""
    lines = max(1, -(-count // _BESIDE))
    places = drawing.places(given, height_in * lines, (lines, min(_BESIDE, max(1, count))))
    for ax in places[count:]:
        ax.set_axis_off()
    return places[: max(1, count)]


def _draw(ax: Axes, panel: Panel, styles: Mapping[str, dict[str, Any]]) -> None:
    rows = [row for row in panel.rows if present(row.get(panel.y))]
    heights = [float(row[key]) for row in rows for key in (panel.y, *panel.band) if present(row.get(key))]
    most = max(heights, default=1)
    limit = panel.limit if 0 < panel.limit <= _NEAR * most else 0
    unit, size = units(max(most, limit), panel.unit)
    values = list(dict.fromkeys(row[panel.x] for row in rows))
    middle = sorted(values)[len(values) // 2] if values and panel.axis_unit else 0
    x_unit, x_size = units(middle, panel.axis_unit)
    places = _places(ax, values, x_size, panel.dense)
    for (name,), group in by(rows, panel.of).items():
        style = styles[str(name)] | ({"marker": ""} if panel.dense else {})
        style |= {"linestyle": ""} if name in panel.loose else {}
        dots = {"color": style["color"], "linestyle": "", "marker": "o", "markersize": 9}
        edge = {"color": style["color"], "linewidth": 0.8, "linestyle": ":"}
        looks = {panel.y: style, **dict.fromkeys(panel.band, edge)}
        drawn = [(key, [row for row in group if present(row.get(key))], look) for key, look in looks.items()]
        for key, points, look in [*drawn, (panel.y, [row for row in group if row.get("holds")], dots)]:
            ax.plot([places[row[panel.x]] for row in points], [row[key] / size for row in points], **look)
    if limit:
        ax.axhline(limit / size, **LIMIT)
    if unit == "%":
        ax.axhline(0, color=FAINT, linewidth=0.8, linestyle=":")
    elif heights and most > _DECADES * min(heights) > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, 1.1 * max(most, limit) / size or 1)
    label(ax, panel.title, f"{panel.axis} [{x_unit}]" if x_unit else panel.axis, f"[{unit}]" if unit else "")


def _places(ax: Axes, values: Sequence[Any], size: float, dense: str) -> dict[Any, float]:
    """Place values on an axis: numbers by value, on a logarithmic axis if far apart; others at even distances."""
    are_numbers = all(isinstance(value, int | float) for value in values)
    places = {value: float(value / size if are_numbers else position) for position, value in enumerate(values)}
    if dense != "linear" and max(places.values(), default=0) > _FAR * min(places.values(), default=0) > 0:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    if len(places) <= _LABELS and not dense:
        ax.minorticks_off()
        labels = [written(place if are_numbers else value, "count") for value, place in places.items()]
        ax.set_xticks(list(places.values()), labels)
    return places


_CONTOURS = (1.01, 1.1, 1.5, 2, 4)
"""Heights of contours, in multiples of the best: hardly slower, slower, and much slower."""
_MAP_IN, _EMPTY, _TICKS, _FEWEST = 3.4, "#e4e4e4", 5, 2
"""Height of a line of maps [in]; colour of cells in which nothing ran; ticks of the colour bar; most values of an axis
for which no contours are drawn: with two, a contour would only say that they differ."""


@styled()
def maps(title: str, drawn: Sequence[Map], given: Given = None) -> Axes:
    """Draw a grid of heat maps with one colour scale; cells that did not run are grey.

    Parameters
    ----------
    title, drawn
        The title, and the maps.
    given
        Axes, one for each map; default: those of a new picture.
    """
    places = _beside(given, len(drawn), _MAP_IN)
    every = [height for each in drawn for line in each.heights for height in line if height is not None]
    unit, size = units(max(every, default=1), "ns")
    norm = LogNorm(min(every) / size, max(every) / size) if len(set(every)) > 1 else None
    images = [_draw_map(ax, each, size, norm) for ax, each in zip(places, drawn, strict=False)]
    bar = places[0].figure.colorbar(images[0], ax=places, label=f"{drawn[0].per} [{unit}]")
    if norm is not None:
        ticks = np.geomspace(min(every) / size, max(every) / size, _TICKS)
        bar.minorticks_off()
        bar.set_ticks(ticks.tolist(), labels=[f"{tick:.3g}" for tick in ticks.tolist()])
    lines = {"color": drawing.INK, "linewidth": 0.8}
    head(places[0], title, {"does not run": _EMPTY, f"so many times as long as the shortest {drawn[0].per}": lines})
    return places[0]


def _draw_map(ax: Axes, drawn: Map, size: float, norm: LogNorm | None) -> AxesImage:
    heights = np.ma.masked_invalid(np.array(drawn.heights, float) / size)
    ax.set_facecolor(_EMPTY)
    image = ax.imshow(heights, origin="lower", aspect="auto", cmap="viridis_r", norm=norm)
    levels = [times * drawn.best / size for times in _CONTOURS]
    if min(heights.shape) > _FEWEST and heights.count() and heights.min() < levels[-1] and heights.max() > levels[0]:
        contours = ax.contour(heights, levels, colors=drawing.INK, linewidths=0.8)
        ax.clabel(contours, fmt=dict(zip(levels, (f"{times:g}x" for times in _CONTOURS), strict=True)), fontsize=8)
    for axis, ticks in zip((ax.xaxis, ax.yaxis), drawn.ticks, strict=True):
        apart = -(-len(ticks) // _LABELS)
        axis.set_ticks(range(0, len(ticks), apart), list(ticks[::apart]))
    label(ax, drawn.title, *drawn.axes)
    return image
