"""What happens within one instant: all ends, then all frees, then grants and starts in (rank, issue) order.

Ends are events of the clock. The last of them at an instant closes the round: detaches that may act free their
places, then every head that something may have changed for is tried, in (rank, issue) order. A span of 0 ns ends in
the next round of the same instant.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import simpy

if TYPE_CHECKING:
    from simulator.engine.places import Detaching
    from simulator.engine.sharing import Domain
    from simulator.engine.stream import Stream

RANK_SHIFT = 40
"""A step's key is its rank times 2^40 plus its issue number: keys sort in (rank, issue) order."""

ISSUE_MASK = (1 << RANK_SHIFT) - 1
"""What of a key is the issue number."""


class Clock(simpy.Environment):
    """A simpy environment whose time is whole nanoseconds."""

    now: int = property(attrgetter("_now"))  # type: ignore[assignment]
    """The time [ns]; the same as the base class's, without a Python frame at each look."""

    @property
    def events(self) -> list[tuple[int, int, int, simpy.Event]]:
        """What is scheduled, as a heap."""
        return self._queue  # type: ignore[return-value]

    def leap(self, time_ns: int) -> None:
        """Move on to a time that no scheduled event comes before."""
        self._now = time_ns


class Head(Protocol):
    """A stream or a link: it starts its first step once that can start."""

    considered: bool

    def try_start(self) -> None:
        """Start the first step, or register with what it waits for."""


class Rounds:
    """The agenda of the present instant.

    Parameters
    ----------
    env
        The clock.
    """

    __slots__ = ("_events", "env", "frees", "heads", "restless", "touched")

    def __init__(self, env: Clock) -> None:
        self.env = env
        self.heads: list[tuple[int, Head]] = []
        self.frees: deque[Detaching] = deque()
        self.touched: list[Domain] = []
        self.restless: list[Stream] = []
        self._events = env.events

    def consider(self, head: Head, key: int) -> None:
        """Try this head, whose first step has this key, in the present round."""
        if not head.considered:
            head.considered = True
            heappush(self.heads, (key, head))

    def close(self) -> None:
        """Run the round, unless another end of this instant is still to come."""
        events = self._events
        if not events or events[0][0] > self.env.now:
            self.settle()

    def close_with(self, head: Head, key: int) -> None:
        """Close a round in which this head may start; if only it may, without the agenda."""
        events = self._events
        if self.heads or self.frees or (events and events[0][0] <= self.env.now):
            self.consider(head, key)
            self.close()
            return
        head.try_start()
        if self.heads or self.frees or self.restless or self.touched:
            self.settle()

    def settle(self) -> None:
        """Free, grant and start until nothing more can happen at this instant."""
        heads, frees = self.heads, self.frees
        while heads or frees:
            while frees:
                frees.popleft().act()
            while heads:
                head = heappop(heads)[1]
                head.considered = False
                head.try_start()
        if self.touched:
            for domain in self.touched:
                domain.reset_rates()
            self.touched.clear()
        if self.restless:
            for stream in self.restless:
                stream.account()
            self.restless.clear()
