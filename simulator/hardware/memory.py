"""Memories, and what moves bytes between them.

A *staged* link is a way over several links, stored and forwarded chunk by chunk in the tiers between. A copy over links
with rates ``r_1 .. r_n`` is cut into ``k`` equal chunks of at most the link's ``chunk``. Each link moves one chunk at a
time; a tier between has room for two, one that comes in while the other one goes out. So the links work side by side,
the narrowest of them without a pause: ``k`` chunks take its time ``k c / r_min``, before which one chunk passes the
links before it, and after which one passes those behind it. In all

    latencies + *fill* + size / r_min,    fill = sum of c / r_i over all links but the narrowest.

With room for one chunk, neighbours would take turns; with room for more, nothing would be faster. The engine lets the
latencies and the fill pass, and then all bytes flow at once over all links of the way, sharing each with whoever else
uses it. Copies one link after another, with the whole tensor in the tier between, take the sum of the links' times.

*Room.* The two chunks are a pinned area that a runtime makes once: each channel of the link keeps it, for each device,
from the tiers between (`Tier.staging_bytes`), whether a copy is under way or not. So a copy never waits for it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, StringConstraints

from simulator.document import Few, Key, Part, Share
from simulator.units import Bytes, BytesPerSecond, Capacity, EnergyPerByte, Nanoseconds, PriceOfRoom, nearest, require

Scope = Literal["device", "node", "supernode"]
"""Owners of an instance: each device, each node, or all together."""

Capped = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)?$")]
"""The name of a link, or of a port of a fabric."""


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
    energy_fj_per_byte
        Of the compute tier, what a byte takes that a kernel reads or writes there, on top of the device's power [fJ].
    endurance_bytes
        What may be written to an instance before it is worn [B]: the TBW of an SSD.
    price_nusd_per_gb_month
        What room costs, on top of the device's price [billionths of a dollar for 10^9 bytes and 730 hours].
    """

    scope: Scope = "device"
    capacity_bytes: Capacity = Field(alias="capacity")
    reserved_bytes: Bytes = Field(0, alias="reserved")
    bandwidth_bytes_per_s: BytesPerSecond | None = Field(None, alias="bandwidth")
    energy_fj_per_byte: EnergyPerByte | None = Field(None, alias="energy")
    endurance_bytes: Annotated[Bytes, Field(gt=0)] | None = Field(None, alias="endurance")
    price_nusd_per_gb_month: PriceOfRoom | None = Field(None, alias="price")
    _staging_bytes: int = PrivateAttr(0)

    @property
    def staging_bytes(self) -> int:
        """Room that staged links keep of it for the chunks that pass through [B]."""
        return self._staging_bytes

    @property
    def usable_bytes(self) -> int | float:
        """Capacity less what is reserved, and less the room for chunks that pass through [B]."""
        return self.capacity_bytes - self.reserved_bytes - self._staging_bytes

    def capacity_for(self, usable_bytes: int) -> int:
        """Return the capacity of which so much may be used [B]."""
        return usable_bytes + self.reserved_bytes + self._staging_bytes

    def _check(self) -> None:
        found = f"{self.reserved_bytes:,} of {self.capacity_bytes:,} B"
        fits = self.reserved_bytes <= self.capacity_bytes
        require(fits, "what is reserved is part of the capacity", found, "reserved", do="lower it")


class EfficiencyPoint(Part):
    """The share of a link's bandwidth that a copy of a given size reaches.

    Attributes
    ----------
    size_bytes
        Size of the copy [B].
    fraction
        Its share of the bandwidth.
    """

    size_bytes: Bytes = Field(alias="size")
    fraction: Share


class Link(Part):
    """One direction between two tiers: a wire, or a *staged* way over the wires of other links, chunk by chunk.

    Attributes
    ----------
    source
        Name of the tier that it copies from.
    target
        Name of the tier that it copies to.
    bandwidth_bytes_per_s
        Total rate of the link [B/s]. Of a staged link it may be left out, and is at most what its way carries.
    latency_ns
        Fixed time of each transfer [ns]; it holds the channel but takes no bandwidth. Of a staged link it may be left
        out, for the sum of those on its way.
    via
        The links that a staged link goes over, from its source to its target.
    chunk_bytes
        What a staged link stores and forwards at a time [B].
    energy_fj_per_byte
        What a byte takes that it carries, in the memories at its ends as well, on top of the device's power [fJ].
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
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth", default_factory=lambda: math.inf)
    latency_ns: Nanoseconds = Field(0, alias="latency")
    channels: Few = 1
    sharing: Literal["fifo", "fair", "servers"] = "fifo"
    efficiency: tuple[EfficiencyPoint, ...] = ()
    via: tuple[Key, ...] = ()
    chunk_bytes: Bytes = Field(0, alias="chunk")
    energy_fj_per_byte: EnergyPerByte | None = Field(None, alias="energy")
    _stages: tuple[Link, ...] = PrivateAttr(())
    _stated: Link | None = PrivateAttr(None)

    @property
    def stages(self) -> tuple[Link, ...]:
        """The links that it goes over; none if it is a wire itself."""
        return self._stages

    @property
    def servers(self) -> int:
        """Number of equal parts into which its bandwidth is divided for good, one a channel; 1 if it is shared."""
        return self.channels if self.sharing == "servers" else 1

    def reached_fraction(self, size_bytes: int) -> float:
        """Return the share of the bandwidth that a copy of a size reaches by the efficiency curve."""
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
    """A cap over several links together: a duplex limit, DDR bandwidth, the supply side of a pool.

    Attributes
    ----------
    links
        Names of what it caps: links, and ports of fabrics (``<fabric>.out``, ``<fabric>.in``).
    bandwidth_bytes_per_s
        The cap [B/s].
    scope
        Who has an instance of their own.
    """

    links: tuple[Capped, ...] = Field(min_length=1)
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    scope: Scope = "device"


CHUNKS = 2
"""Chunks that a tier between has room for: one comes in while the other goes out."""


def with_stages(links: Mapping[str, Link]) -> dict[str, Link]:
    """Return the links, staged ones with what follows from those that they go via.

    Parameters
    ----------
    links
        By name.

    Raises
    ------
    FieldError
        If what a link goes via is no way from its source to its target.
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
            staged.__dict__.update(follows)  # past pydantic, for which it would be stated then
    return by_name


def stage_rates(link: Link) -> list[int | float]:
    """Return what one copy over a staged link gets of each link on its way, if that is not busy otherwise [B/s].

    A link on the way moves chunks: at the share that its curve has for one, on one channel of its servers.

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
    """Refuse a way over others than wires, of which each begins where the one before it ends."""
    place = link.source
    for stage in link.via:
        require(stage in links, "a link goes via other links", repr(stage), *path, do=nearest(stage, tuple(links)))
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
    """Take from each tier what staged links keep of it for chunks that pass through.

    Parameters
    ----------
    links, tiers
        Of the machine.
    devices
        How many share a tier of each scope; each has its own chunks there.

    Raises
    ------
    FieldError
        If a tier has no room for them.
    """
    for name, tier in tiers.items():
        through = [link_name for link_name, link in links.items() for stage in link.stages[1:] if stage.source == name]
        chunks = sum(CHUNKS * links[link].chunk_bytes * links[link].channels for link in through) * devices[tier.scope]
        room = tier.capacity_bytes - tier.reserved_bytes
        must = f"the tier {name!r} has room for the chunks that pass through it"
        found = f"{chunks:,} B of chunks of {' and '.join(dict.fromkeys(through))} and {room:,} B of room"
        do = f"make it at least {chunks + tier.reserved_bytes:,} B, or the chunks smaller or fewer"
        require(chunks <= room, must, found, "tiers", name, "capacity", do=do)
        tier._staging_bytes = chunks
