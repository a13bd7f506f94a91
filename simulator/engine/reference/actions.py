"""Actions that were issued, and where they stand in line."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import simpy

from simulator.cost.service import lead_ns, rate_cap, transfer_ns
from simulator.engine.reference.network import Path
from simulator.engine.reference.rooms import Gate
from simulator.hardware import Link


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


class RankLink:
    """One rank's link: where its copies stand in line, and what their bytes share with others.

    Parameters
    ----------
    index, link, tiers
        Its id, the link, and the ids of tiers by name.
    clock
        The clock.

    Attributes
    ----------
    source, target, latency_ns, is_blocking
        Ids of the tiers that it joins; its latency [ns]; whether the host waits for each copy.
    queue, channels, free
        Its line; its channels as a SimPy resource, and those that are free. Links of one copy queue share all three.
    path
        Where bytes of its copies flow beside others; None if nothing can slow them down.
    gate
        Stops it while closed.
    """

    def __init__(self, index: int, link: Link, tiers: Sequence[str], clock: simpy.Environment) -> None:
        self.index, self.source, self.target = index, tiers.index(link.source), tiers.index(link.target)
        self.latency_ns, self.is_blocking = link.latency_ns, link.blocking
        self.queue, self.channels = Queue(), simpy.Resource(clock, link.channels)
        self.free = list(range(link.channels))
        self.path: Path | None = None
        self.gate = Gate()
        self.alone_ns = cache(partial(transfer_ns, link=link))
        self.lead_ns = cache(partial(lead_ns, link=link))
        self.cap = cache(partial(rate_cap, link=link))


@dataclass(slots=True, eq=False)
class Action:
    """An action that was issued.

    Attributes
    ----------
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
    after: list[ComputeAction] = field(default_factory=list)
    moves: dict[int, list[Action]] = field(default_factory=dict)
    line: list[ComputeAction | CopyAction] = field(default_factory=list)
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


@dataclass(slots=True, eq=False, kw_only=True)
class ComputeAction(Action):
    """A compute of an op on a stream.

    Attributes
    ----------
    tier
        The tier that its device works in.
    reads, writes
        What it does read and write: of what it may choose, only what it has chosen.
    duration_ns, chosen_bytes
        If its op has dynamic reads: what this issue takes alone [ns], and the size of what it chooses [B]; else the
        first is negative.
    sources
        What it reads in place -> the tier that it loads it from.
    lacked
        What it lacked when its turn came, the last copy first (`Rank.lacked_tensor`); None before.
    meeting
        Where it has arrived, if it is a collective.
    """

    op: int
    stream: int
    tier: int
    queue: Queue
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    duration_ns: int = -1
    chosen_bytes: int = 0
    sources: dict[int, int] = field(default_factory=dict)
    lacked: list[tuple[int, int]] | None = None
    meeting: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class CopyAction(Action):
    """A copy of a tensor over a link.

    Attributes
    ----------
    point
        Rule 4: its program point, the last compute issued before it.
    channel
        Which one of its link it takes.
    """

    tensor: int
    link: RankLink
    point: ComputeAction | None
    channel: int = -1

    @property
    def queue(self) -> Queue:
        """Where it stands in line for a channel."""
        return self.link.queue
