"""How many rows of a table its lookups touch, and how many of these a cache lacks: expected values, no draws.

The r-th most popular of R rows has a share of the lookups proportional to ``r ** -skew``. Neighbouring rows are alike,
so rows are counted in bins: one for each of the hottest, and bins that grow by a hundredth behind them, with the mean
share of their rows. Sums of shares are exact up to row 1,024, and integrals behind it (midpoint rule, off by 10^-7).

- n lookups touch a row of share p with probability 1 - (1 - p)^n.
- A cache of the hottest rows lacks all others.
- A cache of those used last lacks a row that t lookups have left out; t is such that t lookups touch as many rows as
  the cache holds (Che et al., IEEE JSAC 20(7), 2002; why it holds: Fricker et al., arXiv 1202.3974).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate, pairwise
from math import expm1, fsum, inf, log, log1p
from typing import NamedTuple

from simulator.workload.dlrm import RowCache

_HOTTEST = 1024
"""Rows that each have a bin of their own, and are summed one by one."""
_GROWTH = 100
"""Part of all before it that a bin has."""
_HALVINGS = 100

Law = tuple[tuple[int, float], ...]
"""Bins of rows, or blocks of rows, from the hottest on: how many, and the share of the lookups that each has."""


@cache
def zipf(rows: int, skew: float, block: int = 1) -> Law:
    """Make the bins of a table of `rows` rows, in blocks of `block` rows each."""
    first = [0.0, *accumulate(r**-skew for r in range(1, min(rows, _HOTTEST) + 1))]

    def mass(last: int) -> float:
        if last <= _HOTTEST:
            return first[last]
        low, high = _HOTTEST + 0.5, last + 0.5
        power = 1 - skew
        return first[-1] + (log(high / low) if power == 0 else (high**power - low**power) / power)

    ends, blocks = [0], -(-rows // block)
    while ends[-1] < blocks:
        grown = ends[-1] // _GROWTH if ends[-1] >= _HOTTEST else 1
        ends.append(min(blocks, ends[-1] + grown))
    shares = [mass(min(rows, end * block)) / mass(rows) for end in ends]
    steps = zip(pairwise(ends), pairwise(shares), strict=True)
    return tuple((end - start, (until - since) / (end - start)) for (start, end), (since, until) in steps)


def touched(law: Law, lookups: float, weigh: Callable[[float], float] = lambda _: 1.0) -> float:
    """Return how many rows, or blocks, lookups touch; of each as much as `weigh` says of its share."""
    return fsum(count * _touches(share, lookups) * weigh(share) for count, share in law)


def _touches(share: float, lookups: float) -> float:
    return 1.0 if share >= 1 else -expm1(lookups * log1p(-share))


class Use(NamedTuple):
    """What the lookups of a batch do with a table; whole numbers.

    Attributes
    ----------
    lookups, missed_lookups
        How many there are, and how many of them find their row not in the cache.
    rows
        Different rows that they touch.
    cached_rows, missed_rows
        Rows that stay in the cache, and rows that come in; of whole blocks.
    """

    lookups: int
    missed_lookups: int
    rows: int
    cached_rows: int
    missed_rows: int


@cache
def use(rows: int, skew: float, lookups: int, kept: RowCache | None) -> Use:
    """Count what the lookups of a batch do with a table of so many rows.

    A cache of the rows used last has room for those that come in; one of the hottest rows keeps its own beside them.
    """
    touched_rows = min(rows, lookups, round(touched(zipf(rows, skew), lookups)))
    if kept is None:
        return Use(lookups, 0, touched_rows, rows, 0)
    law, room = zipf(rows, skew, kept.block), int(kept.share * rows) // kept.block
    left_out = _outlived(law, room) if kept.by == "lru" else inf
    lacks = (lambda share: 1 - _touches(share, left_out)) if kept.by == "lru" else (lambda _: 1.0)
    cold = law if kept.by == "lru" else _behind(law, room)
    missed_rows = min(kept.block * round(touched(cold, lookups, lacks)), rows)
    missed_lookups = min(lookups, round(lookups * fsum(count * share * lacks(share) for count, share in cold)))
    cached_rows = room * kept.block - (missed_rows if kept.by == "lru" else 0)
    return Use(lookups, missed_lookups, touched_rows, cached_rows, min(missed_rows, rows - max(cached_rows, 0)))


def _behind(law: Law, room: int) -> Law:
    """Return what is behind the hottest `room` rows."""
    cold = list[tuple[int, float]]()
    for count, share in law:
        taken = min(count, room)
        room -= taken
        cold += [(count - taken, share)] if count > taken else []
    return tuple(cold)


def _outlived(law: Law, room: int) -> float:
    """Return how many lookups touch `room` different rows: a row that they leave out has left the cache."""
    low, high = 0.0, 1.0
    while touched(law, high) < room:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if touched(law, middle) < room else (low, middle)
    return high
