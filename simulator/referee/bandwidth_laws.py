"""Laws of bandwidth: what a link, bus, port or memory carries while it is busy fits its bandwidth times that time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simulator.columns import Ints, busy
from simulator.cost import NS_PER_S, phases
from simulator.graph import CollectiveKind
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY
from simulator.referee.breach import broken
from simulator.referee.earlier import Moved
from simulator.referee.facts import Facts
from simulator.referee.meeting_laws import Meetings
from simulator.scenario import Switches
from simulator.trace import instances


def check_bandwidth(ranks: Sequence[Facts], met: Meetings | None, stands_in: Sequence[int], switches: Switches) -> None:
    """Check each link, each port, and each instance of a bus, in each stretch in which it is busy without a pause.

    So is the memory of the compute tier, if kernels, copies and collectives share its bandwidth.

    Parameters
    ----------
    ranks
        The rows of those that were simulated.
    met
        The meetings of the trace, if there are any.
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
    hardware = ranks[0].hardware
    moved = {**_copied(hardware, ranks), **(_sent(hardware, met) if met is not None else {})}
    for name in dict.fromkeys((*moved, *hardware.links)):
        rate: int | float
        if name in hardware.links:
            what, rate = f"link {name!r} of rank", hardware.links[name].bandwidth_bytes_per_s
        else:
            fabric = hardware.fabrics[name.rsplit(".", 1)[0]]
            what, rate = f"port {name!r} of rank", fabric.planes * fabric.bandwidth_bytes_per_s
        _check_instances(ranks, stands_in, what, ("device", rate), _passing(hardware, (name,), moved))
    for name, bus in hardware.buses.items():
        what, limit = f"bus {name!r} of {bus.scope}", (bus.scope, bus.bandwidth_bytes_per_s)
        _check_instances(ranks, stands_in, what, limit, _passing(hardware, bus.links, moved))
    tier = hardware.tiers[hardware.compute_tier]
    if switches.hbm_contention and tier.bandwidth_bytes_per_s is not None:
        what, limit = f"memory {hardware.compute_tier!r} of {tier.scope}", (tier.scope, tier.bandwidth_bytes_per_s)
        _check_instances(ranks, stands_in, what, limit, _in_memory(ranks, moved))


def _in_memory(ranks: Sequence[Facts], moved: Mapping[str, Moved]) -> Moved:
    """What kernels, copies and collectives read and write in the compute tier together.

    What is chosen of late reads is left out, and kernels whose duration was measured have no traffic.
    """
    hardware = ranks[0].hardware
    ends = {name: (hardware.compute_tier in (one.source, one.target)) for name, one in hardware.links.items()}
    carried = [part for name, part in moved.items() if ends.get(name, True)]
    return _joined([*(_kernels(facts) for facts in ranks), *carried])


def _kernels(facts: Facts) -> Moved:
    """What kernels of one rank read and wrote for certain."""
    traffic = [
        0 if op.duration_ns is not None or op.collective is not None else op.read_bytes + op.write_bytes
        for op in facts.graph.ops
    ]
    ran = facts.ran(COMPUTE)
    return _moved(facts, ran, np.array(traffic, np.int64)[facts.a[ran]])


def _moved(facts: Facts, issues: Ints, size: Ints) -> Moved:
    return Moved(np.full(len(issues), facts.rank), size, facts.start_ns[issues], facts.end_ns[issues])


def _joined(parts: Iterable[Moved]) -> Moved:
    nothing = Moved(*(np.empty(0, np.int64) for _ in Moved._fields))
    return Moved(*(np.concatenate(column) for column in zip(nothing, *parts, strict=True)))


def _passing(hardware: Hardware, names: Iterable[str], moved: Mapping[str, Moved]) -> Moved:
    """What went over these links or ports together, also on its way from another tier to a third."""
    capped = {name: times for name, times in hardware.passing(names).items() if name in moved}
    return _joined(moved[name]._replace(size_bytes=times * moved[name].size_bytes) for name, times in capped.items())


def _copied(hardware: Hardware, ranks: Sequence[Facts]) -> dict[str, Moved]:
    """What each link carried, of those that carried something."""
    copies, found = [(facts, facts.ran(COPY)) for facts in ranks], {}
    for number, name in enumerate(hardware.link_names):
        mine = ((facts, issues[facts.track[issues] == number]) for facts, issues in copies)
        found[name] = _joined(_moved(facts, issues, facts.sizes[facts.a[issues]]) for facts, issues in mine)
    return {name: part for name, part in found.items() if len(part.rank)}


def _sent(hardware: Hardware, met: Meetings) -> dict[str, Moved]:
    """What each port carried: its part of every phase of a collective, at some time in its span."""
    sizes: dict[str, Ints] = {}
    for sort, (what, members, _) in enumerate(met.sorts):
        for phase in phases(what, members, hardware):
            for way, silent in (("out", CollectiveKind.RECV), ("in", CollectiveKind.SEND)):
                if what.kind is not silent:
                    name = f"{phase.fabric}.{way}"
                    sizes.setdefault(name, np.zeros(len(met.sorts), np.int64))[sort] += phase.port_bytes
    found = {}
    for name, size in sizes.items():
        mine = np.flatnonzero(size[met.sort] > 0)
        found[name] = Moved(met.rank[mine], size[met.sort][mine], met.start_ns[mine], met.end_ns[mine])
    return found


def _check_instances(
    ranks: Sequence[Facts], stands_in: Sequence[int], what: str, limit: tuple[str, int | float], moved: Moved
) -> None:
    """Check the stretches of each instance that no later step can be part of; the others are kept for later."""
    scope, bandwidth = limit
    if bandwidth == math.inf:
        return
    flows, until_ns = ranks[0].earlier.flows, _settled_ns(ranks)
    instance, counts = instances(scope, ranks[0].hardware.topology.devices_per_node, stands_in)
    moved = moved._replace(rank=instance[moved.rank], size_bytes=moved.size_bytes * counts[moved.rank])
    moved = _joined([flows[what], moved]) if what in flows else moved
    if not len(moved.rank):
        return
    order, first, end = busy(moved.rank, moved.start_ns, moved.end_ns, joins=False)
    size, start = np.add.reduceat(moved.size_bytes[order], first), moved.start_ns[order][first]
    found = Moved(moved.rank[order][first], size, start, end)
    is_settled = found.end_ns <= until_ns if until_ns is not None else np.ones(len(found.rank), bool)
    flows[what] = Moved(*(column[~is_settled] for column in found))
    lasted = (found.end_ns - found.start_ns).astype(float)
    near = found.size_bytes.astype(float) * NS_PER_S > (1 - 1e-12) * int(bandwidth) * lasted
    for which, carried, since, until in zip(*(column[is_settled & near].tolist() for column in found), strict=True):
        if carried * NS_PER_S > int(bandwidth) * (until - since):
            said = f"{carried:,} B from {since:,} to {until:,} ns at {int(bandwidth):,} B/s"
            law = "a link, a bus, a port or a memory carries at most its bandwidth times its busy time"
            raise broken(f"trace, {what} {which}", law, said)


def _settled_ns(ranks: Sequence[Facts]) -> int | None:
    """Up to when all that moves is known, if the run goes on: steps are issued in order, and start later."""
    if ranks[0].is_last:
        return None
    return min(int(facts.issued_ns.max(initial=0)) for facts in ranks)
