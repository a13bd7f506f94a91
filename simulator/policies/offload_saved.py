"""`offload_saved`: the papers' manner. What is saved for backward moves, whether it must or not."""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import Annotated

from pydantic import Field

from simulator.document import Part
from simulator.lifetime import live_bytes
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.writer import Move, Writer, write
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
    turns, saved = _turns(problem), _saved(problem)
    tensors, last_use = problem.graph.tensors, problem.lifetimes.last_use
    after = {tensor: forward for tensor, (forward, _) in saved.items()}
    after |= {tensor: last_use[tensor] for tensor in problem.visitors if tensors[tensor].persistent}
    leave, come = (_leave_alone, _come_alone) if options.synchronous else (Writer.store, _come)
    moves = [Move(op + 1, leave, tensor) for tensor, op in after.items()]
    for tensor, op in sorted(after.items(), key=itemgetter(1)) if options.barrier_before_backward else ():
        moves += [Move(turn, Writer.sync, tensor) for turn in sorted(turns) if turn > op][:1]
    comes = _comes(problem, saved, min(turns, default=0), options)
    moves += [Move(op, come, tensor) for tensor, op in comes]
    notes = (f"{counted(len(saved), 'tensor')} saved for backward and moved",)
    return write(problem, "offload_saved", moves, notes)


def _come(writer: Writer, tensor: int) -> None:
    """Copy in; what has come back is not kept in the other tier, unless that is its home."""
    writer.fetch(tensor)
    writer.forget(tensor)


def _come_alone(writer: Writer, tensor: int) -> None:
    """Copy in, while the host waits before and behind."""
    writer.drain()
    writer.fetch(tensor)
    writer.sync(tensor)
    writer.forget(tensor)


def _leave_alone(writer: Writer, tensor: int) -> None:
    """Copy out, while the host waits before and behind."""
    writer.drain()
    writer.back_up(tensor)
    writer.sync(tensor)
    writer.evict(tensor)


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


def _comes(
    problem: Problem, saved: dict[int, tuple[int, int]], backward: int, options: Options
) -> list[tuple[int, int]]:
    """Say which tensor comes before which op: in the order of use, as soon as there is room, behind the one before."""
    lifetimes, sizes, fences, ops = problem.lifetimes, problem.sizes, problem.fences, len(problem.graph.ops)
    ahead = ops if options.ahead is None else options.ahead
    live = Profile(live_bytes(problem.graph, lifetimes))
    queue = [(use, t, max(backward, fences[use], last + 1, use - ahead)) for t, (last, use) in saved.items()]
    for tensor, (forward, use) in saved.items():
        live.add(forward + 1, use - 1, -sizes[tensor])
    for tensor in problem.visitors:
        first = lifetimes.first_use[tensor]
        live.add(0, first - 1, -sizes[tensor])
        if problem.comes_in(tensor):
            queue.append((first, tensor, fences[first]))
        if problem.graph.tensors[tensor].persistent:
            live.add(lifetimes.last_use[tensor] + 1, ops - 1, -sizes[tensor])
    comes, op = [], 0
    for use, tensor, earliest in sorted(queue):
        op = live.put(use if options.synchronous else max(op, earliest), use, sizes[tensor], problem.budget_bytes)
        comes.append((tensor, op))
    return comes
