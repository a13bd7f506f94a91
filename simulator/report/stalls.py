"""The stalls of a run for readers: how much by cause and place, and the largest ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.metrics import Ran, exposed_ns, waits_by_place
from simulator.plan import COPY
from simulator.report.rows import Row, is_ok, percent, quantity
from simulator.trace import CAUSES, Block, Trace
from simulator.units import counted


@dataclass(frozen=True, slots=True)
class Stall:
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


def _measured_waits(row: Row) -> tuple[Block, NDArray[np.int64]]:
    """Waits of the measured window, and how long each lies within it [ns]; of a rank that meets others, of stream 0."""
    trace = _ended(row)
    if trace is None:
        raise ValueError("a row that did not run has no waits")
    first, last = measured_ns(row)
    waits = trace.waits.whole()
    lasted = np.minimum(waits["end_ns"], last) - np.maximum(waits["start_ns"], first)
    inside = (lasted > 0) & ((waits["stream"] == 0) | (not row.graph.meets))
    return {name: column[inside] for name, column in waits.items()}, lasted[inside]


def place(row: Row, cause: int, on: int) -> str:
    """Name the tier, link or rank that a wait is about.

    Parameters
    ----------
    row
        Any row.
    cause, on
        Columns of the waits.

    Returns
    -------
    str
        Empty if there is none.
    """
    if on < 0:
        return ""
    if CAUSES[cause] == "peer":
        return f"rank {on}"
    tier = CAUSES[cause] in ("capacity", "compaction")
    return row.hardware.tier_names[on] if tier else row.hardware.link_names[on]


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
    waits, _ = _measured_waits(row)
    mine = (waits["cause"] == CAUSES.index("capacity")) & (waits["on"] == tier)
    spans, waited_ns = trace.spans.whole(), int((waits["end_ns"][mine] - waits["start_ns"][mine]).sum())
    found = []
    for number, link in enumerate(row.hardware.links.values()):
        if link.source == row.hardware.tier_names[tier] and waited_ns:
            copies = (spans["kind"] == COPY) & (spans["track"] == number)
            carried = spans["start_ns"][copies], spans["end_ns"][copies]
            _, busy = exposed_ns(carried, (waits["start_ns"][mine], waits["end_ns"][mine]), measured_ns(row))
            found.append((busy / waited_ns, row.hardware.link_names[number]))
    share, name = max(found, default=(0.0, ""))
    return f"{name} at {percent(share)}" if share else ""


def under_way(row: Row, cause: int, blocker: int) -> str:
    """Name the tensor, or the collective, that was under way while an op waited; empty if there is none.

    Parameters
    ----------
    row
        Any row.
    cause, blocker
        Columns of the waits.
    """
    if blocker < 0:
        return ""
    return row.graph.ops[blocker].name if CAUSES[cause] == "collective" else row.graph.tensors[blocker].name


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
    sums = waits_by_place(graph, ran) if ran is not None else {}
    for cause, name in enumerate(CAUSES):
        placed = sum(ns for (other, _), ns in sums.items() if other == cause)
        sums[cause, -1] = sums.get((cause, -1), 0) + row.summary[f"wait_{name}_ns"] - placed
    ordered = sorted(((key, ns) for key, ns in sums.items() if ns), key=lambda item: (-item[1], item[0]))
    return [{"cause": CAUSES[cause], "on": place(row, cause, on), "ns": ns} for (cause, on), ns in ordered]


def by_cause(row: Row) -> list[tuple[str, str, int, str, str]]:
    """Sum up the stalls of the measured step by cause and place.

    Parameters
    ----------
    row
        Any row.

    Returns
    -------
    list of (cause, place, count, time, share of the step)
        The longest first.
    """
    if _ended(row) is None:
        return []
    waits, lasted = _measured_waits(row)
    first, last = measured_ns(row)
    sums: dict[tuple[int, int], list[int]] = {}
    for cause, on, ns in zip(waits["cause"].tolist(), waits["on"].tolist(), lasted.tolist(), strict=True):
        entry = sums.setdefault((cause, on), [0, 0])
        entry[0] += 1
        entry[1] += ns
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return [
        (CAUSES[cause], _where(row, cause, on), count, quantity(ns, "ns"), percent(ns / max(1, last - first)))
        for (cause, on), (count, ns) in ordered
    ]


def _where(row: Row, cause: int, on: int) -> str:
    """The place of a wait; of one for room with the link that makes some."""
    clearing = cleared_by(row, on) if CAUSES[cause] == "capacity" and on >= 0 else ""
    return ", ".join(filter(None, (place(row, cause, on), clearing)))


def waits_for_peers(row: Row) -> dict[int, int]:
    """Sum up how long a rank waits for each other one in the measured step [ns].

    Parameters
    ----------
    row
        One rank, with a trace.
    """
    waits, lasted = _measured_waits(row)
    found: dict[int, int] = {}
    peer = waits["cause"] == CAUSES.index("peer")
    for on, ns in zip(waits["on"][peer].tolist(), lasted[peer].tolist(), strict=True):
        found[on] = found.get(on, 0) + ns
    return found


class _Leaving:
    """What left a tier while an op waited for room there."""

    def __init__(self, row: Row) -> None:
        trace, self._tensors = _ended(row), row.graph.tensors
        changes = trace.residencies.whole() if trace is not None else {}
        gone = changes["delta_bytes"] < 0 if changes else slice(0)
        self._changes = {name: changes[name][gone] for name in ("time_ns", "tier", "tensor") if changes}

    def at(self, waits: Block, wait: int) -> str:
        """The largest tensor, and how many others; empty if the wait was not for room, or nothing is known."""
        if CAUSES[waits["cause"][wait]] != "capacity" or not self._changes:
            return ""
        time, tier = self._changes["time_ns"], self._changes["tier"]
        meanwhile = (time > waits["start_ns"][wait]) & (time <= waits["end_ns"][wait]) & (tier == waits["on"][wait])
        gone = [t for t in np.unique(self._changes["tensor"][meanwhile]).tolist() if t >= 0]
        if not gone:
            return ""
        first = max(gone, key=lambda t: self._tensors[t].size_bytes)
        more = f" and {counted(len(gone) - 1, 'other')}" if len(gone) > 1 else ""
        return f"{self._tensors[first].name} {quantity(self._tensors[first].size_bytes, 'B')}{more}"


def largest(row: Row, most: int = 10) -> list[Stall]:
    """Name the longest stalls of the measured step.

    Parameters
    ----------
    row
        Any row.
    most
        How many.
    """
    if _ended(row) is None:
        return []
    waits, lasted = _measured_waits(row)
    tensors, ops = row.graph.tensors, row.graph.ops
    left = _Leaving(row)
    found = []
    for at in np.argsort(-lasted, kind="stable")[:most].tolist():
        op, cause, on, tensor, blocker = (int(waits[c][at]) for c in ("op", "cause", "on", "tensor", "blocker"))
        found.append(
            Stall(
                op=ops[op].name,
                cause=CAUSES[cause],
                on=place(row, cause, on),
                tensor=tensors[tensor].name if tensor >= 0 else "",
                blocker=under_way(row, cause, blocker) or left.at(waits, at),
                start=quantity(int(waits["start_ns"][at]), "ns"),
                lasted=quantity(int(lasted[at]), "ns"),
            )
        )
    return found
