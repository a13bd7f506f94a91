"""Try several plans and keep the fastest that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, Generic, TypeVar

from simulator.errors import CapacityError, InvariantError
from simulator.plan import Plan
from simulator.policies.problem import Problem, Replay

Candidate = TypeVar("Candidate")


class Best(Generic[Candidate]):
    """The fastest plan so far: itself, or with whatever a policy wants to know of it later.

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
        self.candidate: Candidate | None = None
        self._least: CapacityError | None = None
        self._blocked: Candidate | None = None
        self.step_ns: int | float = math.inf
        self.replays = 0

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Make and offer a plan; that it does not fit is noted, and the search goes on."""
        try:
            yield
        except CapacityError as error:
            if self._least is None or error.report.gap_bytes < self._least.report.gap_bytes:
                self._least = error

    def offer(self, plan: Plan, candidate: Candidate) -> Replay | None:
        """Replay a plan and keep it if it is faster than all before; return what happened, None if it does not fit.

        Parameters
        ----------
        plan
            The plan.
        candidate
            What `chosen` returns if this plan wins.
        """
        self.replays += 1
        with self.trying():
            replay = self._problem.replay(plan)
            capacities = zip(self._problem.tiers, self._problem.capacities, strict=True)
            fits = all(replay.peak_bytes.get(name, 0) <= capacity for name, capacity in capacities)
            if replay.status == "blocked":
                self._blocked = self._blocked or candidate
            elif fits and replay.step_ns < self.step_ns:
                self.step_ns, self.candidate = replay.step_ns, candidate
            return replay
        return None

    def chosen(self) -> Candidate:
        """Return the candidate of the fastest plan; if all block themselves, of the first, which shows who waits.

        Plans block themselves where links share a queue; one that does is only returned if none was refused.

        Raises
        ------
        CapacityError
            If none fits: that of the least demand.
        """
        chosen = self.candidate or (None if self._least else self._blocked)
        if chosen is None:
            none = InvariantError("search for a plan", "a plan was tried or refused", "none", "report this")
            raise self._least or none
        return chosen


def tune(problem: Problem, options: Sequence[Sequence[Any]], make: Callable[..., Plan]) -> Plan:
    """Choose values for several options by replay and return the fastest plan.

    One option is chosen after the other, from the first value of each; if nothing of that fits, all combinations are
    tried. An option with one value has nothing to choose; if all have, there is no replay. Nor is there one after a
    plan under which the one stream that there is never waits: the first of the fastest is chosen, whatever follows.

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
    best, tried, fixed = Best[tuple[tuple[Any, ...], Plan]](problem), set[tuple[Any, ...]](), list[Plan]()
    is_plain = not any(problem.streams) and not problem.graph.has_late
    busy_ns = sum(problem.durations_ns) if is_plain else -1

    def attempt(values: tuple[Any, ...]) -> None:
        """Try values that were not; fixed plans that are alike but for their notes are replayed once."""
        if values in tried or best.step_ns <= busy_ns:
            return
        tried.add(values)
        with best.trying():
            plan = make(*values)
            bare = replace(plan, notes=())
            if plan.fixed is None or bare not in fixed:
                fixed.append(bare)
                best.offer(plan, (values, plan))

    for position, values in enumerate(options):
        chosen = best.candidate[0] if best.candidate else start
        for value in values:
            attempt((*chosen[:position], value, *chosen[position + 1 :]))
    for combination in product(*options) if best.step_ns == math.inf else ():
        attempt(combination)
    return best.chosen()[1]
