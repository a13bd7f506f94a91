"""Offsets chosen before the run: where each place of the compute tier lies, from the order in which a plan issues.

A *tenancy* is one stay of a tensor in the tier, or the workspace of a compute: from the step that takes its room to
the detach that frees it. Tenancies that overlap in issue order get ranges that do not. A plan that is repeated takes
the same ranges in each lap, so that a tensor which is at home in the tier, leaves it and comes back has its old one.

Where there is room, a range rests as long as it can before it is used again (`simulator.offsets.resting`). To give the
least span is the problem of dynamic storage allocation, which is hard; where resting does not fit, several orders are
tried (`simulator.offsets.packing`), as MindSpore's SOMAS tries several heuristics (mindspore.cn, docs,
features/runtime/memory_manager). None can be below the most that is live at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.graph import Graph
from simulator.offsets.packing import tight
from simulator.offsets.resting import spread
from simulator.offsets.tenancy import Tenancy, live_bytes, span
from simulator.plan import COMPUTE, COPY, DETACH, Plan

__all__ = ["Offsets", "Tenancy", "issued_bytes", "offsets", "without_stream", "workspace"]

_STREAM_SHIFT = 40


def workspace(op: int, stream: int) -> int:
    """Name the workspace of an op that runs on a stream: an op may run on two at once."""
    return -1 - op - (stream << _STREAM_SHIFT)


def without_stream(item: int) -> int:
    """Name a tensor, or the workspace of an op (``-1 - op``), as the trace does."""
    return item if item >= 0 else -(-item & (1 << _STREAM_SHIFT) - 1)


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
    steps = 0 if plan.fixed is None else len(plan.fixed.kind)
    tenancies = tuple(_tenancies(graph, plan, tier))
    live = max(live_bytes(tenancies, steps))
    room = live if capacity is None else int(capacity)
    found = spread(tenancies, steps, room)
    if found is None:
        found = tight(tenancies, steps, room)
    of_item: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    at_home = {}
    for number, one in enumerate(tenancies):
        if one.taken < 0 or one.taken > one.freed:
            at_home[one.item] = number
    for number in sorted(range(len(tenancies)), key=lambda number: tenancies[number].taken):
        if tenancies[number].taken >= 0:
            of_item[tenancies[number].item] += (number,)
    before = _before(tenancies, found)
    return Offsets(tenancies, tuple(found), span(tenancies, found), live, dict(of_item), at_home, before)


def issued_bytes(graph: Graph, plan: Plan, tier: int) -> list[int]:
    """Say how much a fixed plan holds in a tier in issue order, before its first step and at each one [B].

    Parameters
    ----------
    graph, plan, tier
        As for `offsets`; any tier.
    """
    return live_bytes(tuple(_tenancies(graph, plan, tier)), 0 if plan.fixed is None else len(plan.fixed.kind))


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
