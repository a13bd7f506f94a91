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
    head
        The SimPy resource that the first action holds until it has started (of a stream: ended).
    waiting
        What was issued and has not started, in order.
    running
        What has started and not ended.
    """

    head: simpy.Resource
    waiting: deque[Any] = field(default_factory=deque)
    running: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Action:
    """An action that was issued.

    Attributes
    ----------
    key
        Its rank and issue number.
    issued_ns, start_ns
        When it was issued, and when it started; negative before.
    started, ended
        Events: it has started; its SimPy process, which ends when it does.
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
    started: simpy.Event
    start_ns: int = -1
    ended: simpy.Process | None = None
    after: list[Compute] = field(default_factory=list)
    moves: dict[int, list[Action]] = field(default_factory=dict)
    line: list[Compute | Copy] = field(default_factory=list)

    @property
    def has_started(self) -> bool:
        """Whether it has started (rule 3: a collective has once its rank has arrived)."""
        return self.start_ns >= 0

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.ended is not None and self.ended.triggered


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
