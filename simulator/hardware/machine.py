"""A whole machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field

from simulator.document import Document, Key
from simulator.hardware import staged
from simulator.hardware.allocator import Allocator
from simulator.hardware.compute import Compute, Host
from simulator.hardware.memory import Bus, Link, Tier
from simulator.hardware.topology import Fabric, OnChip, Topology
from simulator.units import FieldError, nearest


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
        return self.model_copy(update={"links": staged.resolved(links)})

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
        self.links.update(staged.resolved(self.links))
        for name, size in staged.room(self.links, self.tiers, self.topology).items():
            self.tiers[name]._staging_bytes = size
        self._check_devices()
        self._check_ways()

    def _check_devices(self) -> None:
        for name, fabric in self.fabrics.items():
            joined = self.topology.devices if fabric.scope == "supernode" else self.topology.devices_per_node
            if joined < 2:
                must = f"a fabric joins devices with one another (each {fabric.scope} has several)"
                do = "raise topology.devices_per_node, set its scope to supernode and raise topology.nodes"
                raise FieldError(must, "one device", f"{do}, or remove it", ("fabrics", name))
            if name in self.links:
                must, found = "a fabric and a link have different names", f"both {name!r}"
                raise FieldError(must, found, "rename one of them", ("fabrics", name))
        room = self.tiers[self.compute_tier].capacity_bytes
        for name, memory in self.on_chip.items():
            at = ("on_chip", name)
            if name in self.tiers:
                must = "a memory of the chip is not simulated, a tier is"
                raise FieldError(must, f"{name!r} as both", "remove one of them", at)
            if memory.capacity_bytes > room:
                found = f"{memory.capacity_bytes:,} B, and {room:,} B in {self.compute_tier}"
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
