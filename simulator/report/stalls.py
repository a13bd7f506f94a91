"""The stalls of a run for readers: how much by cause and place, and the largest ones."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from simulator.metrics import Ran, blocker_name, place_name, waits_by_place
from simulator.report.rows import Row, is_job, is_ok, quantity
from simulator.trace import CAUSES, pick


class Stall(NamedTuple):
    """One stretch in which a compute stream waited.

    Attributes
    ----------
    op
        The op that could not start.
    cause, on
        Why, and the link, tier or rank behind it.
    tensor, blocker
        What the op lacked, and the tensor whose transfer, or the collective that, was under way; may be empty.
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
    first, step = row.summary.get("warmup_ns") or 0, row.summary.get("step_ns")
    return first, row.summary["makespan_ns"] if step is None else first + step


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
    rank, ran = row.summary.get("slowest_rank", row.rank), row.ran
    graph = row.job.graph(rank)
    if ran is None and row.trace is not None:
        ran = Ran.of(graph, row.hardware, row.trace.by_rank()[rank if is_job(row) else 0])
    sums = Counter(waits_by_place(graph, ran) if ran is not None else {})
    for cause, name in enumerate(CAUSES):
        placed = sum(ns for (other, _), ns in sums.items() if other == cause)
        sums[cause, -1] += (row.summary.get(f"wait_{name}_ns") or 0) - placed
    ordered = sorted(((key, ns) for key, ns in sums.items() if ns), key=lambda item: (-item[1], item[0]))
    return [{"cause": CAUSES[at[0]], "on": place_name(row.hardware, *at), "ns": ns} for at, ns in ordered]


def largest(row: Row, most: int = 10) -> list[Stall]:
    """Name the longest stalls of the measured step; of a rank that meets others, of its stream 0.

    Parameters
    ----------
    row
        A row of one rank; without a trace it has none.
    most
        How many.
    """
    if row.trace is None:
        return []
    (first, last), waits = measured_ns(row), row.trace.waits.whole()
    waits["lasted_ns"] = np.minimum(waits["end_ns"], last) - np.maximum(waits["start_ns"], first)
    waits = pick(waits, (waits["lasted_ns"] > 0) & ((waits["stream"] == 0) | (not row.graph.meets)))
    waits = pick(waits, np.argsort(-waits["lasted_ns"], kind="stable")[:most])
    names = ("op", "cause", "on", "tensor", "blocker", "start_ns", "lasted_ns")
    tensors = [*(tensor.name for tensor in row.graph.tensors), ""]
    return [
        Stall(
            row.graph.ops[op].name,
            CAUSES[cause],
            place_name(row.hardware, cause, on),
            tensors[tensor],
            blocker_name(row.graph, cause, blocker),
            quantity(start, "ns"),
            quantity(lasted, "ns"),
        )
        for op, cause, on, tensor, blocker, start, lasted in zip(*(waits[name].tolist() for name in names), strict=True)
    ]
