"""One compute stream: a process that runs computes one after another, in issue order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from typing import Protocol, cast

import simpy

from simulator.engine.places import Places
from simulator.engine.program import Columns
from simulator.engine.recorder import place, span_row
from simulator.engine.rounds import Alarm, Clock
from simulator.engine.steps import ComputeStep
from simulator.engine.waits import (
    ISSUE_MASK,
    NEVER,
    Accountable,
    Gate,
    Issuer,
    Waiter,
    Wanted,
    behind,
    wait_for,
    wait_for_start,
)
from simulator.offsets import workspace
from simulator.plan import COMPUTE

Queued = tuple[int, int, ComputeStep, int, int]
"""A compute that was issued: key, op, step, time of issue [ns], lap."""


Lacked = tuple[int, int, int, bool]
"""What the head lacks: key of its last copy issued before, tensor, moves that must have ended, whether it is read."""


class Span(simpy.Event):
    """The stretch of one compute: an event, the same for all computes of a stream, that happens at the end of each."""

    env: Clock

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ok, self._value = True, None

    def begin(self, delay: int) -> None:
        """Let the event happen after `delay` ns."""
        self.env.at(self.env.now + delay, self)


class Account(Protocol):
    """The waits of a stream."""

    is_open: bool

    def look(self) -> None:
        """Find the cause of the present wait anew."""

    def end(self, issue: int, op: int) -> None:
        """The stream starts this op: write its wait, if there was one."""

    def add(self, start_ns: int, end_ns: int, reason: tuple[int, int, int, int]) -> None:
        """Write a wait of the running op."""


class Met(Protocol):
    """A meeting, as a stream knows it that has come to one.

    Attributes
    ----------
    peer
        The lowest rank that has not arrived; -1 once the collective runs.
    watchers
        Streams whose wait depends on it.
    """

    peer: int
    watchers: list[Accountable]


class Kernels(Protocol):
    """How long a kernel takes once it has started."""

    def begin(self, stream: Stream, op: int) -> None:
        """Begin now; sooner or later begin the stream's span."""

    def meeting(self, op: int) -> Met | None:
        """The meeting that a running op has come to; None if it is no collective."""


class Stream:
    """Computes of one rank that run in order.

    Parameters
    ----------
    number
        Id of the stream.
    places, columns
        The rank's places and its compiled graph.
    spans
        Takes rows of the trace, short.

    Attributes
    ----------
    started, ended, per_lap
        How many computes have started, have ended; how many there are in one lap of a plan that runs many.
    lacking, behind
        When the head was last tried in vain: what `lacks` said, and the stream of the compute that must end first.
    watchers
        Streams whose wait depends on what this one does.
    waiting
        Puts its waits down to causes.
    kernels, gate
        Who knows how long a kernel takes once it has started, if that depends; what may stop it, if anything.
    """

    __slots__ = (
        "_alarm",
        "_at_end",
        "_at_start",
        "_clock",
        "_duration_ns",
        "_held",
        "_lacked",
        "_moves_ended",
        "_moves_per_lap",
        "_others",
        "_room",
        "_rounds",
        "_spans",
        "_track",
        "_valid",
        "_workspace_bytes",
        "_workspaces",
        "behind",
        "columns",
        "considered",
        "ended",
        "gate",
        "host",
        "kernels",
        "lacking",
        "number",
        "per_lap",
        "places",
        "queue",
        "rank",
        "running",
        "span",
        "start_ns",
        "started",
        "waiting",
        "watchers",
    )

    def __init__(self, number: int, places: Places, columns: Columns, spans: bytearray) -> None:
        self.number, self.places, self.columns, self.rank = number, places, columns, places.rank
        self.host: Issuer
        self.kernels: Kernels | None = None
        self.gate: Gate | None = None
        self.queue: deque[Queued] = deque()
        self.started = self.ended = self.per_lap = 0
        self.running: Queued | None = None
        self.start_ns = 0
        self.considered = False
        self.lacking = -1
        self._lacked: list[Lacked] | None = None
        self.behind: Stream | None = None
        self.watchers: list[Accountable] = []
        self.waiting: Account
        self._rounds, self._clock = places.rounds, places.rounds.clock
        self.span = Span(self._clock)
        self._alarm = Alarm(self._rounds, self)
        self._at_start: dict[int, list[Waiter]] = {}
        self._at_end: dict[int, list[Waiter]] = {}
        self._spans, self._track = spans, place(COMPUTE, number)
        self._workspaces = workspace(0, number)
        self._duration_ns, self._workspace_bytes = columns.duration_ns, columns.workspace_bytes
        tier = columns.compute_tier
        self._valid, self._held, self._room = places.valid[tier], places.held[tier], places.tiers[tier]
        self._moves_ended, self._moves_per_lap = places.moves_ended, places.moves_per_lap
        self._others = [valid for other, valid in enumerate(places.valid) if other != tier]
        places.streams.append(self)
        process = self.run()
        next(process)
        self.span.callbacks = [process.send]

    def account(self) -> None:
        """Find the cause of its wait anew, if it waits."""
        if self.running is None:
            self.waiting.look()

    def look_again(self) -> None:
        """Try the head again."""
        self._rounds.consider(self, self.queue[0][0])

    @property
    def is_issued(self) -> bool:
        """Whether the head has been issued: a host that is ahead queues a compute before that."""
        return self.queue[0][3] <= self._clock.now

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may start, whatever it needs."""
        return self.gate is not None and self.gate.is_open

    @property
    def meeting(self) -> Met | None:
        """The meeting that the running op has come to; None if it is no collective."""
        return None if self.kernels is None or self.running is None else self.kernels.meeting(self.running[1])

    def wait_for_start(self, count: int, waiter: Waiter) -> None:
        """Call `waiter` when so many computes have started."""
        self._at_start.setdefault(count, []).append(waiter)

    def wait_for_end(self, count: int, waiter: Waiter) -> None:
        """Call `waiter` when so many computes have ended."""
        self._at_end.setdefault(count, []).append(waiter)

    def run(self) -> Generator[None, simpy.Event, None]:
        """End each compute in turn; it was begun when it could start, and the span that has happened is sent."""
        rounds, clock, queue = self._rounds, self._clock, self.queue
        spans, at_end, track = self._spans, self._at_end, self._track
        yield
        while True:
            key, op, step, issued_ns, _ = self.running  # type: ignore[misc]
            self.running = None
            if self.watchers:
                self._wake_watchers()
            self.ended = ended = self.ended + 1
            spans += span_row(key, track, op, issued_ns, self.start_ns, clock.now)
            if not step.is_free:
                self._leave_places(op, step)
            if ended in at_end:
                for waiter in at_end.pop(ended):
                    waiter.look_again()
            if queue and queue[0][2].is_free and self.kernels is None and not (self.is_stopped or rounds.has_work()):
                self._run_undisturbed()
            if queue:
                rounds.close_with(self, queue[0][0])
            else:
                rounds.restless.append(self)
                rounds.close()
            yield

    def _run_undisturbed(self) -> None:
        """Run computes from the queue as long as each only takes time and nothing else happens before its end.

        An event for each would take 1.4 times as long where a step is all computes (`tests/bench`, case ``compute``).
        """
        clock, queue, spans, durations_ns = self._clock, self.queue, self._spans, self._duration_ns
        at_start, at_end, track = self._at_start, self._at_end, self._track
        start, count, until = clock.now, self.started, clock.events[0][0] if clock.events else math.inf
        while queue:
            key, op, step, issued_ns, _ = queue[0]
            end = start + durations_ns[op]
            count += 1
            if not step.is_free or end >= until or issued_ns > start or count in at_start or count in at_end:
                break
            queue.popleft()
            self.started = count
            spans += span_row(key, track, op, issued_ns, start, end)
            start = end
        self.ended = self.started
        clock.now = start

    def lacks(self, step: ComputeStep, lap: int) -> Lacked | None:
        """The first tensor that the head waits for, if any: not its turn, or read and not valid.

        First is what was copied first, in issue order, whatever the order of its reads. What it has once found there
        stays so until it runs, and is not looked at again.
        """
        if self._lacked is None:
            self._lacked = self._lacking(step, lap)
        lacked, moves_ended, valid = self._lacked, self._moves_ended, self._valid
        while lacked:
            _, tensor, moves, is_read = lacked[-1]
            if moves_ended[tensor] < moves or (is_read and not valid[tensor]):
                return lacked[-1]
            lacked.pop()
        return None

    def _lacking(self, step: ComputeStep, lap: int) -> list[Lacked]:
        """All that the head lacks, the first one last."""
        moves_ended, per_lap, valid = self._moves_ended, self._moves_per_lap, self._valid
        due = {}
        for tensor, count in step.turns:
            moves = count + lap * per_lap[tensor]
            if moves_ended[tensor] < moves:
                due[tensor] = moves
        absent = {tensor for tensor in step.reads if not valid[tensor]}
        if not due and not absent:
            return []
        key, last_transfer, reads = self.queue[0][0], self.places.last_transfer, {*step.reads}
        found = [(last_transfer(one, key), one, due.get(one, NEVER), one in reads) for one in due.keys() | absent]
        return sorted(found, reverse=True)

    def room_bytes(self) -> int:
        """What the head takes in the compute tier: what it writes and has no place yet, and its workspace [B]."""
        _, op, step, _, _ = self.queue[0]
        held, size_bytes = self._held, self.columns.size_bytes
        room = self._workspace_bytes[op]
        for tensor in step.writes:
            if not held[tensor]:
                room += size_bytes[tensor]
        return room

    def wanted(self) -> Wanted:
        """The places that the head takes in the compute tier, the workspace last."""
        _, op, step, _, _ = self.queue[0]
        held, size_bytes = self._held, self.columns.size_bytes
        found = [(tensor, size_bytes[tensor]) for tensor in step.writes if not held[tensor] and size_bytes[tensor]]
        workspace = self._workspace_bytes[op]
        return [*found, (self._workspaces - op, workspace)] if workspace else found

    def try_start(self) -> None:
        """Start the first compute, or register with what it waits for."""
        if self.running is not None or not self.queue:
            return
        if self.is_stopped:
            self._rounds.restless.append(self)
            return
        key, op, step, issued_ns, _ = head = self.queue[0]
        now = self._clock.now
        if issued_ns > now:
            self._alarm.set(issued_ns)
            self._rounds.restless.append(self)
            return
        if not step.is_free and not self._may_start(head):
            self._rounds.restless.append(self)
            return
        self.queue.popleft()
        self.running, self.start_ns = head, now
        self.started = started = self.started + 1
        if self.waiting.is_open:
            self.waiting.end(key & ISSUE_MASK, op)
        if self.watchers:
            self._wake_watchers()
        if self.kernels is not None:
            self.kernels.begin(self, op)
        else:
            self._clock.at(now + self._duration_ns[op], self.span)
        if started in self._at_start:
            for waiter in self._at_start.pop(started):
                waiter.look_again()

    def _may_start(self, head: Queued) -> bool:
        """Take room and places for the head if nothing else is lacking; register with what it waits for."""
        key, op, step, _, lap = head
        if step.after and self._wait_for_other_stream(step, lap):
            return False
        lacked = self.lacks(step, lap)
        self.lacking = -1 if lacked is None else lacked[1]
        if lacked is not None:
            self.places.wait_for_moves(lacked[1], lacked[2], key, self)
            return False
        workspace = self._workspace_bytes[op]
        if step.writes or workspace:
            room = self.room_bytes()
            if room and step.line and wait_for_start(step.line, lap, self):
                return False
            if room and not self._room.admit_compute(self, key, room):
                return False
            self._take_places(op, step, workspace)
        self._lacked = None
        if step.duration_ns >= 0:
            self._duration_ns[op] = step.duration_ns
        return True

    def _wait_for_other_stream(self, step: ComputeStep, lap: int) -> bool:
        """Whether a compute of another stream must end first; if so, look again then."""
        self.behind = cast("Stream | None", behind(step.after, lap))
        return self.behind is not None and wait_for(step.after, lap, self)

    def _wake_watchers(self) -> None:
        self._rounds.restless += self.watchers
        self.watchers.clear()

    def _take_places(self, op: int, step: ComputeStep, workspace: int) -> None:
        for tensor in step.writes:
            if not self._held[tensor]:
                self.places.hold(tensor, self.columns.compute_tier)
        if workspace:
            self.places.note(self.columns.compute_tier, -1 - op, workspace)

    def _leave_places(self, op: int, step: ComputeStep) -> None:
        """The compute is over: what it wrote is valid here and stale elsewhere."""
        workspace = self._workspace_bytes[op]
        if workspace:
            self.places.note(self.columns.compute_tier, -1 - op, -workspace)
            self._room.release(workspace, self._workspaces - op)
        for tensor in step.writes:
            self._valid[tensor] = True
            for other in self._others:
                other[tensor] = False
