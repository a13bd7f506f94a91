"""The hardware profile: a document that describes a machine as one of its devices sees it.

It states tiers, links, buses, compute, the costs of the runtime, and how devices are joined. Every figure is cited
(``sources``), or the document says why it was assumed (``assumed``) or what it was fitted to (``fitted``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field

from simulator.document import Document, Few, Key, Part, Share
from simulator.hardware.device import (
    Allocator,
    Compaction,
    Compute,
    DevicePace,
    FixedHost,
    Host,
    HostCompute,
    Rates,
    ReactiveHost,
    ServingHost,
    Topology,
    check_paces,
    span,
)  # fmt: skip
from simulator.hardware.memory import Bus, EfficiencyPoint, Link, OnChip, Tier, reachable, reserve_chunks, with_stages
from simulator.units import Bytes, BytesPerSecond, Nanoseconds, human, named_in, require

__all__ = [
    "Allocator", "Bus", "Compaction", "Compute", "DevicePace", "EfficiencyPoint", "Fabric", "FixedHost", "Hardware",
    "Host", "HostCompute", "Link", "OnChip", "Rates", "ReactiveHost", "ServingHost", "Tier", "Topology",
    "asked_bytes_per_s", "reachable", "span", "without_effect",
]  # fmt: skip

CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
"""Collectives for which there are several algorithms."""
AlgorithmName = Literal["ring", "tree", "direct"]
"""Algorithms of a collective on one fabric."""

ALGORITHMS: dict[str, tuple[AlgorithmName, ...]] = {
    "all_reduce": ("ring", "tree", "direct"),
    "all_gather": ("ring", "direct"),
    "reduce_scatter": ("ring", "direct"),
    "all_to_all": ("ring", "direct"),
    "broadcast": ("ring", "tree"),
}
"""Collective -> the algorithms whose time has a closed form."""


class Fabric(Part):
    """A network that joins devices, for collectives.

    Attributes
    ----------
    scope
        The devices that it joins: those of each ``node``, or of the ``supernode``.
    bandwidth_bytes_per_s
        Bandwidth of one device on one plane, each way [B/s].
    planes
        Parallel planes; every transfer is spread over all of them.
    latency_ns
        Time of one hop: the cost of each step of a collective apart from its bytes [ns].
    achieved_bandwidth_fraction
        Share of the bandwidth that collectives reach.
    algorithms
        Kind of collective -> the algorithms that the machine's library has; ``auto`` takes the fastest. A kind that is
        not listed may use all.
    chunk_bytes
        Size of the chunks that pipeline the two levels of a hierarchical collective whose upper level is this fabric
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
        """Return the algorithms from which ``auto`` takes the fastest for a kind of collective."""
        named = {str(name): algorithms for name, algorithms in self.algorithms.items()}
        return named.get(kind) or ALGORITHMS.get(kind, ("direct",))

    def _check(self) -> None:
        for kind, names in self.algorithms.items():
            for name in names:
                must = f"the algorithms of {kind} are {', '.join(ALGORITHMS[kind])}"
                require(name in ALGORITHMS[kind], must, repr(name), "algorithms", kind, do="remove it")


class Hardware(Document):
    """A machine, as one of its devices sees it.

    Attributes
    ----------
    compute_tier
        Name of the tier that kernels work in.
    compute
        The device's arithmetic.
    host
        The costs of the runtime.
    host_compute
        The cores of the host, on which ops of the device ``host`` run; None: they run nothing.
    tiers
        Memories by name; plans and traces number them in this order.
    links
        Ways for copies by name; plans and traces number them in this order.
    buses
        Wires that several links or ports share, by name.
    copy_queues
        Name -> links whose copies wait in one queue, in issue order, and share its channels (such as one copy stream
        for both directions); all of them state the same number of channels. Every other link has a queue of its own.
    topology
        Number of devices.
    fabrics
        Networks between devices, by name. Each device has two ports on each, ``<name>.out`` and ``<name>.in``, which a
        bus may cap together with links.
    ranks
        Rank (``5``), or ranks (``8-15``) -> the pace of their devices, where it is not that of `compute`.
    on_chip
        Memories on the chip itself (SRAM, caches) by name; not simulated.
    allocator
        Figures of the allocator, for rows that name another one than ``ideal``.
    """

    schema_: Literal["hosim/hardware/1"] = Field("hosim/hardware/1", alias="schema")
    compute_tier: Key
    compute: Compute
    host: Host = Host()
    host_compute: HostCompute | None = None
    tiers: dict[Key, Tier] = Field(min_length=1)
    links: dict[Key, Link] = {}
    buses: dict[Key, Bus] = {}
    copy_queues: dict[Key, Annotated[tuple[Key, ...], Field(min_length=1)]] = {}
    topology: Topology = Topology()
    fabrics: dict[Key, Fabric] = {}
    ranks: dict[Key, DevicePace] = {}
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
    def compute_tier_id(self) -> int:
        """Id of the compute tier."""
        return list(self.tiers).index(self.compute_tier)

    @property
    def shares_memory(self) -> bool:
        """Whether copies take bandwidth of the compute tier from kernels of one stream, too."""
        return self.tiers[self.compute_tier].shared

    @property
    def host_tier_id(self) -> int:
        """Id of the tier that the cores of the host work in; that of the compute tier if there are none."""
        return list(self.tiers).index(self.host_compute.tier if self.host_compute else self.compute_tier)

    @property
    def hops(self) -> tuple[tuple[int, int], ...]:
        """The ids of the two tiers that each link joins, the source first; in id order."""
        tier = list(self.tiers).index
        return tuple((tier(link.source), tier(link.target)) for link in self.links.values())

    @property
    def roles(self) -> dict[str, int]:
        """Ids of tiers by role in plans for any machine: ``compute``, and ``below``, to which its first link leads."""
        first = next((target for source, target in self.hops if source == self.compute_tier_id), None)
        return {"compute": self.compute_tier_id} | ({} if first is None else {"below": first})

    @property
    def loads(self) -> dict[int, int]:
        """Tier -> link (ids), the first over which kernels load from there; tiers in order."""
        over = enumerate(zip(self.hops, self.links.values(), strict=True))
        stated = [(hop[0], index) for index, (hop, link) in over if link.loads_bytes_per_s is not None]
        return dict(sorted(dict(reversed(stated)).items()))

    @property
    def queues(self) -> tuple[tuple[str, ...], ...]:
        """The links of each copy queue: shared queues first, then every other link alone."""
        shared = tuple(self.copy_queues.values())
        return (*shared, *((name,) for name in self.links if not any(name in queue for queue in shared)))

    @property
    def states_energy(self) -> bool:
        """Whether it states a power, or the energy of an operation or a byte."""
        compute, tier = self.compute, self.tiers[self.compute_tier]
        stated = (compute.power_mw, compute.energy_fj_per_flop, tier.energy_fj_per_byte)
        return {*stated, *(link.energy_fj_per_byte for link in self.links.values())} != {None}

    @property
    def states_prices(self) -> bool:
        """Whether it states a price of a device or of room."""
        return {self.compute.price_uusd_per_h, *(t.price_nusd_per_gb_month for t in self.tiers.values())} != {None}

    @property
    def unread(self) -> dict[str, str]:
        """Pattern of paths to figures that no run on this machine reads -> why."""
        others = [name for name in self.tiers if name != self.compute_tier]
        energies = {f"tiers.{name}.energy": "the energy of a copy is that of its link" for name in others}
        free = [name for name, of in self.links.items() if {of.source, of.target}.isdisjoint(self.memories.values())]
        passes = {f"links.{name}.passes*": "no lower tier that it joins states a bandwidth" for name in free}
        single = [f"links.{name}.sharing" for name, link in self.links.items() if link.channels == 1]
        sharing = dict.fromkeys(single, "one copy at a time shares with no other")
        return {**energies, **passes, **sharing, "on_chip.*": "it is not simulated"}

    @property
    def memories(self) -> dict[str, str]:
        """Name among `caps` -> lower tier that states a bandwidth; no bus has a dot in its name."""
        stated = [name for name, tier in self.tiers.items() if tier.bandwidth_bytes_per_s is not None]
        return {f"memory.{name}": name for name in stated if name != self.compute_tier}

    @property
    def caps(self) -> dict[str, Bus]:
        """Buses by name, and `memories` as such: each over the links that begin or end there, as often as they pass."""
        memories = {}
        for cap, tier in self.memories.items():
            links = tuple(name for name, link in self.links.items() for _ in range(link.passes_at(tier)))
            rate, scope = self.tiers[tier].bandwidth_bytes_per_s or math.inf, self.tiers[tier].scope
            memories[cap] = Bus.model_construct(links=links, bandwidth_bytes_per_s=rate, scope=scope)
        return {**self.buses, **memories}

    def passing(self, names: Iterable[str]) -> dict[str, int]:
        """Return how often a copy over each link passes these links or ports; staged links that go via them count."""
        passed = Counter(names)
        for name, link in self.links.items():
            if times := sum(passed[stage] for stage in link.via):
                passed[name] += times
        return {**passed}

    def wires(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the links without staged ones that go via another of them: the wires that all bytes pass."""
        links = tuple(names)
        return tuple(name for name in links if set(links).isdisjoint(self.links[name].via))

    def devices(self, ranks: int) -> list[Self]:
        """Return the machine as each rank sees it, with the rates of its own device; it is one object for like ones."""
        of_ranks, of_pace = [self] * ranks, dict[DevicePace, Self]()
        for key, pace in self.ranks.items():
            if pace not in of_pace and pace != DevicePace():
                compute, memory = pace.of(self.compute, self.tiers[self.compute_tier])
                tiers = {**self.tiers, self.compute_tier: memory}
                of_pace[pace] = self.model_copy(update={"compute": compute, "tiers": tiers, "ranks": {}})
            for rank in filter(range(ranks).__contains__, span(key)):
                of_ranks[rank] = of_pace.get(pace, self)
        return of_ranks

    @property
    def has_like_memories(self) -> bool:
        """Whether the compute tiers of all devices have the same capacity."""
        return all(pace.capacity == 1 for pace in self.ranks.values())

    def rooms(self, ranks: int, budget_bytes: int | float | None = None) -> tuple[int | float, ...]:
        """Return what each rank may use of its compute tier: all but what is reserved, or at most the budget [B]."""
        most = math.inf if budget_bytes is None else budget_bytes
        return tuple([min(most, device.tiers[self.compute_tier].usable_bytes) for device in self.devices(ranks)])

    def with_links(self, links: dict[str, Link]) -> Self:
        """Return the machine with other links; figures of staged links follow from those that they go via."""
        return self.model_copy(update={"links": with_stages(links)})

    def _check(self) -> None:
        named_in(self.compute_tier, self.tiers, "the compute tier is one of the tiers", "compute_tier")
        tier, keys = self.tiers[self.compute_tier], ("tiers", self.compute_tier)
        require(tier.bandwidth_bytes_per_s is not None, "the compute tier has a bandwidth", "none", *keys, do="add it")
        must = "each device has a compute tier of its own"
        require(tier.scope == "device", must, f"scope {tier.scope}", *keys, "scope", do="set it to device")
        odd = next((name for name, lower in self.tiers.items() if lower.shared and name != self.compute_tier), "")
        must = "kernels share the memory of the compute tier, no other"
        require(not odd, must, "true", "tiers", odd, "shared", do="remove it")
        if self.host_compute is not None:
            self._check_host(self.host_compute.tier)
        for name, link in self.links.items():
            for end in ("source", "target"):
                named_in(getattr(link, end), self.tiers, "a link joins two tiers", "links", name, end)
            must = "a link joins two different tiers"
            require(link.source != link.target, must, f"{link.source!r} twice", "links", name, do="change one end")
            fits = link.loads_bytes_per_s is None or (link.target == self.compute_tier and not link.via)
            must = "kernels load over a wire into the compute tier"
            require(fits, must, f"one into {link.target}", "links", name, "loads", do="remove it")
            for passed in link.passes:
                below = {link.source, link.target} - {self.compute_tier} if not link.via else set[str]()
                must = "passes name lower tiers that the link joins, of no staged link"
                named_in(passed, below, must, "links", name, "passes")
        capped = (*self.links, *(f"{name}.{way}" for name in self.fabrics for way in ("out", "in")))
        for name, bus in self.buses.items():
            for link_name in bus.links:
                named_in(link_name, capped, "a bus caps links and ports of fabrics", "buses", name, "links")
            once = len(set(bus.links)) == len(bus.links)
            require(once, "a bus names each link once", ", ".join(bus.links), "buses", name, "links")
        self.links.update(with_stages(self.links))
        reserve_chunks(self.links, self.tiers, self.topology.sharing)
        for name, fabric in self.fabrics.items():
            several = self.topology.sharing[fabric.scope] > 1
            must = f"a fabric joins devices with one another (each {fabric.scope} has several)"
            do = "raise topology.devices_per_node, or set its scope to supernode and raise topology.nodes"
            require(several, must, "one device", "fabrics", name, do=do)
            must = "a fabric and a link have different names"
            require(name not in self.links, must, f"both {name!r}", "fabrics", name)
        self._check_queues()
        check_paces(self.ranks, tier, self.topology.devices)
        ends = [(link.source, link.target) for link in self.links.values()]
        joined = reachable(self.compute_tier, ends) | reachable(self.compute_tier, [end[::-1] for end in ends])
        for name in self.tiers:
            must = f"links join every tier with the compute tier {self.compute_tier!r}"
            require(name in joined, must, f"none to or from {name!r}", "tiers", name, do="add one, or remove the tier")

    def _check_host(self, tier: str) -> None:
        """Refuse cores that work in no tier, in the compute tier, or in one whose bandwidth is not known."""
        named_in(tier, self.tiers, "the cores of the host work in one of the tiers", "host_compute", "tier")
        must, do = "the cores of the host work in another tier than the compute tier", "name that of the host"
        require(tier != self.compute_tier, must, repr(tier), "host_compute", "tier", do=do)
        must = "the tier that the cores of the host work in has a bandwidth"
        require(self.tiers[tier].bandwidth_bytes_per_s is not None, must, "none", "tiers", tier, do="add it")

    def _check_queues(self) -> None:
        waiting = Counter(link for queue in self.copy_queues.values() for link in queue)
        for name, queue in self.copy_queues.items():
            for link in queue:
                named_in(link, self.links, "a copy queue serves links", "copy_queues", name)
                require(waiting[link] == 1, "a link waits in one queue", f"{link!r} twice", "copy_queues", name)
            channels = [self.links[link].channels for link in queue]
            must, found = "the links of a queue have the same channels", ", ".join(map(str, channels))
            require(len(set(channels)) == 1, must, found, "copy_queues", name)


def without_effect(hardware: Hardware, budget_bytes: int | float | None, keys: Collection[str]) -> list[str]:
    """Say which figures that were set have no effect because something else is narrower.

    Parameters
    ----------
    hardware
        The machine with all changes.
    budget_bytes
        The scenario's budget of the compute tier [B]; None if it has none.
    keys
        The fields that were set: dotted paths, each part of which may be a pattern.

    Returns
    -------
    list of str
        A sentence for each limit.
    """
    sentences, memories = list[str](), hardware.memories

    def tell(field: str, value: int | float, other: str, limit: int | float, unit: str = "B/s") -> None:
        is_left, way = field.endswith(".reserved"), "less" if field.endswith(".reserved") else "more"
        if any(fnmatchcase(field, key) and field.count(".") == key.count(".") for key in keys):
            limits = (
                f"{field} {'leaves' if is_left else 'is'} {human(value, unit)}, but {other} is {human(limit, unit)}"
            )
            sentences.append(f"{limits}: set both, as {way} of one changes nothing.")

    for bus_name, bus in hardware.caps.items():
        of = f"tiers.{memories[bus_name]}" if bus_name in memories else f"buses.{bus_name}"
        field, rate = f"{of}.bandwidth", bus.bandwidth_bytes_per_s
        for name in dict.fromkeys(bus.links):
            if (link := hardware.links.get(name)) is None:
                continue
            least = min((point.fraction for point in link.efficiency), default=1.0)
            if link.bandwidth_bytes_per_s * (least / link.servers) >= rate:  # one copy of any size fills the bus
                tell(f"links.{name}.bandwidth", link.bandwidth_bytes_per_s, field, rate)
        asked, cores = asked_bytes_per_s(hardware, bus), hardware.host_compute
        if asked <= rate and (cores is None or memories.get(bus_name) != cores.tier):
            tell(field, rate, "the sum of its links", asked)
    usable = hardware.tiers[hardware.compute_tier].usable_bytes
    if budget_bytes is not None and budget_bytes < usable:
        for field in ("capacity", "reserved"):
            tell(f"tiers.{hardware.compute_tier}.{field}", usable, "the scenario's budget", budget_bytes, "B")
    return sentences


def asked_bytes_per_s(hardware: Hardware, bus: Bus) -> int | float:
    """Return the most that the links of a bus carry together, over all devices that share it [B/s].

    It is ``inf`` if a port of a fabric is among them.
    """
    links = [hardware.links.get(name) for name in bus.links]
    return hardware.topology.sharing[bus.scope] * sum(
        math.inf if link is None else link.bandwidth_bytes_per_s for link in links
    )
