"""What a compiler engineer may ask of a plan: which gaps, why, where each cache operator is, and what the links do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from simulator.plan import COMPUTE, Plan
from simulator.policies.problem import Problem, Replay
from simulator.policies.static.augmented import CacheOp
from simulator.policies.static.ledger import Slot, ledger
from simulator.policies.static.select import Choice, Decision
from simulator.policies.static.step_model import predict
from simulator.policies.static.validate import Candidate


@dataclass(frozen=True)
class Explanation:
    """A compiled plan with its reasons.

    Attributes
    ----------
    problem
        What was compiled; if ops run again, the problem with an op for each run.
    candidate
        The plan for it, its selection and its augmented graph.
    plan
        The plan for the problem as given.
    choices
        The decision about each gap, best score first; at last those to make a tensor again, in order.
    replay
        What happened.
    slots
        The ledger of channel occupancy.
    """

    problem: Problem
    candidate: Candidate
    plan: Plan
    choices: tuple[Choice, ...]
    replay: Replay
    slots: tuple[Slot, ...]

    def decided(self, decision: Decision) -> list[Choice]:
        """Choices with this decision."""
        return [choice for choice in self.choices if choice.decision is decision]

    def cache_ops_of(self, tensor: int) -> list[CacheOp]:
        """Cache operators of one tensor, in the order of their issue."""
        return [one for one in self.candidate.augmented.cache_ops if one.tensor == tensor]

    def waited_ns(self, one: CacheOp) -> int:
        """How long the op that needs what a prefetch brings waited for it in the last step of the replay [ns].

        Its `stall_ns` is what the pass expects where the copy begins at its position; what comes before it on its
        channel, or has not left the room that it needs, adds to that.
        """
        return self._waited_ns.get((one.before, one.tensor), 0)

    @cached_property
    def _waited_ns(self) -> dict[tuple[int, int], int]:
        """By op and tensor that it lacked, how long it waited in the last step [ns]."""
        found: Counter[tuple[int, int]] = Counter()
        if self.replay.trace is None or self.replay.status != "ok":
            return found
        spans, waits = self.replay.trace.spans.whole(), self.replay.trace.waits.whole()
        begin = int(spans["end_ns"][spans["kind"] == COMPUTE].max(initial=0)) - self.replay.step_ns
        last = waits["start_ns"] >= begin
        columns = (waits[name][last].tolist() for name in ("op", "tensor", "start_ns", "end_ns"))
        for op, tensor, start, end in zip(*columns, strict=True):
            found[op, tensor] += end - start
        return found


def explanation(problem: Problem, candidate: Candidate, choices: list[Choice], plan: Plan) -> Explanation:
    """Replay a candidate and put together what there is to say about it.

    Parameters
    ----------
    problem
        What was planned for.
    candidate
        The plan.
    choices
        The decision about each gap.
    plan
        The plan for the problem as given.
    """
    replay = problem.replay(candidate.plan)
    timeline = candidate.timeline or predict(problem, candidate.plan, free_copies_in=True)
    slots: tuple[Slot, ...] = ()
    if replay.trace is not None:
        slots = tuple(ledger(problem, candidate.augmented, timeline, candidate.plan, replay.trace))
    return Explanation(problem, candidate, plan, tuple(choices), replay, slots)
