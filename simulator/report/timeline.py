"""The timeline of a row: the lanes of one rank, with its memory below; or a lane for each of several ranks.

`timeline` draws it as a picture; `zoomable` returns it as compact numbers, for a page that draws it itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from simulator.graph import Graph, Op, OpKind
from simulator.metrics import with_steps
from simulator.metrics.rows import Row, chosen, of_ranks, with_measured
from simulator.plan import COMPUTE
from simulator.report import drawing
from simulator.report.drawing import LIMIT, Given, bars, label, name_lanes, steps, styled
from simulator.report.readings import KINDS, Usage, space, tensor_kinds, usages
from simulator.report.words import omitted, quantity, units
from simulator.trace import CAUSES, NONE, Block, Ints, lasts, pick
from simulator.units import counted

MOST_RANKS = 16
"""Most ranks of a picture: more lanes could not be read."""
_FEW_STEPS = 40
"""Most steps whose ends are drawn: more lines could not be told apart."""
_FAR = 4
"""A limit above this multiple of the peak is left out: it would shrink the curves too far."""
_LANE_IN, _AXIS_IN, _MEMORY_IN = 0.4, 0.5, 1.6
"""Heights of a lane, of the time axis, and of a memory [in]."""
MEASURED = ", measured"
"""Ends the names of lanes and memories of what was measured."""
COPIES = 1000
"""Lane ids of streams are below this; those of the channels of link n begin at (n + 1) times it."""
_BANDS = ((-0.42, 0.08), (0.1, 0.28), (0.3, 0.42))
"""Bands of the lane of a rank: compute, collectives and copies."""
_RESERVED: dict[str, Any] = {"color": "#4477aa", "linewidth": 1.0}
_HOLE: dict[str, Any] = {"color": "#332288", "linewidth": 1.0, "linestyle": ":"}
_STEP: dict[str, Any] = {"color": drawing.FAINT, "linewidth": 0.8, "linestyle": ":"}
_COLUMNS = 1000
"""Columns of a memory curve: no more than a picture has pixels, so that a spike in one column still shows."""


class Lane(NamedTuple):
    """A lane: its name, its rank, and its bands, each with its extent and its bars."""

    name: str
    view: Row
    bands: list[tuple[tuple[float, float], Block]]


def _kind_name(kind: int) -> str:
    """Return the name of a tensor kind in pictures."""
    return KINDS[kind].replace("_", " ")


def _looks(row: Row) -> dict[str, str]:
    """Map everything that a bar can show to its colour."""
    ops = [op for graph in row.job.graphs for op in graph.ops]
    looks = {_look(op): drawing.PHASE.get(_look(op), drawing.COMPUTE) for op in ops if op.collective is None}
    looks |= {"recompute": drawing.RECOMPUTE} | {f"stall: {cause}": drawing.CAUSE[cause] for cause in CAUSES}
    groups = dict.fromkeys(op.collective.group for op in ops if op.collective is not None)
    looks |= {f"collective: {group}": drawing.GROUPS[n % len(drawing.GROUPS)] for n, group in enumerate(groups)}
    return looks | {_kind_name(index): drawing.KIND[kind] for index, kind in enumerate(KINDS)}


def _look(op: Op) -> str:
    """Return what the bar of an op shows."""
    if op.collective:
        return f"collective: {op.collective.group}"
    return "delay" if op.kind is OpKind.DELAY else op.phase or "compute"


def _acts(row: Row, looks: Sequence[str]) -> Block:
    """Return all spans and waits of a rank as bars: times [ns], look, lane, and whether the bar ends a step.

    ``item`` is the op of a compute or a wait, or the tensor of a copy; ``lacks`` is the tensor that a wait lacks.
    """
    if row.trace is None:
        raise ValueError(f"{row.label!r} has no timeline: nothing ran, because no such plan fits")
    graph, (spans, waits) = row.graph, with_steps(row.graph, row.hardware, row.trace)
    ops, is_compute = np.array([looks.index(_look(op)) for op in graph.ops] or [0]), spans["kind"] == COMPUTE
    computed = ops[np.where(is_compute, spans["item"], 0)]
    again = is_compute & (spans["run"] > 1)
    moved = looks.index(_kind_name(0)) + tensor_kinds(graph, np.where(is_compute, 0, spans["item"]))
    look = np.where(again, looks.index("recompute"), np.where(is_compute, computed, moved))
    link = (1 + spans["track"]) * COPIES + spans["channel"]
    is_last = is_compute & (spans["item"] == len(graph.ops) - 1)
    waited = len(waits["cause"])
    parts = {
        "start_ns": (spans["start_ns"], waits["start_ns"]),
        "end_ns": (spans["end_ns"], waits["end_ns"]),
        "look": (look, looks.index(f"stall: {CAUSES[0]}") + waits["cause"]),
        "lane": (np.where(is_compute, spans["track"], link), waits["stream"]),
        "is_last": (is_last, np.zeros(waited, bool)),
        "is_wait": (np.zeros(len(is_last), bool), np.ones(waited, bool)),
        "item": (spans["item"], waits["op"]),
        "lacks": (np.full(len(is_last), NONE), waits["tensor"]),
    }
    return {name: np.concatenate(both) for name, both in parts.items()}


def _of_one(row: Row, acts: Block, mark: str) -> Iterator[Lane]:
    """Make a lane for each stream and each channel of a link that was used; their names end in a mark."""
    for lane in np.unique(acts["lane"]).tolist() or [0]:
        link, channel = divmod(lane, COPIES)
        name = row.hardware.link_names[link - 1] if link else f"stream {lane}" if lane else "compute"
        if link and row.hardware.links[name].channels > 1:
            name += f" #{channel}"
        name = f"host, {name}" if lane in row.graph.host_streams else name
        yield Lane(name + mark, row, [((-0.4, 0.4), pick(acts, acts["lane"] == lane))])


def _of_rank(view: Row, acts: Block, looks: Sequence[str]) -> Lane:
    """Make the lane of a rank: compute with its stalls above, collectives and copies in thin bands below."""
    meets = np.array([look.startswith("collective: ") for look in looks])[acts["look"]]
    is_copy = acts["lane"] >= COPIES
    computes = ~is_copy & ~meets & ((acts["lane"] == 0) | ~acts["is_wait"])
    parts = zip(_BANDS, (computes, meets, is_copy), strict=True)
    return Lane(view.rank_name, view, [(band, pick(acts, part)) for band, part in parts])


class Scene(NamedTuple):
    """The content of a timeline.

    Attributes
    ----------
    looks
        Meaning of a bar -> its colour.
    lanes, memories
        The bars, and the use of tiers (none for several ranks).
    ends, first, last
        The ends of steps, and the first and the last instant [ns].
    """

    looks: dict[str, str]
    lanes: list[Lane]
    memories: list[Usage]
    ends: list[int]
    first: int
    last: int


def scene(row: Row, window_ns: tuple[int, int] | None = None) -> Scene:
    """Collect the content of a timeline.

    Parameters
    ----------
    row, window_ns
        See `timeline`.
    """
    looks, views = _looks(row), with_measured(of_ranks(row, chosen(row, MOST_RANKS)))
    acts = [_acts(view, [*looks]) for view in views]
    ends = np.sort(acts[0]["end_ns"][acts[0]["is_last"]]).tolist()
    last = max(int(bars["end_ns"].max(initial=1)) for bars in acts)
    first, last = window_ns or (ends[-3] if len(ends) > 3 else 0, last)
    acts = [pick(bars, (bars["end_ns"] >= first) & (bars["start_ns"] <= last)) for bars in acts]
    if row.is_job:
        ranks = [_of_rank(view, bars, [*looks]) for view, bars in zip(views, acts, strict=True)]
        return Scene(looks, ranks, [], ends, first, last)
    marked = [*zip(views, acts, ("", MEASURED), strict=False)]
    lanes = [lane for view, bars, mark in marked for lane in _of_one(view, bars, mark)]
    memories = [(usage, mark) for view, _, mark in marked for usage in usages(view)]
    memories.sort(key=lambda of: row.hardware.tier_names.index(of[0].tier))  # what was measured stands right below
    return Scene(looks, lanes, [usage._replace(tier=usage.tier + mark) for usage, mark in memories], ends, first, last)


@styled()
def timeline(
    row: Row, given: Given = None, *, window_ns: tuple[int, int] | None = None, content: Scene | None = None
) -> Axes:
    """Draw compute and stalls by cause, every channel, and the memory of each tier by tensor kind.

    For several ranks, each has a lane: its compute with stalls by cause, its collectives by group, and its copies.

    Parameters
    ----------
    row
        A row with a trace.
    given
        Axes for the lanes, and for memories; default: those of a new picture.
    window_ns
        First and last instant to show [ns]; default: the whole run, or the last two steps if there are more than three.
    content
        What is shown, if it was collected before.

    Raises
    ------
    ValueError
        If the row has no trace, because no plan fits.
    """
    looks, lanes, memories, ends, first, last = content or scene(row, window_ns)
    heights = [_LANE_IN * len(lanes), *[_MEMORY_IN] * len(memories)]
    shape = len(heights), 1
    axes = drawing.places(given, _AXIS_IN + sum(heights), shape, height_ratios=heights, sharex=True)[: len(heights)]
    memories = memories[: len(axes) - 1]
    unit, size = units(last - first)
    edges = np.linspace(first, last, _COLUMNS + 1)
    for ax in axes:
        ax.set_xlim(first / size, last / size)
    label(axes[0], omitted(row, [lane.view.rank for lane in lanes]))
    name_lanes(axes[0], [lane.name for lane in lanes])
    lines: dict[str, Any] = {}
    for ax, usage in zip(axes[1:], memories, strict=True):
        lines |= _memory(row, ax, usage, edges, size)
    axes[-1].set_xlabel(f"time [{unit}]", **drawing.TEXT)
    names, shown = [*looks], {_kind_name(k) for usage in memories for k in usage.kinds}
    shown |= {names[look] for lane in lanes for _, part in lane.bands for look in np.unique(part["look"]).tolist()}
    inside = [end / size for end in ends if first < end < last]
    if 0 < len(inside) <= _FEW_STEPS:
        lines["end of a step"] = _STEP
        for ax in axes:
            ax.vlines(inside, 0, 1, transform=ax.get_xaxis_transform(), zorder=3, **_STEP)
    drawing.head(axes[0], _title(row), {name: tint for name, tint in looks.items() if name in shown} | lines)
    drawing.settle(axes[0])
    for y, lane in enumerate(lanes):
        for (top, bottom), part in lane.bands:
            times = part["start_ns"], part["end_ns"]
            bars(axes[0], (y + top, y + bottom), times, part["look"], [*looks.values()], size)
    return axes[0]


def _title(row: Row) -> str:
    """Write the title: the row, its step and its stall, the job and the machine."""
    where = f"({row.job.name} on {row.hardware.name})"
    if not row.is_ok:
        return f"{row.label}: {row.summary['status']} {where}"
    (step, stall), *measured = (
        [quantity(each.summary.get(column), "ns") for column in ("step_ns", "stall_ns")]
        for each in with_measured([row])
    )
    also = "".join(f"; measured {ran}, {waited} of it stalled" for ran, waited in measured)
    ranks = f" on {row.job.ranks:,} ranks" if row.is_job else ""
    warm = " after warm-up" if row.graph.steps > 1 else ""
    return f"{row.label}: {step} a step{warm}{ranks}, {stall} of it stalled{also} {where}"


def _memory(
    row: Row, ax: Axes, usage: Usage, edges: NDArray[np.float64], size: float
) -> Mapping[str, Mapping[str, Any]]:
    """Draw a tier: its use by tensor kind, its limit, and the space that its allocator reserved.

    Return the lines that are drawn, with their looks, for the legend.
    """
    peak, lines = int(usage.total_bytes.max()), dict[str, Mapping[str, Any]]()
    is_near = usage.limit_bytes <= _FAR * peak
    most = max(float(usage.limit_bytes) if is_near else 0, peak)
    unit, scale = units(most, "B")
    label(ax, y=f"{usage.tier} [{unit}]")
    ax.set_ylim(0, 1.25 * most / scale or 1)
    tops = np.cumsum(usage.kind_bytes[:, highest(usage.time_ns, usage.total_bytes, edges)], axis=0) / scale
    for k in reversed(usage.kinds):  # the highest first, each down to 0, so that no seam shows between two
        steps(ax, tops[k], edges / size, fill=True, color=drawing.KIND[KINDS[k]], linewidth=0)
    steps(ax, tops[-1], edges / size, color=drawing.FAINT, linewidth=0.6)
    texts = [f"peak {quantity(peak, 'B')}"]
    if is_near:
        lines["room"] = LIMIT
        ax.axhline(float(usage.limit_bytes) / scale, **LIMIT)
    if usage.allowed:
        texts.append(usage.allowed + ("" if is_near else " (beyond the picture)"))
    if usage.tier == row.hardware.compute_tier and (kept := space(row)) is not None:
        texts.append(f"{counted(len(kept.compactions_ns), 'compaction')} in the run")
        reserved = kept.reserved_bytes[highest(kept.time_ns, kept.reserved_bytes, edges)]
        lines["reserved"] = _RESERVED
        steps(ax, reserved / scale, edges / size, baseline=None, **_RESERVED)
        if kept.has_holes:
            lines["largest hole"] = _HOLE
            least = kept.hole_bytes[highest(kept.time_ns, -kept.hole_bytes, edges)]
            steps(ax, least / scale, edges / size, baseline=None, **_HOLE)
        for start, end in kept.compactions_ns:
            ax.axvspan(start / size, end / size, color=drawing.CAUSE["compaction"], alpha=0.35, linewidth=0)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
    ax.text(0.004, 0.97, ", ".join(texts), transform=ax.transAxes, va="top", fontsize=8, color=drawing.INK, bbox=box)
    return lines


def highest(time_ns: Ints, value: Ints, edges: NDArray[np.float64]) -> Ints:
    """Return, for each column, the index of the change after which a step curve is highest in it.

    Parameters
    ----------
    time_ns, value
        Instants of changes, ascending [ns], and the new values; of several changes at one instant the last counts.
    edges
        The start of each column, and the end of the last one [ns].
    """
    changes = np.flatnonzero(lasts(time_ns))
    first = np.maximum(np.searchsorted(time_ns[changes], edges[:-1], "right") - 1, 0)
    behind = np.maximum(np.searchsorted(time_ns[changes], edges[1:], "left"), first + 1)
    ranges, values = zip(first.tolist(), behind.tolist(), strict=True), value[changes]
    return changes[[low + int(values[low:high].argmax()) for low, high in ranges]]


def zoomable(shown: Scene, most: int) -> dict[str, Any] | None:
    """Return the content of `timeline` as numbers for a page, or None if there are too many.

    Parameters
    ----------
    shown
        The content.
    most
        Most bars and changes of memory that a page may have.

    Returns
    -------
    dict
        ``from``, ``to`` [ns]; ``looks``, each with its colour, and those that are ``shown``; ``names``; ``lanes``;
        ``bands`` of lanes, whose bars have a ``gap`` to the one before [ns], a ``length`` [ns], a ``look`` and a
        ``name``; ``memories``, with a ``gap`` between changes [ns] and the ``change`` of each kind [B].
    """
    memories = [_changes(shown, usage) for usage in shown.memories]
    bars_shown = sum(len(part["look"]) for lane in shown.lanes for _, part in lane.bands)
    if bars_shown + sum(len(memory["gap"]) for memory in memories) > most:
        return None
    names: dict[str, int] = {}
    drawn: list[dict[str, Any]] = []
    for index, lane in enumerate(shown.lanes):
        for (top, bottom), part in lane.bands:
            drawn.append({"lane": index, "top": top, "high": bottom - top, **_bars(lane.view.graph, part, names)})
    looks = [look for band in drawn for look in band["look"]]
    looks += [kind for memory in memories for kind in memory["kinds"]]
    return {
        "from": shown.first,
        "to": shown.last,
        "looks": list(shown.looks.items()),
        "shown": sorted(set(looks)),
        "names": list(names),
        "lanes": [lane.name for lane in shown.lanes],
        "bands": drawn,
        "memories": memories,
    }


def _bars(graph: Graph, bars: Block, names: dict[str, int]) -> dict[str, list[int]]:
    """Return the bars of a band, ordered by start; add new names to `names`."""
    bars = pick(bars, np.argsort(bars["start_ns"], kind="stable"))
    start, end, is_copy, indices = bars["start_ns"], bars["end_ns"], bars["lane"] >= COPIES, list[int]()
    for item, lacks, copied in zip(bars["item"].tolist(), bars["lacks"].tolist(), is_copy.tolist(), strict=True):
        name = (graph.tensors if copied else graph.ops)[item].name
        lacked = f" lacks {graph.tensors[lacks].name}" if lacks != NONE else ""
        indices.append(names.setdefault(name + lacked, len(names)))
    times = {"gap": (start - np.append(0, end[:-1])).tolist(), "length": (end - start).tolist()}
    return times | {"look": bars["look"].tolist(), "name": indices}


def _changes(shown: Scene, usage: Usage) -> dict[str, Any]:
    """Return the use of a tier within the window, as changes."""
    rows = np.flatnonzero(lasts(usage.time_ns))
    rows = rows[max(0, np.searchsorted(usage.time_ns[rows], shown.first, "right") - 1) :]
    held, looks = usage.kind_bytes[usage.kinds][:, rows], [*shown.looks]
    return {
        "tier": usage.tier,
        "limit": usage.limit_bytes if usage.allowed else 0,
        "allowed": usage.allowed,
        "kinds": [looks.index(_kind_name(kind)) for kind in usage.kinds],
        "gap": np.diff(usage.time_ns[rows], prepend=0).tolist(),
        "change": np.diff(held, prepend=0).tolist(),
    }
