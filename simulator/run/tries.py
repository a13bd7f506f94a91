"""What a search has replayed: the plan that it ends with need not be replayed once more, and it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.trace import Trace


class Tries:
    """The fastest plan that was tried since the last row, and what happened; a replay of the same is the same."""

    def __init__(self) -> None:
        self._fastest: tuple[Problem, Plan, Trace, int] | None = None
        self._begun = 0
        self._tell: Callable[[int], None] = _silent

    @contextmanager
    def told(self, tell: Callable[[int], None]) -> Iterator[None]:
        """Tell of each plan that is tried meanwhile which it is, from 1 on.

        Parameters
        ----------
        tell
            Called before it is tried.
        """
        self._begun, self._tell = 0, tell
        try:
            yield
        finally:
            self._tell = _silent

    def begin(self) -> None:
        """Note that one more plan is tried."""
        self._begun += 1
        self._tell(self._begun)

    def note(self, problem: Problem, plan: Plan, trace: Trace, step_ns: int) -> None:
        """Keep a replay that ended, if it is faster than all before.

        Parameters
        ----------
        problem, plan, trace, step_ns
            What was tried, for what, what happened, and how long its last step took [ns].
        """
        if self._fastest is None or step_ns < self._fastest[3]:
            self._fastest = problem, plan, trace, step_ns

    def take(self, problem: Problem, plan: Plan) -> Trace | None:
        """Return what happened under this plan, if that is kept, and forget it in any case; its words do not count.

        Parameters
        ----------
        problem, plan
            Another problem, such as a machine that was changed, is another replay.
        """
        kept, self._fastest = self._fastest, None
        if kept is None or kept[0] is not problem or _decides(kept[1]) != _decides(plan):
            return None
        return kept[2]


def _silent(number: int) -> None:
    """Tell nothing."""


def _decides(plan: Plan) -> tuple[object, ...]:
    """All of a plan that the engine heeds."""
    return plan.tiers, plan.home, plan.steps, plan.repeats, plan.looks, plan.untouched, plan.starts_ns, plan.backbone
