"""Try several plans and keep the fastest that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Generic, TypeVar

from simulator.errors import CapacityError, InvariantError
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay

Candidate = TypeVar("Candidate")
Found = TypeVar("Found")


class Best(Generic[Candidate]):
    """The fastest plan so far, with whatever a policy wants to know of it later.

    Parameters
    ----------
    problem
        What the plans are for.

    Attributes
    ----------
    step_ns
        Step time of the fastest plan [ns].
    replays
        How many plans were replayed.
    candidate
        What was offered with the fastest plan.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._plan: Plan | None = None
        self.candidate: Candidate | None = None
        self._least: CapacityError | None = None
        self._blocked: tuple[Plan | None, Candidate | None] = None, None
        self.step_ns: int | float = math.inf
        self.replays = 0

    def refuse(self, error: CapacityError) -> None:
        """Note that a plan does not fit."""
        if self._least is None or error.report.gap_bytes < self._least.report.gap_bytes:
            self._least = error

    def offer(self, plan: Plan, candidate: Candidate | None = None) -> Replay | None:
        """Replay a plan and keep it if it is faster than all before; return what happened, None if it does not fit.

        Parameters
        ----------
        plan
            The plan.
        candidate
            What `chosen` returns if this plan wins.
        """
        self.replays += 1
        try:
            replay = self._problem.replay(plan)
        except CapacityError as error:
            self.refuse(error)
            return None
        capacities = zip(self._problem.tiers, self._problem.capacities, strict=True)
        fits = all(replay.peak_bytes.get(name, 0) <= capacity for name, capacity in capacities)
        if replay.status == "blocked" and self._blocked[0] is None:
            self._blocked = plan, candidate
        if replay.status == "ok" and fits and replay.step_ns < self.step_ns:
            self.step_ns, self._plan, self.candidate = replay.step_ns, plan, candidate
        return replay

    def chosen(self) -> Candidate:
        """Return the candidate of the fastest plan; errors and what blocks itself as for `plan`."""
        return self._found(self.candidate, self._blocked[1])

    def plan(self) -> Plan:
        """Return the fastest plan; if all block themselves, the first of these, which shows who waits for whom.

        Plans block themselves where links share a queue; one that does is only returned if none was refused.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        return self._found(self._plan, self._blocked[0])

    def _found(self, fastest: Found | None, blocked: Found | None) -> Found:
        found = fastest or (blocked if self._least is None else None)
        if found is None:
            none = InvariantError("search for a plan", "a plan was tried or refused", "none", "report this")
            raise self._least or none
        return found


def tune(problem: Problem, options: Sequence[Sequence[Any]], make: Callable[..., Plan]) -> Plan:
    """Choose values for several options by replay and return the fastest plan.

    One option is chosen after the other, from the first value of each; if nothing of that fits, all combinations are
    tried. An option with one value has nothing to choose; if all have, there is no replay.

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
    start = tuple(values[0] for values in options)
    if all(len(values) == 1 for values in options):
        return make(*start)
    best, tried, fixed = Best[tuple[Any, ...]](problem), set[tuple[Any, ...]](), list[Plan]()

    def attempt(values: tuple[Any, ...]) -> None:
        """Try values that were not; fixed plans that are alike but for their notes are replayed once."""
        if values in tried:
            return
        tried.add(values)
        try:
            plan = make(*values)
        except CapacityError as error:
            best.refuse(error)
            return
        bare = replace(plan, notes=())
        if plan.fixed is None or bare not in fixed:
            fixed.append(bare)
            best.offer(plan, values)

    for position, values in enumerate(options):
        chosen = best.candidate or start
        for value in values:
            attempt((*chosen[:position], value, *chosen[position + 1 :]))
    for combination in product(*options) if best.step_ns == math.inf else ():
        attempt(combination)
    return best.plan()
