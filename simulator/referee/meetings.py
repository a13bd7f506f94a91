"""Collectives that ran, as columns: who took part in which meeting, from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.graph import Collective, Job
from simulator.plan import COMPUTE
from simulator.referee.earlier import Ints
from simulator.referee.facts import Facts
from simulator.referee.roles import Call, Members, Roles


@dataclass(frozen=True, slots=True)
class Meetings:
    """One row for each span of a collective, those of one meeting in a row, ordered by rank.

    Attributes
    ----------
    meeting, rank, op, issue
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
    op: Ints
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
        found = self._sorts.get((about, id(members)))
        if found is None:
            found = self._sorts[about, id(members)] = len(self.sorts)
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
        if not facts.program.meets.any():
            continue
        key, sort = keys.of_ops(facts.rank)
        ran = facts.ran(COMPUTE)
        ran = ran[facts.program.meets[facts.a[ran]]]
        op = facts.a[ran]
        times = (facts.arrived_ns[ran], facts.start_ns[ran], facts.end_ns[ran], facts.row[ran])
        columns.append((key[op], np.full(len(ran), facts.rank), op, ran, *times, sort[op]))
    if not columns:
        return None
    key, rank, op, issue, arrived, start, end, row, sort = (np.concatenate(c) for c in zip(*columns, strict=True))
    order = np.lexsort((issue, rank, key))
    turn = np.empty(len(key), np.int64)
    turn[order] = _number(np.stack((key[order], rank[order])))
    order = np.lexsort((rank, turn, key))
    new = np.append(True, (np.diff(key[order]) != 0) | (np.diff(turn[order]) != 0))[: len(order)]
    rank, op, issue, arrived, start, end, row, sort = (
        column[order] for column in (rank, op, issue, arrived, start, end, row, sort)
    )
    return Meetings(np.cumsum(new) - 1, rank, op, issue, arrived, start, end, row, sort, tuple(keys.sorts))


def _number(keys: Ints) -> Ints:
    """The position of each column in the run of equal columns that it is in."""
    at = np.arange(keys.shape[1])
    new = np.ones(len(at), bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return np.asarray(at - np.maximum.accumulate(np.where(new, at, 0))) if len(at) else at
