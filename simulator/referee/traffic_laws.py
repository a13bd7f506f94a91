"""Laws of traffic: ranks that meet do so together, and what carries bytes fits its bandwidth times its busy time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from simulator.cost.collectives import collective_ns, phases
from simulator.cost.service import NS_PER_S
from simulator.graph import Call, Collective, CollectiveKind, Job, Members, Roles
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY
from simulator.referee.facts import Facts, broken, hold
from simulator.referee.wait_laws import PEER
from simulator.scenario import Switches
from simulator.trace import NONE, Ints, at_first, busy, firsts, instances, pick, turns


class Meetings(NamedTuple):
    """One row for each span of a collective, those of one meeting in a row, ordered by rank.

    Attributes
    ----------
    meeting, rank, issue
        Which meeting, counted from 0; whose span.
    arrived_ns, start_ns, end_ns
        When the rank had come (at the earliest), and its span [ns].
    row
        Row of the span in the trace.
    sort
        Position in `sorts`.
    sorts
        The kinds of meetings there are: what, of whom, and how many of these have rows of their own.
    """

    meeting: Ints
    rank: Ints
    issue: Ints
    arrived_ns: Ints
    start_ns: Ints
    end_ns: Ints
    row: Ints
    sort: Ints
    sorts: tuple[tuple[Collective, Members, int], ...]


def meetings(job: Job, stands_in: Sequence[int], ranks: Sequence[Facts]) -> Meetings | None:
    """Find the meetings of a trace: the k-th collective of a rank in a group meets the k-th of the other members.

    Parameters
    ----------
    job
        What all ranks ran.
    stands_in
        For each rank the one that was simulated in its place.
    ranks
        The rows of those that were simulated.

    Returns
    -------
    Meetings or None
        None if the job has no collectives.
    """
    roles = [Roles(graph) for graph in job.graphs]
    groups = dict[tuple[str, Members], int]()
    known = dict[tuple[Call, int], tuple[int, int]]()
    numbers, sorts = dict[tuple[Collective | None, int], int](), list[tuple[Collective, Members, int]]()
    columns: list[tuple[Ints, ...]] = []
    for facts in ranks:
        about, key, sort = roles[job.graph_of[facts.rank]], *np.zeros((2, len(facts.program.meets)), np.int64)
        for call, ops in about.ops.items():
            members = about.members[call][facts.rank]
            if (call, id(members)) not in known:
                there = tuple(dict.fromkeys([stands_in[member] for member in members]))
                who = call.group, there if call.role else tuple(sorted(there))
                known[call, id(members)] = groups.setdefault(who, len(groups)), len(there)
            key[ops], simulated = known[call, id(members)]
            for op in ops:
                what = about.graph.ops[op].collective
                if what is not None and (what, id(members)) not in numbers:
                    sorts.append((what, members, simulated))
                sort[op] = numbers.setdefault((what, id(members)), len(numbers))
        ran, op = facts.met, facts.a[facts.met]
        times = (facts.arrived_ns[ran], facts.start_ns[ran], facts.end_ns[ran], facts.row[ran])
        columns.append((key[op], np.full(len(ran), facts.rank), ran, *times, sort[op]))
    if not groups:
        return None
    key, rank, *rest = (np.concatenate(column) for column in zip(*columns, strict=True))
    turn = turns(key * len(stands_in) + rank)
    order = np.lexsort((rank, turn, key))
    meeting = np.cumsum(firsts(key[order], turn[order]), dtype=np.int64) - 1
    issue, arrived, start, end, row, sort = (column[order] for column in rest)
    return Meetings(meeting, rank[order], issue, arrived, start, end, row, sort, tuple(sorts))


def check_meetings(hardware: Hardware, found: Meetings, *, complete: bool, contended: bool) -> None:
    """Check that all members of a meeting are there, start and end together, and take their time.

    Parameters
    ----------
    hardware, found
        The machine, and all meetings of a trace.
    complete
        Whether the run came to its end.
    contended
        Whether collectives share the memory with kernels and copies.
    """
    n = int(found.meeting[-1]) + 1 if len(found.meeting) else 0
    there = np.bincount(found.meeting, minlength=n)[found.meeting]
    expected = np.array([simulated for _, _, simulated in found.sorts], np.int64)[found.sort]
    law = "all members of a collective take part in it"
    _check(found, (there == expected) | (not complete), law, ("ranks", there))
    for name, times in (("start", found.start_ns), ("end", found.end_ns)):
        of_first = at_first(firsts(found.meeting), times)
        shown = ((f"its {name}_ns", times), ("that of its first member", of_first))
        _check(found, times == of_first, f"the members of a collective {name} at the same instant", *shown)
    took = found.end_ns - found.start_ns
    alone = np.array([_alone_ns(what, members, hardware) for what, members, _ in found.sorts], np.int64)[found.sort]
    shown = ("takes ns", took), ("alone ns", alone)
    _check(found, took >= alone, "a collective takes at least its time alone", *shown)
    if not contended and all(name in hardware.links for bus in hardware.buses.values() for name in bus.links):
        disturbed = np.bincount(found.meeting, _overlaps(found), n)[found.meeting] > 0
        law = "a collective takes its time alone if its members are in no other meanwhile"
        _check(found, disturbed | (took == alone), law, *shown)


def _check(found: Meetings, holds: np.ndarray, law: str, *shown: tuple[str, Ints]) -> None:
    def where(i: int) -> str:
        what, members, _ = found.sorts[int(found.sort[i])]
        return (
            f"trace, spans row {int(found.row[i]):,} ({what.kind} of rank {int(found.rank[i])} among {_said(members)})"
        )

    hold(holds, law, where, *shown)


def _said(members: Members) -> str:
    few = ", ".join(map(str, members[:4]))
    return f"ranks {few} and {len(members) - 4:,} more" if len(members) > 4 else f"ranks {few}"


def _alone_ns(what: Collective, members: Members, hardware: Hardware) -> int:
    """The closed form, but at least what all ports of a member together need for the bytes that must move [ns]."""
    rates, n = [fabric.planes * fabric.bandwidth_bytes_per_s for fabric in hardware.fabrics.values()], len(members)
    closed_ns = collective_ns(what, members, hardware)
    if n == 1 or not rates or math.inf in rates:
        return closed_ns
    share = Fraction(_LEAST[what.kind] * (n - 1), n) if what.kind in _LEAST else Fraction(1)
    return max(closed_ns, math.ceil(share * what.size_bytes * NS_PER_S / sum(map(int, rates))))


_LEAST = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
}
"""How often all but its own share of the size must leave, or reach, a member, whatever the algorithm; of other kinds
the whole size must, once."""


def _overlaps(found: Meetings) -> np.ndarray:
    """Whether another collective of the same rank is under way during some of each span."""
    order, first, _ = busy(found.rank, found.start_ns, found.end_ns, joins=False)
    together = np.diff(np.append(first, len(order)))
    overlapping = np.empty(len(order), bool)
    overlapping[order] = np.repeat(together > 1, together)
    return overlapping


def check_peers(found: Meetings, ranks: Sequence[Facts], stands_in: Sequence[int]) -> None:
    """Check that the rank that a collective waits for is a member, and comes when the wait ends or later.

    Parameters
    ----------
    found
        All meetings of a trace that came to its end.
    ranks
        The rows of those that were simulated.
    stands_in
        For each rank the one that was simulated in its place.

    Notes
    -----
    Of ranks that met in no time it is not known when they came if they waited for another such meeting just before;
    they are left out.
    """
    is_hasty, n = np.zeros(len(stands_in), bool), len(stands_in)
    is_hasty[found.rank[found.end_ns == found.start_ns]] = True
    known, by = np.append(found.meeting * n + found.rank, NONE), np.array(stands_in)
    for facts in ranks:
        mine, row_of = np.flatnonzero(found.rank == facts.rank), np.full(len(facts.kind), NONE)
        row_of[found.issue[mine]] = mine
        waits = pick(facts.waits, (facts.waits["cause"] == PEER) & (row_of[facts.waits["issue"]] != NONE))
        waits = pick(waits, waits["end_ns"] > found.arrived_ns[row_of[waits["issue"]]])
        row, on = row_of[waits["issue"]], waits["on"]
        is_member = [peer in found.sorts[sort][1] for peer, sort in zip(on.tolist(), found.sort[row], strict=True)]
        law = "a rank waits for a member of the meeting"
        facts.check_steps(waits["issue"], np.array(is_member, bool), law, ("rank", on))
        there = found.meeting[row] * n + by[on]
        at = np.searchsorted(known[:-1], there)
        arrived_ns = np.where(known[at] == there, np.append(found.arrived_ns, NONE)[at], NONE)
        law = "a wait for a peer ends when that rank comes, or before"
        shown = ("rank", on), ("there at ns", arrived_ns)
        holds = is_hasty[by[on]] | (arrived_ns >= waits["end_ns"])
        facts.check_steps(waits["issue"], holds, law, ("end_ns", waits["end_ns"]), *shown)


_KERNELS = ""
"""In place of the name of a link or port: what kernels read and write for certain."""


def check_bandwidth(
    hardware: Hardware, stands_in: Sequence[int], switches: Switches, ranks: Sequence[Facts], met: Meetings | None
) -> None:
    """Check each link, port, and instance of a bus, in each stretch in which it is busy without a pause.

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
    ranks
        The rows of those that were simulated.
    met
        The meetings of the trace, if there are any.

    Notes
    -----
    Rates are rounded down and a span ends at the first whole ns at which all has been moved, so that the law holds
    without a tolerance. A stretch in which nothing is under way before it and behind it holds all the bytes of its
    spans.
    """
    ports = {
        f"{name}.{way}": fabric.planes * fabric.bandwidth_bytes_per_s
        for name, fabric in hardware.fabrics.items()
        for way in ("out", "in")
    }
    ids = {name: number for number, name in enumerate((*hardware.link_names, *ports, _KERNELS))}
    rows = np.concatenate([*_carried(ranks, ids), *_sent(hardware, met, ids)], axis=1)
    sharing = hardware.topology.sharing
    for what, scope, rate, passing in _carriers(hardware, ports, switches):
        times = np.array([passing.get(name, 0) for name in ids])
        instance, counts = instances(sharing[scope], stands_in)
        name, rank, size, start, end = rows[:, times[rows[0]] > 0]
        where, size = instance[rank], size * counts[rank] * times[name]
        order, first, until = busy(where, start, end, joins=False)
        if rate != math.inf and len(order):
            stretches = where[order][first], np.add.reduceat(size[order], first), start[order][first], until
            _check_stretches(what, int(rate), np.stack(stretches))


def _carriers(
    hardware: Hardware, ports: Mapping[str, int | float], switches: Switches
) -> Iterator[tuple[str, str, int | float, Mapping[str, int]]]:
    """What has a bandwidth: its name, who has an instance, its rate [B/s], and how often what passes it."""
    for name, link in hardware.links.items():
        yield f"link {name!r} of rank", "device", link.bandwidth_bytes_per_s, hardware.passing((name,))
    for name, rate in ports.items():
        yield f"port {name!r} of rank", "device", rate, hardware.passing((name,))
    for name, bus in hardware.buses.items():
        yield f"bus {name!r} of {bus.scope}", bus.scope, bus.bandwidth_bytes_per_s, hardware.passing(bus.links)
    here = hardware.compute_tier
    memory = hardware.tiers[here]
    if switches.hbm_contention and memory.bandwidth_bytes_per_s is not None:
        ends = [name for name, link in hardware.links.items() if here in (link.source, link.target)]
        passing = dict.fromkeys((_KERNELS, *ends, *ports), 1)
        yield f"memory {here!r} of {memory.scope}", memory.scope, memory.bandwidth_bytes_per_s, passing


def _carried(ranks: Sequence[Facts], ids: Mapping[str, int]) -> Iterator[Ints]:
    """What goes over links, and what kernels read and write for certain: id of the name, rank, bytes, start and end."""
    for facts in ranks:
        ops, copies, computes = facts.program.graph.ops, facts.ran(COPY), facts.ran(COMPUTE)
        has_traffic = [op.duration_ns is None and op.collective is None for op in ops]
        traffic = np.array([op.read_bytes + op.write_bytes for op in ops], np.int64) * has_traffic
        kernels = np.full(len(computes), ids[_KERNELS])
        links = copies, facts.track[copies], facts.program.sizes
        for issues, name, size in (links, (computes, kernels, traffic)):
            rank = np.full(len(issues), facts.rank)
            yield np.stack((name, rank, size[facts.a[issues]], facts.start_ns[issues], facts.end_ns[issues]))


def _sent(hardware: Hardware, met: Meetings | None, ids: Mapping[str, int]) -> Iterator[Ints]:
    """What goes over ports: their part of every phase of each collective, at some time in its span."""
    if met is None:
        return
    sizes: dict[str, Ints] = {}
    for sort, (what, members, _) in enumerate(met.sorts):
        for phase in phases(what, members, hardware):
            for way, silent in (("out", CollectiveKind.RECV), ("in", CollectiveKind.SEND)):
                if what.kind is not silent:
                    size = sizes.setdefault(f"{phase.fabric}.{way}", np.zeros(len(met.sorts), np.int64))
                    size[sort] += phase.port_bytes
    for name, size in sizes.items():
        port = np.full(len(met.rank), ids[name])
        rows = np.stack((port, met.rank, size[met.sort], met.start_ns, met.end_ns))
        yield rows[:, rows[2] > 0]


def _check_stretches(what: str, rate: int, stretches: Ints) -> None:
    _, size, start, end = stretches
    near = size.astype(float) * NS_PER_S > (1 - 1e-12) * rate * (end - start).astype(float)
    for which, carried, since, until in stretches[:, near].T.tolist():
        if carried * NS_PER_S > rate * (until - since):
            law = "a link, a bus, a port or a memory carries at most its bandwidth times its busy time"
            found = f"{carried:,} B from {since:,} to {until:,} ns at {rate:,} B/s"
            raise broken(f"trace, {what} {which}", law, found)
