"""Address spaces: where places lie, what is reserved for them, and what compaction makes of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from simulator.engine.holes import Holes, Range
from simulator.engine.rounds import Wanted
from simulator.trace import NO_HOLES

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
