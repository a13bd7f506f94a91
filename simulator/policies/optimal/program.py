"""The step as a scheduling problem for CP-SAT, in whole nanoseconds and bytes; and the plan that a solution is.

Each copy is an optional interval, the copies of a link do not overlap, and a reservoir holds what is in the compute
tier at every moment. Every run of a plan of the space on the engine is a solution, so no plan is faster than the best
solution. A solution may let something wait that the engine would start; the replay tells. In the plan each copy is
issued where the solution has it, the copies of a link in its order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.plan import FREE, Plan
from simulator.policies.optimal.space import Gap, Space
from simulator.policies.problem import Problem
from simulator.policies.writer import Writer

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import BoolVarT, IntVar, LinearExprT


@dataclass(frozen=True, slots=True)
class Solution:
    """When everything starts in the shortest step that was found.

    Attributes
    ----------
    length_ns
        How long the step takes [ns].
    starts_ns
        Start of each op [ns].
    taken
        Choices that are taken.
    outs_ns, ins_ns
        Copy out -> when it starts; gap -> when the copy in that ends it starts; those that are made, in the order of
        their link [ns].
    """

    length_ns: int
    starts_ns: tuple[int, ...]
    taken: frozenset[int]
    outs_ns: dict[int, int]
    ins_ns: dict[int, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the solver says.

    Attributes
    ----------
    solution
        The best that it found; None if it found none.
    least_ns
        No solution is shorter [ns]; the horizon if there is none.
    is_over
        Whether the search ended by itself.
    """

    solution: Solution | None
    least_ns: int
    is_over: bool


class Program:
    """The variables and constraints of one step.

    Parameters
    ----------
    problem, space
        What is decided; of several steps, the window of one.
    horizon_ns, least_ns
        No step is looked at that takes longer; none takes less [ns].
    """

    def __init__(self, problem: Problem, space: Space, horizon_ns: int, least_ns: int = 0) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415 - an extra, and slow to import

        self._cp, self.model = cp_model, cp_model.CpModel()
        self._problem, self.space, self._horizon_ns = problem, space, horizon_ns
        self._durations = problem.durations_ns
        # Copies back home of a window may outlast it.
        self._until_ns = horizon_ns + (sum(out.takes_ns for out in space.outs) if space.lead else 0)
        self.is_possible = max(least_ns, problem.clock[-1]) <= horizon_ns
        if not self.is_possible:
            return
        self._always = self.model.new_bool_var("always")
        self.model.add(self._always == 1)
        self.end = self.model.new_int_var(least_ns, horizon_ns, "end")
        self.starts = [self._time(f"op {k}") for k in range(len(self._durations))]
        self.choices = [self.model.new_bool_var(f"choice {c}") for c in range(space.choices)]
        self.outs = [(self._time(f"out {o}"), self.model.new_bool_var(f"made {o}")) for o in range(len(space.outs))]
        self.ins = {g: self._time(f"in {g}") for g, gap in enumerate(space.gaps) if gap.in_ns is not None}
        self.left = [self._left(gap) for gap in space.gaps]
        self._order_copies_out()
        self._order_copies_in()
        self._order_ops()
        self._fit()
        self.model.minimize(self.end)

    def solve(self, time_limit_s: float) -> Verdict:
        """Look for the shortest step, for so many seconds at most."""
        if not self.is_possible:
            return Verdict(None, self._horizon_ns, is_over=True)
        solver = self._cp.CpSolver()
        # One worker, so that a search that ends by itself finds the same on every machine.
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
        status = solver.solve(self.model)
        if status == self._cp.INFEASIBLE:
            return Verdict(None, self._horizon_ns, is_over=True)
        bound_ns = solver.best_objective_bound
        least_ns = math.ceil(bound_ns) if math.isfinite(bound_ns) else 0
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return Verdict(None, least_ns, is_over=False)
        value = solver.value
        gaps = self.space.gaps
        made = {o: value(start) for o, (start, made) in enumerate(self.outs) if value(made)}
        back = {g: value(start) for g, start in self.ins.items() if value(self.away(gaps[g]))}
        return Verdict(
            Solution(
                value(self.end),
                tuple(value(start) for start in self.starts),
                frozenset(c for c, choice in enumerate(self.choices) if value(choice)),
                dict(sorted(made.items(), key=lambda out: (out[1], self.space.outs[out[0]].takes_ns, out[0]))),
                dict(sorted(back.items(), key=lambda gap: (gap[1], gaps[gap[0]].in_ns, gap[0]))),
            ),
            least_ns,
            is_over=status == self._cp.OPTIMAL,
        )

    def away(self, gap: Gap) -> BoolVarT:
        """Whether a gap is spent away."""
        return self._always if gap.choice is None else self.choices[gap.choice]

    def _time(self, name: str) -> IntVar:
        return self.model.new_int_var(0, self._until_ns, name)

    def _ended(self, op: int) -> LinearExprT:
        """End of an op; of -1, the start of the step."""
        return 0 if op < 0 else self.starts[op] + self._durations[op]

    def _order_copies_out(self) -> None:
        """A copy out follows the op that makes its version; the only step of a run ends after it."""
        busy = []
        for (start, made), out in zip(self.outs, self.space.outs, strict=True):
            self.model.add(start >= self._ended(out.written)).only_enforce_if(made)
            if not self.space.lead:
                self.model.add(self.end >= start + out.takes_ns).only_enforce_if(made)
            busy.append(self.model.new_optional_fixed_size_interval_var(start, out.takes_ns, made, "out"))
        self.model.add_no_overlap(busy)
        for gap in self.space.gaps:
            if gap.out is not None:
                needless = self.space.outs[gap.out].needless_if
                away_already = () if needless is None else (self.choices[needless],)
                self.model.add_bool_or(self.outs[gap.out][1], *away_already, ~self.away(gap))

    def _order_copies_in(self) -> None:
        """A copy in follows what frees the room, and the fence; its reader follows it."""
        busy = []
        for g, start in self.ins.items():
            gap, is_away = self.space.gaps[g], self.away(self.space.gaps[g])
            self.model.add(start >= self.left[g]).only_enforce_if(is_away)
            if fence := self._problem.fences[gap.before]:
                self.model.add(start >= self.starts[fence - 1]).only_enforce_if(is_away)
            busy.append(self.model.new_optional_fixed_size_interval_var(start, gap.in_ns or 0, is_away, "in"))
        self.model.add_no_overlap(busy)

    def _order_ops(self) -> None:
        """An op follows the op before and its copies in."""
        for k in range(len(self.starts) + 1):
            self.model.add((self.end if k == len(self.starts) else self.starts[k]) >= self._ended(k - 1))
        for g, start in self.ins.items():
            gap = self.space.gaps[g]
            copied = start + (gap.in_ns or 0)
            self.model.add(self.starts[gap.before] >= copied).only_enforce_if(self.away(gap))

    def compute_first(self) -> None:
        """From when an op is ready no copy takes room before it does: rows that slow the solver, and seldom matter."""
        for k, start in enumerate(self.starts if self.is_possible else ()):
            if not self.space.taken_bytes[k]:
                continue
            ready = self._ready(k)
            for g, copied in self.ins.items():
                gap = self.space.gaps[g]
                if gap.after < k < gap.before:
                    early, is_away = self.model.new_bool_var("early"), self.away(gap)
                    self.model.add(copied <= ready).only_enforce_if(early, is_away)
                    self.model.add(copied >= start).only_enforce_if(~early, is_away)

    def _ready(self, op: int) -> LinearExprT:
        ends = []
        for g, start in self.ins.items():
            gap = self.space.gaps[g]
            if gap.before == op:
                end, is_away = self._time("back"), self.away(gap)
                self.model.add(end == start + (gap.in_ns or 0)).only_enforce_if(is_away)
                self.model.add(end == 0).only_enforce_if(~is_away)
                ends.append(end)
        if not ends:
            return self._ended(op - 1)
        ready = self._time("ready")
        self.model.add_max_equality(ready, [self._ended(op - 1), *ends])
        return ready

    def _fit(self) -> None:
        """What the compute tier holds fits at every moment."""
        space, always = self.space, self._always
        changes: list[tuple[LinearExprT, int, BoolVarT]] = [(0, space.start_bytes, always)]
        for k, start in enumerate(self.starts):
            changes += [(start, space.taken_bytes[k], always), (self._ended(k), -space.freed_bytes[k], always)]
        for g, gap in enumerate(space.gaps):
            changes.append((self.left[g], -gap.size_bytes, self.away(gap)))
            if gap.before < len(self.starts):
                back = self.ins[g] if g in self.ins else self.starts[gap.before]
                changes.append((back, gap.size_bytes, self.away(gap)))
        if changes := [change for change in changes if change[1]]:
            budget = int(min(self._problem.budget_bytes, sum(abs(size) for _, size, _ in changes)))
            moments, sizes, flags = zip(*changes, strict=True)
            self.model.add_reservoir_constraint_with_active(moments, sizes, flags, 0, budget)
        at_home = [space.gaps[g].size_bytes * self.away(space.gaps[g]) for g in space.leading]
        self.model.add(space.at_home_bytes - sum(at_home) <= int(min(self._problem.budget_bytes, space.at_home_bytes)))

        for k, took_ns in enumerate(self._durations):
            if not took_ns:
                self._fit_instant(k)

    def _fit_instant(self, op: int) -> None:
        """What is held while an op of 0 ns runs, which a reservoir does not see."""
        space, start, absent = self.space, self.starts[op], []
        for g, gap in enumerate(space.gaps):
            if gap.after < op < gap.before:
                is_absent = self.model.new_bool_var("absent")
                self.model.add_implication(is_absent, self.away(gap))
                self.model.add(self.left[g] <= start).only_enforce_if(is_absent)
                if g in self.ins:
                    self.model.add(self.ins[g] >= start).only_enforce_if(is_absent)
                absent.append(gap.size_bytes * is_absent)
        held = space.start_bytes + sum(space.taken_bytes[: op + 1]) - sum(space.freed_bytes[:op])
        self.model.add(held - sum(absent) <= int(min(self._problem.budget_bytes, held)))

    def _left(self, gap: Gap) -> LinearExprT:
        """When the room of a gap is free: behind its last use and the copy out."""
        if gap.out is None:
            return self._ended(gap.after)
        out_start, made = self.outs[gap.out]
        left, is_away = self._time("left"), self.away(gap)
        self.model.add(left >= self._ended(gap.after)).only_enforce_if(is_away)
        self.model.add(left >= out_start + self.space.outs[gap.out].takes_ns).only_enforce_if(made, is_away)
        return left


def write(problem: Problem, space: Space, solution: Solution) -> Plan:
    """Write the plan of one step, which is repeated if there are several.

    At each point, after the op: copies out, then the rooms that are given up, then copies in. What is given up is
    issued no later than it happens, what is taken in the order in which it is, so that the plan fits as issued.
    """
    taken = solution.taken
    chosen = {tensor: problem.away(tensor)[0] for tensor in space.idle_homes}
    chosen |= {t: problem.away(t)[0] for c, t in space.homes.items() if c in taken and problem.homes[t] == FREE}
    writer = Writer(problem, "optimal", chosen)
    outs, leave, ins = (defaultdict[int, list[int]](list) for _ in range(3))
    out_at: dict[int, int] = {}
    position = -1
    for o in _needed(space, solution):
        out_at[o] = position = max(position, space.outs[o].written - space.lead)
        outs[position].append(space.outs[o].tensor)
    for g, gap in enumerate(space.gaps):
        if (gap.choice is None or gap.choice in taken) and g not in space.leading:
            copied_at = -1 if gap.out is None else out_at.get(gap.out, -1)
            leave[max(gap.after - space.lead, copied_at)].append(gap.tensor)
    for g, start_ns in solution.ins_ns.items():
        last_begun = bisect_right(solution.starts_ns, start_ns, hi=space.gaps[g].before) - 1
        ins[max(last_begun - space.lead, -1)].append(space.gaps[g].tensor)
    here = problem.compute_tier
    for op in range(-1, len(problem.graph.ops)):
        if op >= 0:
            writer.compute(op)
        for tensor in outs[op]:
            writer.copy(tensor, here, problem.away(tensor)[0])
        for tensor in leave[op]:
            writer.evict(tensor)
        for tensor in space.dead.get(op + space.lead, ()):
            writer.detach(tensor, here)
        for tensor in ins[op]:
            writer.copy(tensor, problem.away(tensor)[0], here)
    return writer.finish(())


def _needed(space: Space, solution: Solution) -> list[int]:
    """Copies out that the chosen gaps need, in the order of their link."""
    chosen = [gap for gap in space.gaps if gap.choice is None or gap.choice in solution.taken]
    needed = {gap.out for gap in chosen if gap.out is not None}
    return [o for o in solution.outs_ns if o in needed and space.outs[o].needless_if not in solution.taken]
