"""Laws of work: what could start has started, and room is kept from nobody who is next in line for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.columns import NONE, Bools, Ints
from simulator.plan import COMPUTE, COPY, SYNC
from simulator.referee.breach import broken
from simulator.referee.facts import Facts
from simulator.referee.place_laws import Held, Room

_LATER = np.iinfo(np.int64).max
"""The start of what never started, and an end that is still to come [ns]."""


class Requests(NamedTuple):
    """Steps of one rank that only room kept from starting, as columns.

    Attributes
    ----------
    tier, size
        Where it takes room, and how much [B].
    since_ns, start_ns
        When all but room was there; when it started.
    is_copy, issue
        Its place in line: computes first, then in issue order.
    """

    tier: Ints
    size: Ints
    since_ns: Ints
    start_ns: Ints
    is_copy: Ints
    issue: Ints


def taken_bytes(facts: Facts, held: Held) -> Ints:
    """By issue, what the step took when it started; what it would take at the end, if it never did [B]."""
    issue, place = facts.made
    came = facts.arrived[issue]
    new = np.isin(place * facts.stride + came, held.place * facts.stride + held.taken)
    still = np.isin(place, held.place[held.freed == facts.never])
    takes = np.where(came == facts.never, ~still, new)
    found = np.bincount(issue, np.where(takes, facts.sizes[place // facts.tiers], 0), len(facts.kind)).astype(np.int64)
    computes = facts.steps(COMPUTE)
    found[computes] += facts.program.workspace[facts.a[computes]]
    return found


def line(facts: Facts, taken: Ints) -> Ints:
    """By issue, when the last compute issued before that takes room had started, or come to its meeting.

    That is what a compute that takes room, and a copy into the compute tier, wait for (positions of the clock);
    `NONE` for other steps, and where there is no such compute.
    """
    host = facts.earlier.host
    latest = facts.latest(np.where((facts.kind == COMPUTE) & (taken > 0), facts.arrived, NONE), host.line_ns)
    host.line_ns = int(facts.times(latest[-1:])[0])
    stands = np.where(facts.kind == COMPUTE, taken > 0, (facts.kind == COPY) & (facts.c == facts.compute_tier))
    return np.where(stands, latest[:-1], NONE)


def check_started(facts: Facts, allowed: Sequence[Ints], taken: Ints, *, has_addresses: bool) -> Requests:
    """Check that a step which takes no room starts as soon as all else lets it, and find those that room kept waiting.

    Parameters
    ----------
    facts
        One rank's trace.
    allowed
        By issue, when each of the other rules lets the step start (positions of the clock).
    taken
        By issue, what it takes [B].
    has_addresses
        Whether places of the compute tier have addresses. What needs a hole, and what compaction stops, is not held
        against bytes then.

    Notes
    -----
    Of a run that was blocked, what was issued behind a collective that never began is not looked at: nobody noted
    whether it had come.
    """
    since, start = np.maximum.reduce([facts.issued, *allowed]), facts.arrived
    unrun = _first_unrun(facts)
    since[unrun] = np.where(np.maximum.reduce([part[unrun] for part in allowed]) < facts.never, facts.never - 1, NONE)
    steps = np.flatnonzero((facts.kind == COMPUTE) | (facts.kind == COPY))
    steps = steps[steps < facts.unmet.min(initial=len(facts.kind))]
    judged = (start[steps] != facts.never) | (np.isin(steps, unrun) & (since[steps] != NONE))
    steps = steps[judged & (since[steps] < start[steps])]
    is_copy = facts.kind[steps] == COPY
    if has_addresses:
        stopped = ~is_copy | (facts.b[steps] == facts.compute_tier) | (facts.c[steps] == facts.compute_tier)
        steps, is_copy = steps[~stopped], is_copy[~stopped]
    facts.check_steps(
        steps,
        taken[steps] > 0,
        "what could start has started",
        ("could at ns", facts.times(since[steps])),
        ("starts at ns", np.where(start[steps] == facts.never, NONE, facts.arrived_ns[steps])),
    )
    start_ns = np.where(start[steps] == facts.never, _LATER, facts.times(start[steps]))
    tier = np.where(is_copy, facts.c[steps], facts.compute_tier)
    return Requests(tier, taken[steps], facts.times(since[steps]), start_ns, is_copy.astype(int), facts.first + steps)


def _first_unrun(facts: Facts) -> Ints:
    """The first of each stream and of each queue that never started, if it was issued for certain.

    That is so if no sync before it waits, and fewer computes before it have not started than make a host go on.
    """
    if facts.complete:
        return np.empty(0, np.int64)
    left = facts.arrived == facts.never
    computes, copies = (np.flatnonzero(left & (facts.kind == kind)) for kind in (COMPUTE, COPY))
    queue_of = dict[tuple[int, int], int]()
    for (source, target, _), queue in zip(facts.program.links.tolist(), facts.program.queues.tolist(), strict=True):
        queue_of.setdefault((source, target), queue)
    ends = zip(facts.b[copies].tolist(), facts.c[copies].tolist(), strict=True)
    queues = np.array([queue_of.get(pair, NONE) for pair in ends], np.int64)
    heads = computes[np.unique(facts.b[computes], return_index=True)[1]]
    heads = np.sort(np.concatenate((heads, copies[np.unique(queues, return_index=True)[1]])))
    ahead = np.searchsorted(computes, heads)
    certain = 2 * ahead < max(facts.hardware.host.queue_depth, 1)
    syncs = facts.steps(SYNC)
    return np.asarray(heads[certain & (np.searchsorted(syncs, heads) == 0)])


class Lines:
    """Checks that in each tier the first in line does not fit, as long as it waits.

    Parameters
    ----------
    room
        Knows what each tier holds when.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._waiting: dict[tuple[int, int], list[Ints]] = {}

    def take(self, rank: int, found: Requests, until_ns: int | None = None) -> None:
        """Take requests of a rank; check up to a time before which no others can have begun, if there is one."""
        for tier in np.unique(found.tier).tolist():
            mine = np.stack([np.full(len(found.tier), rank), *found[1:]])[:, found.tier == tier]
            self._waiting.setdefault((tier, int(self._room.sharers[tier][0][rank])), []).append(mine)
        if until_ns is not None:
            self.check(until_ns)

    def check(self, until_ns: int = _LATER) -> None:
        """Check what happened before a time, and forget it."""
        for (tier, instance), parts in self._waiting.items():
            rows = np.concatenate(parts, axis=1)
            self._check(tier, instance, rows, until_ns)
            rows = rows[:, rows[3] > until_ns]
            rows[2] = np.maximum(rows[2], until_ns)
            parts[:] = [rows]
        self._room.forget(until_ns)

    def _check(self, tier: int, instance: int, rows: Ints, until_ns: int) -> None:
        rank, size, since, start, is_copy, issue = rows
        times, used = self._room.used_bytes(tier, instance)
        points = np.unique(np.concatenate((times, since, start[start != _LATER])))
        points = points[points < until_ns]
        begin, end = np.searchsorted(points, since), np.searchsorted(points, start)
        first = np.full(len(points), NONE)
        for row in np.lexsort((issue, rank, is_copy))[::-1].tolist():
            first[begin[row] : end[row]] = row
        at = np.flatnonzero(first != NONE)
        now = np.append(0, used)[np.searchsorted(times, points[at], "right")]
        fits: Bools = now + size[first[at]] <= self._room.capacity_bytes[tier]
        if fits.any():
            wrong = int(np.argmax(fits))
            row = int(first[at[wrong]])
            must = f"what is first in line for room of a tier ({self._room.names[tier]}) starts when it fits"
            found = f"{int(size[row]):,} B beside {int(now[wrong]):,} B at {int(points[at[wrong]]):,} ns do not start"
            raise broken(f"trace, rank {int(rank[row])}, step {int(issue[row]):,}", must, found)
