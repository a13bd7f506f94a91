"""Offsets that let a range rest as long as it can before it is used again, in a span that is given.

A place whose range was freed a moment ago in issue order waits for the copy that frees it, although there may be room
elsewhere. So each gets the range that has been free for longest. Found in issue order, such a layout would be in pieces
when the most is live; it is found outward from there instead: what is live then lies without a gap, and from there on
there is ever more room, later as well as, with time reversed, before. Reversed, the range that has been free for
longest is that whose next place comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from simulator.offsets.packing import Tenancy, live_bytes

_EVER = -1 << 62

Event = tuple[int, bool, int]
"""When, whether it leaves, and which tenancy."""


def spread(tenancies: Sequence[Tenancy], steps: int, capacity: int) -> list[int] | None:
    """Choose offsets below a capacity; None if a place finds no range.

    Parameters
    ----------
    tenancies, steps
        What is to be placed, and the length of a lap.
    capacity
        What all may span [B].
    """
    live = live_bytes(tenancies, steps)
    peak = live.index(max(live)) - 1
    kept = [n for n, one in enumerate(tenancies) if one.taken <= peak <= one.freed or one.taken > one.freed]
    found, end = [-1] * len(tenancies), 0
    for number in sorted(kept, key=lambda number: (-tenancies[number].length(steps), number)):
        found[number] = end
        end += tenancies[number].size_bytes
    if end > capacity:
        return None
    for is_reversed in (False, True):
        if not _placed(
            tenancies, sorted(_events(tenancies, peak, is_reversed=is_reversed)), _Free(end, capacity), found
        ):
            return None
    return found


def _events(tenancies: Sequence[Tenancy], peak: int, *, is_reversed: bool) -> Iterator[Event]:
    """From the peak on; with time reversed, what frees a place takes it."""
    for number, one in enumerate(tenancies):
        begin, end, start = (-one.freed, -one.taken, -peak) if is_reversed else (one.taken, one.freed, peak)
        if begin <= end and begin > start:
            yield begin, False, number
        if begin <= end and end >= start:
            yield end, True, number


def _placed(tenancies: Sequence[Tenancy], events: Sequence[Event], free: _Free, found: list[int]) -> bool:
    """Place one after another; whether all found a range."""
    for now, leaves, number in events:
        size = tenancies[number].size_bytes
        if leaves:
            free.give(found[number], found[number] + size, now)
        elif (offset := free.take(size)) is None:
            return False
        else:
            found[number] = offset
    return True


class _Free:
    """Free pieces of a span, each with the time since when; pieces that touch are not joined, as their times differ."""

    def __init__(self, start: int, end: int) -> None:
        self._pieces: dict[int, tuple[int, int]] = {}
        self._start_of: dict[int, int] = {}
        self._by_age: list[tuple[int, int]] = []
        if start < end:
            self.give(start, end, _EVER)

    def give(self, start: int, end: int, since: int) -> None:
        """Let a piece be free."""
        self._pieces[start] = end, since
        self._start_of[end] = start
        heappush(self._by_age, (since, start))

    def take(self, size: int) -> int | None:
        """Take the piece that has been free for longest, and of its neighbours what it lacks; None if none suffices."""
        passed, offset = [], None
        while self._by_age and offset is None:
            since, start = heappop(self._by_age)
            if self._pieces.get(start, (0, None))[1] == since:
                offset = self._taken_around(start, size)
                if offset is None:
                    passed.append((since, start))
        for one in passed:
            heappush(self._by_age, one)
        return offset

    def _taken_around(self, low: int, size: int) -> int | None:
        """Grow a piece by the neighbour that has been free for longer, until it suffices; cut what is too much."""
        high, since = self._pieces[low]
        is_left, grown = False, [low]
        while high - low < size:
            left, right = self._start_of.get(low), self._pieces.get(high)
            if left is None and right is None:
                return None
            is_left = right is None or (left is not None and self._pieces[left][1] <= right[1])
            if is_left and left is not None:
                low, since = left, self._pieces[left][1]
                grown.append(left)
            elif right is not None:
                grown.append(high)
                high, since = right
        for start in grown:
            del self._start_of[self._pieces.pop(start)[0]]
        rest = high - low - size
        if rest:
            self.give(*((low, low + rest) if is_left else (high - rest, high)), since)
        return low + rest if is_left else low
