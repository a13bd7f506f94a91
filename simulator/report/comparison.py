"""Pictures of what steps are spent on: of the rows of a table, beside what each holds in memory; of a row's ranks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simulator.report import colours
from simulator.report.drawing import (
    WIDTH_IN,
    Picture,
    byte_unit,
    name_lanes,
    plain,
    side_legend,
    stacked,
    styled,
    units,
)
from simulator.report.ranks import of_ranks
from simulator.report.rows import DRAINED, Row, held_to, is_ok, percent, present, quantity, spent
from simulator.trace import CAUSES

_ROW_IN, _AROUND_IN = 0.34, 1.6
"""Heights of a row, and of all that is above and below the rows."""
_STEP_SHARE = 0.56
"""Of the width of all panels, what that of the steps takes where several memories are used."""
_LABEL, _LABEL_LINES = 30, 2
_LETTER_IN = 0.07
"""Width of a character of the small print."""
_FAR = 10
"""A bar so many times as long as the median one is cut."""
_CUT = 1.04
"""Where a bar that is cut ends, against the longest that is not."""
_NEAR = 2
"""A limit so many times as high as the longest bar is drawn."""
_HALF = 0.36
"""Half of the height of a bar, in rows."""
_HOLLOW: dict[str, Any] = {"facecolor": "none", "edgecolor": colours.FAINT, "linestyle": "--"}
_APART = 64
"""So many ranks are told apart by a line between two."""
_FEW = 16
"""So few changes of the program from one rank to the next are marked."""
_BOUNDS = ("-", (0, (1, 1)), (0, (3, 1, 1, 1)))
"""Lines of bounds of different plans."""
_SHADE = {"compute": colours.COMPUTE, "recompute": colours.RECOMPUTE, DRAINED: colours.DRAIN}
_SHADE |= {f"stall: {cause}": colours.CAUSE[cause] for cause in CAUSES}
"""What a step is spent on -> its colour."""


class _Line(NamedTuple):
    """What a panel shows of a row: parts of its bar, a text behind it, and a mark at a value, with their styles."""

    parts: Sequence[tuple[dict[str, Any], int]]
    text: str
    mark: int | float = math.inf
    style: dict[str, Any] = colours.LIMIT
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class _Panel:
    """A panel: its head, its unit, what that has of the values' own, and where its axis ends in these."""

    head: str
    unit: str
    size: int
    end: float
    lines: Sequence[_Line]


@styled()
def comparison(rows: Sequence[Row], title: str) -> Picture:
    """Draw the rows beside each other: compute, stalls by cause and the bound; and the peak of each memory in use.

    Parameters
    ----------
    rows
        Rows of one table. Of those that did not run the status is written; of one that cannot fit the peak that it
        would need is drawn hollow.
    title
        What was run.
    """
    machine = rows[0].hardware
    used = [t for t in machine.tiers if t == machine.compute_tier or any(_held(row, t)[0] for row in rows)]
    panels = [_steps(rows), *(_peaks(rows, tier) for tier in used)]
    memories = len(panels) - 1
    picture = Picture(_AROUND_IN + _ROW_IN * len(rows))
    share = max(_STEP_SHARE, 0.7 if memories == 1 else 0)
    ratios = [share, *([(1 - share) / memories] * memories)]
    axes = picture.subplots(1, len(panels), sharey=True, width_ratios=ratios, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        plain(ax)
        ax.set_title(panel.head, loc="left", linespacing=1.2, **colours.SMALL)
        ax.set_xlabel(f"[{panel.unit}]" if panel.unit else "", **colours.SMALL)
        ax.tick_params(axis="y", length=0)
    shorten = partial(textwrap.wrap, width=_LABEL, max_lines=_LABEL_LINES, placeholder=" …")
    name_lanes(axes[0], ["\n".join(shorten(row.label)) for row in rows])
    is_limited = any(line.mark <= panel.end for panel in panels[1:] for line in panel.lines)
    picture.title(title, _marks(rows, is_limited=is_limited))
    picture.settle()
    for ax, panel in zip(axes, panels, strict=True):
        _draw(ax, panel)
    return picture


def _held(row: Row, tier: str) -> tuple[int, bool]:
    """What a row holds in a memory at most [B], or would have to if it cannot fit, and whether it does hold it."""
    if row.shortfall is not None and row.shortfall.tier == tier:
        return row.shortfall.demand_bytes, False
    return (int(row.summary.get(f"peak_{tier}_bytes") or 0), True) if is_ok(row) else (0, False)


def _steps(rows: Sequence[Row]) -> _Panel:
    """What each step is spent on, its bound, how long it is and how much of that is stalled; or why there is none."""
    steps, bounds = [int(row.summary["step_ns"]) for row in rows if is_ok(row)], _bounds(rows)
    lines = []
    for row in rows:
        if not is_ok(row):
            short = row.shortfall
            why = f": {short.tier} is short by {quantity(short.gap_bytes, 'B')}" if short else ""
            lines.append(_Line((), f"{row.summary['status']}{why}", is_number=False))
            continue
        step, stall = int(row.summary["step_ns"]), int(row.summary.get("stall_ns") or 0)
        text = quantity(step, "ns") + (f", {percent(stall / step)} stall" if stall else "")
        bound = row.summary.get("bound_ns")
        mark = (bound, bounds[held_to(rows, row)]) if present(bound) else (math.inf, colours.LIMIT)
        parts = sorted(spent(row), key=lambda part: (part[0] == DRAINED, [*_SHADE].index(part[0])))
        lines.append(_Line([({"color": _SHADE[what]}, ns) for what, ns in parts], text, *mark))
    end = _end(steps)
    unit, size = units(int(end))
    return _Panel("one step", unit if steps else "", size, end, lines)


def _bounds(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A line for each kind of plans of which there are bounds."""
    kinds = [held_to(rows, row) for row in rows if is_ok(row) and present(row.summary.get("bound_ns"))]
    styles = zip(dict.fromkeys(kinds), cycle(_BOUNDS), strict=False)
    return {kind: {"color": colours.INK, "linewidth": 1.4, "linestyle": style} for kind, style in styles}


def _peaks(rows: Sequence[Row], tier: str) -> _Panel:
    """The peaks of a memory, and its limit where that is near or exceeded."""
    is_budgeted = tier == rows[0].hardware.compute_tier
    limits = [row.budget_bytes if is_budgeted else row.hardware.tiers[tier].usable_bytes for row in rows]
    held = [_held(row, tier) for row in rows]
    exceeded = [int(limit) for (most, _), limit in zip(held, limits, strict=True) if most > limit]
    end = _end([most for most, _ in held if most], max(exceeded, default=0))
    near = [limit if limit <= _NEAR * end else math.inf for limit in limits]
    end = max([end, *(limit for limit in near if math.isfinite(limit))])
    lines = []
    for (most, is_held), limit in zip(held, near, strict=True):
        bar = [({"color": colours.PEAK} if is_held else _HOLLOW, most)] if most else []
        lines.append(_Line(bar, quantity(most, "B") if most or is_held else "", limit))
    same = len(set(limits)) == 1 and math.isfinite(limits[0])
    said = f"\n{'budget' if is_budgeted else 'capacity'} {quantity(limits[0], 'B')}" if same else ""
    return _Panel(f"peak of {tier}{said}", *byte_unit(end), end, lines)


def _end(values: Sequence[int], limit: int = 0) -> float:
    """Where an axis ends: at the longest bar that is not far beyond the median, or a limit that some bar exceeds."""
    if not values:
        return 1.0
    far = _FAR * max(sorted(values)[(len(values) - 1) // 2], limit)
    return float(max([limit, *(value for value in values if value <= far)]) or 1)


def _draw(ax: Axes, panel: _Panel) -> None:
    """Draw all lines of a panel, with room for a text behind the longest bar."""
    width = ax.get_position().width * WIDTH_IN
    letters = max((len(line.text) for line in panel.lines if line.is_number), default=1)
    ax.set_xlim(0, panel.end / panel.size * width / max(0.3 * width, width - _LETTER_IN * (letters + 3)))
    ax.locator_params(axis="x", nbins=max(2, round(width / 0.7)))
    if not panel.unit:
        ax.set_xticks([])
    for y, line in enumerate(panel.lines):
        left = 0.0
        for style, amount in line.parts:
            shown = max(0.0, min(amount, _CUT * panel.end - left))
            ax.barh(y, shown / panel.size, left=left / panel.size, height=2 * _HALF, **style)
            left += amount
        if line.mark <= panel.end:
            ax.plot([line.mark / panel.size] * 2, [y - 0.48, y + 0.48], **line.style)
        _write(ax, y, line, (left / panel.size, panel.end / panel.size, line.mark / panel.size))


def _write(ax: Axes, y: int, line: _Line, where: tuple[float, float, float]) -> None:
    """Write a value behind its bar, and behind a limit that it would hide; a cut bar has a gap, and an arrow behind."""
    (at, end, mark), text = where, line.text
    if at > end:
        at, text = _CUT * end, f"→ {text}"
        ax.plot([0.985 * end, 0.995 * end], [y + 0.45, y - 0.45], color="white", linewidth=3)
    inch = ax.get_xlim()[1] / (ax.get_position().width * WIDTH_IN)
    at = mark if at <= mark < at + (len(text) + 2) * _LETTER_IN * inch else at
    style = colours.SMALL if line.is_number else colours.SMALL | {"color": colours.FAINT}
    ax.annotate(text, (at, y), (6, 0), textcoords="offset points", va="center", zorder=3, **style)


def _marks(rows: Sequence[Row], *, is_limited: bool) -> list[Patch | Line2D]:
    """What colours and lines mean, of those that are there."""
    there = {what for row in rows if is_ok(row) for what, _ in spent(row)}
    marks: list[Patch | Line2D] = [Patch(color=shade, label=what) for what, shade in _SHADE.items() if what in there]
    bounds = _bounds(rows)
    marks += [Line2D([], [], label=name, **line) for name, line in bounds.items()]
    marks += [Line2D([], [], label="budget, capacity", **colours.LIMIT)] if is_limited else []
    marks += [Patch(label="would need", **_HOLLOW)] if any(row.shortfall is not None for row in rows) else []
    return marks


@styled()
def by_rank(row: Row) -> Picture:
    """Draw where each rank's step goes: compute, recompute, and waits by cause, rank beside rank.

    Parameters
    ----------
    row
        A row of several ranks that ran to its end.
    """
    views = {view.rank: view for view in of_ranks(row)}
    shown = [views[by] for by in (row.trace.stands_in if row.trace is not None else ())]
    most, spending = max(view.summary["step_ns"] for view in shown), [dict(spent(view)) for view in shown]
    unit, size = units(int(most))
    picture, (ax,) = stacked([2.4])
    edges, below = np.arange(len(shown) + 1) - 0.5, np.zeros(len(shown))
    marks = []
    for what, shade in _SHADE.items():
        values = np.array([each.get(what, 0) for each in spending]) / size
        if values.any() and what != DRAINED:
            ax.stairs(below + values, edges, baseline=below, fill=True, color=shade)
            marks.append((what, shade))
            below += values
    met = np.array([view.summary.get("collective_ns") or 0 for view in shown]) / size
    ax.stairs(met, edges, baseline=None, **colours.LIMIT)
    for edge in edges[1:-1] if len(shown) <= _APART else ():
        ax.axvline(edge, color="white", linewidth=0.8)
    changes = np.flatnonzero(np.diff(row.job.graph_of)) + 0.5
    for at in changes if len(changes) < _FEW else ():
        ax.axvline(at, color=colours.FAINT, linewidth=1.1, linestyle=":")
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.08 * most / size)
    ax.set_ylabel(f"one step [{unit}]", **colours.TEXT)
    ax.set_xlabel("rank", **colours.TEXT)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    side_legend(picture, [*marks, ("collectives under way", "--")])
    picture.title(f"{row.label}: where the step of each rank goes")
    return picture
