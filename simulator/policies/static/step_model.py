"""When each op of a step starts, and when each room is really free: predicted by a model.

The model is quick and knows most readings of the machine: links serve copies in the order of their issue, as many at
a time as they have servers; a copy waits for the start or the end of the compute before it; a bus slows the links that
it caps as if all of them were busy; a copy out frees its room when it ends; an op that finds no room waits for the
next room to become free; the host pays for each step. It is a model to choose by: what counts is the replay.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import isfinite

from simulator.plan import COMPUTE, COPY, Plan
from simulator.policies.problem import Problem


class Crowd:
    """Copies over some links, all of which are busy, those of all ranks: each bus is shared at its worst.

    Parameters
    ----------
    problem
        What is planned for.
    hops
        The links that copies take, by their two ends.
    """

    def __init__(self, problem: Problem, hops: Collection[tuple[int, int]]) -> None:
        self._problem = problem
        self._wires = {wire for hop in hops for wire in problem.wires(hop)}
        self._factors = {hop: self._factor(hop) for hop in hops}

    @property
    def is_felt(self) -> bool:
        """Whether a bus may slow down any of the copies."""
        return any(factor > 1 for factor in self._factors.values())

    def copy_ns(self, tensor: int, hop: tuple[int, int]) -> int:
        """Time of a copy of the tensor over one link [ns]."""
        return int(self._problem.copy_ns(tensor, *hop) * self._factors[hop])

    def _factor(self, hop: tuple[int, int]) -> float:
        """How much longer copies over a link take than alone."""
        hardware, factor = self._problem.hardware, 1.0
        for name, bus in hardware.buses.items():
            busy = self._wires.intersection(bus.links)
            rate = sum(hardware.links[wire].bandwidth_bytes_per_s for wire in sorted(busy))
            wanted = self._problem.sharers.get(name, 1) * rate
            if not busy.isdisjoint(self._problem.wires(hop)) and isfinite(wanted):
                factor = max(factor, wanted / bus.bandwidth_bytes_per_s)
        return factor


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step, op by op.

    Attributes
    ----------
    start_ns
        Start of each op, and then the end of the step [ns].
    gate_ns
        For each program point, when a copy that is issued there may start at the earliest [ns].
    freed_ns
        ``(tensor, op)`` -> when the room that the tensor gives up after that op is free [ns].
    """

    start_ns: tuple[int, ...]
    gate_ns: tuple[int, ...]
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
    price = problem.hardware.host.fixed.step_ns
    for kind, a, b, c in plan.fixed.codes() if plan.fixed is not None else ():
        model.issued_ns += price
        if kind == COMPUTE:
            model.compute(a)
        elif kind == COPY:
            model.copy(a, b, c)
        elif b == model.here:
            model.leave(a)
    start_ns = (*model.starts, max(*model.free_ns, model.last_copy_ns))
    if problem.switches.copies_wait_for == "start":
        return Timeline(start_ns, (0, *start_ns[:-1]), model.freed)
    ends_ns = (start + took for start, took in zip(start_ns, problem.durations_ns, strict=False))
    return Timeline(start_ns, (0, *ends_ns), model.freed)


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
        self._last_op, self._gate = -1, 0
        self._waits_for_end = problem.switches.copies_wait_for == "end"
        self._servers = {problem.queues[hop]: [0] * problem.servers(hop) for hop in problem.links}
        self._queue_head = dict.fromkeys(self._servers, 0)
        ends = set(zip(plan.fixed.kind, plan.fixed.b, plan.fixed.c, strict=True)) if plan.fixed is not None else set()
        self._crowd = Crowd(problem, {(b, c) for kind, b, c in ends if kind == COPY})
        self._streams = problem.streams
        self.free_ns = [0] * (1 + max(self._streams, default=0))
        self.last_copy_ns = self.issued_ns = 0
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
        about, ready, idle_at = self._ops[op], self._ready, self._idle_at
        stream = self._streams[op]
        earliest, needed = max(self.free_ns[stream], self.issued_ns), about.workspace_bytes
        for tensor in about.reads:
            earliest = max(earliest, ready[tensor])
        for tensor in about.writes:
            earliest = max(earliest, idle_at[tensor])
            if not self._present[tensor]:
                self._present[tensor] = 1
                needed += self._sizes[tensor]
        start = self._take(needed, earliest)
        end = start + self._durations[op]
        if about.workspace_bytes:
            heappush(self._frees, (end, about.workspace_bytes))
        for tensor in about.reads:
            idle_at[tensor] = max(idle_at[tensor], end)
        for tensor in about.writes:
            ready[tensor] = idle_at[tensor] = end
        self.starts.append(max(start, self.starts[-1]) if self.starts else start)
        self.free_ns[stream], self._last_op = end, op
        self._gate = end if self._waits_for_end else start

    def copy(self, tensor: int, source: int, target: int) -> None:
        hop, inward = (source, target), target == self.here
        is_free = self._free_copies_in and self._problem.path(source, self.here)[1:2] == (target,)
        queue = self._problem.queues[hop]
        servers = self._servers[queue]
        ready = self._away_ready[tensor] if source != self.here else self._ready[tensor]
        gate = max(self._gate, self.issued_ns)
        begin = max(gate, ready) if is_free else max(gate, ready, servers[0], self._queue_head[queue])
        if inward:
            self._present[tensor] = 1
            begin = max(begin, self._take(self._sizes[tensor], gate))
        end = begin if is_free else begin + self._crowd.copy_ns(tensor, hop)
        if not is_free:
            heapreplace(servers, end)
            self._queue_head[queue] = begin
            self.last_copy_ns = max(self.last_copy_ns, end)
            self._pass_wires(tensor, hop, begin)
        if inward:
            self._ready[tensor] = end
        else:
            self._away_ready[tensor] = end
        self._idle_at[tensor] = max(self._idle_at[tensor], end)

    def _pass_wires(self, tensor: int, hop: tuple[int, int], begin: int) -> None:
        """Let the links that a staged link goes via serve its copy as well, as if it came first."""
        for wire in self._problem.links[hop].via:
            way = self._problem.hops[wire]
            servers = self._servers[self._problem.queues[way]]
            heapreplace(servers, max(servers[0], begin) + self._problem.copy_ns(tensor, *way))

    def leave(self, tensor: int) -> None:
        self._present[tensor] = 0
        freed = self._idle_at[tensor]
        heappush(self._frees, (freed, self._sizes[tensor]))
        self.freed[tensor, self._last_op] = freed
