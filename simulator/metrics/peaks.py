"""How full each tier gets, and with what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from simulator.columns import Ints, running
from simulator.graph import Graph, TensorKind
from simulator.hardware import Hardware
from simulator.trace import RESIDENCIES, SPANS, WAITS, Block, Table, Trace, instances

ALONE = Trace("ok", Table(SPANS), Table(WAITS), Table(RESIDENCIES), ())
"""A trace of one rank that stands for no other."""


class Instances:
    """Which instance of a tier holds what a rank holds: the device's, the node's or the only one.

    A rank that stands in for others counts once for each of them in its instance. What is stored once for several ranks
    counts once.

    Parameters
    ----------
    hardware, trace
        Scopes of the tiers, and which rank stands in for which.

    Attributes
    ----------
    ranks
        How many ranks there are.
    """

    def __init__(self, hardware: Hardware, trace: Trace) -> None:
        self.ranks, on_node = len(trace.stands_in), hardware.topology.devices_per_node
        self._repeated_bytes = trace.repeated_bytes
        found = [instances(tier.scope, on_node, trace.stands_in) for tier in hardware.tiers.values()]
        self._member, self._count = (np.array(column) for column in zip(*found, strict=True))

    def of(self, rows: Block) -> Ints:
        """The instance in which each row of the residencies is: its tier's id times `ranks`, plus a number."""
        found: Ints = rows["tier"] * self.ranks + self._member[rows["tier"], rows["rank"]]
        return found

    def delta_bytes(self, rows: Block) -> Ints:
        """By how much each row changes what its instance holds [B]."""
        found: Ints = rows["delta_bytes"] * self._count[rows["tier"], rows["rank"]] - self._repeated_bytes(rows)
        return found


def peaks_bytes(hardware: Hardware, trace: Trace) -> dict[str, int]:
    """Count the most that each tier ever holds: the largest running sum of its rows, in order [B].

    Where there are several instances of a tier, it is the fullest one's.
    """
    found = Peaks(hardware, trace)
    found.take(trace.residencies.whole())
    return found.bytes


class Peaks:
    """Counts the most that each tier ever holds, as places are taken and freed.

    Parameters
    ----------
    hardware, trace
        The tiers, and whose rows count where.
    """

    def __init__(self, hardware: Hardware, trace: Trace = ALONE) -> None:
        self._names, self._instances = hardware.tier_names, Instances(hardware, trace)
        self._used, self._most = np.zeros((2, len(hardware.tiers) * self._instances.ranks), np.int64)

    def take(self, rows: Block) -> None:
        """Count some rows of the residencies, in order."""
        instance, delta = self._instances.of(rows), self._instances.delta_bytes(rows)
        used = self._used[instance] + running(instance, delta)
        np.maximum.at(self._most, instance, used)
        np.add.at(self._used, instance, delta)

    @property
    def bytes(self) -> dict[str, int]:
        """By tier, the most that the fullest instance of it ever held [B]."""
        by_tier = self._most.reshape(-1, self._instances.ranks).max(axis=1).tolist()
        return dict(zip(self._names, by_tier, strict=True))


@dataclass(frozen=True, slots=True)
class Peak:
    """What lies in a tier at the moment when most does.

    Attributes
    ----------
    tier, time_ns, used_bytes
        Where, when [ns] and how much [B].
    by_kind
        Tensor kind -> bytes, the largest first.
    largest
        ``(tensor name or workspace of an op, bytes)``, the largest first.
    """

    tier: str
    time_ns: int
    used_bytes: int
    by_kind: dict[str, int]
    largest: tuple[tuple[str, int], ...]


def peak_breakdown(graph: Graph, hardware: Hardware, trace: Trace, tier: str, most: int = 10) -> Peak:
    """Say what lies in a tier when it is fullest, for the first time, in rank 0's instance.

    Parameters
    ----------
    graph, hardware, trace
        What ran, where, and what happened.
    tier
        Name of the tier.
    most
        How many residents are named.
    """
    rows = trace.residencies.whole()
    mine = rows["tier"] == hardware.tier_names.index(tier)
    if hardware.tiers[tier].scope == "device":
        mine &= rows["rank"] == 0
    time, rank, tensor, delta = (rows[name][mine] for name in ("time_ns", "rank", "tensor", "delta_bytes"))
    if not len(delta):
        return Peak(tier, 0, 0, {}, ())
    used = np.cumsum(delta)
    at = int(used.argmax())
    held, by_kind = Counter[tuple[int, int]](), Counter[str]()
    for t, of, size in zip(*(column[: at + 1].tolist() for column in (tensor, rank, delta)), strict=True):
        held[t, of] += size
    largest = sorted(((-size, t, of) for (t, of), size in held.items() if size))
    for size, t, _ in largest:
        by_kind[kind_of(graph, t)] -= size
    names = tuple((name_of(graph, t), -size) for size, t, _ in largest[:most])
    return Peak(tier, int(time[at]), int(used[at]), dict(by_kind.most_common()), names)


def kind_of(graph: Graph, tensor: int) -> str:
    """Kind of a tensor id of the residencies; negative ids are workspaces."""
    return graph.tensors[tensor].kind.value if tensor >= 0 else TensorKind.WORKSPACE.value


def name_of(graph: Graph, tensor: int) -> str:
    """Name of a tensor id of the residencies; negative ids are workspaces."""
    return graph.tensors[tensor].name if tensor >= 0 else f"workspace of {graph.ops[-1 - tensor].name}"
