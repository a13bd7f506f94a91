"""How many devices there are, and what joins them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.document import MOST_RANKS, Few, Part, Ranks
from simulator.hardware.numbers import Fraction
from simulator.units import Bytes, BytesPerSecond, FieldError, Nanoseconds

CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
"""Collectives that have several algorithms."""
AlgorithmName = Literal["ring", "tree", "direct"]
"""Algorithms on one fabric."""

ALGORITHMS: dict[str, tuple[AlgorithmName, ...]] = {
    "all_reduce": ("ring", "tree", "direct"),
    "all_gather": ("ring", "direct"),
    "reduce_scatter": ("ring", "direct"),
    "all_to_all": ("ring", "direct"),
    "broadcast": ("ring", "tree"),
}
"""For each kind, the algorithms that have a closed form."""


class Topology(Part):
    """How many devices there are: rank r sits on the r-th device, node after node.

    Attributes
    ----------
    devices_per_node, nodes
        All nodes together are the supernode.
    """

    devices_per_node: Ranks = 1
    nodes: Ranks = 1

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.devices_per_node * self.nodes

    def _check(self) -> None:
        if self.devices > MOST_RANKS:
            found = f"{self.devices:,}"
            raise FieldError(f"there are at most {MOST_RANKS:,} devices", found, "lower nodes", ("nodes",))


class Fabric(Part):
    """What joins devices with one another; collectives go over it.

    Attributes
    ----------
    scope
        Whom it joins: the devices of each ``node``, or of the ``supernode``.
    bandwidth_bytes_per_s
        Of one device on one plane, each way [B/s].
    planes
        Parallel planes; every transfer is spread over all of them.
    latency_ns
        Of one hop: what each step of a collective costs apart from its bytes [ns].
    achieved_bandwidth_fraction
        Share of the bandwidth that collectives reach.
    algorithms
        For a kind of collective, those that the machine's library has; ``auto`` is the fastest of them. A kind that is
        not listed may use all.
    chunk_bytes
        What a collective of two levels that goes across nodes here passes from level to level at a time, in a pipeline
        [B]; None: its levels run one after another.
    """

    scope: Literal["node", "supernode"] = "node"
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    planes: Few = 1
    latency_ns: Nanoseconds = Field(0, alias="latency")
    achieved_bandwidth_fraction: Fraction = Field(1.0, alias="achieved_bandwidth")
    algorithms: dict[CollectiveName, Annotated[tuple[AlgorithmName, ...], Field(min_length=1)]] = {}
    chunk_bytes: Annotated[Bytes, Field(gt=0)] | None = Field(None, alias="chunk")

    def choices(self, kind: str) -> tuple[AlgorithmName, ...]:
        """Algorithms among which ``auto`` takes the fastest for a kind of collective."""
        named = {str(name): algorithms for name, algorithms in self.algorithms.items()}
        return named.get(kind) or ALGORITHMS.get(kind, ("direct",))

    def _check(self) -> None:
        for kind, names in self.algorithms.items():
            unknown = next((name for name in names if name not in ALGORITHMS[kind]), None)
            if unknown is not None:
                must = f"the algorithms of {kind} are {', '.join(ALGORITHMS[kind])}"
                raise FieldError(must, repr(unknown), "remove it", ("algorithms", kind))


class OnChip(Part):
    """On-chip memory: in the profile for people, not simulated.

    Attributes
    ----------
    capacity_bytes
        Size [B].
    """

    capacity_bytes: Bytes = Field(alias="capacity")
