"""Offsets chosen before the run: where each place of the compute tier lies, from the order in which a plan issues.

A *tenancy* is one stay of a tensor in the tier, or the workspace of a compute: from the action that takes its room to
the detach that frees it. Tenancies that overlap in issue order get ranges that do not. A plan that is repeated takes
the same ranges in each *lap* (one run of its list), so that a tensor which is at home in the tier, leaves it and comes
back has its old one.

Finding the least span is the problem of dynamic storage allocation, which is hard; several orders are tried
(`tight`), as MindSpore's SOMAS tries several heuristics (mindspore.cn, docs, features/runtime/memory_manager). None can
be below the most that is live at once.

*Resting.* A place whose range was freed a moment ago in issue order waits for the copy that frees it, although there
may be room elsewhere. So where there is room each gets the range that has been free for longest (`spread`). Chosen in
issue order, such offsets would be fragmented at the peak; so they are chosen outward from it: what is live at the peak
lies without a hole, and there is ever more room from there on, forward and, with time reversed, backward. Reversed, the
range that has been free for longest is that whose next place comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat

import numpy as np

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, Plan
from simulator.trace import Ints, held_bytes

_EVER = -1 << 62
"""Time since which a piece that was never taken counts as free."""

_STREAM_SHIFT = 40
"""Bits of an op in the name of a workspace, below those of its stream: more than any graph has ops."""


def workspace(op: int, stream: int) -> int:
    """Name the workspace of an op that runs on a stream: an op may run on two at once."""
    return -1 - op - (stream << _STREAM_SHIFT)


def without_stream(item: int) -> int:
    """Name an item as the trace does: a tensor, or the workspace of an op (``-1 - op``)."""
    return item if item >= 0 else -(-item & (1 << _STREAM_SHIFT) - 1)


class Tenancies:
    """Stays in the tier during one lap of a plan, by column.

    Parameters
    ----------
    rows
        The first four columns below.
    actions
        Number of actions of a lap.

    Attributes
    ----------
    item, size_bytes
        A tensor id, or a `workspace`; its size [B].
    taken, freed
        Actions that take and free it: -1 if it is there when the lap begins; `actions` if it stays.
    wraps
        Whether it is there at both ends, and away between: it is taken after it is freed.
    owner, first, last
        By stay: its tenancy, and its first and last action; the second stays of those that wrap come last.
    """

    def __init__(self, rows: Ints, actions: int) -> None:
        self.rows, self.actions = rows, actions
        self.item, self.size_bytes, self.taken, self.freed = rows
        self.wraps = wraps = self.taken > self.freed
        self.owner = np.concatenate((np.arange(len(wraps)), np.flatnonzero(wraps)))
        self.first = np.concatenate((np.where(wraps, -1, self.taken), self.taken[wraps]))
        self.last = np.concatenate((self.freed, np.full(wraps.sum(), actions)))

    def lengths(self) -> Ints:
        """Count the actions during which each tenancy is there."""
        return np.bincount(self.owner, self.last - self.first, len(self.item)).astype(np.int64)

    def live_bytes(self) -> Ints:
        """Return the live bytes before the first action, at each one, and behind the last [B]."""
        return held_bytes(self.first + 1, self.last + 1, self.size_bytes[self.owner], self.actions + 2)

    def span_bytes(self, offsets: Ints) -> int:
        """Return the end of the last range [B]."""
        return int((offsets + self.size_bytes).max(initial=0))


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets of tenancies.

    Attributes
    ----------
    tenancies, ranges
        The tenancies; offset and size of each [B].
    span_bytes, live_bytes
        End of the last range, and the most that is live at once in issue order [B].
    of_item
        Item -> its tenancies, in the order in which a lap takes them, without those that are never taken in a lap.
    at_home
        Item that is there when a lap begins -> its tenancy.
    before
        By tenancy: those to be freed before it, each with 1 if also in the same lap, 0 if only in earlier ones.
    """

    tenancies: Tenancies
    ranges: tuple[tuple[int, int], ...]
    span_bytes: int
    live_bytes: int
    of_item: dict[int, tuple[int, ...]]
    at_home: dict[int, int]
    before: tuple[tuple[tuple[int, int], ...], ...]


def offsets(graph: Graph, plan: Plan, tier: int, capacity: int | None = None) -> Offsets:
    """Choose offsets for all that a fixed plan ever places in a tier.

    Parameters
    ----------
    graph, plan
        Graph that runs, and a fixed plan for it.
    tier
        Id of the compute tier.
    capacity
        Bytes that the ranges may span if that is enough for them [B]; None: as few as can be found.
    """
    tenancies = tenancies_of(graph, plan, tier)
    live = int(tenancies.live_bytes().max())
    room = live if capacity is None else int(capacity)
    placed = spread(tenancies, room)
    chosen = tight(tenancies, room) if placed is None else placed
    items, of_item = tenancies.item.tolist(), defaultdict[int, tuple[int, ...]](tuple)
    at_home, in_turn = _in_turn(tenancies)
    for tenancy in in_turn:
        of_item[items[tenancy]] += (tenancy,)
    ranges = tuple(zip(chosen.tolist(), tenancies.size_bytes.tolist(), strict=True))
    before, span = _predecessors(tenancies, chosen), tenancies.span_bytes(chosen)
    return Offsets(tenancies, ranges, span, live, dict(of_item), {items[t]: t for t in at_home}, before)


def issued_bytes(graph: Graph, plan: Plan, tier: int) -> list[int]:
    """Return the bytes that a fixed plan holds in a tier in issue order, before its first action and at each one [B].

    Parameters
    ----------
    graph, plan, tier
        As for `offsets`; any tier.
    """
    return list(tenancies_of(graph, plan, tier).live_bytes().tolist())


def tenancies_of(graph: Graph, plan: Plan, tier: int) -> Tenancies:
    """Return the tenancies of a lap, in the order of the actions that free them.

    Parameters
    ----------
    graph, plan, tier
        As for `offsets`; any tier.
    """
    sizes, rows = [tensor.size_bytes for tensor in graph.tensors], list[tuple[int, int, int, int]]()
    taken_at = {tensor: -1 for tensor, home in enumerate(plan.home) if home == tier and sizes[tensor]}
    left: dict[int, int] = {}
    codes = () if plan.fixed is None else tuple(plan.fixed.codes())
    for index, (kind, a, b, c) in enumerate(codes):
        if kind == COMPUTE:
            op = graph.ops[a]
            for tensor in op.writes:
                if sizes[tensor]:
                    taken_at.setdefault(tensor, index)
            if op.workspace_bytes:
                rows.append((workspace(a, b), op.workspace_bytes, index, index))
        elif kind == COPY and c == tier and sizes[a]:
            taken_at.setdefault(a, index)
        elif kind == DETACH and b == tier and a in taken_at:
            taken = taken_at.pop(a)
            if taken < 0 and graph.tensors[a].persistent:
                left[a] = index
            else:
                rows.append((a, sizes[a], taken, index))
    rows += [(t, sizes[t], taken, left.pop(t, len(codes))) for t, taken in taken_at.items()]
    rows += [(t, sizes[t], -1, freed) for t, freed in left.items()]
    return Tenancies(np.array(rows, np.int64).reshape(-1, 4).T, len(codes))


def _in_turn(tenancies: Tenancies) -> tuple[list[int], list[int]]:
    """List the tenancies that are there when a lap begins, and those that it takes, in turn."""
    order = np.argsort(tenancies.taken, kind="stable")
    at_home = np.flatnonzero((tenancies.taken < 0) | tenancies.wraps)
    return at_home.tolist(), order[tenancies.taken[order] >= 0].tolist()


def _predecessors(tenancies: Tenancies, chosen: Ints) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each tenancy, find those that held its range last before it, in issue order over two laps."""
    ends = chosen + tenancies.size_bytes
    cuts = np.unique([chosen, ends])
    first, last = np.searchsorted(cuts, chosen).tolist(), np.searchsorted(cuts, ends).tolist()
    taken, freed = tenancies.taken.tolist(), tenancies.freed.tolist()
    owners, before = np.full(len(cuts), -1), [dict[int, int]() for _ in taken]
    at_home, in_turn = _in_turn(tenancies)
    for position, tenancy in enumerate([*at_home, *in_turn, *in_turn]):
        held_by = owners[first[tenancy] : last[tenancy]]
        if position >= len(at_home):
            for other in set(held_by.tolist()) - {-1, tenancy}:
                before[tenancy][other] = int(freed[other] < taken[tenancy])
        held_by[:] = tenancy
    return tuple(tuple(sorted(others.items())) for others in before)


def tight(tenancies: Tenancies, enough: int) -> Ints:
    """Choose offsets with several orders: the first with a span of at most `enough`, else the least.

    What never leaves lies at the bottom; the rest is placed by one order after another: the longest first, the
    largest, the largest by size and time, the longest and of these the largest, and the first.

    Parameters
    ----------
    tenancies
        Tenancies to place.
    enough
        Span at which to stop [B].
    """
    leaves = tenancies.lengths() <= tenancies.actions
    bottom_bytes = np.where(leaves, 0, tenancies.size_bytes)
    least = chosen = np.cumsum(bottom_bytes) - bottom_bytes
    moving = Tenancies(tenancies.rows[:, leaves], tenancies.actions)
    size, taken, length = moving.size_bytes, moving.taken, moving.lengths()
    orders = (
        (taken, -size, -length // max(1, tenancies.actions)),
        (taken, -size),
        (taken, -size * length),
        (-size, -length),
        (-length, taken),
    )
    for trial, keys in enumerate(orders):
        chosen[leaves] = bottom_bytes.sum() + _pack(moving, np.lexsort(keys).tolist())
        if not trial or tenancies.span_bytes(chosen) < tenancies.span_bytes(least):
            least = chosen.copy()
        if tenancies.span_bytes(least) <= enough:
            break
    return least


def _pack(tenancies: Tenancies, order: Sequence[int]) -> Ints:
    """Place tenancies one by one, each in the smallest sufficient hole between those that overlap it, or behind."""
    owner, first, last = tenancies.owner, tenancies.first, tenancies.last
    sizes = tenancies.size_bytes.tolist()
    low, high = np.zeros((2, len(sizes)), np.int64)
    is_placed = np.zeros(len(owner), bool)
    for tenancy in order:
        is_own = owner == tenancy
        stays = zip(first[is_own], last[is_own], strict=True)
        overlaps = np.logical_or.reduce([(first <= end) & (last >= start) for start, end in stays])
        near = owner[overlaps & is_placed]
        low[tenancy] = _smallest_hole(low[near], high[near], sizes[tenancy])
        high[tenancy] = low[tenancy] + sizes[tenancy]
        is_placed |= is_own
    return low


def _smallest_hole(low: Ints, high: Ints, size: int) -> int:
    """Find the start of the smallest sufficient hole between ranges, the lowest of equals, or the end of the last."""
    if not len(low):
        return 0
    order = low.argsort(kind="stable")
    ends = np.maximum.accumulate(high[order])
    holes = low[order]
    holes[1:] -= ends[:-1]
    fits = (holes >= size).nonzero()[0]
    if not len(fits):
        return int(ends[-1])
    position = fits[holes[fits].argmin()]
    return int(ends[position - 1]) if position else 0


def spread(tenancies: Tenancies, capacity: int) -> Ints | None:
    """Choose offsets below a capacity, each range unused for as long as possible; None if one finds no range.

    Parameters
    ----------
    tenancies
        Tenancies to place.
    capacity
        Bytes that all may span [B].
    """
    size, taken, freed, wraps = tenancies.size_bytes, tenancies.taken, tenancies.freed, tenancies.wraps
    peak = int(tenancies.live_bytes().argmax()) - 1
    kept = np.flatnonzero((taken <= peak) & (peak <= freed) | wraps)
    kept = kept[np.argsort(-tenancies.lengths()[kept], kind="stable")]
    chosen, end = np.full(len(size), -1), int(size[kept].sum())
    chosen[kept] = np.cumsum(size[kept]) - size[kept]
    if end > capacity:
        return None
    sizes = size.tolist()
    # With time reversed, a tenancy begins when it is freed.
    for comes, leaves, start in ((taken, freed, peak), (-freed, -taken, -peak)):
        free, later = _Free(end, capacity), np.flatnonzero(~wraps & (comes > start))
        gone = np.flatnonzero(~wraps & (leaves >= start))
        events = [*zip(comes[later].tolist(), repeat(False), later.tolist())]
        events += zip(leaves[gone].tolist(), repeat(True), gone.tolist())
        for time, is_leaving, tenancy in sorted(events):
            if is_leaving:
                free.give(int(chosen[tenancy]), int(chosen[tenancy]) + sizes[tenancy], time)
            elif (offset := free.take(sizes[tenancy])) is None:
                return None
            else:
                chosen[tenancy] = offset
    return chosen


class _Free:
    """Free pieces of a span, and since when each is free; pieces that touch stay apart, as their times differ."""

    def __init__(self, start: int, end: int) -> None:
        self._pieces: dict[int, tuple[int, int]] = {}
        self._start_of: dict[int, int] = {}
        self._by_age: list[tuple[int, int]] = []
        if start < end:
            self.give(start, end, _EVER)

    def give(self, start: int, end: int, since: int) -> None:
        """Add a free piece."""
        self._pieces[start] = end, since
        self._start_of[end] = start
        heappush(self._by_age, (since, start))

    def take(self, size: int) -> int | None:
        """Take the piece that has been free for longest, with neighbours if it is too small; None if none suffices."""
        passed, offset = [], None
        while self._by_age and offset is None:
            since, start = heappop(self._by_age)
            if self._pieces.get(start, (0, None))[1] == since:
                offset = self._take_around(start, size)
                if offset is None:
                    passed.append((since, start))
        for piece in passed:
            heappush(self._by_age, piece)
        return offset

    def _take_around(self, low: int, size: int) -> int | None:
        """Grow a piece by the neighbour that has been free for longer until it suffices, and cut off the rest."""
        high, since = self._pieces[low]
        is_left, grown = False, [low]
        while high - low < size:
            left, right = self._start_of.get(low), self._pieces.get(high)
            if left is None and right is None:
                return None
            is_left = right is None or (left is not None and self._pieces[left][1] <= right[1])
            if is_left and left is not None:
                low, since = left, self._pieces[left][1]
                grown.append(left)
            elif right is not None:
                grown.append(high)
                high, since = right
        for start in grown:
            del self._start_of[self._pieces.pop(start)[0]]
        rest = high - low - size
        if rest:
            self.give(*((low, low + rest) if is_left else (high - rest, high)), since)
        return low + rest if is_left else low
