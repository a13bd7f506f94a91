"""Laws of starts: what the host issues when, what each action waits for, and that it starts as soon as it may.

Each rule returns, by issue, the time from which it allows an action to start. No action starts before that, and one
that takes no room starts as soon as all rules and the host allow it. The laws of room check the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.cost.service import transfer_ns
from simulator.graph import share_of
from simulator.hardware.device import MIB
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Actions
from simulator.referee.facts import Facts, among
from simulator.referee.load_laws import Loads
from simulator.referee.place_laws import Held
from simulator.scenario import Switches
from simulator.trace import ISSUED, NONE, Ints

NEVER_NS = np.iinfo(np.int64).max
"""The start of an action that never started [ns]."""


class RoomRequests(NamedTuple):
    """Actions of one rank that only room kept from starting, as columns.

    Attributes
    ----------
    tier, size
        Where an action takes room, and how much [B].
    since_ns, start_ns
        When it lacked nothing but room; when it started [ns].
    is_copy, issue
        Its place in line: computes first, then in issue order.
    """

    tier: Ints
    size: Ints
    since_ns: Ints
    start_ns: Ints
    is_copy: Ints
    issue: Ints


def check_issued(facts: Facts) -> None:
    """Check that the host issued the actions of the plan, in order, and that a complete run ran all of them."""
    program, actions = facts.program, len(facts.kind)
    if program.plan.fixed is not None:
        planned = program.planned()
        count = len(planned["kind"])
        same = all(np.array_equal(planned[name][:actions], getattr(facts, name)) for name in ISSUED)
        if not same or (facts.complete and count != actions):
            found = f"{actions:,} actions for {count:,}, or others"
            raise facts.broken("the host issues the actions of the plan, in order", "issued", found)
    if not facts.complete:
        return
    asked, graph = np.flatnonzero((facts.kind == COMPUTE) | (facts.kind == COPY)), program.graph
    ran = facts.row[asked] != NONE
    facts.check_actions(asked, ran, "when a run completes, every action has run", ("span", facts.row[asked]))
    counts = np.bincount(facts.a[facts.actions(COMPUTE)], minlength=len(graph.ops))
    if counts.min() < graph.steps:
        found = f"op {graph.ops[int(counts.argmin())].name!r} {int(counts.min())} times in {graph.steps} steps"
        raise facts.broken("when a run completes, every op has run in each step", "spans", found)


def check_tracks(facts: Facts) -> None:
    """Check that each action runs on the stream or link that it was issued to."""
    computes, copies, ends = facts.ran(COMPUTE), facts.ran(COPY), facts.program.links
    stream, link, channel = facts.track[computes], facts.track[copies], facts.channel[copies]
    facts.check_actions(computes, stream == facts.b[computes], "a compute runs on its stream", ("stream", stream))
    exists = (link >= 0) & (link < len(ends))
    facts.check_actions(copies, exists, "a transfer takes a link of the machine", ("link", link))
    right = (ends[link, 0] == facts.b[copies]) & (ends[link, 1] == facts.c[copies])
    facts.check_actions(copies, right, "a transfer takes a link from its source to its target", ("link", link))
    inside = (channel >= 0) & (channel < ends[link, 2])
    facts.check_actions(copies, inside, "a transfer takes a channel of its link", ("channel", channel))


def check_durations(facts: Facts, loads: Loads) -> None:
    """Check that a compute takes its time alone (at least that, if it shares or loads), a transfer at least its own."""
    program, ran = facts.program, facts.ran(COMPUTE)
    is_alone = ~program.meets[facts.a[ran]]
    computes = ran[is_alone]
    alone = program.alone_ns(facts.a[ran])[is_alone]
    took = facts.end_ns - facts.start_ns
    shares = (program.is_modelled & (program.is_host | program.is_contended))[facts.a[computes]]
    shares |= np.isin(computes, loads.issue)
    right = (took[computes] == alone) | (shares & (took[computes] > alone))
    law = f"a compute takes its own time{', and no less beside others' if program.is_contended else ''}"
    facts.check_actions(computes, right, law, ("takes ns", took[computes]), ("alone ns", alone))
    copies, links = facts.ran(COPY), [*facts.program.hardware.links.values()]
    keys = facts.program.sizes[facts.a[copies]] * len(links) + facts.track[copies]
    different, position = np.unique(keys, return_inverse=True)
    times = [transfer_ns(key // len(links), links[key % len(links)]) for key in different.tolist()]
    alone = np.array(times, np.int64)[position]
    right, shown = took[copies] >= alone, (("takes ns", took[copies]), ("alone ns", alone))
    facts.check_actions(copies, right, "a transfer takes at least its time alone", *shown)


def _stream_free(facts: Facts, _: Switches) -> Ints:
    """Return when the compute before a compute on its stream had ended."""
    computes = facts.ran(COMPUTE)
    return facts.by_issue(computes, facts.latest(facts.end[computes], facts.track[computes]))


def _queue_turn(facts: Facts, _: Switches) -> Ints:
    """Return when the copy before a copy in its queue had started."""
    copies = facts.ran(COPY)
    queue = facts.program.queues[facts.track[copies]]
    return facts.by_issue(copies, facts.latest(facts.start[copies], queue))


def _channels(facts: Facts) -> tuple[Ints, Ints]:
    """Return, by issue of a copy, when earlier copies had left its channel, and when any channel of its queue."""
    copies, channels = facts.ran(COPY), np.arange(1 + int(facts.program.links[:, 2].max(initial=0)))
    queue = facts.program.queues[facts.track[copies]]
    takes, group = facts.channel[copies, None] == channels, queue[:, None] * len(channels) + channels
    end = np.where(takes, facts.end[copies, None], NONE)
    free = facts.latest(end.ravel(), group.ravel()).reshape(group.shape)
    first = np.where(channels < facts.program.links[queue, 2, None], free, facts.never).min(axis=1, initial=facts.never)
    return facts.by_issue(copies, free[takes]), facts.by_issue(copies, first)


def _point_reached(facts: Facts, switches: Switches) -> Ints:
    """Return when the last compute of the accelerator issued before a copy, perhaps not in time, started or ended."""
    moment, last = facts.end if switches.copies_wait_for == "end" else facts.arrived, _last_compute(facts)
    return np.where(facts.kind == COPY, np.append(moment, NONE)[last], NONE)


def _last_compute(facts: Facts) -> Ints:
    """Return, by issue, the last compute of the accelerator up to there, or `NONE`."""
    computes = facts.actions(COMPUTE)
    last = np.full(len(facts.kind), NONE)
    computes = computes[~facts.program.is_host[facts.a[computes]]]
    last[computes] = computes
    return np.maximum.accumulate(last)


def _computes_ended(facts: Facts, _: Switches) -> Ints:
    """Return when all computes issued before a detach of an output's only valid copy had ended."""
    program, rows, parting = facts.program, facts.accesses, list[int]()
    valid = {t: set[int]() for t in program.graph.outputs if not program.persistent[t]}
    for place in program.valid_homes.tolist():
        valid.get(place // program.tiers, set()).add(place)
    is_of_output = np.isin(rows.place // program.tiers, list(valid))
    changes = rows.pick(is_of_output & (rows.makes | (rows.kind == DETACH)))
    for issue, kind, place in zip(*(column.tolist() for column in changes[:3]), strict=True):
        places = valid[place // program.tiers]
        if kind == DETACH:
            if places == {place}:
                parting.append(issue)
            places.discard(place)
        else:
            valid[place // program.tiers] = {place} if kind == COMPUTE else places | {place}
    last = np.array(parting, np.int64)
    ended = facts.latest(np.where(facts.kind == COMPUTE, facts.end, NONE))[last]
    facts.end[last] = np.where(facts.start[last] == NONE, ended, facts.end[last])
    return facts.by_issue(last, ended)


def _in_order(facts: Facts, _: Switches) -> Ints:
    """Return when earlier actions on the same tensors let an action start; of a sync, when all of them have ended.

    A compute that writes, and a detach, is exclusive: it waits for all earlier ones, and all later ones wait for it. A
    detach of 0 B leaves no row: it acts as early as the order allows, and ends when its output may go.
    """
    issue, kind, place, _reads, makes = facts.accesses
    tensor, waits_for_all = place // facts.program.tiers, (kind >= DETACH) | (makes & (kind == COMPUTE))
    end = np.where(kind == SYNC, NONE, facts.end[issue])
    after_all = facts.latest(end, tensor)
    np.maximum(end, after_all, out=end, where=facts.start[issue] == NONE)
    end[~waits_for_all | (kind == SYNC)] = NONE
    after_exclusive = facts.latest(end, tensor)
    return facts.by_issue(issue, np.where(waits_for_all, after_all, after_exclusive))


def _reads_valid(facts: Facts, _: Switches) -> Ints:
    """Return when everything that an action reads was valid."""
    issue, _kind, place, reads, makes = facts.accesses
    valid = facts.latest(np.where(makes, facts.end[issue], NONE), place)[reads]
    before = np.full(len(facts.program.sizes) * facts.program.tiers, facts.never)
    before[facts.program.valid_homes] = facts.at(np.zeros(1, np.int64))
    return facts.by_issue(issue[reads], np.where(valid == NONE, before[place[reads]], valid))


_RULES: tuple[tuple[str, Callable[[Facts, Switches], Ints]], ...] = (
    ("a stream runs one op at a time, in issue order", _stream_free),
    ("a link starts its transfers in issue order", _queue_turn),
    ("a copy waits until the last compute issued before it has {}ed", _point_reached),
    ("an output stays until the computes issued before its last detach have ended", _computes_ended),
    ("actions that name the same tensor take effect in issue order; only reads and copies of it overlap", _in_order),
    ("a tensor that a compute reads, or a copy moves, is valid before it starts", _reads_valid),
)
"""Laws of starts, each with a function: by issue, when it allows an action to start, or `NONE` for any time."""


def check_starts(facts: Facts, held: Held, switches: Switches, *, has_addresses: bool) -> tuple[RoomRequests, Ints]:
    """Check that no action starts before it may, and that an action which takes no room starts as soon as it may.

    Parameters
    ----------
    facts, held
        One rank's trace, and when its places were held.
    switches
        Modelling choices about the machine.
    has_addresses
        Whether places of the compute tier have addresses. Then actions that need a hole there, or that a compaction
        stops, are not checked for starting as soon as they may.

    Returns
    -------
    (RoomRequests, array)
        The actions that only room kept waiting; by issue, when data, order and the line for room allow a start.
    """
    allowed = []
    for law, rule in _RULES:
        allowed.append(rule(facts, switches))
        facts.check_starts(law.format(switches.copies_wait_for), allowed[-1])
    own_channel, some_channel = _channels(facts)
    facts.check_starts("a channel runs one transfer at a time, in issue order", own_channel)
    *_, in_order, is_valid = allowed
    taken = _taken_bytes(facts, held)
    _check_host(facts, in_order, taken)
    line = _line_allows(facts, taken)
    since = np.maximum.reduce([*allowed, some_channel, line])
    return _requests(facts, since, taken, has_addresses=has_addresses), np.maximum.reduce([in_order, is_valid, line])


def _check_host(facts: Facts, in_order: Ints, taken: Ints) -> None:
    """Check that the host pays for each action, waits at syncs, and is at most its queue depth ahead of the device."""
    ran, issued_ns, computes = np.flatnonzero(facts.row != NONE), facts.issued_ns, facts.ran(COMPUTE)
    spare = issued_ns[ran] - _issue_costs(facts, taken)[ran]
    law, issued = "the host issues in order and pays for each action", ("issued at ns", issued_ns[ran])
    facts.check_actions(ran, spare >= np.maximum.accumulate(np.append(0, spare))[:-1], law, issued)
    blocks, copies = [link.blocking for link in facts.program.hardware.links.values()], facts.ran(COPY)
    copies = copies[np.array(blocks, bool)[facts.track[copies]]]
    blocked = facts.by_issue(copies, facts.end[copies])
    synced = facts.latest(np.where(facts.kind == SYNC, in_order, blocked))[ran]
    law = "a host issues nothing after a sync before all that its tensor is in has ended, nor while a copy blocks it"
    facts.check_actions(ran, facts.issued[ran] >= synced, law, issued, ("they end at ns", facts.times(synced)))
    depth = facts.program.hardware.host.queue_depth
    late, started_ns = computes[depth:], np.sort(facts.arrived_ns[computes])[: max(0, len(computes) - depth)]
    law = f"at most {depth:,} computes are issued and not yet started"
    shown = ("issued at ns", issued_ns[late]), ("too many wait until ns", started_ns)
    facts.check_actions(late, issued_ns[late] >= started_ns, law, *shown)


def _issue_costs(facts: Facts, taken: Ints) -> Ints:
    """Return the least that the host has paid when it issues each action [ns], without selections (not recorded)."""
    program, host = facts.program, facts.program.hardware.host
    fixed, more = np.array(host.fixed.prices_ns, np.int64)[facts.kind], np.zeros(len(facts.kind), np.int64)
    layers = np.array([op.name.split("/")[0] for op in program.graph.ops] or [""])
    begins, issues = np.append(True, layers[1:] != layers[:-1]), facts.actions(COMPUTE)
    of_class = [host.each_class_ns.get(share_of(op.op_class, host.each_class_ns), 0) for op in program.graph.ops]
    of_op = host.each_layer_ns * begins + np.array(of_class or [0], np.int64)
    more[issues] = of_op[facts.a[issues]] + host.each_step_ns * (facts.a[issues] == 0)
    if isinstance(program.plan.actions, Actions):
        return host.fixed.launch_ns + np.cumsum(fixed + more)
    goes_home = (facts.kind == COPY) & (facts.b == program.compute_tier)
    prices = np.array(host.reactive.prices_ns, np.int64)[facts.kind]
    prices += -(-np.where(goes_home, taken, 0) // MIB) * host.reactive.pin_ns
    launch_ns, is_changed = 0, np.append(program.persistent, False)[np.where(goes_home, facts.a, NONE)]
    if program.plan.static_parts:
        is_dynamic = np.array([op.dynamic is not None for op in program.graph.ops], bool)
        is_candidate = np.isin(np.arange(len(program.sizes)), list(program.graph.candidates))
        decided = facts.kind == SYNC
        for kind, flags in ((COMPUTE, is_dynamic), (COPY, is_candidate), (DETACH, is_candidate)):
            decided[facts.actions(kind)] = flags[facts.a[facts.actions(kind)]]
        prices = np.where(decided, prices, fixed)
        launch_ns = host.fixed.launch_ns
    return launch_ns + np.cumsum(prices + more + host.reactive.update_ns * is_changed)


def _taken_bytes(facts: Facts, held: Held) -> Ints:
    """Return, by issue, the room that an action took at its start, or would take at the end if it never started [B]."""
    made, stride, workspace = facts.accesses.pick(facts.accesses.makes), facts.stride, facts.program.workspace
    came = facts.arrived[made.issue]
    new = among(made.place * stride + came, held.place * stride + held.taken)
    still = np.isin(made.place, held.place[held.freed == facts.never])
    size = facts.program.sizes[made.place // facts.program.tiers] * np.where(came == facts.never, ~still, new)
    taken = np.zeros(len(facts.kind), np.int64)
    np.add.at(taken, made.issue, size)
    taken[facts.actions(COMPUTE)] += workspace[facts.a[facts.actions(COMPUTE)]]
    return taken


def _line_allows(facts: Facts, taken: Ints) -> Ints:
    """Return, by issue, when what comes before an action in line for room of a tier in which ops work had started.

    A compute that takes room there, and a copy into it, wait for the last compute before that takes some (until it
    arrived, if it meets others), and for the copies into that tier that computes of other streams before need. It is a
    position of the clock; `NONE` for other actions, and where there is nothing to wait for.
    """
    computes, tier = facts.kind == COMPUTE, np.where(facts.kind == COPY, facts.c, NONE)
    tier[computes] = facts.program.tier_of[facts.a[computes]]
    issue, kind, place, _reads, makes = facts.accesses
    brought = facts.latest(np.where(makes & (kind == COPY), facts.start[issue], NONE), place)
    needed = facts.by_issue(issue[kind == COMPUTE], brought[kind == COMPUTE])  # copies of what a compute names
    last, allows = _last_compute(facts), np.full(len(facts.kind), NONE)
    stream = np.where(computes, facts.b, np.where(last == NONE, 0, facts.b[last]))
    for of in np.unique(facts.program.tier_of):
        is_compute, latest = (
            computes & (tier == of),
            facts.latest(np.where(computes & (tier == of) & (taken > 0), facts.arrived, NONE)),
        )
        for track in np.unique(stream):
            others = facts.latest(np.where(is_compute & (facts.b != track), needed, NONE))
            latest = np.where(stream == track, np.maximum(latest, others), latest)
        allows = np.where((tier == of) & (~computes | (taken > 0)), latest, allows)
    return allows


def _requests(facts: Facts, allowed: Ints, taken: Ints, *, has_addresses: bool) -> RoomRequests:
    """Check that actions which take no room start as soon as they may; return those that room kept waiting.

    Of a blocked run, actions issued after a collective that never began are left out: no row says whether it had
    arrived. So are copies of what has no bytes to where it was freed before: no row says when.
    """
    start, never, unrun = facts.arrived, facts.never, _first_unrun(facts)
    since = np.maximum(facts.issued, allowed)
    since[unrun] = np.where(allowed[unrun] < never, never - 1, NONE)
    place = facts.a * facts.program.tiers + np.where(facts.kind == COPY, facts.c, facts.b)
    is_judged = facts.latest(np.where(facts.kind == DETACH, 0, NONE), place) == NONE  # nothing was freed there before
    is_judged |= np.append(facts.program.sizes, 0)[np.where(facts.kind == COPY, facts.a, -1)] > 0
    held_up = np.flatnonzero((facts.kind == COMPUTE) | (facts.kind == COPY) & is_judged)
    held_up = held_up[held_up < facts.unmet.min(initial=len(facts.kind))]
    judged = (start[held_up] != never) | (np.isin(held_up, unrun) & (since[held_up] != NONE))
    held_up = held_up[judged & (since[held_up] < start[held_up])]
    compute_tier, is_copy = facts.program.compute_tier, facts.kind[held_up] == COPY
    tier = np.where(is_copy, facts.c[held_up], facts.program.tier_of[np.where(is_copy, 0, facts.a[held_up])])
    if has_addresses:
        is_elsewhere = (tier != compute_tier) & ~(is_copy & (facts.b[held_up] == compute_tier))
        held_up, is_copy, tier = held_up[is_elsewhere], is_copy[is_elsewhere], tier[is_elsewhere]
    started, since_ns = start[held_up] != never, facts.times(since[held_up])
    shown = ("could at ns", since_ns), ("starts at ns", np.where(started, facts.arrived_ns[held_up], NONE))
    facts.check_actions(held_up, taken[held_up] > 0, "an action starts as soon as it can", *shown)
    start_ns = np.where(started, facts.times(start[held_up]), NEVER_NS)
    return RoomRequests(tier, taken[held_up], since_ns, start_ns, is_copy.astype(int), held_up)


def _first_unrun(facts: Facts) -> Ints:
    """Return the first action of each stream and queue that never started, if it certainly stands where rows say.

    It was issued if there is no sync before it, and too few unstarted computes before it to make the host stop. A copy
    into a tier in which ops work is left out where a compute may have been issued that stands before it in line.
    """
    if facts.complete:
        return np.empty(0, np.int64)
    program, never_began = facts.program, facts.arrived == facts.never
    computes, copies = (np.flatnonzero(never_began & (facts.kind == kind)) for kind in (COMPUTE, COPY))
    fits = (program.links[:, 0] == facts.b[copies, None]) & (program.links[:, 1] == facts.c[copies, None])
    queues = np.where(fits.any(axis=1), program.queues[fits.argmax(axis=1)], NONE)
    heads = computes[np.unique(facts.b[computes], return_index=True)[1]]
    heads = np.sort(np.concatenate((heads, copies[np.unique(queues, return_index=True)[1]])))
    is_certain = 2 * np.searchsorted(computes, heads) < max(program.hardware.host.queue_depth, 1)
    is_certain &= np.searchsorted(facts.actions(SYNC), heads) == 0
    is_compute = facts.kind[heads] == COMPUTE
    if not is_certain[is_compute].all():
        is_certain &= is_compute | ~np.isin(facts.c[heads], program.tier_of)
    return np.asarray(heads[is_certain])
