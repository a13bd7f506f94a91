"""The augmented graph: cache operators inserted where they suit memory best, placed by the clock and the room.

*Inserted*, each is at the point that is best for memory: a copy out right after the last use, a copy in right before
the next.

*Placed*, each is where the clock of the ops and live bytes allow. The cost of a position is
``max(0, C_trans - C_overlap) + alpha * residency`` (Algorithm 1 of HyperOffload): the time by which the copy outlasts
the compute that it overlaps, and the share of the budget that it holds times how long it holds it before its use.
Moving a copy earlier lowers the cost by 1 ns per ns until it is hidden, and raises it slowly from there on. So the
cheapest position is that kink, or the earliest feasible one if the kink lies before it.

A free channel serves the store whose room is freed first: behind its writer, but perhaps before its last reader has
run. Copies in come *just in time*, at that kink: each ends before its use and before the next copy of its channel
begins, so that copies which would overlap are staggered. Or they come *early*, as soon as there is room for them until
their use, the next use first. Room is what live bytes leave as issued: in the run a copy waits for earlier stores.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import heappop, heappush, heapreplace
from itertools import pairwise
from operator import add
from typing import NamedTuple

from simulator.plan import FREE, NOWHERE, Plan
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import PricedIdle
from simulator.policies.static.cache_ops import DETACH, PREFETCH, STORE, CacheOp, Role, issue_order
from simulator.policies.static.room import PlannedRoom, assign_tiers
from simulator.policies.static.select import Selection
from simulator.policies.writer import Move, Writer, write

_ALPHA = 0.1
"""Cost of residency in Algorithm 1: ns of stall that are as bad as holding the whole budget for a ns. It explains a
position and chooses none, so that its value moves no plan."""

_FOREVER = 2**62
"""End of the time in which an unused channel is free [ns]."""


class Edge(NamedTuple):
    """A dependency between two nodes, by name; `wraps` if it leads into the next step."""

    source: str
    target: str
    wraps: bool = False


@dataclass(frozen=True)
class Augmented:
    """A graph augmented with cache operators.

    Attributes
    ----------
    selection
        Selection of the idle intervals that are spent away.
    homes
        Tensor -> tier, where the planner chose a home away from the compute tier.
    cache_ops
        The cache operators in the order of their issue.
    """

    selection: Selection
    homes: Mapping[int, int]
    intervals: tuple[PricedIdle, ...]
    cache_ops: tuple[CacheOp, ...]

    @property
    def problem(self) -> Problem:
        """Problem that it was compiled for."""
        return self.selection.analysis.problem

    @cached_property
    def plan(self) -> Plan:
        """The plan; the writer frees dead tensors and brings persistent ones home.

        Raises
        ------
        CapacityError
            If a tier holds more than its capacity in issue order.
        """
        last_exit = {c.tensor: index for index, c in enumerate(self.cache_ops) if c.role is not PREFETCH}
        free, moves = partial(Writer.detach, tier=self.problem.compute_tier), list[Move]()
        for index, cache_op in enumerate(self.cache_ops):
            leaves_again = last_exit.get(cache_op.tensor, NOWHERE) > index
            do: Callable[[Writer, int], None] = Writer.fetch if leaves_again else Writer.recall
            if cache_op.role is not PREFETCH:
                do = partial(Writer.back_up, tier=cache_op.target) if cache_op.role is STORE else free
            moves.append(Move(cache_op.position, do, cache_op.tensor))
        return write(self.problem, "static", moves, (self.selection.note,), self.homes)

    def moved(self, changed: Mapping[CacheOp, CacheOp]) -> Augmented:
        """Return the same graph with some cache operators replaced.

        Parameters
        ----------
        changed
            Old -> new.
        """
        new = sorted((changed.get(cache_op, cache_op) for cache_op in self.cache_ops), key=issue_order)
        return replace(self, cache_ops=tuple(new))

    @cached_property
    def chains(self) -> tuple[dict[Role, CacheOp], ...]:
        """Trip -> role -> cache operator."""
        chains: tuple[dict[Role, CacheOp], ...] = tuple({} for _ in self.intervals)
        for cache_op in self.cache_ops:
            chains[cache_op.trip][cache_op.role] = cache_op
        return chains

    def name(self, cache_op: CacheOp) -> str:
        """Name a cache operator: ``store L00/ctx #3``."""
        return f"{cache_op.role} {self.problem.graph.tensors[cache_op.tensor].name} #{cache_op.trip}"

    def point(self, position: int) -> str:
        """Name a program point."""
        ops = self.problem.graph.ops
        return f"before {ops[position].name}" if position < len(ops) else "at the end of the step"

    def edges(self) -> Iterator[Edge]:
        """Yield the dependencies of the cache operators, trip by trip."""
        ops = self.problem.graph.ops
        for chain in self.chains:
            order = [chain[role] for role in Role if role in chain]
            for cache_op in order:
                if cache_op.after >= 0:
                    yield Edge(ops[cache_op.after].name, self.name(cache_op))
                if 0 <= cache_op.before < len(ops):
                    yield Edge(self.name(cache_op), ops[cache_op.before].name)
            for cache_op, other in pairwise(order):
                yield Edge(self.name(cache_op), self.name(other), wraps=other.position < cache_op.position)


def insert(selection: Selection) -> Augmented:
    """Augment the graph with the cache operators of the selected idle intervals.

    Parameters
    ----------
    selection
        Selection of the idle intervals that are spent away.
    """
    analysis, problem = selection.analysis, selection.analysis.problem
    intervals = assign_tiers(problem, selection.intervals)
    homes = {idle.tensor: idle.away for idle in intervals if idle.wraps and problem.homes[idle.tensor] == FREE}
    below = PlannedRoom(problem, intervals)
    homes.update((tensor, below.settle(problem.sizes[tensor])) for tensor in analysis.idle_homes)
    homed = ((t, homes.get(t, home)) for t, home in enumerate(problem.homes) if t in problem.lifetimes.inputs)
    stored = {tensor: NOWHERE for tensor, home in homed if home not in (FREE, problem.compute_tier)}
    ops, cache_ops = problem.graph.ops, list[CacheOp]()
    barriers = [*(i for i, op in enumerate(ops) if op.barrier), len(ops)]
    for trip, idle in enumerate(intervals):
        wall = barriers[bisect_left(barriers, idle.after + 1)]  # the next barrier: no operator moves across it
        cache_ops += _cache_ops(problem, idle, trip, wall, stored)
    cache_ops.sort(key=issue_order)
    return Augmented(selection, homes, intervals, tuple(cache_ops))


def _cache_ops(problem: Problem, idle: PricedIdle, trip: int, wall: int, stored: dict[int, int]) -> list[CacheOp]:
    """Make the cache operators of an interval; `stored`: tensor -> writer of the copy valid away, or `NOWHERE`."""
    tensor, tier, point, ops, cache_ops = idle.tensor, problem.compute_tier, idle.after + 1, len(problem.graph.ops), []
    leaves = not idle.wraps or problem.graph.tensors[tensor].persistent
    last = min(wall, ops if idle.wraps else idle.before)
    writes = problem.lifetimes.writes[tensor]
    written = bisect_right(writes, idle.after)
    writer = writes[written - 1] if written else NOWHERE
    is_needed = idle.wraps or idle.returns or idle.before == ops
    if leaves and is_needed and (tensor not in stored or stored[tensor] != writer):
        stored[tensor] = writer
        first = max(writer + 1, problem.fences[min(point, ops)])
        where = (tensor, tier, idle.away, idle.size_bytes, problem.copy_ns(tensor, tier, idle.away))
        cache_ops.append(CacheOp(STORE, trip, *where, writer, NOWHERE, first, last, writer, point))
    if leaves:
        where = (tensor, tier, NOWHERE, idle.size_bytes, 0)
        cache_ops.append(CacheOp(DETACH, trip, *where, idle.after, NOWHERE, point, last, idle.after, point))
    if idle.returns:
        first = max(0 if idle.wraps else point, problem.fences[idle.before])
        where = (tensor, idle.away, tier, idle.size_bytes, idle.in_ns)
        cache_ops.append(CacheOp(PREFETCH, trip, *where, NOWHERE, idle.before, first, *(idle.before,) * 3))
    return cache_ops


def place(augmented: Augmented, *, eager: bool) -> Augmented:
    """Choose where each cache operator is issued, and note what each copy in costs there.

    Parameters
    ----------
    augmented
        The graph with its cache operators.
    eager
        Whether copies in come as early as there is room, instead of just in time.
    """
    problem, selection = augmented.problem, augmented.selection
    starts, below = problem.clock, PlannedRoom(problem, augmented.intervals)
    is_early = problem.switches.copies_wait_for == "start"
    gates = (0, *(starts[:-1] if is_early else map(add, starts, problem.durations_ns)))  # where a copy may start
    placed: dict[CacheOp, CacheOp] = {}
    for cache_op, begin_ns in _stores_in_turn(problem, augmented):
        wanted = min(max(cache_op.first, bisect_right(gates, begin_ns) - 1), cache_op.position)
        point = below.earliest(cache_op, wanted, cache_op.position)
        below.move(cache_op, point)
        placed[cache_op] = cache_op._replace(position=point)
    live, points = Profile(selection.live_bytes), dict[CacheOp, int]()
    last_points, free_until = Counter[int](), dict[int, list[int]]()
    prefetches = (cache_op for cache_op in augmented.cache_ops if cache_op.role is PREFETCH)
    for cache_op in sorted(prefetches, key=lambda cache_op: (cache_op.turn, cache_op.tensor), reverse=not eager):
        hop = _compute_hop(problem, cache_op)
        queue = problem.queues[hop]
        # Until when each channel is free, laid out backwards; negative, so that the heap finds the latest.
        channels = free_until.setdefault(queue, [-_FOREVER] * problem.links[hop].servers)
        begin_ns = min(starts[cache_op.before], -channels[0]) - cache_op.alone_ns
        wanted = last_points[queue] if eager else bisect_right(gates, begin_ns) - 1
        wanted = min(max(wanted, cache_op.first), cache_op.before)
        point = points[cache_op] = live.put(wanted, cache_op.before, cache_op.size_bytes, problem.budget_bytes)
        last_points[queue] = point
        heapreplace(channels, -max(begin_ns, gates[point]))
        below.move(cache_op, point)
    for cache_op, wanted in points.items():
        point = below.earliest(cache_op, wanted, cache_op.before)
        lead_ns = max(0, starts[cache_op.before] - gates[point])
        residency_ns = round(_ALPHA * lead_ns * cache_op.size_bytes / problem.budget_bytes)
        stall_ns = max(0, cache_op.alone_ns - lead_ns)
        placed[cache_op] = cache_op._replace(position=point, stall_ns=stall_ns, residency_ns=residency_ns)
    return augmented.moved(placed)


def _compute_hop(problem: Problem, cache_op: CacheOp) -> tuple[int, int]:
    """Return the hop from or to the compute tier that a copy takes."""
    path = problem.path(cache_op.source, cache_op.target)
    return (path[-2], path[-1]) if cache_op.role is PREFETCH else (path[0], path[1])


def _stores_in_turn(problem: Problem, augmented: Augmented) -> Iterator[tuple[CacheOp, int]]:
    """Yield the stores in the order in which each channel serves them, and when each begins [ns]."""
    by_channel: dict[int, list[CacheOp]] = {}
    for store in augmented.cache_ops:
        if store.role is STORE:
            by_channel.setdefault(problem.queues[_compute_hop(problem, store)], []).append(store)
    ends = [*map(add, problem.clock, problem.durations_ns)]
    for stores in by_channel.values():
        written = {store: ends[store.after] if store.after >= 0 else problem.clock[store.first] for store in stores}
        arrivals = sorted(stores, key=lambda store: (store.first, store.last, store.tensor), reverse=True)
        ready: list[tuple[int, int, int, CacheOp]] = []
        free_ns = [0] * problem.links[_compute_hop(problem, stores[0])].servers  # by channel
        while arrivals or ready:
            while arrivals and (not ready or written[arrivals[-1]] <= free_ns[0]):
                store = arrivals.pop()
                heappush(ready, (store.position, store.tensor, store.trip, store))
            store = heappop(ready)[-1]
            begin_ns = max(free_ns[0], written[store])
            heapreplace(free_ns, begin_ns + problem.copy_ns(store.tensor, *_compute_hop(problem, store)))
            yield store, begin_ns
