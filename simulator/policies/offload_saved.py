"""`offload_saved`: the papers' manner. What is saved for backward moves, whether it must or not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, NamedTuple

from pydantic import Field

from simulator.document import Part
from simulator.lifetime import live_bytes
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.writer import Writer
from simulator.units import counted


class Options(Part):
    """How the copies are done.

    Attributes
    ----------
    synchronous
        The host issues a copy when the ops before it have ended, and waits for it: nothing is hidden.
    barrier_before_backward
        The first op of a backward pass is issued after all copies out before it have ended.
    ahead
        A copy in is issued at most so many ops before its use, as in frameworks that hold two layers; by default as
        early as there is room.
    """

    synchronous: bool = Field(False, description="no copy overlaps an op")
    barrier_before_backward: bool = Field(True, description="backward is issued after the last copy out ended")
    ahead: Annotated[int, Field(ge=0)] | None = Field(
        None, description="copies in at most so many ops before their use"
    )


class Move(NamedTuple):
    """A copy into the compute tier that will be due.

    Attributes
    ----------
    before
        The op that needs it.
    tensor
        What is copied.
    earliest
        The first op before which it may be issued.
    """

    before: int
    tensor: int
    earliest: int


def plan(problem: Problem, options: Options) -> Plan:
    """Copy out what is saved for backward right after its last forward use, and back in before its first backward use.

    Copies in are issued in the order of use from the start of the first backward pass on, as far ahead as the budget
    (or `ahead`) allows in issue order, and after the copy out. Saved is what an op of phase ``forward`` writes and one
    of phase ``backward`` uses, where the time between the two is longer than the tensor's own copies out and in (which
    leaves out what lives around the loss).
    Persistent tensors whose home is another tier come in by the same queue and go back after their last use.

    Parameters
    ----------
    problem
        What to plan for.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If the rest does not fit the budget.
    """
    writer = Writer(problem, "offload_saved")
    turns = _turns(problem)
    saved = _saved(problem)
    queue = _Queue(problem, saved, min(turns, default=len(problem.graph.ops)), options.ahead)
    stores = _stores(problem, saved)
    stored: list[int] = []
    for op in range(len(problem.graph.ops)):
        if op in turns and options.barrier_before_backward:
            for tensor in stored:
                writer.sync(tensor)
            stored.clear()
        for tensor in queue.due(op, ahead=not options.synchronous):
            _copy(writer, writer.fetch, tensor, options)
            writer.forget(tensor)
        writer.compute(op)
        for tensor in stores.get(op, ()):
            _copy(writer, writer.back_up, tensor, options)
            writer.evict(tensor)
            stored.append(tensor)
    return writer.finish((f"{counted(len(saved), 'tensor')} saved for backward and moved",))


def _copy(writer: Writer, copy: Callable[[int], None], tensor: int, options: Options) -> None:
    """Copy, between two waits of the host if the copies are synchronous."""
    if options.synchronous:
        writer.drain()
    copy(tensor)
    if options.synchronous:
        writer.sync(tensor)


def _turns(problem: Problem) -> frozenset[int]:
    """First ops of each backward pass: one for each micro-batch, or for several in a row."""
    phases = ["", *(op.phase for op in problem.graph.ops)]
    return frozenset(op for op, two in enumerate(pairwise(phases)) if two[1] == "backward" != two[0])


def _saved(problem: Problem) -> dict[int, tuple[int, int]]:
    """Tensor -> last forward and first backward use, for all that is saved for backward."""
    ops, clock, here = problem.graph.ops, problem.clock, problem.compute_tier
    found = {}
    for tensor, writes in enumerate(problem.lifetimes.writes):
        if problem.pinned(tensor) or problem.starts_with[tensor] or not writes:
            continue
        uses = problem.lifetimes.uses[tensor]
        forward = [i for i in uses if ops[i].phase == "forward"]
        backward = [i for i in uses if ops[i].phase == "backward"]
        if ops[writes[0]].phase != "forward" or not backward or forward[-1] > backward[0]:
            continue
        away = problem.away(tensor)[0]
        copies_ns = problem.copy_ns(tensor, here, away) + problem.copy_ns(tensor, away, here)
        if clock[backward[0]] - clock[forward[-1] + 1] > copies_ns:
            found[tensor] = (forward[-1], backward[0])
    return found


def _stores(problem: Problem, saved: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    stores: dict[int, list[int]] = {}
    for tensor, (forward, _) in saved.items():
        stores.setdefault(forward, []).append(tensor)
    for tensor in problem.visitors:
        if problem.graph.tensors[tensor].persistent:
            stores.setdefault(problem.lifetimes.last_use[tensor], []).append(tensor)
    return stores


class _Queue:
    """Copies in, in the order of use, let out when there is room for them until their use."""

    def __init__(self, problem: Problem, saved: dict[int, tuple[int, int]], backward: int, ahead: int | None) -> None:
        lifetimes, sizes = problem.lifetimes, problem.sizes
        ahead = len(problem.graph.ops) if ahead is None else ahead
        self._budget, self._sizes, self._at = problem.budget_bytes, sizes, 0
        self._live = Profile(live_bytes(problem.graph, lifetimes))
        fences = problem.fences
        moves = [Move(use, t, max(backward, fences[use], last + 1, use - ahead)) for t, (last, use) in saved.items()]
        for tensor, (forward, before) in saved.items():
            self._live.add(forward + 1, before - 1, -sizes[tensor])
        for tensor in problem.visitors:
            first, last = lifetimes.first_use[tensor], lifetimes.last_use[tensor]
            if problem.comes_in(tensor):
                moves.append(Move(first, tensor, fences[first]))
            self._live.add(0, first - 1, -sizes[tensor])
            if problem.graph.tensors[tensor].persistent:
                self._live.add(last + 1, len(problem.graph.ops) - 1, -sizes[tensor])
        self._moves = sorted(moves)

    def due(self, op: int, *, ahead: bool) -> list[int]:
        """Tensors to copy in before `op`: what it needs, and what may come ahead of its use."""
        out = []
        while self._at < len(self._moves):
            before, tensor, earliest = self._moves[self._at]
            if before > op:
                size = self._sizes[tensor]
                if not ahead or earliest > op or self._live.exceeds(op, before - 1, self._budget - size):
                    break
                self._live.add(op, before - 1, size)
            out.append(tensor)
            self._at += 1
        return out
