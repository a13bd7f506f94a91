"""One row of numbers for the run of one rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.bounds import Bound
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.metrics import fragmentation
from simulator.metrics.ran import Ran
from simulator.metrics.steps import run_numbers_in
from simulator.plan import COMPUTE, COPY
from simulator.trace import CAUSES, Block, Trace

Ints = NDArray[np.int64]
Stretches = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Begin and end of some stretches of time [ns]."""

_ENDS = ("start_ns", "end_ns")

Flags = NDArray[np.bool_]


OF_RANKS = (
    "ranks",
    "slowest_rank",
    "least_step_ns",
    "collective_ns",
    "masked_fraction",
    "utilisation",
    "bubble_fraction",
)
"""Columns that only a run of several ranks has."""


def columns(hardware: Hardware) -> tuple[str, ...]:
    """Name the columns that `summarise` gives for a machine."""
    waits = (f"wait_{cause}_ns" for cause in CAUSES)
    times = (
        "step_ns",
        "makespan_ns",
        "warmup_ns",
        "compute_ns",
        "recompute_ns",
        "stall_ns",
        *waits,
        "drain_ns",
        "transfer_ns",
    )
    peaks = (f"peak_{tier}_bytes" for tier in hardware.tier_names)
    moved = (f"moved_{name}_bytes" for name in hardware.link_names)
    carried = _carried(hardware)
    shares = (
        "exposed_transfer_ns",
        "hidden_fraction",
        *carried,
        *peaks,
        *moved,
        "bound_ns",
        "bound_kind",
        "gap_fraction",
    )
    crowding = (f"crowding_{name}" for name in hardware.link_names)
    crowd = (f"{what}_{name}" for what in ("pulling", "demand") for name in hardware.buses)
    return ("status", *times, *shares, *OF_RANKS, *crowding, *crowd, *fragmentation.columns(hardware))


def _carried(hardware: Hardware) -> tuple[str, ...]:
    """Columns about the time in which each link carries something."""
    return tuple(f"{what}_{name}_ns" for name in hardware.link_names for what in ("busy", "exposed"))


def summarise_rank(graph: Graph, hardware: Hardware, trace: Trace, bound: Bound | None = None) -> dict[str, Any]:
    """Count the run of one rank.

    Parameters
    ----------
    graph, hardware, trace
        What ran, where, and what happened.
    bound
        What no plan can beat, if known.

    Returns
    -------
    dict
        Columns; all but status, makespan and peaks are None unless the status is ``ok``.

        ``step_ns``
            ``E_n - E_(n-1)``; in a run of one step the makespan ``M``, so that nothing is left for later unpaid. Where
            ranks begin in turn, the last step that ended while all of them were at work stands for step ``n``.
        ``makespan_ns``
            ``M``.
        ``warmup_ns``
            ``E_(n-1)``: all that is before the step that is measured.
        ``compute_ns``, ``recompute_ns``, ``stall_ns``, ``wait_<cause>_ns``
            Computes and waits of the main stream in the measured step. The first run of an op in the step is compute,
            every other one is recompute. The stall is the sum of the waits. A collective on the main stream is a wait
            for it.
        ``drain_ns``
            ``M - E_n`` in a run of one step, which counts it; else 0. Exactly,
            ``compute_ns + recompute_ns + stall_ns + drain_ns = step_ns``.
        ``transfer_ns``
            Time of the measured step in which at least one transfer of the main stream's rank is under way.
        ``exposed_transfer_ns``, ``hidden_fraction``
            What of it falls into a stall, whatever its cause; and ``1 - exposed / transfer``, the share under which
            the stream computes (None if nothing moved).
        ``busy_<link>_ns``, ``exposed_<link>_ns``
            Time of the measured step in which at least one transfer of the rank is on the link; and what of it falls
            into a stall, whatever its cause. The rest is overlapped with compute, as HyperOffload's figure 6 has it.
        ``peak_<tier>_bytes``
            Largest running sum of the tier's residencies in the whole run.
        ``moved_<link>_bytes``
            Sizes of the transfers that were issued in the last step; those over a staged link count on the links that
            it goes via as well.
        ``compactions``, ``peak_reserved_<tier>_bytes``
            See `simulator.metrics.fragmentation`; only where places have addresses.
        ``bound_ns``, ``bound_kind``, ``gap_fraction``
            The bound, and ``step_ns / bound_ns - 1``; where the bound is of the mean step, as that of fixed plans of
            graphs with late reads, ``makespan_ns / (steps * bound_ns) - 1``.
    """
    return counted(graph, hardware, Ran.of(graph, hardware, trace), bound)


def counted(graph: Graph, hardware: Hardware, ran: Ran, bound: Bound | None = None) -> dict[str, Any]:
    """Count the run of one rank from what was kept of it; the columns are those of `summarise_rank`.

    Parameters
    ----------
    graph, hardware, ran, bound
        What ran, where, what is known of it, and what no plan can beat, if known.
    """
    trace, makespan = ran.trace, ran.makespan_ns
    peaks = {f"peak_{tier}_bytes": size for tier, size in ran.peaks_bytes.items()}
    row: dict[str, Any] = {"status": trace.status, "step_ns": None, "makespan_ns": makespan}
    if trace.status != "ok":
        columns = (
            "warmup_ns",
            "compute_ns",
            "recompute_ns",
            "stall_ns",
            *(f"wait_{cause}_ns" for cause in CAUSES),
            "drain_ns",
        )
        more = ("transfer_ns", "exposed_transfer_ns", "hidden_fraction")
        moved = (f"moved_{name}_bytes" for name in hardware.link_names)
        row |= dict.fromkeys((*columns, *more, *_carried(hardware))) | peaks | dict.fromkeys(moved)
        return row | fragmentation.fragmentation(hardware, trace, None) | against(None, bound)
    window = _measured(graph, ran)
    row["step_ns"] = window.end_ns - window.start_ns
    again = run_numbers_in(ran.starts, trace)[0] > 1 if ran.repeats else np.zeros(len(trace.spans), bool)
    return (
        row
        | _ledger(trace, window, again, is_collective(graph, trace))
        | _links(hardware, trace, window)
        | peaks
        | _moved(graph, hardware, trace, window)
        | fragmentation.fragmentation(hardware, trace, (window.start_ns, window.end_ns))
        | against(row["step_ns"], bound)
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """The measured step.

    Attributes
    ----------
    rank, stream
        The main stream.
    first_issue, next_issue
        Issue numbers of its first step, and of the first one after it.
    start_ns, end_ns
        ``E_(n-1)``, and ``E_n`` (or ``M`` in a run of one step).
    """

    rank: int
    stream: int
    first_issue: int
    start_ns: int
    end_ns: int
    next_issue: int = 2**62


def _measured(graph: Graph, ran: Ran) -> _Window:
    if not ran.ends_ns:
        return _Window(0, 0, 0, 0, ran.makespan_ns)
    main = (
        min(ran.ends_ns) if graph.meets else max(ran.ends_ns, key=lambda stream: (ran.ends_ns[stream].max(), -stream))
    )
    if graph.steps == 1:
        return _Window(0, main, int(ran.starts[-1]), 0, ran.makespan_ns)
    ends = np.maximum.accumulate(ran.ends_ns[main])
    last = _last_counted(ends, ran.trace.until_ns)
    after = int(ran.starts[last + 1]) if last + 1 < len(ran.starts) else 2**62
    return _Window(0, main, int(ran.starts[last]), int(ends[last - 1]), int(ends[last]), after)


def _last_counted(ends_ns: Ints, until_ns: int | None) -> int:
    """The last step that ended while all ranks were at work, but the first one; the last if there is none."""
    at_work = len(ends_ns) if until_ns is None else int(np.searchsorted(ends_ns, until_ns, "right"))
    return (at_work if at_work > 1 else len(ends_ns)) - 1


def _ledger(trace: Trace, window: _Window, again: Flags, meets: Flags) -> dict[str, Any]:
    """Compute, waits and transfers of the measured step; flags tell of each span: a recompute, a collective."""
    spans = trace.spans.whole()
    mine = spans["rank"] == window.rank
    ran = mine & (spans["kind"] == COMPUTE) & (spans["track"] == window.stream)
    ran &= (spans["start_ns"] >= window.start_ns) & (spans["end_ns"] <= window.end_ns)
    took = spans["end_ns"] - spans["start_ns"]
    last_end = max(window.start_ns, int(spans["end_ns"][ran].max(initial=0)))
    moved = mine & (spans["kind"] == COPY) & (spans["end_ns"] > window.start_ns)
    waits = np.zeros(len(CAUSES), np.int64)
    for block in _waits(trace, window):
        np.add.at(waits, block["cause"], block["end_ns"] - block["start_ns"])
    waits[CAUSES.index("collective")] += took[ran & meets].sum()
    ran &= ~meets
    transfer, exposed = exposed_ns(
        (spans["start_ns"][moved], spans["end_ns"][moved]), _stretches(trace, window), (window.start_ns, window.end_ns)
    )
    return {
        "warmup_ns": window.start_ns,
        "compute_ns": int(took[ran & ~again].sum()),
        "recompute_ns": int(took[ran & again].sum()),
        "stall_ns": int(waits.sum()),
        **{f"wait_{cause}_ns": int(ns) for cause, ns in zip(CAUSES, waits, strict=True)},
        "drain_ns": window.end_ns - last_end,
        "transfer_ns": transfer,
        "exposed_transfer_ns": exposed,
        "hidden_fraction": 1 - exposed / transfer if transfer else None,
    }


def _links(hardware: Hardware, trace: Trace, window: _Window) -> dict[str, int]:
    """How long each link carries something, and what of it falls into a stall."""
    spans, within = trace.spans.whole(), (window.start_ns, window.end_ns)
    copies = (spans["rank"] == window.rank) & (spans["kind"] == COPY) & (spans["end_ns"] > window.start_ns)
    waits, found = _stretches(trace, window), dict[str, int]()
    for number, name in enumerate(hardware.link_names):
        mine = copies & (spans["track"] == number)
        busy, exposed = exposed_ns((spans["start_ns"][mine], spans["end_ns"][mine]), waits, within)
        found |= {f"busy_{name}_ns": busy, f"exposed_{name}_ns": exposed}
    return found


def _stretches(trace: Trace, window: _Window) -> Stretches:
    """Begin and end of the main stream's waits in the measured step."""
    blocks = list(_waits(trace, window))
    start, end = (np.concatenate([np.zeros(0, np.int64), *(block[c] for block in blocks)]) for c in _ENDS)
    return start, end


def exposed_ns(carried: Stretches, waits: Stretches, window: tuple[int, int]) -> tuple[int, int]:
    """How long something is carried within a window, and what of that falls into waits [ns].

    Parameters
    ----------
    carried, waits
        Begin and end of the transfers, and of the waits [ns].
    window
        Where it is counted [ns].
    """
    start, end = (np.concatenate(both) for both in zip(carried, waits, strict=True))
    busy = union_ns(*carried, window)
    return busy, busy + union_ns(*waits, window) - union_ns(start, end, window)


def _waits(trace: Trace, window: _Window) -> Iterator[Block]:
    """Waits of the main stream in the measured step."""
    for block in trace.waits.blocks():
        mine = (block["rank"] == window.rank) & (block["stream"] == window.stream)
        mine &= (block["start_ns"] >= window.start_ns) & (block["end_ns"] <= window.end_ns)
        yield {name: column[mine] for name, column in block.items()}


def waits_by_place(graph: Graph, ran: Ran) -> dict[tuple[int, int], int]:
    """Sum up what the main stream of one rank waited for in the measured step, by cause and place.

    Parameters
    ----------
    graph, ran
        What ran, and what is known of it; its status is ``ok``.

    Returns
    -------
    dict
        Columns ``cause`` and ``on`` of the waits -> time [ns]. A collective on the main stream is no wait here.
    """
    found: Counter[tuple[int, int]] = Counter()
    for block in _waits(ran.trace, _measured(graph, ran)):
        lasted = (block["end_ns"] - block["start_ns"]).tolist()
        for cause, on, ns in zip(block["cause"].tolist(), block["on"].tolist(), lasted, strict=True):
            found[cause, on] += ns
    return dict(found)


def is_collective(graph: Graph, trace: Trace) -> Flags:
    """For each span, whether it is a collective."""
    meets = np.array([op.collective is not None for op in graph.ops] or [False])
    spans = trace.spans.whole()
    ran = spans["kind"] == COMPUTE
    found: Flags = ran & meets[np.where(ran, spans["item"], 0)]
    return found


def union_ns(start: Ints, end: Ints, window: tuple[int, int]) -> int:
    """Time within the window in which at least one of the stretches is under way [ns]."""
    start, end = np.clip(start, *window), np.clip(end, *window)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.concatenate(([window[0]], np.maximum.accumulate(end)[:-1])) if len(end) else end
    return int(np.maximum(end - np.maximum(start, reached), 0).sum())


def _moved(graph: Graph, hardware: Hardware, trace: Trace, window: _Window) -> dict[str, int]:
    sizes = np.array([t.size_bytes for t in graph.tensors] or [0], np.int64)
    total = np.zeros(len(hardware.links), np.int64)
    for block in trace.spans.blocks():
        mine = (block["kind"] == COPY) & (block["rank"] == window.rank)
        mine &= (block["issue"] >= window.first_issue) & (block["issue"] < window.next_issue)
        np.add.at(total, block["track"][mine], sizes[block["item"][mine]])
    own = total.copy()
    for number, link in enumerate(hardware.links.values()):
        for wire in link.via:
            total[hardware.link_names.index(wire)] += own[number]
    return {f"moved_{name}_bytes": size for name, size in zip(hardware.link_names, total.tolist(), strict=True)}


def against(step_ns: int | None, bound: Bound | None) -> dict[str, Any]:
    """Columns about the bound, if there is one."""
    if bound is None:
        return {}
    gap = step_ns / bound.ns - 1 if step_ns is not None and bound.ns else None
    return {"bound_ns": bound.ns, "bound_kind": bound.kind, "gap_fraction": gap}
