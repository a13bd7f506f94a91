"""One compute stream: a process that runs computes one after another, in issue order."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

import simpy
from simpy.events import Timeout

from simulator.engine.ledger import Waiting
from simulator.engine.places import Places, Waiter
from simulator.engine.program import Columns
from simulator.engine.rounds import ISSUE_MASK
from simulator.plan import COMPUTE

if TYPE_CHECKING:
    from simulator.engine.host import Host

Queued = tuple[int, int, int, tuple[tuple[int, int], ...]]
"""A compute that was issued: key, op, time of issue [ns], and (tensor, moves that must have ended) pairs."""


class Span(simpy.Event):
    """The stretch of one compute: an event that the engine begins when the op may start."""

    def begin(self, delay: int) -> None:
        """Let the event happen after `delay` ns."""
        self._ok = True
        self._value = None
        self.env.schedule(self, delay=delay)


class Kernels(Protocol):
    """How long a kernel takes once it has started."""

    def begin(self, stream: Stream, op: int) -> None:
        """Begin now; sooner or later begin the stream's span."""


class Stream:
    """Computes of one rank that run in order.

    Parameters
    ----------
    number
        Id of the stream.
    places, columns
        The rank's places and its compiled graph.
    spans, waits
        Flat lists that take rows of the trace.

    Attributes
    ----------
    issued, started, ended
        How many computes were issued, have started, have ended.
    lacking
        What `lacks` said when the head was last tried in vain.
    last_use, last_write
        Per tensor: the number (1 is the first) of the last compute issued that uses it, that writes it.
    """

    def __init__(self, number: int, places: Places, columns: Columns, spans: list[int], waits: list[int]) -> None:
        self.number, self.places, self.columns, self.rank = number, places, columns, places.rank
        self.host: Host
        self.kernels: Kernels | None = None
        self.queue: deque[Queued] = deque()
        self.issued = self.started = self.ended = 0
        self.last_use = [0] * len(columns.size_bytes)
        self.last_write = [0] * len(columns.size_bytes)
        self.running: Queued | None = None
        self.start_ns = 0
        self.considered = False
        self.lacking = -1
        self.waiting = Waiting(self, waits)
        self.span = Span(places.rounds.env)
        self._in_process = False
        self._due_ns = -1
        self._at_start: dict[int, list[Waiter]] = {}
        self._at_end: dict[int, list[Waiter]] = {}
        self._spans = spans
        tier = columns.compute_tier
        self._valid, self._held, self._room = places.valid[tier], places.held[tier], places.tiers[tier]
        self._others = [valid for other, valid in enumerate(places.valid) if other != tier]
        places.streams.append(self)
        places.rounds.env.process(self.run())

    def look_again(self) -> None:
        """Try the head again."""
        self.places.rounds.consider(self, self.queue[0][0])

    def wait_for_start(self, count: int, waiter: Waiter) -> None:
        """Call `waiter` when so many computes have started."""
        self._at_start.setdefault(count, []).append(waiter)

    def wait_for_end(self, count: int, waiter: Waiter) -> None:
        """Call `waiter` when so many computes have ended."""
        self._at_end.setdefault(count, []).append(waiter)

    def run(self) -> Generator[simpy.Event, None, None]:
        """End each compute in turn; it was begun when it could start.

        A compute that this stream itself begins, and before whose end nothing else happens, needs no event: the clock
        leaps to its end.
        """
        rounds = self.places.rounds
        clock, events = rounds.env, rounds.env.events
        while True:
            due, self._due_ns = self._due_ns, -1
            if due < 0:
                self._in_process = False
                yield self.span
                self._in_process, self.span = True, Span(clock)
            elif events and events[0][0] <= due:
                self._in_process = False
                yield Timeout(clock, due - clock.now)
                self._in_process = True
            else:
                clock.leap(due)
            self._end()
            if self.queue:
                rounds.close_with(self, self.queue[0][0])
            else:
                rounds.restless.append(self)
                rounds.close()

    def lacks(self) -> int:
        """The first tensor that the head waits for, or -1: not its turn, or read and not valid."""
        _, op, _, turns = self.queue[0]
        moves_ended, valid = self.places.moves_ended, self._valid
        for tensor, count in turns:
            if moves_ended[tensor] < count:
                return tensor
        for tensor in self.columns.reads[op]:
            if not valid[tensor]:
                return tensor
        return self._lacks_other_stream(op) if self.columns.streams > 1 else -1

    def _lacks_other_stream(self, op: int) -> int:
        """The first tensor that an earlier compute of another stream still uses in a way that excludes this op."""
        issue = self.queue[0][0]
        for other in self.places.streams:
            if other is not self and other.uses_before(issue, self.columns.reads[op], self.columns.writes[op]) >= 0:
                return other.uses_before(issue, self.columns.reads[op], self.columns.writes[op])
        return -1

    def uses_before(self, issue: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> int:
        """A tensor that some unfinished compute issued before writes (if it is read) or uses (if it is written)."""
        for compute in (self.running, *self.queue):
            if compute is not None and compute[0] < issue:
                op = compute[1]
                for tensor in self.columns.writes[op]:
                    if tensor in reads or tensor in writes:
                        return tensor
                for tensor in self.columns.reads[op]:
                    if tensor in writes:
                        return tensor
        return -1

    def room_bytes(self) -> int:
        """What the head takes in the compute tier: what it writes and has no place yet, and its workspace [B]."""
        op, columns, held = self.queue[0][1], self.columns, self._held
        room = columns.workspace_bytes[op]
        for tensor in columns.writes[op]:
            if not held[tensor]:
                room += columns.size_bytes[tensor]
        return room

    def try_start(self) -> None:
        """Start the first compute, or register with what it waits for."""
        if self.running is not None or not self.queue:
            return
        key, op, _, turns = self.queue[0]
        columns = self.columns
        if turns or columns.reads[op] or columns.streams > 1:
            self.lacking = tensor = self.lacks()
            if tensor >= 0:
                self._wait_for(tensor)
                self.places.rounds.restless.append(self)
                return
        if columns.takes_room[op]:
            room = self.room_bytes()
            if room and not self._room.admit_compute(self, key, room):
                self.places.rounds.restless.append(self)
                return
        self._start()

    def _wait_for(self, tensor: int) -> None:
        issue, op, _, turns = self.queue[0]
        for other in self.places.streams:
            if other is not self and other.uses_before(issue, self.columns.reads[op], self.columns.writes[op]) >= 0:
                other.wait_for_end(other.ended + 1, self)
                return
        self.places.wait_for_moves(tensor, dict(turns).get(tensor, 0), issue, self)

    def _start(self) -> None:
        compute = self.running = self.queue.popleft()
        op = compute[1]
        places, columns, host = self.places, self.columns, self.host
        self.start_ns = now = places.rounds.env.now
        if self.waiting.is_open:
            self.waiting.end(compute[0] & ISSUE_MASK, op)
        if columns.takes_room[op]:
            self._take_places(op)
        self.started += 1
        if self.kernels is not None:
            self.kernels.begin(self, op)
        elif self._in_process:
            self._due_ns = now + columns.duration_ns[op]
        else:
            self.span.begin(columns.duration_ns[op])
        if self.started in self._at_start:
            for waiter in self._at_start.pop(self.started):
                waiter.look_again()
        host.ahead -= 1
        if host.is_full and host.ahead <= host.resume_at:
            host.advance()

    def _take_places(self, op: int) -> None:
        places, columns = self.places, self.columns
        for tensor in columns.writes[op]:
            if not self._held[tensor]:
                places.hold(tensor, columns.compute_tier)
        if columns.workspace_bytes[op]:
            places.note(columns.compute_tier, -1 - op, columns.workspace_bytes[op])

    def _end(self) -> None:
        """The running compute is over: what it wrote is valid here and stale elsewhere."""
        key, op, issued_ns, _ = self.running  # type: ignore[misc]
        self.running = None
        self.ended += 1
        places, columns = self.places, self.columns
        now = places.rounds.env.now
        self._spans += (self.rank, COMPUTE, op, self.number, 0, key & ISSUE_MASK, issued_ns, self.start_ns, now)
        if columns.workspace_bytes[op]:
            places.note(columns.compute_tier, -1 - op, -columns.workspace_bytes[op])
            self._room.release(columns.workspace_bytes[op])
        for tensor in columns.writes[op]:
            self._valid[tensor] = 1
            for other in self._others:
                other[tensor] = 0
        if self.ended in self._at_end:
            for waiter in self._at_end.pop(self.ended):
                waiter.look_again()

    def account(self) -> None:
        """If the stream is idle now, account for why."""
        if self.running is None:
            self.waiting.look()
