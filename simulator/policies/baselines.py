"""The baselines: `resident`, `lookahead`, `offload_saved` and `upstream_greedy`.

Each is a rule that picks idle intervals: which tensor leaves, after which op, and before which op it comes back. None
models the links; the writer turns their picks into a valid plan, and refuses picks that do not fit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Annotated, Literal

from pydantic import Field

from simulator.document import Part
from simulator.lifetime import NEVER, IdleInterval, idle_intervals, live_bytes
from simulator.plan import Plan
from simulator.policies.decide import tune
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.writer import Move, Writer, write
from simulator.units import Bytes, counted, human, require


class Resident(Part):
    """No options."""


def resident(problem: Problem, options: Resident) -> Plan:
    """Keep everything in the compute tier for as long as it is live.

    Persistent tensors with a free home live in the compute tier. Tensors with a home in another tier are copied in when
    the step starts (unless an op makes them anew), or behind the last barrier before their first use, and go back when
    the step ends.

    Parameters
    ----------
    problem, options
        Problem to plan for; no options.

    Raises
    ------
    CapacityError
        If live bytes exceed the budget: by how much, at which op, and the ways out.
    """
    moves = [Move(op, Writer.fetch, tensor) for op, tensors in problem.arrivals.items() for tensor in tensors]
    return write(problem, "resident", moves)


Distance = Annotated[int, Field(ge=0)] | Literal["best"]
"""A number of ops."""

_SELECT_DISTANCES = (100, 200, 400)
_DISTANCES = (50, 20, 100)
"""Distances that ``best`` tries [ops]; MindSpore's defaults first."""
PARTS = (4, 8, 16)
"""The graph's length over each of these is tried as well: a fixed number of ops suits some lengths only."""


class Lookahead(Part):
    """Options of `lookahead`: its distances; ``best`` tries a short list by replay and takes the fastest that fits.

    Attributes
    ----------
    select_distance
        Least number of ops between two uses for a tensor to leave (``best``: 100, 200, 400, and a quarter, an eighth
        and a sixteenth of the graph's ops).
    distance
        Ops from the issue of a copy in to its use (``best``: 50, 20, 100, and the same parts of the graph's ops).
    """

    select_distance: Distance = "best"
    distance: Distance = "best"


def lookahead(problem: Problem, options: Lookahead) -> Plan:
    """Copy out right after the producer, free after the last use, copy in a fixed number of ops before the next use.

    MindSpore's compile pass follows this rule: it knows the order of the ops, but no durations and no bandwidth. It
    moves as few of the ops' outputs as needed to fit, in the order of their production. Persistent tensors with a home
    in another tier are copied in by the same distance, and go back after their last use.

    Parameters
    ----------
    problem, options
        Problem to plan for; see `Lookahead`.

    Raises
    ------
    CapacityError
        If the result does not fit the budget.
    """
    parts = [len(problem.graph.ops) // part for part in PARTS]
    asked = ((options.select_distance, _SELECT_DISTANCES), (options.distance, _DISTANCES))
    values = [tuple(dict.fromkeys((*usual, *parts))) if value == "best" else (value,) for value, usual in asked]
    return tune(problem, values, partial(_at_distances, problem))


def _at_distances(problem: Problem, select_distance: int, distance: int) -> Plan:
    """Make the plan of two distances."""
    lifetimes, ops, fences = problem.lifetimes, len(problem.graph.ops), problem.fences
    live, visitors = Profile(live_bytes(problem.graph)), set(problem.visitors)
    made = (t for t, uses in enumerate(lifetimes.uses) if uses and t not in lifetimes.inputs and not problem.pinned(t))
    away, moved = list[tuple[IdleInterval, int]](), 0
    for tensor in (*problem.visitors, *sorted(made, key=lifetimes.first_use.__getitem__)):
        if tensor not in visitors and live.peak(0, ops - 1) <= problem.budget_bytes:
            break
        uses = lifetimes.uses[tensor]
        intervals = [IdleInterval(tensor, a, b) for a, b in pairwise(uses) if b - a > select_distance]
        intervals += _intervals_at_ends(problem, tensor) if tensor in lifetimes.inputs else []
        moved += bool(intervals) and tensor not in visitors
        for idle in intervals:
            comes = idle.before < ops and (idle.after != NEVER or problem.comes_in(tensor))
            back = max(idle.after + 1, fences[idle.before], idle.before - distance) if comes else idle.before
            live.add(idle.after + 1, back - 1, -problem.sizes[tensor])
            away.append((idle, back if comes else ops))
    away.sort(key=lambda trip: trip[0].before)
    leaving = [idle for idle, _ in away if idle.after != NEVER]
    moves = [Move(lifetimes.first_use[idle.tensor] + 1, Writer.back_up, idle.tensor) for idle in leaving]
    moves += [Move(idle.after + 1, _evict_once_copied, idle.tensor) for idle in leaving]
    moves += [Move(back, Writer.fetch, idle.tensor) for idle, back in away if back < ops]
    note = f"select_distance {select_distance}, distance {distance}: {counted(moved, 'tensor')} that ops make moved"
    return write(problem, "lookahead", moves, (note,))


def _intervals_at_ends(problem: Problem, visitor: int) -> list[IdleInterval]:
    """List when a tensor with its home elsewhere is away: from the start (`NEVER`), and to the end if it persists."""
    uses, ops = problem.lifetimes.uses[visitor], len(problem.graph.ops)
    intervals = [IdleInterval(visitor, NEVER, uses[0]), IdleInterval(visitor, uses[-1], ops)]
    return intervals if problem.graph.tensors[visitor].persistent else intervals[:1]


def _evict_once_copied(writer: Writer, tensor: int) -> None:
    """Wait for the copy out to end, then free the place."""
    writer.back_up(tensor)
    writer.sync(tensor)
    writer.evict(tensor)


class OffloadSaved(Part):
    """Options of `offload_saved`: how the copies are done.

    Attributes
    ----------
    synchronous
        The host issues a copy when the ops before it have ended, and waits for it: compute overlaps no copy.
    barrier_before_backward
        The first op of a backward pass is issued after all copies out before it have ended.
    ahead
        Most ops from the issue of a copy in to its use, as in frameworks that hold two layers; by default copies in
        start as early as memory allows.
    gap
        In a pipeline: least number of passes (forwards and backwards of micro-batches) between the forward and the
        backward of a micro-batch for its saved tensors to leave. They leave behind its forward, and return from the
        start of the pass before its backward, however long the copies take. HyperParallel swaps with a gap of 4.
    """

    synchronous: bool = False
    barrier_before_backward: bool = True
    ahead: Annotated[int, Field(ge=0)] | None = None
    gap: Annotated[int, Field(ge=2)] | None = None

    def _check(self) -> None:
        both = sorted(self.model_fields_set & {"ahead", "barrier_before_backward"})
        must = "copies in by passes have no distance in ops, and wait for no barrier"
        require(self.gap is None or not both, must, ", ".join(both), "gap", do="remove it, or gap")


def offload_saved(problem: Problem, options: OffloadSaved) -> Plan:
    """Copy tensors saved for backward out right after their last forward use, and in before their first backward use.

    Copies in are issued in the order of use from the start of the first backward pass, as far ahead as the budget (or
    `ahead`) allows in issue order, and after the copy out. A tensor counts as saved if an op of phase ``forward``
    writes it, an op of phase ``backward`` uses it, and its own copies out and in take less time than lies between the
    two; tensors around the loss mostly do not. Persistent tensors with a home in another tier use the same queue and
    go back after their last use.

    Parameters
    ----------
    problem, options
        Problem to plan for; see `OffloadSaved`.

    Raises
    ------
    CapacityError
        If the rest does not fit the budget.
    """
    phases, starts = ["", *(op.phase for op in problem.graph.ops)], _passes(problem) if options.gap else []
    turns = [op for op, (before, phase) in enumerate(pairwise(phases)) if phase == "backward" != before]
    saved = _saved_intervals(problem, starts, options.gap or 0)
    away = [*saved, *(idle for tensor in problem.visitors for idle in _intervals_at_ends(problem, tensor))]
    after = {idle.tensor: idle.after for idle in away if idle.after != NEVER}
    copy_out, copy_in = (_evict_and_wait, _recall_and_wait) if options.synchronous else (Writer.store, Writer.recall)
    moves = [Move(op + 1, copy_out, tensor) for tensor, op in after.items()]
    has_barrier = options.barrier_before_backward and options.gap is None
    for tensor, op in sorted(after.items(), key=itemgetter(1)) if has_barrier else ():
        moves += [Move(turn, Writer.sync, tensor) for turn in turns if turn > op][:1]
    first = partial(_earliest, starts, min(turns, default=0), options.ahead)
    moves += [Move(op, copy_in, tensor) for tensor, op in _copies_in(problem, away, first, is_late=options.synchronous)]
    return write(problem, "offload_saved", moves, (f"{counted(len(saved), 'tensor')} saved for backward and moved",))


def _passes(problem: Problem) -> list[int]:
    """Return the first ops of all passes: ops of a micro-batch in a row, forward or backward."""
    ops, starts, last = problem.graph.ops, list[int](), ("", "")
    for index, op in enumerate(ops):
        current = op.name.partition("/")[0] * op.name.startswith("mb"), op.phase
        if op.collective is None and current != last:
            starts.append(index)
            last = current
    return starts


def _saved_intervals(problem: Problem, starts: list[int], gap: int) -> list[IdleInterval]:
    """List the idle intervals, from last forward to first backward use, of tensors saved for backward.

    With `starts`, the first ops of passes, from the end of their pass, if they last so many; else those that are longer
    than their copies.
    """
    ops, clock, compute_tier, saved = problem.graph.ops, problem.clock, problem.compute_tier, list[IdleInterval]()
    lifetimes = problem.lifetimes
    for tensor, writes in enumerate(lifetimes.writes):
        if problem.pinned(tensor) or tensor in lifetimes.inputs or not writes or ops[writes[0]].phase != "forward":
            continue
        uses = lifetimes.uses[tensor]
        forward = max(i for i in uses if ops[i].phase == "forward")
        backward = min((i for i in uses if ops[i].phase == "backward"), default=NEVER)
        away = problem.away(tensor)[0]
        copies_ns = problem.copy_ns(tensor, compute_tier, away) + problem.copy_ns(tensor, away, compute_tier)
        passed, last = bisect_right(starts, forward), bisect_right(starts, backward)
        is_long = last - passed >= gap if starts else clock[backward] - clock[forward + 1] > copies_ns
        if forward < backward and is_long:
            saved.append(IdleInterval(tensor, starts[passed] - 1 if starts else forward, backward))
    return saved


def _earliest(starts: list[int], first: int, ahead: int | None, use: int) -> int:
    """Return the first op before which what an op uses may come in: of the pass before, if there are passes."""
    if starts:
        return starts[max(0, bisect_right(starts, use) - 2)]
    return first if ahead is None else max(first, use - ahead)


def _copies_in(
    problem: Problem, away: list[IdleInterval], first: Callable[[int], int], *, is_late: bool
) -> list[tuple[int, int]]:
    """Choose before which op each tensor comes in: in order of use, one after another, as soon as there is room."""
    sizes, fences, ops = problem.sizes, problem.fences, len(problem.graph.ops)
    live, queue = Profile(live_bytes(problem.graph)), list[tuple[int, int, int]]()
    for tensor, after, use, _ in away:
        live.add(after + 1, use - 1, -sizes[tensor])
        if use < ops and (after != NEVER or problem.comes_in(tensor)):
            earliest = 0 if after == NEVER else max(first(use), after + 1)
            queue.append((use, tensor, max(earliest, fences[use])))
    comes, op = [], 0
    for use, tensor, earliest in sorted(queue):
        op = live.put(use if is_late else max(op, earliest), use, sizes[tensor], problem.budget_bytes)
        comes.append((tensor, op))
    return comes


def _recall_and_wait(writer: Writer, tensor: int) -> None:
    """Copy in while the host waits, before and after."""
    writer.drain()
    writer.fetch(tensor)
    writer.sync(tensor)
    writer.forget(tensor)


def _evict_and_wait(writer: Writer, tensor: int) -> None:
    """Copy out while the host waits, before and after."""
    writer.drain()
    _evict_once_copied(writer, tensor)


class UpstreamGreedy(Part):
    """Options of `upstream_greedy`: the planner's limit, and the lead of its copies in.

    Attributes
    ----------
    limit
        Most bytes of planned tensors held at once, on any machine [B]. Default: the budget, less the persistent tensors
        in the compute tier.
    lead
        Ops from the issue of a copy in to its use, but not before its memory was freed. The original's is 0: no copy in
        is hidden if copies wait for the op before them to end.
    """

    limit: Bytes | None = None
    lead: Annotated[int, Field(ge=0, strict=True)] = 0


def upstream_greedy(problem: Problem, options: UpstreamGreedy) -> Plan:
    """Copy out after the last write before the idle interval, free when it starts, copy in before it ends.

    This is the decision rule of the open-source HyperOffload planner, from its description. It knows the order of the
    ops and the sizes of their outputs, but no durations, bandwidth or other traffic. It ignores persistent tensors and
    workspaces, and counts the outputs of a step only up to their last use, although they stay. A valid copy in the
    other tier is not written again, and is kept until the tensor dies. Persistent tensors with a home in another tier
    come in when they are needed and stay until the end of the step.

    Parameters
    ----------
    problem, options
        Problem to plan for; see `UpstreamGreedy`.

    Raises
    ------
    CapacityError
        If the plan does not fit the machine, even though the planner expected it to.
    """
    lifetimes, placed = problem.lifetimes, zip(problem.graph.tensors, problem.resolved_homes(), strict=True)
    stays = sum(t.size_bytes for t, home in placed if t.persistent and home == problem.compute_tier)
    limit = problem.budget_bytes - stays if options.limit is None else options.limit
    intervals, peak = choose(problem, limit)
    back_ups, trips = list[Move](), [Move(idle.after + 1, Writer.store, idle.tensor) for idle in intervals]
    for tensor, after, before, _ in intervals:
        writes = lifetimes.writes[tensor]
        back_ups.append(Move(writes[bisect_right(writes, after) - 1] + 1, Writer.back_up, tensor))
        trips.append(Move(max(before - options.lead, after + 1, problem.fences[before]), Writer.fetch, tensor))
    visitors = {t for t in problem.visitors if problem.comes_in(t)}
    arrivals = [Move(lifetimes.first_use[t], Writer.fetch, t) for t in _by_first_use(problem) if t in visitors]
    notes = [f"the planner expects a peak of {human(peak, 'B')} of op outputs"]
    if peak > limit:
        notes.append(f"this exceeds its limit of {human(limit, 'B')}, but it does not check")
    return write(problem, "upstream_greedy", [*back_ups, *trips, *arrivals], tuple(notes))


def choose(problem: Problem, limit_bytes: int | float) -> tuple[tuple[IdleInterval, ...], int]:
    """Take idle intervals, the longest in ops first, until the peak is within the limit or none is left.

    Of equally long intervals the largest tensor comes first, then the earlier interval, then the tensor that was used
    first. An interval in which the limit is kept at every op is passed over. Intervals are never given back.

    Parameters
    ----------
    problem
        Problem with the graph and the tensors that may move.
    limit_bytes
        Limit of held bytes [B].

    Returns
    -------
    (intervals, peak_bytes)
        The intervals in which a tensor leaves, in the order of choice; and the peak that the planner expects [B], above
        the limit if no further idle interval would have helped.
    """
    last, sizes, uses = len(problem.graph.ops) - 1, problem.sizes, problem.lifetimes.uses
    held, order = Profile([0] * (last + 1)), dict[int, int]()
    for rank, tensor in enumerate(t for t in _by_first_use(problem) if t not in problem.lifetimes.inputs):
        held.add(uses[tensor][0], uses[tensor][-1], sizes[tensor])
        if not problem.pinned(tensor):
            order[tensor] = rank
    intervals = [g for g in idle_intervals(problem.graph) if g.tensor in order and not g.wraps]
    taken = []
    for idle in sorted(intervals, key=lambda g: (g.after - g.before, -sizes[g.tensor], g.after, order[g.tensor])):
        if not held.exceeds(0, last, limit_bytes):
            break
        if held.exceeds(idle.after + 1, idle.before - 1, limit_bytes):
            held.add(idle.after + 1, idle.before - 1, -sizes[idle.tensor])
            taken.append(idle)
    return tuple(taken), held.peak(0, last)


def _by_first_use(problem: Problem) -> dict[int, None]:
    return dict.fromkeys(t for op in problem.graph.ops for t in (*op.reads, *op.writes))
