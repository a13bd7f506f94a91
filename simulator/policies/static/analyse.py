"""First pass: which tensors idle, when, for how long, and what it costs to spend that time away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.lifetime import NEVER, idle_gaps, live_bytes
from simulator.policies.problem import FREE, Problem


@dataclass(frozen=True, slots=True)
class Idle:
    """A gap between two uses that a tensor can spend away from the compute tier.

    Attributes
    ----------
    tensor
        Tensor id.
    after, before
        The uses on either side (op indices).
    wraps
        The gap spans the step boundary: the tensor's home is away, and `before` comes first in the step.
    size_bytes
        Room that it leaves [B].
    lead_ns, trail_ns
        Idle time before the next use, and, if the gap wraps, after the last one [ns].
    out_ns, in_ns
        Times of the copies out (0 if what is away is valid still) and in (0 if the next use only writes) [ns].
    away
        Tier that it goes to.
    """

    tensor: int
    after: int
    before: int
    wraps: bool
    size_bytes: int
    lead_ns: int
    trail_ns: int
    out_ns: int
    in_ns: int
    away: int

    @property
    def exposed_ns(self) -> int:
        """What the copies last beyond the idle time, on links that are free [ns]."""
        if self.wraps:
            return max(0, self.in_ns - self.lead_ns) + max(0, self.out_ns - self.trail_ns)
        return max(0, self.out_ns + self.in_ns - self.lead_ns)

    @property
    def worth(self) -> float:
        """Room times time that is gained, per time of link that is taken [B]."""
        gained_ns = self.lead_ns + self.trail_ns - self.out_ns - self.in_ns
        return self.size_bytes * gained_ns / max(1, self.out_ns + self.in_ns)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the other passes need to know.

    Attributes
    ----------
    live_bytes
        By op: live bytes if everything stays in the compute tier [B].
    forced
        Gaps of tensors that live elsewhere: they are away whether it helps or not.
    candidates
        All other gaps.
    idle_homes
        Tensors whose home is free and that no op uses: they live away at no cost.
    """

    live_bytes: NDArray[np.int64]
    forced: tuple[Idle, ...]
    candidates: tuple[Idle, ...]
    idle_homes: tuple[int, ...]


def analyse(problem: Problem) -> Analysis:
    """Find the idle gaps of all tensors that may move."""
    live = live_bytes(problem.graph, problem.lifetimes)
    forced: list[Idle] = []
    candidates, unused = list(_inner(problem)), []
    for tensor, uses in enumerate(problem.lifetimes.uses):
        if not problem.starts_with[tensor] or problem.pinned(tensor):
            continue
        if not uses:
            if problem.homes[tensor] == FREE:
                unused.append(tensor)
            live -= problem.sizes[tensor]
            continue
        idle = _around(problem, tensor)
        (candidates if problem.homes[tensor] == FREE else forced).append(idle)
    return Analysis(live, tuple(forced), tuple(candidates), tuple(unused))


def _inner(problem: Problem) -> Iterator[Idle]:
    clock, lifetimes, here = problem.clock, problem.lifetimes, problem.compute_tier
    reads = [frozenset(op.reads) for op in problem.graph.ops]
    for gap in idle_gaps(problem.graph, lifetimes):
        tensor, after, before, wraps = gap
        if wraps or problem.pinned(tensor):
            continue
        away = problem.away(tensor)[0]
        lives_away = problem.starts_with[tensor] and problem.homes[tensor] not in (FREE, here)
        writes = lifetimes.writes[tensor]
        clean = lives_away and (not writes or writes[0] > after)
        yield Idle(
            tensor,
            after,
            before,
            wraps=False,
            size_bytes=problem.sizes[tensor],
            lead_ns=clock[before] - clock[after + 1],
            trail_ns=0,
            out_ns=0 if clean else problem.copy_ns(tensor, here, away),
            in_ns=problem.copy_ns(tensor, away, here) if tensor in reads[before] else 0,
            away=away,
        )


def _around(problem: Problem, tensor: int) -> Idle:
    """The gap over the step boundary of a tensor that exists from the start."""
    clock, lifetimes, here = problem.clock, problem.lifetimes, problem.compute_tier
    first, last = lifetimes.first_use[tensor], lifetimes.last_use[tensor]
    away = problem.away(tensor)[0]
    read_first = tensor in problem.graph.ops[first].reads
    written = lifetimes.first_write[tensor] != NEVER
    return Idle(
        tensor,
        after=last,
        before=first,
        wraps=True,
        size_bytes=problem.sizes[tensor],
        lead_ns=clock[first],
        trail_ns=clock[-1] - clock[last + 1],
        out_ns=problem.copy_ns(tensor, here, away) if written else 0,
        in_ns=problem.copy_ns(tensor, away, here) if read_first else 0,
        away=away,
    )
