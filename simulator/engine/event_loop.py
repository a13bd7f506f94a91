"""The order of events within one instant: all ends, then all frees, then grants and starts in (rank, issue) order.

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

RANK_SHIFT = 40
"""An action's key is its rank times 2^40 plus its issue number: keys sort in (rank, issue) order."""

ISSUE_MASK = (1 << RANK_SHIFT) - 1
"""Mask of the issue number in a key."""

Wanted = list[tuple[int, int]]
"""Places to take at once: tensors (``-1 - op`` for a workspace) and sizes [B]."""


class Head(Protocol):
    """A stream, a link or a compactor: it starts its first action as soon as that can start.

    Attributes
    ----------
    considered
        Whether it is on the agenda.
    """

    considered: bool

    def try_start(self) -> None:
        """Start the first action, or register with what it waits for."""

    def look_again(self) -> None:
        """Ask for a try of the first action in this round."""


class Taker(Head, Protocol):
    """A head that takes room.

    Attributes
    ----------
    queue
        Its actions that were issued and have not started; each begins with its key.
    """

    queue: deque[Any]

    def wanted(self) -> Wanted:
        """Return the places that its first action takes in the tier that it asks for room."""


class Gate:
    """Stops heads while it is closed; this one never closes, a `Compactor` does.

    Attributes
    ----------
    is_closed
        Whether nothing may start.
    """

    is_closed = False

    def look_again(self) -> None:
        """Check whether anything still runs."""


class Account(Protocol):
    """The waits of a stream, each with its cause: its `Ledger`.

    Attributes
    ----------
    is_open
        Whether the stream waits.
    """

    is_open: bool

    def look(self) -> None:
        """Find the cause of the current wait again, if there is a wait."""

    def end(self, issue: int, op: int) -> None:
        """Write the wait that ends as the stream starts this op."""

    def add(self, start_ns: int, end_ns: int, reason: tuple[int, int, int, int]) -> None:
        """Write a wait for a peer, which the running collective had before it started."""


Watchers = list[Account]
"""Accounts of waits whose cause may change with what they watch."""


class Clock(simpy.Environment):
    """A simpy environment whose time is whole nanoseconds.

    `now` is an attribute, not a property, and `at` puts an event that is used again and again into simpy's own queue
    (`_queue`, `_eid`), which `Rounds.run` steps through without a call. By simpy's public `schedule`, `peek` and `step`
    a run is a fifth slower (`tests/bench/engine.py`, cases ``decode`` and ``compute``).

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
        self.events: list[tuple[int, int, int, simpy.Event]] = self._queue  # type: ignore[assignment]

    def at(self, time_ns: int, event: simpy.Event) -> None:
        """Schedule an event, which already has its callbacks and its value, at this time."""
        heappush(self.events, (time_ns, NORMAL, next(self._eid), event))


class Recurring(simpy.Event):
    """An event that can be scheduled again and again with `Clock.at`, one use at a time.

    Parameters
    ----------
    clock, callback
        The clock, and what is called with the event when it happens.
    """

    def __init__(self, clock: Clock, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(clock)
        self._ok, self._value = True, None
        self.callbacks = [callback]


class Rounds:
    """Runs instant after instant, with an agenda of what to try in the present one.

    Parameters
    ----------
    clock
        The clock.

    Attributes
    ----------
    heads
        Heads to be tried, by the keys of their first actions.
    frees, resets
        Calls of this instant: those that free a place (by key, with its tensor and tier), and those that
        set rates anew.
    accounts
        Accounts of waits to look at again, once the instant is settled: their causes may have changed.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.heads: list[tuple[int, Head]] = []
        self.frees: list[tuple[int, Callable[[int, int], None], int, int]] = []
        self.resets: list[Callable[[], None]] = []
        self.accounts: Watchers = []

    def consider(self, head: Head, key: int) -> None:
        """Put this head, whose first action has this key, on the agenda of this round."""
        if not head.considered:
            head.considered = True
            heappush(self.heads, (key, head))

    def wake(self, watchers: Watchers) -> None:
        """Find the causes of these waits again once this instant is settled."""
        self.accounts += watchers
        watchers.clear()

    def run(self) -> None:
        """Process events until none is left; the last one of an instant closes its round.

        An event keeps its callbacks, to be used again.
        """
        clock, events = self.clock, self.clock.events
        self.settle()
        while events:
            clock.now, _, _, event = heappop(events)
            for callback in event.callbacks:
                callback(event)
            if not events or events[0][0] > clock.now:
                self.settle()

    def settle(self) -> None:
        """Free, grant and start until nothing more can happen at this instant.

        Places that are detached while heads are tried are freed once no head is left to try.
        """
        heads, frees = self.heads, self.frees
        while frees or heads:
            while frees:
                _, free, tensor, tier = heappop(frees)
                free(tensor, tier)
            while heads:
                head = heappop(heads)[1]
                head.considered = False
                head.try_start()
        if self.resets:
            for reset_rates in self.resets:
                reset_rates()
            self.resets.clear()
        if self.accounts:
            for account in self.accounts:
                account.look()
            self.accounts.clear()
