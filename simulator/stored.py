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
    groups: dict[tuple[int, int], dict[tuple[int, str], Repeated]] = {}
    stored, whole, tiers = set[tuple[object, ...]](), set[tuple[object, ...]](), list(hardware.tiers.values())
    for rank, (graph, home) in enumerate(ranks):
        kind = (id(graph), id(home))
        if kind not in groups:
            groups[kind] = _shared(graph, home, hardware)
        for (tier, shared), every in groups[kind].items():
            place = (tier, _member(tiers[tier].scope, rank, hardware), _member(shared, rank, hardware))
            again = every.tensors
            if (kind, shared, *place) not in whole:
                copies = {t: (*place, graph.tensors[t].name, graph.tensors[t].size_bytes) for t in every.tensors}
                again = tuple(t for t, copy in copies.items() if copy in stored)
                stored.update(copies.values())
                whole.add((kind, shared, *place))
            if again == every.tensors:
                yield every._replace(rank=rank)
            elif again:
                yield Repeated(rank, tier, again, sum(graph.tensors[t].size_bytes for t in again))


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


def _shared(graph: Graph, home: Sequence[int], hardware: Hardware) -> dict[tuple[int, str], Repeated]:
    """By tier and who shares it: what of a graph is stored once, as a rank has it that finds all of it stored."""
    scopes, shared = [tier.scope for tier in hardware.tiers.values()], dict[tuple[int, str], list[int]]()
    for tensor, tier in enumerate(home):
        if tier >= 0 and is_stored_once(graph, tensor, scopes[tier]):
            shared.setdefault((tier, graph.tensors[tensor].shared or ""), []).append(tensor)
    sizes = {key: sum(graph.tensors[t].size_bytes for t in tensors) for key, tensors in shared.items()}
    return {key: Repeated(-1, key[0], tuple(tensors), sizes[key]) for key, tensors in shared.items()}


def _member(scope: str, rank: int, hardware: Hardware) -> int:
    return {"device": rank, "node": rank // hardware.topology.devices_per_node}.get(scope, 0)
