"""Memories, and what moves bytes between them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from simulator.document import Key, Part
from simulator.hardware.numbers import Count, Fraction
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
        Names of what it caps: links, and ports of fabrics (``<fabric>.out``, ``<fabric>.in``).
    bandwidth_bytes_per_s
        The cap [B/s].
    scope
        Who has an instance of their own.
    """

    links: tuple[Capped, ...] = Field(min_length=1)
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    scope: Scope = "device"
