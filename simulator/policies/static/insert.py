"""Third pass: turn chosen gaps into cache operators with windows; and from these to a plan.

Each begins at the point that is best for memory: a copy out right after the last use, a copy in right before the next.
In the plan each cache operator becomes steps at its program point.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial

from simulator.plan import FREE, NOWHERE, Plan
from simulator.policies import writer
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Analysis, Idle
from simulator.policies.static.augmented import DETACH, PREFETCH, STORE, Augmented, CacheOp, issue_order
from simulator.policies.static.room import assign, held
from simulator.policies.static.select import Selection
from simulator.policies.writer import Writer


def insert(problem: Problem, analysis: Analysis, selection: Selection) -> Augmented:
    """Add the cache operators of the chosen gaps to the graph.

    Parameters
    ----------
    problem
        What the plan is for.
    analysis, selection
        What leaves.
    """
    gaps = assign(problem, selection.gaps)
    homes = {gap.tensor: gap.away for gap in gaps if gap.wraps and problem.homes[gap.tensor] == FREE}
    below = held(problem, gaps)
    homes.update((tensor, below.settle(problem.sizes[tensor])) for tensor in analysis.idle_homes)
    inserter = _Inserter(problem, homes)
    nodes = [one for trip, gap in enumerate(gaps) for one in inserter.nodes(trip, gap)]
    nodes.sort(key=issue_order)
    return Augmented(problem, homes, gaps, tuple(nodes))


class _Inserter:
    """Makes the cache operators, gap by gap in the order of their last uses."""

    def __init__(self, problem: Problem, homes: Mapping[int, int]) -> None:
        self._problem, self._ops = problem, len(problem.graph.ops)
        self._fence = problem.fences
        self._wall = _walls(problem)
        self._stored: dict[int, int] = {}
        for tensor, home in enumerate(problem.homes):
            if problem.starts_with[tensor] and homes.get(tensor, home) not in (FREE, problem.compute_tier):
                self._stored[tensor] = NOWHERE

    def nodes(self, trip: int, gap: Idle) -> list[CacheOp]:
        """Cache operators of one gap."""
        tensor, away, point = gap.tensor, gap.away, gap.after + 1
        problem, here, size_bytes, found = self._problem, self._problem.compute_tier, gap.size_bytes, []
        leaves = not gap.wraps or problem.graph.tensors[tensor].persistent
        is_needed = gap.wraps or gap.returns or gap.before == self._ops
        last = min(self._wall[point], self._ops if gap.wraps else gap.before)
        if leaves and is_needed and self._is_dirty(gap):
            writer, alone_ns = self._last_write(gap), problem.copy_ns(tensor, here, away)
            first = max(writer + 1, self._fence[min(point, self._ops)])
            where = (tensor, here, away, size_bytes, alone_ns)
            found.append(CacheOp(STORE, trip, *where, writer, NOWHERE, first, last, point))
        if leaves:
            where = (tensor, here, NOWHERE, size_bytes, 0)
            found.append(CacheOp(DETACH, trip, *where, gap.after, NOWHERE, point, last, point))
        if gap.returns:
            first = max(0 if gap.wraps else point, self._fence[gap.before])
            where = (tensor, away, here, size_bytes, gap.in_ns)
            found.append(CacheOp(PREFETCH, trip, *where, NOWHERE, gap.before, first, gap.before, gap.before))
        return found

    def _is_dirty(self, gap: Idle) -> bool:
        """Whether no valid copy is away; notes that one is from now on."""
        version = self._last_write(gap)
        if self._stored.get(gap.tensor, NOWHERE - 1) == version:
            return False
        self._stored[gap.tensor] = version
        return True

    def _last_write(self, gap: Idle) -> int:
        """The last op before the gap that wrote the tensor, or `NOWHERE`."""
        writes = self._problem.lifetimes.writes[gap.tensor]
        after = bisect_right(writes, gap.after)
        return writes[after - 1] if after else NOWHERE


def _walls(problem: Problem) -> list[int]:
    """For each program point the last one to which a cache operator may move from there: no barrier is crossed."""
    ops = problem.graph.ops
    walls = [len(ops)] * (len(ops) + 1)
    for point in range(len(ops) - 1, -1, -1):
        walls[point] = point if ops[point].barrier else walls[point + 1]
    return walls


def write(problem: Problem, augmented: Augmented, notes: tuple[str, ...] = ()) -> Plan:
    """Write the plan; the writer adds deaths, and the way home of what lives elsewhere.

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
