"""Memories, and what moves bytes between them."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, StringConstraints

from simulator.document import Few, Key, Part, Share
from simulator.units import Bytes, BytesPerSecond, Capacity, FieldError, Nanoseconds

Scope = Literal["device", "node", "supernode"]
"""Who has an instance of their own: each device, each node, or all together."""

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
    """

    scope: Scope = "device"
    capacity_bytes: Capacity = Field(alias="capacity")
    reserved_bytes: Bytes = Field(0, alias="reserved")
    bandwidth_bytes_per_s: BytesPerSecond | None = Field(None, alias="bandwidth")
    _staging_bytes: int = PrivateAttr(0)

    @property
    def staging_bytes(self) -> int:
        """What staged links keep of it for the chunks that pass through [B]; see `simulator.hardware.staged`."""
        return self._staging_bytes

    @property
    def usable_bytes(self) -> int | float:
        """Capacity less what is reserved, and less the room for chunks that pass through [B]."""
        return self.capacity_bytes - self.reserved_bytes - self._staging_bytes

    def capacity_for(self, usable_bytes: int) -> int:
        """The capacity of which so much may be used [B]."""
        return usable_bytes + self.reserved_bytes + self._staging_bytes

    def _check(self) -> None:
        if self.reserved_bytes > self.capacity_bytes:
            found = f"{self.reserved_bytes:,} of {self.capacity_bytes:,} B"
            raise FieldError("what is reserved is part of the capacity", found, "lower it", ("reserved",))


class EfficiencyPoint(Part):
    """The share of a link's bandwidth that a copy of a given size reaches."""

    size_bytes: Bytes = Field(alias="size")
    fraction: Share


class Link(Part):
    """One direction between two tiers: a wire, or a *staged* way over the wires of other links, chunk by chunk.

    Attributes
    ----------
    source, target
        Tier names.
    bandwidth_bytes_per_s
        Total rate of the link [B/s]. Of a staged link it may be left out, and is at most what its way carries.
    latency_ns
        Fixed time of each transfer [ns]; it holds the channel but takes no bandwidth. Of a staged link it may be left
        out, for the sum of those on its way.
    via
        The links that a staged link goes over, from its source to its target; see `simulator.hardware.staged`.
    chunk_bytes
        What a staged link stores and forwards at a time [B].
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
    _stages: tuple[Link, ...] = PrivateAttr(())
    _stated: Link | None = PrivateAttr(None)

    @property
    def stages(self) -> tuple[Link, ...]:
        """The links that it goes over; none if it is a wire itself."""
        return self._stages

    @property
    def as_stated(self) -> Link:
        """The link as the document has it, without what follows from the links that it goes via."""
        return self._stated or self

    def over(self, stages: tuple[Link, ...], bandwidth_bytes_per_s: int | float, latency_ns: int) -> Link:
        """The staged link with what follows from the links that it goes via, which is not stated."""
        stated = self.as_stated
        found = stated.model_copy(update={"bandwidth_bytes_per_s": bandwidth_bytes_per_s, "latency_ns": latency_ns})
        found.model_fields_set.intersection_update(stated.model_fields_set)
        found._stages, found._stated = stages, stated
        return found

    def reached_fraction(self, size_bytes: int) -> float:
        """The share of the bandwidth that a copy of a size reaches: that of the efficiency curve."""
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
        if not self.via and "bandwidth_bytes_per_s" not in self.model_fields_set:
            do = "add it, or the links that it goes via"
            raise FieldError("the key 'bandwidth' is needed here", "none", do)
        if self.via and not self.chunk_bytes:
            must, do = "a link that goes via others stores and forwards chunks", "say how large they are: chunk"
            raise FieldError(must, "no chunk", do)
        if self.chunk_bytes and not self.via:
            must, do = "only a link that goes via others has chunks", "remove it, or say which links it goes via"
            raise FieldError(must, f"{self.chunk_bytes:,} B", do, ("chunk",))
        sizes = [point.size_bytes for point in self.efficiency]
        if 0 in sizes or sizes != sorted(set(sizes)):
            found = ", ".join(f"{size:,} B" for size in sizes)
            must, do = "the sizes of the curve are above 0 B and increase", "sort the points, and leave out one at 0 B"
            raise FieldError(must, found, do, ("efficiency",))


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
