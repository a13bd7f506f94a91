"""Address spaces: where places lie, what is reserved for them, and what compaction makes of that."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from simulator.engine.waits import Wanted
from simulator.trace import NO_HOLES

Range = tuple[int, int]
"""Offset and size [B]."""


class Holes:
    """Best fit with coalescing over ``[0, size)``, as MindSpore describes its memory pool.

    There, too, free areas are sorted by size, the first that suffices is cut, and neighbours are merged when memory
    returns (mindspore.cn, docs, features/runtime/memory_manager). Of holes of one size the lowest is given out. Each
    operation is a search in a sorted list, O(log n) steps, and a shift in it.

    Parameters
    ----------
    size
        End of the space [B].
    """

    __slots__ = ("_by_end", "_by_size", "_size_at", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        if size:
            self._add(0, size)

    def take(self, size: int, least_rest: int = 1) -> Range | None:
        """Take a range of so many bytes, or a whole hole of which less than `least_rest` would be left; None if none.

        Returns
        -------
        tuple or None
            Offset and size of what was taken [B].
        """
        at = bisect_left(self._by_size, (size, 0))
        if at == len(self._by_size):
            return None
        room, offset = self._by_size.pop(at)
        del self._size_at[offset], self._by_end[offset + room]
        if room - size < least_rest:
            return offset, room
        self._add(offset + size, room - size)
        return offset, size

    def has(self, offset: int, size: int) -> bool:
        """Whether this very range is a hole."""
        return self._size_at.get(offset) == size

    def give(self, offset: int, size: int) -> None:
        """Give a range back."""
        start = self._by_end.get(offset, offset)
        if start < offset:
            self.remove(start, offset - start)
        end = offset + size
        beyond = self._size_at.get(end, 0)
        if beyond:
            self.remove(end, beyond)
        self._add(start, end + beyond - start)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._by_end[offset + size] = offset

    def remove(self, offset: int, size: int) -> None:
        """Let a hole be one no more."""
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset], self._by_end[offset + size]

    @property
    def largest(self) -> int:
        """Size of the largest hole [B]."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def span(self) -> int:
        """End of the last range that is taken [B]."""
        return self._by_end.get(self.size, self.size)


Move = tuple[int, Range, Range]
"""A place (a tensor, or ``-1 - op``), where it was, and where it is."""


class Space(Protocol):
    """Gives places their addresses.

    Attributes
    ----------
    places
        Where each place is that is held.
    """

    places: dict[int, Range]

    def take(self, wanted: Wanted) -> bool:
        """Take all these places, or none if one of them finds no hole."""

    def give(self, item: int) -> Range:
        """Give a place back, and tell where it was."""

    def is_fragmented(self, wanted: Wanted) -> bool:
        """Whether giving back, or compaction, would make holes for all of them."""

    def gives_back(self, wanted: Wanted) -> bool:
        """Give back what is kept unused; whether there is a hole for all of them then."""

    def compact(self) -> Iterator[Move]:
        """Make one hole of all, and tell what moves."""

    @property
    def movable_bytes(self) -> int:
        """What compaction would move [B]."""

    @property
    def reserved_bytes(self) -> int:
        """What the allocator keeps, used or not [B]."""

    @property
    def largest_hole_bytes(self) -> int:
        """The largest place that it could give out [B]."""


class BestFit:
    """The whole tier is one pool (see `Holes`); what lies beyond the last place is not reserved.

    Compaction moves all places down, in the order of their addresses, until they touch.

    Parameters
    ----------
    capacity
        Size of the pool [B].
    """

    __slots__ = ("_holes", "_used", "places")

    def __init__(self, capacity: int) -> None:
        self._holes = Holes(capacity)
        self._used = 0
        self.places: dict[int, Range] = {}

    def take(self, wanted: Wanted) -> bool:
        """Take all these places, or none if one of them finds no hole."""
        taken: list[int] = []
        for item, size in wanted:
            place = self._holes.take(size)
            if place is None:
                for before in taken:
                    self.give(before)
                return False
            self.places[item] = place
            self._used += size
            taken.append(item)
        return True

    def give(self, item: int) -> Range:
        """Give a place back, and tell where it was."""
        place = self.places.pop(item)
        self._holes.give(*place)
        self._used -= place[1]
        return place

    def is_fragmented(self, wanted: Wanted) -> bool:
        """Whether compaction would make holes for all of them: they fit in bytes."""
        return self._used + sum(size for _, size in wanted) <= self._holes.size

    def gives_back(self, wanted: Wanted) -> bool:
        """Nothing is kept unused."""
        return False

    def compact(self) -> Iterator[Move]:
        """Make one hole of all, and tell what moves, from the lowest address up."""
        self._holes = Holes(self._holes.size)
        for item, (offset, size) in sorted(self.places.items(), key=lambda place: place[1]):
            lower = self._holes.take(size)
            if lower is not None and lower[0] < offset:
                self.places[item] = lower
                yield item, (offset, size), lower

    @property
    def movable_bytes(self) -> int:
        """What lies above the lowest hole [B]."""
        end = 0
        for offset, size in sorted(self.places.values()):
            if offset > end:
                return self._used - end
            end = offset + size
        return 0

    @property
    def reserved_bytes(self) -> int:
        """End of the last place [B]."""
        return self._holes.span

    @property
    def largest_hole_bytes(self) -> int:
        """The largest hole [B]."""
        return self._holes.largest


class Reserved:
    """A span in which every place has its range; whoever takes one knows it.

    Parameters
    ----------
    span
        What it takes [B].
    """

    __slots__ = ("largest_hole_bytes", "movable_bytes", "places", "reserved_bytes")

    def __init__(self, span: int) -> None:
        self.reserved_bytes, self.largest_hole_bytes, self.movable_bytes = span, NO_HOLES, 0
        self.places: dict[int, Range] = {}

    def give(self, item: int) -> Range:
        """Give a place back, and tell where it was."""
        return self.places.pop(item)

    def take(self, wanted: Wanted) -> bool:
        """Nobody asks for a hole."""
        return False

    is_fragmented = gives_back = take

    def compact(self) -> Iterator[Move]:
        """Nothing moves."""
        return iter(())
