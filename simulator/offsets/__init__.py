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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.graph import Graph
from simulator.offsets.packing import Tenancy, live_bytes, span, tight
from simulator.offsets.resting import spread
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
    steps, tenancies = _tenancies(graph, plan, tier)
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
    """Say how much a fixed plan holds in a tier in issue order, before its first step and at each one [B].

    Parameters
    ----------
    graph, plan, tier
        As for `offsets`; any tier.
    """
    steps, tenancies = _tenancies(graph, plan, tier)
    return live_bytes(tenancies, steps)


def _tenancies(graph: Graph, plan: Plan, tier: int) -> tuple[int, tuple[Tenancy, ...]]:
    """How many steps a lap has, and all stays of one, by the step that frees them."""
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
    """For each tenancy the last ones before it on its range, in issue order over two laps."""
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
