"""How long one operator, or one transfer, takes alone.

Service is counted in fixed point: a transfer's *work* is its time at the link's full rate in units of 2^-32 ns, and
a *rate* is a share of the link's bandwidth in units of 2^-32. Whatever shares the link, a transfer ends at the first
whole nanosecond at which the service it got reaches its work. Sizes and bandwidths only enter as their ratio, so
that multiplying both by a power of two changes no time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction

from simulator.errors import ConfigError
from simulator.graph import Graph, Op
from simulator.hardware import Hardware, Link

FULL_RATE = 1 << 32
"""The whole bandwidth of a link, in fixed point."""

_NS_PER_S = 10**9


def work(size_bytes: int, bandwidth_bytes_per_s: int | float) -> int:
    """Time at the full rate, in 2^-32 ns, rounded up.

    Parameters
    ----------
    size_bytes
        What is moved [B].
    bandwidth_bytes_per_s
        The full rate [B/s], or ``inf``.
    """
    if bandwidth_bytes_per_s == math.inf:
        return 0
    return ceil_div(size_bytes * _NS_PER_S * FULL_RATE, int(bandwidth_bytes_per_s))


def ceil_div(a: int, b: int) -> int:
    """The quotient of two whole numbers, rounded up."""
    return -(-a // b)


def rate_cap(size_bytes: int, link: Link) -> int:
    """The share of the link that a transfer of this size can reach at most, in fixed point.

    Parameters
    ----------
    size_bytes
        Size of the transfer [B].
    link
        With its efficiency curve: linear in the logarithm of the size between points, constant outside.
    """
    share = _efficiency(size_bytes, link)
    if link.sharing == "servers":
        share = min(share, 1 / link.channels)
    return max(1, math.floor(share * FULL_RATE))


def _efficiency(size_bytes: int, link: Link) -> float:
    points = link.efficiency
    if not points:
        return 1.0
    after = bisect_right([p.size_bytes for p in points], size_bytes)
    if after == 0 or after == len(points):
        return points[min(after, len(points) - 1)].fraction
    low, high = points[after - 1], points[after]
    span = math.log(high.size_bytes) - math.log(low.size_bytes)
    position = (math.log(size_bytes) - math.log(low.size_bytes)) / span
    return low.fraction + (high.fraction - low.fraction) * position


def transfer_ns(size_bytes: int, link: Link) -> int:
    """Time of a transfer that has the link for itself: latency plus size over bandwidth, rounded up [ns].

    Parameters
    ----------
    size_bytes
        Size of the transfer [B].
    link
        The link it takes.
    """
    return link.latency_ns + ceil_div(work(size_bytes, link.bandwidth_bytes_per_s), rate_cap(size_bytes, link))


def arithmetic_ns(op: Op, hardware: Hardware) -> int:
    """Time of an op's arithmetic alone, rounded up [ns].

    Parameters
    ----------
    op
        The op; ``flops`` over the peak of its data type, times the achieved fraction of its class.
    hardware
        The machine.

    Raises
    ------
    ConfigError
        If the machine states no peak for the op's data type.
    """
    if not op.flops:
        return 0
    compute = hardware.compute
    peak = compute.peak_flops.get(op.dtype)
    if peak is None:
        known = ", ".join(compute.peak_flops)
        raise ConfigError(
            f"hardware {hardware.name!r}, compute.peak",
            f"the data type of every op has a peak rate (op {op.name!r} computes in {op.dtype})",
            known,
            f"add compute.peak.{op.dtype}, or change the workload's data type",
        )
    if peak == math.inf:
        return 0
    achieved = compute.achieved_fraction.get(op.op_class, compute.achieved_fraction.get("default", 1.0))
    rate = Fraction(int(peak)) * Fraction(str(achieved))
    return math.ceil(Fraction(op.flops * _NS_PER_S) / rate)


def memory_work(op: Op, hardware: Hardware) -> int:
    """The op's traffic in the compute tier as work at the tier's full rate, in 2^-32 ns."""
    bandwidth = hardware.tiers[hardware.compute_tier].bandwidth_bytes_per_s
    return 0 if bandwidth is None else work(op.read_bytes + op.write_bytes, bandwidth)


def memory_rate_cap(hardware: Hardware) -> int:
    """The share of the compute tier's bandwidth that a kernel reaches, in fixed point."""
    return max(1, math.floor(hardware.compute.achieved_bandwidth_fraction * FULL_RATE))


def duration_ns(op: Op, hardware: Hardware) -> int:
    """Time of one op alone [ns]: measured, or launch plus the roofline's larger side.

    Parameters
    ----------
    op
        With a measured ``duration_ns``, or with FLOPs and bytes.
    hardware
        Peaks, achieved fractions, bandwidth of the compute tier, launch.
    """
    if op.duration_ns is not None:
        return op.duration_ns
    memory_ns = ceil_div(memory_work(op, hardware), memory_rate_cap(hardware))
    return hardware.compute.launch_ns + max(arithmetic_ns(op, hardware), memory_ns)


def durations_ns(graph: Graph, hardware: Hardware) -> list[int]:
    """Time of each op of the graph alone [ns].

    Parameters
    ----------
    graph
        Its ops.
    hardware
        The machine.
    """
    return [duration_ns(op, hardware) for op in graph.ops]
