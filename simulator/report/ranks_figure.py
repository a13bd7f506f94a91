"""Pictures of several ranks: their timelines below each other, and where the time of each goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from simulator.metrics import run_numbers
from simulator.plan import COMPUTE, COPY
from simulator.report import colours, meetings
from simulator.report.drawing import (
    FAINT,
    INK,
    TEXT,
    Picture,
    draw_boundaries,
    only,
    plain,
    side_legend,
    stacked,
    step_ends,
    styled,
    units,
    within,
)
from simulator.report.lanes import bars, stream
from simulator.report.ranks import chosen, of_ranks, omitted
from simulator.report.rows import Row, is_ok, percent, present, quantity
from simulator.report.usage import KINDS, tensor_kinds
from simulator.trace import CAUSES, Block

MOST_RANKS = 16
"""So many ranks can be drawn below each other and still be read."""
_SPENT = ("compute_ns", "recompute_ns", *(f"wait_{cause}_ns" for cause in CAUSES))
"""Columns of what a rank spends its step on."""


@styled()
def timeline(row: Row, *, window_ns: tuple[int, int] | None = None) -> Picture:
    """Draw what the ranks did: of each its compute with stalls by cause, its collectives by group, and its copies.

    Parameters
    ----------
    row
        A row of several ranks, with a trace.
    window_ns
        First and last instant shown [ns]; if None all of it, or the last two of more than three steps.
    """
    ranks = chosen(row, MOST_RANKS)
    views = of_ranks(row, ranks)
    blocks = [_blocks(view) for view in views]
    ends = step_ends(views[0], blocks[0][0])
    makespan = max(view.summary["makespan_ns"] or 1 for view in views)
    first, last = window_ns or (ends[-3] if len(ends) > 3 else 0, makespan)
    labels = [view.rank_name for view in views]
    groups = {name: i for i, name in enumerate(dict.fromkeys(g.name for graph in row.job.graphs for g in graph.groups))}
    marks = _marks(row, [block for block, _ in blocks], [block for _, block in blocks], groups)
    said = omitted(row, ranks)
    picture, (ax,) = stacked([max(0.45 + 0.46 * len(views), 0.19 * len(marks))], labels, top_in=0.24 * bool(said))
    unit, size = units(last - first)
    ax.set_xlim(first / size, last / size)
    for y, (view, (spans, waits)) in enumerate(zip(views, blocks, strict=True)):
        _draw_rank(ax, y, view, (within(spans, first, last), within(waits, first, last)), groups, size)
    draw_boundaries(ax, [end for end in ends[:-1] if first < end < last], size)
    _label(ax, labels)
    ax.set_xlabel(f"time [{unit}]", **TEXT)
    picture.text(0.01, 1 - 0.1 / picture.get_figheight(), _title(row), va="top", **(TEXT | {"fontsize": 11}))
    picture.text(0.01, 1 - 0.36 / picture.get_figheight(), said, va="top", **TEXT)
    side_legend(picture, marks)
    return picture


def _blocks(view: Row) -> tuple[Block, Block]:
    """Spans and waits of a rank; of a span also the run of its op, the group of a collective, the kind of a copy."""
    if view.trace is None:
        raise ValueError(f"{view.label!r} has no timeline: nothing ran, because no such plan fits")
    spans = view.trace.spans.whole()
    runs, _ = run_numbers(view.graph, view.hardware, view.trace)
    names = list(dict.fromkeys(g.name for graph in view.job.graphs for g in graph.groups))
    group = np.full(len(runs), -1, np.int64)
    for one in meetings.of_rank(view):
        group[one.span] = names.index(one.what.group)
    copied = spans["kind"] == COPY
    moved = np.where(copied, tensor_kinds(view.graph, np.where(copied, spans["item"], 0)), -1)
    return {**spans, "run": runs, "group": group, "moved": moved}, view.trace.waits.whole()


def _draw_rank(ax: Axes, y: int, view: Row, blocks: tuple[Block, Block], groups: dict[str, int], size: int) -> None:
    """Draw compute and stalls above, collectives and copies in two thin lanes below."""
    spans, waits = blocks
    met, ran = spans["group"] >= 0, spans["kind"] == COMPUTE
    stream(ax, (y - 0.42, y + 0.08), view.graph, (only(spans, ran & ~met), only(waits, waits["stream"] == 0)), size)
    collectives, copies = only(spans, met), only(spans, spans["moved"] >= 0)
    ends = collectives["start_ns"], collectives["end_ns"]
    bars(ax, (y + 0.1, y + 0.28), ends, collectives["group"], [_colour(i) for i in range(len(groups))], size)
    ends = copies["start_ns"], copies["end_ns"]
    bars(ax, (y + 0.3, y + 0.42), ends, copies["moved"], [colours.KIND[name] for name in KINDS], size)


def _colour(group: int) -> str:
    return colours.GROUPS[group % len(colours.GROUPS)]


def _label(ax: Axes, labels: Sequence[str]) -> None:
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_yticks(range(len(labels)), labels, **TEXT)
    ax.tick_params(axis="y", length=0)
    plain(ax)


def _title(row: Row) -> str:
    if not is_ok(row):
        return f"{row.label}: {row.summary['status']}"
    masked, slowest = row.summary.get("masked_fraction"), row.summary.get("slowest_rank")
    text = f"{row.label}: {quantity(row.summary.get('step_ns'), 'ns')} a step on {row.job.ranks:,} ranks"
    text += f", the slowest is rank {slowest}" if slowest else ""
    return text + (f", {percent(masked)} of the time of collectives is masked" if present(masked) else "")


def _marks(row: Row, spans: list[Block], waits: list[Block], groups: dict[str, int]) -> list[tuple[str, str]]:
    phases = dict.fromkeys(op.phase for graph in row.job.graphs for op in graph.ops if op.collective is None)
    marks = [("compute", "")]
    marks += [(phase or "any op", colours.PHASE.get(phase, colours.COMPUTE)) for phase in phases]
    if any((block["run"] > 1).any() for block in spans):
        marks.append(("recompute", colours.RECOMPUTE))
    causes = sorted({int(c) for block in waits for c in np.unique(block["cause"][block["stream"] == 0])})
    if causes:
        marks += [("stall, by cause", ""), *((CAUSES[c], colours.CAUSE[CAUSES[c]]) for c in causes)]
    met = sorted({int(g) for block in spans for g in np.unique(block["group"]) if g >= 0})
    names = list(groups)
    if met:
        marks += [("collectives, by group", ""), *((names[g], _colour(g)) for g in met)]
    moved = sorted({int(k) for block in spans for k in np.unique(block["moved"]) if k >= 0})
    if moved:
        marks += [("copies", ""), *((KINDS[k].replace("_", " "), colours.KIND[KINDS[k]]) for k in moved)]
    return [*marks, ("end of a step", ":")]


@styled()
def spent(row: Row) -> Picture:
    """Draw where each rank's step goes: compute, recompute, and waits by cause, rank beside rank.

    Parameters
    ----------
    row
        A row of several ranks that ran to its end.
    """
    counts = {view.rank: view.summary for view in of_ranks(row)}
    stands_in = row.trace.stands_in if row.trace is not None else ()
    summaries = [counts[by] for by in stands_in]
    values = np.array([[summary.get(column) or 0 for summary in summaries] for column in _SPENT], np.int64)
    picture, (ax,) = stacked([2.4], ["one step"])
    most = max(summary["step_ns"] for summary in summaries)
    unit, size = units(int(most))
    edges = np.arange(len(summaries) + 1) - 0.5
    tops = np.cumsum(values, axis=0) / size
    shades = [colours.COMPUTE, colours.RECOMPUTE, *(colours.CAUSE[cause] for cause in CAUSES)]
    for k in reversed(range(len(_SPENT))):  # the highest first, each down to 0, so that no seam shows between two
        if values[k].any():
            ax.fill_between(edges, 0, np.append(tops[k], tops[k, -1]), step="post", color=shades[k], linewidth=0)
    met = np.array([summary.get("collective_ns") or 0 for summary in summaries]) / size
    ax.step(edges, np.append(met, met[-1]), where="post", color=INK, linewidth=1.1, linestyle=(0, (5, 2)))
    if len(summaries) <= MOST_RANKS * 4:
        for edge in edges[1:-1]:
            ax.axvline(edge, color="white", linewidth=0.8)
    _mark_programs(ax, row)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.08 * most / size)
    ax.set_ylabel(f"one step [{unit}]", **TEXT)
    ax.set_xlabel("rank", **TEXT)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(ax)
    names = ["compute", "recompute", *(f"stall: {cause}" for cause in CAUSES)]
    marks = [(name, shade) for name, shade, line in zip(names, shades, values, strict=True) if line.any()]
    side_legend(picture, [*marks, ("collectives under way", "--")])
    said = f"{row.label}: where the step of each rank goes"
    picture.text(0.01, 1 - 0.1 / picture.get_figheight(), said, va="top", **(TEXT | {"fontsize": 11}))
    return picture


def _mark_programs(ax: Axes, row: Row) -> None:
    """Draw a line where the program changes from one rank to the next, if that is seldom."""
    changes = np.flatnonzero(np.diff(row.job.graph_of)) + 0.5
    if 0 < len(changes) < MOST_RANKS:
        for at in changes:
            ax.axvline(at, color=FAINT, linewidth=1.1, linestyle=":")
