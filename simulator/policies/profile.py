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

    def _cut(self, first: int, last: int) -> tuple[tuple[tuple[int, int, int], ...], slice]:
        """Cut a range into one or two partial blocks and the whole blocks between them."""
        if last < first:
            return (), slice(0, 0)
        low, high = first // self._width, last // self._width
        if low == high:
            return ((low, first, last),), slice(0, 0)
        return ((low, first, (low + 1) * self._width - 1), (high, high * self._width, last)), slice(low + 1, high)

    def add(self, first: int, last: int, delta_bytes: int) -> None:
        """Add to every position from `first` to `last`, both included; an empty range is allowed."""
        edges, whole = self._cut(first, last)
        for block, low, high in edges:
            start, row = block * self._width, self._cells[block]
            row[low - start : high - start + 1] += delta_bytes
            self._top[block] = _largest(row) + self._added[block]
        if whole.stop > whole.start:
            self._added[whole] += delta_bytes
            self._top[whole] += delta_bytes

    def put(self, earliest: int, before: int, size_bytes: int, limit_bytes: int | float) -> int:
        """Add from the first point on, no earlier than `earliest`, that keeps the limit until `before`; return it."""
        point = self.last_above(earliest, before - 1, limit_bytes - size_bytes) + 1
        self.add(point, before - 1, size_bytes)
        return point

    def peak(self, first: int, last: int) -> int:
        """The largest value from `first` to `last`, both included; 0 for an empty range."""
        edges, whole = self._cut(first, last)
        peaks = [self._peak_within(*edge) for edge in edges]
        if whole.stop > whole.start:
            peaks.append(int(_largest(self._top[whole])))
        return max(peaks, default=0)

    def _peak_within(self, block: int, first: int, last: int) -> int:
        start = block * self._width
        return int(_largest(self._cells[block, first - start : last - start + 1]) + self._added[block])

    def exceeds(self, first: int, last: int, limit_bytes: int | float) -> bool:
        """Whether the largest value from `first` to `last`, both included, exceeds the limit; 0 for an empty range."""
        edges, whole = self._cut(first, last)
        if whole.stop > whole.start and _largest(self._top[whole]) > limit_bytes:
            return True
        near = (edge for edge in edges if self._top[edge[0]] > limit_bytes)
        return any(self._peak_within(*edge) > limit_bytes for edge in near) if edges else limit_bytes < 0

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
