"""What lies in each tier over time, and what its allocator keeps: the data behind the pictures and the counters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.columns import Ints
from simulator.graph import Graph, TensorKind
from simulator.metrics import Instances
from simulator.report.rows import Row, is_job, quantity
from simulator.trace import NO_HOLES, pick

KINDS = tuple(kind.value for kind in TensorKind)
"""Tensor kinds in the order in which pictures stack them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in one instance of a tier over time.

    Attributes
    ----------
    tier, scope, instance
        Its name, who has an instance of it, and which one it is: of the ``node`` with this number, or 0.
    limit_bytes, allowed
        What may be used of it [B] (the budget for the compute tier), inf where there is no limit; and in words.
    time_ns
        Instants of change [ns], ascending; several changes of one instant follow each other. At first nothing is there.
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
        """All kinds together after each change [B]."""
        total: Ints = self.kind_bytes.sum(axis=0)
        return total

    @property
    def kinds(self) -> list[int]:
        """Positions in `KINDS` of the kinds that ever lie in the tier."""
        return np.flatnonzero(self.kind_bytes.any(axis=1)).tolist()


def tensor_kinds(graph: Graph, tensor: Ints) -> Ints:
    """Position in `KINDS` of each tensor id; negative ids are workspaces."""
    known = np.array([KINDS.index(t.kind.value) for t in graph.tensors] or [0], dtype=np.int64)
    return np.where(tensor < 0, KINDS.index(TensorKind.WORKSPACE), known[np.maximum(tensor, 0)])


def usages(row: Row) -> Iterator[Usage]:
    """Fold a trace into the use of every tier that anything ever lies in; of several ranks of those that they share.

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
        mine = changes["rank"] == rank
        kind[mine] = tensor_kinds(row.job.graph(rank) if is_job(row) else row.graph, changes["tensor"][mine])
    for key in np.unique(instance).tolist():
        name = row.hardware.tier_names[key // instances.ranks]
        tier, mine = row.hardware.tiers[name], instance == key
        if is_job(row) and tier.scope == "device":
            continue
        by_kind = np.cumsum(np.where(kind[mine] == np.arange(len(KINDS))[:, None], delta[mine], 0), axis=1)
        is_budgeted = name == row.hardware.compute_tier
        limit = row.budget_bytes if is_budgeted else tier.usable_bytes
        allowed = f"{'budget' if is_budgeted else 'capacity'} {quantity(limit, 'B')}" if math.isfinite(limit) else ""
        time_ns, held = np.append(0, changes["time_ns"][mine]), np.pad(by_kind, ((0, 0), (1, 0)))
        yield Usage(name, tier.scope, key % instances.ranks, limit, allowed, time_ns, held)


@dataclass(frozen=True, slots=True)
class Space:
    """What an allocator keeps of the compute tier, and could give out, over time.

    Attributes
    ----------
    time_ns, reserved_bytes, hole_bytes
        Instants of change [ns]; what is reserved, and the largest hole, from then on [B].
    has_holes
        Whether holes are looked for: not where each place has had its range since before the run.
    compactions_ns
        From and to of each compaction, asking included [ns].
    """

    time_ns: Ints
    reserved_bytes: Ints
    hole_bytes: Ints
    has_holes: bool
    compactions_ns: tuple[tuple[int, int], ...]


def space(row: Row) -> Space | None:
    """Fold the trace of one rank into what its allocator kept; None if places have no addresses.

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
    return Space(kept["time_ns"], kept["reserved_bytes"], holes, NO_HOLES not in holes, tuple(ends))
