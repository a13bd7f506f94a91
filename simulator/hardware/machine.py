"""A whole machine: how many devices there are, what joins them, and which of its figures have no effect."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field

from simulator.document import MOST_RANKS, Document, Few, Key, Part, Ranks, Share
from simulator.hardware.device import Allocator, Compute, Host
from simulator.hardware.memory import Bus, Link, Tier
from simulator.hardware.staged import resolved, room
from simulator.units import Bytes, BytesPerSecond, FieldError, Nanoseconds, human, nearest

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

    @property
    def sharing(self) -> dict[str, int]:
        """Scope -> how many devices share what each of that scope has one of."""
        return {"device": 1, "node": self.devices_per_node, "supernode": self.devices}

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
    achieved_bandwidth_fraction: Share = Field(1.0, alias="achieved_bandwidth")
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


class Hardware(Document):
    """A machine, as one of its devices sees it.

    Attributes
    ----------
    compute_tier
        Name of the tier that kernels work in.
    compute, host
        The device's arithmetic and the costs of the runtime.
    tiers, links, buses
        By name; the order of the document is the order of ids in plans and traces.
    copy_queues
        By name, links whose transfers wait in one queue, in issue order, for the channels that these links then share
        (one copy stream for both directions); all of them have the same number of channels. Each other link has a
        queue of its own.
    topology
        How many devices there are.
    fabrics
        By name, what joins devices with one another. Each has two ports a device, ``<name>.out`` and ``<name>.in``,
        which a bus may cap together with links.
    on_chip
        By name, memories of the chip itself (SRAM, caches), for people.
    allocator
        How addresses of the compute tier are given out in rows that name another allocator than ``ideal``.
    """

    schema_: Literal["hosim/hardware/1"] = Field("hosim/hardware/1", alias="schema")
    compute_tier: Key
    compute: Compute
    host: Host = Host()
    tiers: dict[Key, Tier] = Field(min_length=1)
    links: dict[Key, Link] = {}
    buses: dict[Key, Bus] = {}
    copy_queues: dict[Key, Annotated[tuple[Key, ...], Field(min_length=1)]] = {}
    topology: Topology = Topology()
    fabrics: dict[Key, Fabric] = {}
    on_chip: dict[Key, OnChip] = {}
    allocator: Allocator = Allocator()

    @property
    def tier_names(self) -> tuple[str, ...]:
        """Tier names in id order."""
        return tuple(self.tiers)

    @property
    def link_names(self) -> tuple[str, ...]:
        """Link names in id order."""
        return tuple(self.links)

    @property
    def capped(self) -> tuple[str, ...]:
        """What a bus may cap: links, and the ports of fabrics."""
        return (*self.links, *(f"{name}.{way}" for name in self.fabrics for way in ("out", "in")))

    @property
    def queues(self) -> tuple[tuple[str, ...], ...]:
        """Links that share a queue and its channels, each link in one: shared queues first, then each other link."""
        shared = tuple(self.copy_queues.values())
        return (*shared, *((name,) for name in self.links if not any(name in queue for queue in shared)))

    def passing(self, names: Iterable[str]) -> dict[str, int]:
        """Links whose copies pass these links or ports, and how often each does: also those that go via them."""
        found = dict.fromkeys(names, 1)
        for name, link in self.links.items():
            times = sum(1 for stage in link.via if stage in found)
            if times:
                found[name] = found.get(name, 0) + times
        return found

    def wires(self, names: Iterable[str]) -> tuple[str, ...]:
        """Of these links those that all their bytes pass in the end: without what goes via another of them."""
        known = tuple(names)
        return tuple(name for name in known if set(known).isdisjoint(self.links[name].via))

    def staging(self, tier: str) -> tuple[str, ...]:
        """Links that keep room in a tier for the chunks that pass through it."""
        passing = ((name, [stage.source for stage in link.stages[1:]]) for name, link in self.links.items())
        return tuple(name for name, between in passing if tier in between)

    def with_links(self, links: dict[str, Link]) -> Self:
        """The machine with other figures for its links; what goes via them follows."""
        return self.model_copy(update={"links": resolved(links)})

    def _check(self) -> None:
        _check_name(self.compute_tier, self.tiers, "the compute tier is one of the tiers", ("compute_tier",))
        if self.tiers[self.compute_tier].bandwidth_bytes_per_s is None:
            at = ("tiers", self.compute_tier)
            raise FieldError("the compute tier has a bandwidth", "none", "add its bandwidth", at)
        if (scope := self.tiers[self.compute_tier].scope) != "device":
            must, where = "each device has a compute tier of its own", ("tiers", self.compute_tier, "scope")
            raise FieldError(must, f"scope {scope}", "set it to device", where)
        for name, link in self.links.items():
            for end in ("source", "target"):
                _check_name(getattr(link, end), self.tiers, "a link joins two tiers", ("links", name, end))
            if link.source == link.target:
                found = f"{link.source!r} twice"
                raise FieldError("a link joins two different tiers", found, "change one end", ("links", name))
        for name, bus in self.buses.items():
            for known in bus.links:
                _check_name(known, self.capped, "a bus caps links and ports of fabrics", ("buses", name, "links"))
            if len(set(bus.links)) < len(bus.links):
                must, found = "a bus names each link once", ", ".join(bus.links)
                raise FieldError(must, found, "remove the repetition", ("buses", name, "links"))
        self.links.update(resolved(self.links))
        for name, size in room(self.links, self.tiers, self.topology.sharing).items():
            self.tiers[name]._staging_bytes = size
        self._check_devices()
        self._check_ways()

    def _check_devices(self) -> None:
        for name, fabric in self.fabrics.items():
            if self.topology.sharing[fabric.scope] < 2:
                must = f"a fabric joins devices with one another (each {fabric.scope} has several)"
                do = "raise topology.devices_per_node, set its scope to supernode and raise topology.nodes"
                raise FieldError(must, "one device", f"{do}, or remove it", ("fabrics", name))
            if name in self.links:
                must, found = "a fabric and a link have different names", f"both {name!r}"
                raise FieldError(must, found, "rename one of them", ("fabrics", name))
        capacity_bytes = self.tiers[self.compute_tier].capacity_bytes
        for name, memory in self.on_chip.items():
            at = ("on_chip", name)
            if name in self.tiers:
                must = "a memory of the chip is not simulated, a tier is"
                raise FieldError(must, f"{name!r} as both", "remove one of them", at)
            if memory.capacity_bytes > capacity_bytes:
                found = f"{memory.capacity_bytes:,} B, and {capacity_bytes:,} B in {self.compute_tier}"
                raise FieldError("a memory of the chip is smaller than the compute tier", found, "correct its unit", at)

    def _check_ways(self) -> None:
        taken: dict[str, str] = {}
        for name, queue in self.copy_queues.items():
            at = ("copy_queues", name)
            for link in queue:
                _check_name(link, self.links, "a copy queue serves links", at)
                if link in taken:
                    found = f"{link!r} in {taken[link]} and {name}" if taken[link] != name else f"{link!r} twice"
                    raise FieldError("a link waits in one queue", found, "remove it from one", at)
                taken[link] = name
            channels = [self.links[link].channels for link in queue]
            if len(set(channels)) > 1:
                must, found = "the links of a queue have the same channels", ", ".join(map(str, channels))
                raise FieldError(must, found, "give them the same number of channels", at)
        there = _reached(self.compute_tier, [(link.source, link.target) for link in self.links.values()])
        back = _reached(self.compute_tier, [(link.target, link.source) for link in self.links.values()])
        for name in self.tiers:
            if name not in there and name not in back:
                must = f"links join every tier with the compute tier {self.compute_tier!r}"
                found = f"none to or from {name!r}"
                raise FieldError(must, found, "add a link, or remove the tier", ("tiers", name))


def _check_name(name: str, known: Iterable[str], must: str, at: tuple[str, ...]) -> None:
    names = tuple(known)
    if name not in names:
        raise FieldError(must, repr(name), nearest(name, names), at)


def _reached(start: str, edges: list[tuple[str, str]]) -> set[str]:
    reached, frontier = {start}, [start]
    while frontier:
        tier = frontier.pop()
        new = [target for source, target in edges if source == tier and target not in reached]
        reached.update(new)
        frontier += new
    return reached


def without_effect(hardware: Hardware, budget_bytes: int | float | None, keys: Collection[str]) -> list[str]:
    """Say which of the figures that were set change nothing beyond a limit, and what that is.

    Parameters
    ----------
    hardware
        The machine with all that was set.
    budget_bytes
        What a scenario lets plans use of the compute tier [B]; None if it says nothing.
    keys
        What was set: dotted paths, each part of which may be a pattern.

    Returns
    -------
    list of str
        A sentence for each limit.
    """

    def is_set(*path: str) -> bool:
        parts = (key.split(".") for key in keys)
        return any(
            len(part) == len(path) and all(fnmatchcase(one, pattern) for one, pattern in zip(path, part, strict=True))
            for part in parts
        )

    links = [name for name in hardware.links if is_set("links", name, "bandwidth")]
    said = list(_links_over_buses(hardware, links))
    said += _buses_over_links(hardware, [name for name in hardware.buses if is_set("buses", name, "bandwidth")])
    tier = hardware.compute_tier
    if budget_bytes is not None and is_set("tiers", tier, "capacity"):
        usable = hardware.tiers[tier].usable_bytes
        if budget_bytes < usable:
            said.append(
                f"tiers.{tier}.capacity leaves {human(usable, 'B')}, but the scenario's budget lets plans use "
                f"{human(budget_bytes, 'B')}: more changes nothing, unless the budget is set as well."
            )
    return said


def asked_bytes_per_s(hardware: Hardware, bus: Bus) -> int | float:
    """What the links of a bus carry at most together, of all devices that share it [B/s].

    Endless if a port of a fabric is among them.
    """
    links = [hardware.links.get(name) for name in bus.links]
    return hardware.topology.sharing[bus.scope] * sum(
        math.inf if link is None else link.bandwidth_bytes_per_s for link in links
    )


def _links_over_buses(hardware: Hardware, names: Collection[str]) -> Iterator[str]:
    for bus_name, bus in hardware.buses.items():
        over = [name for name in names if name in bus.links and _fills(hardware.links[name], bus)]
        if over:
            fields = " and ".join(f"links.{name}.bandwidth" for name in over)
            rates = " and ".join({human(hardware.links[name].bandwidth_bytes_per_s, "B/s"): None for name in over})
            is_, they = ("is", "it goes") if len(over) == 1 else ("are", "they go")
            yield (
                f"{fields} {is_} {rates}, but buses.{bus_name}, which {they} over, carries "
                f"{human(bus.bandwidth_bytes_per_s, 'B/s')}: more changes nothing, unless "
                f"buses.{bus_name}.bandwidth is set as well."
            )


def _fills(link: Link, bus: Bus) -> bool:
    """Whether a single copy of any size fills the bus, on one channel."""
    least = min((point.fraction for point in link.efficiency), default=1.0)
    share = least / link.channels if link.sharing == "servers" else least
    return link.bandwidth_bytes_per_s * share >= bus.bandwidth_bytes_per_s


def _buses_over_links(hardware: Hardware, names: Collection[str]) -> Iterator[str]:
    for name in names:
        bus, asked = hardware.buses[name], asked_bytes_per_s(hardware, hardware.buses[name])
        if asked <= bus.bandwidth_bytes_per_s:
            yield (
                f"buses.{name}.bandwidth is {human(bus.bandwidth_bytes_per_s, 'B/s')}, but its links carry at most "
                f"{human(asked, 'B/s')} together: more changes nothing."
            )
