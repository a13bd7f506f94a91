"""The timeline of a row: what one rank did, lane by lane, with its memory below; or what each of several ranks did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from simulator.metrics import laid_out
from simulator.plan import COMPUTE, COPY
from simulator.report import colours
from simulator.report.drawing import Picture, bars, byte_unit, name_lanes, pixels, side_legend, stacked, styled, units
from simulator.report.ranks import chosen, collectives, is_job, of_ranks, omitted
from simulator.report.rows import Row, is_ok, only, percent, present, quantity, recomputed_ns
from simulator.report.usage import KINDS, Space, Usage, lasting, space, tensor_kinds, usages
from simulator.trace import CAUSES, Block
from simulator.units import counted

MOST_RANKS = 16
"""So many ranks can be drawn below each other and still be read."""
_FEW_STEPS = 40
"""Steps whose ends can still be told apart."""
Ints = NDArray[np.int64]
HOLE, FREE = "#4477aa", "#dddddd"
"""Colours of the largest hole, and of what is free beside it."""
_FAR = 4
"""A limit so many times the peak is left out of the picture."""


class Bars(NamedTuple):
    """What is drawn in a part of a lane: from where to where it reaches, times [ns], and which colour each has."""

    band: tuple[float, float]
    start_ns: Ints
    end_ns: Ints
    group: Ints
    tints: Sequence[str]


class _Acts(NamedTuple):
    """What one rank did in the window.

    Attributes
    ----------
    row
        The rank.
    spans, waits
        Rows of its trace; of a span also the ``run`` of its op, the ``group`` of a collective and the kind of tensor
        that is ``moved``, -1 if there is none.
    ends_ns
        Ends of all its steps [ns].
    """

    row: Row
    spans: Block
    waits: Block
    ends_ns: list[int]

    @classmethod
    def of(cls, row: Row, groups: Sequence[str], window_ns: tuple[int, int] | None = None) -> _Acts:
        if row.trace is None:
            raise ValueError(f"{row.label!r} has no timeline: nothing ran, because no such plan fits")
        spans, waits = laid_out(row.graph, row.hardware, row.trace)
        group = np.full(len(spans["kind"]), -1, np.int64)
        for one in collectives(row):
            group[one.span] = groups.index(one.what.group)
        copied = spans["kind"] == COPY
        moved = np.where(copied, tensor_kinds(row.graph, np.where(copied, spans["item"], 0)), -1)
        spans = {**spans, "group": group, "moved": moved}
        last_ops = (spans["kind"] == COMPUTE) & (spans["item"] == len(row.graph.ops) - 1)
        return cls(row, spans, waits, np.sort(spans["end_ns"][last_ops]).tolist())

    def within(self, first: int, last: int) -> _Acts:
        def those(block: Block) -> Block:
            return only(block, (block["end_ns"] >= first) & (block["start_ns"] <= last))

        return self._replace(spans=those(self.spans), waits=those(self.waits))


@styled()
def timeline(row: Row, *, window_ns: tuple[int, int] | None = None) -> Picture:
    """Draw what happened: compute and stalls by cause, every channel, and the memory of each tier by tensor kind.

    Of several ranks each has a lane: its compute with stalls by cause, its collectives by group, and its copies.

    Parameters
    ----------
    row
        A row with a trace.
    window_ns
        First and last instant shown [ns]; if None all of it, or the last two of more than three steps.

    Raises
    ------
    ValueError
        If the row has no trace, because no plan fits.
    """
    groups = list(dict.fromkeys(group.name for graph in row.job.graphs for group in graph.groups))
    ranks = chosen(row, MOST_RANKS) if is_job(row) else []
    rows = of_ranks(row, ranks) if ranks else [row]
    acts = [_Acts.of(one, groups) for one in rows]
    ends, makespan = acts[0].ends_ns, max(one.summary["makespan_ns"] or 1 for one in rows)
    window = window_ns or (ends[-3] if len(ends) > 3 else 0, makespan)
    acts = [one.within(*window) for one in acts]
    lanes = {one.row.rank_name: list(_of_rank(one, len(groups))) for one in acts} if ranks else _of_one(acts[0])
    return _drawn(row, acts, lanes, (groups, ranks, window))


def _drawn(
    row: Row,
    acts: Sequence[_Acts],
    lanes: dict[str, list[Bars]],
    about: tuple[Sequence[str], Sequence[int], tuple[int, int]],
) -> Picture:
    groups, ranks, (first, last) = about
    tiers, kept = ([], None) if ranks else (usages(row), space(row))
    marks = _marks(acts, {k for usage in tiers for k in usage.kinds}, groups)
    heights = [0.45 + (0.46 if ranks else 0.34) * len(lanes)] + [UsagePanel.HEIGHT_IN] * len(tiers)
    heights += [SpacePanel.HEIGHT_IN] * (kept is not None)
    with_legend = len(marks) + 6 * (kept is not None)
    picture, axes = stacked(heights, legend_lines=with_legend)
    unit, size = units(last - first)
    axes[0].set_xlim(first / size, last / size)
    name_lanes(axes[0], list(lanes))
    panels: list[UsagePanel | SpacePanel] = [
        UsagePanel(ax, usage, row.hardware.compute_tier) for ax, usage in zip(axes[1:], tiers, strict=False)
    ]
    marks += [("room", "--")] if any(isinstance(p, UsagePanel) and p.shows_limit for p in panels) else []
    marks += [("end of a step", ":")] if row.graph.steps > 1 else []
    if kept is not None:
        panels.append(SpacePanel(axes[-1], kept, float(row.budget_bytes), (first, last)))
        marks += panels[-1].marks if isinstance(panels[-1], SpacePanel) else []
    axes[-1].set_xlabel(f"time [{unit}]", **colours.TEXT)
    axes[0].set_title(omitted(row, ranks) if ranks else "", loc="left", **colours.TEXT)
    picture.title(f"{_title(row)} ({row.graph.name} on {row.hardware.name})")
    side_legend(picture, marks)
    picture.settle()
    for y, parts in enumerate(lanes.values()):
        for part in parts:
            band = y + part.band[0], y + part.band[1]
            bars(axes[0], band, (part.start_ns, part.end_ns), part.group, part.tints, size)
    for panel in panels:
        panel.draw(size)
    ends = [end for end in acts[0].ends_ns[:-1] if first < end < last]
    for ax, end in product(axes, ends if len(ends) <= _FEW_STEPS else ()):
        ax.axvline(end / size, color=colours.FAINT, linewidth=0.8, linestyle=":")
    return picture


def _title(row: Row) -> str:
    if not is_ok(row):
        return f"{row.label}: {row.summary['status']}"
    text = f"{row.label}: {quantity(row.summary.get('step_ns'), 'ns')} a step"
    if not is_job(row):
        again = f", {quantity(recomputed_ns(row), 'ns')} recomputed" if recomputed_ns(row) else ""
        return f"{text}, {quantity(row.summary.get('stall_ns'), 'ns')} of it stalled{again}"
    masked, slowest = row.summary.get("masked_fraction"), row.summary.get("slowest_rank")
    text += f" on {row.job.ranks:,} ranks" + (f", the slowest is rank {slowest}" if slowest else "")
    return text + (f", {percent(masked)} of the time of collectives is masked" if present(masked) else "")


def _of_one(acts: _Acts) -> dict[str, list[Bars]]:
    """A lane for each stream and each channel of a link that was used."""
    spans, links = acts.spans, acts.row.hardware.links
    streams = np.unique(spans["track"][spans["kind"] == COMPUTE]).tolist() or [0]
    lanes = {"compute" if s == 0 else f"stream {s}": [_computed(acts, (-0.4, 0.4), s)] for s in streams}
    copies = only(spans, spans["moved"] >= 0)
    for track, channel in np.unique(np.stack([copies["track"], copies["channel"]]), axis=1).T.tolist():
        name = acts.row.hardware.link_names[track]
        mine = only(copies, (copies["track"] == track) & (copies["channel"] == channel))
        number = f" #{channel}" if links[name].channels > 1 else ""
        lanes[f"{name}{number}"] = [_bars((-0.4, 0.4), mine, "moved", list(map(colours.KIND.__getitem__, KINDS)))]
    return lanes


def _of_rank(acts: _Acts, groups: int) -> Iterator[Bars]:
    """Compute and stalls above, collectives and copies in two thin parts below."""
    spans = acts.spans
    yield _computed(acts, (-0.42, 0.08), 0, is_rank=True)
    met, moved = only(spans, spans["group"] >= 0), only(spans, spans["moved"] >= 0)
    yield _bars((0.1, 0.28), met, "group", [_colour(group) for group in range(groups)])
    yield _bars((0.3, 0.42), moved, "moved", [colours.KIND[kind] for kind in KINDS])


def _bars(band: tuple[float, float], spans: Block, by: str, tints: Sequence[str]) -> Bars:
    return Bars(band, spans["start_ns"], spans["end_ns"], spans[by], tints)


def _computed(acts: _Acts, band: tuple[float, float], stream: int, *, is_rank: bool = False) -> Bars:
    """What a stream did: its computes by phase, recompute, and its stalls by cause; of a rank all its streams did."""
    is_here = acts.spans["group"] < 0 if is_rank else acts.spans["track"] == stream
    spans = only(acts.spans, (acts.spans["kind"] == COMPUTE) & is_here)
    waits, graph = only(acts.waits, acts.waits["stream"] == stream), acts.row.graph
    phases = sorted({op.phase for op in graph.ops})
    number = np.array([phases.index(op.phase) for op in graph.ops] or [0])
    tints = [*map(_shade, phases), colours.RECOMPUTE]
    group = np.where(spans["run"] > 1, len(phases), number[spans["item"]])
    start, end = (np.concatenate([spans[name], waits[name]]) for name in ("start_ns", "end_ns"))
    both = np.concatenate([group, len(tints) + waits["cause"]])
    return Bars(band, start, end, both, [*tints, *(colours.CAUSE[cause] for cause in CAUSES)])


def _shade(phase: str) -> str:
    return colours.PHASE.get(phase, colours.COMPUTE)


def _colour(group: int) -> str:
    return colours.GROUPS[group % len(colours.GROUPS)]


def _marks(acts: Sequence[_Acts], held: set[int], groups: Sequence[str]) -> list[tuple[str, str]]:
    """What colours mean, of those that are there; `held` are kinds of tensors that are drawn besides those moved."""

    def seen(column: str) -> list[int]:
        return sorted({int(value) for one in acts for value in np.unique(one.spans[column]) if value >= 0})

    ops = (op for graph in acts[0].row.job.graphs for op in graph.ops)
    phases = dict.fromkeys(op.phase for op in ops if op.collective is None)
    marks = [("compute", ""), *((phase or "any op", _shade(phase)) for phase in phases)]
    if max(seen("run"), default=1) > 1:
        marks.append(("recompute", colours.RECOMPUTE))
    on_stream = [one.waits["cause"][(one.waits["stream"] == 0) | (len(acts) == 1)] for one in acts]
    causes = np.unique(np.concatenate(on_stream)).tolist()
    met, kinds = seen("group"), sorted(held | set(seen("moved")), reverse=True)
    sections = {
        "stall, by cause": [(CAUSES[cause], colours.CAUSE[CAUSES[cause]]) for cause in causes],
        "collectives, by group": [(groups[group], _colour(group)) for group in met],
        "tensors": [(KINDS[kind].replace("_", " "), colours.KIND[KINDS[kind]]) for kind in kinds],
    }
    return marks + [mark for head, some in sections.items() if some for mark in ((head, ""), *some)]


class UsagePanel:
    """What lies in a tier, by tensor kind, and its limit.

    Parameters
    ----------
    ax, usage
        Where, and what.
    compute_tier
        Name of the tier whose limit is the budget.
    """

    HEIGHT_IN = 1.65

    def __init__(self, ax: Axes, usage: Usage, compute_tier: str) -> None:
        self._ax, self._usage, limit = ax, usage, float(usage.limit_bytes)
        peak = int(usage.total_bytes.max())
        self.shows_limit = math.isfinite(limit) and limit <= _FAR * peak
        allowed = usage.limit(compute_tier)
        beyond = "" if self.shows_limit else " (beyond the picture)"
        says = f"peak {quantity(peak, 'B')}" + (f", {allowed}{beyond}" if allowed else "")
        self._scale = _labelled(ax, usage.tier, max(peak, limit if self.shows_limit else 0), says)

    def draw(self, size: int) -> None:
        """Draw the most that lies in the tier within each pixel; `size` is how many ns a unit of time has."""
        usage, ax, edges = self._usage, self._ax, pixels(self._ax, size)
        at = highest(usage.time_ns, usage.total_bytes, edges)
        tops = np.cumsum(np.where(at >= 0, usage.kind_bytes[:, at], 0) / self._scale, axis=0)
        for k in reversed(usage.kinds):  # the highest first, each down to 0, so that no seam shows between two
            _fill(ax, edges / size, tops[k], colours.KIND[KINDS[k]])
        ax.stairs(tops[-1], edges / size, color=colours.FAINT, linewidth=0.6)
        if self.shows_limit:
            ax.axhline(float(usage.limit_bytes) / self._scale, **colours.LIMIT)


class SpacePanel:
    """What is free of a tier, in it the largest hole, and as a line what is reserved and not used.

    Parameters
    ----------
    ax, space
        Where, and what happened.
    limit_bytes
        What may be used of the tier [B].
    window_ns
        First and last instant shown [ns].
    """

    HEIGHT_IN = 1.1

    def __init__(self, ax: Axes, space: Space, limit_bytes: float, window_ns: tuple[int, int]) -> None:
        self._ax, self._space = ax, space
        self._free, self._unused = limit_bytes - space.live_bytes, space.reserved_bytes - space.live_bytes
        self._hole = np.minimum(space.hole_bytes, self._free)
        self._events = [ends for ends in space.compactions_ns if ends[1] >= window_ns[0] and ends[0] <= window_ns[1]]
        apart = quantity(int((self._free - self._hole).max(initial=0)), "B")
        count = f"{counted(len(self._events), 'compaction')} in what is shown"
        says = f"{count}, at most {apart} free outside the largest hole"
        most = float(max(self._free.max(initial=0), self._unused.max(initial=0)))
        label = f"free {space.tier}"
        self._scale = _labelled(ax, label, most, says if space.has_holes else "offsets fixed before the run")

    @property
    def marks(self) -> list[tuple[str, str]]:
        """What the legend says."""
        holes = [("largest hole", HOLE), ("free, in pieces", FREE)] if self._space.has_holes else [("free", FREE)]
        return [("addresses", ""), *holes, ("reserved, unused", "-")]

    def draw(self, size: int) -> None:
        """Draw the smallest largest hole within each pixel; `size` is how many ns a unit of time has."""
        ax, edges = self._ax, pixels(self._ax, size)
        at = highest(self._space.time_ns, -self._space.hole_bytes, edges)
        at = at[at >= 0]
        time = edges[-1 - len(at) :] / size
        _fill(ax, time, self._free[at] / self._scale, FREE)
        if self._space.has_holes:
            _fill(ax, time, self._hole[at] / self._scale, HOLE)
        ax.stairs(self._unused[at] / self._scale, time, baseline=None, color=colours.INK, linewidth=0.8)
        for start, end in self._events:
            ax.axvspan(start / size, end / size, color=colours.CAUSE["compaction"], alpha=0.35, linewidth=0)


def _labelled(ax: Axes, what: str, most: float, says: str) -> int:
    """Say what a panel shows, in which unit; return how many bytes that has."""
    unit, scale = byte_unit(most)
    ax.set_ylim(0, 1.25 * most / scale or 1)
    ax.set_ylabel(f"{what} [{unit}]", **colours.TEXT)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
    ax.text(0.004, 0.97, says, transform=ax.transAxes, va="top", fontsize=8, color=colours.INK, bbox=box)
    return scale


def _fill(ax: Axes, edges: NDArray[np.float64], values: NDArray[np.float64], colour: str) -> None:
    ax.fill_between(edges, 0, np.append(values, values[-1:]), step="post", color=colour, linewidth=0)


def highest(time_ns: Ints, value: Ints, edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose for each pixel the change after which something that lasts from change to change is highest in it.

    Parameters
    ----------
    time_ns, value
        When it changes, ascending [ns], and to what; of several changes at one instant the last one counts.
    edges
        As `simulator.report.drawing.pixels` returns them.

    Returns
    -------
    array of int
        The number of a change; -1 for a pixel before the first.
    """
    at = np.flatnonzero(lasting(time_ns))
    first = np.searchsorted(time_ns[at], edges[:-1], "right") - 1
    last = np.searchsorted(time_ns[at], edges[1:], "left") - 1
    found = np.where(first >= 0, at[first], -1)
    for pixel in np.flatnonzero(last > first):
        inside = at[max(first[pixel], 0) : last[pixel] + 1]
        found[pixel] = inside[value[inside].argmax()]
    return found
