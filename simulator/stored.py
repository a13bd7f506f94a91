"""What is stored once for several ranks: shared tensors whose home is a tier that these ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.graph import Graph
from simulator.hardware import Hardware


class Repeated(NamedTuple):
    """What another rank has stored for this one.

    Attributes
    ----------
    rank, tier
        For whom, where.
    tensors
        Ids of the tensors that take no room of their own there.
    size_bytes
        Their size in all [B].
    """

    rank: int
    tier: int
    tensors: tuple[int, ...]
    size_bytes: int


def repeated(ranks: Sequence[tuple[Graph, Sequence[int]]], hardware: Hardware) -> Iterator[Repeated]:
    """Find, rank by rank, what another rank has stored for it.

    A shared tensor has one copy in each instance of a tier for all ranks of a node, or of the supernode, as it says:
    that of the lowest of these ranks.

    Parameters
    ----------
    ranks
        For each the graph that it runs, and where each tensor is at time 0 (a tier id; below 0 in none).
    hardware
        Scopes of the tiers.
    """
    known: dict[tuple[int, int], list[_Bundle]] = {}
    whole: dict[tuple[int, int, int], Repeated] = {}
    stored: set[tuple[int, int, int, str, int]] = set()
    tiers = list(hardware.tiers.values())
    for rank, (graph, home) in enumerate(ranks):
        key = (id(graph), id(home))
        if key not in known:
            known[key] = _bundles(graph, home, hardware)
        for bundle in known[key]:
            place = (_member(tiers[bundle.tier].scope, rank, hardware), _member(bundle.shared, rank, hardware))
            one = (id(bundle), *place)
            if one in whole:
                yield whole[one]._replace(rank=rank)
                continue
            where = {
                t: (bundle.tier, *place, graph.tensors[t].name, graph.tensors[t].size_bytes) for t in bundle.tensors
            }
            again = tuple(t for t in bundle.tensors if where[t] in stored)
            stored.update(where.values())
            whole[one] = Repeated(rank, bundle.tier, bundle.tensors, _size_bytes(graph, bundle.tensors))
            if again:
                yield Repeated(rank, bundle.tier, again, _size_bytes(graph, again))


class _Bundle(NamedTuple):
    """Shared tensors of a graph that are at home in one tier, for the same ranks."""

    tier: int
    shared: str
    tensors: tuple[int, ...]


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


def _bundles(graph: Graph, home: Sequence[int], hardware: Hardware) -> list[_Bundle]:
    scopes = [tier.scope for tier in hardware.tiers.values()]
    found: dict[tuple[int, str], list[int]] = {}
    for tensor, tier in enumerate(home):
        if tier >= 0 and is_stored_once(graph, tensor, scopes[tier]):
            found.setdefault((tier, graph.tensors[tensor].shared or ""), []).append(tensor)
    return [_Bundle(tier, shared, tuple(tensors)) for (tier, shared), tensors in found.items()]


def _size_bytes(graph: Graph, tensors: Sequence[int]) -> int:
    return sum(graph.tensors[tensor].size_bytes for tensor in tensors)


def _member(scope: str, rank: int, hardware: Hardware) -> int:
    return {"device": rank, "node": rank // hardware.topology.devices_per_node}.get(scope, 0)
