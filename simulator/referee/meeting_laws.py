"""Laws of ranks that meet: together from start to end, no faster than alone, and whoever waits is right about whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from simulator.columns import Ints, at_first, busy, firsts, turns
from simulator.cost import NS_PER_S, collective_ns
from simulator.graph import Call, Collective, CollectiveKind, Job, Members, Roles
from simulator.hardware import Hardware
from simulator.referee.breach import broken
from simulator.referee.facts import Facts, Intervals
from simulator.trace import CAUSES, pick


@dataclass(frozen=True, slots=True)
class Meetings:
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


class _Keys:
    """Numbers meetings: by group and the simulated ones of its members; by collective and members.

    Parameters
    ----------
    job
        What all ranks run.
    stands_in
        For each rank the one that is simulated in its place.

    Attributes
    ----------
    sorts
        As of `Meetings`.
    """

    def __init__(self, job: Job, stands_in: Sequence[int]) -> None:
        self._job, self._stands_in = job, stands_in
        self._roles = [Roles(graph) for graph in job.graphs]
        self._keys: dict[tuple[str, Members], int] = {}
        self._known: dict[tuple[Call, int], tuple[int, int]] = {}
        self._sorts: dict[tuple[Collective, int], int] = {}
        self.sorts: list[tuple[Collective, Members, int]] = []

    def of_ops(self, rank: int) -> tuple[Ints, Ints]:
        """For each op of a rank's graph: the number of whom it meets, and of what it does with them; -1 if nobody."""
        roles = self._roles[self._job.graph_of[rank]]
        key, sort = (np.full(len(roles.graph.ops), -1, np.int64) for _ in range(2))
        for call, ops in roles.ops.items():
            members = roles.members[call][rank]
            key[ops], simulated = self._key(call, members)
            for op in ops:
                about = roles.graph.ops[op].collective
                if about is not None:
                    sort[op] = self._sort(about, members, simulated)
        return key, sort

    def _key(self, call: Call, members: Members) -> tuple[int, int]:
        """The number of those who meet, and how many of them are simulated; of one object of members found once."""
        known = call, id(members)
        if known not in self._known:
            found = tuple(dict.fromkeys([self._stands_in[member] for member in members]))
            met = call.group, found if call.role else tuple(sorted(found))
            self._known[known] = self._keys.setdefault(met, len(self._keys)), len(found)
        return self._known[known]

    def _sort(self, about: Collective, members: Members, simulated: int) -> int:
        found = self._sorts.setdefault((about, id(members)), len(self.sorts))
        if found == len(self.sorts):
            self.sorts.append((about, members, simulated))
        return found


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
    keys = _Keys(job, stands_in)
    columns: list[tuple[Ints, ...]] = []
    for facts in ranks:
        if facts.program.meets.any():
            key, sort = keys.of_ops(facts.rank)
            ran, op = facts.met, facts.a[facts.met]
            times = (facts.arrived_ns[ran], facts.start_ns[ran], facts.end_ns[ran], facts.row[ran])
            columns.append((key[op], np.full(len(ran), facts.rank), ran, *times, sort[op]))
    if not columns:
        return None
    key, rank, *rest = (np.concatenate(column) for column in zip(*columns, strict=True))
    turn = turns(key * len(stands_in) + rank)
    order = np.lexsort((rank, turn, key))
    meeting = np.cumsum(firsts(key[order], turn[order]), dtype=np.int64) - 1
    issue, arrived, start, end, row, sort = (column[order] for column in rest)
    return Meetings(meeting, rank[order], issue, arrived, start, end, row, sort, tuple(keys.sorts))


_PEER, _COLLECTIVE = CAUSES.index("peer"), CAUSES.index("collective")


def check_meetings(hardware: Hardware, found: Meetings, *, complete: bool, contended: bool) -> None:
    """Check that all members of a meeting are there, start and end together, and take their time.

    Parameters
    ----------
    hardware
        The machine.
    found
        All meetings of a trace.
    complete
        Whether the run came to its end.
    contended
        Whether collectives share the memory with kernels and copies.
    """
    n = int(found.meeting[-1]) + 1 if len(found.meeting) else 0
    there = np.bincount(found.meeting, minlength=n)[found.meeting]
    expected = np.array([simulated for _, _, simulated in found.sorts], np.int64)[found.sort]
    _check(found, there == expected, "all members of a collective take part in it", ("ranks", there), complete=complete)
    for name, times in (("start", found.start_ns), ("end", found.end_ns)):
        of_first = at_first(firsts(found.meeting), times)
        shown = ((f"its {name}_ns", times), ("that of its first member", of_first))
        _check(found, times == of_first, f"the members of a collective {name} at the same instant", *shown)
    took = found.end_ns - found.start_ns
    alone = np.array([_alone_ns(what, members, hardware) for what, members, _ in found.sorts], np.int64)[found.sort]
    law = "a collective takes at least its time alone"
    _check(found, took >= alone, law, ("takes ns", took), ("alone ns", alone))
    if not contended and not _ports_are_capped(hardware):
        disturbed = np.bincount(found.meeting, _overlaps(found), n)[found.meeting] > 0
        law = "a collective takes its time alone if its members are in no other meanwhile"
        _check(found, disturbed | (took == alone), law, ("takes ns", took), ("alone ns", alone))


def _check(found: Meetings, holds: np.ndarray, law: str, *shown: tuple[str, Ints], complete: bool = True) -> None:
    if holds.all() or not complete:
        return
    i = int(np.argmin(holds))
    what, members, _ = found.sorts[int(found.sort[i])]
    where = f"trace, spans row {int(found.row[i]):,} ({what.kind} of rank {int(found.rank[i])} among {_said(members)})"
    raise broken(where, law, ", ".join(f"{name} {int(values[i]):,}" for name, values in shown))


def _said(members: Members) -> str:
    few = ", ".join(map(str, members[:4]))
    return f"ranks {few} and {len(members) - 4:,} more" if len(members) > 4 else f"ranks {few}"


def _alone_ns(what: Collective, members: Members, hardware: Hardware) -> int:
    """The closed form, but never less than what the bytes that must move take over all ports of a member together."""
    return max(collective_ns(what, members, hardware), _least_ns(what, len(members), hardware))


_LEAST = {
    CollectiveKind.ALL_REDUCE: lambda n: Fraction(2 * (n - 1), n),
    CollectiveKind.ALL_GATHER: lambda n: Fraction(n - 1, n),
    CollectiveKind.REDUCE_SCATTER: lambda n: Fraction(n - 1, n),
    CollectiveKind.ALL_TO_ALL: lambda n: Fraction(n - 1, n),
}
"""Shares of its size that a member must send, or receive, whatever the algorithm; all of it for other kinds."""


def _least_ns(what: Collective, members: int, hardware: Hardware) -> int:
    rates = [fabric.planes * fabric.bandwidth_bytes_per_s for fabric in hardware.fabrics.values()]
    if members == 1 or not rates or math.inf in rates:
        return 0
    share = _LEAST.get(what.kind, lambda _: Fraction(1))(members)
    return math.ceil(share * what.size_bytes * NS_PER_S / sum(map(int, rates)))


def _ports_are_capped(hardware: Hardware) -> bool:
    return any(name not in hardware.links for bus in hardware.buses.values() for name in bus.links)


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
        All meetings of a trace.
    ranks
        The rows of those that were simulated.
    stands_in
        For each rank the one that was simulated in its place.

    Notes
    -----
    Of ranks that met in no time it is not known when they came if they waited for another such meeting just before;
    they are left out.
    """
    hasty = set(found.rank[found.end_ns == found.start_ns].tolist())
    where = {(int(r), int(i)): at for at, (r, i) in enumerate(zip(found.rank, found.issue, strict=True))}
    come = {(int(m), int(r)): int(t) for m, r, t in zip(found.meeting, found.rank, found.arrived_ns, strict=True)}
    for facts in ranks:
        waits = pick(facts.waits, facts.waits["cause"] == _PEER)
        columns = (waits[name].tolist() for name in ("row", "issue", "end_ns", "on"))
        for number, issue, end, on in zip(*columns, strict=True):
            row = where.get((facts.rank, issue))
            if row is None or end <= found.arrived_ns[row]:
                continue
            place = f"trace, waits row {number:,}, rank {facts.rank}"
            members = found.sorts[int(found.sort[row])][1]
            if on not in members:
                raise broken(place, "a rank waits for a member of the meeting", f"rank {on}, not in {_said(members)}")
            arrived = come.get((int(found.meeting[row]), stands_in[on]))
            if stands_in[on] not in hasty and (arrived is None or arrived < end):
                law = "a wait for a peer ends when that rank comes, or before"
                raise broken(place, law, f"end_ns {end:,}, and rank {on} there at ns {arrived}")


def check_waits_of_others(facts: Facts) -> None:
    """Check that a wait for a collective, or for a peer, of another stream lasts while that is under way, or waits."""
    if not facts.program.meets.any() or not facts.complete:
        return
    ran, waits = facts.met, pick(facts.waits, facts.waits["cause"] == _COLLECTIVE)
    under_way = Intervals(facts.a[ran], facts.start[ran], facts.end[ran], facts.stride, joined=True)
    law = "a wait for a collective lasts while that collective is under way"
    holds = under_way.cover(waits["blocker"], *facts.around(waits))
    facts.check(holds, law, "waits", waits, "start_ns", "end_ns", "blocker")
    _check_indirect(facts)


def _check_indirect(facts: Facts) -> None:
    """Check that an op which is no collective waits for a peer only while some collective of its rank does."""
    waits = pick(facts.waits, facts.waits["cause"] == _PEER)
    times, at = np.unique((waits["start_ns"], waits["end_ns"]), return_inverse=True)
    waits["start"], waits["end"] = at.reshape(2, -1)
    is_direct = facts.program.meets[waits["op"]]
    direct, indirect = pick(waits, is_direct), pick(waits, ~is_direct)
    lanes = Intervals(direct["on"], direct["start"], direct["end"], len(times) + 1, joined=True)
    law = "an op waits for a peer while a collective of its rank waits for that peer"
    holds = lanes.cover(indirect["on"], indirect["start"], indirect["end"])
    facts.check(holds, law, "waits", indirect, "start_ns", "end_ns", "on")
