"""Bytes over positions, with fast changes and questions about ranges.

Positions are cut into blocks of about the square root of their number; a block keeps its largest value and what was
added to all of it. Every operation touches two partial blocks and the row of blocks, in vector operations; what only
asks whether a limit is exceeded looks at whole blocks first, which is often enough.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

_largest = np.maximum.reduce
"""The method of an array takes half as long again, for the few values that one call looks at."""


class Profile:
    """A row of byte counts that answers range questions while ranges change.

    Parameters
    ----------
    values
        Bytes at each position.

    Attributes
    ----------
    length
        How many positions.
    """

    def __init__(self, values: ArrayLike) -> None:
        row = np.array(values, np.int64)
        self.length = len(row)
        self._width = max(16, isqrt(self.length))
        blocks = -(-self.length // self._width)
        padded = np.full(max(1, blocks) * self._width, np.iinfo(np.int64).min // 2, np.int64)
        padded[: self.length] = row
        self._cells: NDArray[np.int64] = padded.reshape(-1, self._width)
        self._added = np.zeros(len(self._cells), np.int64)
        self._top: NDArray[np.int64] = self._cells.max(axis=1)

    def add(self, first: int, last: int, delta_bytes: int) -> None:
        """Add to every position from `first` to `last`, both included; an empty range is allowed."""
        if last < first:
            return
        low, high = first // self._width, last // self._width
        if low == high:
            self._add_within(low, first, last, delta_bytes)
            return
        self._add_within(low, first, (low + 1) * self._width - 1, delta_bytes)
        self._add_within(high, high * self._width, last, delta_bytes)
        self._added[low + 1 : high] += delta_bytes
        self._top[low + 1 : high] += delta_bytes

    def _add_within(self, block: int, first: int, last: int, delta_bytes: int) -> None:
        start, row = block * self._width, self._cells[block]
        row[first - start : last - start + 1] += delta_bytes
        self._top[block] = _largest(row) + self._added[block]

    def peak(self, first: int, last: int) -> int:
        """The largest value from `first` to `last`, both included; 0 for an empty range."""
        if last < first:
            return 0
        low, high = first // self._width, last // self._width
        if low == high:
            return self._peak_within(low, first, last)
        edges = max(
            self._peak_within(low, first, (low + 1) * self._width - 1),
            self._peak_within(high, high * self._width, last),
        )
        return max(edges, int(_largest(self._top[low + 1 : high]))) if high > low + 1 else edges

    def _peak_within(self, block: int, first: int, last: int) -> int:
        start = block * self._width
        return int(_largest(self._cells[block, first - start : last - start + 1]) + self._added[block])

    def exceeds(self, first: int, last: int, limit_bytes: int | float) -> bool:
        """Whether the largest value from `first` to `last`, both included, exceeds the limit; 0 for an empty range."""
        if last < first:
            return limit_bytes < 0
        low, high, top = first // self._width, last // self._width, self._top
        if high > low + 1 and _largest(top[low + 1 : high]) > limit_bytes:
            return True
        edges = ((low, first, min(last, (low + 1) * self._width - 1)), (high, max(first, high * self._width), last))
        return any(top[edge[0]] > limit_bytes and self._peak_within(*edge) > limit_bytes for edge in edges)

    def last_above(self, first: int, last: int, limit_bytes: int | float) -> int:
        """The last position from `first` to `last` whose value exceeds the limit; ``first - 1`` if none does."""
        while last >= first:
            block = last // self._width
            start = max(first, block * self._width)
            if self._top[block] > limit_bytes:
                row = self._cells[block, start - block * self._width : last - block * self._width + 1]
                above = np.flatnonzero(row + self._added[block] > limit_bytes)
                if len(above):
                    return start + int(above[-1])
            last = start - 1
        return first - 1

    def values(self) -> NDArray[np.int64]:
        """All values, as a new array."""
        return (self._cells + self._added[:, None]).reshape(-1)[: self.length]
