"""How fast points of a sweep are measured, and how long it takes until all are."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from simulator.units import human


class Pace:
    """Tells how fast points are measured.

    Parameters
    ----------
    progress
        Called with how fast it goes, the number of points that are measured, and of those that are known to be wanted.
    workers
        How many are measured at a time.
    is_told
        Whether it is said at once how many points there are and, once one is measured, how long the others take: then
        it is called with -1 in place of the second number.
    """

    def __init__(self, progress: Callable[[str, int, int], None] | None, workers: int, *, is_told: bool) -> None:
        self._progress, self._workers, self._is_told, self._begun_s = progress, workers, is_told, monotonic()
        self._new = self._done = self._total = 0

    def more(self, tasks: int, new: int) -> None:
        """So many points more are wanted, and so many of them new."""
        self._total = self._done + tasks
        self._done += tasks - new
        if self._progress is not None and self._is_told:
            self._progress(f"{tasks:,} points, {tasks - new:,} of them kept from before", 0, -1)

    def tell(self) -> None:
        """A point more was measured."""
        self._new, self._done = self._new + 1, self._done + 1
        lacking = self._total - self._done
        if self._progress is not None:
            each_s = (monotonic() - self._begun_s) / (max(self._new, self._workers) if self._is_told else self._new)
            left = human(round(each_s * lacking * 10**9), "ns")
            self._progress(f"points, {1 / max(each_s, 1e-9):.3g} a second, {left} left", self._done, self._total)
            if self._is_told and self._new == 1 and lacking:
                self._progress(f"about {left} for the other {lacking:,}", 0, -1)
