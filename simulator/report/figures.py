"""The timeline of one row."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes

from simulator.metrics import run_numbers
from simulator.plan import COMPUTE as COMPUTE_STEP
from simulator.plan import COPY
from simulator.report import colours, ranks_figure, space_figure
from simulator.report.drawing import (
    FAINT,
    INK,
    TEXT,
    Picture,
    byte_unit,
    draw_boundaries,
    highest,
    only,
    pixels,
    plain,
    side_legend,
    stacked,
    step_ends,
    styled,
    units,
    within,
)
from simulator.report.lanes import bars, stream
from simulator.report.ranks import is_job
from simulator.report.rows import Row, is_ok, quantity, recomputed_ns
from simulator.report.usage import KINDS, Usage, space, tensor_kinds, usages
from simulator.trace import CAUSES, Block


@styled()
def timeline(row: Row, *, window_ns: tuple[int, int] | None = None) -> Picture:
    """Draw what happened: compute and stalls by cause, every channel, and the memory of each tier by tensor kind.

    Of several ranks `ranks_figure.timeline` is drawn instead.

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
    if row.trace is None:
        raise ValueError(f"{row.label!r} has no timeline: nothing ran, because no such plan fits")
    if is_job(row):
        return ranks_figure.timeline(row, window_ns=window_ns)
    runs = run_numbers(row.graph, row.hardware, row.trace)[0]
    everything = {**row.trace.spans.whole(), "run": runs}
    ends = step_ends(row, everything)
    first, last = window_ns or (ends[-3] if len(ends) > 3 else 0, row.summary["makespan_ns"] or 1)
    spans, waits = within(everything, first, last), within(row.trace.waits.whole(), first, last)
    tiers = usages(row)
    lanes = _lanes(row, spans)
    kept = space(row)
    heights = [0.45 + 0.34 * len(lanes)] + [1.65] * len(tiers) + [space_figure.HEIGHT_IN] * (kept is not None)
    picture, axes = stacked(heights, [lane[0] for lane in lanes])
    unit, size = units(last - first)
    axes[0].set_xlim(first / size, last / size)
    _draw_lanes(axes[0], row, (spans, waits), lanes, size)
    limits = [_draw_memory(ax, row, u, size) for ax, u in zip(axes[1:], tiers, strict=False)]
    if kept is not None:
        space_figure.draw(axes[-1], kept, float(row.budget_bytes), (first, last, size))
    for ax in axes:
        draw_boundaries(ax, [end for end in ends[:-1] if first < end < last], size)
    axes[-1].set_xlabel(f"time [{unit}]", **TEXT)
    picture.text(0.01, 1 - 0.1 / picture.get_figheight(), _title(row), va="top", **(TEXT | {"fontsize": 11}))
    marks = [*_marks(row, spans, waits, tiers), *([("room", "--")] if any(limits) else [])]
    marks += [("end of a step", ":")] if row.graph.steps > 1 else []
    side_legend(picture, [*marks, *(space_figure.marks(kept) if kept is not None else [])])
    return picture


def _title(row: Row) -> str:
    if not is_ok(row):
        return f"{row.label}: {row.summary['status']}"
    stall = quantity(row.summary.get("stall_ns"), "ns")
    again = f", {quantity(recomputed_ns(row), 'ns')} recomputed" if recomputed_ns(row) else ""
    return f"{row.label}: {quantity(row.summary.get('step_ns'), 'ns')} a step, {stall} of it stalled{again}"


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
    tints = [colours.KIND[kind] for kind in KINDS]
    for y, (_, kind, track, channel) in enumerate(lanes):
        band, here = (y - 0.4, y + 0.4), (spans["kind"] == kind) & (spans["track"] == track)
        if kind == COPY:
            here &= spans["channel"] == channel
            ends, moved = (spans["start_ns"][here], spans["end_ns"][here]), tensor_kinds(row.graph, spans["item"][here])
            bars(ax, band, ends, moved, tints, size)
        else:
            stalled = waits["stream"] == track
            stream(ax, band, row.graph, (only(spans, here), only(waits, stalled)), size)
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.set_yticks(range(len(lanes)), [lane[0] for lane in lanes], **TEXT)
    ax.tick_params(axis="y", length=0)
    plain(ax)


def _draw_memory(ax: Axes, row: Row, usage: Usage, size: int) -> bool:
    """Draw the most that lies in a tier within each pixel, and say whether its limit is in the picture."""
    limit, total = usage.limit_bytes, usage.total_bytes
    peak = int(total.max())
    shown = math.isfinite(limit) and limit <= 4 * peak
    unit, scale = byte_unit(max(peak, float(limit) if shown else 0))
    edges = pixels(ax, size)
    at = highest(usage.time_ns, total, edges)
    tops = np.cumsum(np.where(at >= 0, usage.kind_bytes[:, at], 0) / scale, axis=0)
    for k in reversed(usage.kinds):  # the highest first, each down to 0, so that no seam shows between two
        top = np.append(tops[k], tops[k, -1])
        ax.fill_between(edges / size, 0, top, step="post", color=colours.KIND[KINDS[k]], linewidth=0)
    ax.stairs(tops[-1], edges / size, color=FAINT, linewidth=0.6)
    if shown:
        ax.axhline(float(limit) / scale, color=INK, linewidth=1.1, linestyle=(0, (5, 2)))
    ax.set_ylim(0, 1.25 * max(peak, float(limit) if shown else 0) / scale or 1)
    ax.set_ylabel(f"{usage.tier} [{unit}]", **TEXT)
    says = f"peak {quantity(peak, 'B')}"
    if allowed := usage.limit(row.hardware.compute_tier):
        says += f", {allowed}" + ("" if shown else " (beyond the picture)")
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
    ax.text(0.004, 0.975, says, transform=ax.transAxes, va="top", fontsize=8, color=INK, bbox=box)
    plain(ax)
    return shown


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
