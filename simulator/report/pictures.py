"""Pictures of tables: what each row spends its step on and holds in memory; what each rank does; curves of a sweep."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from simulator.lifetime import live_bytes
from simulator.policies.static.augmented import Role
from simulator.policies.static.explanation import Explanation
from simulator.report import drawing
from simulator.report.drawing import FAINT, LIMIT, SPENT, Picture, curve_styles, label, name_lanes, styled, units
from simulator.report.rows import Row, grouped, held_to, of_ranks, percent, present, quantity
from simulator.report.views import Panel, by

_ROW_IN, _AXIS_IN = 0.34, 0.6
"""Heights of a row, and of an axis with what is written above and below it."""
_STEP_WIDTH = 2.4
"""How many times as wide as the panel of a memory that of the steps is."""
_NEAR = 2
"""A limit so many times as high as the longest bar, or the highest point, is drawn."""
_HALF = 0.36
"""Half of the height of a bar, in rows."""
_HOLLOW: dict[str, Any] = {"facecolor": "none", "edgecolor": FAINT, "linestyle": "--"}
_BOUNDS = ("-", (0, (1, 1)), (0, (3, 1, 1, 1)))
"""Lines of bounds of different plans."""
_BESIDE, _PANEL_IN = 3, 2.7
"""Panels of curves side by side, and the height of a line of them."""
_DECADES = 100
"""Heights that differ by more are drawn on a logarithmic axis."""
_LABELS = 8
"""Values on an axis that all have a label; more would lie on each other."""
_BUSY, _WANTED = "#bbccdd", "#4477aa"
_CUT = 200
"""Per cent of what a link can serve at which what is wanted of it is cut."""


@styled()
def comparison(rows: Sequence[Row], title: str) -> Picture:
    """Draw the rows beside each other: compute, stalls by cause and the bound; and the peak of each memory in use.

    Parameters
    ----------
    rows
        Rows of one table. Of those that did not run the status is written; of one that cannot fit the peak that it
        would need is drawn hollow.
    title
        What was run, and where.
    """
    machine = rows[0].hardware
    used = [tier for tier in machine.tiers if tier == machine.compute_tier or any(_held(row, tier) for row in rows)]
    picture = Picture(_AXIS_IN + _ROW_IN * len(rows))
    widths = [_STEP_WIDTH, *[1] * len(used)]
    steps, *memories = picture.subplots(1, len(widths), sharey=True, width_ratios=widths, squeeze=False)[0]
    shorten = partial(textwrap.wrap, width=30, max_lines=2, placeholder=" …")
    name_lanes(steps, ["\n".join(shorten(row.label)) for row in rows])
    marks = _draw_steps(steps, rows)
    for ax, tier in zip(memories, used, strict=True):
        marks |= _draw_peaks(ax, rows, tier)
        ax.tick_params(axis="y", length=0, labelleft=False)
    picture.head(title, marks)
    return picture


def _write(ax: Axes, texts: Sequence[str]) -> None:
    """Write a text for each row, in a column behind the panel, where no bar and no limit is."""
    for y, text in enumerate(texts):
        ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), va="center", **drawing.TEXT | {"fontsize": 8})


def _tick(ax: Axes, y: int, at: float, look: Mapping[str, Any]) -> None:
    """Draw a line through the lane of a row."""
    ax.plot([at, at], [y - 0.48, y + 0.48], **look)


def _draw_steps(ax: Axes, rows: Sequence[Row]) -> dict[str, Any]:
    """What each step is spent on, its bound, how long it is and how much of that is stalled; or why there is none."""
    running = [row for row in rows if row.is_ok]
    unit, size = units(max((row.summary["step_ns"] for row in running), default=0))
    label(ax, x=f"one step [{unit}]" if running else "one step")
    if not running:
        ax.set_xticks([])
    texts = [_lack(row) for row in rows]
    kinds = [held_to(rows, row) for row in running if present(row.summary.get("bound_ns"))]
    bounds: dict[str, dict[str, Any]] = {}
    for kind, line in zip(dict.fromkeys(kinds), cycle(_BOUNDS), strict=False):
        bounds[kind] = {"color": drawing.INK, "linestyle": line}
    marks: dict[str, Any] = {}
    for what, left, right in _stacked(rows):
        has = np.flatnonzero(right > left)
        ax.barh(has, (right - left)[has] / size, left=left[has] / size, height=2 * _HALF, color=SPENT[what])
        marks[what] = SPENT[what]
    for y, row in enumerate(rows):
        if not row.is_ok:
            continue
        if present(row.summary.get("bound_ns")):
            _tick(ax, y, row.summary["bound_ns"] / size, bounds[held_to(rows, row)])
        step, stall = row.summary["step_ns"], row.summary.get("stall_ns") or 0
        texts[y] = quantity(step, "ns") + (f", {percent(stall / step)} stall" if stall else "")
    ax.set_xlim(left=0)
    _write(ax, texts)
    return marks | bounds


def _stacked(rows: Sequence[Row]) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """What any row spends its step on, and from where to where it lies in each, one behind the other [ns]."""
    parts, end = [row.spent if row.is_ok else {} for row in rows], np.zeros(len(rows))
    for what in SPENT:
        start, end = end, end + [part.get(what, 0) for part in parts]
        if (end > start).any():
            yield what, start, end


def _lack(row: Row) -> str:
    """Why a row has no step."""
    short = f", short by {quantity(row.shortfall.gap_bytes, 'B')}" if row.shortfall else ""
    return f"{row.summary['status']}{short}"


def _held(row: Row, tier: str) -> int:
    """What a row holds in a memory at most [B], or would have to if it cannot fit."""
    if row.shortfall is not None:
        return row.shortfall.demand_bytes if row.shortfall.tier == tier else 0
    return int(row.summary.get(f"peak_{tier}_bytes") or 0) if row.is_ok else 0


def _draw_peaks(ax: Axes, rows: Sequence[Row], tier: str) -> dict[str, Any]:
    """The peaks of a memory, and its limit where that is near or exceeded."""
    is_budgeted = tier == rows[0].hardware.compute_tier
    limits = [row.budget_bytes if is_budgeted else row.hardware.tiers[tier].usable_bytes for row in rows]
    held, marks = [_held(row, tier) for row in rows], dict[str, Any]()
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
    _write(ax, [quantity(most, "B") if most or row.is_ok else "" for row, most in zip(rows, held, strict=True)])
    return marks


@styled()
def by_rank(row: Row) -> Picture:
    """Draw where each rank's step goes: compute, recompute, and waits by cause, rank beside rank.

    Parameters
    ----------
    row
        A row of several ranks that ran to its end.
    """
    views = {view.rank: view for view in of_ranks(row, row.simulated)}
    shown = [views[by] for by in (row.trace.stands_in if row.trace is not None and row.is_job else (0,))]
    unit, size = units(max(view.summary["step_ns"] for view in shown))
    picture = Picture(3.0)
    ax, edges = picture.subplots(), np.arange(len(shown) + 1) - 0.5
    marks: dict[str, Any] = {}
    for what, below, above in _stacked(shown):
        ax.stairs(above / size, edges, baseline=below / size, fill=True, color=SPENT[what])
        marks[what] = SPENT[what]
    met = np.array([view.summary.get("collective_ns") or 0 for view in shown]) / size
    ax.stairs(met, edges, baseline=None, **LIMIT)
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(ax, x="rank", y=f"one step [{unit}]")
    title = f"{row.label}: where the step of each rank goes ({row.job.name} on {row.hardware.name})"
    picture.head(title, marks | {"collectives under way": LIMIT})
    return picture


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
    picture = Picture(_PANEL_IN * lines)
    places = list(picture.subplots(lines, min(_BESIDE, max(1, len(panels))), squeeze=False).flat)
    names = dict.fromkeys(str(row[panel.of]) for panel in panels for row in panel.rows if present(row.get(panel.y)))
    styles = curve_styles([*names])
    for ax, panel in zip(places, panels, strict=False):
        _draw(ax, panel, styles)
    for ax in places[len(panels) :]:
        ax.set_axis_off()
    picture.head(title, styles)
    return picture


def _draw(ax: Axes, panel: Panel, styles: Mapping[str, dict[str, Any]]) -> None:
    rows = [row for row in panel.rows if present(row.get(panel.y))]
    heights = [float(row[key]) * panel.scale for row in rows for key in (panel.y, *panel.band) if present(row.get(key))]
    most = max(heights, default=1)
    limit = panel.limit if 0 < panel.limit <= _NEAR * most else 0
    unit, size = units(max(most, limit), panel.unit) if panel.unit in ("ns", "B") else (panel.unit, 1)
    places = _places(ax, list(dict.fromkeys(row[panel.x] for row in rows)))
    for (name,), own in by(rows, panel.of).items():
        style = styles[str(name)]
        for key in (panel.y, *panel.band):
            there = [row for row in own if present(row.get(key))]
            look = style if key == panel.y else {"color": style["color"], "linewidth": 0.8, "linestyle": ":"}
            ax.plot([places[row[panel.x]] for row in there], [row[key] * panel.scale / size for row in there], **look)
        held = [row for row in own if row.get("holds")]
        dots = [places[row[panel.x]] for row in held], [row[panel.y] * panel.scale / size for row in held]
        ax.plot(*dots, color=style["color"], linestyle="", marker="o", markersize=9)
    if limit:
        ax.axhline(limit / size, **LIMIT)
    if unit == "%":
        ax.axhline(0, color=FAINT, linewidth=0.8, linestyle=":")
    elif heights and most > _DECADES * min(heights) > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, 1.1 * max(most, limit) / size or 1)
    label(ax, panel.title, panel.axis, f"[{unit}]" if unit else "")


def _places(ax: Axes, values: Sequence[Any]) -> dict[Any, float]:
    """Where each value stands: numbers on their axis, logarithmic if they are far apart, anything else side by side."""
    are_numbers = all(isinstance(value, int | float) for value in values)
    places = {value: float(value if are_numbers else number) for number, value in enumerate(values)}
    if max(places.values(), default=0) > 8 * min(places.values(), default=0) > 0:
        ax.set_xscale("log", base=2)
    if len(places) <= _LABELS:
        ax.xaxis.set_major_locator(FixedLocator(list(places.values())))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticklabels([f"{value:,}" if isinstance(value, int) else f"{value}" for value in places])
    return places


@styled()
def planned(explanation: Explanation) -> Picture:
    """Draw what is live against the budget and each trip, over compute time; below, each link over time, with stalls.

    Parameters
    ----------
    explanation
        The plan.
    """
    links, problem = grouped(explanation.slots, lambda slot: slot.link), explanation.problem
    heights = [1.8, 2.4, *[1.1] * len(links)]
    picture = Picture(sum(heights))
    live, trips, *below = picture.subplots(len(heights), height_ratios=heights)
    trips.sharex(live)
    unit, ns = units(int(problem.clock[-1]))
    clock = np.array(problem.clock) / ns
    marks = _draw_live(live, explanation, clock) | _draw_trips(trips, explanation, clock)
    label(trips, x=f"compute time, without stalls [{unit}]", y="trips")
    for ax, (link, own) in zip(below, links.items(), strict=True):
        unit, ns = units(own[-1].end_ns)
        edges = np.array([own[0].start_ns, *(slot.end_ns for slot in own)])
        served = np.diff(edges) * [slot.servers for slot in own] / 100
        wanted = (np.array([slot.wanted_ns for slot in own]) / served).clip(max=_CUT)
        ax.stairs(np.array([slot.busy_ns for slot in own]) / served, edges / ns, fill=True, color=_BUSY)
        ax.stairs(wanted, edges / ns, baseline=None, color=_WANTED)
        ax.axhline(100, color=FAINT, linewidth=0.8)
        label(ax, y=f"{link} [%]", x=f"time of a step, with its stalls [{unit}]" if ax is below[-1] else "")
    of_links: dict[str, Any] = {"link is busy": _BUSY, f"wanted (cut at {_CUT} %)": {"color": _WANTED}}
    title = f"what the plan of {explanation.plan.policy!r} decides ({problem.graph.name})"
    picture.head(title, marks | (of_links if links else {}))
    return picture


def _draw_live(ax: Axes, explanation: Explanation, clock: NDArray[np.float64]) -> dict[str, Any]:
    """What is live at each op, and the room for it."""
    problem = explanation.problem
    resident, selected = live_bytes(problem.graph, problem.lifetimes), explanation.candidate.selection.live_bytes
    unit, size = units(int(resident.max(initial=1)), "B")
    looks: dict[str, Any] = {"live, if nothing moves": {"color": "#bbbbbb"}, "live, as selected": {"color": "#009988"}}
    for look, amount in zip(looks.values(), (resident, selected), strict=True):
        ax.step(clock[:-1], amount / size, where="post", **look)
    if np.isfinite(problem.budget_bytes):
        ax.axhline(problem.budget_bytes / size, **LIMIT)
        looks["room"] = LIMIT
    ax.set_ylim(bottom=0)
    label(ax, y=f"live [{unit}]")
    return looks


def _draw_trips(ax: Axes, explanation: Explanation, clock: NDArray[np.float64]) -> dict[str, Any]:
    """One line a trip: from the store to the detach, away, and from the prefetch to the use."""
    augmented = explanation.candidate.augmented
    away = [(trip, gap.after + 1, gap.before) for trip, gap in enumerate(augmented.gaps) if not gap.wraps]
    comes = [(one.trip, one.position, one.before) for one in augmented.cache_ops if one.role is Role.PREFETCH]
    stores = [(one.trip, one.position, 0) for one in augmented.cache_ops if one.role is Role.STORE]
    issued = {"color": "#ee7733", "linestyle": "", "marker": ">", "markersize": 3}
    looks: dict[str, tuple[list[tuple[int, int, int]], dict[str, Any]]] = {
        "away": (away, {"color": "#cccccc", "linewidth": 0.7}),
        "prefetch issued ... use": (comes, {"color": "#0077bb", "linewidth": 1.5}),
        "store issued": (stores, issued),
    }
    for trips, look in looks.values():
        number, start, end = np.array(trips, int).reshape(-1, 3).T
        if look is issued:
            ax.plot(clock[start], number, **look)
        else:
            ax.hlines(number, clock[start], clock[end], **look)
    return {name: look for name, (trips, look) in looks.items() if trips}
