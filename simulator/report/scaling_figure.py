"""The picture of a scaling curve: step, and efficiency or tokens per second; below, what is held and moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, TEXT, WIDTH_IN, Picture, byte_unit, plain, styled, units, widths
from simulator.report.rows import present, quantity
from simulator.report.scaling import Amount, axes, is_over_ranks, rate, what_did_not_run

_TITLE_IN, _LINE_IN, _LARGE_IN, _SMALL_IN = 0.4, 0.2, 2.9, 1.35
"""Heights of the title, of a line of the heading below it, and of the panels of times and of bytes."""
_WIDE, _NAMES = 170, 6
"""Characters of a line of the heading, and names of a line of the legend."""
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
_MARKERS, _ABOVE_AXES = "osD^vP", 3
Rows = Sequence[Mapping[str, Any]]


@styled()
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
    lines, told = _lines(held), wrap(" ".join(what_did_not_run(rows)), _WIDE)
    entries = len(_curves(rows)) + len(_computed(rows))
    head = _TITLE_IN + _LINE_IN * (-(-entries // _NAMES) + len(told) + 1)
    picture = Picture(head + _LARGE_IN + _BELOW_IN + len(lines) * (_ABOVE_IN + _SMALL_IN + _BELOW_IN))
    _draw_times(picture, rows, head)
    top = head + _LARGE_IN + _BELOW_IN
    beside = max(map(len, lines), default=1)
    for line in lines:
        for number, amount in enumerate(line):
            _draw_amount(_panel(picture, (number, max(2, beside)), top + _ABOVE_IN, _SMALL_IN), rows, amount)
        top += _ABOVE_IN + _SMALL_IN + _BELOW_IN
    _write_head(picture, title, told)
    return picture


def _write_head(picture: Picture, title: str, told: Sequence[str]) -> None:
    """Write the title, what did not run, and who is who."""
    height = picture.get_figheight()
    picture.text(0.01, 1 - 0.12 / height, title, va="top", **(TEXT | {"fontsize": 11}))
    for number, line in enumerate(told):
        at = 1 - (_TITLE_IN + number * _LINE_IN) / height
        picture.text(_SIDE_IN / WIDTH_IN, at, line, va="top", **TEXT)
    marks, texts = picture.axes[0].get_legend_handles_labels()
    below = (0.05, 1 - (_TITLE_IN - 0.05 + len(told) * _LINE_IN) / height)
    if marks:
        picture.legend(marks, texts, loc="upper left", bbox_to_anchor=below, ncols=_NAMES, fontsize=8, frameon=False)


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


def _draw_times(picture: Picture, rows: Rows, head_in: float) -> None:
    steps, shares = (_panel(picture, (number, 2), head_in, _LARGE_IN) for number in range(2))
    unit, size = units(max((row.get("step_ns") or 0 for row in rows), default=0))
    over_ranks, (head, key), places = is_over_ranks(rows), axes(rows)[0], _places(rows)
    figure, scale = ("efficiency", 100) if over_ranks else ("tokens_per_s", 1)
    for policy, style in _curves(rows).items():
        own = [row for row in rows if row["policy"] == policy and present(row.get("step_ns"))]
        steps.plot([places[row[key]] for row in own], [row["step_ns"] / size for row in own], label=policy, **style)
        compared = [row for row in own if row[figure] is not None]
        shares.plot([places[row[key]] for row in compared], [scale * row[figure] for row in compared], **style)
    for label, (colour, computed) in _computed(rows).items():
        at, times = [places[value] for value in computed], [ns / size for ns in computed.values()]
        steps.plot(at, times, color=colour, linestyle=":", label=label, zorder=_ABOVE_AXES)
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
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate(value)))


def _draw_amount(ax: Axes, rows: Rows, amount: Amount) -> None:
    """Draw an amount of each policy, and its limit if that is near."""
    (head, key), places = axes(rows)[0], _places(rows)
    most = max(row.get(amount.key) or 0 for row in rows)
    shown = amount.limit_bytes <= _NEAR * most
    unit, size = byte_unit(max(most, amount.limit_bytes if shown else 0))
    for policy, style in _curves(rows).items():
        own = [row for row in rows if row["policy"] == policy and present(row.get(amount.key))]
        ax.plot([places[row[key]] for row in own], [row[amount.key] / size for row in own], **style)
    if shown:
        ax.axhline(amount.limit_bytes / size, color=INK, linewidth=1.1, linestyle=(0, (5, 2)), zorder=_ABOVE_AXES)
    _finish(ax, places, head, f"[{unit}]")
    ax.set_ylim(0, 1.1 * max(most, amount.limit_bytes if shown else 0) / size)
    ax.set_title(_title(amount, of_all=is_over_ranks(rows)), loc="left", **TEXT)


def _title(amount: Amount, *, of_all: bool) -> str:
    if amount.is_moved:
        return f"{amount.head} in a step{', by all ranks' if of_all else ''}"
    return amount.head + (f", room {quantity(amount.limit_bytes, 'B')}" if math.isfinite(amount.limit_bytes) else "")


def _curves(rows: Rows) -> dict[str, dict[str, Any]]:
    """The policies that ran somewhere, and how each is drawn: what lies below is wider, so that it shows at a tie."""
    every = list(dict.fromkeys(row["policy"] for row in rows))
    ran = [policy for policy in every if any(row["policy"] == policy and present(row.get("step_ns")) for row in rows)]
    found = {}
    for policy, width in zip(ran, widths(len(ran)), strict=True):
        number = every.index(policy)
        found[policy] = {
            "color": colours.GROUPS[number % len(colours.GROUPS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linewidth": width,
            "markersize": width + 3,
            "clip_on": False,
            "zorder": _ABOVE_AXES,
        }
    return found


def _computed(rows: Rows) -> dict[str, tuple[str, dict[Any, int]]]:
    """What of a step is compute [ns] by the value of the first axis: one curve with a colour if all policies agree."""
    found = dict[str, dict[Any, int]]()
    for row in rows:
        if present(row.get("step_ns")):
            own = found.setdefault(row["policy"], {})
            own[row[axes(rows)[0][1]]] = row["compute_ns"] + row["recompute_ns"]
    together = {value: ns for own in found.values() for value, ns in own.items()}
    if all(own.items() <= together.items() for own in found.values()):
        at = (value for value in _places(rows) if value in together)
        return {"of it compute": (INK, {value: together[value] for value in at})} if together else {}
    return {f"{policy}, of it compute": (_curves(rows)[policy]["color"], own) for policy, own in found.items()}


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
    named = _apart(list(places.values()), share)
    ax.set_xticklabels(
        [(f"{v:,}" if isinstance(v, int) else str(v)) if at in named else "" for v, at in places.items()]
    )
    ax.set_xlabel(head, **TEXT)
    ax.set_ylabel(label, **TEXT)
    plain(ax)


def _apart(places: Sequence[float], share: float) -> set[float]:
    """Places with labels, no two closer than a share of the logarithmic axis: both ends, and others from the left."""
    least, found = share * math.log(max(places) / min(places)), list[float]()
    for at in (min(places), max(places), *places):
        if all(abs(math.log(at / other)) >= least for other in found):
            found.append(at)
    return set(found)
