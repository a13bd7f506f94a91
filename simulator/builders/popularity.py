"""How many rows of a table its lookups touch, or experts tokens choose, and how many rows a cache lacks: no draws.

The r-th most popular of R rows has a share of the lookups proportional to ``r ** -skew``. Neighbouring rows are alike,
so rows are counted in bins: one for each of the hottest, and bins that grow by a hundredth behind them, with the mean
share of their rows. Sums of shares are exact up to row 1,024, and integrals behind it (midpoint rule, off by 10^-7).

- n lookups touch a row of share p with probability 1 - (1 - p)^n.
- A cache of the hottest rows lacks all others.
- A cache of those used last has what the last t lookups touched, where t is such that these fill it (Che et al., IEEE
  JSAC 20(7), 2002; why that is so close: Fricker et al., arXiv 1202.3974). So n lookups more lack what n + t touch and
  t do not.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from simulator.graph import chosen_number
from simulator.workload import Experts, Parallel, RowCache

_HOTTEST = 1024  # rows that each have a bin of their own, and are summed one by one
_GROWTH = 100  # part of all before it that a bin has
_HALVINGS = 100

Law = tuple[tuple[int, float], ...]
"""Bins of rows, or blocks of rows, from the hottest on: how many, and the share of the lookups that each has."""


@cache
def zipf(rows: int, skew: float, block: int = 1) -> Law:
    """Make the bins of a table of `rows` rows, in blocks of `block` neighbouring rows."""

    def mass(start: int, end: int) -> float:
        """Add up ``r ** -skew`` for the rows after `start` up to `end`; the hottest one by one."""
        whole = math.fsum(math.pow(r, -skew) for r in range(start + 1, min(end, _HOTTEST) + 1))
        low, high, power = max(start, _HOTTEST) + 0.5, end + 0.5, 1 - skew
        if high > low:
            whole += math.log(high / low) if power == 0 else (math.pow(high, power) - math.pow(low, power)) / power
        return whole

    ends, blocks = [0], -(-rows // block)
    while ends[-1] < blocks:
        ends.append(min(blocks, ends[-1] + (ends[-1] // _GROWTH if ends[-1] >= _HOTTEST else 1)))
    masses = [mass(start * block, min(rows, end * block)) for start, end in pairwise(ends)]
    whole, steps = math.fsum(masses), zip(pairwise(ends), masses, strict=True)
    return tuple((end - start, part / whole / (end - start)) for (start, end), part in steps)


def touched(law: Law, lookups: float, coldest: int | None = None) -> float:
    """Return how many rows, or blocks, lookups touch; only of so many of the `coldest`, if that is given."""
    left, by_bin = coldest, list[float]()
    for count, share in reversed(law):
        taken = count if left is None else min(count, left)
        left = None if left is None else left - taken
        by_bin.append(taken * (1.0 if share >= 1 else -math.expm1(lookups * math.log1p(-share))))
    return math.fsum(by_bin)


class Use(NamedTuple):
    """What the lookups of a batch do with a table.

    Attributes
    ----------
    lookups, touched
        How many there are, and how many different rows they touch.
    cached, missed, rest
        Rows that stay in the cache, those that a batch brings in beside them, and all others.
    """

    lookups: int
    touched: int
    cached: int
    missed: int
    rest: int

    def part(self, ranks: int) -> Use:
        """Return what falls to each of some ranks that divide the rows evenly, rounded up."""
        return Use(*(-(-count // ranks) for count in self))


@cache
def use(rows: int, skew: float, lookups: int, kept: RowCache | None) -> Use:
    """Count what the lookups of a batch do with a table of so many rows.

    A cache of the rows used last has room for those that come in; one of the hottest rows keeps its own beside them.
    """
    different = min(rows, lookups, round(touched(zipf(rows, skew), lookups)))
    if kept is None:
        return Use(lookups, different, rows, 0, 0)
    law, room, missed = zipf(rows, skew, kept.block), int(kept.share * rows) // kept.block, 0
    if kept.by == "lru":
        low, filling = 0.0, 1.0  # how many lookups touch as many rows as there is room for
        while touched(law, filling) < room:
            filling *= 2
        for _ in range(_HALVINGS):
            middle = (low + filling) / 2
            low, filling = (middle, filling) if touched(law, middle) < room else (low, middle)
        missed = kept.block * round(touched(law, filling + lookups) - room)
    cached = room * kept.block - missed
    if kept.by != "lru":
        missed = kept.block * round(touched(law, lookups, -(-rows // kept.block) - room))
    missed = min(missed, rows - cached)
    return Use(lookups, different, cached, missed, rows - cached - missed)


def read_experts(part: Experts, tokens: int, parallel: Parallel) -> tuple[int, int]:
    """Return how many experts a rank is expected to read if so many tokens of each replica choose, and how many it has.

    Expert ranks that are tensor ranks, too, choose for parts of the same tokens.
    """
    ranks, replicas = part.ranks * parallel.expert, part.ranks * parallel.expert_replicas
    if part.skew:
        busiest = tuple((1, share) for share in part.likely[::ranks])
        return math.ceil(touched(busiest, tokens * replicas)), part.places // ranks
    chosen = chosen_number(part.candidates, tokens * replicas, part.top_k)
    return -(-chosen * part.places // (part.candidates * ranks)), part.places // ranks
