"""Cache operators: inserted where they suit memory best, placed by the clock and the room, and written as a plan.

*Inserted*, each is at the point that is best for memory: a copy out right after the last use, a copy in right before
the next.

*Placed*, it is where the clock of the ops and live bytes allow. The cost of a position is
``max(0, C_trans - C_overlap) + alpha * residency`` (Algorithm 1 of HyperOffload): what the
copy lasts beyond the compute time that it overlaps, and the share of the budget that it holds, over the time it holds
it before its use. Moving a copy earlier lowers the cost by 1 ns per ns until it is hidden, and from there on raises it
slowly. So the cheapest position is that kink, or the earliest feasible one if the kink lies before it.

A channel that is free takes the store whose room is given up first, also before its last reader has run, but behind its
writer. Copies in come *just in time*, at that kink: each ends before its use and before the next copy of its channel
begins, so that what would overlap is staggered. Or they come *early*, as soon as there is room for them until their
use, the next use first. Room is what live bytes leave as issued: in the run a copy waits for the stores before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush, heapreplace
from operator import add

from simulator.plan import FREE, NOWHERE, Plan
from simulator.policies import writer
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, PricedIdle
from simulator.policies.static.augmented import DETACH, PREFETCH, STORE, Augmented, CacheOp, issue_order
from simulator.policies.static.room import assign, held
from simulator.policies.static.select import Selection
from simulator.policies.writer import Writer

ALPHA = 0.1
"""What residency costs in Algorithm 1: ns of stall that are as bad as holding the whole budget for a ns. It explains a
position and chooses none, so that its value moves no plan."""

FOREVER = 2**62
"""Until when a channel is free that was given no copy yet [ns]."""


def insert(problem: Problem, analysis: Analysis, selection: Selection) -> Augmented:
    """Add the cache operators of the chosen idle intervals to the graph.

    Parameters
    ----------
    problem
        What the plan is for.
    analysis, selection
        What leaves.
    """
    intervals = assign(problem, selection.intervals)
    homes = {idle.tensor: idle.away for idle in intervals if idle.wraps and problem.homes[idle.tensor] == FREE}
    below = held(problem, intervals)
    homes.update((tensor, below.settle(problem.sizes[tensor])) for tensor in analysis.idle_homes)
    homed = ((t, homes.get(t, home)) for t, home in enumerate(problem.homes) if t in problem.lifetimes.inputs)
    stored = {tensor: NOWHERE for tensor, home in homed if home not in (FREE, problem.compute_tier)}
    walls, nodes = _walls(problem), list[CacheOp]()
    for trip, idle in enumerate(intervals):
        nodes += _cache_ops(problem, idle, trip, walls[idle.after + 1], stored)
    nodes.sort(key=issue_order)
    return Augmented(problem, homes, intervals, tuple(nodes))


def _cache_ops(problem: Problem, idle: PricedIdle, trip: int, wall: int, stored: dict[int, int]) -> list[CacheOp]:
    """The cache operators of an interval; `stored` has by tensor the op that wrote what is valid away, or `NOWHERE`."""
    tensor, here, point, ops, nodes = idle.tensor, problem.compute_tier, idle.after + 1, len(problem.graph.ops), []
    leaves = not idle.wraps or problem.graph.tensors[tensor].persistent
    last = min(wall, ops if idle.wraps else idle.before)
    writes = problem.lifetimes.writes[tensor]
    written = bisect_right(writes, idle.after)
    writer = writes[written - 1] if written else NOWHERE
    is_needed = idle.wraps or idle.returns or idle.before == ops
    if leaves and is_needed and (tensor not in stored or stored[tensor] != writer):
        stored[tensor] = writer
        first = max(writer + 1, problem.fences[min(point, ops)])
        where = (tensor, here, idle.away, idle.size_bytes, problem.copy_ns(tensor, here, idle.away))
        nodes.append(CacheOp(STORE, trip, *where, writer, NOWHERE, first, last, point))
    if leaves:
        where = (tensor, here, NOWHERE, idle.size_bytes, 0)
        nodes.append(CacheOp(DETACH, trip, *where, idle.after, NOWHERE, point, last, point))
    if idle.returns:
        first = max(0 if idle.wraps else point, problem.fences[idle.before])
        where = (tensor, idle.away, here, idle.size_bytes, idle.in_ns)
        nodes.append(CacheOp(PREFETCH, trip, *where, NOWHERE, idle.before, first, idle.before, idle.before))
    return nodes


def _walls(problem: Problem) -> list[int]:
    """For each program point, the last one that a cache operator can move to from there without crossing a barrier."""
    ops = problem.graph.ops
    walls = [len(ops)] * (len(ops) + 1)
    for point in range(len(ops) - 1, -1, -1):
        walls[point] = point if ops[point].barrier else walls[point + 1]
    return walls


def place(problem: Problem, selection: Selection, augmented: Augmented, *, eager: bool) -> Augmented:
    """Choose where each cache operator is issued, and note the cost of a copy in there.

    Parameters
    ----------
    problem
        What the plan is for.
    selection
        What leaves, with the live bytes that stay.
    augmented
        The graph with its cache operators.
    eager
        Whether copies in come as early as there is room, instead of just in time.
    """
    starts, gates, below = problem.clock, _gates(problem), held(problem, augmented.intervals)
    placed: dict[CacheOp, CacheOp] = {}
    for one, begin_ns in _served(problem, augmented):
        wanted = min(max(one.first, bisect_right(gates, begin_ns) - 1), one.position)
        point = below.earliest(one, wanted, one.position)
        below.move(one, point)
        placed[one] = one._replace(position=point)
    live, points = Profile(selection.live_bytes), dict[CacheOp, int]()
    last_points, free_until = Counter[int](), dict[int, list[int]]()
    prefetches = (one for one in augmented.cache_ops if one.role is PREFETCH)
    for one in sorted(prefetches, key=lambda one: (one.before, one.tensor), reverse=not eager):
        hop = _hop(problem, one)
        queue = problem.queues[hop]
        # Until when each channel is free, laid out backwards; negative, so that the heap finds the latest.
        channels = free_until.setdefault(queue, [-FOREVER] * problem.links[hop].servers)
        begin_ns = min(starts[one.before], -channels[0]) - one.alone_ns
        wanted = last_points[queue] if eager else bisect_right(gates, begin_ns) - 1
        wanted = min(max(wanted, one.first), one.before)
        point = points[one] = live.put(wanted, one.before, one.size_bytes, problem.budget_bytes)
        last_points[queue] = point
        heapreplace(channels, -max(begin_ns, gates[point]))
        below.move(one, point)
    for one, wanted in points.items():
        point = below.earliest(one, wanted, one.before)
        lead_ns = max(0, starts[one.before] - gates[point])
        residency_ns = round(ALPHA * lead_ns * one.size_bytes / problem.budget_bytes)
        stall_ns = max(0, one.alone_ns - lead_ns)
        placed[one] = one._replace(position=point, stall_ns=stall_ns, residency_ns=residency_ns)
    return augmented.moved(placed)


def _gates(problem: Problem) -> tuple[int, ...]:
    """For each program point, the earliest start of a copy that is issued there [ns]."""
    starts = problem.clock
    if problem.switches.copies_wait_for == "start":
        return (0, *starts[:-1])
    return (0, *map(add, starts, problem.durations_ns))


def _hop(problem: Problem, one: CacheOp) -> tuple[int, int]:
    """The link from or to the compute tier that a copy takes."""
    path = problem.path(one.source, one.target)
    return (path[-2], path[-1]) if one.role is PREFETCH else (path[0], path[1])


def _served(problem: Problem, augmented: Augmented) -> Iterator[tuple[CacheOp, int]]:
    """Yield the stores in the order in which each channel serves them, and when each begins [ns]."""
    by_channel: dict[int, list[CacheOp]] = {}
    for one in augmented.cache_ops:
        if one.role is STORE:
            by_channel.setdefault(problem.queues[_hop(problem, one)], []).append(one)
    ends = [*map(add, problem.clock, problem.durations_ns)]
    for stores in by_channel.values():
        written = {one: ends[one.after] if one.after >= 0 else problem.clock[one.first] for one in stores}
        arrivals = sorted(stores, key=lambda one: (one.first, one.last, one.tensor), reverse=True)
        ready: list[tuple[int, int, int, CacheOp]] = []
        servers = [0] * problem.links[_hop(problem, stores[0])].servers
        while arrivals or ready:
            while arrivals and (not ready or written[arrivals[-1]] <= servers[0]):
                one = arrivals.pop()
                heappush(ready, (one.position, one.tensor, one.trip, one))
            one = heappop(ready)[-1]
            begin_ns = max(servers[0], written[one])
            heapreplace(servers, begin_ns + problem.copy_ns(one.tensor, *_hop(problem, one)))
            yield one, begin_ns


def write(problem: Problem, augmented: Augmented, notes: tuple[str, ...] = ()) -> Plan:
    """Write the plan; the writer frees dead tensors and brings persistent ones home.

    Parameters
    ----------
    problem
        What the plan is for.
    augmented
        Ops and cache operators.
    notes
        What the plan says about itself.

    Raises
    ------
    CapacityError
        If a tier holds more than its capacity in issue order.
    """
    leaves = {one.tensor: number for number, one in enumerate(augmented.cache_ops) if one.role is not PREFETCH}
    free, moves = partial(Writer.detach, tier=problem.compute_tier), list[writer.Move]()
    for number, one in enumerate(augmented.cache_ops):
        leaves_again = leaves.get(one.tensor, NOWHERE) > number
        do: Callable[[Writer, int], None] = Writer.fetch if leaves_again else Writer.recall
        if one.role is not PREFETCH:
            do = partial(Writer.back_up, tier=one.target) if one.role is STORE else free
        moves.append(writer.Move(one.position, do, one.tensor))
    return writer.write(problem, "static", moves, notes, augmented.homes)
