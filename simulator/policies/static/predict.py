"""The compiler's own model of a plan: when each op starts and when each room is really free.

Links serve one copy after another at the time of each alone; a copy out frees its room when it ends; an op that finds
no room waits for the next room to become free. Hosts cost nothing. It is a model to choose by: what counts is the
replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from simulator.plan import COMPUTE, COPY, Plan
from simulator.policies.problem import Problem


@dataclass(frozen=True, slots=True)
class Timeline:
    """A predicted step.

    Attributes
    ----------
    start_ns
        Start of each op, and then the end of the step [ns].
    freed_ns
        ``(tensor, op)`` -> when the room that the tensor gives up after that op is free [ns].
    """

    start_ns: tuple[int, ...]
    freed_ns: dict[tuple[int, int], int]

    @property
    def step_ns(self) -> int:
        """Length of the step [ns]."""
        return self.start_ns[-1]


def predict(problem: Problem, plan: Plan, *, free_copies_in: bool = False) -> Timeline:
    """Follow a fixed plan through one step.

    Parameters
    ----------
    problem
        What the plan is for.
    plan
        The plan.
    free_copies_in
        Let copies in take no time: what remains is the waiting for room, which no position of theirs can avoid.
    """
    model = _Model(problem, plan, free_copies_in=free_copies_in)
    steps = plan.fixed
    for kind, a, b, c in steps.codes() if steps is not None else ():
        if kind == COMPUTE:
            model.compute(a)
        elif kind == COPY:
            model.copy(a, b, c)
        elif b == model.here:
            model.leave(a)
    return Timeline((*model.starts, max(model.clock, *model.link_free.values())), model.freed)


class _Model:
    def __init__(self, problem: Problem, plan: Plan, *, free_copies_in: bool) -> None:
        tensors = len(problem.sizes)
        self.here, self._free_copies_in = problem.compute_tier, free_copies_in
        self._problem, self._sizes = problem, problem.sizes
        self._ops, self._durations = problem.graph.ops, problem.durations_ns
        self._present = bytearray(home == self.here for home in plan.home)
        self._room = problem.budget_bytes - sum(
            s for s, home in zip(self._sizes, plan.home, strict=True) if home == self.here
        )
        self._frees: list[tuple[int, int]] = []
        self._ready = [0] * tensors
        self._away_ready = [0] * tensors
        self._idle_at = [0] * tensors
        self._last_op, self._last_start = -1, 0
        self.clock = 0
        self.link_free = dict.fromkeys(problem.links, 0)
        self.link_free[-1, -1] = 0
        self.starts: list[int] = []
        self.freed: dict[tuple[int, int], int] = {}

    def _take(self, size_bytes: int, earliest_ns: int) -> int:
        """Take room at the first moment it is there."""
        frees = self._frees
        while frees and (frees[0][0] <= earliest_ns or self._room < size_bytes):
            freed_ns, freed_bytes = heappop(frees)
            self._room += freed_bytes
            earliest_ns = max(earliest_ns, freed_ns)
        self._room -= size_bytes
        return earliest_ns

    def compute(self, op: int) -> None:
        about = self._ops[op]
        earliest, needed = self.clock, about.workspace_bytes
        for tensor in about.reads:
            earliest = max(earliest, self._ready[tensor])
        for tensor in about.writes:
            earliest = max(earliest, self._idle_at[tensor])
            if not self._present[tensor]:
                self._present[tensor] = 1
                needed += self._sizes[tensor]
        start = self._take(needed, earliest)
        end = start + self._durations[op]
        if about.workspace_bytes:
            heappush(self._frees, (end, about.workspace_bytes))
        for tensor in about.reads:
            self._idle_at[tensor] = max(self._idle_at[tensor], end)
        for tensor in about.writes:
            self._ready[tensor] = self._idle_at[tensor] = end
        self.starts.append(start)
        self.clock, self._last_op, self._last_start = end, op, start

    def copy(self, tensor: int, source: int, target: int) -> None:
        inward = target == self.here
        ready = self._away_ready[tensor] if source != self.here else self._ready[tensor]
        begin = max(self._last_start, ready, self.link_free[source, target])
        if inward:
            self._present[tensor] = 1
            if self._free_copies_in:
                begin = max(self._last_start, ready)
            begin = max(begin, self._take(self._sizes[tensor], self._last_start))
        took = 0 if inward and self._free_copies_in else self._problem.copy_ns(tensor, source, target)
        end = begin + took
        if took:
            self.link_free[source, target] = end
        if inward:
            self._ready[tensor] = end
        else:
            self._away_ready[tensor] = end
        self._idle_at[tensor] = max(self._idle_at[tensor], end)

    def leave(self, tensor: int) -> None:
        self._present[tensor] = 0
        freed = self._idle_at[tensor]
        heappush(self._frees, (freed, self._sizes[tensor]))
        self.freed[tensor, self._last_op] = freed
