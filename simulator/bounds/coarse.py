"""The grid of the relaxation, and stretches that agree in all of its points: see `relaxation`."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from simulator.bounds.idle import Idle
from simulator.bounds.needs import Need
from simulator.cost import transfer_ns
from simulator.graph import Graph
from simulator.hardware import Hardware, Link

NS_PER_S = 10**9

ONE = 1 << 40
"""A nanosecond, and a nanosecond per byte, in the whole numbers of the link rows."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of time: 0 for the start, ``2 i + 1`` and ``2 i + 2`` for start and end of checkpoint `i`, and the end.

    Attributes
    ----------
    checkpoints
        Ops, ascending.
    lengths_ns
        What the computes between each point and the next take [ns].
    """

    checkpoints: tuple[int, ...]
    lengths_ns: tuple[int, ...]

    @property
    def end(self) -> int:
        """The last point."""
        return len(self.lengths_ns)

    def by_end_of(self, op: int) -> int:
        """The last point that is not after the end of an op; of -1, the start."""
        return 2 * bisect_right(self.checkpoints, op)

    def from_start_of(self, op: int) -> int:
        """The first point that is not before the start of an op."""
        i = bisect_left(self.checkpoints, op)
        return 2 * i + 1 if i < len(self.checkpoints) else self.end

    def within(self, after: int, before: int) -> tuple[int, int]:
        """First and last point of the checkpoints between two ops; the last one comes first if there are none."""
        return 2 * bisect_right(self.checkpoints, after) + 1, 2 * bisect_left(self.checkpoints, before)


def make_grid(graph: Graph, durations_ns: Sequence[int], idle: Idle, count: int) -> Grid:
    """Of each of `count` stretches of equal compute time, the op that is shortest of room."""
    ops = len(graph.ops) - (graph.steps > 1)
    starts = list(accumulate(durations_ns, initial=0))
    demand = (idle.work + idle.all).tolist()
    best: dict[int, int] = {}
    for k in range(ops):
        bucket = k if count >= len(graph.ops) else starts[k] * count // max(1, starts[-1])
        if bucket not in best or demand[k] > demand[best[bucket]]:
            best[bucket] = k
    checkpoints = tuple(sorted(best.values()))
    before_first = durations_ns[-1] if graph.steps > 1 else 0
    ends = [(k, k + 1) for k in checkpoints]
    points = [0, *(starts[k] for pair in ends for k in pair), starts[ops]]
    lengths = [b - a for a, b in pairwise(points)]
    lengths[0] += before_first
    return Grid(checkpoints, tuple(lengths))


class Direction:
    """The links out of the compute tier, or those into it.

    Parameters
    ----------
    hardware
        The machine.
    end
        ``source`` for the links out of the compute tier, ``target`` for those into it.
    """

    def __init__(self, hardware: Hardware, end: str) -> None:
        links = {name: link for name, link in hardware.links.items() if getattr(link, end) == hardware.compute_tier}
        self.names = frozenset(links)
        buses = [
            bus.bandwidth_bytes_per_s
            for bus in hardware.buses.values()
            if self.names.issubset(hardware.passing(bus.links))
        ]
        widest = min([sum(links[name].bandwidth_bytes_per_s for name in hardware.wires(links)), *buses])
        self._least = 0 if widest in {0, math.inf} else NS_PER_S * ONE // int(widest)
        self._only: Link | None = next(iter(links.values())) if len(links) == 1 else None

    def rate(self, size_bytes: int) -> int:
        """Least time per byte of a tensor, times `ONE`, rounded down."""
        if self._only is None or self._only.channels > 1:
            return self._least
        return max(self._least, transfer_ns(size_bytes, self._only) * ONE // size_bytes)


def take_turns(hardware: Hardware) -> bool:
    """Whether the only link out of the compute tier and the only one into it share a queue with one channel."""
    names = Direction(hardware, "source").names | Direction(hardware, "target").names
    shared = any(names.issubset(queue) for queue in hardware.queues)
    return shared and len(names) == 2 and all(hardware.links[name].channels == 1 for name in names)


class Class(NamedTuple):
    """Stretches that agree in all grid points.

    Attributes
    ----------
    out_from
        Point up to which nothing has gone out; None if no copy out is due.
    first, last
        Points between which they may be absent.
    in_from, in_by
        Points up to which nothing has come in, and from which all is there; None if nothing comes in.
    always
        Whether they move in any case.
    """

    out_from: int | None
    first: int
    last: int
    in_from: int | None
    in_by: int | None
    always: bool


class Sum(NamedTuple):
    """What a class adds up to.

    Attributes
    ----------
    size_bytes
        Size [B].
    out_rate, in_rate
        Least time per byte on the links, times `ONE`.
    """

    size_bytes: int
    out_rate: int
    in_rate: int


def classes_of(found: Sequence[Need], grid: Grid, hardware: Hardware) -> list[tuple[Class, Sum]]:
    """Join stretches that agree in all grid points; what no checkpoint lies in and need not move is left out."""
    out, into = Direction(hardware, "source"), Direction(hardware, "target")
    sums: dict[Class, Sum] = {}
    for need in found:
        first, last = grid.within(need.after, need.before)
        if last < first and not need.always:
            continue
        key = Class(
            None if need.made is None else grid.by_end_of(need.made),
            first,
            last,
            grid.by_end_of(need.after) if need.is_read else None,
            grid.from_start_of(need.before) if need.is_read else None,
            need.always,
        )
        known = sums.get(key)
        rates = (out.rate(need.size_bytes), into.rate(need.size_bytes))
        if known is not None:
            rates = (min(rates[0], known.out_rate), min(rates[1], known.in_rate))
        sums[key] = Sum(need.size_bytes + (known.size_bytes if known else 0), *rates)
    return list(sums.items())


def variables_of(item: tuple[Class, Sum]) -> int:
    """About how many variables a class takes."""
    c = item[0]
    outs = 0 if c.out_from is None else c.last - c.out_from
    ins = 0 if c.in_by is None or c.in_from is None else c.in_by - c.in_from
    return max(0, outs) + ins + max(0, c.last - c.first + 1)
