"""What lies in each tier over time, by tensor kind: the data behind the pictures and the counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph, TensorKind
from simulator.metrics import Instances
from simulator.report.ranks import is_job
from simulator.report.rows import Row, quantity
from simulator.trace import NO_HOLES

Ints = NDArray[np.int64]

KINDS = tuple(kind.value for kind in TensorKind)
"""Tensor kinds in the order in which pictures stack them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in one tier over time.

    Attributes
    ----------
    tier, limit_bytes
        Its name, and what may be used of it [B] (the budget for the compute tier); inf where there is no limit.
    time_ns
        Instants of change [ns], ascending; several changes of one instant follow each other.
    kind_bytes
        Array of shape (kinds, changes): the bytes of each of `KINDS` after each change [B].
    """

    tier: str
    limit_bytes: int | float
    time_ns: NDArray[np.int64]
    kind_bytes: NDArray[np.int64]

    @property
    def total_bytes(self) -> NDArray[np.int64]:
        """All kinds together after each change [B]."""
        total: NDArray[np.int64] = self.kind_bytes.sum(axis=0)
        return total

    @property
    def kinds(self) -> list[int]:
        """Positions in `KINDS` of the kinds that ever lie in the tier."""
        return [k for k in range(len(KINDS)) if self.kind_bytes[k].any()]

    def limit(self, compute_tier: str) -> str:
        """Say what may be used of the tier, such as ``budget 64.0 GB``; empty if there is no limit."""
        if not math.isfinite(self.limit_bytes):
            return ""
        return f"{'budget' if self.tier == compute_tier else 'capacity'} {quantity(self.limit_bytes, 'B')}"


def tensor_kinds(graph: Graph, tensor: Ints) -> Ints:
    """Position in `KINDS` of each tensor id; negative ids are workspaces."""
    known = np.array([KINDS.index(t.kind.value) for t in graph.tensors] or [0], dtype=np.int64)
    return np.where(tensor < 0, KINDS.index(TensorKind.WORKSPACE), known[np.maximum(tensor, 0)])


def usages(row: Row) -> list[Usage]:
    """Fold the trace of one rank into the use of every tier that anything of it ever lies in.

    Parameters
    ----------
    row
        A row of one rank.
    """
    return [usage for _, _, usage in _instances(row, lambda scope: True)]


def shared_usages(row: Row) -> Iterator[tuple[str, int, Usage]]:
    """Fold the traces of all ranks into the use of each tier that they share, node by node.

    Parameters
    ----------
    row
        A row of all ranks.

    Returns
    -------
    iterator of (str, int, Usage)
        The scope, the number of the instance (of a supernode 0), and its use by all ranks there.
    """
    return _instances(row, lambda scope: scope != "device")


def _instances(row: Row, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, int, Usage]]:
    """The instances of tiers of a scope that is wanted."""
    if row.trace is None:
        return
    changes, instances = row.trace.residencies.whole(), Instances(row.hardware, row.trace)
    instance, delta = instances.of(changes), instances.delta_bytes(changes)
    kind = np.zeros(len(delta), np.int64)
    for rank in np.unique(changes["rank"]).tolist():
        mine = changes["rank"] == rank
        graph = row.job.graph(rank) if is_job(row) else row.graph
        kind[mine] = tensor_kinds(graph, changes["tensor"][mine])
    for key in np.unique(instance).tolist():
        name = row.hardware.tier_names[key // instances.ranks]
        tier, mine = row.hardware.tiers[name], instance == key
        if is_wanted(tier.scope):
            by_kind = np.cumsum(np.where(kind[mine] == np.arange(len(KINDS))[:, None], delta[mine], 0), axis=1)
            limit = row.budget_bytes if name == row.hardware.compute_tier else tier.usable_bytes
            yield tier.scope, key % instances.ranks, Usage(name, limit, changes["time_ns"][mine], by_kind)


@dataclass(frozen=True, slots=True)
class Space:
    """What an allocator keeps, and what it could give out, over time.

    Attributes
    ----------
    tier
        Name of the tier.
    time_ns, reserved_bytes, hole_bytes, live_bytes
        The last change of each instant [ns]; what is reserved, the largest hole, and what places take then [B].
    compactions_ns
        From and to of each compaction, asking included [ns].
    """

    tier: str
    time_ns: Ints
    reserved_bytes: Ints
    hole_bytes: Ints
    live_bytes: Ints
    compactions_ns: tuple[tuple[int, int], ...]

    @property
    def has_holes(self) -> bool:
        """Whether holes are looked for: not where each place has had its range since before the run."""
        return NO_HOLES not in self.hole_bytes


def space(row: Row) -> Space | None:
    """Fold the trace of one rank into what its allocator kept; None if places have no addresses.

    Parameters
    ----------
    row
        A row of one rank.
    """
    if row.trace is None or not len(row.trace.reserved):
        return None
    kept, events, places = (
        table.whole() for table in (row.trace.reserved, row.trace.compactions, row.trace.residencies)
    )
    here = places["tier"] == row.hardware.tier_names.index(row.hardware.compute_tier)
    last = np.append(kept["time_ns"][1:] != kept["time_ns"][:-1], True)
    time, used = kept["time_ns"][last], np.append(0, np.cumsum(places["delta_bytes"][here]))
    live = used[np.searchsorted(places["time_ns"][here], time, "right")]
    remaps = events["is_remap"] == 1
    ends = zip(events["asked_ns"][remaps].tolist(), events["end_ns"][remaps].tolist(), strict=True)
    kept_bytes, holes = kept["reserved_bytes"][last], kept["largest_hole_bytes"][last]
    return Space(row.hardware.compute_tier, time, kept_bytes, holes, live, tuple(ends))
