"""From one plan to a faster one until there is none: each solution is replayed, and becomes the plan to beat."""

from __future__ import annotations

import math
import time

from simulator.bounds import Limits
from simulator.errors import CapacityError, InvariantError
from simulator.plan import NOWHERE, Plan
from simulator.policies import lookahead, offload_saved, resident, static
from simulator.policies.optimal.program import solve
from simulator.policies.optimal.space import Space, find_space
from simulator.policies.optimal.write import write
from simulator.policies.problem import Problem

TOLERANCE = 1e-6
"""The solver's own: a step that is faster by less than this share may be missed."""


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
    least_ns
        No plan of the space is faster [ns].
    is_over
        Whether the search ended because there was nothing left to find.
    """

    def __init__(self, problem: Problem, time_limit_s: float) -> None:
        self._problem, self._until = problem, time.monotonic() + time_limit_s
        self.plan: Plan | None = None
        self.step_ns: int | float = math.inf
        self.least_ns = _least_ns(problem)
        self.is_over = False
        self._refused: CapacityError | None = None

    @property
    def is_proved(self) -> bool:
        """Whether no plan of the space is faster, as far as the solver can tell."""
        return self.step_ns <= self.least_ns * (1 + 2 * TOLERANCE) + 1

    def run(self) -> Plan:
        """Start from what other policies find, improve it, and return the fastest plan.

        Raises
        ------
        CapacityError
            If no plan fits: that of the least demand among the other policies'.
        """
        self._start()
        if not self.is_proved:
            self._improve(find_space(self._problem))
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

    def _offer(self, plan: Plan) -> int | float:
        """Replay a plan, keep it if it is the fastest, and tell its step [ns]."""
        try:
            found = self._problem.replay(plan)
        except CapacityError:
            return math.inf
        step_ns = found.step_ns if found.status == "ok" else math.inf
        if step_ns < self.step_ns:
            self.plan, self.step_ns = plan, step_ns
        return step_ns

    def _improve(self, space: Space) -> None:
        """Look for a step that is faster than the fastest."""
        launch_ns = self._problem.hardware.host.fixed.launch_ns
        horizon_ns = self._horizon_ns(space)
        window = (horizon_ns - launch_ns, self.least_ns - launch_ns)
        solution, decisions = solve(self._problem, space, *window, self._until - time.monotonic())
        self.is_over = solution.is_complete
        if decisions is not None:
            self._raise_least(solution.least + launch_ns)
            self._offer(write(self._problem, space, decisions))
        elif solution.is_complete:
            self._raise_least(horizon_ns + 1)
        else:
            self._raise_least(solution.least + launch_ns)

    def _horizon_ns(self, space: Space) -> int:
        """What a faster step takes at most; without a plan, all copies one after another."""
        if self.step_ns < math.inf:
            return int(self.step_ns) - max(1, math.ceil(self.step_ns * TOLERANCE))
        copies = sum(gap.in_ns or 0 for gap in space.gaps) + sum(out.takes_ns for out in space.outs)
        return self._problem.hardware.host.fixed.launch_ns + self._problem.clock[-1] + copies

    def _raise_least(self, found_ns: float) -> None:
        """Note what the solver says that no plan beats, less its tolerance."""
        if math.isfinite(found_ns):
            self.least_ns = max(self.least_ns, math.floor(found_ns * (1 - TOLERANCE)))


def _least_ns(problem: Problem) -> int:
    """What the bounds say; nothing happens before the launch [ns]."""
    homes = [h if there else NOWHERE for h, there in zip(problem.homes, problem.starts_with, strict=True)]
    limits = Limits(problem.graph, problem.hardware, problem.durations_ns, homes, relaxed=True)
    return problem.hardware.host.fixed.launch_ns + limits.step(problem.budget_bytes).ns
