"""What happens within one instant: all ends, then all frees, then grants and starts in (rank, issue) order.

Ends are events of the clock. The last of them at an instant closes the round: detaches that may act free their
places, then every head that something may have changed for is tried, in (rank, issue) order. A span of 0 ns ends in
the next round of the same instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL

from simulator.engine.waits import Accountable, Head


class Happening(Protocol):
    """What can be scheduled: an event that has its value, or whatever else has callbacks."""

    @property
    def callbacks(self) -> Any:
        """Whom to call with it when it happens."""


class Clock(simpy.Environment):
    """A simpy environment whose time is whole nanoseconds.

    Most of what the engine does per event is Python calls, so the clock saves some: `now` is an attribute, not a
    property, `run` steps without a call per event, and `at` takes an event that is used again and again.

    Attributes
    ----------
    now
        The time [ns].
    events
        What is scheduled, as a heap: time, priority, a running number, event.
    """

    __slots__ = ("events", "now")
    now: int

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.events: list[tuple[int, int, int, Happening]] = self._queue  # type: ignore[assignment]

    def at(self, time_ns: int, event: Happening) -> None:
        """Let an event, which has its callbacks and its value, happen at this time."""
        heappush(self.events, (time_ns, NORMAL, next(self._eid), event))

    def run(self, until: None = None) -> None:  # type: ignore[override]
        """Let event after event happen until none is left; an event keeps its callbacks, to be used again."""
        events = self.events
        while events:
            self.now, _, _, event = heappop(events)
            self._now = self.now
            for callback in event.callbacks:
                callback(event)


def recurring(clock: Clock, callback: Callable[[simpy.Event], None]) -> simpy.Event:
    """Make an event that can be used again and again with `Clock.at`, one use at a time."""
    event = simpy.Event(clock)
    event._ok, event._value = True, None
    event.callbacks = [callback]
    return event


class Rounds:
    """The agenda of the present instant.

    Parameters
    ----------
    clock
        The clock.

    Attributes
    ----------
    heads
        Heads to be tried, by the keys of their first steps.
    frees, touched
        What frees a place, and what shares bandwidth anew, at this instant.
    restless
        Streams whose wait may have another cause.
    """

    __slots__ = ("_events", "clock", "frees", "heads", "restless", "touched")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.heads: list[tuple[int, Head]] = []
        self.frees: deque[Callable[[], None]] = deque()
        self.touched: list[Callable[[], None]] = []
        self.restless: list[Accountable] = []
        self._events = clock.events

    def consider(self, head: Head, key: int) -> None:
        """Try this head, whose first step has this key, in the present round."""
        if not head.considered:
            head.considered = True
            heappush(self.heads, (key, head))

    def has_work(self) -> bool:
        """Whether something is left to do at this instant, besides ends to come."""
        return bool(self.heads or self.frees or self.restless or self.touched)

    def close(self) -> None:
        """Run the round, unless another end of this instant is still to come."""
        events = self._events
        if not events or events[0][0] > self.clock.now:
            self.settle()

    def close_with(self, head: Head, key: int) -> None:
        """Close a round in which this head may start; if only it may, without the agenda."""
        events = self._events
        if self.heads or self.frees or (events and events[0][0] <= self.clock.now):
            self.consider(head, key)
            self.close()
            return
        head.try_start()
        if self.heads:
            self._start_heads()
        if self.frees or self.restless or self.touched:
            self.settle()

    def settle(self) -> None:
        """Free, grant and start until nothing more can happen at this instant."""
        heads, frees = self.heads, self.frees
        while frees or heads:
            while frees:
                frees.popleft()()
            self._start_heads()
        if self.touched:
            for reset_rates in self.touched:
                reset_rates()
            self.touched.clear()
        if self.restless:
            for stream in self.restless:
                stream.account()
            self.restless.clear()

    def _start_heads(self) -> None:
        """Grant and start; what is detached meanwhile is freed when no head is left to try."""
        heads = self.heads
        while heads:
            head = heappop(heads)[1]
            head.considered = False
            head.try_start()


class Alarm:
    """Has a head tried at the time of issue of its first step: a host that is ahead queues a step before that.

    Parameters
    ----------
    rounds
        The agenda.
    head
        Who is tried.
    """

    __slots__ = ("_at_ns", "_event", "_head", "_rounds")

    def __init__(self, rounds: Rounds, head: Head) -> None:
        self._rounds, self._head, self._at_ns = rounds, head, -1
        self._event = recurring(rounds.clock, self._ring)

    def set(self, time_ns: int) -> None:
        """Ring at this time; once is enough."""
        if self._at_ns != time_ns:
            self._at_ns = time_ns
            self._rounds.clock.at(time_ns, self._event)

    def _ring(self, event: simpy.Event) -> None:
        self._head.look_again()
        self._rounds.close()
