"""Laws of traffic: members of a collective run it together, and no wire carries more than its bandwidth allows."""

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
from simulator.referee.facts import Facts, broken, require
from simulator.referee.load_laws import Loads
from simulator.referee.wait_laws import PEER
from simulator.trace import NONE, Ints, at_first, busy, firsts, instances, ordinals, pick


class Meetings(NamedTuple):
    """One row for each span of a collective, those of one meeting in a row, ordered by rank.

    Attributes
    ----------
    meeting, rank, issue
        The meeting, counted from 0; the rank and the action of the span.
    arrived_ns, start_ns, end_ns
        When the rank arrived (at the earliest), and its span [ns].
    row
        Row of the span in the trace.
    sort
        Position in `sorts`.
    sorts
        The kinds of meetings: collective, members, and how many of these were simulated.
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
    group_of = dict[tuple[Call, int], tuple[int, int]]()
    sort_of, sorts = dict[tuple[Collective | None, int], int](), list[tuple[Collective, Members, int]]()
    columns: list[tuple[Ints, ...]] = []
    for facts in ranks:
        rank_roles, key, sort = roles[job.graph_of[facts.rank]], *np.zeros((2, len(facts.program.meets)), np.int64)
        for call, ops in rank_roles.ops.items():
            members = rank_roles.members[call][facts.rank]
            if (call, id(members)) not in group_of:
                ranks_there = tuple(dict.fromkeys([stands_in[member] for member in members]))
                group = call.group, ranks_there if call.role else tuple(sorted(ranks_there))
                group_of[call, id(members)] = groups.setdefault(group, len(groups)), len(ranks_there)
            key[ops], simulated = group_of[call, id(members)]
            for op in ops:
                collective = rank_roles.graph.ops[op].collective
                if collective is not None and (collective, id(members)) not in sort_of:
                    sorts.append((collective, members, simulated))
                sort[op] = sort_of.setdefault((collective, id(members)), len(sort_of))
        ran, op = facts.met, facts.a[facts.met]
        times = (facts.arrived_ns[ran], facts.start_ns[ran], facts.end_ns[ran], facts.row[ran])
        columns.append((key[op], np.full(len(ran), facts.rank), ran, *times, sort[op]))
    if not groups:
        return None
    key, rank, *rest = (np.concatenate(column) for column in zip(*columns, strict=True))
    turn = ordinals(key * len(stands_in) + rank)
    order = np.lexsort((rank, turn, key))
    meeting = np.cumsum(firsts(key[order], turn[order]), dtype=np.int64) - 1
    issue, arrived, start, end, row, sort = (column[order] for column in rest)
    return Meetings(meeting, rank[order], issue, arrived, start, end, row, sort, tuple(sorts))


def check_meetings(hardware: Hardware, met: Meetings, *, complete: bool, contended: bool) -> None:
    """Check that all members of a meeting are there, start and end together, and take their time.

    Parameters
    ----------
    hardware, met
        The machine, and all meetings of a trace.
    complete
        Whether the run came to its end.
    contended
        Whether collectives share the memory with kernels and copies.
    """
    n = int(met.meeting[-1]) + 1 if len(met.meeting) else 0
    ranks = np.bincount(met.meeting, minlength=n)[met.meeting]
    expected = np.array([simulated for _, _, simulated in met.sorts], np.int64)[met.sort]
    law = "all members of a collective take part in it"
    _check(met, (ranks == expected) | (not complete), law, ("ranks", ranks))
    for name, times in (("start", met.start_ns), ("end", met.end_ns)):
        of_first = at_first(firsts(met.meeting), times)
        shown = ((f"its {name}_ns", times), ("that of its first member", of_first))
        _check(met, times == of_first, f"the members of a collective {name} at the same instant", *shown)
    took = met.end_ns - met.start_ns
    alone = np.array([_alone_ns(call, members, hardware) for call, members, _ in met.sorts], np.int64)[met.sort]
    shown = ("takes ns", took), ("alone ns", alone)
    _check(met, took >= alone, "a collective takes at least its time alone", *shown)
    if not contended and all(name in hardware.links for bus in hardware.caps.values() for name in bus.links):
        disturbed = np.bincount(met.meeting, _overlaps(met), n)[met.meeting] > 0
        law = "a collective takes its time alone if its members are in no other meanwhile"
        _check(met, disturbed | (took == alone), law, *shown)


def _check(met: Meetings, holds: np.ndarray, law: str, *shown: tuple[str, Ints]) -> None:
    def where(i: int) -> str:
        call, members, _ = met.sorts[int(met.sort[i])]
        about = f"{call.kind} of rank {int(met.rank[i])} among {_ranks_text(members)}"
        return f"trace, spans row {int(met.row[i]):,} ({about})"

    require(holds, law, where, *shown)


def _ranks_text(members: Members) -> str:
    few = ", ".join(map(str, members[:4]))
    return f"ranks {few} and {len(members) - 4:,} more" if len(members) > 4 else f"ranks {few}"


def _alone_ns(call: Collective, members: Members, hardware: Hardware) -> int:
    """Return the closed form, but at least the time that all ports of a member need for what must move [ns]."""
    rates, n = [fabric.planes * fabric.bandwidth_bytes_per_s for fabric in hardware.fabrics.values()], len(members)
    closed_ns = collective_ns(call, members, hardware)
    if n == 1 or not rates or math.inf in rates:
        return closed_ns
    share = Fraction(_LEAST[call.kind] * (n - 1), n) if call.kind in _LEAST else Fraction(1)
    return max(closed_ns, math.ceil(share * call.size_bytes * NS_PER_S / sum(map(int, rates))))


_LEAST = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
}
"""Times that the size, less the member's own share, must leave or reach a member by any algorithm; of other kinds the
whole size must, once."""


def _overlaps(met: Meetings) -> np.ndarray:
    """Flag the spans during which another collective of the same rank is under way."""
    order, first, _ = busy(met.rank, met.start_ns, met.end_ns, joins=False)
    together = np.diff(np.append(first, len(order)))
    overlapping = np.empty(len(order), bool)
    overlapping[order] = np.repeat(together > 1, together)
    return overlapping


def check_peers(met: Meetings, ranks: Sequence[Facts], stands_in: Sequence[int]) -> None:
    """Check that the rank that a collective waits for is a member, and arrives when the wait ends or later.

    Parameters
    ----------
    met
        All meetings of a trace that came to its end.
    ranks
        The rows of those that were simulated.
    stands_in
        For each rank the one that was simulated in its place.

    Notes
    -----
    Ranks with a collective of 0 ns are left out: it is not known when they arrived if they waited for another such
    meeting just before.
    """
    is_hasty, n = np.zeros(len(stands_in), bool), len(stands_in)
    is_hasty[met.rank[met.end_ns == met.start_ns]] = True
    keys, by = np.append(met.meeting * n + met.rank, NONE), np.array(stands_in)
    for facts in ranks:
        rows, row_of = np.flatnonzero(met.rank == facts.rank), np.full(len(facts.kind), NONE)
        row_of[met.issue[rows]] = rows
        waits = pick(facts.waits, (facts.waits["cause"] == PEER) & (row_of[facts.waits["issue"]] != NONE))
        waits = pick(waits, waits["end_ns"] > met.arrived_ns[row_of[waits["issue"]]])
        row, on = row_of[waits["issue"]], waits["on"]
        is_member = [peer in met.sorts[sort][1] for peer, sort in zip(on.tolist(), met.sort[row], strict=True)]
        law = "a rank waits for a member of the meeting"
        facts.check_actions(waits["issue"], np.array(is_member, bool), law, ("rank", on))
        key = met.meeting[row] * n + by[on]
        match = np.searchsorted(keys[:-1], key)
        arrived_ns = np.where(keys[match] == key, np.append(met.arrived_ns, NONE)[match], NONE)
        law = "a wait for a peer ends when that rank comes, or before"
        shown = ("rank", on), ("there at ns", arrived_ns)
        holds = is_hasty[by[on]] | (arrived_ns >= waits["end_ns"])
        facts.check_actions(waits["issue"], holds, law, ("end_ns", waits["end_ns"]), *shown)


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
    for carrier in (*_carriers(hardware, ports), *_of_devices(contended, ports)):
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


def _carriers(hardware: Hardware, ports: Mapping[str, int | float]) -> Iterator[_Carrier]:
    """Yield all that has a bandwidth or a peak."""
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
    for unit in _UNITS if cores else ():
        scope = hardware.tiers[cores.tier].scope if cores else "device"
        yield _Carrier(f"{unit} unit of the host of {scope}", scope, _PER_NS * NS_PER_S, {_HOST + unit: 1})


def _of_devices(contended: Sequence[Facts], ports: Mapping[str, int | float]) -> Iterator[_Carrier]:
    """Yield the memories and the units of devices that kernels share, those with the same bandwidth as one."""
    by_rate: dict[int | float, list[int]] = {}
    for facts in contended:
        hardware = facts.program.hardware
        rate = hardware.tiers[hardware.compute_tier].bandwidth_bytes_per_s
        by_rate.setdefault(math.inf if rate is None else rate, []).append(facts.rank)
    for rate, ranks in by_rate.items():
        ends = [name for name, link in hardware.links.items() if hardware.compute_tier in (link.source, link.target)]
        passing = dict.fromkeys((_KERNELS, *ends, *ports), 1)
        yield _Carrier(f"memory {hardware.compute_tier!r} of device", "device", rate, passing, ranks)
    for unit in _UNITS:
        all_ranks = [facts.rank for facts in contended]
        yield _Carrier(f"{unit} unit of rank", "device", _PER_NS * NS_PER_S, {unit: 1}, all_ranks)


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
