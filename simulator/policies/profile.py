"""Bytes by position, with changes of ranges and queries about them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_largest = np.maximum.reduce
"""Faster than ``max`` of an array, which takes half as long again for the few values of a call."""


class Profile:
    """Bytes by position, with changes of ranges and range queries, each in time linear in the range.

    Keeping the largest value of each block of positions as well is no faster up to 100,000 ops, and makes a plan for
    200,000 in two thirds of the time (`tests/bench/planning.py`).

    Parameters
    ----------
    values
        Bytes at each position.
    """

    def __init__(self, values: ArrayLike) -> None:
        self._row = np.array(values, np.int64)
        self.length = len(self._row)

    def add(self, first: int, last: int, delta_bytes: int) -> None:
        """Add to every position from `first` to `last`, both included; an empty range is allowed."""
        self._row[first : max(first, last + 1)] += delta_bytes

    def put(self, earliest: int, before: int, size_bytes: int, limit_bytes: int | float) -> int:
        """Add from the first point on, not before `earliest`, that keeps the limit until `before`; return the point."""
        point = self.last_above(earliest, before - 1, limit_bytes - size_bytes) + 1
        self.add(point, before - 1, size_bytes)
        return point

    def peak(self, first: int, last: int) -> int:
        """Return the largest value from `first` to `last`, both included; 0 for an empty range."""
        return int(_largest(self._row[first : last + 1])) if last >= first else 0

    def exceeds(self, first: int, last: int, limit_bytes: int | float) -> bool:
        """Return whether the largest value from `first` to `last`, both included, exceeds the limit; 0 if empty."""
        return self.peak(first, last) > limit_bytes

    def last_above(self, first: int, last: int, limit_bytes: int | float) -> int:
        """Return the last position from `first` to `last` whose value exceeds the limit, or ``first - 1``."""
        above = np.flatnonzero(self._row[first : max(first, last + 1)] > limit_bytes)
        return first + int(above[-1]) if len(above) else first - 1

    def values(self) -> NDArray[np.int64]:
        """Return all values as a new array."""
        return self._row.copy()
