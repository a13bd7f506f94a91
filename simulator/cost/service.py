"""Service in fixed point: the time of one transfer, and of one phase of a collective, alone.

A transfer's *work* is its time at the link's full rate in units of 2^-32 ns, and a *rate* is a share of the link's
bandwidth in units of 2^-32. Whatever shares the link, a transfer ends at the first whole nanosecond at which the
service it got reaches its work. Sizes and bandwidths only enter as their ratio, so that multiplying both by a power of
two changes no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.hardware import Fabric, Hardware, Link
from simulator.hardware.memory import stage_rates

FULL_RATE = 1 << 32
"""The whole bandwidth of a link, in fixed point."""

NS_PER_S = 10**9


def work(size_bytes: int, bandwidth_bytes_per_s: int | float) -> int:
    """Return the time at the full rate, in 2^-32 ns, rounded up.

    Parameters
    ----------
    size_bytes
        What is moved [B].
    bandwidth_bytes_per_s
        The full rate [B/s], or ``inf``.
    """
    if bandwidth_bytes_per_s == math.inf:
        return 0
    return ceil_div(size_bytes * NS_PER_S * FULL_RATE, int(bandwidth_bytes_per_s))


def ceil_div(a: int, b: int) -> int:
    """Return the quotient of two whole numbers, rounded up."""
    return -(-a // b)


def rate_cap(size_bytes: int, link: Link) -> int:
    """Return the share of the link that a transfer of this size can reach at most, in fixed point.

    Parameters
    ----------
    size_bytes
        Size of the transfer [B].
    link
        With its efficiency curve: linear in the logarithm of the size between points, constant outside. Of an endless
        link any part is endless, so that only buses limit it.
    """
    if link.bandwidth_bytes_per_s == math.inf:
        return FULL_RATE
    share = link.reached_fraction(size_bytes)
    if link.sharing == "servers":
        share = min(share, 1 / link.channels)
    return max(1, math.floor(share * FULL_RATE))


def transfer_ns(size_bytes: int, link: Link) -> int:
    """Return the time of a transfer that has its way for itself: its lead, and size over bandwidth [ns].

    Parameters
    ----------
    size_bytes
        Size of the transfer [B].
    link
        The link it takes.
    """
    own_work = work(size_bytes, link.bandwidth_bytes_per_s)
    return lead_ns(size_bytes, link) + ceil_div(own_work, rate_cap(size_bytes, link))


def lead_ns(size_bytes: int, link: Link) -> int:
    """Return the time of a transfer before its bytes flow: the latency and, of a staged link, the fill [ns].

    Parameters
    ----------
    size_bytes
        Size of the transfer [B].
    link
        The link it takes; see `simulator.hardware.memory` for what the fill is.
    """
    if not link.stages or not size_bytes:
        return link.latency_ns
    chunk = ceil_div(size_bytes, ceil_div(size_bytes, link.chunk_bytes))
    passes = sorted(work(chunk, rate) for rate in stage_rates(link))
    return link.latency_ns + ceil_div(sum(passes[:-1]), FULL_RATE)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a collective that uses one fabric.

    Attributes
    ----------
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
    stages: list[list[Phase]] = []
    for part in parts:
        if part.beside:
            stages[-1].append(part)
        else:
            stages.append([part])
    return tuple(map(tuple, stages))


def phase_work(phase: Phase, fabric: Fabric) -> int:
    """Return the time of the phase's bytes at the full rate of a port, in 2^-32 ns."""
    return work(phase.port_bytes, fabric.planes * fabric.bandwidth_bytes_per_s)


def fabric_rate_cap(fabric: Fabric) -> int:
    """Return the share of a port's bandwidth that collectives reach, in fixed point."""
    return max(1, math.floor(fabric.achieved_bandwidth_fraction * FULL_RATE))


def total_ns(parts: Sequence[Phase], hardware: Hardware) -> int:
    """Return the time of all phases of a collective that has its fabrics for itself: hops, then bytes [ns]."""

    def alone_ns(part: Phase) -> int:
        fabric = hardware.fabrics[part.fabric]
        return part.hops * fabric.latency_ns + ceil_div(phase_work(part, fabric), fabric_rate_cap(fabric))

    return sum(max(map(alone_ns, stage)) for stage in stages(parts))
