"""The picture of a scaling curve: step, and efficiency or tokens per second; below, what is held and moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, TEXT, WIDTH_IN, Picture, byte_unit, plain, units
from simulator.report.rows import quantity
from simulator.report.scaling import Amount, axes, is_over_ranks

_HEAD_IN, _LARGE_IN, _SMALL_IN = 0.85, 2.9, 1.35
"""Heights of the heading, and of the panels of times and of bytes."""
_SIDE_IN, _ABOVE_IN, _BELOW_IN = 0.75, 0.35, 0.55
"""What is left of, above and below a panel."""
_BESIDE = 4
"""So many panels of bytes stand side by side."""
_LABEL_IN = 0.55
"""What a label takes; a point closer to the last one with a label has none."""
_DECADES = 100
"""Times that differ by more are drawn on a logarithmic axis."""
_NEAR = 2
"""A limit so many times as high as the highest point is drawn."""
Rows = Sequence[Mapping[str, Any]]


def scaling_picture(rows: Rows, title: str, held: Sequence[Amount] = ()) -> Picture:
    """Draw the step beside its compute, and the efficiency, or the tokens per second; and a panel for each amount.

    Parameters
    ----------
    rows
        See `simulator.run.scaling.Scaling`.
    title
        What is drawn.
    held
        Peaks of memories and bytes over links; each kind begins a line of panels.
    """
    lines = _lines(held)
    picture = Picture(_HEAD_IN + _LARGE_IN + _BELOW_IN + len(lines) * (_ABOVE_IN + _SMALL_IN + _BELOW_IN))
    _draw_times(picture, rows)
    top = _HEAD_IN + _LARGE_IN + _BELOW_IN
    beside = max(map(len, lines), default=1)
    for line in lines:
        for number, amount in enumerate(line):
            _draw_amount(_panel(picture, (number, max(2, beside)), top + _ABOVE_IN, _SMALL_IN), rows, amount)
        top += _ABOVE_IN + _SMALL_IN + _BELOW_IN
    picture.text(0.01, 1 - 0.12 / picture.get_figheight(), title, va="top", **(TEXT | {"fontsize": 11}))
    marks, texts = picture.axes[0].get_legend_handles_labels()
    at = (0.05, 1 - 0.35 / picture.get_figheight())
    picture.legend(marks, texts, loc="upper left", bbox_to_anchor=at, ncols=4, fontsize=8, frameon=False)
    return picture


def _lines(held: Sequence[Amount]) -> list[list[Amount]]:
    """What stands side by side."""
    lines = list[list[Amount]]()
    for is_moved in (False, True):
        mine = [amount for amount in held if amount.is_moved == is_moved]
        lines += [mine[first : first + _BESIDE] for first in range(0, len(mine), _BESIDE)]
    return lines


def _panel(picture: Picture, place: tuple[int, int], top_in: float, height_in: float) -> Axes:
    """Axes at a place in a line of some panels; so far from the top, so high."""
    number, beside = place
    each, height = (WIDTH_IN - 0.3) / beside, picture.get_figheight()
    left, bottom = (number * each + _SIDE_IN) / WIDTH_IN, 1 - (top_in + height_in) / height
    return picture.add_axes((left, bottom, (each - _SIDE_IN) / WIDTH_IN, height_in / height))


def _draw_times(picture: Picture, rows: Rows) -> None:
    steps, shares = (_panel(picture, (number, 2), _HEAD_IN, _LARGE_IN) for number in range(2))
    unit, size = units(max((row.get("step_ns") or 0 for row in rows), default=0))
    over_ranks, (head, key), places = is_over_ranks(rows), axes(rows)[0], _places(rows)
    figure, scale = ("efficiency", 100) if over_ranks else ("tokens_per_s", 1)
    for policy, colour in _policies(rows).items():
        own = [row for row in rows if row["policy"] == policy and row.get("step_ns") is not None]
        at = [places[row[key]] for row in own]
        steps.plot(at, [row["step_ns"] / size for row in own], color=colour, marker="o", label=policy)
        computed = [(row["compute_ns"] + row["recompute_ns"]) / size for row in own]
        steps.plot(at, computed, color=colour, linestyle=":", label=f"{policy}, of it compute")
        compared = [row for row in own if row[figure] is not None]
        shares.plot([places[row[key]] for row in compared], [scale * row[figure] for row in compared],
                    color=colour, marker="o")  # fmt: skip
    if over_ranks:
        shares.axhline(100, color=FAINT, linewidth=0.8, linestyle=":")
    for ax, label in (
        (steps, f"one step [{unit}]"),
        (shares, "efficiency against the first point [%]" if over_ranks else "tokens per second"),
    ):
        _finish(ax, places, head, label)
        if ax.dataLim.y1 > _DECADES * ax.dataLim.y0 > 0:
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, 1.08 * ax.dataLim.y1 if ax.dataLim.y1 > 0 else 1)


def _draw_amount(ax: Axes, rows: Rows, amount: Amount) -> None:
    """Draw an amount of each policy, and its limit if that is near."""
    (head, key), places = axes(rows)[0], _places(rows)
    most = max(row.get(amount.key) or 0 for row in rows)
    shown = amount.limit_bytes <= _NEAR * most
    unit, size = byte_unit(max(most, amount.limit_bytes if shown else 0))
    for policy, colour in _policies(rows).items():
        own = [row for row in rows if row["policy"] == policy and row.get(amount.key) is not None]
        ax.plot([places[row[key]] for row in own], [row[amount.key] / size for row in own],
                color=colour, marker="o", markersize=4)  # fmt: skip
    if shown:
        ax.axhline(amount.limit_bytes / size, color=INK, linewidth=1.1, linestyle=(0, (5, 2)))
    _finish(ax, places, head, f"[{unit}]")
    ax.set_ylim(0, 1.1 * max(most, amount.limit_bytes if shown else 0) / size)
    ax.set_title(_title(amount, of_all=is_over_ranks(rows)), loc="left", **TEXT)


def _title(amount: Amount, *, of_all: bool) -> str:
    if amount.is_moved:
        return f"{amount.head} in a step{', by all ranks' if of_all else ''}"
    return amount.head + (f", room {quantity(amount.limit_bytes, 'B')}" if math.isfinite(amount.limit_bytes) else "")


def _policies(rows: Rows) -> dict[str, str]:
    """The policies, each with its colour."""
    found = dict.fromkeys(row["policy"] for row in rows)
    return {policy: colours.GROUPS[number % len(colours.GROUPS)] for number, policy in enumerate(found)}


def _places(rows: Rows) -> dict[Any, float]:
    """Where on a logarithmic axis each value of the first axis is; what is not a number stands side by side."""
    values = list(dict.fromkeys(row[axes(rows)[0][1]] for row in rows))
    if all(isinstance(value, int | float) and value > 0 for value in values):
        return {value: float(value) for value in values}
    return {value: 2.0**number for number, value in enumerate(values)}


def _finish(ax: Axes, places: Mapping[Any, float], head: str, label: str) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(list(places.values())))
    ax.xaxis.set_minor_locator(NullLocator())
    share = _LABEL_IN / (ax.get_position().width * WIDTH_IN)
    apart, labels = share * math.log(max(places.values()) / min(places.values())), []
    last = -math.inf
    for value, place in places.items():
        is_near = math.log(place) - last < apart
        labels.append("" if is_near else f"{value:,}" if isinstance(value, int) else str(value))
        last = last if is_near else math.log(place)
    ax.set_xticklabels(labels)
    ax.set_xlabel(head, **TEXT)
    ax.set_ylabel(label, **TEXT)
    plain(ax)
