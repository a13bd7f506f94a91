"""What lies in each tier over time, by tensor kind: the data behind the pictures, the counters and the peak table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph, TensorKind
from simulator.report.rows import Row

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
    tensor, delta_bytes
        The changes themselves: tensor id (or ``-1 - op`` for a workspace) and the bytes taken or freed [B].
    """

    tier: str
    limit_bytes: int | float
    time_ns: NDArray[np.int64]
    kind_bytes: NDArray[np.int64]
    tensor: NDArray[np.int64]
    delta_bytes: NDArray[np.int64]

    @property
    def total_bytes(self) -> NDArray[np.int64]:
        """All kinds together after each change [B]."""
        total: NDArray[np.int64] = self.kind_bytes.sum(axis=0)
        return total

    @property
    def kinds(self) -> list[int]:
        """Positions in `KINDS` of the kinds that ever lie in the tier."""
        return [k for k in range(len(KINDS)) if self.kind_bytes[k].any()]


@dataclass(frozen=True, slots=True)
class Peak:
    """What lies in a tier at the moment when most does.

    Attributes
    ----------
    tier, time_ns, total_bytes
        Where, when [ns] and how much [B].
    by_kind, largest
        ``(kind, bytes)`` and ``(tensor or workspace name, bytes)``, the largest first.
    """

    tier: str
    time_ns: int
    total_bytes: int
    by_kind: tuple[tuple[str, int], ...]
    largest: tuple[tuple[str, int], ...]


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
        found.append(Usage(name, limit, changes["time_ns"][chosen], by_kind, changes["tensor"][chosen], delta))
    return found


def peak(usage: Usage, graph: Graph, most: int = 12) -> Peak:
    """Say what lies in a tier at its peak.

    Parameters
    ----------
    usage
        The tier over time.
    graph
        Knows the names.
    most
        How many of the largest residents are named.
    """
    total = usage.total_bytes
    at = int(total.argmax())
    held: dict[int, int] = {}
    for tensor, delta in zip(usage.tensor[: at + 1].tolist(), usage.delta_bytes[: at + 1].tolist(), strict=True):
        held[tensor] = held.get(tensor, 0) + delta
    largest = sorted(((t, size) for t, size in held.items() if size), key=lambda item: (-item[1], item[0]))
    names = tuple((_name(graph, t), size) for t, size in largest[:most])
    kinds = sorted(((KINDS[k], int(usage.kind_bytes[k, at])) for k in usage.kinds), key=lambda item: -item[1])
    return Peak(usage.tier, int(usage.time_ns[at]), int(total[at]), tuple(k for k in kinds if k[1]), names)


def _name(graph: Graph, tensor: int) -> str:
    return graph.tensors[tensor].name if tensor >= 0 else f"workspace of {graph.ops[-1 - tensor].name}"
