"""Readings of a trace: waits by place, the use of each tier over time, and the space that an allocator keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import nlargest
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from simulator.graph import Graph, TensorKind
from simulator.metrics import Frames, Instances
from simulator.metrics.rows import Row
from simulator.report.words import quantity
from simulator.trace import NO_HOLES, Ints, pick

KINDS = tuple(kind.value for kind in TensorKind)
"""Tensor kinds in the order in which pictures stack them."""


Columns = dict[str, Any]
"""A table: column name -> a list of values."""


def columns(row: Row, table: str) -> Columns:
    """Return a table of `simulator.metrics.Frames` by column, as lists of plain values."""
    made = Frames(row.graph, row.hardware, row.trace).columns(table) if row.trace is not None else {}
    return {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in made.items()}


def lines(row: Row, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of `simulator.metrics.Frames` as dictionaries; none without a trace."""
    made = columns(row, table)
    return [dict(zip(made, line, strict=True)) for line in zip(*made.values(), strict=True)]


def largest(row: Row, most: int = 10) -> list[dict[str, Any]]:
    """Return the longest stalls of the measured step but for the host's; of a rank that meets others, of its stream 0.

    Parameters
    ----------
    row
        A row of one rank; without a trace it has none.
    most
        Most stalls to return.

    Returns
    -------
    list of dict
        Columns of `simulator.metrics.Frames.waits`, and ``lasted_ns``, the time within the step [ns].
    """
    first, step = row.summary.get("warmup_ns") or 0, row.summary.get("step_ns")
    last = row.summary.get("makespan_ns") if step is None else first + step
    is_other = (lambda stream: stream != 0) if row.graph.meets else row.graph.host_streams.__contains__
    waits = [wait for wait in lines(row, "waits") if not is_other(wait["stream"])]
    for wait in waits:
        wait["lasted_ns"] = min(wait["end_ns"], last) - max(wait["start_ns"], first)
    return nlargest(most, (wait for wait in waits if wait["lasted_ns"] > 0), key=itemgetter("lasted_ns"))


class Usage(NamedTuple):
    """The use of one instance of a tier over time.

    Attributes
    ----------
    tier, scope, instance
        Name and scope of the tier, and the instance: the index of a ``node``, or 0.
    limit_bytes, allowed
        The bytes that may be used of it [B] (the budget, for the compute tier), ``inf`` without a limit; and in words.
    time_ns
        Instants of changes [ns], ascending, also several at one instant. The first change is at 0, to an empty tier.
    kind_bytes
        Array of shape (kinds, changes): the bytes of each of `KINDS` after each change [B].
    """

    tier: str
    scope: str
    instance: int
    limit_bytes: int | float
    allowed: str
    time_ns: Ints
    kind_bytes: Ints

    @property
    def total_bytes(self) -> Ints:
        """Bytes of all kinds together after each change [B]."""
        total: Ints = self.kind_bytes.sum(axis=0)
        return total

    @property
    def kinds(self) -> list[int]:
        """Positions in `KINDS` of the kinds that ever lie in the tier."""
        return np.flatnonzero(self.kind_bytes.any(axis=1)).tolist()


def tensor_kinds(graph: Graph, tensor: Ints) -> Ints:
    """Return the position in `KINDS` of each tensor id; negative ids are workspaces."""
    kinds = np.array([KINDS.index(t.kind.value) for t in graph.tensors] or [0], dtype=np.int64)
    return np.where(tensor < 0, KINDS.index(TensorKind.WORKSPACE), kinds[np.maximum(tensor, 0)])


def usages(row: Row) -> Iterator[Usage]:
    """Compute the use over time of each tier that holds anything; for a job, only of tiers that its ranks share.

    Parameters
    ----------
    row
        A row of one rank, or of all ranks.
    """
    if row.trace is None:
        return
    changes, instances = row.trace.residencies.whole(), Instances(row.hardware, row.trace)
    instance, delta = instances.of(changes), instances.delta_bytes(changes)
    kind = np.zeros(len(delta), np.int64)
    for rank in np.unique(changes["rank"]).tolist():
        of_rank = changes["rank"] == rank
        kind[of_rank] = tensor_kinds(row.job.graph(rank) if row.is_job else row.graph, changes["tensor"][of_rank])
    for key in np.unique(instance).tolist():
        name = row.hardware.tier_names[key // instances.ranks]
        tier, is_in_it = row.hardware.tiers[name], instance == key
        if row.is_job and tier.scope == "device":
            continue
        is_kind = kind[is_in_it] == np.arange(len(KINDS))[:, None]
        by_kind = np.cumsum(np.where(is_kind, delta[is_in_it], 0), axis=1)
        is_budgeted = name == row.hardware.compute_tier
        limit = row.budget_bytes if is_budgeted else tier.usable_bytes
        allowed = f"{'budget' if is_budgeted else 'capacity'} {quantity(limit, 'B')}" if math.isfinite(limit) else ""
        time_ns, held = np.append(0, changes["time_ns"][is_in_it]), np.pad(by_kind, ((0, 0), (1, 0)))
        yield Usage(name, tier.scope, key % instances.ranks, limit, allowed, time_ns, held)


class ReservedSpace(NamedTuple):
    """The space that an allocator reserves in the compute tier, and its largest hole, over time.

    Attributes
    ----------
    time_ns, reserved_bytes, hole_bytes
        Instants of changes [ns]; the reserved space, and the largest hole, from then on [B].
    has_holes
        Whether there can be holes; there are none if all offsets were assigned before the run.
    compactions_ns
        Start and end of each compaction, from when it was asked for [ns].
    """

    time_ns: Ints
    reserved_bytes: Ints
    hole_bytes: Ints
    has_holes: bool
    compactions_ns: tuple[tuple[int, int], ...]


def space(row: Row) -> ReservedSpace | None:
    """Return the space that the allocator of a rank reserved over time; None if places have no addresses.

    Parameters
    ----------
    row
        A row of one rank.
    """
    if row.trace is None or not len(row.trace.reserved):
        return None
    kept, events = row.trace.reserved.whole(), row.trace.compactions.whole()
    remaps = pick(events, events["is_remap"] == 1)
    ends = zip(remaps["asked_ns"].tolist(), remaps["end_ns"].tolist(), strict=True)
    holes = kept["largest_hole_bytes"]
    return ReservedSpace(kept["time_ns"], kept["reserved_bytes"], holes, NO_HOLES not in holes, tuple(ends))
