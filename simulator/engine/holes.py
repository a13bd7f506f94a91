"""Free ranges of an address space: the smallest that suffices is given out, and neighbours join."""

from __future__ import annotations

from bisect import bisect_left, insort

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
