"""The step as a scheduling problem for CP-SAT, in whole nanoseconds and bytes; and how a solution becomes a plan.

*Base* is what the compute tier holds if nothing moves: what exists from the start, and from each op what it takes at
its start and frees at its end. Moving only ever takes tensors out of it, for one idle interval or several. Each
copy is an optional interval of the solver, the copies of a link do not overlap, and a reservoir holds what is in the
compute tier at every moment.

Every run of a plan of this kind on the engine is a solution, so no plan is faster than the best solution. A solution
may let something wait that the engine would start; the replay tells.

*Window*: one step out of several is a problem of its own, from the start of the last op of the step before to its end.
In a run of several steps the step time is the distance of the ends of the last op in the last two steps, and so of its
starts. Nothing that a step brings into the compute tier starts before the last op of the step before has (it is issued
after it), and nothing that it writes is copied out before. So a step, seen alone, begins with this op: the *lead*.

While the lead runs, the compute tier holds what the lead uses, and what is at home there. What the lead uses and is at
home elsewhere leaves once it has ended, and comes back for its next use. Copies back home need not end with the step.

What this leaves out is what the step before may still hold or copy when the window opens: outputs that leave late, and
copies out that are under way. Without it a step can only be shorter, so that *every* last step of a run is a solution.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from simulator.cost.service import transfer_ns
from simulator.graph import Op
from simulator.plan import FREE, Plan
from simulator.policies.problem import Problem
from simulator.policies.writer import Move, Writer, write

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, BoundedLinearExpression, CpSolver, IntVar, LinearExpr


class CopyInterval(NamedTuple):
    """A copy that may be made.

    Attributes
    ----------
    start, takes_ns, end
        Its start, duration and end [ns].
    """

    start: IntVar
    takes_ns: int
    end: LinearExpr
    made: BoolVarT


class IdleChoice(NamedTuple):
    """An idle interval that a tensor may spend away.

    Attributes
    ----------
    after, before
        The ops on either side; -1 is the start of the step, the number of ops its end.
    away
        Whether it is spent away.
    version
        The op that made what it holds; -1 for what is there from the start.
    out, left
        The copy out that must have been made, None if there is a copy from the start; and when its room is free [ns].
    back
        The copy in that ends it; None if nothing comes in.
    """

    tensor: int
    after: int
    before: int
    away: BoolVarT
    version: int
    out: CopyInterval | None
    left: LinearExpr
    back: CopyInterval | None


class SolverResult(NamedTuple):
    """Outcome of a search.

    Attributes
    ----------
    step_ns, plan
        The shortest step that it found [ns], from the start of the window, and its plan; the horizon and None if it
        found none.
    least_ns
        No solution is shorter [ns]; the horizon if there is none.
    is_over
        Whether the search ended by itself.
    """

    step_ns: int
    plan: Plan | None
    least_ns: int
    is_over: bool


def window(problem: Problem) -> Problem:
    """Return one step of several as a problem of its own: op 0 is the lead, all other ops move up by one."""
    graph = problem.graph
    last = graph.ops[-1]
    used = dict.fromkeys((*last.reads, *last.writes))
    stay = tuple(t for t in used if graph.tensors[t].persistent)
    lead = Op(
        f"{last.name} of the step before",
        reads=stay,
        workspace_bytes=last.workspace_bytes + sum(problem.sizes[t] for t in used if t not in stay),
        duration_ns=problem.durations_ns[-1],
        barrier=True,
    )
    seen = replace(graph, ops=(lead, *(replace(op, dynamic=None) for op in graph.ops)), steps=1)
    durations_ns = [problem.durations_ns[-1], *problem.durations_ns]
    return replace(problem, graph=seen, durations_ns=durations_ns)


class ScheduleModel:
    """The variables and constraints of one step.

    Parameters
    ----------
    problem
        Problem with all its steps; of several, the program models the window of one.
    horizon_ns, least_ns
        The longest step that is searched (if infinite: as long as all ops and copies one after another), and one that
        no step is shorter than [ns].

    Attributes
    ----------
    model, lead
        The model for the solver, and how many ops come before the first of the step: 1 in a window, else 0.
    end, starts
        The end of the step and the start of each op [ns].
    outs, idle
        The copy out of each version, by tensor and the op that makes it; and the idle intervals.
    homes
        Tensor whose home is free -> whether it lives away.
    """

    def __init__(self, problem: Problem, horizon_ns: int | float, least_ns: int = 0) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415 - an extra, and slow to import

        self._cp, self.model = cp_model, cp_model.CpModel()
        self.lead = int(problem.graph.steps > 1)
        self._given, self._problem = problem, window(problem) if self.lead else problem
        self._sizes = problem.sizes
        self._durations, self._ops = self._problem.durations_ns, len(self._problem.graph.ops)
        self._to = {t: away[0] for t in range(len(problem.sizes)) if (away := problem.away(t))}
        uses = self._problem.lifetimes.uses
        copies_ns = sum((self._copy_ns(t) + self._copy_ns(t, back=True)) * (1 + len(uses[t])) for t in self._to)
        sequential_ns = 2 * sum(self._durations) + copies_ns
        self._horizon_ns = sequential_ns if horizon_ns == math.inf else int(horizon_ns)
        # Copies back home of a window may outlast it.
        self._until_ns = self._horizon_ns + copies_ns * self.lead
        self._zero, self._always = self.model.new_constant(0), self.model.new_constant(1)
        self.end = self.model.new_int_var(least_ns, self._horizon_ns, "end")
        self.starts = [self._time() for _ in self._durations]
        self.outs: dict[tuple[int, int], CopyInterval] = {}
        self.idle: list[IdleChoice] = []
        self.homes: dict[int, BoolVarT] = {}
        self._dead: list[tuple[int, int]] = []
        self._start_bytes = 0
        self._taken_bytes = [op.workspace_bytes for op in self._problem.graph.ops]
        self._freed_bytes = list(self._taken_bytes)
        for tensor in range(len(problem.sizes)):
            self._add_tensor(tensor)
        self._add_orders()
        self._add_budget()
        self.model.minimize(self.end)

    def _copy_ns(self, tensor: int, *, back: bool = False) -> int:
        """Return the time of a copy of the tensor out, or back in [ns]."""
        p = self._problem
        compute_tier, away = p.compute_tier, self._to[tensor]
        return transfer_ns(p.sizes[tensor], p.links[(away, compute_tier) if back else (compute_tier, away)])

    def _time(self) -> IntVar:
        return self.model.new_int_var(0, self._until_ns, "")

    def _ended(self, op: int) -> LinearExpr:
        """Return the end of an op; for -1, the start of the step."""
        return self._zero if op < 0 else self.starts[op] + self._durations[op]

    def _add_tensor(self, tensor: int) -> None:
        """Add what a tensor takes and frees if it stays; if it may move, its idle intervals, also those at the ends."""
        p, size, exists = self._problem, self._problem.sizes[tensor], tensor in self._problem.lifetimes.inputs
        uses, about = p.lifetimes.uses[tensor], p.graph.tensors[tensor]
        if exists:
            self._start_bytes += size if uses or tensor not in self._to else 0
        elif uses:
            self._taken_bytes[uses[0]] += size
        if uses and tensor in p.lifetimes.dead_after[uses[-1]]:
            self._freed_bytes[uses[-1]] += size
        if not uses or tensor not in self._to:
            return
        if exists and p.homes[tensor] == FREE:
            self.homes[tensor] = self.model.new_bool_var("")
        lives_away = self.homes.get(tensor, self._always)
        begins = (-1,) if exists and uses[0] >= self.lead else ()
        for after, before in pairwise((*begins, *uses, self._ops)):
            ends = before == self._ops
            if after < self.lead or (ends and about.persistent):
                self._add_idle(tensor, after, before, lives_away)
            elif not size or before == after + 1:
                continue
            elif tensor in p.graph.outputs if ends else p.lifetimes.is_read(tensor, before):
                self._add_idle(tensor, after, before, self.model.new_bool_var(""))
            elif not ends:
                self._dead.append((after, tensor))
                self._freed_bytes[after] += size
                self._taken_bytes[before] += size

    def _add_idle(self, tensor: int, after: int, before: int, away: BoolVarT) -> None:
        """Add an idle interval: what frees its room, and the copy in behind that, the fence, and before its reader."""
        p, model, left, back = self._problem, self.model, self._ended(after), None
        writes, lives_away = p.lifetimes.writes[tensor], self.homes.get(tensor, self._always)
        version = (-1, *writes)[bisect_right(writes, after)]
        is_there = version < 0 and (lives_away is self._always or lives_away is away)
        out = None if is_there else self._copy_out(tensor, version)
        if out is not None:
            left = self._time()
            model.add_bool_or(out.made, *([lives_away] if version < 0 else []), ~away)
            model.add(left >= self._ended(after)).only_enforce_if(away)
            model.add(left >= out.end).only_enforce_if(out.made, away)
        if before < self._ops and p.lifetimes.is_read(tensor, before):
            start, takes_ns, fence = self._time(), self._copy_ns(tensor, back=True), p.fences[before]
            back = CopyInterval(start, takes_ns, start + takes_ns, away)
            model.add(start >= left).only_enforce_if(away)
            model.add(start >= (self.starts[fence - 1] if fence else 0)).only_enforce_if(away)
            model.add(self.starts[before] >= back.end).only_enforce_if(away)
        self.idle.append(IdleChoice(tensor, after, before, away, version, out, left, back))

    def _copy_out(self, tensor: int, version: int) -> CopyInterval:
        """Return the copy out of a version, behind the op that makes it; the only step of a run ends after it."""
        if (tensor, version) not in self.outs:
            start, takes_ns, made = self._time(), self._copy_ns(tensor), self.model.new_bool_var("")
            out = self.outs[tensor, version] = CopyInterval(start, takes_ns, start + takes_ns, made)
            self.model.add(start >= self._ended(version)).only_enforce_if(made)
            if not self.lead:
                self.model.add(self.end >= out.end).only_enforce_if(made)
        return self.outs[tensor, version]

    def _add_orders(self) -> None:
        """Let ops follow one another, and the copies of each link as well."""
        for op, start in enumerate((*self.starts, self.end)):
            self.model.add(start >= self._ended(op - 1))
        interval = self.model.new_optional_fixed_size_interval_var
        for copies in (self.outs.values(), [idle.back for idle in self.idle if idle.back is not None]):
            self.model.add_no_overlap([interval(copy.start, copy.takes_ns, copy.made, "") for copy in copies])

    def _add_budget(self) -> None:
        """Keep the compute tier within the budget at every moment."""
        changes: list[tuple[LinearExpr, int, BoolVarT]] = [(self._zero, self._start_bytes, self._always)]
        for op, start in enumerate(self.starts):
            changes.append((start, self._taken_bytes[op], self._always))
            changes.append((self._ended(op), -self._freed_bytes[op], self._always))
        for idle in self.idle:
            changes.append((idle.left, -self._sizes[idle.tensor], idle.away))
            if idle.before < self._ops:
                came = self.starts[idle.before] if idle.back is None else idle.back.start
                changes.append((came, self._sizes[idle.tensor], idle.away))
        moments, sizes, made = zip(*changes, strict=True)
        budget = int(min(self._problem.budget_bytes, sum(map(abs, sizes))))
        self.model.add_reservoir_constraint_with_active(moments, sizes, made, 0, budget)
        for op in (op for op, took_ns in enumerate(self._durations) if not took_ns):  # a reservoir does not see it
            held_bytes, start = self._start_bytes + sum(self._taken_bytes[: op + 1]), self.starts[op]
            absent: list[LinearExpr] = []
            for idle in (idle for idle in self.idle if idle.after < op < idle.before):
                later = () if idle.back is None else (idle.back.start >= start,)
                absent.append(self._sizes[idle.tensor] * self._holds(idle.left <= start, *later, given=idle.away))
            self.model.add(sum(absent, start=self._zero) >= held_bytes - sum(self._freed_bytes[:op]) - budget)

    def _holds(self, *facts: BoundedLinearExpression | bool, given: BoolVarT) -> BoolVarT:
        """Make a variable that implies these facts and another variable."""
        holds = self.model.new_bool_var("")
        self.model.add_implication(holds, given)
        for fact in facts:
            self.model.add(fact).only_enforce_if(holds)
        return holds

    def compute_first(self) -> None:
        """Let no copy take room before an op that is ready: constraints that slow the solver and seldom matter."""
        for op in (op for op, taken_bytes in enumerate(self._taken_bytes) if taken_bytes):
            ready: list[tuple[LinearExpr, BoolVarT]] = [(self._ended(op - 1), self._always)]
            ready += [(idle.back.end, idle.away) for idle in self.idle if idle.before == op and idle.back is not None]
            for idle in self.idle:
                if idle.back is not None and idle.after < op < idle.before:
                    start = idle.back.start
                    ways = [self._holds(start <= moment, given=given) for moment, given in ready]
                    self.model.add_bool_or(*ways, self._holds(start >= self.starts[op], given=idle.away), ~idle.away)

    def solve(self, time_limit_s: float) -> SolverResult:
        """Look for the shortest step, for so many seconds at most."""
        solver = self._cp.CpSolver()
        # One worker, so that a search that ends by itself finds the same on every machine.
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
        status = solver.solve(self.model)
        if status == self._cp.INFEASIBLE:
            return SolverResult(self._horizon_ns, None, self._horizon_ns, is_over=True)
        least_ns = math.ceil(max(0.0, solver.best_objective_bound))
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return SolverResult(self._horizon_ns, None, least_ns, is_over=False)
        return SolverResult(solver.value(self.end), self._plan(solver), least_ns, status == self._cp.OPTIMAL)

    def _plan(self, solver: CpSolver) -> Plan:
        """Write the plan of a solution, which is repeated if there are several steps.

        At each point, after the op: copies out, then evictions, then copies in. As issued, room is freed no later than
        in the solution, and taken in the order of the solution, so that the plan fits.
        """
        p, to, compute_tier, value = self._given, self._to, self._given.compute_tier, solver.value
        spent = [idle for idle in self.idle if value(idle.away)]
        point, issued, moves = 0, dict[tuple[int, int], int](), list[Move]()
        needed = {(idle.tensor, idle.version): idle.out for idle in spent if idle.out is not None}
        lives_away = {tensor for tensor, away in self.homes.items() if value(away)}
        starts = [(value(out.start), out.takes_ns, *key) for key, out in needed.items()]
        for _, _, tensor, version in sorted(starts):
            if version >= 0 or tensor not in lives_away:
                issued[tensor, version] = point = max(point, version + 1)
                moves.append(Move(point, partial(Writer.copy, source=compute_tier, target=to[tensor]), tensor))
        for idle in (idle for idle in spent if idle.after >= self.lead):
            copied = 0 if idle.out is None else issued.get((idle.tensor, idle.version), 0)
            moves.append(Move(max(idle.after + 1, copied), Writer.evict, idle.tensor))
        moves += [Move(after + 1, partial(Writer.detach, tier=compute_tier), tensor) for after, tensor in self._dead]
        begun_ns = [value(start) for start in self.starts]
        back = [(value(idle.back.start), idle.back.takes_ns, idle) for idle in spent if idle.back is not None]
        for start_ns, _, idle in sorted(back, key=itemgetter(0, 1)):
            begun = bisect_right(begun_ns, start_ns, hi=idle.before)
            moves.append(Move(begun, partial(Writer.copy, source=to[idle.tensor], target=compute_tier), idle.tensor))
        unused = {t for t in to if t in p.lifetimes.inputs and not p.lifetimes.uses[t]}
        homes = {t: to[t] for t in sorted(unused | lives_away)}
        moves = [move._replace(point=max(move.point - self.lead, 0)) for move in moves]
        return write(p, "optimal", moves, chosen_homes=homes)
