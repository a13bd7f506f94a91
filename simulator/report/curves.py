"""The picture of a sweep: a panel for each figure that varies, a curve in each for each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from simulator.report import colours
from simulator.report.drawing import Picture, byte_unit, plain, styled, units, widths
from simulator.report.view import Curve, Panel

_BESIDE, _PANEL_IN, _HEAD_IN = 3, 2.7, 0.9
"""Panels side by side, and heights of a line of them and of the title with the legend."""
_DECADES = 100
"""Heights that differ by more are drawn on a logarithmic axis."""
_NEAR = 2
"""A limit so many times as high as the highest point is drawn."""
_LABELS = 8
"""Values on an axis that all have a label; more would lie on each other."""
_MARKERS = "osD^vP"


@styled()
def curves(title: str, panels: Sequence[Panel]) -> Picture:
    """Draw panels beside and below each other; curves that tie lie on each other, the lower one wider.

    Parameters
    ----------
    title
        What is drawn.
    panels
        The panels.
    """
    lines = max(1, -(-len(panels) // _BESIDE))
    picture = Picture(_HEAD_IN + _PANEL_IN * lines)
    picture.title(title)
    places = list(picture.subplots(lines, min(_BESIDE, max(1, len(panels))), squeeze=False).flat)
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    styles = {
        label: {
            "color": colours.GROUPS[number % len(colours.GROUPS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linewidth": width,
            "markersize": width + 2,
        }
        for number, (label, width) in enumerate(zip(labels, widths(len(labels)), strict=True))
    }
    for ax, panel in zip(places, panels, strict=False):
        _draw(ax, panel, styles)
    for ax in places[len(panels) :]:
        ax.set_axis_off()
    known = {text: mark for ax in picture.axes for mark, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    if known:
        picture.legend(known.values(), known.keys(), loc="outside lower left", ncols=6, fontsize=8, frameon=False)
    return picture


def _draw(ax: Axes, panel: Panel, styles: Mapping[str, dict[str, Any]]) -> None:
    heights = [
        y for curve in panel.curves for y in (*curve.points.values(), *(high for _, high in curve.band.values()))
    ]
    most = max(heights, default=1)
    limit = panel.limit if 0 < panel.limit <= _NEAR * most else 0
    unit, size = panel.unit, 1
    if unit in ("ns", "B"):
        unit, size = units(int(most)) if unit == "ns" else byte_unit(max(most, limit))
    places = _places([x for curve in panel.curves for x in curve.points])
    for curve in panel.curves:
        _draw_curve(ax, curve, places, size, styles[curve.label])
    if limit:
        ax.axhline(limit / size, **colours.LIMIT)
    if unit == "%":
        ax.axhline(0, color=colours.FAINT, linewidth=0.8, linestyle=":")
    elif heights and most > _DECADES * min(heights) > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, 1.1 * max(most, limit) / size or 1)
    _label(ax, places)
    ax.set_title(panel.title, loc="left", **colours.TEXT)
    ax.set_xlabel(panel.axis, **colours.TEXT)
    ax.set_ylabel(f"[{unit}]" if unit else "", **colours.TEXT)
    plain(ax)


def _draw_curve(ax: Axes, curve: Curve, places: Mapping[Any, float], size: int, style: dict[str, Any]) -> None:
    ax.plot([places[x] for x in curve.points], [y / size for y in curve.points.values()], label=curve.label, **style)
    if len(curve.band) > 1:
        low, high = ([ends[number] / size for ends in curve.band.values()] for number in (0, 1))
        ax.fill_between([places[x] for x in curve.band], low, high, color=style["color"], alpha=0.25, linewidth=0)
    dots = {"color": style["color"], "linestyle": "", "marker": "o", "markersize": 9}
    ax.plot([places[x] for x in curve.marked], [curve.points[x] / size for x in curve.marked], **dots)


def _places(values: Sequence[Any]) -> dict[Any, float]:
    """Where each value stands: numbers on their axis, anything else side by side."""
    values = list(dict.fromkeys(values))
    if all(isinstance(value, int | float) for value in values):
        return {value: float(value) for value in values}
    return {value: float(number) for number, value in enumerate(values)}


def _label(ax: Axes, places: Mapping[Any, float]) -> None:
    """Label the values if they are few, or no numbers; on a logarithmic axis if they are far apart."""
    low, high = min(places.values(), default=0), max(places.values(), default=0)
    if high > 8 * low > 0:
        ax.set_xscale("log", base=2)
    if len(places) <= _LABELS:
        ax.xaxis.set_major_locator(FixedLocator(list(places.values())))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticklabels([f"{value:,}" if isinstance(value, int) else f"{value}" for value in places])
