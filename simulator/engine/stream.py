"""One compute stream: it runs computes one after another, in issue order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import simpy

from simulator.engine.places import Places
from simulator.engine.program import Columns
from simulator.engine.recorder import Recorder, span_row
from simulator.engine.rounds import ISSUE_MASK, Account, Alarm, Gate, Recurring, Wanted, Watchers
from simulator.offsets import workspace
from simulator.plan import COMPUTE

NEVER = -(1 << 60)
"""Number of a compute, or count of moves, that does not exist: too small to be waited for in any repeat."""


@dataclass(slots=True)
class Compute:
    """A compute with the counts of what must have happened before it starts.

    Attributes
    ----------
    op, stream
        What runs where.
    turns
        (tensor, moves that must have ended) pairs.
    reads, writes
        What it must find valid; what it must have a place for, and makes valid. Less what earlier computes see to.
    after
        Computes of other streams that must have ended.
    line
        The last compute before it that takes room, if that is one of another stream: room is given in issue order.
    is_free
        Whether there is nothing to wait for, to take or to make valid.
    duration_ns, chosen_bytes
        What this issue takes alone [ns], and what it reads beside what it reads each time [B], if its op has late
        reads; else the first is negative.
    """

    op: int
    stream: Stream
    turns: Sequence[tuple[int, int]] = ()
    reads: Sequence[int] = ()
    writes: Sequence[int] = ()
    after: Computes = ()
    line: Computes = ()
    is_free: bool = False
    duration_ns: int = -1
    chosen_bytes: int = 0


Queued = tuple[int, Compute, int, int]
"""A compute that was issued: key, compute, time of issue [ns], lap."""


class Met(Protocol):
    """A meeting, as a stream knows it that has come to one.

    Attributes
    ----------
    peer
        The lowest rank that has not arrived; -1 once the collective runs.
    watchers
        Waits that depend on it.
    """

    peer: int
    watchers: Watchers


class Stream:
    """Computes of one rank that run in order.

    Parameters
    ----------
    number
        Id of the stream.
    places, columns
        The rank's places and its compiled graph.
    recorder
        Takes rows of the trace.

    Attributes
    ----------
    queue, running
        Computes that were issued and have not started; the one that runs.
    started, ended, per_lap
        How many computes have started, have ended; how many there are in one lap of a plan that is run many times.
    watchers
        Waits that depend on what this stream does.
    waiting
        Puts its waits down to causes.
    kernel
        Begins a kernel whose time depends on others, and calls `end_after`; None: all take their time alone.
    meeting
        What the running op has come to, if it is a collective.
    gate
        What may stop it, if anything.
    """

    waiting: Account

    def __init__(self, number: int, places: Places, columns: Columns, recorder: Recorder) -> None:
        self.number, self.places, self.columns, self.rank = number, places, columns, places.rank
        self.kernel: Callable[[Stream, Compute], None] | None = None
        self.meeting: Met | None = None
        self.gate: Gate | None = None
        self.queue: deque[Queued] = deque()
        self.running: Queued | None = None
        self.started = self.ended = self.per_lap = self.start_ns = 0
        self.considered = False
        self.watchers: Watchers = []
        self._rounds, self._clock = places.rounds, places.rounds.clock
        self._span = Recurring(self._clock, self._finish)
        self._alarm = Alarm(self._rounds, self)
        self._at_start: dict[int, list[Callable[[], None]]] = {}
        self._at_end: dict[int, list[Callable[[], None]]] = {}
        self._spans, self._workspaces = recorder.spans, workspace(0, number)
        self._valid, self._held = places.valid[columns.compute_tier], places.held[columns.compute_tier]
        self._lacked: list[tuple[int, int, int, bool]] | None = None

    def look_again(self) -> None:
        """Have the head tried in the present round."""
        if self.queue:
            self._rounds.consider(self, self.queue[0][0])

    def append(self, queued: Queued) -> None:
        """Take an issued compute into the queue."""
        self.queue.append(queued)
        if len(self.queue) == 1 and self.running is None:
            self.look_again()

    @property
    def is_issued(self) -> bool:
        """Whether there is a head that has been issued: a host that is ahead queues a compute before that."""
        return bool(self.queue) and self.queue[0][2] <= self._clock.now

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may start, whatever it needs."""
        return self.gate is not None and self.gate.is_open

    def wait_for_start(self, count: int, look_again: Callable[[], None]) -> None:
        """Call back when so many computes have started."""
        self._at_start.setdefault(count, []).append(look_again)

    def wait_for_end(self, count: int, look_again: Callable[[], None]) -> None:
        """Call back when so many computes have ended."""
        self._at_end.setdefault(count, []).append(look_again)

    def end_after(self, delay_ns: int) -> None:
        """Let the running compute end after so long."""
        self._clock.at(self._clock.now + delay_ns, self._span)

    def _finish(self, event: simpy.Event) -> None:
        """End the running compute, and let the next one start."""
        key, compute, issued_ns, _ = self.running  # type: ignore[misc]
        rounds, queue, issue, start, end = self._rounds, self.queue, key & ISSUE_MASK, self.start_ns, self._clock.now
        self.running = None
        self.ended = ended = self.ended + 1
        self._spans += span_row(self.rank, COMPUTE, compute.op, self.number, 0, issue, issued_ns, start, end)
        if not compute.is_free:
            self._leave_places(compute)
        if ended in self._at_end:
            for look_again in self._at_end.pop(ended):
                look_again()
        if self.watchers:
            rounds.wake(self.watchers)
        if queue and queue[0][1].is_free and self.kernel is None and self.gate is None and not rounds.has_work():
            self._run_undisturbed()
        if queue:
            rounds.consider(self, queue[0][0])
        else:
            rounds.restless.append(self.waiting)
        rounds.close()

    def _run_undisturbed(self) -> None:
        """Run computes from the queue as long as each only takes time and nothing else happens before its end.

        An event for each would take 1.4 times as long where a step is all computes (`tests/bench`, case ``compute``).
        """
        clock, queue, rank, number, spans = self._clock, self.queue, self.rank, self.number, self._spans
        durations_ns, at_start, at_end = self.columns.duration_ns, self._at_start, self._at_end
        start, count, until = clock.now, self.started, clock.events[0][0] if clock.events else math.inf
        while queue:
            key, compute, issued_ns, _ = queue[0]
            end = start + durations_ns[compute.op]
            count += 1
            if not compute.is_free or end >= until or issued_ns > start or count in at_start or count in at_end:
                break
            queue.popleft()
            self.started = count
            spans += span_row(rank, COMPUTE, compute.op, number, 0, key & ISSUE_MASK, issued_ns, start, end)
            start = end
        self.ended = self.started
        clock.now = start

    def lacks(self) -> tuple[int, int] | None:
        """The first tensor that the head waits for, if any, and its moves that must have ended.

        It is not its turn, or it is read and not valid. First is what was copied first, in issue order, whatever the
        order of its reads. What the head has once found there stays so until it runs, and is not looked at again.
        """
        if self._lacked is None:
            self._lacked = self._lacking()
        moves_ended, valid = self.places.moves_ended, self._valid
        while self._lacked:
            _, tensor, moves, is_read = self._lacked[-1]
            if moves_ended[tensor] < moves or (is_read and not valid[tensor]):
                return tensor, moves
            self._lacked.pop()
        return None

    def _lacking(self) -> list[tuple[int, int, int, bool]]:
        """All that the head lacks, the first one last: key of its last copy issued before, tensor, moves, if read."""
        key, compute, _, lap = self.queue[0]
        places, valid, last_transfer = self.places, self._valid, self.places.last_transfer
        due = {}
        for tensor, count in compute.turns:
            moves = count + lap * places.moves_per_lap[tensor]
            if places.moves_ended[tensor] < moves:
                due[tensor] = moves
        absent = {tensor for tensor in compute.reads if not valid[tensor]}
        if not due and not absent:
            return []
        found = [(last_transfer(one, key), one, due.get(one, NEVER), one in compute.reads) for one in {*due, *absent}]
        return sorted(found, reverse=True)

    def behind(self) -> Stream | None:
        """The stream that the head waits for first: a compute there must end, or is in line for room before it."""
        _, compute, _, lap = self.queue[0]
        if stream := unended(compute.after, lap):
            return stream
        return unstarted(compute.line, lap) if compute.line and self.lacks() is None and self.room_bytes() else None

    def room_bytes(self) -> int:
        """What the head takes in the compute tier: what it writes and has no place yet, and its workspace [B]."""
        return sum([size for _, size in self.wanted()])

    def wanted(self) -> Wanted:
        """The places that the head takes in the compute tier, the workspace last."""
        compute, held, sizes = self.queue[0][1], self._held, self.columns.size_bytes
        found = [(tensor, sizes[tensor]) for tensor in compute.writes if not held[tensor] and sizes[tensor]]
        own = self.columns.workspace_bytes[compute.op]
        return [*found, (self._workspaces - compute.op, own)] if own else found

    def try_start(self) -> None:
        """Start the first compute, or register with what it waits for."""
        if self.running is not None or not self.queue:
            return
        key, compute, issued_ns, lap = self.queue[0]
        now = self._clock.now
        if self.gate is not None and self.gate.is_open:
            self._rounds.restless.append(self.waiting)
        elif issued_ns > now:
            self._alarm.set(issued_ns)
            self._rounds.restless.append(self.waiting)
        elif not compute.is_free and not self._may_start(key, compute, lap):
            self._rounds.restless.append(self.waiting)
        else:
            self._start(compute, now)

    def _may_start(self, key: int, compute: Compute, lap: int) -> bool:
        """Take room and places for the head if nothing else is lacking; register with what it waits for."""
        if compute.after and wait_for_end(compute.after, lap, self.look_again):
            return False
        if lacked := self.lacks():
            self.places.wait_for_moves(*lacked, key, self.look_again)
            return False
        if compute.writes or self.columns.workspace_bytes[compute.op]:
            room, tier = self.room_bytes(), self.columns.compute_tier
            if room and compute.line and wait_for_start(compute.line, lap, self.look_again):
                return False
            if room and not self.places.tiers[tier].admit_compute(self, key, room):
                return False
            self._take_places(compute)
        self._lacked = None
        if compute.duration_ns >= 0:
            self.columns.duration_ns[compute.op] = compute.duration_ns
        return True

    def _start(self, compute: Compute, now: int) -> None:
        self.running, self.start_ns = self.queue.popleft(), now
        self.started = started = self.started + 1
        if self.waiting.is_open:
            self.waiting.end(self.running[0] & ISSUE_MASK, compute.op)
        if self.watchers:
            self._rounds.wake(self.watchers)
        if self.kernel is not None:
            self.kernel(self, compute)
        else:
            self._clock.at(now + self.columns.duration_ns[compute.op], self._span)
        if started in self._at_start:
            for look_again in self._at_start.pop(started):
                look_again()

    def _take_places(self, compute: Compute) -> None:
        tier, own = self.columns.compute_tier, self.columns.workspace_bytes[compute.op]
        for tensor in compute.writes:
            if not self._held[tensor]:
                self.places.hold(tensor, tier)
        if own:
            self.places.note(tier, -1 - compute.op, own)

    def _leave_places(self, compute: Compute) -> None:
        """The compute is over: what it wrote is valid here and stale elsewhere."""
        tier, own = self.columns.compute_tier, self.columns.workspace_bytes[compute.op]
        if own:
            self.places.note(tier, -1 - compute.op, -own)
            self.places.tiers[tier].release(own, self._workspaces - compute.op)
        for tensor in compute.writes:
            for other, valid in enumerate(self.places.valid):
                valid[tensor] = other == tier


Computes = tuple[tuple[Stream, int], ...]
"""Computes of some streams, each by its stream and its number there, counted from the begin of the lap."""


def unended(computes: Computes, lap: int) -> Stream | None:
    """The stream of the first of these computes that has not ended, if there is one."""
    for stream, number in computes:
        if stream.ended < number + lap * stream.per_lap:
            return stream
    return None


def unstarted(computes: Computes, lap: int) -> Stream | None:
    """The stream of the first of these computes that has not started, if there is one."""
    for stream, number in computes:
        if stream.started < number + lap * stream.per_lap:
            return stream
    return None


def wait_for_end(computes: Computes, lap: int, look_again: Callable[[], None]) -> bool:
    """Whether some of the computes have not ended; if so, call back when the first of those has."""
    for stream, number in computes:
        due = number + lap * stream.per_lap
        if stream.ended < due:
            stream.wait_for_end(due, look_again)
            return True
    return False


def wait_for_start(computes: Computes, lap: int, look_again: Callable[[], None]) -> bool:
    """Whether some of the computes have not started; if so, call back when the first of those has."""
    for stream, number in computes:
        due = number + lap * stream.per_lap
        if stream.started < due:
            stream.wait_for_start(due, look_again)
            return True
    return False
