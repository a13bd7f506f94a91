"""A caching allocator: segments of the device, from which blocks are cut and to which they return."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.engine.rounds import Wanted
from simulator.engine.spaces import Holes, Move, Range, Space
from simulator.hardware.device import Allocator

_LARGE, _SMALL = 0, 1


class Pools(Space):
    """Blocks of cached segments, by the rules of `simulator.hardware.device.Caching`.

    The smallest cached block that suffices is given out, split if enough is left; where there is none, a segment is got
    from the device if that has as much left. A block that returns joins its neighbours in its segment, which is kept.
    Segments lie in virtual memory, which does not end: what counts against the device is their sum. There is one pool
    for all streams, as where what one stream frees is not used before it has ended.

    When the device has too little left, first all segments without a place are given back, as in PyTorch and torch_npu
    (NPUCachingAllocator.cpp: if npuMalloc fails, cached blocks that are not split are freed, and it tries again).
    Compaction puts the blocks of each pool into one
    segment, as a remap of their pages does.

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
        self._holes = (Holes(0), Holes(0))
        self._segments: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._blocks: dict[int, int] = {}
        self._end = self._reserved = 0

    def _cut(self, item: int, size: int) -> Range | None:
        """Cut a block from what is cached, or from a new segment; None if the device has too little left."""
        block = self._rules.block_bytes(size)
        pool, least_rest = self._pool(block), self._rules.least_rest_bytes(block)
        place = self._holes[pool].take(block, least_rest)
        if place is None:
            segment = self._rules.segment_bytes(block)
            if self._reserved + segment > self._capacity:
                return None
            self._add_segment(pool, segment)
            place = self._holes[pool].take(block, least_rest)
        self._blocks[item] = block
        return place

    def _pool(self, block: int) -> int:
        return _SMALL if block <= self._rules.small_bytes else _LARGE

    def _add_segment(self, pool: int, size: int) -> None:
        """Get a segment; a page that is not mapped lies between any two."""
        self._segments[pool][self._end] = size
        self._holes[pool].give(self._end, size)
        self._end += size + self._page
        self._reserved += size

    def give(self, item: int) -> Range:
        """Give a block back, and tell where it was."""
        place = super().give(item)
        self._holes[self._pool(self._blocks.pop(item))].give(*place)
        return place

    def is_fragmented(self, wanted: Wanted) -> bool:
        """Whether giving back, or compaction, would let all of them have blocks of new segments."""
        new = sum(self._rules.segment_bytes(self._rules.block_bytes(size)) for _, size in wanted)
        if self._reserved - sum(size for _, _, size in self._unused()) + new <= self._capacity:
            return True
        return self._remaps and sum(self._packed_bytes()) + new <= self._capacity

    def _packed_bytes(self) -> list[int]:
        """By pool, size of the one segment that holds all its blocks [B]."""
        blocks = [0, 0]
        for block in self._blocks.values():
            blocks[self._pool(block)] += block
        return [-(-size // self._page) * self._page for size in blocks]

    def _unused(self) -> Iterator[tuple[int, int, int]]:
        """Segments without a place: pool, offset and size."""
        for pool, segments in enumerate(self._segments):
            for offset, size in segments.items():
                if self._holes[pool].has(offset, size):
                    yield pool, offset, size

    def gives_back(self, wanted: Wanted) -> bool:
        """Give segments without a place back to the device; whether there are blocks for all of them then."""
        self._give_back_unused()
        fits = self.take(wanted)
        if fits:
            for item, _ in wanted:
                self.give(item)
            self._give_back_unused()
        return fits

    def _give_back_unused(self) -> None:
        for pool, offset, size in list(self._unused()):
            self._holes[pool].remove(offset, size)
            del self._segments[pool][offset]
            self._reserved -= size

    def compact(self) -> Iterator[Move]:
        """Put the blocks of each pool into one new segment, in the order of their addresses."""
        self._holes, self._segments, self._reserved = (Holes(0), Holes(0)), ({}, {}), 0
        for pool, size in enumerate(self._packed_bytes()):
            if size:
                self._add_segment(pool, size)
        for item, old in sorted(self.places.items(), key=lambda place: place[1]):
            block = self._blocks[item]
            place = self._holes[self._pool(block)].take(block)
            if place is not None:
                self.places[item] = place
                yield item, old, place

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
        return max(self._holes[_LARGE].largest, self._holes[_SMALL].largest, self._capacity - self._reserved)
