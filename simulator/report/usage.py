"""What lies in each tier over time, by tensor kind: the data behind the pictures and the counters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph, TensorKind
from simulator.report.rows import Row, quantity
from simulator.trace import NO_HOLES

Ints = NDArray[np.int64]

KINDS = tuple(kind.value for kind in TensorKind)
"""Tensor kinds in the order in which pictures stack them."""
_WORKSPACE = KINDS.index("workspace")


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


def tensor_kinds(graph: Graph, tensor: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position in `KINDS` of each tensor id; negative ids are workspaces."""
    position = {kind: i for i, kind in enumerate(KINDS)}
    known = np.array([position[t.kind.value] for t in graph.tensors] or [0], dtype=np.int64)
    return np.where(tensor < 0, _WORKSPACE, known[np.maximum(tensor, 0)])


def usages(row: Row) -> list[Usage]:
    """Fold the trace of one rank into the use of every tier that anything of it ever lies in.

    Parameters
    ----------
    row
        A row of one rank, with a trace.
    """
    if row.trace is None:
        return []
    changes = row.trace.residencies.whole()
    kinds = tensor_kinds(row.graph, changes["tensor"])
    found = []
    for t, name in enumerate(row.hardware.tiers):
        chosen = np.flatnonzero(changes["tier"] == t)
        if len(chosen):
            columns = (changes["time_ns"][chosen], changes["delta_bytes"][chosen], kinds[chosen])
            found.append(_usage(row, name, *columns))
    return found


def _usage(row: Row, tier: str, time_ns: Ints, delta_bytes: Ints, kind: Ints) -> Usage:
    by_kind = np.cumsum(np.where(kind == np.arange(len(KINDS))[:, None], delta_bytes, 0), axis=1)
    is_budgeted = tier == row.hardware.compute_tier
    return Usage(tier, row.budget_bytes if is_budgeted else row.hardware.tiers[tier].usable_bytes, time_ns, by_kind)


def shared_usages(row: Row, views: Sequence[Row]) -> Iterator[tuple[str, int, Usage]]:
    """Fold the traces of all ranks into the use of each tier that they share, node by node.

    Parameters
    ----------
    row
        A row with a trace.
    views
        All ranks that were simulated.

    Returns
    -------
    iterator of (str, int, Usage)
        The scope, the number of the instance (of a supernode 0), and its use by all ranks there.
    """
    if row.trace is None:
        return
    stands_in, on_node = row.trace.stands_in, row.hardware.topology.devices_per_node
    for t, (name, tier) in enumerate(row.hardware.tiers.items()):
        if tier.scope == "device":
            continue
        size = on_node if tier.scope == "node" else len(stands_in)
        counts = Counter(by for rank, by in enumerate(stands_in) if rank // size == by // size)
        parts: dict[int, list[tuple[Ints, Ints, Ints]]] = {}
        for view in views:
            if view.trace is None:
                continue
            changes = view.trace.residencies.whole()
            mine = np.flatnonzero(changes["tier"] == t)
            of_all = {**changes, "rank": np.full(len(changes["tier"]), view.rank)}
            kinds = tensor_kinds(view.graph, changes["tensor"][mine])
            delta = changes["delta_bytes"][mine] * counts[view.rank] - row.trace.repeated_bytes(of_all)[mine]
            if len(mine):
                parts.setdefault(view.rank // size, []).append((changes["time_ns"][mine], delta, kinds))
        for instance, found in sorted(parts.items()):
            time, delta, kind = (np.concatenate(column) for column in zip(*found, strict=True))
            order = np.lexsort((delta, time)) if len(found) > 1 else np.arange(len(time))
            yield tier.scope, instance, _usage(row, name, time[order], delta[order], kind[order])


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
