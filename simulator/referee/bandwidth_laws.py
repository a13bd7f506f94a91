"""Laws of bandwidth: what a link, bus, port or memory carries while it is busy fits its bandwidth times that time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simulator.cost import phases
from simulator.errors import InvariantError
from simulator.graph import CollectiveKind
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY
from simulator.referee.columns import Ints, Moved
from simulator.referee.facts import Facts
from simulator.referee.meeting_laws import Meetings
from simulator.referee.place_laws import sharers
from simulator.scenario import Switches

_NS_PER_S = 10**9


_NOTHING = Moved(*(np.empty(0, np.int64) for _ in Moved._fields))


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
        link, found = hardware.links.get(name), _passing(hardware, (name,), moved)
        rate: int | float
        if link is not None:
            what, rate = f"link {name!r} of rank", link.bandwidth_bytes_per_s
        else:
            fabric = hardware.fabrics[name.rsplit(".", 1)[0]]
            what, rate = f"port {name!r} of rank", fabric.planes * fabric.bandwidth_bytes_per_s
        _check_instances(ranks, what, rate, found.rank, found)
    for name, bus in hardware.buses.items():
        whole = _passing(hardware, bus.links, moved)
        instance, counts = sharers(hardware, stands_in, bus.scope)
        whole = whole._replace(size_bytes=whole.size_bytes * counts[whole.rank])
        _check_instances(ranks, f"bus {name!r} of {bus.scope}", bus.bandwidth_bytes_per_s, instance[whole.rank], whole)
    if switches.hbm_contention:
        _check_memory(ranks, moved, stands_in)


def _check_memory(ranks: Sequence[Facts], moved: Mapping[str, Moved], stands_in: Sequence[int]) -> None:
    """Check the bandwidth of the compute tier: what kernels, copies and collectives read and write there together.

    What is chosen of late reads is left out, and kernels whose duration was measured have no traffic.
    """
    hardware = ranks[0].hardware
    tier = hardware.tiers[hardware.compute_tier]
    if tier.bandwidth_bytes_per_s is None:
        return
    ends = {name: (hardware.compute_tier in (one.source, one.target)) for name, one in hardware.links.items()}
    parts = [_kernels(facts) for facts in ranks] + [part for name, part in moved.items() if ends.get(name, True)]
    whole = Moved(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    instance, counts = sharers(hardware, stands_in, tier.scope)
    whole = whole._replace(size_bytes=whole.size_bytes * counts[whole.rank])
    what = f"memory {hardware.compute_tier!r} of {tier.scope}"
    _check_instances(ranks, what, tier.bandwidth_bytes_per_s, instance[whole.rank], whole)


def _kernels(facts: Facts) -> Moved:
    """What kernels of one rank read and wrote for certain."""
    traffic = [
        0 if op.duration_ns is not None or op.collective is not None else op.read_bytes + op.write_bytes
        for op in facts.graph.ops
    ]
    ran = facts.ran(COMPUTE)
    size = np.array(traffic, np.int64)[facts.a[ran]]
    return Moved(np.full(len(ran), facts.rank), size, facts.start_ns[ran], facts.end_ns[ran])


def _passing(hardware: Hardware, names: Iterable[str], moved: Mapping[str, Moved]) -> Moved:
    """What went over these links or ports together, also on its way from another tier to a third."""
    parts = [
        moved[capped]._replace(size_bytes=times * moved[capped].size_bytes)
        for capped, times in hardware.passing(names).items()
        if capped in moved
    ]
    return Moved(*(np.concatenate(column) for column in zip(_NOTHING, *parts, strict=True)))


def _copied(hardware: Hardware, ranks: Sequence[Facts]) -> dict[str, Moved]:
    """What each link carried."""
    parts = []
    for facts in ranks:
        copies = facts.ran(COPY)
        times = (facts.start_ns[copies], facts.end_ns[copies])
        size = facts.sizes[facts.a[copies]]
        parts.append((facts.track[copies], np.full(len(copies), facts.rank), size, *times))
    track, *rest = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = {}
    for number, name in enumerate(hardware.link_names):
        mine = np.flatnonzero(track == number)
        if len(mine):
            found[name] = Moved(*(column[mine] for column in rest))
    return found


def _sent(hardware: Hardware, met: Meetings) -> dict[str, Moved]:
    """What each port carried: its part of every phase of a collective, at some time in its span."""
    found: dict[str, list[Ints]] = {}
    sizes: dict[str, np.ndarray] = {}
    for sort, (what, members, _) in enumerate(met.sorts):
        for phase in phases(what, members, hardware):
            for way, silent in (("out", CollectiveKind.RECV), ("in", CollectiveKind.SEND)):
                if what.kind is not silent:
                    name = f"{phase.fabric}.{way}"
                    sizes.setdefault(name, np.zeros(len(met.sorts), np.int64))[sort] += phase.port_bytes
    for name, size in sizes.items():
        mine = np.flatnonzero(size[met.sort] > 0)
        found[name] = [met.rank[mine], size[met.sort][mine], met.start_ns[mine], met.end_ns[mine]]
    return {name: Moved(*columns) for name, columns in found.items()}


def _check_instances(ranks: Sequence[Facts], what: str, bandwidth: int | float, instance: Ints, moved: Moved) -> None:
    """Check the stretches of each instance that no later step can be part of; the others are kept for later."""
    if bandwidth == math.inf:
        return
    flows, until_ns = ranks[0].earlier.flows, _settled_ns(ranks)
    if what in flows:
        instance = np.concatenate((flows[what].rank, instance))
        moved = Moved(*(np.concatenate(both) for both in zip(flows[what], moved, strict=True)))
    if not len(instance):
        return
    found = _busy(instance, moved)
    is_settled = found.end_ns <= until_ns if until_ns is not None else np.ones(len(found.rank), bool)
    flows[what] = Moved(*(column[~is_settled] for column in found))
    lasted = (found.end_ns - found.start_ns).astype(float)
    near = found.size_bytes.astype(float) * _NS_PER_S > (1 - 1e-12) * int(bandwidth) * lasted
    for which, size, start, end in zip(*(column[is_settled & near].tolist() for column in found), strict=True):
        if size * _NS_PER_S > int(bandwidth) * (end - start):
            found_said = f"{size:,} B from {start:,} to {end:,} ns at {int(bandwidth):,} B/s"
            law = "a link, a bus, a port or a memory carries at most its bandwidth times its busy time"
            raise InvariantError(f"trace, {what} {which}", law, found_said, "report this: it is a bug of hosim")


def _settled_ns(ranks: Sequence[Facts]) -> int | None:
    """Up to when all that moves is known, if the run goes on: steps are issued in order, and start later."""
    if ranks[0].is_last:
        return None
    return min(int(facts.issued_ns.max(initial=0)) for facts in ranks)


def _busy(instance: Ints, moved: Moved) -> Moved:
    """Stretches in which an instance is busy without a pause, as one flow each."""
    order = np.lexsort((moved.end_ns, moved.start_ns, instance))
    which, size, start, end = (column[order] for column in (instance, moved.size_bytes, moved.start_ns, moved.end_ns))
    stride = int(end.max()) + 2
    reached = np.maximum.accumulate(which * stride + end)
    new = np.flatnonzero(np.append(True, (which * stride + start)[1:] >= reached[:-1]))
    to = reached[np.append(new[1:], len(which)) - 1] - which[new] * stride
    return Moved(which[new], np.add.reduceat(size, new), start[new], to)
