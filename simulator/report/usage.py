"""What lies in each tier over time, by tensor kind: the data behind the pictures and the counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph, TensorKind
from simulator.report.rows import Row, quantity

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


def usages(row: Row, rank: int = 0) -> list[Usage]:
    """Fold the trace of a row into the use of every tier that anything ever lies in.

    Parameters
    ----------
    row
        A row with a trace.
    rank
        Whose device tiers; tiers that ranks share are counted over all ranks.
    """
    if row.trace is None:
        return []
    changes = row.trace.residencies.whole()
    kinds = tensor_kinds(row.graph, changes["tensor"])
    found = []
    for t, (name, tier) in enumerate(row.hardware.tiers.items()):
        chosen = changes["tier"] == t
        if tier.scope == "device":
            chosen &= changes["rank"] == rank
        if not chosen.any():
            continue
        delta, kind = changes["delta_bytes"][chosen], kinds[chosen]
        by_kind = np.cumsum(np.where(kind == np.arange(len(KINDS))[:, None], delta, 0), axis=1)
        limit = row.budget_bytes if name == row.hardware.compute_tier else tier.usable_bytes
        found.append(Usage(name, limit, changes["time_ns"][chosen], by_kind))
    return found
