"""What copies over the border of a ring have to pass, and how quickly they can.

A copy takes no less than its time alone, so that a link is no faster than its channels are with the tensors that they
carry quickest. Over links that share the channels of a copy queue, or a bus, both ways take their time in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.bounds.forced import NS_PER_S, time_ns
from simulator.bounds.rings import Ring
from simulator.cost import ceil_div, transfer_ns
from simulator.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Carrier:
    """What copies over the border of a ring have to pass: its links one way, or what both ways share.

    Attributes
    ----------
    name
        What it is, for people: ``link h2d``.
    ring
        Number of the ring.
    into, out_of
        Bandwidths of what comes into the ring, and of what leaves it [B/s]; 0 for what does not pass.
    channels
        How many copies it serves at the same time.
    times
        How many ranks do the same there at the same time.
    """

    name: str
    ring: int
    into: int | float
    out_of: int | float
    channels: int = 1
    times: int = 1

    def ns(self, in_bytes: int, out_bytes: int) -> int:
        """Time that it needs for what comes in and goes out at least [ns]."""
        if self.into == self.out_of:
            return ceil_div(time_ns(self.times * (in_bytes + out_bytes), self.into), self.channels)
        alone = time_ns(self.times * in_bytes, self.into), time_ns(self.times * out_bytes, self.out_of)
        return ceil_div(sum(alone), self.channels)

    def about(self, rate: int | float) -> float:
        """Time of a byte at one of its bandwidths, in floating point [ns]."""
        return self.times * NS_PER_S / rate / self.channels if rate else 0.0


def carriers(
    rings: Sequence[Ring], hardware: Hardware, sizes: Sequence[int], sharers: Mapping[str, int]
) -> list[Carrier]:
    """Find what the copies over the border of each ring pass.

    Parameters
    ----------
    rings
        The compute tier, and what else may be short of room.
    hardware
        The machine.
    sizes
        Of the tensors that may have to be copied [B].
    sharers
        For each bus, how many ranks do there at the same time what this one does.
    """
    found = []
    for number, ring in enumerate(rings):
        into, out_of = (rate_of(names, hardware, sizes) for names in (ring.into, ring.out_of))
        found.append(Carrier(_named("into", hardware.wires(ring.into), ring), number, into, 0))
        found.append(Carrier(_named("out of", hardware.wires(ring.out_of), ring), number, 0, out_of))
        both = {*ring.into, *ring.out_of}
        for name, queue in hardware.copy_queues.items():
            if len(ring.into) == len(ring.out_of) == 1 and both <= set(queue):
                found.append(Carrier(f"queue {name}", number, into, out_of, hardware.links[ring.into[0]].channels))
        for name, bus in hardware.buses.items():
            passing, rate = hardware.passing(bus.links).keys(), bus.bandwidth_bytes_per_s
            into, out_of = (rate if names and passing >= set(names) else 0 for names in (ring.into, ring.out_of))
            if into or out_of:
                found.append(Carrier(f"bus {name}", number, into, out_of, times=sharers.get(name, 1)))
    return found


def _named(way: str, names: Sequence[str], ring: Ring) -> str:
    return f"link {names[0]}" if len(names) == 1 else f"links {way} {ring.name}"


def rate_of(names: Sequence[str], hardware: Hardware, sizes: Sequence[int] = ()) -> int | float:
    """What these links carry together at most [B/s].

    Parameters
    ----------
    names, hardware
        The links, of which machine.
    sizes
        Of the tensors that are copied, if they are known [B].
    """
    return sum(_fastest(name, hardware, sizes) for name in hardware.wires(names))


def _fastest(name: str, hardware: Hardware, sizes: Sequence[int]) -> int | float:
    link = hardware.links[name]
    alone = [(size, transfer_ns(size, link)) for size in sizes]
    is_alone = len(hardware.passing((name,))) == 1  # otherwise it also carries what is staged
    if not alone or not is_alone or not all(ns for _, ns in alone):
        return link.bandwidth_bytes_per_s
    best = max(ceil_div(size * NS_PER_S, ns) for size, ns in alone)
    return min(link.bandwidth_bytes_per_s, link.channels * best)
