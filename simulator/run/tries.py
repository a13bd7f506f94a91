"""What a search has replayed: the plan that it ends with need not be replayed once more."""

from __future__ import annotations

from simulator.plan import Plan
from simulator.trace import Trace


class Tries:
    """The fastest plan that was tried since the last row, and what happened; a replay of the same is the same."""

    def __init__(self) -> None:
        self._fastest: tuple[Plan, Trace, int] | None = None

    def note(self, plan: Plan, trace: Trace, step_ns: int) -> None:
        """Keep a replay that ended, if it is faster than all before.

        Parameters
        ----------
        plan, trace, step_ns
            What was tried, what happened, and how long its last step took [ns].
        """
        if self._fastest is None or step_ns < self._fastest[2]:
            self._fastest = plan, trace, step_ns

    def take(self, plan: Plan) -> Trace | None:
        """Return what happened under this plan, if that is kept, and forget it in any case; its words do not count."""
        kept, self._fastest = self._fastest, None
        return kept[1] if kept is not None and _decides(kept[0]) == _decides(plan) else None


def _decides(plan: Plan) -> tuple[object, ...]:
    """All of a plan that the engine heeds."""
    return plan.tiers, plan.home, plan.steps, plan.repeats, plan.looks, plan.untouched, plan.starts_ns, plan.is_compiled
