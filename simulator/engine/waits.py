"""Who waits for what, as interfaces: streams, links, hosts and steps know these, and not one another."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

RANK_SHIFT = 40
"""A step's key is its rank times 2^40 plus its issue number: keys sort in (rank, issue) order."""

ISSUE_MASK = (1 << RANK_SHIFT) - 1
"""What of a key is the issue number."""

NEVER = -(1 << 60)
"""Number of a compute, or count of moves, that does not exist: too small to be waited for in any lap."""

Wanted = list[tuple[int, int]]
"""Places that are to be taken at once: tensors (``-1 - op`` for a workspace) and sizes [B]."""


class Waiter(Protocol):
    """Someone who waits for moves of a tensor, for computes, or for room."""

    def look_again(self) -> None:
        """What was waited for has happened."""


class Head(Waiter, Protocol):
    """A stream or a link: it starts its first step once that can start."""

    considered: bool

    def try_start(self) -> None:
        """Start the first step, or register with what it waits for."""


class Taker(Head, Protocol):
    """A head that takes room."""

    def wanted(self) -> Wanted:
        """The places that its first step takes in the tier that it asks."""


class Gate(Waiter, Protocol):
    """What keeps heads from starting anything while it is open: a compaction."""

    is_open: bool


class Accountable(Protocol):
    """A stream, whose wait is put down to a cause."""

    def account(self) -> None:
        """Find the cause anew, if it waits."""


class Counter(Taker, Protocol):
    """A stream as others wait for it: how far its computes have come.

    Attributes
    ----------
    started, ended, per_lap
        How many computes have started, have ended; how many there are in one lap of a plan that runs many.
    running, queue
        The compute that runs, if one does; those that were issued and have not started.
    """

    number: int
    started: int
    ended: int
    per_lap: int
    running: Any
    queue: deque[Any]

    def wait_for_start(self, count: int, waiter: Waiter) -> None:
        """Call `waiter` when so many computes have started."""

    def wait_for_end(self, count: int, waiter: Waiter) -> None:
        """Call `waiter` when so many computes have ended."""


Computes = tuple[tuple[Counter, int], ...]
"""Computes of some streams, each by its stream and its number there, counted from the begin of the lap."""


class Issuer(Waiter, Protocol):
    """A host, as a step knows it that is issued, and as a wait is accounted to it.

    Attributes
    ----------
    key, lap, now
        Of the step at hand, and when it is issued [ns].
    prices, looks
        By kind of step, what it pays [ns]; whether its plan looks at the machine, so that it waits until it has paid.
    credit
        Computes that may be issued before the queue is looked at again.
    has_laps
        Whether the plan is run several times.
    awaited, finished
        The tensor that it waits for at a sync, or -1; it has issued all steps.
    watchers
        Streams whose wait depends on it.
    """

    key: int
    lap: int
    now: int
    prices: tuple[int, ...]
    looks: bool
    credit: int
    has_laps: bool
    awaited: int
    finished: bool
    watchers: list[Accountable]

    @property
    def is_ahead(self) -> bool:
        """Whether the clock has not reached the host's time: until then it pays."""

    def must_wait(self) -> bool:
        """Whether the clock has not reached the host's time; if so, go on then."""

    def has_credit(self) -> bool:
        """Whether a compute may be issued."""

    def wait_for_clock(self) -> None:
        """Go on when the clock has come to the host's time."""


class Step(Protocol):
    """A step with the counts of what must have happened before it may take effect."""

    def issue(self, host: Issuer) -> bool:
        """Issue it, or say that the host has to wait."""


def are_running(computes: Computes, lap: int) -> bool:
    """Whether some of the computes have not ended."""
    for stream, number in computes:  # noqa: SIM110 (a generator costs more than the loop)
        if stream.ended < number + lap * stream.per_lap:
            return True
    return False


def behind(computes: Computes, lap: int) -> Counter | None:
    """The stream of the first of the computes that has not ended; None if all have."""
    for stream, number in computes:
        if stream.ended < number + lap * stream.per_lap:
            return stream
    return None


def wait_for(computes: Computes, lap: int, waiter: Waiter) -> bool:
    """Whether some of the computes have not ended; if so, call `waiter` when the first of those has."""
    for stream, number in computes:
        due = number + lap * stream.per_lap
        if stream.ended < due:
            stream.wait_for_end(due, waiter)
            return True
    return False


def wait_for_start(computes: Computes, lap: int, waiter: Waiter) -> bool:
    """Whether some of the computes have not started; if so, call `waiter` when the first of those has."""
    for stream, number in computes:
        due = number + lap * stream.per_lap
        if stream.started < due:
            stream.wait_for_start(due, waiter)
            return True
    return False
