"""Laws of time: tracks run one span at a time and in order, waits fill the gaps, links carry no more than they can."""

from __future__ import annotations

import numpy as np

from simulator.columns import NONE, Ints, firsts, lasts
from simulator.cost import transfer_ns
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Steps
from simulator.referee.facts import Facts, Intervals
from simulator.scenario import Switches
from simulator.trace import CAUSES, ISSUED, pick


def check_issued(facts: Facts) -> None:
    """Check that the host issued what the plan says, in order; all of it if the run is complete."""
    planned_steps = facts.program.planned_steps
    if planned_steps is not None:
        n, law = facts.first + len(facts.kind), "the host issues the steps of the plan, in order"
        planned = facts.program.planned(facts.first, min(n, planned_steps))
        same = all(np.array_equal(planned[name], getattr(facts, name)) for name in ISSUED)
        if not same or (facts.is_last and facts.complete and planned_steps != n):
            raise facts.broken(law, "issued", f"{n:,} steps for {planned_steps:,}, or others")
    asked = np.flatnonzero((facts.kind == COMPUTE) | (facts.kind == COPY))
    if facts.complete:
        ran = facts.row[asked] != NONE
        facts.check_steps(asked, ran, "when a run completes, every step has run", ("span", facts.row[asked]))


def check_all_ran(facts: Facts) -> None:
    """Check, behind the last part, that each op has run in each training step if the run is complete."""
    counts = facts.earlier.runs
    if facts.is_last and facts.complete and counts.min() < facts.graph.steps:
        op = facts.graph.ops[int(counts.argmin())].name
        found = f"op {op!r} {int(counts.min())} times in {facts.graph.steps} steps"
        raise facts.broken("when a run completes, every op has run in each step", "spans", found)


def check_tracks(facts: Facts) -> Ints:
    """Check that a stream and a channel run one span at a time, and streams and links start in issue order.

    Returns
    -------
    by issue
        When its stream, or its queue and a channel, let the step start (position of the clock, or `NONE`).
    """
    computes, copies = facts.ran(COMPUTE), facts.ran(COPY)
    stream = facts.track[computes]
    facts.check_steps(computes, stream == facts.b[computes], "a compute runs on its stream", ("stream", stream))
    _check_links(facts, copies)
    channels = 1 + int(facts.program.links[:, 2].max(initial=0))
    queue = facts.program.queues[facts.track[copies]]
    channel = queue * channels + facts.channel[copies]
    free = np.full(len(facts.kind), NONE, np.int64)
    free[copies] = _channel_is_free(facts, copies, queue, channels)
    for what, issues, track, last, law in (
        ("stream", computes, stream, facts.end, "a stream runs one op at a time, in issue order"),
        ("channel", copies, channel, facts.end, "a channel runs one transfer at a time, in issue order"),
        ("queue", copies, queue, facts.start, "a link starts its transfers in issue order"),
    ):
        before = _check_sequence(facts, (what, track), issues, last, law)
        if what != "channel":
            free[issues] = np.maximum(free[issues], before)
    return free


def _channel_is_free(facts: Facts, copies: Ints, queue: Ints, channels: int) -> Ints:
    """When the first channel of its queue is free of those copies that were issued before."""
    found, known = np.full(len(copies), NONE, np.int64), facts.earlier.track_ns
    for one in np.unique(queue).tolist():
        mine = np.flatnonzero(queue == one)
        number, end = facts.channel[copies[mine]], facts.end[copies[mine]]
        free = np.full(len(mine), facts.never)
        for channel in range(int(facts.program.links[one, 2])):
            since = facts.at(np.array([known.get(("channel", one * channels + channel), NONE)]))
            latest = np.maximum.accumulate(np.append(since, np.where(number == channel, end, NONE)))[:-1]
            free = np.minimum(free, latest)
        found[mine] = free
    return found


def _check_links(facts: Facts, copies: Ints) -> None:
    ends = facts.program.links
    track, channel = facts.track[copies], facts.channel[copies]
    known = (track >= 0) & (track < len(ends))
    facts.check_steps(copies, known, "a transfer takes a link of the machine", ("link", track))
    right = (ends[track, 0] == facts.b[copies]) & (ends[track, 1] == facts.c[copies])
    facts.check_steps(copies, right, "a transfer takes a link from its source to its target", ("link", track))
    inside = (channel >= 0) & (channel < ends[track, 2])
    facts.check_steps(copies, inside, "a transfer takes a channel of its link", ("channel", channel))


def _check_sequence(facts: Facts, tracks: tuple[str, Ints], issues: Ints, last: Ints, law: str) -> Ints:
    """Check that on each track no step starts before `last` (start or end) of the one issued before it: return that."""
    if not len(issues):
        return issues
    (what, track), known = tracks, facts.earlier.track_ns
    order = np.argsort(track, kind="stable")
    issues, track = issues[order], track[order]
    is_first = firsts(track)
    before = np.append(NONE, last[issues[:-1]])
    first = track[is_first].tolist()
    before[is_first] = facts.at(np.array([known.get((what, one), NONE) for one in first], np.int64))
    shown = ("the one issued before it has", facts.times(before))
    facts.check_steps(issues, facts.start[issues] >= before, law, ("starts at ns", facts.start_ns[issues]), shown)
    ends = facts.times(last[issues[lasts(track)]])
    known |= {(what, one): ns for one, ns in zip(first, ends.tolist(), strict=True)}
    return np.asarray(before[np.argsort(order)])


def check_program_point(facts: Facts, switches: Switches) -> Ints:
    """Check that a copy starts after the last compute issued before it started (or ended).

    Returns
    -------
    by issue
        When that was (position of the clock, or `NONE`); `NONE` for other steps.
    """
    ended, host = switches.copies_wait_for == "end", facts.earlier.host
    before = np.maximum.accumulate(np.where(facts.kind == COMPUTE, np.arange(len(facts.kind)), NONE))
    known = facts.at(np.array([host.last_end_ns if ended else host.last_start_ns]))
    moments = np.append(facts.end if ended else facts.arrived, known)[before]
    points = np.where(facts.kind == COPY, moments, NONE)
    copies = facts.ran(COPY)
    copies = copies[moments[copies] != NONE]
    moment = moments[copies]
    facts.check_steps(
        copies,
        facts.start[copies] >= moment,
        f"a copy waits until the last compute issued before it has {'ended' if ended else 'started'}",
        ("starts at ns", facts.start_ns[copies]),
        ("that compute at ns", facts.times(moment)),
    )
    return points


def check_host(facts: Facts) -> None:
    """Check that the host pays for each step, and runs at most its queue depth ahead of the device."""
    costs, host = _issue_costs(facts), facts.earlier.host
    steps = np.flatnonzero(facts.row != NONE)
    spare = facts.issued_ns[steps] - costs[steps]
    floor = np.maximum.accumulate(np.append(host.spare_ns, spare))
    law = "the host issues in order and pays for each step"
    facts.check_steps(steps, spare >= floor[:-1], law, ("issued at ns", facts.issued_ns[steps]))
    depth, computes = facts.hardware.host.queue_depth, facts.ran(COMPUTE)
    numbers = host.computes + np.arange(len(computes))
    started = np.sort(np.append(host.started_ns, facts.arrived_ns[computes]))
    behind = numbers >= depth
    past = numbers[behind] - depth - (host.computes - len(host.started_ns))
    facts.check_steps(
        computes[behind],
        facts.issued_ns[computes[behind]] >= started[past],
        f"at most {depth:,} computes are issued and not yet started",
        ("issued at ns", facts.issued_ns[computes[behind]]),
        ("too many wait until ns", started[past]),
    )
    host.spare_ns, host.paid_ns = int(floor[-1]), int(costs[-1]) if len(costs) else host.paid_ns
    host.computes, host.started_ns = host.computes + len(computes), started[-depth:]


def _issue_costs(facts: Facts) -> Ints:
    """What the host has paid when it issues each step, at least [ns]; when it selected, nobody noted."""
    host, paid_ns = facts.hardware.host, facts.earlier.host.paid_ns
    if isinstance(facts.plan.steps, Steps):
        return host.fixed.launch_ns + host.fixed.step_ns * (facts.first + np.arange(1, len(facts.kind) + 1))
    prices = np.array(host.reactive.prices_ns, np.int64)[facts.kind]
    goes_home = (facts.kind == COPY) & (facts.b == facts.compute_tier)
    is_changed = np.append(facts.program.persistent, False)[np.where(goes_home, facts.a, NONE)]
    updates = host.reactive.update_ns * is_changed
    if facts.plan.backbone:
        is_late = np.array([op.late is not None for op in facts.graph.ops], bool)
        is_candidate = np.isin(np.arange(len(facts.sizes)), list(facts.graph.candidates))
        decided = facts.kind == SYNC
        for kind, flags in ((COMPUTE, is_late), (COPY, is_candidate), (DETACH, is_candidate)):
            mine = facts.steps(kind)
            decided[mine] = flags[facts.a[mine]]
        launch_ns = 0 if facts.first else host.fixed.launch_ns
        return paid_ns + launch_ns + np.cumsum(np.where(decided, prices, host.fixed.step_ns) + updates)
    return paid_ns + np.cumsum(prices + updates)


def check_waits(facts: Facts) -> None:
    """Check that computes and waits of a stream fill it from 0 to its last end, each wait with one cause.

    A collective that never began is where its stream ends: it may have come, and then tells how it waited before.
    """
    waits = facts.waits
    real = waits["end_ns"] > waits["start_ns"]
    facts.check(real, "a wait takes time", "waits", waits, "start_ns", "end_ns")
    known = (waits["cause"] >= 0) & (waits["cause"] < len(CAUSES))
    facts.check(known, f"a wait has one of the causes {', '.join(CAUSES)}", "waits", waits, "cause")
    computes, unmet = facts.ran(COMPUTE), facts.unmet
    came_ns = facts.arrived_ns[unmet]
    stream = np.concatenate((facts.track[computes], facts.b[unmet], waits["stream"]))
    start = np.concatenate((facts.start_ns[computes], came_ns, waits["start_ns"]))
    end = np.concatenate((facts.end_ns[computes], came_ns, waits["end_ns"]))
    issue = np.concatenate((computes, unmet, waits["issue"]))
    is_wait = np.arange(len(stream)) >= len(computes) + len(unmet)
    order = np.lexsort((issue, end, start, stream))
    stream, start, end, issue = (x[order] for x in (stream, start, end, issue))
    first, before = firsts(stream), np.append(0, end)[:-1]
    filled = facts.earlier.track_ns
    before[first] = [filled.get(("filled", one), 0) for one in stream[first].tolist()]
    facts.check_steps(
        issue,
        start == before,
        "every nanosecond of a stream, from 0 to its last end, is one compute or one wait",
        ("starts at ns", start),
        ("the one before it ends at ns", before),
    )
    _check_wait_is_for_next(facts, stream, issue, is_wait[order])
    _check_transfer_waits(facts)
    last = lasts(stream)
    filled |= {("filled", one): ns for one, ns in zip(stream[last].tolist(), end[last].tolist(), strict=True)}
    _keep_copies(facts)


def _check_wait_is_for_next(facts: Facts, stream: Ints, issue: Ints, is_wait: np.ndarray) -> None:
    """Check that a wait names the compute that comes after it on its stream."""
    n = len(stream)
    at = np.where(is_wait, n, np.arange(n))
    following = np.minimum.accumulate(at[::-1])[::-1]
    right = np.append(issue, NONE)[following] == issue
    facts.check_steps(issue, right | ~is_wait, "a wait is of the compute that follows it", ("stream", stream))
    waits = facts.waits
    named = facts.a[waits["issue"]] == waits["op"]
    facts.check(named, "a wait names the op of its step", "waits", waits, "op", "issue")


def _check_transfer_waits(facts: Facts) -> None:
    """Check that a wait for a transfer is covered by that transfer (or several of that tensor, back to back)."""
    waits = pick(facts.waits, facts.waits["cause"] == CAUSES.index("transfer"))
    known, many = _copies(facts), len(facts.sizes) + 2
    key = known[0] * many + known[1]
    running = Intervals(key, facts.at(known[2]), facts.at(known[3]), facts.stride, joined=True)
    covered = running.cover(waits["on"] * many + waits["blocker"], *facts.around(waits))
    law = "a wait for a transfer lasts while that transfer is under way"
    facts.check(covered, law, "waits", waits, "start_ns", "end_ns", "on", "blocker")


def _copies(facts: Facts) -> Ints:
    """Link, tensor, start and end of all transfers that a wait of the part may be for."""
    copies = facts.ran(COPY)
    mine = (facts.track[copies], facts.a[copies], facts.start_ns[copies], facts.end_ns[copies])
    return np.concatenate((facts.earlier.copies, np.stack(mine)), axis=1)


def _keep_copies(facts: Facts) -> None:
    """Keep those transfers that a wait to come may be for: a stream's next wait begins where it has come to."""
    filled = facts.earlier.track_ns
    since = min((filled.get(("filled", stream), 0) for stream in facts.program.streams), default=0)
    found = _copies(facts)
    facts.earlier.copies = found[:, found[3] > since]


def check_durations(facts: Facts, switches: Switches) -> None:
    """Check that a compute takes its time (at least, where copies slow it down) and a transfer at least its own."""
    computes = np.setdiff1d(facts.ran(COMPUTE), facts.met)
    alone = facts.alone_ns(computes)
    took = facts.end_ns[computes] - facts.start_ns[computes]
    contended = switches.hbm_contention
    right = took >= alone if contended else took == alone
    law = f"a compute takes {'at least ' if contended else ''}its own time"
    facts.check_steps(computes, right, law, ("takes ns", took), ("alone ns", alone))
    copies = facts.ran(COPY)
    size, took = facts.sizes[facts.a[copies]], facts.end_ns[copies] - facts.start_ns[copies]
    alone = np.zeros(len(copies), np.int64)
    for number, link in enumerate(facts.hardware.links.values()):
        mine = np.flatnonzero(facts.track[copies] == number)
        sizes, which = np.unique(size[mine], return_inverse=True)
        alone[mine] = np.array([transfer_ns(one, link) for one in sizes.tolist()], np.int64)[which]
    law = "a transfer takes at least its time alone"
    facts.check_steps(copies, took >= alone, law, ("takes ns", took), ("alone ns", alone))
