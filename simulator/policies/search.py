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


class Best(Generic[Candidate]):
    """The fastest plan so far, with whatever a policy wants to know of it later.

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
    replay, candidate
        What happened under the fastest plan, and what was offered with it.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._plan: Plan | None = None
        self.candidate: Candidate | None = None
        self._least: CapacityError | None = None
        self._blocked: tuple[Plan, Candidate | None] | None = None
        self.step_ns: int | float = math.inf
        self.predicted_ns: int | float = math.inf
        self.replays = 0
        self.replay: Replay | None = None

    def refuse(self, error: CapacityError) -> None:
        """Note that a plan does not fit."""
        if self._least is None or error.report.gap_bytes < self._least.report.gap_bytes:
            self._least = error

    def offer(self, plan: Plan, candidate: Candidate | None = None) -> bool:
        """Replay a plan and keep it if it is faster than all before; say whether it is.

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
            return False
        capacities = zip(self._problem.tiers, self._problem.capacities, strict=True)
        fits = all(replay.peak_bytes.get(name, 0) <= capacity for name, capacity in capacities)
        if replay.status == "blocked" and self._blocked is None:
            self._blocked = plan, candidate
        if replay.status != "ok" or not fits or replay.step_ns >= self.step_ns:
            return False
        self.step_ns, self._plan, self.candidate, self.replay = replay.step_ns, plan, candidate, replay
        return True

    def chosen(self) -> Candidate:
        """Return the candidate of the fastest plan; if all block themselves, that of the first of these.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        found = self.candidate or self._stuck()[1]
        if found is None:
            raise self._nothing_fits()
        return found

    def plan(self) -> Plan:
        """Return the fastest plan; if all block themselves, the first of these, which shows who waits for whom.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        found = self._plan or self._stuck()[0]
        if found is None:
            raise self._nothing_fits()
        return found

    def _stuck(self) -> tuple[Plan | None, Candidate | None]:
        """A plan that blocks itself, as with links that share a queue; if there is no other, and none was refused."""
        return (None, None) if self._blocked is None or self._least is not None else self._blocked

    def _nothing_fits(self) -> CapacityError | InvariantError:
        if self._least is not None:
            return self._least
        return InvariantError("search for a plan", "a plan was tried or refused", "none", "report this")


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
    trials = _Trials(Best(problem), make, start)
    for position, values in enumerate(options):
        chosen = trials.winner
        for value in values:
            trials.attempt((*chosen[:position], value, *chosen[position + 1 :]))
    if trials.best.step_ns == math.inf:
        for candidate in product(*options):
            trials.attempt(candidate)
    return trials.best.plan()


class _Trials:
    """Values that were tried, each combination once, and the fastest so far; fixed plans alike are replayed once."""

    def __init__(self, best: Best[Any], make: Callable[..., Plan], start: tuple[Any, ...]) -> None:
        self.best, self.winner = best, start
        self._make, self._tried = make, set[tuple[Any, ...]]()
        self._fixed: list[Plan] = []

    def attempt(self, candidate: tuple[Any, ...]) -> None:
        if candidate in self._tried:
            return
        self._tried.add(candidate)
        before = self.best.step_ns
        try:
            plan = self._make(*candidate)
            if not self._is_known(plan):
                self.best.offer(plan)
        except CapacityError as error:
            self.best.refuse(error)
        if self.best.step_ns < before:
            self.winner = candidate

    def _is_known(self, plan: Plan) -> bool:
        """Whether a fixed plan is, but for its notes, one that was replayed; from now on it is."""
        if plan.fixed is None:
            return False
        plan = replace(plan, notes=())
        is_known = plan in self._fixed
        if not is_known:
            self._fixed.append(plan)
        return is_known
