"""Laws of meetings: members of a collective run it together, and wait for one another no longer than they must."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from simulator.cost.collectives import collective_ns
from simulator.cost.service import NS_PER_S
from simulator.graph import Call, Collective, CollectiveKind, Job, Members, Roles
from simulator.hardware import Hardware
from simulator.referee.facts import Facts, require
from simulator.referee.wait_laws import PEER
from simulator.trace import NONE, Ints, at_first, busy, firsts, ordinals, pick


class Meetings(NamedTuple):
    """One row for each span of a collective, those of one meeting in a row, ordered by rank.

    Attributes
    ----------
    meeting, rank, issue
        The meeting, counted from 0; the rank and the action of the span.
    arrived_ns, start_ns, end_ns
        When the rank arrived (at the earliest), and its span [ns].
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
        more = f" and {len(members) - 4:,} more" * (len(members) > 4)
        among = f"among ranks {', '.join(map(str, members[:4]))}{more}"
        return f"trace, spans row {int(met.row[i]):,} ({call.kind} of rank {int(met.rank[i])} {among})"

    require(holds, law, where, *shown)


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
        members = (by[list(met.sorts[sort][1])] for sort in met.sort[row])  # by those who are simulated for them
        is_member = [
            0 <= peer < len(by) and by[peer] in of_meeting
            for peer, of_meeting in zip(on.tolist(), members, strict=True)
        ]
        law = "a rank waits for a member of the meeting"
        facts.check_actions(waits["issue"], np.array(is_member, bool), law, ("rank", on))
        key = met.meeting[row] * n + by[on]
        match = np.searchsorted(keys[:-1], key)
        arrived_ns = np.where(keys[match] == key, np.append(met.arrived_ns, NONE)[match], NONE)
        law = "a wait for a peer ends when that rank comes, or before"
        shown = ("rank", on), ("there at ns", arrived_ns)
        holds = is_hasty[by[on]] | (arrived_ns >= waits["end_ns"])
        facts.check_actions(waits["issue"], holds, law, ("end_ns", waits["end_ns"]), *shown)
