"""Bytes over positions, with changes of ranges and questions about them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_largest = np.maximum.reduce
"""The method of an array takes half as long again, for the few values that one call looks at."""


class Profile:
    """A row of byte counts that answers range questions while ranges change, each in time linear in the range.

    Keeping the largest value of each block of positions as well is no faster up to 100,000 ops, and makes a plan for
    200,000 in two thirds of the time (`tests/bench/planning.py`).

    Parameters
    ----------
    values
        Bytes at each position.

    Attributes
    ----------
    length
        Number of positions.
    """

    def __init__(self, values: ArrayLike) -> None:
        self._row = np.array(values, np.int64)
        self.length = len(self._row)

    def add(self, first: int, last: int, delta_bytes: int) -> None:
        """Add to every position from `first` to `last`, both included; an empty range is allowed."""
        self._row[first : max(first, last + 1)] += delta_bytes

    def put(self, earliest: int, before: int, size_bytes: int, limit_bytes: int | float) -> int:
        """Add from the first point on, no earlier than `earliest`, that keeps the limit until `before`; return it."""
        point = self.last_above(earliest, before - 1, limit_bytes - size_bytes) + 1
        self.add(point, before - 1, size_bytes)
        return point

    def peak(self, first: int, last: int) -> int:
        """The largest value from `first` to `last`, both included; 0 for an empty range."""
        return int(_largest(self._row[first : last + 1])) if last >= first else 0

    def exceeds(self, first: int, last: int, limit_bytes: int | float) -> bool:
        """Whether the largest value from `first` to `last`, both included, exceeds the limit; 0 for an empty range."""
        return self.peak(first, last) > limit_bytes

    def last_above(self, first: int, last: int, limit_bytes: int | float) -> int:
        """The last position from `first` to `last` whose value exceeds the limit; ``first - 1`` if none does."""
        above = np.flatnonzero(self._row[first : max(first, last + 1)] > limit_bytes)
        return first + int(above[-1]) if len(above) else first - 1

    def values(self) -> NDArray[np.int64]:
        """All values, as a new array."""
        return self._row.copy()
