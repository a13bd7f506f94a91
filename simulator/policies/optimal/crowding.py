"""Redundant rows that make the program quick: copies of a link between two moments take their times in sum.

Without them the relaxation that the solver bounds by sees no link that is crowded, only pairs of copies that may go
in either order. Let `k` and `m` be ops, `k` before `m`.

*In*: between the end of `k` and the start of `m` lie the copies in of all gaps that lie between the two, and since the
start of `k` also those whose tensors are away while `k` runs and are needed by `m`.

*Out*: between the end of `k` and the start of `m` lie the copies out of all versions made by `k` or later whose rooms
`m` finds free; between the end of `k` and that of a run's only step, of all that are made by `k` or later.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.policies.optimal.model import Expression, Term, negated, times
from simulator.policies.optimal.room import Room
from simulator.policies.optimal.times import Times


def crowd(when: Times, room: Room) -> None:
    """Add the rows."""
    _crowd_in(when, room)
    _crowd_out(when, room)


def _crowd_in(when: Times, room: Room) -> None:
    gaps = when.space.gaps
    for m in sorted({gaps[g].before for g in when.ins}):
        due = [g for g in when.ins if gaps[g].before <= m]
        for k in range(-1, m):
            inner = [term for g in due if gaps[g].after >= k for term in times(when.in_ns[g], when.away(g))]
            across = [g for g in due if (g, k) in room.absent]
            if inner:
                when.model.at_least([*when.start(m), *negated(when.ended(k)), *negated(inner)])
            if across:
                more = [term for g in across for term in times(when.in_ns[g], room.absent[g, k])]
                when.model.at_least([*when.start(m), *negated(when.start(k)), *negated(inner), *negated(more)])


def _crowd_out(when: Times, room: Room) -> None:
    written = sorted({out.written for out in when.space.outs})
    made = {o: when.made(o) for o in when.outs}
    for k in () if when.space.lead else written:
        when.model.at_least([(1, when.end), *negated(when.ended(k)), *negated(_sum_out(when, made, k))])
    for m in sorted({op for _, op in room.absent}):
        freed = _freed(when, room, m)
        for k in (k for k in written if k < m):
            when.model.at_least([*when.start(m), *negated(when.ended(k)), *negated(_sum_out(when, freed, k))])


def _freed(when: Times, room: Room, m: int) -> dict[int, Expression]:
    """Copy out -> whether op `m` finds the room free that it leaves; of those that are always needed for it."""
    found = {}
    for g, op in room.absent:
        out = when.space.gaps[g].out
        if op == m and out is not None and when.space.outs[out].needless_if is None:
            found[out] = room.freed(g, m)
    return found


def _sum_out(when: Times, flags: Mapping[int, Expression], k: int) -> list[Term]:
    """Time of the flagged copies out of versions that are made by op `k` or later."""
    later = [o for o in flags if when.space.outs[o].written >= k]
    return [term for o in later for term in times(when.out_ns[o], flags[o])]
