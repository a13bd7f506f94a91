"""The stalls of a run for readers: how much by cause and place, and the largest ones."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from simulator.metrics import Ran, blocker_name, exposed_ns, place_name, waits_by_place
from simulator.plan import COPY
from simulator.report.rows import Row, grouped, is_ok, only, percent, quantity
from simulator.trace import CAUSES, Block, Trace
from simulator.units import counted

_TOLD = 10
"""Places behind less than a tenth of the waits with a cause are not told."""


class Stall(NamedTuple):
    """One stretch in which a compute stream waited.

    Attributes
    ----------
    op
        The op that could not start.
    cause, on
        Why, and the link or tier behind it.
    tensor, blocker
        What the op lacked, and the tensor whose transfer, or the collective that, was under way; of an op that lacked
        room, what left meanwhile. Empty if there is none.
    start, lasted
        When and how long, for people.
    """

    op: str
    cause: str
    on: str
    tensor: str
    blocker: str
    start: str
    lasted: str


def measured_ns(row: Row) -> tuple[int, int]:
    """Return the window that the row's figures are about: its last step; all of it if it did not end [ns].

    Parameters
    ----------
    row
        A row with a trace.
    """
    first = row.summary.get("warmup_ns") or 0
    step = row.summary.get("step_ns")
    return first, row.summary["makespan_ns"] if step is None else first + step


def _ended(row: Row) -> Trace | None:
    """The trace of a row, or of its last step if no more was kept."""
    return row.ran.trace if row.trace is None and row.ran else row.trace


def _measured(row: Row, trace: Trace) -> Block:
    """Waits of the measured window, with how long each lies within it; of a rank that meets others, of stream 0."""
    (first, last), waits = measured_ns(row), trace.waits.whole()
    waits["lasted_ns"] = np.minimum(waits["end_ns"], last) - np.maximum(waits["start_ns"], first)
    inside = (waits["lasted_ns"] > 0) & ((waits["stream"] == 0) | (not row.graph.meets))
    return only(waits, inside)


def cleared_by(row: Row, tier: int) -> str:
    """Which link was busiest carrying out of a tier while a row waited for room there, and for how much of that time.

    Parameters
    ----------
    row
        Any row.
    tier
        The tier.

    Returns
    -------
    str
        Such as ``d2h at 100 %``; empty if there was no such wait, or nothing was carried out of the tier, or the row is
        of several ranks.
    """
    trace = _ended(row)
    if trace is None or len(trace.issued) > 1:
        return ""
    waits, spans = _measured(row, trace), trace.spans.whole()
    mine = (waits["cause"] == CAUSES.index("capacity")) & (waits["on"] == tier)
    ends = waits["start_ns"][mine], waits["end_ns"][mine]
    waited_ns, found = int((ends[1] - ends[0]).sum()), [(0.0, "")]
    for number, (name, link) in enumerate(row.hardware.links.items()):
        if link.source == row.hardware.tier_names[tier] and waited_ns:
            copies = (spans["kind"] == COPY) & (spans["track"] == number)
            carried = spans["start_ns"][copies], spans["end_ns"][copies]
            found.append((exposed_ns(carried, ends, measured_ns(row))[1] / waited_ns, name))
    share, name = max(found)
    return f"{name} at {percent(share)}" if share else ""


def by_place(row: Row) -> list[dict[str, str | int]]:
    """Sum up what the times of a row waited for in the measured step, by cause and place; of several ranks the slowest.

    Parameters
    ----------
    row
        Any row.

    Returns
    -------
    list of dict
        ``cause``; ``on``, the tier, link or rank, or empty; ``ns``. The longest first; of each cause they sum to the
        row's ``wait_<cause>_ns``, what is left being without a place. Nothing if the row did not run to its end.
    """
    if not is_ok(row):
        return []
    rank, ran = row.summary.get("slowest_rank") or 0, row.ran
    graph = row.job.graph(rank)
    if ran is None and row.trace is not None:
        ran = Ran.of(graph, row.hardware, row.trace.by_rank()[rank])
    sums = Counter(waits_by_place(graph, ran) if ran is not None else {})
    for cause, name in enumerate(CAUSES):
        sums[cause, -1] += row.summary[f"wait_{name}_ns"] - sum(ns for (other, _), ns in sums.items() if other == cause)
    ordered = sorted(((key, ns) for key, ns in sums.items() if ns), key=lambda item: (-item[1], item[0]))
    return [{"cause": CAUSES[at[0]], "on": place_name(row.hardware, *at), "ns": ns} for at, ns in ordered]


def _sums(row: Row) -> dict[tuple[int, int], tuple[int, int]]:
    """How many waits there were, and how long they lasted [ns], by cause and place."""
    trace = _ended(row)
    waits = _measured(row, trace) if trace is not None else {}
    columns = (waits[name].tolist() for name in ("cause", "on", "lasted_ns") if waits)
    found = grouped(zip(*columns, strict=True), lambda wait: (wait[0], wait[1]))
    return {place: (len(own), sum(ns for _, _, ns in own)) for place, own in found.items()}


def by_cause(row: Row) -> list[tuple[str, str, int, str, str]]:
    """Sum up the stalls of the measured step by cause and place.

    Parameters
    ----------
    row
        Any row.

    Returns
    -------
    list of (cause, place, count, time, share of the step)
        The longest first; of waits for room the place is told with the link that makes some.
    """
    found = []
    for (cause, on), (count, ns) in sorted(_sums(row).items(), key=lambda item: (-item[1][1], item[0])):
        first, last = measured_ns(row)
        clearing = cleared_by(row, on) if CAUSES[cause] == "capacity" and on >= 0 else ""
        where = ", ".join(filter(None, (place_name(row.hardware, cause, on), clearing)))
        found.append((CAUSES[cause], where, count, quantity(ns, "ns"), percent(ns / max(1, last - first))))
    return found


def waits_for_peers(row: Row) -> dict[int, int]:
    """Sum up how long a rank waits for each other one in the measured step [ns].

    Parameters
    ----------
    row
        One rank, with a trace.
    """
    return {on: ns for (cause, on), (_, ns) in _sums(row).items() if CAUSES[cause] == "peer"}


def places(row: Row, cause: str) -> list[str]:
    """Name the links or tiers behind a row's waits with this cause, the worst first; under a tenth is left out.

    Parameters
    ----------
    row
        A row with a trace.
    cause
        One of `simulator.trace.CAUSES`.
    """
    lost = Counter[int]()
    trace, first_ns = (row.ran.trace, row.summary["warmup_ns"]) if row.ran else (row.trace, 0)
    for block in trace.waits.blocks() if trace else ():
        mine = (block["cause"] == CAUSES.index(cause)) & (block["on"] >= 0) & (block["start_ns"] >= first_ns)
        took = block["end_ns"][mine] - block["start_ns"][mine]
        for on, ns in zip(block["on"][mine].tolist(), took.tolist(), strict=True):
            lost[on] += ns
    worst = sorted(lost, key=lambda on: (-lost[on], on))
    told = (on for on in worst if _TOLD * lost[on] >= lost.total())
    return [place_name(row.hardware, CAUSES.index(cause), on) for on in told]


def largest(row: Row, most: int = 10) -> list[Stall]:
    """Name the longest stalls of the measured step.

    Parameters
    ----------
    row
        Any row.
    most
        How many.
    """
    trace = _ended(row)
    if trace is None:
        return []
    waits, (tensors, ops), found = _measured(row, trace), (row.graph.tensors, row.graph.ops), []
    for at in np.argsort(-waits["lasted_ns"], kind="stable")[:most].tolist():
        wait = {name: int(column[at]) for name, column in waits.items()}
        cause, lacked = wait["cause"], wait["tensor"]
        blocker = blocker_name(row.graph, cause, wait["blocker"])
        found.append(
            Stall(
                ops[wait["op"]].name,
                CAUSES[cause],
                place_name(row.hardware, cause, wait["on"]),
                tensors[lacked].name if lacked >= 0 else "",
                blocker or (_left_meanwhile(row, trace, wait) if CAUSES[cause] == "capacity" else ""),
                quantity(wait["start_ns"], "ns"),
                quantity(wait["lasted_ns"], "ns"),
            )
        )
    return found


def _left_meanwhile(row: Row, trace: Trace, wait: dict[str, int]) -> str:
    """The largest tensor that left a tier while an op waited for room there, and how many others; empty if none did."""
    changes = trace.residencies.whole()
    gone = (changes["delta_bytes"] < 0) & (changes["tier"] == wait["on"]) & (changes["tensor"] >= 0)
    gone &= (changes["time_ns"] > wait["start_ns"]) & (changes["time_ns"] <= wait["end_ns"])
    tensors = [row.graph.tensors[t] for t in np.unique(changes["tensor"][gone]).tolist()]
    if not tensors:
        return ""
    first = max(tensors, key=lambda tensor: tensor.size_bytes)
    more = f" and {counted(len(tensors) - 1, 'other')}" if len(tensors) > 1 else ""
    return f"{first.name} {quantity(first.size_bytes, 'B')}{more}"
