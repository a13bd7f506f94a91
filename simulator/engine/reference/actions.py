"""Actions that were issued, and where they stand in line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
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
    free
        Channels for copies that none of them has, the lowest first.
    waiting, running
        What was issued and has not started, in order; what has started and not ended.
    """

    free: list[int] = field(default_factory=list)
    waiting: deque[Any] = field(default_factory=deque)
    running: list[Any] = field(default_factory=list)
    _change: simpy.Event | None = None

    def append(self, action: Action) -> None:
        """Take what was issued, and wake who waits for that."""
        self.waiting.append(action)
        self.wake()

    def change(self, clock: simpy.Environment) -> simpy.Event:
        """Return the event of the next issue, or of the next channel that is free; its process alone waits for it."""
        self._change = clock.event()
        return self._change

    def wake(self) -> None:
        """Wake its process, if that waits for such a change."""
        if self._change is not None:
            self._change.succeed()
            self._change = None

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

    Attributes
    ----------
    source, target, latency_ns, is_blocking
        Ids of the tiers that it joins; its latency [ns]; whether the host waits for each copy.
    queue
        Its line, and its channels. Links of one copy queue share it.
    path
        Where bytes of its copies flow beside others; None if nothing can slow them down.
    gate
        Stops it while closed.
    """

    def __init__(self, index: int, link: Link, tiers: Sequence[str]) -> None:
        self.index, self.source, self.target = index, tiers.index(link.source), tiers.index(link.target)
        self.latency_ns, self.is_blocking = link.latency_ns, link.blocking
        self.queue = Queue([*range(link.channels)])
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
    after
        Rule 2: computes of other streams that must have ended. Rule 5: of a copy, those that write the tensor, and its
        last detach; of a detach or a sync, all that name it.
    has_started, has_ended
        Whether it has (rule 3: a collective has started once its rank has arrived).
    line
        Rule 8: what is ahead of it in line, and must have started.
    """

    key: int
    issued_ns: int
    after: Sequence[Any]
    _: KW_ONLY
    start_ns: int = -1
    has_started: bool = False
    has_ended: bool = False
    line: Sequence[ComputeAction | CopyAction] = ()
    _start: simpy.Event | None = None
    _end: simpy.Event | None = None

    def started(self, clock: simpy.Environment) -> simpy.Event:
        """Return the event of its start."""
        self._start = self._start or clock.event()
        return self._start

    def ended(self, clock: simpy.Environment) -> simpy.Event:
        """Return the event of its end."""
        self._end = self._end or clock.event()
        return self._end

    def start(self, now_ns: int) -> None:
        """Note that it starts, and wake those who wait for that."""
        self.start_ns, self.has_started = now_ns, True
        self.after = self.line = ()
        if self._start is not None:
            self._start.succeed()

    def end(self) -> None:
        """Note that it ends, and wake those who wait for that."""
        self.has_ended = True
        if self._end is not None:
            self._end.succeed()


@dataclass(slots=True, eq=False)
class ComputeAction(Action):
    """A compute of an op on a stream.

    Attributes
    ----------
    tier
        The tier that its device works in.
    reads, writes
        What it does read and write: of what it may choose, only what it has chosen.
    sources
        What it reads in place -> the tier that it loads it from.
    moves
        Rule 5: by tensor, the copies and detaches that must have ended.
    duration_ns, chosen_bytes
        What it takes alone [ns]; the size of what it chooses [B], negative if its op has no dynamic reads.
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
    sources: dict[int, int]
    moves: dict[int, list[Action]]
    duration_ns: int
    _: KW_ONLY
    chosen_bytes: int = -1
    lacked: list[tuple[int, int]] | None = None
    meeting: Any = None


@dataclass(slots=True, eq=False)
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
    _: KW_ONLY
    channel: int = -1

    @property
    def queue(self) -> Queue:
        """Where it stands in line for a channel."""
        return self.link.queue


def first_unended(actions: Iterable[Action]) -> Action | None:
    """Return the first of these actions that has not ended; None if all have."""
    for action in actions:
        if not action.has_ended:
            return action
    return None
