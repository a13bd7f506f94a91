"""The hardware profile: tiers, links, buses, compute and the costs of the runtime.

One YAML document describes one machine as one of its devices sees it. Every figure in it is cited
(``sources``), or says why it was assumed (``assumed``) or what it was fitted to (``fitted``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from simulator.document import Document, Key, Part
from simulator.units import Bytes, BytesPerSecond, Capacity, FieldError, FlopsPerSecond, Nanoseconds, nearest

Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
"""A share in (0, 1]."""
Count = Annotated[int, Field(ge=1, strict=True)]
"""A whole number, at least 1."""

Capped = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.(out|in))?$")]
"""The name of a link, or of a port of a fabric."""


class Compute(Part):
    """The arithmetic of one device.

    Attributes
    ----------
    peak_flops
        Data type -> peak rate [FLOP/s].
    achieved_fraction
        Op class (``matmul``, ``attention``, ``vector`` ...) -> share of the peak that kernels of the class reach;
        ``default`` covers classes that are not listed.
    achieved_bandwidth_fraction
        Share of the compute tier's bandwidth that a memory-bound kernel reaches.
    launch_ns
        Fixed device time of each kernel [ns].
    """

    peak_flops: dict[Key, FlopsPerSecond] = Field(alias="peak", min_length=1)
    achieved_fraction: dict[Key, Fraction] = {"default": 1.0}
    achieved_bandwidth_fraction: Fraction = Field(1.0, alias="achieved_bandwidth")
    launch_ns: Nanoseconds = Field(0, alias="launch")


class FixedHost(Part):
    """What the host pays for a plan that was sunk to the device before the run.

    Attributes
    ----------
    launch_ns
        Once for each run of the compiled graph [ns].
    step_ns
        For each step [ns].
    """

    launch_ns: Nanoseconds = Field(0, alias="launch")
    step_ns: Nanoseconds = Field(0, alias="step")


class ReactiveHost(Part):
    """What the host pays for each step that a runtime decides while it runs [ns each].

    Attributes
    ----------
    inspect_ns
        Looking at the state before each compute.
    compute_ns, copy_ns, detach_ns
        Issuing a step of that kind.
    sync_ns
        Waiting for the device, on top of the wait itself.
    """

    inspect_ns: Nanoseconds = Field(0, alias="inspect")
    compute_ns: Nanoseconds = Field(0, alias="compute")
    copy_ns: Nanoseconds = Field(0, alias="copy")
    detach_ns: Nanoseconds = Field(0, alias="detach")
    sync_ns: Nanoseconds = Field(0, alias="sync")


class Host(Part):
    """The runtime on the host: what it pays for each step, and how far it may run ahead.

    Attributes
    ----------
    queue_depth
        Computes that may be issued and not yet started.
    fixed, reactive
        The costs under a fixed plan, and under one that is decided while it runs.
    """

    queue_depth: Count = 1024
    fixed: FixedHost = FixedHost()
    reactive: ReactiveHost = ReactiveHost()


class Tier(Part):
    """One level of memory.

    Attributes
    ----------
    scope
        Who has an instance of their own: each ``device``, each ``node``, or the ``supernode``.
    capacity_bytes
        Size [B]; ``inf`` where no limit is modelled.
    reserved_bytes
        What the framework context and the like take away from it [B].
    bandwidth_bytes_per_s
        Rate shared by kernels and copies [B/s]; None if kernels cannot address the tier.
    """

    scope: Literal["device", "node", "supernode"] = "device"
    capacity_bytes: Capacity = Field(alias="capacity")
    reserved_bytes: Bytes = Field(0, alias="reserved")
    bandwidth_bytes_per_s: BytesPerSecond | None = Field(None, alias="bandwidth")

    @property
    def usable_bytes(self) -> int | float:
        """Capacity less what is reserved [B]."""
        return self.capacity_bytes - self.reserved_bytes

    @model_validator(mode="after")
    def _reserve_is_a_part(self) -> Self:
        if self.reserved_bytes > self.capacity_bytes:
            found = f"{self.reserved_bytes:,} of {self.capacity_bytes:,} B"
            raise FieldError("what is reserved is part of the capacity", found, "lower it", ("reserved",))
        return self


class EfficiencyPoint(Part):
    """The share of a link's bandwidth that a copy of a given size reaches."""

    size_bytes: Bytes = Field(alias="size")
    fraction: Fraction


class Link(Part):
    """One direction between two tiers.

    Attributes
    ----------
    source, target
        Tier names.
    bandwidth_bytes_per_s
        Total rate of the link [B/s].
    latency_ns
        Fixed time of each transfer [ns]; it holds the channel but takes no bandwidth.
    channels
        DMA engines: transfers that can be under way at once.
    sharing
        ``fifo``: active channels share the link equally; ``fair``: max-min, so that what a capped transfer leaves
        goes to the others; ``servers``: each channel has its fixed part of the bandwidth.
    efficiency
        Points of a curve, by increasing size; between two points the share is linear in the logarithm of the size,
        outside it is that of the nearest point. None: every size reaches the full rate.
    """

    source: Key
    target: Key
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    latency_ns: Nanoseconds = Field(0, alias="latency")
    channels: Count = 1
    sharing: Literal["fifo", "fair", "servers"] = "fifo"
    efficiency: tuple[EfficiencyPoint, ...] = ()

    @model_validator(mode="after")
    def _sizes_increase(self) -> Self:
        sizes = [point.size_bytes for point in self.efficiency]
        if sizes != sorted(set(sizes)):
            found = ", ".join(f"{size:,} B" for size in sizes)
            raise FieldError("the sizes of the curve increase", found, "sort the points", ("efficiency",))
        return self


class Bus(Part):
    """A cap over several links together: a duplex limit, DDR bandwidth, the supply side of a pool.

    Attributes
    ----------
    links
        Names of the links it caps, and of ports of fabrics: ``<fabric>.out`` and ``<fabric>.in``.
    bandwidth_bytes_per_s
        The cap [B/s].
    scope
        Who has an instance of their own.
    """

    links: tuple[Capped, ...] = Field(min_length=1)
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    scope: Literal["device", "node", "supernode"] = "device"


class Topology(Part):
    """How many devices there are: rank r sits on the r-th device, node after node.

    Attributes
    ----------
    devices_per_node, nodes
        All nodes together are the supernode.
    """

    devices_per_node: Count = 1
    nodes: Count = 1

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.devices_per_node * self.nodes


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
    """

    scope: Literal["node", "supernode"] = "node"
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    planes: Count = 1
    latency_ns: Nanoseconds = Field(0, alias="latency")
    achieved_bandwidth_fraction: Fraction = Field(1.0, alias="achieved_bandwidth")


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

    def link_between(self, source: str, target: str) -> str | None:
        """Key of the first link from `source` to `target`, or None."""
        return next((n for n, link in self.links.items() if (link.source, link.target) == (source, target)), None)

    @model_validator(mode="after")
    def _compute_tier_is_addressed(self) -> Self:
        _check_name(self.compute_tier, self.tiers, "the compute tier is one of the tiers", ("compute_tier",))
        if self.tiers[self.compute_tier].bandwidth_bytes_per_s is None:
            at = ("tiers", self.compute_tier)
            raise FieldError("the compute tier has a bandwidth", "none", "add its bandwidth", at)
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
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
        return self

    @model_validator(mode="after")
    def _queues_share_channels(self) -> Self:
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
        return self

    @model_validator(mode="after")
    def _every_tier_is_reached(self) -> Self:
        there = _reached(self.compute_tier, [(link.source, link.target) for link in self.links.values()])
        back = _reached(self.compute_tier, [(link.target, link.source) for link in self.links.values()])
        for name in self.tiers:
            if name not in there and name not in back:
                must = f"links join every tier with the compute tier {self.compute_tier!r}"
                found = f"none to or from {name!r}"
                raise FieldError(must, found, "add a link, or remove the tier", ("tiers", name))
        return self


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
