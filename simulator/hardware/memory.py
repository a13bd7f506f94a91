"""Memories, and the links and buses that move bytes between them.

A *staged* link goes via several links; the tiers between store and forward chunks. A copy over links with rates ``r_1
.. r_n`` is cut into ``k`` equal chunks of at most the link's ``chunk``. Each link moves one chunk at a time; each tier
between has room for two, one that comes in while the other one goes out. So the links work in parallel, the narrowest
without a pause: it takes ``k c / r_min`` for ``k`` chunks. Before that, the first chunk passes the links before it;
after that, the last chunk passes the links behind it. In all

    latencies + *fill* + size / r_min,    fill = sum of c / r_i over all links but the narrowest.

With room for one chunk, neighbours would take turns; with room for more, nothing would be faster. The engine waits for
the latencies and the fill, and then lets all bytes flow over all links at once, each shared with its other users. If
the whole tensor were copied link after link, with room for it in the tiers between, the links' times would add up.

*Room.* A runtime allocates the two chunks once, as pinned buffers: each channel of the link reserves them, for each
device, in the tiers between (`Tier.staging_bytes`), whether a copy is under way or not. So no copy waits for them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PrivateAttr, StrictBool, StringConstraints

from simulator.document import Few, Key, Part, Share
from simulator.units import (
    Bytes,
    BytesPerSecond,
    Capacity,
    EnergyPerByte,
    Nanoseconds,
    PriceOfRoom,
    decimal,
    named_in,
    require,
)

Scope = Literal["device", "node", "supernode"]
"""Who has an instance of a tier or bus: each device, each node, or all devices together."""

Capped = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)?$")]
"""The name of a link, or of a port of a fabric."""


class Tier(Part):
    """One level of memory.

    Attributes
    ----------
    scope
        Who has an instance of it: each ``device``, each ``node``, or the ``supernode``.
    capacity_bytes
        Size [B]; ``inf`` where no limit is modelled.
    reserved_bytes
        Bytes that the framework's context and the like occupy [B].
    taken_fraction
        Share of the capacity that a framework takes, its reserved part included.
    lost_fraction
        Of the memory that is not reserved, the lost share: rounding of an allocator, and holes between places.
    bandwidth_bytes_per_s
        Bandwidth of the memory [B/s]. Of the compute tier: shared by kernels and copies. Of another tier: shared by all
        copies that begin or end there, and by those that pass through it, once in and once out.
    shared
        Of the compute tier: whether copies, and collectives, take its bandwidth from kernels even where these run on
        one stream. Where kernels run on several, they do on any machine.
    energy_fj_per_byte
        For the compute tier: energy of each byte that a kernel reads or writes, on top of the device's power [fJ].
    endurance_bytes
        Bytes that may be written to an instance before it wears out [B]: the TBW of an SSD.
    price_nusd_per_gb_month
        Price of room, on top of the device's price [billionths of a dollar for 10^9 bytes and 730 hours].
    """

    scope: Scope = "device"
    capacity_bytes: Capacity = Field(alias="capacity")
    reserved_bytes: Bytes = Field(0, alias="reserved")
    taken_fraction: Share = Field(1.0, alias="taken")
    lost_fraction: Annotated[float, Field(ge=0, lt=1, strict=True)] = Field(0.0, alias="lost")
    bandwidth_bytes_per_s: BytesPerSecond | None = Field(None, alias="bandwidth")
    shared: StrictBool = False
    energy_fj_per_byte: EnergyPerByte | None = Field(None, alias="energy")
    endurance_bytes: Annotated[Bytes, Field(gt=0)] | None = Field(None, alias="endurance")
    price_nusd_per_gb_month: PriceOfRoom | None = Field(None, alias="price")
    _staging_bytes: int = PrivateAttr(0)

    @property
    def staging_bytes(self) -> int:
        """Bytes that staged links reserve in it for chunks that pass through [B]."""
        return self._staging_bytes

    @property
    def usable_bytes(self) -> int | float:
        """What is taken of the capacity, less what is reserved, room for chunks that pass through, and losses [B]."""
        taken, kept = self._parts
        if self.capacity_bytes == math.inf:
            return math.inf
        return math.floor((math.floor(self.capacity_bytes * taken) - self.reserved_bytes - self._staging_bytes) * kept)

    def capacity_for(self, usable_bytes: int) -> int:
        """Return the capacity with which `usable_bytes` may be used [B]."""
        return math.ceil(self.held_bytes(usable_bytes) / self._parts[0])

    def held_bytes(self, used_bytes: int) -> int:
        """Return what is held where so much is used: with what is lost beside it, and what is reserved [B]."""
        return math.ceil(used_bytes / self._parts[1]) + self.reserved_bytes + self._staging_bytes

    @property
    def holds_more(self) -> bool:
        """Whether something is reserved in it, or lost beside places."""
        return bool(self.reserved_bytes or self.lost_fraction)

    @property
    def _parts(self) -> tuple[Fraction, Fraction]:
        """The share of the capacity that is taken, and the share of the rest that is not lost."""
        return decimal(self.taken_fraction), 1 - decimal(self.lost_fraction)

    def _check(self) -> None:
        found = f"{self.reserved_bytes:,} of {self.capacity_bytes:,} B"
        fits = self.reserved_bytes <= self.capacity_bytes * self.taken_fraction
        require(fits, "reserved memory is part of the capacity", found, "reserved", do="lower it")


class OnChip(Part):
    """On-chip memory: for the information of readers, not simulated.

    Attributes
    ----------
    capacity_bytes
        Size [B].
    """

    capacity_bytes: Bytes = Field(alias="capacity")


class EfficiencyPoint(Part):
    """The share of a link's bandwidth that a copy of a given size reaches.

    Attributes
    ----------
    size_bytes
        Size of the copy [B].
    fraction
        The share of the bandwidth that it reaches.
    """

    size_bytes: Bytes = Field(alias="size")
    fraction: Share


class Link(Part):
    """A way for copies from one tier to another: a wire, or *staged* via other links, chunk by chunk.

    Attributes
    ----------
    source
        Name of the tier that it copies from.
    target
        Name of the tier that it copies to.
    bandwidth_bytes_per_s
        Total bandwidth of the link [B/s]. A staged link may leave it out; it has at most the bandwidth of the links on
        its way.
    latency_ns
        Fixed time of each copy [ns]; it occupies the channel but no bandwidth. A staged link may leave it out; the
        default is the sum over the links on its way.
    via
        The links that a staged link goes over, from its source to its target.
    chunk_bytes
        Size of the chunks that a staged link stores and forwards [B].
    passes
        Lower tier that it joins -> how often each byte of its copies passes the memory there. 1 where none is stated; 3
        if it is first copied to another buffer.
    blocking
        Whether the host issues nothing more until a copy has ended, as with copies from pageable memory.
    loads_bytes_per_s
        Of a link into the compute tier: the bandwidth of kernels that read in place in its source [B/s]; None if they
        cannot.
    energy_fj_per_byte
        Energy of each byte that it carries, the memories at both ends included, on top of the device's power [fJ].
    channels
        DMA engines: how many copies can be under way at once.
    sharing
        ``fifo``: active channels share the bandwidth equally; ``fair``: max-min fair, so that the rest of a capped copy
        goes to the others; ``servers``: each channel has a fixed part of the bandwidth.
    efficiency
        Share of the bandwidth that a copy reaches, by increasing size: linear in the logarithm of the size between two
        points, constant beyond the first and the last. None: every size reaches the full bandwidth.
    """

    source: Key
    target: Key
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth", default_factory=lambda: math.inf)
    latency_ns: Nanoseconds = Field(0, alias="latency")
    channels: Few = 1
    sharing: Literal["fifo", "fair", "servers"] = "fifo"
    efficiency: tuple[EfficiencyPoint, ...] = ()
    via: tuple[Key, ...] = ()
    chunk_bytes: Bytes = Field(0, alias="chunk")
    passes: dict[Key, Few] = {}
    blocking: StrictBool = False
    loads_bytes_per_s: BytesPerSecond | None = Field(None, alias="loads")
    energy_fj_per_byte: EnergyPerByte | None = Field(None, alias="energy")
    _stages: tuple[Link, ...] = PrivateAttr(())
    _stated: Link | None = PrivateAttr(None)

    @property
    def stages(self) -> tuple[Link, ...]:
        """The links that it goes over; none if it is a wire itself."""
        return self._stages

    @property
    def servers(self) -> int:
        """Number of fixed, equal parts of its bandwidth: one for each channel, or 1 if channels share it."""
        return self.channels if self.sharing == "servers" else 1

    def passes_at(self, tier: str) -> int:
        """Return how often the bytes of a copy pass a tier's memory; staged ones do on the links of their way."""
        return self.passes.get(tier, 1) if tier in (self.source, self.target) and not self.via else 0

    def reached_fraction(self, size_bytes: int) -> float:
        """Return the share of the bandwidth that a copy of a given size reaches, from the efficiency curve."""
        points = self.efficiency
        if not points:
            return 1.0
        after = bisect_right([p.size_bytes for p in points], size_bytes)
        if after == 0 or after == len(points):
            return points[min(after, len(points) - 1)].fraction
        low, high = points[after - 1], points[after]
        span = math.log(high.size_bytes) - math.log(low.size_bytes)
        position = (math.log(size_bytes) - math.log(low.size_bytes)) / span
        return low.fraction + (high.fraction - low.fraction) * position

    def _check(self) -> None:
        stated = self.via or "bandwidth_bytes_per_s" in self.model_fields_set
        require(stated, "a link has a bandwidth, or goes via others", "neither", "bandwidth", do="add it")
        must, do = "a link that goes via others, and no other one, stores and forwards chunks", "say chunk and via"
        found = f"{self.chunk_bytes:,} B, via {', '.join(self.via) or 'none'}"
        require(bool(self.via) == bool(self.chunk_bytes), must, found, "chunk", do=do)
        sizes = [point.size_bytes for point in self.efficiency]
        must, found = "the sizes of the curve are above 0 B and increase", ", ".join(f"{size:,} B" for size in sizes)
        increase = 0 not in sizes and sizes == sorted(set(sizes))
        require(increase, must, found, "efficiency", do="sort the points")


class Bus(Part):
    """A wire that caps several links together: a duplex limit, DDR bandwidth, the supply side of a pool.

    Attributes
    ----------
    links
        Names of the links, and ports of fabrics (``<fabric>.out``, ``<fabric>.in``), that it caps.
    bandwidth_bytes_per_s
        The cap [B/s].
    scope
        Who has an instance of it: each ``device``, each ``node``, or the ``supernode``.
    """

    links: tuple[Capped, ...] = Field(min_length=1)
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    scope: Scope = "device"


_CHUNKS = 2
"""Chunks for which a tier between has room: one comes in while the other goes out."""


def with_stages(links: Mapping[str, Link]) -> dict[str, Link]:
    """Return the links, with the figures of staged ones completed from the links that they go via.

    Parameters
    ----------
    links
        The links by name.

    Raises
    ------
    FieldError
        If the links that a staged link goes via do not lead from its source to its target.
    """
    by_name = dict(links)
    for name, link in links.items():
        if link.via:
            stated = link._stated or link
            _check_way(stated, links, "links", name, "via")
            staged = by_name[name] = stated.model_copy()
            staged._stated, staged._stages = stated, tuple(links[stage] for stage in stated.via)
            rates = zip(stage_rates(staged), staged.stages, strict=True)
            carried = [rate * min(stated.channels, stage.servers) for rate, stage in rates]
            follows = {"bandwidth_bytes_per_s": min(stated.bandwidth_bytes_per_s, *carried)}
            if "latency_ns" not in stated.model_fields_set:
                follows["latency_ns"] = sum(stage.latency_ns for stage in staged.stages)
            staged.__dict__.update(follows)  # bypasses pydantic, which would count these fields as stated
    return by_name


def stage_rates(link: Link) -> list[int | float]:
    """Return the rate that one copy over a staged link gets on each link of its way, if nothing else uses that [B/s].

    A link on the way moves chunks on one of its channels, with the share of bandwidth that a chunk's size reaches.

    Parameters
    ----------
    link
        A staged link.
    """
    rates: list[int | float] = []
    for stage in link.stages:
        share = Fraction(stage.reached_fraction(link.chunk_bytes)) / stage.servers
        bandwidth = stage.bandwidth_bytes_per_s
        rates.append(bandwidth if bandwidth == math.inf else max(1, math.floor(bandwidth * share)))
    return rates


def _check_way(link: Link, links: Mapping[str, Link], *path: str) -> None:
    """Refuse a way unless its links are wires, and each begins where the one before it ends."""
    place = link.source
    for stage in link.via:
        named_in(stage, links, "a link goes via other links", *path)
        require(not links[stage].via, "a link goes via links that are wires", f"{stage!r}, which is none", *path)
        must, source = "the links that a link goes via connect", links[stage].source
        require(source == place, must, f"{stage!r} from {source!r} after {place!r}", *path)
        place = links[stage].target
    must = "a link goes via two others at least, which end at its target"
    require(len(link.via) > 1 and place == link.target, must, f"{', '.join(link.via)} to {place!r}", *path)
    alike = link.servers == link.channels or all(links[stage].sharing != "servers" for stage in link.via)
    must = "several channels over servers are servers, too"
    require(alike, must, f"sharing {link.sharing}", *path[:2], "sharing", do="write sharing: servers")


def reserve_chunks(links: Mapping[str, Link], tiers: Mapping[str, Tier], devices: Mapping[str, int]) -> None:
    """Reserve room in each tier for the chunks of staged links that pass through it.

    Parameters
    ----------
    links, tiers
        Those of the machine.
    devices
        Scope -> how many devices share a tier of that scope; each has its own chunks there.

    Raises
    ------
    FieldError
        If a tier has no room for them.
    """
    for name, tier in tiers.items():
        through = [link_name for link_name, link in links.items() for stage in link.stages[1:] if stage.source == name]
        chunks = sum(_CHUNKS * links[link].chunk_bytes * links[link].channels for link in through) * devices[tier.scope]
        room = tier.capacity_bytes - tier.reserved_bytes
        must = f"the tier {name!r} has room for the chunks that pass through it"
        found = f"{chunks:,} B of chunks of {' and '.join(dict.fromkeys(through))} and {room:,} B of room"
        do = f"make it at least {chunks + tier.reserved_bytes:,} B, or the chunks smaller or fewer"
        require(chunks <= room, must, found, "tiers", name, "capacity", do=do)
        tier._staging_bytes = chunks


Place = TypeVar("Place", int, str)
"""A tier or a rank, by number or by name."""


def reachable(start: Place, edges: Sequence[tuple[Place, Place]]) -> set[Place]:
    """Find the places that can be reached from `start` along the edges, itself included."""
    reached, last = {start}, 0
    while len(reached) > last:
        last = len(reached)
        reached.update(target for source, target in edges if source in reached)
    return reached
