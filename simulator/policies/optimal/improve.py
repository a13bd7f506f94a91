"""From one plan to a faster one until there is none: each solution is replayed, and becomes the plan to beat."""

from __future__ import annotations

import math
import time

from simulator.bounds import Limits
from simulator.errors import CapacityError, InvariantError
from simulator.plan import NOWHERE, Plan
from simulator.policies import lookahead, offload_saved, resident, static
from simulator.policies.optimal.model import Solution
from simulator.policies.optimal.observe import observe
from simulator.policies.optimal.program import Program
from simulator.policies.optimal.space import find_space
from simulator.policies.optimal.window import window
from simulator.policies.optimal.write import write
from simulator.policies.problem import Problem
from simulator.trace import Trace

TOLERANCE = 1e-6
"""The solver's own: a step that is faster by less than this share may be missed."""

_LATE = "copies of the step before are late and delay this step, and the program looks at a step alone"
_UNTOLD = "the program takes another time than the replay of its solution"

RETELLING_S = 10
"""When to stop the search for flags that suit the times of a known plan [s]: a moment is what it takes."""


class Search:
    """The fastest plan so far, and what no plan beats.

    Parameters
    ----------
    problem
        What to plan for.
    time_limit_s
        When to stop [s].

    Attributes
    ----------
    plan, step_ns
        The fastest plan and its replayed step [ns].
    objective_ns
        The step of the solution that the plan was written from, by the program alone [ns]; None if the plan is not one
        of the program's, or its replay took another time.
    least_ns
        No plan of the space is faster [ns].
    premise
        What the program lacks to tell the plan, where there is no objective.
    is_over
        Whether the search ended because there was nothing left to find.
    """

    def __init__(self, problem: Problem, time_limit_s: float) -> None:
        self._problem, self._until = problem, time.monotonic() + time_limit_s
        lead = int(problem.graph.steps > 1)
        self._seen = window(problem) if lead else problem
        self._space = find_space(self._seen, lead)
        self._before_ns = -problem.durations_ns[-1] if lead else problem.hardware.host.fixed.launch_ns
        self.plan: Plan | None = None
        self.step_ns: int | float = math.inf
        self.objective_ns: int | None = None
        self.premise = ""
        self.least_ns = _least_ns(problem)
        self.is_over = False
        self._trace: Trace | None = None
        self._refused: CapacityError | None = None

    @property
    def is_proved(self) -> bool:
        """Whether no plan of the space is faster, as far as the solver can tell."""
        return self.step_ns <= self.least_ns * (1 + 2 * TOLERANCE)

    def run(self) -> Plan:
        """Start from what other policies find, improve it, and return the fastest plan.

        Raises
        ------
        CapacityError
            If no plan fits: that of the least demand among the other policies'.
        """
        self._start()
        if not self.is_proved:
            self._improve()
        if self.objective_ns is None:
            self._retell()
        if self.step_ns < self.least_ns:
            must = f"no plan takes less than {self.least_ns:,} ns"
            raise InvariantError("policy 'optimal'", must, f"{self.step_ns:,} ns", "report this")
        if self.plan is None:
            raise self._refused or InvariantError(
                "policy 'optimal'", "a policy says why it has no plan", "none", "report"
            )
        return self.plan

    def _start(self) -> None:
        """Take the fastest of other policies' plans; those that may cross a barrier only if there is none."""
        others = () if any(op.barrier for op in self._problem.graph.ops) else (resident, offload_saved, lookahead)
        for module in (static, *others):
            try:
                self._offer(module.plan(self._problem, module.Options()))
            except CapacityError as error:
                gap = error.report.gap_bytes
                if self._refused is None or gap < self._refused.report.gap_bytes:
                    self._refused = error

    def _offer(self, plan: Plan, objective_ns: int | None = None) -> None:
        """Replay a plan and keep it if it is the fastest, or as fast and as long as the program says."""
        try:
            found = self._problem.replay(plan)
        except CapacityError:
            return
        if found.status != "ok":
            return
        is_told = objective_ns == found.step_ns
        if found.step_ns < self.step_ns or (found.step_ns == self.step_ns and is_told):
            self.plan, self.step_ns, self._trace = plan, found.step_ns, found.trace
            self.objective_ns = objective_ns if is_told else None

    def _improve(self) -> None:
        """Look for a step that is faster than the fastest."""
        horizon_ns = self._horizon_ns()
        program = self._program(horizon_ns, self.least_ns)
        solution = program.solve(self._until - time.monotonic())
        self.is_over = solution.is_complete
        if solution.values is None and solution.is_complete:
            self._raise_least(horizon_ns + 1)
            return
        self._raise_least(solution.least_ns + self._before_ns)
        self._offer_solution(program, solution)

    def _retell(self) -> None:
        """Look for the fastest plan, which somebody else made, among the solutions of the program, or for an equal."""
        if self.plan is None or self._trace is None:
            return
        program = self._program(int(self.step_ns), 0)
        observed = observe(self._problem, self._space, self.plan, self._trace)
        if isinstance(observed, str):
            self.premise = observed
            solution = program.solve(self._until - time.monotonic())
        else:
            self.premise = _LATE if self._space.lead else _UNTOLD
            solution = program.solve(RETELLING_S, observed)
        self._offer_solution(program, solution)

    def _program(self, horizon_ns: int, least_ns: int) -> Program:
        """The program for steps between two lengths [ns]."""
        return Program(self._seen, self._space, horizon_ns - self._before_ns, max(0, least_ns - self._before_ns))

    def _offer_solution(self, program: Program, solution: Solution) -> None:
        if solution.values is not None:
            plan = write(self._problem, self._space, program.read(solution.values))
            objective_ns = program.length_ns(solution.values) + self._before_ns
            self._offer(plan, objective_ns if solution.is_exact else None)

    def _horizon_ns(self) -> int:
        """What a faster step takes at most; without a plan, all copies one after another."""
        if self.step_ns < math.inf:
            return int(self.step_ns) - max(1, math.ceil(self.step_ns * TOLERANCE))
        copies = sum(gap.in_ns or 0 for gap in self._space.gaps) + sum(out.takes_ns for out in self._space.outs)
        return self._before_ns + self._seen.clock[-1] + copies

    def _raise_least(self, found_ns: float) -> None:
        """Note what the solver says that no plan beats, less its tolerance; a step is whole."""
        if math.isfinite(found_ns):
            self.least_ns = max(self.least_ns, math.ceil(found_ns - abs(found_ns) * TOLERANCE))


def _least_ns(problem: Problem) -> int:
    """What the bounds say; in a run of one step nothing happens before the launch [ns]."""
    homes = [h if there else NOWHERE for h, there in zip(problem.homes, problem.starts_with, strict=True)]
    limits = Limits.alone(problem.graph, problem.hardware, problem.durations_ns, homes, relaxed=True)
    launch_ns = problem.hardware.host.fixed.launch_ns if problem.graph.steps == 1 else 0
    return launch_ns + limits.step(problem.budget_bytes).ns
