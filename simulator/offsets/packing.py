"""Offsets that span little: several orders are tried, and each place goes into the smallest gap that is left for it.

Which gaps are left follows from the places before it that overlap it in time. Stretches are kept in groups of like
length, each sorted by its start, so that only a slice of each group can overlap, and no more than that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np

from simulator.columns import Ints
from simulator.offsets.tenancy import Tenancy, span

_NOT_YET = -2
_LIKE = 4
"""Lengths of a group differ by less than this power of two."""


def tight(tenancies: Sequence[Tenancy], steps: int, enough: int) -> list[int]:
    """Choose offsets: the first that span no more than is enough, or else those that span the least.

    Parameters
    ----------
    tenancies, steps
        What is to be placed, and the length of a lap.
    enough
        When to stop [B].
    """
    least: list[int] = []
    for found in _candidates(tenancies, steps):
        if not least or span(tenancies, found) < span(tenancies, least):
            least = found
        if span(tenancies, least) <= enough:
            break
    return least


def _candidates(tenancies: Sequence[Tenancy], steps: int) -> Iterator[list[int]]:
    """Offsets by one order after another."""
    longest = [one.length(steps) for one in tenancies]
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda number: (-longest[number] // max(1, steps), -tenancies[number].size_bytes, tenancies[number].taken),
        lambda number: (-tenancies[number].size_bytes, tenancies[number].taken),
        lambda number: (-tenancies[number].size_bytes * longest[number], tenancies[number].taken),
        lambda number: (-longest[number], -tenancies[number].size_bytes),
        lambda number: (tenancies[number].taken, -longest[number]),
    )
    stays = [number for number, length in enumerate(longest) if length > steps]
    moves = [number for number, length in enumerate(longest) if length <= steps]
    base, below = 0, [0] * len(tenancies)
    for number in stays:
        below[number] = base
        base += tenancies[number].size_bytes
    crowd = _Crowd([tenancies[number].stays(steps) for number in moves])
    sizes = [tenancies[number].size_bytes for number in moves]
    for order in orders:
        found = crowd.placed(sizes, sorted(range(len(moves)), key=lambda at: (*order(moves[at]), at)))
        for number, offset in zip(moves, found, strict=True):
            below[number] = base + offset
        yield list(below)


class _Crowd:
    """Stretches of time, and which of them overlap.

    Parameters
    ----------
    stays
        For each place its stretches, from and to, both included.
    """

    def __init__(self, stays: Sequence[Sequence[tuple[int, int]]]) -> None:
        stretches = np.array([*chain.from_iterable(stays)], np.int64).reshape(-1, 2)
        group = np.array([int(end - start).bit_length() // _LIKE for start, end in stretches.tolist()], np.int64)
        order = np.lexsort((stretches[:, 0], group))
        self._first, self._last = stretches[order].T
        at = np.empty(len(order), np.int64)
        at[order] = np.arange(len(order))
        numbers = iter(at.tolist())
        self._at = [[next(numbers) for _ in stretch] for stretch in stays]
        self._slices: list[list[tuple[int, int]]] = [[] for _ in order]
        for begin, end in _ends(group[order]):
            first = self._first[begin:end]
            earliest = self._first - (self._last[begin:end] - first).max()
            low, high = np.searchsorted(first, earliest), np.searchsorted(first, self._last, "right")
            for found, *limits in zip(self._slices, (begin + low).tolist(), (begin + high).tolist(), strict=True):
                if limits[0] < limits[1]:
                    found.append((limits[0], limits[1]))

    def placed(self, sizes: Sequence[int], order: Sequence[int]) -> list[int]:
        """Place one after another in the smallest gap between those placed that overlap it, or behind them."""
        found = [0] * len(sizes)
        until, low, high = np.full(len(self._first), _NOT_YET), *np.zeros((2, len(self._first)), np.int64)
        for number in order:
            mine = self._at[number]
            near = [begin + np.flatnonzero(until[begin:end] >= self._first[at]) for at in mine
                    for begin, end in self._slices[at]]  # fmt: skip
            there = near[0] if len(near) == 1 else np.concatenate(near)
            found[number] = offset = _gap(low[there], high[there], sizes[number])
            for at in mine:
                until[at], low[at], high[at] = self._last[at], offset, offset + sizes[number]
        return found


def _ends(groups: Ints) -> Iterator[tuple[int, int]]:
    """Where each group begins and ends."""
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return ((begin, end) for begin, end in pairwise(cuts) if begin < end)


def _gap(low: Ints, high: Ints, size: int) -> int:
    """The lowest of the smallest gaps that suffice between ranges, or the end of the last."""
    if not len(low):
        return 0
    order = low.argsort(kind="stable")
    ends = np.maximum.accumulate(high[order])
    gaps = low[order]
    gaps[1:] -= ends[:-1]
    fits = (gaps >= size).nonzero()[0]
    if not len(fits):
        return int(ends[-1])
    at = fits[gaps[fits].argmin()]
    return int(ends[at - 1]) if at else 0
