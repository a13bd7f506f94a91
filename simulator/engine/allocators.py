"""Address spaces: where places lie, what is reserved for them, and how compaction moves them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from itertools import accumulate
from operator import itemgetter

from simulator.hardware.device import Allocator
from simulator.offsets import Offsets
from simulator.trace import NO_HOLES

Range = tuple[int, int]
"""Offset and size [B]."""

Wanted = list[tuple[int, int]]
"""Places to take at once: tensors (a workspace by `simulator.offsets.workspace`) and sizes [B]."""


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

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        if size:
            self._add(0, size)

    def take(self, size: int, least_rest: int = 1) -> Range | None:
        """Take a range of so many bytes, or the whole hole if less than `least_rest` would be left; None if none fits.

        Returns
        -------
        tuple or None
            Offset and size of what was taken [B].
        """
        smallest = bisect_left(self._by_size, (size, 0))
        if smallest == len(self._by_size):
            return None
        room, offset = self._by_size.pop(smallest)
        del self._size_at[offset], self._by_end[offset + room]
        if room - size < least_rest:
            return offset, room
        self._add(offset + size, room - size)
        return offset, size

    def has(self, offset: int, size: int) -> bool:
        """Return whether this very range is a hole."""
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
        """Drop a hole."""
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


class AddressSpace:
    """Gives places their addresses; base of all allocators.

    Attributes
    ----------
    places
        Where each place is that is held.
    """

    def __init__(self) -> None:
        self.places: dict[int, Range] = {}

    def take(self, wanted: Wanted) -> bool:
        """Take all these places, or none if one of them finds no hole."""
        for taken, (item, size) in enumerate(wanted):
            place = self._find_range(item, size)
            if place is None:
                for before, _ in wanted[:taken]:
                    self.give(before)
                return False
            self.places[item] = place
        return True

    def _find_range(self, item: int, size: int) -> Range | None:
        """Find a range for a place; None if there is no hole."""
        raise NotImplementedError

    def take_home(self, item: int, size: int) -> bool:
        """Take a place at time 0."""
        return self.take([(item, size)])

    def give(self, item: int) -> Range:
        """Give a place back, and tell where it was."""
        return self.places.pop(item)

    def is_fragmented(self, wanted: Wanted) -> bool:
        """Return whether releasing what is cached, or a compaction, would make holes for all of them."""
        return False

    def release_cached(self, wanted: Wanted) -> bool:
        """Release what is cached; return whether there is then a hole for all of them."""
        return False

    def in_order(self) -> list[tuple[int, Range]]:
        """Return all places, from the lowest address up."""
        return sorted(self.places.items(), key=itemgetter(1))

    def compact(self) -> None:
        """Make one hole of all: move places, from the lowest address up."""
        raise NotImplementedError

    @property
    def movable_bytes(self) -> int:
        """Size of all that a compaction would move [B]."""
        raise NotImplementedError

    @property
    def reserved_bytes(self) -> int:
        """Size of all that the allocator keeps, used or not [B]."""
        raise NotImplementedError

    @property
    def largest_hole_bytes(self) -> int:
        """The largest place that it could give out [B]."""
        return NO_HOLES


class BestFit(AddressSpace):
    """The whole tier is one pool (see `Holes`); what lies beyond the last place is not reserved.

    Compaction moves all places down, in the order of their addresses, until they touch.

    Parameters
    ----------
    capacity
        Size of the pool [B].
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._holes = Holes(capacity)

    def _find_range(self, item: int, size: int) -> Range | None:
        return self._holes.take(size)

    def give(self, item: int) -> Range:
        """Give a place back, and tell where it was."""
        place = super().give(item)
        self._holes.give(*place)
        return place

    def is_fragmented(self, wanted: Wanted) -> bool:
        """Return whether compaction would make holes for all of them: they fit in bytes."""
        return sum(size for _, size in (*self.places.values(), *wanted)) <= self._holes.size

    def compact(self) -> None:
        """Make one hole of all: move places down, from the lowest address up."""
        self._holes = Holes(self._holes.size)
        for item, (_, size) in self.in_order():
            self.places[item] = self._holes.take(size) or self.places[item]

    @property
    def movable_bytes(self) -> int:
        """Size of all that lies above the lowest hole [B]."""
        ranges = sorted(self.places.values())
        lower = accumulate((size for _, size in ranges), initial=0)
        return sum(size for (offset, size), low in zip(ranges, lower, strict=False) if offset > low)

    @property
    def reserved_bytes(self) -> int:
        """End of the last place [B]."""
        return self._holes.span

    @property
    def largest_hole_bytes(self) -> int:
        """The largest hole [B]."""
        return self._holes.largest


class Ranges(AddressSpace):
    """Each place has a range that was chosen before the run; it is free once the places before it there are freed.

    Parameters
    ----------
    layout
        Where places lie.
    """

    def __init__(self, layout: Offsets) -> None:
        super().__init__()
        self._layout = layout
        self._tenancy: dict[int, int] = {}
        self._taken: defaultdict[int, int] = defaultdict(int)
        self._freed: defaultdict[int, int] = defaultdict(int)

    def take(self, wanted: Wanted) -> bool:
        """Take the ranges of all these places, or none if one of them is not free."""
        tenancies = []
        for item, _ in wanted:
            tenancies_of_item = self._layout.of_item[item]
            lap, turn = divmod(self._taken[item], len(tenancies_of_item))
            if any(self._freed[other] < lap + more for other, more in self._layout.before[tenancies_of_item[turn]]):
                return False
            tenancies.append((item, tenancies_of_item[turn]))
        for item, tenancy in tenancies:
            self._taken[item] += 1
            self._occupy(item, tenancy)
        return True

    def take_home(self, item: int, size: int) -> bool:
        """Take a place at time 0."""
        self._occupy(item, self._layout.at_home[item])
        return True

    def _occupy(self, item: int, tenancy: int) -> None:
        self._tenancy[item] = tenancy
        self.places[item] = self._layout.ranges[tenancy]

    def give(self, item: int) -> Range:
        """Give a place back, and tell where it was."""
        self._freed[self._tenancy.pop(item)] += 1
        return super().give(item)

    @property
    def reserved_bytes(self) -> int:
        """Span of all ranges [B]."""
        return self._layout.span_bytes


class CachedSegments(AddressSpace):
    """Blocks of cached segments, by the rules of `simulator.hardware.device.Caching`.

    The smallest cached block that suffices is given out, split if enough is left; if there is none, a segment is got
    from the device, if that has as much left. A block that is freed joins its neighbours in its segment, which is kept.
    Segments lie in virtual memory, which is endless: only their sum counts against the device. There is one pool for
    all streams, as where what one stream frees is not used before it has ended.

    When the device has too little left, all segments without a place are released first, as in PyTorch and torch_npu
    (NPUCachingAllocator.cpp: if npuMalloc fails, cached blocks that are not split are freed, and it tries again).
    Compaction puts the blocks of each pool into one segment, as a remap of their pages does.

    Parameters
    ----------
    capacity
        What all segments may take together [B].
    figures
        The rules.
    """

    def __init__(self, capacity: int, figures: Allocator) -> None:
        super().__init__()
        self._capacity, self._rules, self._page = capacity, figures.caching, figures.page_bytes
        self._remaps = figures.caching.remaps and figures.compaction is not None
        self._large, self._small = Holes(0), Holes(0)
        self._segments: dict[int, tuple[Holes, int]] = {}
        self._blocks: dict[int, int] = {}
        self._end = self._reserved = 0

    def _find_range(self, item: int, size: int) -> Range | None:
        """Cut a block from what is cached, or from a new segment; None if the device has too little left."""
        block = self._rules.block_bytes(size)
        pool, least_rest = self._pool(block), self._rules.least_rest_bytes(block)
        place = pool.take(block, least_rest)
        if place is None:
            segment = self._rules.segment_bytes(block)
            if self._reserved + segment > self._capacity:
                return None
            self._add_segment(pool, segment)
            place = pool.take(block, least_rest)
        self._blocks[item] = block
        return place

    def _pool(self, block: int) -> Holes:
        return self._small if block <= self._rules.small_bytes else self._large

    def _add_segment(self, pool: Holes, size: int) -> None:
        """Get a segment; a page that is not mapped lies between any two."""
        self._segments[self._end] = pool, size
        pool.give(self._end, size)
        self._end += size + self._page
        self._reserved += size

    def give(self, item: int) -> Range:
        """Give a block back, and tell where it was."""
        place = super().give(item)
        self._pool(self._blocks.pop(item)).give(*place)
        return place

    def is_fragmented(self, wanted: Wanted) -> bool:
        """Return whether releasing segments, or compaction, would make blocks of new segments for all of them."""
        new = sum(self._rules.segment_bytes(self._rules.block_bytes(size)) for _, size in wanted)
        if self._reserved - sum(size for *_, size in self._unused()) + new <= self._capacity:
            return True
        return self._remaps and sum(self._packed_bytes()) + new <= self._capacity

    def _packed_bytes(self) -> tuple[int, ...]:
        """Return the sizes of one segment that holds all large blocks, and of one for all small ones [B]."""
        small = sum(block for block in self._blocks.values() if self._pool(block) is self._small)
        return tuple(-(-size // self._page) * self._page for size in (self.movable_bytes - small, small))

    def _unused(self) -> list[tuple[int, Holes, int]]:
        """Return the segments without a place: offset, pool and size."""
        segments = self._segments.items()
        return [(offset, pool, size) for offset, (pool, size) in segments if pool.has(offset, size)]

    def release_cached(self, wanted: Wanted) -> bool:
        """Release segments without a place; return whether there are then blocks for all of them."""
        self._release_unused()
        fits = self.take(wanted)
        if fits:
            for item, _ in wanted:
                self.give(item)
            self._release_unused()
        return fits

    def _release_unused(self) -> None:
        for offset, pool, size in self._unused():
            pool.remove(offset, size)
            del self._segments[offset]
            self._reserved -= size

    def compact(self) -> None:
        """Put the blocks of each pool into one new segment, in the order of their addresses."""
        packed = self._packed_bytes()
        self._large, self._small, self._segments, self._reserved = Holes(0), Holes(0), {}, 0
        for pool, size in zip((self._large, self._small), packed, strict=True):
            if size:
                self._add_segment(pool, size)
        for item, old in self.in_order():
            block = self._blocks[item]
            self.places[item] = self._pool(block).take(block) or old

    @property
    def movable_bytes(self) -> int:
        """All blocks: each gets a new address [B]."""
        return sum(self._blocks.values())

    @property
    def reserved_bytes(self) -> int:
        """The sum of all segments [B]."""
        return self._reserved

    @property
    def largest_hole_bytes(self) -> int:
        """The largest cached block, or what the device has left [B]."""
        return max(self._large.largest, self._small.largest, self._capacity - self._reserved)
