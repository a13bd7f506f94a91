"""What sets the pace of a step, and between which times a real step of this kind lies.

Published measurements were predicted by hosim, each record of them with its own setting. What was printed, by what
hosim had obtained, is a *ratio*; ratios of steps that the same thing paces are alike, and those of different things are
not (copies from pinned memory come within some per cent, a framework's own copies take up to four times as long). The
interval of a step is its time by the quantiles of the ratios of its kind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import lcm
from typing import Any, NamedTuple

from simulator.graph import Graph, Op, OpKind
from simulator.units import decimal

Counts = Mapping[str, Any]
"""The figures of a row that ran to its end, by column."""
Ratios = Mapping[str, Mapping[str, Sequence[float]]]
"""Kind of pace -> record -> real over predicted time of each of its rows."""

COPIES = {True: ("pinned copies",), False: ("framework copies",), None: ("pinned copies", "framework copies")}
"""Whether the software copies from pinned memory, if that is known -> the kinds of its steps that copies pace."""
KERNELS = {
    "decode": "decode kernels",
    "prefill": "prefill kernels",
    "backward": "training kernels",
    "update": "training kernels",
}
"""Phase of a graph -> the kind of its steps where kernels pace them; the last one that is there counts."""
MEASURED = "measured kernels"
"""Kernels most of whose time a graph states: it was not predicted, so no ratio of predicted times applies."""
LOW, HIGH = 0.1, 0.9
"""The quantiles between which 80 % of real steps of a kind lie."""


class Pacer(NamedTuple):
    """What sets the pace of a step.

    Attributes
    ----------
    by
        In words: ``copies over h2d``, ``decode kernels``, ``host compute``, ``delays``, ``issuing by the host``,
        ``collectives``, ``peers``.
    kinds
        The kinds of measurements that it is like; several where it is not known which. What the host takes to issue
        kernels, and ranks to meet, is part of the times that are printed of kernels.
    """

    by: str
    kinds: tuple[str, ...]


def pace_of(
    graph: Graph, ops_ns: Sequence[int], links: Iterable[str], row: Counts, *, pinned: bool | None, delays: bool = False
) -> Pacer:
    """Tell what sets the pace of a step: what is busy, or waited for, for most of it; kernels, where several are.

    Parameters
    ----------
    graph
        The graph of the rank that the row is of; its phases tell the kind of kernels.
    ops_ns
        What each of its ops takes alone [ns], on whatever machine.
    links
        The links of the machine.
    row
        The figures of a row that ran to its end.
    pinned
        Whether its software copies from pinned memory; None if no software is named.
    delays
        Whether some rank of the job has delays. To wait for a peer may then be to wait for these, and no measurement is
        like that.
    """
    phases, timed = {op.phase for op in graph.ops}, [*zip(graph.ops, ops_ns, strict=True)]
    kernels = [kind for phase, kind in KERNELS.items() if phase in phases][-1:] or [*KERNELS.values()]
    shown, kinds = kernels[0] if len(kernels) == 1 else "kernels", tuple(kernels)
    is_stated = _is_stated([each for index, each in enumerate(timed) if index not in graph.on_host])
    shown, kinds = (MEASURED, ()) if is_stated else (shown, kinds)
    of_host = () if _is_stated([timed[index] for index in graph.on_host]) else ("host compute",)
    busy_ns = {Pacer(shown, kinds): row["compute_ns"] + row["recompute_ns"]}
    busy_ns |= {Pacer(f"copies over {name}", COPIES[pinned]): row[f"busy_{name}_ns"] for name in links}
    busy_ns[Pacer("host compute", of_host)] = row.get("host_compute_ns") or 0
    busy_ns[Pacer("delays", ())] = row.get("delay_ns") or 0
    busy_ns[Pacer("issuing by the host", kinds)] = row["wait_host_ns"]
    busy_ns[Pacer("collectives", kinds)] = row["wait_collective_ns"] + (0 if delays else row["wait_peer_ns"])
    busy_ns[Pacer("peers", ())] = row["wait_peer_ns"] if delays else 0
    return max(busy_ns, key=busy_ns.__getitem__)


def _is_stated(ops: Sequence[tuple[Op, int]]) -> bool:
    """Return whether graphs state most of the time of some ops that compute."""
    computes = [(op, ns) for op, ns in ops if op.kind is OpKind.COMPUTE]
    return 2 * sum(ns for op, ns in computes if op.duration_ns is not None) > sum(ns for _, ns in computes)


def quantile(records: Iterable[Sequence[float]], share: float) -> float:
    """Return the least ratio with this share of all weight at or below it; a record weighs as much as another.

    Parameters
    ----------
    records
        The ratios of each record; there is at least one.
    share
        From 0 to 1.
    """
    every = [*records]
    whole = lcm(*map(len, every))  # weights in parts of it are whole numbers
    weighted = sorted((ratio, whole // len(record)) for record in every for ratio in record)
    sums = [*accumulate(weight for _, weight in weighted)]
    return weighted[bisect_left(sums, decimal(share) * sums[-1])][0]


def interval(ratios: Ratios, kinds: Iterable[str]) -> tuple[float, float] | None:
    """Return the quantiles between which 80 % of the ratios of some kinds lie; None if there are none.

    Parameters
    ----------
    ratios
        Those of all records.
    kinds
        The kinds that a step may be of.
    """
    records = [record for kind in kinds for record in ratios.get(kind, {}).values()]
    return (quantile(records, LOW), quantile(records, HIGH)) if records else None


def real_figures(row: Counts, pacer: Pacer, ratios: Ratios) -> dict[str, Any]:
    """Count the figures of the real step: what paces it, and its interval.

    Parameters
    ----------
    row, pacer, ratios
        The figures of a row, what paces it, and the ratios of all records.
    """
    factors = interval(ratios, pacer.kinds) or (None, None)
    low, high = (None if factor is None else round(row["step_ns"] * factor) for factor in factors)
    return {"paced_by": pacer.by, "real_low_ns": low, "real_high_ns": high}
