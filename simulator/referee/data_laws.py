"""Laws of data: one tensor's steps take effect in issue order, and nothing is used before it is valid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.columns import NONE, Ints
from simulator.plan import COPY, DETACH, SYNC
from simulator.referee.facts import Facts
from simulator.referee.place_laws import Held


@dataclass(frozen=True, slots=True)
class Accesses:
    """Every use of a tensor by a step, by tensor and then by issue.

    Attributes
    ----------
    tensor, issue
        Which tensor, which step.
    start, end
        When (positions of the clock); a detach is an instant, a sync takes no part in the order. The detach of a tensor
        of 0 B leaves no row: it acts as early as the order lets it, its start is `NONE`, and its end is until when an
        output has to stay, or `NONE`.
    exclusive
        Whether it waits for all earlier ones: a compute that writes, or a detach.
    """

    tensor: Ints
    issue: Ints
    start: Ints
    end: Ints
    exclusive: np.ndarray


def accesses(facts: Facts, held: Held, stays: Ints) -> Accesses:
    """Collect the accesses of all tensors, syncs included; by detach, until when its tensor stays."""
    (by_compute, place), which = facts.used, facts.compute_uses[1]
    copies, syncs, detaches = (facts.steps(kind) for kind in (COPY, SYNC, DETACH))
    issue = np.concatenate((by_compute, copies, syncs, detaches))
    tensor = np.append(place // facts.tiers, facts.a[issue[len(by_compute) :]])
    start, end = facts.start[issue], facts.end[issue]
    of_detaches = slice(len(issue) - len(detaches), None)
    start[of_detaches] = held.detached
    end[of_detaches] = np.where(held.detached == NONE, stays, held.detached)
    exclusive = np.zeros(len(issue), bool)
    exclusive[: len(by_compute)] = facts.uses.writes[which]
    exclusive[of_detaches] = True
    order = np.lexsort((issue, tensor))
    return Accesses(tensor[order], issue[order], start[order], end[order], exclusive[order])


def check_order(facts: Facts, found: Accesses) -> Ints:
    """Check that exclusive accesses wait for all earlier ones of the tensor, and all later ones wait for them.

    Returns
    -------
    by issue
        When the step's tensors let it start (position of the clock, or `NONE`); for a sync, when it could return.
    """
    is_sync = facts.kind[found.issue] == SYNC
    ended = np.where(is_sync, NONE, found.end)
    earlier, exclusive = facts.earlier, np.where(found.exclusive, ended, NONE)
    after_all = facts.running_max(found.tensor, ended, earlier.ended_ns)
    exclusive = np.where(found.exclusive & (found.start == NONE), np.maximum(after_all, exclusive), exclusive)
    after_exclusive = facts.running_max(found.tensor, exclusive, earlier.exclusive_ns)
    allowed = np.where(found.exclusive | is_sync, after_all, after_exclusive)
    facts.check_steps(
        found.issue,
        is_sync | (found.start == NONE) | (found.start >= allowed),
        "steps that name the same tensor take effect in issue order; only reads and copies of it overlap",
        ("tensor", found.tensor),
        ("starts at ns", facts.times(found.start)),
        ("an earlier one lasts until ns", facts.times(allowed)),
    )
    np.maximum.at(earlier.ended_ns, found.tensor, facts.times(ended))
    np.maximum.at(earlier.exclusive_ns, found.tensor, facts.times(exclusive))
    ready = np.full(len(facts.kind), NONE, np.int64)
    np.maximum.at(ready, found.issue, allowed)
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
