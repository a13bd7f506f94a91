"""What the runtime looks up, laid out once by op and by tensor."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate

import numpy as np

from simulator.bounds import full
from simulator.errors import CapacityError, Shortfall
from simulator.lifetime import NEVER, live_bytes
from simulator.plan import COMPUTE, FREE
from simulator.policies.late import LateOps
from simulator.policies.problem import Problem

_MANY = 16
"""From so many tensors on, looking into a set is quicker."""


class Tables:
    """Flat lists for the runtime's loop, and the check that it can run at all.

    Attributes
    ----------
    reads, writes, moves
        By op: tensors that may move and are read, written, or either.
    kept
        By op: the last in a form that is quick to look into.
    made
        By op: those that are written and not read.
    held_bytes, born_bytes
        By op: room it takes for pinned tensors that it makes, and that plus its workspace [B].
    computes
        By op: the code of its ``Compute``.
    homes
        By tensor: its tier at time 0.
    busy
        By op: whether it takes room, writes something that may move, or is the last to use a tensor.
    untouched
        Pinned tensors that persist.
    late
        Ops with late reads, if these are handled at run time: then `reads` and `moves` have none of their candidates.
    persistent, residents, guests
        Persistent tensors that may move; those of them with their home in the compute tier, and with another.
    staying
        Residents in a form that is quick to look into.
    outputs
        Outputs that are not persistent.

    Raises
    ------
    CapacityError
        If some op cannot run within the budget whatever is evicted.
    """

    def __init__(self, problem: Problem, late: LateOps | None = None) -> None:
        self.problem, self.late = problem, late
        graph, lifetimes, sizes = problem.graph, problem.lifetimes, problem.sizes
        self.pinned = pinned = [problem.pinned(t) for t in range(len(sizes))]
        persistent = {t for t, about in enumerate(graph.tensors) if about.persistent}
        self.untouched = frozenset(t for t in persistent if pinned[t])
        ops = graph.ops if late is None else graph.certain.ops
        self.reads = [tuple(t for t in op.reads if not pinned[t]) for op in ops]
        self.writes = [tuple(t for t in op.writes if not pinned[t]) for op in graph.ops]
        self.moves = [tuple(dict.fromkeys((*r, *w))) for r, w in zip(self.reads, self.writes, strict=True)]
        self.kept = [m if len(m) < _MANY else frozenset(m) for m in self.moves]
        self.made = [m[len({*r}) :] for m, r in zip(self.moves, self.reads, strict=True)]
        self.computes = [(COMPUTE, op, stream, 0) for op, stream in enumerate(problem.streams)]
        self.held_bytes = [0] * len(graph.ops)
        for t, first in enumerate(lifetimes.first_write):
            if pinned[t] and first != NEVER and not problem.starts_with[t]:
                self.held_bytes[first] += sizes[t]
        self.born_bytes = [h + op.workspace_bytes for h, op in zip(self.held_bytes, graph.ops, strict=True)]
        self.persistent = sorted(persistent - self.untouched)
        self.busy = [
            bool(born or writes or dead)
            for born, writes, dead in zip(self.born_bytes, self.writes, problem.lifetimes.dead_after, strict=True)
        ]
        self.outputs = [t for t in graph.outputs if not graph.tensors[t].persistent]
        all_here = all(home in (FREE, problem.compute_tier) for home in problem.homes)
        self.nothing_moves = all_here and int(live_bytes(graph, lifetimes).max()) <= problem.budget_bytes
        self.homes = problem.resolved_homes() if self.nothing_moves else self._choose_homes()
        self.residents = [t for t in self.persistent if self.homes[t] == problem.compute_tier]
        self.staying = frozenset(self.residents)
        self.guests = [t for t in self.persistent if self.homes[t] != problem.compute_tier]

    @property
    def only_late_moves(self) -> bool:
        """Whether all has room in the compute tier but what is read late, beside what of that is read at once."""
        problem = self.problem
        if self.late is None:
            return False
        away = sum(problem.sizes[t] for t in self.late.candidates)
        home = {problem.homes[t] for t in self.persistent if t not in self.late.candidates}
        live = live_bytes(problem.graph, problem.lifetimes) - away + np.array(self.late.awaited_bytes)
        return home <= {FREE, problem.compute_tier} and int(live.max()) <= problem.budget_bytes

    def _choose_homes(self) -> tuple[int, ...]:
        """By first use: the compute tier as far as all ops still run, then the nearest tier that has room.

        What is read late comes last, the likeliest first.
        """
        problem, here = self.problem, self.problem.compute_tier
        left = {here: problem.budget_bytes - self.demand_bytes, **problem.left_away}
        free, homes = [t for t in self.persistent if problem.homes[t] == FREE], {}
        first_use = problem.lifetimes.first_use
        share = {} if self.late is None else {t: self.late.shares.get(t, 0.0) for t in self.late.candidates}
        for tensor in sorted(free, key=lambda t: (-share.get(t, 2.0), first_use[t] == NEVER, first_use[t], t)):
            size = problem.sizes[tensor]
            homes[tensor] = home = next((tier for tier in left if size <= left[tier]), problem.neighbours[-1])
            left[home] -= size
        return problem.resolved_homes(homes)

    @cached_property
    def hottest(self) -> frozenset[int]:
        """Candidates that may stay for good: those that live in the compute tier, and the likeliest that fit beside."""
        if self.late is None:
            return frozenset()
        spare = self.problem.budget_bytes - self.demand_bytes - sum(self.problem.sizes[t] for t in self.residents)
        live = self.late.candidates & self.staying
        return live | self.late.hottest(spare, self.late.candidates - live)

    def coming(self, ahead: int) -> list[range]:
        """By op: the ops that come into view of a runtime that looks so far ahead, but not past a barrier."""
        ops, fences = len(self.moves), self.problem.fences
        found, seen = [], 0
        for op in range(ops):
            behind = min(op + ahead + 1, bisect_right(fences, op, 0, ops))
            seen = max(seen, op + 1)
            found.append(range(seen, behind))
            seen = max(seen, behind)
        return found

    @cached_property
    def demand_bytes(self) -> int:
        """The most that any op needs with all else evicted [B]."""
        demand = self._demand_by_op()
        most = max(demand, default=0)
        if most > self.problem.budget_bytes:
            raise CapacityError(self._shortfall(demand, demand.index(most)))
        return most

    def _demand_by_op(self) -> list[int]:
        """What each op needs with all else evicted [B]."""
        problem, sizes, lifetimes = self.problem, self.problem.sizes, self.problem.lifetimes
        change = [0] * (len(self.moves) + 1)
        for tensor, pinned in enumerate(self.pinned):
            if pinned and lifetimes.born[tensor] != NEVER:
                change[lifetimes.born[tensor]] += sizes[tensor]
                change[lifetimes.dies[tensor] + 1] -= sizes[tensor]
        found = []
        for op, (moves, held) in enumerate(zip(self.moves, accumulate(change), strict=False)):
            awaited = 0 if self.late is None else self.late.awaited_bytes[op]
            found.append(held + problem.graph.ops[op].workspace_bytes + sum(sizes[t] for t in moves) + awaited)
        return found

    def _shortfall(self, demand: list[int], op: int) -> Shortfall:
        problem, lifetimes = self.problem, self.problem.lifetimes
        tensors = problem.graph.tensors
        staying = {t: lifetimes.born[t] for t, pinned in enumerate(self.pinned) if pinned and lifetimes.dies[t] >= op}
        held = set(self.moves[op])
        held.update(t for t, born in staying.items() if born <= op)
        stay = any(tensors[t].persistent and self.pinned[t] for t in held) and problem.neighbours
        largest = sorted(held, key=lambda t: (-tensors[t].size_bytes, t))[:5]
        return Shortfall(
            tier=problem.tiers[problem.compute_tier],
            demand_bytes=demand[op],
            capacity_bytes=int(problem.budget_bytes),
            at=f"op {problem.graph.ops[op].name!r}",
            largest=tuple((tensors[t].name, tensors[t].size_bytes) for t in largest),
            levers=(
                *(["homes that are left free would pin less"] if stay else []),
                "a smaller batch or a shorter sequence needs less",
            ),
            full=full(problem.graph, lifetimes, demand, problem.budget_bytes, op, staying),
        )
