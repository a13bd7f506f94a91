"""Bandwidth (rule 10): what shares which wires, at which rate, and what work is left of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from simulator.graph import Op
from simulator.hardware import Hardware, Link, Rates

ONE = 1 << 32
"""A whole rate, and a nanosecond of work at it."""

Wire = tuple[str, str, int]
"""What flows share: its kind and name, and which instance of it."""


def work(size: int, bandwidth: int | float) -> int:
    """The time of so many bytes at a rate, in 2^-32 ns, rounded up."""
    return 0 if bandwidth == math.inf else -(-size * 10**9 * ONE // int(bandwidth))


@dataclass(eq=False)
class Flow:
    """The bytes of a transfer, or of one phase for one member: what is left of their work, and how fast they go.

    `uses` says how often each wire is passed; `even` names whose equal part of the unit is the most that a flow gets.
    """

    end: Callable[[], None]
    unit: int | float
    cap: int
    left: int
    joins_ns: int
    uses: dict[Wire, int]
    even: object = None
    rate: int = 0


class Wires:
    """The links, buses and ports of a machine, as the ranks see them."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware, self.sharing = hardware, hardware.topology.sharing
        self.limits: dict[Wire, Fraction] = {}
        self.via = {stage for link in hardware.links.values() for stage in link.via}

    def _add(self, uses: dict[Wire, int], wire: Wire, limit: int | float) -> None:
        if limit != math.inf:
            self.limits[wire] = Fraction(int(limit))
            uses[wire] = uses.get(wire, 0) + 1

    def _add_buses(self, uses: dict[Wire, int], name: str, rank: int) -> None:
        for bus_name, bus in self.hardware.buses.items():
            if name in bus.links:
                self._add(uses, ("bus", bus_name, rank // self.sharing[bus.scope]), bus.bandwidth_bytes_per_s)
        link = self.hardware.links.get(name)
        for end in (link.source, link.target) if link and not link.via else ():
            tier = self.hardware.tiers[end]
            for _ in range(link.passes.get(end, 1)):
                if end != self.hardware.compute_tier and tier.bandwidth_bytes_per_s is not None:
                    memory = ("memory", end, rank // self.sharing[tier.scope])
                    self._add(uses, memory, tier.bandwidth_bytes_per_s)

    def of_copy(self, name: str, rank: int) -> dict[Wire, int]:
        """The wires of a copy over a link, each as often as it is passed."""
        link, uses = self.hardware.links[name], dict[Wire, int]()
        self._add_buses(uses, name, rank)
        for stage in link.via:
            self._add(uses, ("link", stage, rank), self.hardware.links[stage].bandwidth_bytes_per_s)
            self._add_buses(uses, stage, rank)
        if name in self.via or link.sharing == "fair" or link.loads_bytes_per_s:
            self._add(uses, ("link", name, rank), self.bandwidth(link))
        return uses

    def of_host(self, op: Op, rank: int, now: int, end: Callable[[], None]) -> list[Flow]:
        """The flows of an op of the host, whose time the graph does not state: of arithmetic, and of traffic."""
        cores = self.hardware.host_compute
        assert cores is not None
        tier, flows = self.hardware.tiers[cores.tier], list[Flow]()
        instance, joins = rank // self.sharing[tier.scope], now + cores.launch_ns
        (unit, share, arithmetic), traffic = demands(op, self.hardware)
        if arithmetic:
            uses = dict[Wire, int]()
            self._add(uses, ("cores", unit, instance), ONE)
            flows.append(Flow(end, ONE, share, arithmetic, joins, uses))
        if traffic:
            uses, rate = dict[Wire, int](), tier.bandwidth_bytes_per_s or 0
            self._add(uses, ("memory", cores.tier, instance), rate)
            most = max(cores.achieved_bandwidth_fraction, *cores.class_bandwidth.values(), 0.0)
            together = math.ceil(Fraction(str(most)) * int(rate))
            self._add(uses, ("memory of cores", cores.tier, instance), together)
            flows.append(Flow(end, rate, math.floor(traffic_share(op, cores) * ONE), traffic, joins, uses))
        return flows

    def of_loads(self, sizes: dict[int, int], op: Op, rank: int, now: int, end: Callable[[], None]) -> list[Flow]:
        """The flows of what an op reads in place, of each tier so much: past the memory of the compute tier."""
        launch = self.hardware.compute.launch_ns if op.duration_ns is None else 0
        names, flows = list(self.hardware.tiers), list[Flow]()
        for tier, size in sizes.items():
            links = self.hardware.links.items()
            name, link = next((n, k) for n, k in links if k.source == names[tier] and k.loads_bytes_per_s)
            uses = dict.fromkeys(self.of_copy(name, rank), 1)
            rate = min([link.loads_bytes_per_s or 0, link.bandwidth_bytes_per_s, *(self.limits[wire] for wire in uses)])
            needed = work(min(size, op.read_bytes or size), rate)
            flows.append(Flow(end, rate, ONE, needed, now + launch + link.latency_ns, uses))
        return flows

    def of_phase(self, fabric: str, source: int, target: int) -> dict[Wire, int]:
        """The wires of what one rank sends and another one receives: a bus that caps both ports carries it twice."""
        uses: dict[Wire, int] = {}
        for port, rank in ((f"{fabric}.out", source), (f"{fabric}.in", target)):
            self._add(uses, ("port", port, rank), self.port(fabric))
            self._add_buses(uses, port, rank)
        return uses

    def port(self, fabric: str) -> int | float:
        """The bandwidth of a port [B/s]."""
        return self.hardware.fabrics[fabric].planes * self.hardware.fabrics[fabric].bandwidth_bytes_per_s

    def bandwidth(self, link: Link) -> int | float:
        """The bandwidth of a link; of a staged one, that of the narrowest part of its way [B/s]."""
        if not link.via:
            return link.bandwidth_bytes_per_s
        found = [link.bandwidth_bytes_per_s] if "bandwidth_bytes_per_s" in link.model_fields_set else []
        for rate, stage in zip(self._stage_rates(link), link.via, strict=True):
            wire = self.hardware.links[stage]
            found.append(rate * min(link.channels, wire.channels if wire.sharing == "servers" else 1))
        return min(found)

    def _stage_rates(self, link: Link) -> list[int | float]:
        """What one copy gets of each link on its way, in chunks [B/s]."""
        rates: list[int | float] = []
        for wire in (self.hardware.links[stage] for stage in link.via):
            share = Fraction(reached(wire, link.chunk_bytes)) / (wire.channels if wire.sharing == "servers" else 1)
            rate = wire.bandwidth_bytes_per_s
            rates.append(rate if rate == math.inf else max(1, math.floor(rate * share)))
        return rates

    def lead_ns(self, link: Link, size: int) -> int:
        """What comes before the bytes flow: latencies, and the fill: a chunk on each link but the narrowest [ns].

        A copy is cut into equal chunks; their size, and the time of all of them together, are rounded up.
        """
        if not link.via:
            return link.latency_ns
        latency = sum(self.hardware.links[stage].latency_ns for stage in link.via)
        latency = link.latency_ns if "latency_ns" in link.model_fields_set else latency
        chunks = -(-size // link.chunk_bytes)
        chunk = -(-size // chunks) if chunks else 0
        passes = sorted(work(chunk, rate) for rate in self._stage_rates(link))
        return latency + -(-sum(passes[:-1]) // ONE)

    def copy(self, name: str, rank: int, size: int, now: int, end: Callable[[], None]) -> Flow:
        """The flow of a copy that starts now."""
        link, uses = self.hardware.links[name], self.of_copy(name, rank)
        rate, is_endless = self.bandwidth(link), self.bandwidth(link) == math.inf
        unit = min((int(self.limits[wire]) for wire in uses), default=rate) if is_endless else rate
        cap = ONE if is_endless else reached_cap(link, size)
        even = (rank, name) if link.sharing == "fifo" and link.channels > 1 and not is_endless else None
        return Flow(end, unit, cap, work(size, unit), now + self.lead_ns(link, size), uses, even)


def demands(op: Op, hardware: Hardware) -> tuple[tuple[str, int, int], int]:
    """What an op of the host asks: of its cores (the unit, the most that it reaches, the work there); of the memory."""
    cores = hardware.host_compute
    assert cores is not None
    peak, share = int(cores.peak_flops[op.dtype]), Fraction(str(cores.achieved_fraction.get(op.op_class, 1.0)))
    is_vector = op.op_class == "vector"
    arithmetic = math.ceil(op.flops * 10**9 * ONE / (peak * share if is_vector else Fraction(peak)))
    unit = ("vector", ONE, arithmetic) if is_vector else ("matrix", math.ceil(share * ONE), arithmetic)
    return unit, work(op.read_bytes + op.write_bytes, hardware.tiers[cores.tier].bandwidth_bytes_per_s or 0)


def traffic_share(op: Op, cores: Rates) -> float:
    """The share of the memory's bandwidth that an op of a class reaches."""
    return cores.class_bandwidth.get(op.op_class, cores.achieved_bandwidth_fraction)


def alone_ns(op: Op, hardware: Hardware) -> int:
    """What an op of the host takes alone after its launch [ns]."""
    cores = hardware.host_compute
    assert cores is not None
    peak, share = int(cores.peak_flops[op.dtype]), Fraction(str(cores.achieved_fraction.get(op.op_class, 1.0)))
    _, traffic = demands(op, hardware)
    of_memory = -(-traffic // math.floor(traffic_share(op, cores) * ONE))
    return max(math.ceil(op.flops * 10**9 / (peak * share)), of_memory)


def reached(link: Link, size: int) -> float:
    """The share of a link's bandwidth that a size reaches."""
    points, share = [(p.size_bytes, p.fraction) for p in link.efficiency], 1.0
    if points:
        share = points[0][1] if size <= points[0][0] else points[-1][1]
        for (low, first), (high, last) in pairwise(points):
            if low <= size < high:
                position = (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
                share = first + (last - first) * position
    return share


def reached_cap(link: Link, size: int) -> int:
    """The most that a transfer of a size gets of its link, as a share in 2^-32."""
    share = reached(link, size)
    if link.sharing == "servers":
        share = min(share, 1 / link.channels)
    return max(1, math.floor(share * ONE))


def set_rates(flows: Sequence[Flow], limits: dict[Wire, Fraction]) -> None:
    """Give each flow its part: of its own link first, then max-min of all that it shares."""
    caps: dict[int, Fraction] = {}
    for flow in flows:
        cap = flow.cap if flow.even is None else min(flow.cap, ONE // sum(f.even == flow.even for f in flows))
        caps[id(flow)] = Fraction(cap * _whole(flow.unit), ONE)
    rates = max_min(flows, caps, limits)
    for flow in flows:
        flow.rate = max(1, math.floor(rates[id(flow)] * ONE / _whole(flow.unit)))


def _whole(unit: int | float) -> int:
    return ONE if unit == math.inf else int(unit)


def max_min(flows: Iterable[Flow], caps: dict[int, Fraction], limits: dict[Wire, Fraction]) -> dict[int, Fraction]:
    """Settle the flows that are held back most, again and again [B/s]."""
    rates: dict[int, Fraction] = {}
    left = list(flows)
    while left:
        used, users = dict[Wire, Fraction](), dict[Wire, int]()
        for flow in flows:
            for wire, times in flow.uses.items():
                if id(flow) in rates:
                    used[wire] = used.get(wire, Fraction(0)) + times * rates[id(flow)]
                else:
                    users[wire] = users.get(wire, 0) + times
        parts = {wire: (limits[wire] - used.get(wire, 0)) / count for wire, count in users.items()}
        offers = {id(f): min([caps[id(f)], *(parts[wire] for wire in f.uses)]) for f in left}
        least = min(offers.values())
        rates |= {key: offer for key, offer in offers.items() if offer == least}
        left = [f for f in left if id(f) not in rates]
    return rates
