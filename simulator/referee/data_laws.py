"""Laws of data: one tensor's steps take effect in issue order, and nothing is used before it is valid."""

from __future__ import annotations

import numpy as np

from simulator.columns import NONE, Ints
from simulator.plan import COPY, DETACH, SYNC
from simulator.referee.facts import Facts
from simulator.referee.place_laws import Held


def check_order(facts: Facts, held: Held, stays: Ints) -> Ints:
    """Check that exclusive accesses wait for all earlier ones of the tensor, and all later ones wait for them.

    A compute that writes, and a detach, is exclusive. A detach is an instant. That of a tensor of 0 B leaves no row: it
    acts as early as the order lets it, and lasts until its output may go. A sync takes no part in the order.

    Parameters
    ----------
    facts, held
        One rank's trace, and when its places were held.
    stays
        By detach, until when its tensor stays at least, or `NONE`.

    Returns
    -------
    by issue
        When the step's tensors let it start (position of the clock, or `NONE`); for a sync, when it could return.
    """
    (by_compute, place), earlier = facts.used, facts.earlier
    copies, syncs, detaches = (facts.steps(kind) for kind in (COPY, SYNC, DETACH))
    issue = np.concatenate((by_compute, copies, syncs, detaches))
    tensor = np.append(place // facts.tiers, facts.a[issue[len(by_compute) :]])
    is_sync, is_exclusive = facts.kind[issue] == SYNC, facts.kind[issue] == DETACH
    is_exclusive[: len(by_compute)] = facts.uses.writes[facts.compute_uses[1]]
    start, end = facts.start[issue], np.where(is_sync, NONE, facts.end[issue])
    start[len(issue) - len(detaches) :] = held.detached
    end[len(issue) - len(detaches) :] = np.where(held.detached == NONE, stays, held.detached)
    order = np.lexsort((issue, tensor))
    issue, tensor, start, end = issue[order], tensor[order], start[order], end[order]
    is_sync, is_exclusive = is_sync[order], is_exclusive[order]
    after_all, exclusive = facts.running_max(tensor, end, earlier.ended_ns), np.where(is_exclusive, end, NONE)
    exclusive = np.where(is_exclusive & (start == NONE), np.maximum(after_all, exclusive), exclusive)
    allowed = np.where(is_exclusive | is_sync, after_all, facts.running_max(tensor, exclusive, earlier.exclusive_ns))
    law = "steps that name the same tensor take effect in issue order; only reads and copies of it overlap"
    shown = ("starts at ns", facts.times(start)), ("an earlier one lasts until ns", facts.times(allowed))
    holds = is_sync | (start == NONE) | (start >= allowed)
    facts.check_steps(issue, holds, law, ("tensor", tensor), *shown)
    np.maximum.at(earlier.ended_ns, tensor, facts.times(end))
    np.maximum.at(earlier.exclusive_ns, tensor, facts.times(exclusive))
    ready = np.full(len(facts.kind), NONE, np.int64)
    np.maximum.at(ready, issue, allowed)
    return ready


def check_valid(facts: Facts) -> Ints:
    """Check that a compute starts after what it reads became valid, and a copy after its source did.

    Returns
    -------
    by issue
        When the data of the step was valid (position of the clock, or `NONE`).
    """
    (by_compute, place), (makes, made) = facts.used, facts.made
    reads, copies, valid_ns = facts.uses.reads[facts.compute_uses[1]], facts.steps(COPY), facts.earlier.valid_ns
    needs, needed = np.append(by_compute[reads], copies), np.append(place[reads], facts.source[copies])
    made_at, group, issue = facts.end[makes], np.append(needed, made), np.append(needs, makes)
    is_need = np.arange(len(group)) < len(needs)
    order = np.lexsort((~is_need, issue, group))
    value = np.append(np.full(len(needs), NONE), made_at)[order]
    valid = facts.running_max(group[order], value, valid_ns)[is_need[order]]
    np.maximum.at(valid_ns, made, facts.times(made_at))
    needs = issue[order][is_need[order]]
    start = facts.start[needs]
    facts.check_steps(
        needs,
        (start == facts.never) | ((valid != NONE) & (start >= valid)),
        "what a compute reads, and what a copy moves, is valid before it starts",
        ("tensor", group[order][is_need[order]] // facts.tiers),
        ("starts at ns", facts.times(start)),
        ("valid at ns", facts.times(valid)),
    )
    ready = np.full(len(facts.kind), NONE, np.int64)
    np.maximum.at(ready, needs, np.where(valid == NONE, facts.never, valid))
    return ready


def check_syncs(facts: Facts, ready: Ints) -> None:
    """Check that nothing is issued after a sync before all earlier steps of its tensor have ended."""
    host = facts.earlier.host
    floor = facts.latest(np.where(facts.kind == SYNC, ready, NONE), host.synced_ns)
    host.synced_ns = int(facts.times(floor[-1:])[0])
    steps = np.flatnonzero(facts.row != NONE)
    facts.check_steps(
        steps,
        facts.issued[steps] >= floor[steps],
        "a host issues nothing after a sync before the earlier steps of its tensor have ended",
        ("issued at ns", facts.issued_ns[steps]),
        ("they end at ns", facts.times(floor[steps])),
    )


def check_waits_have_cause(facts: Facts, ready: Ints, room_causes: tuple[int, ...]) -> None:
    """Check that a wait which is not for room ends when data, order, stream, line and host let the op start.

    Parameters
    ----------
    facts
        One rank's trace.
    ready
        By issue, when data, order and the line for room let the step start.
    room_causes
        The causes that may keep an op which could start otherwise.
    """
    waits, issue = facts.waits, facts.waits["issue"]
    end = np.searchsorted(facts.clock, waits["end_ns"], "right") - 1
    holds = np.isin(waits["cause"], room_causes) | (end <= np.maximum(ready[issue], facts.issued[issue]))
    law = "a wait that is not for room ends when data, order, line and host let the op start"
    facts.check(holds, law, "waits", waits, "op", "issue", "start_ns", "end_ns", "cause")
