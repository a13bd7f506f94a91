"""Try several plans and keep the fastest that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from simulator.errors import CapacityError, InvariantError
from simulator.plan import Plan
from simulator.policies.problem import Problem


class Best:
    """The fastest plan so far.

    Parameters
    ----------
    problem
        What the plans are for.

    Attributes
    ----------
    step_ns, predicted_ns
        Step time of the fastest plan, and the least that a policy has predicted [ns].
    replays
        How many plans were replayed.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._plan: Plan | None = None
        self._least: CapacityError | None = None
        self.step_ns: int | float = math.inf
        self.predicted_ns: int | float = math.inf
        self.replays = 0

    def refuse(self, error: CapacityError) -> None:
        """Note that a plan does not fit."""
        if self._least is None or error.report.gap_bytes < self._least.report.gap_bytes:
            self._least = error

    def offer(self, plan: Plan) -> None:
        """Replay a plan and keep it if it is faster than all before."""
        self.replays += 1
        try:
            replay = self._problem.replay(plan)
        except CapacityError as error:
            self.refuse(error)
            return
        capacities = zip(self._problem.tiers, self._problem.capacities, strict=True)
        fits = all(replay.peak_bytes.get(name, 0) <= capacity for name, capacity in capacities)
        if replay.status == "ok" and fits and replay.step_ns < self.step_ns:
            self.step_ns, self._plan = replay.step_ns, plan

    def plan(self) -> Plan:
        """Return the fastest plan.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        if self._plan is not None:
            return self._plan
        if self._least is not None:
            raise self._least
        raise InvariantError(
            "search for a plan", "a plan that fits in issue order completes", "one that does not", "report this"
        )


def tune(problem: Problem, options: Sequence[Sequence[Any]], make: Callable[..., Plan]) -> Plan:
    """Choose values for several options by replay, one option after the other, and return the fastest plan.

    An option with one value has nothing to choose; if all have, there is no replay.

    Parameters
    ----------
    problem
        What the plans are for.
    options
        For each option the values to try; the first ones are the start.
    make
        Makes a plan from one value of each option, or raises `CapacityError`.

    Raises
    ------
    CapacityError
        If no plan fits: that of the least demand.
    """
    chosen = tuple(values[0] for values in options)
    if all(len(values) == 1 for values in options):
        return make(*chosen)
    best, tried, winner = Best(problem), set(), chosen
    for position, values in enumerate(options):
        for value in values:
            candidate = (*chosen[:position], value, *chosen[position + 1 :])
            if candidate in tried:
                continue
            tried.add(candidate)
            before = best.step_ns
            try:
                best.offer(make(*candidate))
            except CapacityError as error:
                best.refuse(error)
            if best.step_ns < before:
                winner = candidate
        chosen = winner
    return best.plan()
