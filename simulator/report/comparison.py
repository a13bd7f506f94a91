"""The picture of a table: what the step of each row is spent on, beside what the row holds in each memory."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simulator.report import colours
from simulator.report.drawing import FAINT, INK, TEXT, WIDTH_IN, Picture, byte_unit, plain, styled, units
from simulator.report.rows import Row, held_to, is_ok, percent, present, quantity, recomputed_ns
from simulator.trace import CAUSES

_ROW_IN, _ABOVE_IN, _BELOW_IN, _GAP_IN, _MARGIN_IN = 0.34, 1.1, 0.5, 0.3, 0.12
_TITLE_IN = 0.3
"""Height of the line above the legend."""
_STEP_SHARE, _MEMORY_IN = 0.56, 1.35
"""Of the width that labels leave, what the steps take where several memories are used, each at least so wide."""
_LABEL, _LABEL_LINES = 30, 2
_LETTER_IN = 0.07
"""Width of a character of the small print."""
_FAR = 10
"""A bar so many times as long as the median one is cut."""
_HALF = 0.36
"""Half of the height of a bar, in rows."""
_SMALL = TEXT | {"fontsize": 8}
_HOLLOW: dict[str, Any] = {"facecolor": "none", "edgecolor": FAINT, "linestyle": "--"}
_LIMIT = (0, (5, 2))
_BOUNDS = ("-", (0, (1, 1)), (0, (3, 1, 1, 1)))
"""Lines of bounds of different plans."""
_CUT = 1.04
"""Where a bar that is cut ends, against the longest that is not."""


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
    tiers = _used(rows)
    picture, axes = _panels([_label(row) for row in rows], len(tiers))
    _draw_steps(axes[0], rows)
    limited = [_draw_peaks(ax, rows, tier) for ax, tier in zip(axes[1:], tiers, strict=True)]
    height = picture.get_figheight()
    picture.text(0.01, 1 - 0.12 / height, title, va="top", **(TEXT | {"fontsize": 11}))
    picture.legend(
        handles=_marks(rows, is_limited=any(limited)),
        loc="upper left",
        bbox_to_anchor=(0, 1 - _TITLE_IN / height),
        ncols=12,
        fontsize=8,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.4,
    )
    return picture


def _used(rows: Sequence[Row]) -> list[str]:
    """Memories that any row uses, and the one that computes read, in the order of the machine."""
    machine = rows[0].hardware
    return [t for t in machine.tiers if t == machine.compute_tier or any(_held(row, t)[0] for row in rows)]


def _held(row: Row, tier: str) -> tuple[int, bool]:
    """What a row holds in a memory at most [B], or would have to if it cannot fit, and whether it does hold it."""
    if row.shortfall is not None and row.shortfall.tier == tier:
        return row.shortfall.demand_bytes, False
    return (int(row.summary.get(f"peak_{tier}_bytes") or 0), True) if is_ok(row) else (0, False)


def _limit(row: Row, tier: str) -> int | float:
    return row.budget_bytes if tier == row.hardware.compute_tier else row.hardware.tiers[tier].usable_bytes


def _label(row: Row) -> str:
    lines = textwrap.wrap(row.label, _LABEL, max_lines=_LABEL_LINES, placeholder=" …")
    return "\n".join(lines)


def _panels(labels: Sequence[str], memories: int) -> tuple[Picture, list[Axes]]:
    """Axes side by side with the same rows: a wide one for steps, and one for each memory."""
    height = _ABOVE_IN + _ROW_IN * len(labels) + _BELOW_IN
    picture = Picture(height)
    longest = max(len(line) for label in labels for line in label.splitlines() or [""])
    left = 0.25 + 0.085 * max(7, longest)
    room = WIDTH_IN - left - _MARGIN_IN - _GAP_IN * memories
    steps = max(room / 3, min(room * _STEP_SHARE, room - _MEMORY_IN * memories)) if memories > 1 else room * 0.7
    axes = list[Axes]()
    for width in (steps, *([(room - steps) / memories] * memories)):
        place = (left / WIDTH_IN, _BELOW_IN / height, width / WIDTH_IN, _ROW_IN * len(labels) / height)
        ax = picture.add_axes(place, sharey=axes[0] if axes else None)
        plain(ax)
        ax.tick_params(axis="y", length=0, labelleft=not axes)
        axes.append(ax)
        left += width + _GAP_IN
    axes[0].set_yticks(range(len(labels)), labels, **TEXT)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)
    return picture, axes


def _draw_steps(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw what each step is spent on, its bound, and say how long it is and how much of that is stalled."""
    steps = [int(row.summary["step_ns"]) for row in rows if is_ok(row)]
    end, texts = _end(steps), {y: _said(row) for y, row in enumerate(rows)}
    unit, size = units(int(end))
    _scale(ax, end / size, max((len(texts[y]) for y, row in enumerate(rows) if is_ok(row)), default=1))
    _head(ax, "one step", "", f"[{unit}]")
    if not steps:
        ax.set_xlabel("")
        ax.set_xticks([])
    lines = _bounds(rows)
    for y, row in enumerate(rows):
        if not is_ok(row):
            ax.text(0, y, f" {texts[y]}", va="center", clip_on=False, **(_SMALL | {"color": FAINT}))
            continue
        left = 0.0
        for colour, ns in _parts(row):
            ax.barh(y, max(0.0, min(ns, _CUT * end - left)) / size, left=left / size, color=colour, height=2 * _HALF)
            left += ns
        _write(ax, y, left / size, end / size, texts[y])
        bound = row.summary.get("bound_ns")
        if bound is not None and bound <= end:
            ax.plot([bound / size] * 2, [y - 0.48, y + 0.48], **lines[held_to(rows, row)])


def _bounds(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A line for each kind of plans of which there are bounds."""
    kinds = [held_to(rows, row) for row in rows if is_ok(row) and present(row.summary.get("bound_ns"))]
    styles = zip(dict.fromkeys(kinds), cycle(_BOUNDS), strict=False)
    return {kind: {"color": INK, "linewidth": 1.4, "linestyle": style} for kind, style in styles}


def _parts(row: Row) -> list[tuple[str, int]]:
    """What a step is spent on: colours and times [ns]."""
    waits = [(colours.CAUSE[cause], int(row.summary.get(f"wait_{cause}_ns") or 0)) for cause in CAUSES]
    first = [(colours.COMPUTE, int(row.summary["compute_ns"])), (colours.RECOMPUTE, recomputed_ns(row))]
    return [part for part in (*first, *waits, (colours.DRAIN, int(row.summary.get("drain_ns") or 0))) if part[1]]


def _said(row: Row) -> str:
    """How long the step is, and how much of it is stalled; or why there is none."""
    if row.shortfall is not None:
        return f"{row.summary['status']}: {row.shortfall.tier} is short by {quantity(row.shortfall.gap_bytes, 'B')}"
    if not is_ok(row):
        return str(row.summary["status"])
    step, stall = int(row.summary["step_ns"]), int(row.summary.get("stall_ns") or 0)
    return quantity(step, "ns") + (f", {percent(stall / step)} stall" if stall else "")


def _draw_peaks(ax: Axes, rows: Sequence[Row], tier: str) -> bool:
    """Draw the peaks of a memory, and its limit where that is near or exceeded; say whether it is drawn."""
    held, limits = [_held(row, tier) for row in rows], [_limit(row, tier) for row in rows]
    exceeded = [int(limit) for (most, _), limit in zip(held, limits, strict=True) if most > limit]
    end = _end([most for most, _ in held if most], max(exceeded, default=0))
    near = [limit for limit in limits if limit <= 2 * end]
    end = max([end, *near])
    unit, size = byte_unit(end)
    texts = [quantity(most, "B") for most, _ in held]
    _scale(ax, end / size, max(map(len, texts)))
    kind = "budget" if tier == rows[0].hardware.compute_tier else "capacity"
    same = len(set(limits)) == 1 and math.isfinite(limits[0])
    _head(ax, f"peak of {tier}", f"{kind} {quantity(limits[0], 'B')}" if same else "", f"[{unit}]")
    for y, ((most, is_held), limit) in enumerate(zip(held, limits, strict=True)):
        if most:
            (bar,) = ax.barh(y, min(most, _CUT * end) / size, height=2 * _HALF, color=colours.PEAK)
            bar.update({} if is_held else _HOLLOW)
        if most or is_held:
            _write(ax, y, most / size, end / size, texts[y], limit / size if limit in near else math.inf)
        if limit in near:
            ax.plot([limit / size] * 2, [y - 0.5, y + 0.5], color=INK, linewidth=1.1, linestyle=_LIMIT)
    return bool(near)


def _end(values: Sequence[int], limit: int = 0) -> float:
    """Where an axis ends: at the longest bar that is not far beyond the median, or a limit that some bar exceeds."""
    if not values:
        return 1.0
    far = _FAR * max(sorted(values)[(len(values) - 1) // 2], limit)
    return float(max([limit, *(value for value in values if value <= far)]) or 1)


def _scale(ax: Axes, end: float, letters: int) -> None:
    """Give an axis room for a text behind its longest bar."""
    width = ax.get_position().width * WIDTH_IN
    ax.set_xlim(0, end * width / max(0.3 * width, width - _LETTER_IN * (letters + 3)))


def _write(ax: Axes, y: int, at: float, end: float, text: str, limit: float = math.inf) -> None:
    """Write a value behind its bar, and behind a limit that it would hide; a cut bar has a gap, and an arrow behind."""
    if at > end:
        at, text = _CUT * end, f"→ {text}"
        ax.plot([0.985 * end, 0.995 * end], [y + 0.45, y - 0.45], color="white", linewidth=3)
    inch = ax.get_xlim()[1] / (ax.get_position().width * WIDTH_IN)
    at = limit if at <= limit < at + (len(text) + 2) * _LETTER_IN * inch else at
    ax.annotate(text, (at, y), (6, 0), textcoords="offset points", va="center", zorder=3, **_SMALL)


def _head(ax: Axes, title: str, limit: str, unit: str) -> None:
    """Say above a panel what it is, and below in which unit."""
    ax.set_title("\n".join(filter(None, (title, limit))), loc="left", linespacing=1.2, **_SMALL)
    ax.set_xlabel(unit, **_SMALL)
    ax.locator_params(axis="x", nbins=max(2, round(ax.get_position().width * WIDTH_IN / 0.7)))


def _marks(rows: Sequence[Row], *, is_limited: bool) -> list[Patch | Line2D]:
    """What colours and lines mean, of those that are there."""
    shades = {colours.COMPUTE: "compute", colours.RECOMPUTE: "recompute", colours.DRAIN: "copies after the last op"}
    shades |= {colour: f"stall: {cause}" for cause, colour in colours.CAUSE.items()}
    found = {colour for row in rows if is_ok(row) for colour, _ in _parts(row)}
    marks: list[Patch | Line2D] = [Patch(color=c, label=said) for c, said in shades.items() if c in found]
    bounds = _bounds(rows)
    beat = " can beat this" if len(bounds) == 1 else ""
    marks += [Line2D([], [], label=f"bound: {plans}{beat}", **line) for plans, line in bounds.items()]
    if is_limited:
        marks.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=_LIMIT, label="budget, capacity"))
    if any(row.shortfall is not None for row in rows):
        marks.append(Patch(label="would need", **_HOLLOW))
    return marks
