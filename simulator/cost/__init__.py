"""Times of one op, one transfer, or one collective alone; an op by its roofline or the form of its collective."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from simulator.cost.collectives import collective_ns, group_ns
from simulator.cost.service import FULL_RATE, NS_PER_S, ceil_div, work
from simulator.errors import ConfigError
from simulator.graph import HOST, OP_CLASSES, Collective, Graph, Group, Op, OpKind, share_of
from simulator.hardware import Hardware, Host, Link, Rates
from simulator.units import decimal, nearest


class Device(NamedTuple):
    """What runs an op."""

    field: str
    rates: Rates
    tier: str


def device_of(op: Op, hardware: Hardware) -> Device:
    """Return what runs an op.

    Raises
    ------
    ConfigError
        If it is the host, whose cores the machine does not state.
    """
    if op.device != HOST:
        return Device("compute", hardware.compute, hardware.compute_tier)
    if (cores := hardware.host_compute) is None:
        rule = f"a machine whose host runs ops states its cores (op {op.name!r} is of the host)"
        do = "add host_compute, or run the op on the accelerator"
        raise ConfigError(f"hardware {hardware.name!r}, host_compute", rule, "none", do)
    return Device("host_compute", cores, cores.tier)


def _arithmetic_ns(op: Op, hardware: Hardware) -> int:
    """Return the time of an op's arithmetic: FLOPs over the peak of its data type, times its class's fraction [ns]."""
    if not op.flops:
        return 0
    field, rates, _ = device_of(op, hardware)
    peaks, fractions = rates.peak_flops, rates.achieved_fraction
    if op.dtype not in peaks:
        rule = f"the data type of every op has a peak rate (op {op.name!r} computes in {op.dtype})"
        do = f"add {field}.peak.{op.dtype}, or change the workload's data type"
        raise ConfigError(f"hardware {hardware.name!r}, {field}.peak", rule, ", ".join(peaks), do)
    if peaks[op.dtype] == math.inf:
        return 0
    classes = sorted({*OP_CLASSES, *fractions})
    if op.op_class not in classes:
        rule = "the class of every op is one of hosim's or has a fraction of its own"
        do = f"{nearest(op.op_class, tuple(classes))}; or add {field}.achieved_fraction.{op.op_class}"
        found = f"op {op.name!r} of class {op.op_class!r}"
        raise ConfigError(f"hardware {hardware.name!r}, {field}.achieved_fraction", rule, found, do)
    achieved = decimal(fractions.get(share_of(op.op_class, fractions), 1.0))
    fill_ns = 0 if op.op_class == "vector" else rates.fill_ns
    return fill_ns + ceil_div(op.flops * NS_PER_S * achieved.denominator, int(peaks[op.dtype]) * achieved.numerator)


def roofline(op: Op, hardware: Hardware) -> tuple[int, int]:
    """Return both sides of an op's roofline; a measured duration counts as arithmetic.

    Parameters
    ----------
    op
        With a measured ``duration_ns``, or with FLOPs and bytes.
    hardware
        Peaks, achieved fractions, launch and bandwidth of the op's device.

    Returns
    -------
    (int, int)
        Its launch and arithmetic [ns]; its traffic in its device's tier as work at the tier's full rate, in 2^-32 ns.

    Raises
    ------
    ConfigError
        If the machine states no cores for an op of the host, no peak for its data type, or does not know its class.
    """
    _, rates, tier = device_of(op, hardware)
    if op.duration_ns is not None:
        is_on_device = op.kind is OpKind.COMPUTE and op.device != HOST
        return hardware.compute.own_ns(op.duration_ns) if is_on_device else op.duration_ns, 0
    bandwidth = hardware.tiers[tier].bandwidth_bytes_per_s
    traffic = 0 if bandwidth is None else work(op.read_bytes + op.write_bytes, bandwidth)
    return rates.launch_ns + _arithmetic_ns(op, hardware), traffic


def issue_ns(graph: Graph, host: Host) -> list[int]:
    """Return what the host pays for each op on top of the price of a compute: before a step, a layer, or a class [ns].

    Parameters
    ----------
    graph, host
        The ops, and what the host pays. An op that runs again pays again.
    """
    of_class = host.each_class_ns
    if not (host.each_layer_ns or host.each_step_ns or of_class):  # as for most, and planners replay hundreds of times
        return [0] * len(graph.ops)
    layers = [op.name.partition("/")[0] for op in graph.ops]
    begins = (layer != before for layer, before in zip(layers, ["", *layers], strict=False))
    of_layer = [host.each_layer_ns * is_first + host.each_step_ns * (op == 0) for op, is_first in enumerate(begins)]
    return [ns + of_class.get(share_of(op.op_class, of_class), 0) for ns, op in zip(of_layer, graph.ops, strict=True)]


UNITS = ("matrix", "vector")
"""Units of a device that compute."""


def is_contended(graph: Graph, streams: Iterable[tuple[int, int]], *, shares_memory: bool) -> bool:
    """Return whether kernels share an accelerator: on some machines, and if its modelled ops run on several streams.

    A measured duration was recorded beside whatever ran beside it, and a collective computes nothing.

    Parameters
    ----------
    graph
        Its ops.
    streams
        Pairs of an op and a stream that it runs on.
    shares_memory
        Whether the machine is one whose kernels and copies share the memory whatever the streams.
    """
    ops, on_host = graph.ops, graph.on_host
    modelled = ((op, of) for op, of in streams if ops[op].collective is None and ops[op].duration_ns is None)
    return shares_memory or len({stream for op, stream in modelled if op not in on_host}) > 1


def unit_work(op: Op, hardware: Hardware) -> tuple[str, int, int]:
    """Return the unit that does an op's arithmetic, the share of it that the op reaches alone, and its work there.

    Ops of class ``vector`` work in the vector unit, whose peak is what their class reaches, as profiles state no other;
    all else works in the matrix unit, whose peak is that of the data type.

    Parameters
    ----------
    op, hardware
        An op without a measured duration; the machine.

    Returns
    -------
    (str, int, int)
        One of `UNITS`; a rate as a share in 2^-32; the time at the unit's full rate in 2^-32 ns.
    """
    rates = device_of(op, hardware).rates
    fractions, peak = rates.achieved_fraction, rates.peak_flops.get(op.dtype, math.inf)
    achieved = decimal(fractions.get(share_of(op.op_class, fractions), 1.0))
    is_vector = op.op_class == "vector"
    unit, share, reach = ("vector", Fraction(1), achieved) if is_vector else ("matrix", achieved, Fraction(1))
    work_there = 0 if peak == math.inf else math.ceil(op.flops * NS_PER_S * FULL_RATE / (int(peak) * reach))
    return unit, math.ceil(share * FULL_RATE), work_there


def memory_rate_cap(op: Op, hardware: Hardware) -> int:
    """Return the share of its tier's bandwidth that an op's kernel reaches, in fixed point."""
    rates = device_of(op, hardware).rates
    named = share_of(op.op_class, rates.class_bandwidth)
    return max(1, math.floor(rates.class_bandwidth.get(named, rates.achieved_bandwidth_fraction) * FULL_RATE))


def duration_ns(op: Op, hardware: Hardware) -> int:
    """Return the time of one op alone [ns]: measured, or launch plus the larger side of its `roofline`."""
    least_ns, traffic = roofline(op, hardware)
    if not traffic:
        return least_ns
    launch_ns = device_of(op, hardware).rates.launch_ns
    return max(least_ns, launch_ns + ceil_div(traffic, memory_rate_cap(op, hardware)))


def chosen_op(op: Op, chosen_bytes: int) -> Op:
    """Return an op with dynamic reads as one that uses so much of its candidates [B], and all it uses for certain."""
    if op.duration_ns is not None:
        return op
    written_bytes = chosen_bytes if op.dynamic is not None and op.dynamic.updates else 0
    return replace(op, read_bytes=op.read_bytes + chosen_bytes, write_bytes=op.write_bytes + written_bytes)


def expected_op(op: Op, sizes: Sequence[int]) -> Op:
    """Return an op as one that reads of its candidates as many as are expected to be chosen, each of their mean size.

    Parameters
    ----------
    op
        The op; one without dynamic reads stays as it is.
    sizes
        Size of each tensor of its graph [B].
    """
    if op.dynamic is None:
        return op
    reads = op.dynamic
    total = sum(sizes[t] for t in reads.candidates)
    return chosen_op(op, ceil_div(reads.expected * total, len(reads.candidates)))


def loaded_bytes(op: Op, size_bytes: int) -> int:
    """Return what an op loads of tensors of so many bytes that it reads in place: no more than it reads at all [B]."""
    return min(size_bytes, op.read_bytes) if op.read_bytes else size_bytes


def load_ns(op: Op, size_bytes: int, link: Link, hardware: Hardware) -> int:
    """Return what an op takes to load so much over a link that is its own: launch, latency and bytes [ns]."""
    rate = min(link.loads_bytes_per_s or 0, link.bandwidth_bytes_per_s)
    launch_ns = 0 if op.duration_ns is not None else device_of(op, hardware).rates.launch_ns
    return launch_ns + link.latency_ns + ceil_div(work(size_bytes, rate), FULL_RATE)


def durations_ns(graph: Graph, hardware: Hardware, rank: int | None = None) -> list[int]:
    """Return the time of each op of the graph alone [ns].

    Parameters
    ----------
    graph
        Its ops. A collective takes what it takes once all members have come; an op with dynamic reads, what it takes to
        read as much as is expected (see `expected_op`).
    hardware
        The machine.
    rank
        Whose collectives; default: of each group, those members for which it is the longest.

    Raises
    ------
    ConfigError
        If the machine states no peak for an op's data type or cannot do a collective; or a collective names no group of
        the graph, or one whose members the rank is not among.
    """
    groups = {group.name: group for group in graph.groups}
    times_ns = dict[Hashable, int]()
    sizes = [tensor.size_bytes for tensor in graph.tensors]

    def alone_ns(op: Op) -> int:
        collective = op.collective
        if collective is None or op.duration_ns is not None:
            about = (op.flops, op.dtype, op.op_class, op.read_bytes, op.write_bytes)
            kind = (op.dynamic, op.duration_ns, op.kind, op.device, *about)
            if kind not in times_ns:  # an op of another layer is often alike
                times_ns[kind] = duration_ns(expected_op(op, sizes) if op.dynamic else op, hardware)
            return times_ns[kind]
        if collective.group not in groups:
            rule, found = "a collective names a group of its graph", repr(collective.group)
            raise ConfigError(f"op {op.name!r}", rule, found, nearest(collective.group, tuple(groups)))
        if collective not in times_ns:
            times_ns[collective] = _meeting_ns(op.name, collective, groups[collective.group], hardware, rank)
        return times_ns[collective]

    return [alone_ns(op) for op in graph.ops]


def _meeting_ns(op: str, collective: Collective, group: Group, hardware: Hardware, rank: int | None) -> int:
    """Return the time of a collective among those whom a rank meets, or among those whom it takes longest [ns]."""
    if rank is None:
        return group_ns(collective, group, hardware)
    members = group.by_rank(collective.kind).get(rank)
    if members is None:
        rule = f"the rank that runs {collective.kind} is named by its group"
        raise ConfigError(f"group {group.name!r}", rule, f"rank {rank} in op {op!r}", "name it among the members")
    return collective_ns(collective, members, hardware)
