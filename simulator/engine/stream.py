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
        self.host: Host | None = None
        self.kernels: Kernels | None = None
        self.queue: deque[Queued] = deque()
        self.gated: list[LinkQueue] = []
        self.issued = self.started = self.ended = 0
        self.running: Queued | None = None
        self.start_ns = 0
        self.considered = False
        self.compute_tier = compute_tier
        self.waiting = Waiting(self, waits)
        self.span = Span(places.rounds.env)
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
        """Wait for the end of each compute in turn; it was begun when it could start."""
        rounds = self.places.rounds
        while True:
            yield self.span
            self.span = Span(rounds.env)
            self._end()
            rounds.close()

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
        for tensor in columns.reads[op]:
            if not valid[tensor]:
                return tensor
        return -1

    def room_bytes(self) -> int:
        """What the head takes in the compute tier: what it writes and has no place yet, and its workspace [B]."""
        op = self.queue[0][1]
        held, size = self._held, self.columns.size_bytes
        return self.columns.workspace_bytes[op] + sum([size[t] for t in self.columns.exclusive[op] if not held[t]])

    def try_start(self) -> None:
        """Start the first compute, or register with what it waits for."""
        if self.running is not None or not self.queue:
            return
        tensor = self.lacks()
        if tensor >= 0:
            self.places.wait(tensor, self)
        else:
            room = self.room_bytes()
            if not room or self._room.admit_compute(self, self.key(), room):
                self._start()
                return
        self.places.rounds.restless.append(self)

    def _start(self) -> None:
        compute = self.running = self.queue.popleft()
        op = compute[1]
        places, columns, held = self.places, self.columns, self._held
        self.start_ns = places.rounds.env.now
        self.waiting.end(compute[0], op)
        for tensor in columns.exclusive[op]:
            if not held[tensor]:
                places.hold(tensor, self.compute_tier)
        if columns.workspace_bytes[op]:
            places.note(self.compute_tier, -1 - op, columns.workspace_bytes[op])
        self.started += 1
        if self.kernels is None:
            self.span.begin(columns.duration_ns[op])
        else:
            self.kernels.begin(self, op)
        self._open_gates()
        if self.host is not None and self.host.is_full:
            self.host.advance()

    def _open_gates(self) -> None:
        if self.gated:
            for link in self.gated:
                self.places.rounds.consider(link)
            self.gated.clear()

    def _end(self) -> None:
        """The running compute is over: what it wrote is valid here and stale elsewhere."""
        if self.running is None:
            return
        issue, op, issued_ns, _ = self.running
        self.running = None
        self.ended += 1
        places, columns, valid = self.places, self.columns, self._valid
        rounds = places.rounds
        self._spans += (
            self.rank,
            COMPUTE,
            op,
            self.number,
            0,
            issue,
            issued_ns,
            self.start_ns,
            rounds.env.now,
        )
        workspace = columns.workspace_bytes[op]
        if workspace:
            places.note(self.compute_tier, -1 - op, -workspace)
            self._room.release(workspace)
        for tensor in columns.shared[op]:
            places.end_access(tensor)
        for tensor in columns.exclusive[op]:
            valid[tensor] = 1
            for other in self._others:
                other[tensor] = 0
            places.end_access(tensor)
        self._open_gates()
        if self.queue:
            rounds.consider(self)
        else:
            rounds.restless.append(self)

    def account(self) -> None:
        """If the stream is idle now, account for why."""
        if self.running is None:
            self.waiting.look()
