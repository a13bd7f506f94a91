"""The ranks of a row for readers: each as a row of its own, which of them are worth showing, and who met whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.graph import Collective, CollectiveKind
from simulator.metrics import by_rank
from simulator.plan import COMPUTE
from simulator.report.rows import Row, present
from simulator.trace import Trace
from simulator.units import counted


def is_job(row: Row) -> bool:
    """Whether the row is about several ranks."""
    return row.trace is not None and len(row.trace.stands_in) > 1


def of_ranks(row: Row, ranks: Sequence[int] | None = None) -> list[Row]:
    """Show ranks of a row, each as a row of its own.

    Parameters
    ----------
    row
        A row with a trace.
    ranks
        Which; default: all that were simulated.
    """
    trace = row.trace
    if trace is None:
        return []
    counts = by_rank(row.job, row.hardware, trace) if is_job(row) else [row.summary]
    alone, stand = trace.by_rank(), Counter(trace.stands_in)
    one = replace(row, ran=None, shortfall=None)
    return [
        replace(one, summary=dict(counts[rank]), trace=alone[rank], rank=rank, stands_for=stand[rank])
        for rank in (simulated(trace) if ranks is None or not is_job(row) else ranks)
    ]


def simulated(trace: Trace) -> list[int]:
    """Ranks with rows of their own."""
    return [rank for rank, by in enumerate(trace.stands_in) if rank == by]


def chosen(row: Row, most: int) -> list[int]:
    """Choose ranks to show: all that were simulated, or so many of them that tell most.

    Parameters
    ----------
    row
        A row with a trace.
    most
        How many at most.

    Returns
    -------
    list of int
        Ascending: the first of each program, the slowest, the first of each node, and then those with the lowest
        numbers.
    """
    trace = row.trace
    if trace is None:
        return []
    candidates = simulated(trace)
    if len(candidates) <= most:
        return candidates
    each = row.hardware.topology.devices_per_node
    firsts = [row.job.ranks_of(number)[0] for number in range(len(row.job.graphs))]
    slowest = row.summary.get("slowest_rank")
    wanted = [*firsts, *([slowest] if present(slowest) else []), *range(0, row.job.ranks, each)]
    found = dict.fromkeys(trace.stands_in[rank] for rank in wanted)
    return sorted([*found, *(rank for rank in candidates if rank not in found)][:most])


def omitted(row: Row, shown: Sequence[int]) -> str:
    """Say which ranks are not shown, and why; empty if all are.

    Parameters
    ----------
    row
        A row with a trace.
    shown
        Ranks that are shown.
    """
    trace, total = row.trace, row.job.ranks
    if trace is None or len(shown) == total:
        return ""
    own = len(simulated(trace))
    text = f"{len(shown):,} of {counted(total, 'rank')} {'is' if len(shown) == 1 else 'are'} shown"
    if own < total:
        text += f"; {total - own:,} do exactly what the one does that stands for them"
    if len(shown) < own:
        text += "; of those with rows of their own, the first of each program and node, the slowest, and the"
        text += " lowest numbers"
    return text


class Met(NamedTuple):
    """A collective that a rank took part in.

    Attributes
    ----------
    what
        Kind, group, size and algorithm.
    members
        Ranks that met.
    number
        Which one of this group and these members, from 1.
    span
        Row of its span in the rank's trace.
    """

    what: Collective
    members: tuple[int, ...]
    number: int
    span: int


def collectives(view: Row) -> list[Met]:
    """List the collectives that a rank took part in, in the order of issue.

    Parameters
    ----------
    view
        What the rank did.
    """
    if view.trace is None or not view.graph.meets:
        return []
    spans = view.trace.spans.whole()
    order = np.argsort(spans["issue"], kind="stable")
    order = order[spans["kind"][order] == COMPUTE]
    groups = {group.name: group for group in view.graph.groups}
    members: dict[tuple[str, CollectiveKind], tuple[int, ...] | None] = {}
    count: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = []
    for row, op in zip(order.tolist(), spans["item"][order].tolist(), strict=True):
        what = view.graph.ops[op].collective
        if what is None:
            continue
        key = what.group, what.kind
        if key not in members:
            members[key] = groups[what.group].of(view.rank, what.kind)
        whom = members[key] or (view.rank,)
        count[what.group, whom] += 1
        found.append(Met(what, whom, count[what.group, whom], row))
    return found
