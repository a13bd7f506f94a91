"""Actions that were issued, and the queues that they stand in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import simpy


@dataclass(slots=True, eq=False)
class Queue:
    """Where computes, or copies, start one after another: a stream, or the links of one queue of copies.

    Attributes
    ----------
    waiting, running
        What was issued and has not started, in order; what has started and not ended.
    on_issue
        The event of the next issue, if someone waits for it.
    """

    waiting: deque[Any] = field(default_factory=deque)
    running: list[Any] = field(default_factory=list)
    on_issue: simpy.Event | None = None

    def append(self, action: Action) -> None:
        """Take what was issued, and wake who waits for that."""
        self.waiting.append(action)
        if self.on_issue is not None:
            self.on_issue.succeed()
            self.on_issue = None

    def start_first(self, now_ns: int) -> None:
        """Let the first one start."""
        action = self.waiting.popleft()
        self.running.append(action)
        action.start(now_ns)


@dataclass(slots=True, eq=False)
class Action:
    """An action that was issued.

    Attributes
    ----------
    key
        Its rank and issue number.
    issued_ns, start_ns
        When it was issued, and when it started [ns].
    has_started, has_ended
        Whether it has (rule 3: a collective has started once its rank has arrived).
    after
        Rule 2: computes of other streams that must have ended. Of a copy: those that write the tensor. Of a detach or
        a sync: those that use it.
    moves
        Rule 5: by tensor, the copies and detaches that must have ended.
    line
        Rule 8: what is ahead of it in line, and must have started.
    """

    key: int
    issued_ns: int
    start_ns: int = -1
    has_started: bool = False
    has_ended: bool = False
    after: list[Compute] = field(default_factory=list)
    moves: dict[int, list[Action]] = field(default_factory=dict)
    line: list[Compute | Copy] = field(default_factory=list)
    _awaited: dict[str, simpy.Event] = field(default_factory=dict)

    def started(self, clock: simpy.Environment) -> simpy.Event:
        """Return the event of its start."""
        return self._awaited.setdefault("start", clock.event())

    def ended(self, clock: simpy.Environment) -> simpy.Event:
        """Return the event of its end."""
        return self._awaited.setdefault("end", clock.event())

    def start(self, now_ns: int) -> None:
        """Note that it starts, and wake those who wait for that."""
        self.start_ns, self.has_started = now_ns, True
        self.after, self.moves, self.line = [], {}, []
        if self._awaited and "start" in self._awaited:
            self._awaited.pop("start").succeed()

    def end(self) -> None:
        """Note that it ends, and wake those who wait for that."""
        self.has_ended = True
        if self._awaited and "end" in self._awaited:
            self._awaited.pop("end").succeed()


@dataclass(slots=True, eq=False)
class Compute(Action):
    """A compute of an op on a stream.

    Attributes
    ----------
    reads
        What it does read: of what it may choose, only what it has chosen.
    duration_ns, chosen_bytes
        If its op has dynamic reads: what this issue takes alone [ns], and the size of what it chooses [B]; else the
        first is negative.
    lacked
        What it lacked when its turn came, the last copy first (`Rank.lacked_tensor`); None before.
    meeting
        Where it has arrived, if it is a collective.
    """

    op: int = -1
    stream: int = -1
    queue: Queue = None  # type: ignore[assignment]
    reads: tuple[int, ...] = ()
    duration_ns: int = -1
    chosen_bytes: int = 0
    lacked: list[tuple[int, int]] | None = None
    meeting: Any = None


@dataclass(slots=True, eq=False)
class Copy(Action):
    """A copy of a tensor over a link.

    Attributes
    ----------
    gate
        Rule 4: the last compute issued before it.
    channel
        Which one of its link it takes.
    """

    tensor: int = -1
    link: Any = None
    gate: Compute | None = None
    channel: int = -1

    @property
    def queue(self) -> Queue:
        """Where it stands in line for a channel."""
        queue: Queue = self.link.queue
        return queue
