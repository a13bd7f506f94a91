"""One compute stream: a process that runs computes one after another, in issue order."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

import simpy

from simulator.engine.ledger import Waiting
from simulator.engine.places import Places
from simulator.engine.program import Columns
from simulator.engine.rounds import RANK_SHIFT
from simulator.plan import COMPUTE

if TYPE_CHECKING:
    from simulator.engine.host import Host
    from simulator.engine.link import LinkQueue

Queued = tuple[int, int, int, list[int]]
"""A compute that was issued: issue number, op, time of issue [ns], and its turn for each tensor it touches."""


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
    compute_tier
        Id of the tier that kernels work in.
    spans, waits
        Flat lists that take rows of the trace.
    """

    def __init__(
        self,
        number: int,
        places: Places,
        columns: Columns,
        compute_tier: int,
        spans: list[int],
        waits: list[int],
    ) -> None:
        self.number, self.places, self.columns, self.rank = number, places, columns, places.rank
        self.host: Host
        self.kernels: Kernels | None = None
        self.queue: deque[Queued] = deque()
        self.gates_at_start: dict[int, list[LinkQueue]] = {}
        self.gates_at_end: dict[int, list[LinkQueue]] = {}
        self.issued = self.started = self.ended = 0
        self.running: Queued | None = None
        self.start_ns = 0
        self.considered = False
        self.compute_tier = compute_tier
        self.waiting = Waiting(self, waits)
        self.span = Span(places.rounds.env)
        self._in_process = False
        self._due_ns = -1
        self._spans = spans
        self._valid = places.valid[compute_tier]
        self._held = places.held[compute_tier]
        self._others = [valid for tier, valid in enumerate(places.valid) if tier != compute_tier]
        self._room = places.tiers[compute_tier]
        self._process = places.rounds.env.process(self.run())

    def key(self) -> int:
        """Key of the first compute."""
        return self.rank << RANK_SHIFT | self.queue[0][0]

    def append(self, compute: Queued) -> None:
        """Take an issued compute into the queue."""
        self.queue.append(compute)
        self.issued += 1
        if self.running is None and len(self.queue) == 1:
            self.places.rounds.consider(self)

    def tensor_moved(self, tensor: int) -> None:
        """Try the head again."""
        self.places.rounds.consider(self)

    def run(self) -> Generator[simpy.Event, None, None]:
        """Wait for the end of each compute in turn; it was begun when it could start.

        A compute that this stream itself begins, and before whose end nothing else happens, needs no event: the clock
        leaps to its end.
        """
        clock = self.places.rounds.env
        while True:
            yield self.span
            self.span = Span(clock)
            self._in_process = True
            self._end()
            self._go_on()
            while self._due_ns >= 0:
                due, self._due_ns = self._due_ns, -1
                if clock.peek() <= due:
                    self.span.begin(due - clock.now)
                    break
                clock.leap(due)
                self._end()
                self._go_on()
            self._in_process = False

    def _go_on(self) -> None:
        """Close the round; if nothing else happens in it, without an agenda."""
        rounds = self.places.rounds
        if not self.queue:
            rounds.restless.append(self)
            rounds.close()
        elif rounds.heads or rounds.frees or rounds.env.peek() <= rounds.env.now:
            rounds.consider(self)
            rounds.close()
        else:
            self.try_start()
            if rounds.heads or rounds.frees or rounds.restless or rounds.touched:
                rounds.settle()

    def lacks(self) -> int:
        """The first tensor that the head waits for, or -1: not its turn, or read and not valid."""
        _, op, _, turns = self.queue[0]
        ended, valid, columns = self.places.ended, self._valid, self.columns
        i = 0
        for tensor in columns.shared[op]:
            if ended[tensor] < turns[i] or not valid[tensor]:
                return tensor
            i += 1
        for tensor in columns.exclusive[op]:
            if ended[tensor] < turns[i]:
                return tensor
            i += 1
        for tensor in columns.updated[op]:
            if not valid[tensor]:
                return tensor
        return -1

    def room_bytes(self) -> int:
        """What the head takes in the compute tier: what it writes and has no place yet, and its workspace [B]."""
        op, columns, held = self.queue[0][1], self.columns, self._held
        room = columns.workspace_bytes[op]
        for tensor in columns.exclusive[op]:
            if not held[tensor]:
                room += columns.size_bytes[tensor]
        return room

    def try_start(self) -> None:
        """Start the first compute, or register with what it waits for."""
        if self.running is not None or not self.queue:
            return
        tensor = self.lacks()
        if tensor >= 0:
            self.places.wait(tensor, 0, self.queue[0][0], self)
        else:
            room = self.room_bytes()
            if not room or self._room.admit_compute(self, self.key(), room):
                self._start()
                return
        self.places.rounds.restless.append(self)

    def _start(self) -> None:
        compute = self.running = self.queue.popleft()
        op = compute[1]
        places, columns, host = self.places, self.columns, self.host
        self.start_ns = now = places.rounds.env.now
        if self.waiting.is_open:
            self.waiting.end(compute[0], op)
        for tensor in columns.exclusive[op]:
            if not self._held[tensor]:
                places.hold(tensor, self.compute_tier)
        if columns.workspace_bytes[op]:
            places.note(self.compute_tier, -1 - op, columns.workspace_bytes[op])
        self.started += 1
        if self.kernels is not None:
            self.kernels.begin(self, op)
        elif self._in_process:
            self._due_ns = now + columns.duration_ns[op]
        else:
            self.span.begin(columns.duration_ns[op])
        if self.started in self.gates_at_start:
            self._open(self.gates_at_start.pop(self.started))
        host.ahead -= 1
        if host.is_full and host.ahead <= host.resume_at:
            host.advance()

    def _open(self, gate: list[LinkQueue]) -> None:
        for link in gate:
            self.places.rounds.consider(link)

    def _end(self) -> None:
        """The running compute is over: what it wrote is valid here and stale elsewhere."""
        issue, op, issued_ns, _ = self.running  # type: ignore[misc]
        self.running = None
        self.ended += 1
        places, columns = self.places, self.columns
        ended, waiters = places.ended, places.waiters
        self._spans += (self.rank, COMPUTE, op, self.number, 0, issue, issued_ns, self.start_ns, places.rounds.env.now)
        workspace = columns.workspace_bytes[op]
        if workspace:
            places.note(self.compute_tier, -1 - op, -workspace)
            self._room.release(workspace)
        for tensor in columns.shared[op]:
            ended[tensor] += 1
            if tensor in waiters:
                places.wake(tensor)
        for tensor in columns.exclusive[op]:
            self._valid[tensor] = 1
            for other in self._others:
                other[tensor] = 0
            ended[tensor] += 1
            if tensor in waiters:
                places.wake(tensor)
        if self.ended in self.gates_at_end:
            self._open(self.gates_at_end.pop(self.ended))

    def account(self) -> None:
        """If the stream is idle now, account for why."""
        if self.running is None:
            self.waiting.look()
