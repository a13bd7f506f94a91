"""Phases of collectives: what each sends over one fabric, and how long that takes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.cost.service import FULL_RATE, ceil_div, work
from simulator.hardware import Fabric, Hardware


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a collective that uses one fabric.

    Attributes
    ----------
    fabric
        Its name.
    hops
        How often its latency is paid before bytes flow.
    port_bytes
        What each member sends through its port, and receives [B each way]. For a send and its receive: what the sender
        sends and the receiver receives.
    beside
        Whether its bytes flow at the same time as those of the phase before it; it then has no hops.
    """

    fabric: str
    hops: int
    port_bytes: int
    beside: bool = False


def stages(parts: Sequence[Phase]) -> tuple[tuple[Phase, ...], ...]:
    """Group phases into stages that run one after another; the bytes of a stage's phases flow at the same time."""
    found: list[list[Phase]] = []
    for part in parts:
        if part.beside:
            found[-1].append(part)
        else:
            found.append([part])
    return tuple(map(tuple, found))


def phase_work(phase: Phase, fabric: Fabric) -> int:
    """Time of the phase's bytes at the full rate of a port, in 2^-32 ns."""
    return work(phase.port_bytes, fabric.planes * fabric.bandwidth_bytes_per_s)


def fabric_rate_cap(fabric: Fabric) -> int:
    """The share of a port's bandwidth that collectives reach, in fixed point."""
    return max(1, math.floor(fabric.achieved_bandwidth_fraction * FULL_RATE))


def total_ns(parts: Sequence[Phase], hardware: Hardware) -> int:
    """Time of all phases of a collective that has its fabrics for itself: hops, then bytes, rounded up [ns]."""

    def alone_ns(part: Phase) -> int:
        fabric = hardware.fabrics[part.fabric]
        return part.hops * fabric.latency_ns + ceil_div(phase_work(part, fabric), fabric_rate_cap(fabric))

    return sum(max(map(alone_ns, stage)) for stage in stages(parts))
