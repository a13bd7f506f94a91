"""Laws of bandwidth: no wire, and no unit of a device, carries more than its rate allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from simulator.cost.collectives import phases
from simulator.cost.service import NS_PER_S
from simulator.graph import CollectiveKind
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY
from simulator.referee.facts import Facts, broken
from simulator.referee.load_laws import Loads
from simulator.referee.meeting_laws import Meetings
from simulator.trace import Ints, busy, instances
from simulator.units import decimal

_KERNELS = ""
"""Stands for traffic of kernels, in place of the name of a link or port."""

_HOST = "host "
"""Stands before what the host has, beside that of the accelerator: traffic, and units."""

_LOADED = "loaded "
"""Stands before the name of a link that kernels load over."""

_UNITS = {"matrix": False, "vector": True}
"""Units of a device, and whether those are for ops of class ``vector``."""

_PER_NS = 1024
"""Arithmetic is counted as time at a unit's peak, in parts of a nanosecond."""


class _Carrier(NamedTuple):
    """Something with a bandwidth, or a peak: words for a message, scope, rate, and what passes it.

    Attributes
    ----------
    rate
        What it carries at most in a second [B, or parts of a ns].
    passing
        How often bytes of each link or port pass it.
    ranks
        The ranks that it counts for, if not for all.
    """

    words: str
    scope: str
    rate: int | float
    passing: Mapping[str, int]
    ranks: Sequence[int] | None = None


def check_bandwidth(
    hardware: Hardware,
    stands_in: Sequence[int],
    ranks: Sequence[Facts],
    met: Meetings | None,
    loads: Mapping[int, Loads],
) -> None:
    """Check the bandwidth of each link, port and bus instance, in each stretch in which it is busy without a pause.

    So are, where kernels share a device, its units, and the memory of the compute tier, whose bandwidth they share with
    copies and collectives; and always the units of the host, and the memory of its tier. Dynamic reads are left out
    there, and kernels whose duration was measured do neither.

    Parameters
    ----------
    hardware
        The machine.
    stands_in
        For each rank the one that was simulated in its place.
    ranks
        The rows of those that were simulated.
    met
        The meetings of the trace, if there are any.
    loads
        By rank, what it reads in place: that passes the link, as copies do, and not the compute tier.

    Notes
    -----
    Rates are rounded down and a span ends at the first whole ns at which all has been moved, so that the law holds
    without a tolerance. As nothing is under way before and after a stretch, it holds all the bytes of its spans.
    """
    ports = {
        f"{name}.{way}": fabric.planes * fabric.bandwidth_bytes_per_s
        for name, fabric in hardware.fabrics.items()
        for way in ("out", "in")
    }
    loaded = [_LOADED + name for name in ("", *hardware.link_names)]
    names = (
        *hardware.link_names,
        *loaded,
        *ports,
        *(device + name for device in ("", _HOST) for name in (_KERNELS, *_UNITS)),
    )
    ids = dict(zip(names, range(len(names)), strict=True))
    rows = np.concatenate([*_carried(ranks, ids, loads), *_computed(ranks, ids), *_sent(hardware, met, ids)], axis=1)
    sharing, contended = hardware.topology.sharing, [facts for facts in ranks if facts.program.is_contended]
    for carrier in _carriers(hardware, ports, contended):
        times = np.array([carrier.passing.get(name, 0) for name in names])
        instance, counts = instances(sharing[carrier.scope], stands_in)
        passes = times[rows[0]] > 0
        passes &= carrier.ranks is None or np.isin(rows[1], carrier.ranks)
        name, rank, size, start, end = rows[:, passes]
        key, size = instance[rank], size * counts[rank] * times[name]
        order, first, until = busy(key, start, end, joins=False)
        if carrier.rate != math.inf and len(order):
            stretches = key[order][first], np.add.reduceat(size[order], first), start[order][first], until
            _check_stretches(carrier, int(carrier.rate), np.stack(stretches))


def _carriers(hardware: Hardware, ports: Mapping[str, int | float], contended: Sequence[Facts]) -> Iterator[_Carrier]:
    """Yield all that has a bandwidth or a peak; memories that kernels share are one where their rates are alike."""
    for name, link in hardware.links.items():
        passing = hardware.passing((name,))
        passing[_LOADED + name] = 1
        yield _Carrier(f"link {name!r} of rank", "device", link.bandwidth_bytes_per_s, passing)
    for name, rate in ports.items():
        yield _Carrier(f"port {name!r} of rank", "device", rate, hardware.passing((name,)))
    cores = hardware.host_compute
    for name, bus in hardware.caps.items():
        words, passing = f"bus {name!r} of {bus.scope}", hardware.passing(bus.links)
        passing.update({_LOADED + link: 1 for link in bus.links})
        if cores and hardware.memories.get(name) == cores.tier:
            passing[_HOST + _KERNELS] = 1
        yield _Carrier(words, bus.scope, bus.bandwidth_bytes_per_s, passing)
    if cores:
        scope, rate = hardware.tiers[cores.tier].scope, hardware.tiers[cores.tier].bandwidth_bytes_per_s or math.inf
        together = rate if rate == math.inf else math.ceil(int(rate) * decimal(cores.largest_share))
        yield _Carrier(f"memory of the host's cores of {scope}", scope, together, {_HOST + _KERNELS: 1})
        for unit in _UNITS:
            yield _Carrier(f"{unit} unit of the host of {scope}", scope, _PER_NS * NS_PER_S, {_HOST + unit: 1})
    tier, by_rate = hardware.compute_tier, dict[int | float, list[int]]()
    for facts in contended:
        shared = facts.program.hardware.tiers[tier].bandwidth_bytes_per_s
        by_rate.setdefault(math.inf if shared is None else shared, []).append(facts.rank)
    for rate, ranks in by_rate.items():
        ends = [name for name, link in hardware.links.items() if tier in (link.source, link.target)]
        passing = dict.fromkeys((_KERNELS, *ends, *ports), 1)
        yield _Carrier(f"memory {tier!r} of device", "device", rate, passing, ranks)
    for unit in _UNITS:
        yield _Carrier(f"{unit} unit of rank", "device", _PER_NS * NS_PER_S, {unit: 1}, [f.rank for f in contended])


def _carried(ranks: Sequence[Facts], ids: Mapping[str, int], loads: Mapping[int, Loads]) -> Iterator[Ints]:
    """Yield columns of copies, and of what kernels load, read and write for certain: id, rank, bytes, start and end."""
    for facts in ranks:
        ops, copies, computes = facts.program.graph.ops, facts.ran(COPY), facts.ran(COMPUTE)
        traffic = np.array([op.read_bytes + op.write_bytes for op in ops], np.int64) * facts.program.is_modelled
        kernels = np.where(facts.program.is_host[facts.a[computes]], ids[_HOST + _KERNELS], ids[_KERNELS])
        yield _rows(facts, copies, facts.track[copies], facts.program.sizes)
        yield _rows(facts, computes, kernels, traffic)
        issue, link, size = loads[facts.rank]
        spared = -size * facts.program.is_modelled[facts.a[issue]]
        for name, carried in ((ids[_LOADED] + 1 + link, size), (np.full_like(link, ids[_KERNELS]), spared)):
            yield np.stack((name, link * 0 + facts.rank, carried, facts.start_ns[issue], facts.end_ns[issue]))


def _computed(ranks: Sequence[Facts], ids: Mapping[str, int]) -> Iterator[Ints]:
    """Yield the same columns of units, with parts of a nanosecond at the unit's peak, rounded down."""
    devices = [(facts, "", facts.program.hardware.compute) for facts in ranks if facts.program.is_contended]
    hosted = [(facts, facts.program.hardware.host_compute) for facts in ranks if facts.program.is_host.any()]
    for facts, device, rates in (*devices, *((facts, _HOST, rates) for facts, rates in hosted if rates)):
        program, peaks, fractions = facts.program, rates.peak_flops, rates.achieved_fraction
        ops, runs = program.graph.ops, program.is_modelled & (program.is_host == (device == _HOST))
        reached = Fraction(str(fractions.get("vector", fractions.get("default", 1.0))))
        for unit, is_vector in _UNITS.items():
            does = runs & np.array([(op.op_class == "vector") == is_vector for op in ops], bool)
            size, share = np.zeros(len(ops), np.int64), reached if is_vector else Fraction(1)
            for op in np.flatnonzero(does).tolist():
                if ops[op].flops and peaks[ops[op].dtype] != math.inf:
                    size[op] = math.floor(ops[op].flops * NS_PER_S * _PER_NS / (int(peaks[ops[op].dtype]) * share))
            issues = facts.ran(COMPUTE)
            issues = issues[does[facts.a[issues]]]
            yield _rows(facts, issues, np.full(len(issues), ids[device + unit]), size)


def _rows(facts: Facts, issues: Ints, name: Ints, size: Ints) -> Ints:
    rank = np.full(len(issues), facts.rank)
    return np.stack((name, rank, size[facts.a[issues]], facts.start_ns[issues], facts.end_ns[issues]))


def _sent(hardware: Hardware, met: Meetings | None, ids: Mapping[str, int]) -> Iterator[Ints]:
    """Yield the same columns of ports: their part of every phase of each collective, at some time in its span."""
    if met is None:
        return
    sizes: dict[str, Ints] = {}
    for sort, (call, members, _) in enumerate(met.sorts):
        for phase in phases(call, members, hardware):
            for way, silent in (("out", CollectiveKind.RECV), ("in", CollectiveKind.SEND)):
                if call.kind is not silent:
                    size = sizes.setdefault(f"{phase.fabric}.{way}", np.zeros(len(met.sorts), np.int64))
                    size[sort] += phase.port_bytes
    for name, size in sizes.items():
        port = np.full(len(met.rank), ids[name])
        rows = np.stack((port, met.rank, size[met.sort], met.start_ns, met.end_ns))
        yield rows[:, rows[2] > 0]


def _check_stretches(carrier: _Carrier, rate: int, stretches: Ints) -> None:
    _, size, start, end = stretches
    # floats find the few stretches that may be too fast; 1e-12 is far above their rounding, and whole numbers decide
    near = size.astype(float) * NS_PER_S > (1 - 1e-12) * rate * (end - start).astype(float)
    for instance, carried, since, until in stretches[:, near].T.tolist():
        if carried * NS_PER_S > rate * (until - since):
            law = "a link, a bus, a port or a memory carries at most its bandwidth times its busy time"
            found = f"{carried:,} B from {since:,} to {until:,} ns at {rate:,} B/s"
            if rate == _PER_NS * NS_PER_S:
                law, found = "a unit computes at most at its peak", f"{carried / _PER_NS:,.3f} ns of arithmetic"
                found += f" from {since:,} to {until:,} ns"
            raise broken(f"trace, {carrier.words} {instance}", law, found)
