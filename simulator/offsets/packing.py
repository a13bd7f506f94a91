"""Stays in a tier, and offsets for them that span little.

Several orders are tried, and each place goes into the smallest gap that is left for it between the places before it
that overlap it in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from simulator.columns import Ints


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One stay in the tier.

    Attributes
    ----------
    item, size_bytes
        A tensor, or a `workspace`; how much it takes [B].
    taken, freed
        Steps of a lap that take and free it: -1, it is there when the lap begins; the number of steps, it stays. One
        that is there at both ends, and is away between, is taken after it is freed.
    """

    item: int
    size_bytes: int
    taken: int
    freed: int

    @property
    def is_at_home(self) -> bool:
        """Whether it is there when a lap begins."""
        return self.taken < 0 or self.taken > self.freed

    def stays(self, steps: int) -> tuple[tuple[int, int], ...]:
        """From and to, both included: one stretch, or two where it comes back."""
        if self.taken > self.freed:
            return (-1, self.freed), (self.taken, steps)
        return ((self.taken, self.freed),)

    def length(self, steps: int) -> int:
        """Over how many steps it is there."""
        return sum(end - start for start, end in self.stays(steps))


def live_bytes(tenancies: Sequence[Tenancy], steps: int) -> list[int]:
    """How much is live at each step from -1 on [B]."""
    change = [0] * (steps + 3)
    for one in tenancies:
        for start, end in one.stays(steps):
            change[start + 1] += one.size_bytes
            change[end + 2] -= one.size_bytes
    return list(accumulate(change))


def span(tenancies: Sequence[Tenancy], chosen: Sequence[int]) -> int:
    """End of the last range [B]."""
    return max((at + one.size_bytes for one, at in zip(tenancies, chosen, strict=True)), default=0)


def tight(tenancies: Sequence[Tenancy], steps: int, enough: int) -> list[int]:
    """Choose offsets: the first that span no more than is enough, or else those that span the least.

    What never leaves lies at the bottom; the rest is placed by one order after another: the longest first, the
    largest, the largest by size and time, and the first.

    Parameters
    ----------
    tenancies, steps
        What is to be placed, and the length of a lap.
    enough
        When to stop [B].
    """
    least: list[int] = []
    lengths = [one.length(steps) for one in tenancies]
    moves = [number for number, length in enumerate(lengths) if length <= steps]
    stays = [one.size_bytes if length > steps else 0 for one, length in zip(tenancies, lengths, strict=True)]
    bottom = [0, *accumulate(stays)]
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda number: (-lengths[number] // max(1, steps), -tenancies[number].size_bytes, tenancies[number].taken),
        lambda number: (-tenancies[number].size_bytes, tenancies[number].taken),
        lambda number: (-tenancies[number].size_bytes * lengths[number], tenancies[number].taken),
        lambda number: (-lengths[number], -tenancies[number].size_bytes),
        lambda number: (tenancies[number].taken, -lengths[number]),
    ]
    for key in keys:
        offsets = bottom[:-1]
        order = sorted(range(len(moves)), key=lambda at: key(moves[at]))
        for number, offset in zip(moves, _placed([tenancies[n] for n in moves], steps, order), strict=True):
            offsets[number] = bottom[-1] + offset
        if not least or span(tenancies, offsets) < span(tenancies, least):
            least = offsets
        if span(tenancies, least) <= enough:
            break
    return least


def _placed(tenancies: Sequence[Tenancy], steps: int, order: Sequence[int]) -> list[int]:
    """Place one after another in the smallest gap between those placed that overlap it, or behind them."""
    stays = [one.stays(steps) for one in tenancies]
    first, last = np.array([*chain.from_iterable(stays)], np.int64).reshape(-1, 2).T
    owner = np.repeat(np.arange(len(stays)), [len(own) for own in stays])
    low, high = np.zeros((2, len(stays)), np.int64)
    is_placed = np.zeros(len(owner), bool)
    for number in order:
        overlaps = np.logical_or.reduce([(first <= end) & (last >= start) for start, end in stays[number]])
        near = owner[overlaps & is_placed]
        low[number] = _gap(low[near], high[near], tenancies[number].size_bytes)
        high[number] = low[number] + tenancies[number].size_bytes
        is_placed |= owner == number
    offsets: list[int] = low.tolist()
    return offsets


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
