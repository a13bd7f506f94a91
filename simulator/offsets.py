"""Offsets chosen before the run: where each place of the compute tier lies, from the order in which a plan issues.

A *tenancy* is one stay of a tensor in the tier, or the workspace of a compute: from the step that takes its room to
the detach that frees it. Tenancies that overlap in issue order get ranges that do not. A plan that is repeated takes
the same ranges in each lap, so that a tensor which is at home in the tier, leaves it and comes back has its old one.

To give the least span is the problem of dynamic storage allocation, which is hard; several orders are tried, as
MindSpore's SOMAS tries several heuristics (mindspore.cn, docs, features/runtime/memory_manager), and the one with the
least span is taken. None can be below the most that is live at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, Plan

Ints = NDArray[np.int64]


_STREAM_SHIFT = 40


def workspace(op: int, stream: int) -> int:
    """Name the workspace of an op that runs on a stream: an op may run on two at once."""
    return -1 - op - (stream << _STREAM_SHIFT)


def without_stream(item: int) -> int:
    """Name a tensor, or the workspace of an op (``-1 - op``), as the trace does."""
    return item if item >= 0 else -(-item & (1 << _STREAM_SHIFT) - 1)


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

    def stays(self, steps: int) -> tuple[tuple[int, int], ...]:
        """From and to, both included: one stretch, or two where it comes back."""
        if self.taken > self.freed:
            return (-1, self.freed), (self.taken, steps)
        return ((self.taken, self.freed),)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where tenancies lie.

    Attributes
    ----------
    tenancies, offsets
        Each tenancy, and its offset [B].
    span_bytes, live_bytes
        End of the last range, and the most that is live at once in issue order [B].
    of_item
        For each item its tenancies, in the order in which a lap takes them; what never leaves is taken by none.
    at_home
        For each item that is there when a lap begins, its tenancy.
    before
        For each tenancy those that must have been freed, each with how often more than there were laps before.
    """

    tenancies: tuple[Tenancy, ...]
    offsets: tuple[int, ...]
    span_bytes: int
    live_bytes: int
    of_item: dict[int, tuple[int, ...]]
    at_home: dict[int, int]
    before: tuple[tuple[tuple[int, int], ...], ...]


def offsets(graph: Graph, plan: Plan, tier: int) -> Offsets:
    """Choose offsets for all that a fixed plan ever places in a tier.

    Parameters
    ----------
    graph, plan
        What runs, and a fixed plan for it.
    tier
        Id of the compute tier.
    """
    steps = 0 if plan.fixed is None else len(plan.fixed.kind)
    tenancies = tuple(_tenancies(graph, plan, tier))
    live = _live_bytes(tenancies, steps)
    found = min(_candidates(tenancies, steps, live), key=lambda chosen: _span(tenancies, chosen), default=[])
    of_item: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    at_home = {}
    for number, one in enumerate(tenancies):
        if one.taken < 0 or one.taken > one.freed:
            at_home[one.item] = number
    for number in sorted(range(len(tenancies)), key=lambda number: tenancies[number].taken):
        if tenancies[number].taken >= 0:
            of_item[tenancies[number].item] += (number,)
    before = _before(tenancies, found)
    return Offsets(tenancies, tuple(found), _span(tenancies, found), live, dict(of_item), at_home, before)


def _tenancies(graph: Graph, plan: Plan, tier: int) -> Iterator[Tenancy]:
    """All stays of one lap, by the step that frees them."""
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    open_ = {tensor: -1 for tensor, home in enumerate(plan.home) if home == tier and sizes[tensor]}
    left: dict[int, int] = {}
    codes = () if plan.fixed is None else tuple(plan.fixed.codes())
    for at, (kind, a, b, c) in enumerate(codes):
        if kind == COMPUTE:
            op = graph.ops[a]
            for tensor in op.writes:
                if sizes[tensor]:
                    open_.setdefault(tensor, at)
            if op.workspace_bytes:
                yield Tenancy(workspace(a, b), op.workspace_bytes, at, at)
        elif kind == COPY and c == tier and sizes[a]:
            open_.setdefault(a, at)
        elif kind == DETACH and b == tier and a in open_:
            taken = open_.pop(a)
            if taken < 0 and graph.tensors[a].persistent:
                left[a] = at
            else:
                yield Tenancy(a, sizes[a], taken, at)
    for tensor, taken in open_.items():
        yield Tenancy(tensor, sizes[tensor], taken, left.pop(tensor, len(codes)))
    for tensor, freed in left.items():
        yield Tenancy(tensor, sizes[tensor], -1, freed)


def _live_bytes(tenancies: Sequence[Tenancy], steps: int) -> int:
    """The most that is live at once [B]."""
    change = [0] * (steps + 3)
    for one in tenancies:
        for start, end in one.stays(steps):
            change[start + 1] += one.size_bytes
            change[end + 2] -= one.size_bytes
    return max(accumulate(change))


def _span(tenancies: Sequence[Tenancy], chosen: Sequence[int]) -> int:
    return max((at + one.size_bytes for one, at in zip(tenancies, chosen, strict=True)), default=0)


def _candidates(tenancies: Sequence[Tenancy], steps: int, live: int) -> Iterator[list[int]]:
    """Offsets by one order after another; no more once one reaches what is live at once."""
    longest = {number: sum(end - start for start, end in one.stays(steps)) for number, one in enumerate(tenancies)}
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda number: (-longest[number] // max(1, steps), -tenancies[number].size_bytes, tenancies[number].taken),
        lambda number: (-tenancies[number].size_bytes, tenancies[number].taken),
        lambda number: (-tenancies[number].size_bytes * longest[number], tenancies[number].taken),
        lambda number: (-longest[number], -tenancies[number].size_bytes),
        lambda number: (tenancies[number].taken, -longest[number]),
    )
    for order in orders:
        found = _placed(tenancies, steps, sorted(range(len(tenancies)), key=lambda number: (*order(number), number)))
        yield found
        if _span(tenancies, found) == live:
            return


def _placed(tenancies: Sequence[Tenancy], steps: int, order: Sequence[int]) -> list[int]:
    """Place one tenancy after another in the smallest gap between those placed that overlap it, or behind them."""
    found = [0] * len(tenancies)
    most = 2 * len(tenancies)
    start, end, low, high = (np.zeros(most, np.int64) for _ in range(4))
    placed = 0
    for number in order:
        one = tenancies[number]
        stays = one.stays(steps)
        overlaps = np.zeros(placed, bool)
        for first, last in stays:
            overlaps |= (start[:placed] <= last) & (end[:placed] >= first)
        offset = _gap(low[:placed][overlaps], high[:placed][overlaps], one.size_bytes)
        found[number] = offset
        for first, last in stays:
            start[placed], end[placed], low[placed], high[placed] = first, last, offset, offset + one.size_bytes
            placed += 1
    return found


def _gap(low: Ints, high: Ints, size: int) -> int:
    """The lowest of the smallest gaps that suffice between ranges, or the end of the last."""
    if not len(low):
        return 0
    order = np.argsort(low, kind="stable")
    ends = np.maximum.accumulate(high[order])
    begins = np.append(0, ends[:-1])
    gaps = low[order] - begins
    fits = np.flatnonzero(gaps >= size)
    return int(begins[fits[np.argmin(gaps[fits])]]) if len(fits) else int(ends[-1])


def _before(tenancies: Sequence[Tenancy], chosen: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each tenancy the last ones before it on its range, in issue order over two laps."""
    ground = _Ground()
    found: list[dict[int, int]] = [{} for _ in tenancies]
    for number, one in enumerate(tenancies):
        if one.taken < 0 or one.taken > one.freed:
            ground.cover(chosen[number], one.size_bytes, number)
    taken = [number for number, one in enumerate(tenancies) if one.taken >= 0]
    taken.sort(key=lambda number: (tenancies[number].taken, number))
    for number in taken * 2:
        one = tenancies[number]
        for other in ground.cover(chosen[number], one.size_bytes, number):
            found[number][other] = int(tenancies[other].freed < one.taken)
    return tuple(tuple(sorted(one.items())) for one in found)


class _Ground:
    """Who was the last on each range of the space."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._owners: list[int] = [-1]

    def _cut(self, offset: int) -> int:
        """Let a range begin at this offset, and tell its position."""
        at = bisect_right(self._starts, offset) - 1
        if self._starts[at] != offset:
            at += 1
            self._starts.insert(at, offset)
            self._owners.insert(at, self._owners[at - 1])
        return at

    def cover(self, offset: int, size: int, owner: int) -> set[int]:
        """Take a range, and tell who was there."""
        first, last = self._cut(offset), self._cut(offset + size)
        first = self._cut(offset)
        there = set(self._owners[first:last])
        self._starts[first:last], self._owners[first:last] = [offset], [owner]
        return there - {-1, owner}
