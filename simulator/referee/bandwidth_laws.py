"""Laws of bandwidth: what a link, bus, port or memory carries while it is busy fits its bandwidth times that time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simulator.columns import Ints, busy
from simulator.cost import NS_PER_S, phases
from simulator.graph import CollectiveKind
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY
from simulator.referee.breach import broken
from simulator.referee.facts import Facts
from simulator.referee.meeting_laws import Meetings
from simulator.scenario import Switches
from simulator.trace import instances

_KERNELS = ""
"""In place of the name of a link or port: what kernels read and write for certain."""


class Bandwidth:
    """Checks each link, port, and instance of a bus, in each stretch in which it is busy without a pause.

    So is the memory of the compute tier, if kernels, copies and collectives share its bandwidth. What is chosen of late
    reads is left out there, and kernels whose duration was measured have no traffic.

    Parameters
    ----------
    hardware
        The machine.
    stands_in
        For each rank the one that was simulated in its place.
    switches
        How the machine is read.

    Notes
    -----
    Rates are rounded down and a span ends at the first whole ns at which all has been moved, so that the law holds
    without a tolerance. A stretch in which nothing is under way before it and behind it holds all the bytes of its
    spans.
    """

    def __init__(self, hardware: Hardware, stands_in: Sequence[int], switches: Switches) -> None:
        self._hardware = hardware
        here, links, fabrics = hardware.compute_tier, hardware.links.items(), hardware.fabrics.items()
        ports = {f"{name}.{way}": f.planes * f.bandwidth_bytes_per_s for name, f in fabrics for way in ("out", "in")}
        carriers: list[tuple[str, str, int | float, Mapping[str, int]]] = [
            *((f"link {n!r} of rank", "device", k.bandwidth_bytes_per_s, hardware.passing((n,))) for n, k in links),
            *((f"port {n!r} of rank", "device", rate, hardware.passing((n,))) for n, rate in ports.items()),
        ]
        for name, bus in hardware.buses.items():
            what, rate = f"bus {name!r} of {bus.scope}", bus.bandwidth_bytes_per_s
            carriers.append((what, bus.scope, rate, hardware.passing(bus.links)))
        memory = hardware.tiers[here]
        if switches.hbm_contention and memory.bandwidth_bytes_per_s is not None:
            ends = [name for name, link in links if here in (link.source, link.target)]
            passing = dict.fromkeys((_KERNELS, *ends, *ports), 1)
            carriers.append((f"memory {here!r} of {memory.scope}", memory.scope, memory.bandwidth_bytes_per_s, passing))
        on_node = hardware.topology.devices_per_node
        self._carriers = [
            (what, int(rate), instances(scope, on_node, stands_in), passing)
            for what, scope, rate, passing in carriers
            if rate != math.inf
        ]
        self._under_way = {what: np.empty((4, 0), np.int64) for what, *_ in self._carriers}

    def check(self, ranks: Sequence[Facts], met: Meetings | None) -> None:
        """Check the stretches that no later step can be part of; the others are kept for later.

        Parameters
        ----------
        ranks
            The rows of those that were simulated.
        met
            The meetings of the trace, if there are any.
        """
        moved = {**self._copied(ranks), _KERNELS: _of_kernels(ranks), **self._sent(met)}
        until_ns = min(int(facts.issued_ns.max(initial=0)) for facts in ranks)
        for what, rate, (instance, counts), passing in self._carriers:
            rows = [
                moved[name] * np.array([[1], [times], [1], [1]]) for name, times in passing.items() if name in moved
            ]
            rank, size, start, end = np.concatenate([np.empty((4, 0), np.int64), *rows], axis=1)
            new = np.stack((instance[rank], size * counts[rank], start, end))
            which, size, start, end = np.concatenate((self._under_way[what], new), axis=1)
            order, first, until = busy(which, start, end, joins=False)
            if not len(order):
                continue
            stretches = np.stack((which[order][first], np.add.reduceat(size[order], first), start[order][first], until))
            is_settled = np.full(len(first), True) if ranks[0].is_last else until <= until_ns
            self._under_way[what] = stretches[:, ~is_settled]
            _check_stretches(what, rate, stretches[:, is_settled])

    def _copied(self, ranks: Sequence[Facts]) -> dict[str, Ints]:
        """By link, whose bytes, how many, from when to when."""
        every = np.concatenate([_moved(facts, facts.ran(COPY), facts.program.sizes) for facts in ranks], axis=1)
        track = np.concatenate([facts.track[facts.ran(COPY)] for facts in ranks])
        return {name: every[:, track == number] for number, name in enumerate(self._hardware.link_names)}

    def _sent(self, met: Meetings | None) -> dict[str, Ints]:
        """By port, its part of every phase of each collective, at some time in its span."""
        if met is None:
            return {}
        sizes: dict[str, Ints] = {}
        for sort, (what, members, _) in enumerate(met.sorts):
            for phase in phases(what, members, self._hardware):
                for way, silent in (("out", CollectiveKind.RECV), ("in", CollectiveKind.SEND)):
                    if what.kind is not silent:
                        size = sizes.setdefault(f"{phase.fabric}.{way}", np.zeros(len(met.sorts), np.int64))
                        size[sort] += phase.port_bytes
        rows = {name: np.stack((met.rank, size[met.sort], met.start_ns, met.end_ns)) for name, size in sizes.items()}
        return {name: sent[:, sent[1] > 0] for name, sent in rows.items()}


def _of_kernels(ranks: Sequence[Facts]) -> Ints:
    rows = []
    for facts in ranks:
        has_traffic = [op.duration_ns is None and op.collective is None for op in facts.program.graph.ops]
        traffic = [op.read_bytes + op.write_bytes for op in facts.program.graph.ops]
        rows.append(_moved(facts, facts.ran(COMPUTE), np.array(traffic, np.int64) * has_traffic))
    return np.concatenate(rows, axis=1)


def _moved(facts: Facts, issues: Ints, sizes: Ints) -> Ints:
    """Rank, bytes, start and end of these steps; sizes are those of their ops, or tensors."""
    rank = np.full(len(issues), facts.rank)
    return np.stack((rank, sizes[facts.a[issues]], facts.start_ns[issues], facts.end_ns[issues]))


def _check_stretches(what: str, rate: int, stretches: Ints) -> None:
    _, size, start, end = stretches
    near = size.astype(float) * NS_PER_S > (1 - 1e-12) * rate * (end - start).astype(float)
    for which, carried, since, until in stretches[:, near].T.tolist():
        if carried * NS_PER_S > rate * (until - since):
            law = "a link, a bus, a port or a memory carries at most its bandwidth times its busy time"
            found = f"{carried:,} B from {since:,} to {until:,} ns at {rate:,} B/s"
            raise broken(f"trace, {what} {which}", law, found)
