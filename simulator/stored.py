"""What is stored once for several ranks: shared tensors whose home is a tier that these ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.graph import Graph
from simulator.hardware import Hardware

Copies = tuple[int, int, int]
"""Tier, tensor and size of what lies at home in a shared tier [B]."""


def repeated(ranks: Sequence[tuple[Graph, Sequence[int]]], hardware: Hardware) -> Iterator[tuple[int, Copies]]:
    """Find, rank by rank, what another rank has stored for it.

    A shared tensor has one copy in each instance of a tier for all ranks of a node, or of the supernode, as it says:
    that of the lowest of these ranks.

    Parameters
    ----------
    ranks
        For each the graph that it runs, and where each tensor is at time 0 (a tier id; below 0 in none).
    hardware
        Scopes of the tiers.

    Yields
    ------
    (int, (int, int, int))
        A rank, and the tier, tensor and size of a place that takes no room of its own.
    """
    known: dict[tuple[int, int], list[Copies]] = {}
    stored: set[tuple[int, int, int, str, int]] = set()
    tiers = list(hardware.tiers.values())
    for rank, (graph, home) in enumerate(ranks):
        key = (id(graph), id(home))
        if key not in known:
            known[key] = list(_at_home(graph, home, hardware))
        for tier, tensor, size in known[key]:
            what = graph.tensors[tensor]
            instance, group = (_member(scope, rank, hardware) for scope in (tiers[tier].scope, what.shared or "device"))
            where = (tier, instance, group, what.name, size)
            if where in stored:
                yield rank, (tier, tensor, size)
            stored.add(where)


def is_stored_once(graph: Graph, tensor: int, scope: str) -> bool:
    """Whether a tensor at home in a tier of this scope is the one copy of all ranks that share it.

    Parameters
    ----------
    graph, tensor
        Which tensor (an id).
    scope
        ``device``, ``node`` or ``supernode``.
    """
    what = graph.tensors[tensor]
    return what.shared is not None and what.persistent and scope != "device"


def _at_home(graph: Graph, home: Sequence[int], hardware: Hardware) -> Iterator[Copies]:
    scopes = [tier.scope for tier in hardware.tiers.values()]
    for tensor, tier in enumerate(home):
        if tier >= 0 and is_stored_once(graph, tensor, scopes[tier]):
            yield tier, tensor, graph.tensors[tensor].size_bytes


def _member(scope: str, rank: int, hardware: Hardware) -> int:
    return {"device": rank, "node": rank // hardware.topology.devices_per_node}.get(scope, 0)
