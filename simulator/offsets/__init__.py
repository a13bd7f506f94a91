"""Offsets chosen before the run: where each place of the compute tier lies, from the order in which a plan issues.

A *tenancy* is one stay of a tensor in the tier, or the workspace of a compute: from the step that takes its room to
the detach that frees it. Tenancies that overlap in issue order get ranges that do not. A plan that is repeated takes
the same ranges in each lap, so that a tensor which is at home in the tier, leaves it and comes back has its old one.

To give the least span is the problem of dynamic storage allocation, which is hard; several orders are tried
(`tight`), as MindSpore's SOMAS tries several heuristics (mindspore.cn, docs, features/runtime/memory_manager). None can
be below the most that is live at once.

*Resting.* A place whose range was freed a moment ago in issue order waits for the copy that frees it, although there
may be room elsewhere. So where there is room each gets the range that has been free for longest (`spread`). Found in
issue order, such a layout would be in pieces when the most is live; it is found outward from there instead: what is
live then lies without a hole, and from there on there is ever more room, later as well as, with time reversed, before.
Reversed, the range that has been free for longest is that whose next place comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, chain

import numpy as np

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, Plan
from simulator.trace import Ints

_EVER = -1 << 62

Event = tuple[int, bool, int]
"""When, whether it leaves, and which tenancy."""

_STREAM_SHIFT = 40


def workspace(op: int, stream: int) -> int:
    """Name the workspace of an op that runs on a stream: an op may run on two at once."""
    return -1 - op - (stream << _STREAM_SHIFT)


def without_stream(item: int) -> int:
    """Name an item as the trace does: a tensor, or the workspace of an op (``-1 - op``)."""
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

    @property
    def is_at_home(self) -> bool:
        """Whether it is there when a lap begins."""
        return self.taken < 0 or self.taken > self.freed

    def stays(self, steps: int) -> tuple[tuple[int, int], ...]:
        """First and last step of each stay, both included: one, or two if it is away in between."""
        if self.taken > self.freed:
            return (-1, self.freed), (self.taken, steps)
        return ((self.taken, self.freed),)

    def length(self, steps: int) -> int:
        """For how many steps it is there."""
        return sum(end - start for start, end in self.stays(steps))


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


def offsets(graph: Graph, plan: Plan, tier: int, capacity: int | None = None) -> Offsets:
    """Choose offsets for all that a fixed plan ever places in a tier.

    Parameters
    ----------
    graph, plan
        What runs, and a fixed plan for it.
    tier
        Id of the compute tier.
    capacity
        What they may span, if they can [B]; None: as little as they can.
    """
    steps, tenancies = tenancies_of(graph, plan, tier)
    live = max(live_bytes(tenancies, steps))
    room = live if capacity is None else int(capacity)
    chosen = spread(tenancies, steps, room) or tight(tenancies, steps, room)
    of_item: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    at_home = {one.item: number for number, one in enumerate(tenancies) if one.is_at_home}
    for number in sorted(range(len(tenancies)), key=lambda number: tenancies[number].taken):
        if tenancies[number].taken >= 0:
            of_item[tenancies[number].item] += (number,)
    before = _before(tenancies, chosen)
    return Offsets(tenancies, tuple(chosen), span(tenancies, chosen), live, dict(of_item), at_home, before)


def issued_bytes(graph: Graph, plan: Plan, tier: int) -> list[int]:
    """What a fixed plan holds in a tier in issue order, before its first action and at each one [B].

    Parameters
    ----------
    graph, plan, tier
        As for `offsets`; any tier.
    """
    steps, tenancies = tenancies_of(graph, plan, tier)
    return live_bytes(tenancies, steps)


def tenancies_of(graph: Graph, plan: Plan, tier: int) -> tuple[int, tuple[Tenancy, ...]]:
    """The number of steps of a lap, and its tenancies in the order of the steps that free them.

    Parameters
    ----------
    graph, plan, tier
        As for `offsets`; any tier.
    """
    sizes, found = [tensor.size_bytes for tensor in graph.tensors], []
    taken_at = {tensor: -1 for tensor, home in enumerate(plan.home) if home == tier and sizes[tensor]}
    left: dict[int, int] = {}
    codes = () if plan.fixed is None else tuple(plan.fixed.codes())
    for at, (kind, a, b, c) in enumerate(codes):
        if kind == COMPUTE:
            op = graph.ops[a]
            for tensor in op.writes:
                if sizes[tensor]:
                    taken_at.setdefault(tensor, at)
            if op.workspace_bytes:
                found.append(Tenancy(workspace(a, b), op.workspace_bytes, at, at))
        elif kind == COPY and c == tier and sizes[a]:
            taken_at.setdefault(a, at)
        elif kind == DETACH and b == tier and a in taken_at:
            taken = taken_at.pop(a)
            if taken < 0 and graph.tensors[a].persistent:
                left[a] = at
            else:
                found.append(Tenancy(a, sizes[a], taken, at))
    found += [Tenancy(t, sizes[t], taken, left.pop(t, len(codes))) for t, taken in taken_at.items()]
    found += [Tenancy(t, sizes[t], -1, freed) for t, freed in left.items()]
    return len(codes), tuple(found)


def _before(tenancies: Sequence[Tenancy], chosen: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each tenancy, those that held its range last before it, in issue order over two laps."""
    ends = [offset + one.size_bytes for one, offset in zip(tenancies, chosen, strict=True)]
    cuts = np.unique([*chosen, *ends])
    first, last = np.searchsorted(cuts, chosen), np.searchsorted(cuts, ends)
    owners = np.full(len(cuts), -1)
    found: list[dict[int, int]] = [{} for _ in tenancies]
    at_home = [number for number, one in enumerate(tenancies) if one.is_at_home]
    taken = [number for number, one in enumerate(tenancies) if one.taken >= 0]
    taken.sort(key=lambda number: (tenancies[number].taken, number))
    for position, number in enumerate([*at_home, *taken, *taken]):
        there = owners[first[number] : last[number]]
        if position >= len(at_home):
            for other in set(there.tolist()) - {-1, number}:
                found[number][other] = int(tenancies[other].freed < tenancies[number].taken)
        there[:] = number
    return tuple(tuple(sorted(one.items())) for one in found)


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
    """Choose offsets with several orders: the first that spans no more than is enough, else the least.

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
        for number, offset in zip(moves, _packed([tenancies[n] for n in moves], steps, order), strict=True):
            offsets[number] = bottom[-1] + offset
        if not least or span(tenancies, offsets) < span(tenancies, least):
            least = offsets
        if span(tenancies, least) <= enough:
            break
    return least


def _packed(tenancies: Sequence[Tenancy], steps: int, order: Sequence[int]) -> list[int]:
    """Place tenancies one by one, each in the smallest hole that suffices between those that overlap it, or behind."""
    stays = [one.stays(steps) for one in tenancies]
    first, last = np.array([*chain.from_iterable(stays)], np.int64).reshape(-1, 2).T
    owner = np.repeat(np.arange(len(stays)), [len(own) for own in stays])
    low, high = np.zeros((2, len(stays)), np.int64)
    is_placed = np.zeros(len(owner), bool)
    for number in order:
        overlaps = np.logical_or.reduce([(first <= end) & (last >= start) for start, end in stays[number]])
        near = owner[overlaps & is_placed]
        low[number] = _hole(low[near], high[near], tenancies[number].size_bytes)
        high[number] = low[number] + tenancies[number].size_bytes
        is_placed |= owner == number
    offsets: list[int] = low.tolist()
    return offsets


def _hole(low: Ints, high: Ints, size: int) -> int:
    """The lowest of the smallest holes that suffice between ranges, or the end of the last."""
    if not len(low):
        return 0
    order = low.argsort(kind="stable")
    ends = np.maximum.accumulate(high[order])
    holes = low[order]
    holes[1:] -= ends[:-1]
    fits = (holes >= size).nonzero()[0]
    if not len(fits):
        return int(ends[-1])
    at = fits[holes[fits].argmin()]
    return int(ends[at - 1]) if at else 0


def spread(tenancies: Sequence[Tenancy], steps: int, capacity: int) -> list[int] | None:
    """Choose offsets below a capacity, each range as long unused as possible; None if one finds no range.

    Parameters
    ----------
    tenancies, steps
        What is to be placed, and the length of a lap.
    capacity
        What all may span [B].
    """
    live = live_bytes(tenancies, steps)
    peak = live.index(max(live)) - 1
    kept = [n for n, one in enumerate(tenancies) if one.taken <= peak <= one.freed or one.taken > one.freed]
    found, end = [-1] * len(tenancies), 0
    for number in sorted(kept, key=lambda number: (-tenancies[number].length(steps), number)):
        found[number] = end
        end += tenancies[number].size_bytes
    if end > capacity:
        return None
    for is_reversed in (False, True):
        free = _Free(end, capacity)
        for now, leaves, number in sorted(_events(tenancies, peak, is_reversed=is_reversed)):
            size = tenancies[number].size_bytes
            if leaves:
                free.give(found[number], found[number] + size, now)
            elif (offset := free.take(size)) is None:
                return None
            else:
                found[number] = offset
    return found


def _events(tenancies: Sequence[Tenancy], peak: int, *, is_reversed: bool) -> Iterator[Event]:
    """When tenancies come and go from the peak on; with time reversed, each comes when it is freed."""
    for number, one in enumerate(tenancies):
        begin, end, start = (-one.freed, -one.taken, -peak) if is_reversed else (one.taken, one.freed, peak)
        if begin <= end and begin > start:
            yield begin, False, number
        if begin <= end and end >= start:
            yield end, True, number


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
                offset = self._taken_around(start, size)
                if offset is None:
                    passed.append((since, start))
        for one in passed:
            heappush(self._by_age, one)
        return offset

    def _taken_around(self, low: int, size: int) -> int | None:
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
