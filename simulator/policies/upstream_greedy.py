"""`upstream_greedy`: the decision rule of the open-source HyperOffload planner, from its description.

It knows the order of the ops and the sizes of what they make; it knows no durations, no bandwidth, no other traffic.
Persistent tensors and workspaces are not among what it plans for, and what a step puts out counts only up to its last
use, although it stays.

The original looks at every op for every gap; here a `Profile` answers the same questions, so that the same decisions
take near-linear time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from simulator.document import Part
from simulator.graph import Graph
from simulator.lifetime import Gap, Lifetimes, idle_gaps
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.writer import Move, Writer, write
from simulator.units import Bytes, human


class Options(Part):
    """What the planner believes, and when copies in are issued.

    Attributes
    ----------
    limit
        What it may hold of all that it plans for [B]; whether the machine has more or less is not its business.
        Default: the budget, less what persistent tensors take in the compute tier.
    lead
        How many ops before its use a copy in is issued, but not before its room was freed. The original's is 0, so
        that no copy in is ever hidden if copies wait for the op before them to end.
    """

    limit: Bytes | None = Field(None, description="what it may hold of what it plans for, such as '8 GiB'")
    lead: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="lead of a copy in [ops]")


class Choice(NamedTuple):
    """What the planner decides.

    Attributes
    ----------
    gaps
        Those in which a tensor leaves, in the order in which they were taken.
    peak_bytes
        The most that it expects to hold [B]; above the limit if no gap was left that would have helped.
    """

    gaps: tuple[Gap, ...]
    peak_bytes: int


def plan(problem: Problem, options: Options) -> Plan:
    """Copy out right after the last write before the gap, free at the gap's start, copy in before its end.

    A valid copy in the other tier is not written again, and is kept until the tensor dies. Persistent tensors whose
    home is another tier come in when they are needed and stay until the end of the step.

    Parameters
    ----------
    problem
        What to plan for.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If the machine has no room for the plan, whatever the planner expected.
    """
    limit = _default_limit(problem) if options.limit is None else options.limit
    chosen = choose(problem, limit)
    lifetimes, fences = problem.lifetimes, problem.fences
    moves = [Move(_last_write(lifetimes, gap) + 1, Writer.back_up, gap.tensor) for gap in chosen.gaps]
    moves += [Move(gap.after + 1, Writer.store, gap.tensor) for gap in chosen.gaps]
    for gap in chosen.gaps:
        back = max(gap.before - options.lead, gap.after + 1, fences[gap.before])
        moves.append(Move(back, Writer.fetch, gap.tensor))
    visitors = {t for t in problem.visitors if problem.comes_in(t)}
    moves += [Move(lifetimes.first_use[t], Writer.fetch, t) for t in _by_first_use(problem.graph) if t in visitors]
    notes = [f"the planner expects to hold at most {human(chosen.peak_bytes, 'B')} of what ops make"]
    if chosen.peak_bytes > limit:
        notes.append(f"that is above its limit of {human(limit, 'B')}, which it does not check")
    return write(problem, "upstream_greedy", moves, tuple(notes))


def choose(problem: Problem, limit_bytes: int | float) -> Choice:
    """Take gaps, the longest in ops first, until the peak is within the limit or none is left.

    Of equally long gaps the largest tensor comes first, then the earlier gap, then the tensor that was used first. A
    gap in which the limit is kept at every op is passed over. What was taken is never given back.

    Parameters
    ----------
    problem
        With the graph and the tensors that may move.
    limit_bytes
        What may be held [B].
    """
    last = len(problem.graph.ops) - 1
    held = _footprint(problem)
    taken = []
    for gap in _candidates(problem):
        if not held.exceeds(0, last, limit_bytes):
            break
        if held.exceeds(gap.after + 1, gap.before - 1, limit_bytes):
            held.add(gap.after + 1, gap.before - 1, -problem.sizes[gap.tensor])
            taken.append(gap)
    return Choice(tuple(taken), held.peak(0, last))


def _default_limit(problem: Problem) -> int | float:
    homes = problem.resolved_homes()
    there = (t for t, about in enumerate(problem.graph.tensors) if about.persistent)
    return problem.budget_bytes - sum(problem.sizes[t] for t in there if homes[t] == problem.compute_tier)


def _tracked(problem: Problem) -> list[int]:
    """What ops make, in the order of first use."""
    return [t for t in _by_first_use(problem.graph) if not problem.starts_with[t]]


def _by_first_use(graph: Graph) -> dict[int, None]:
    return dict.fromkeys(t for op in graph.ops for t in (*op.reads, *op.writes))


def _footprint(problem: Problem) -> Profile:
    """Bytes of what is tracked at each op, from its first use to its last."""
    held = Profile([0] * len(problem.graph.ops))
    for tensor in _tracked(problem):
        uses = problem.lifetimes.uses[tensor]
        held.add(uses[0], uses[-1], problem.sizes[tensor])
    return held


def _candidates(problem: Problem) -> Iterator[Gap]:
    """All gaps of tensors that may move, in the order in which they are tried."""
    order = {t: i for i, t in enumerate(_tracked(problem)) if not problem.pinned(t)}
    gaps = [g for g in idle_gaps(problem.graph, problem.lifetimes) if g.tensor in order and not g.wraps]
    sizes = problem.sizes
    return iter(sorted(gaps, key=lambda g: (g.after - g.before, -sizes[g.tensor], g.after, order[g.tensor])))


def _last_write(lifetimes: Lifetimes, gap: Gap) -> int:
    """The op after which the tensor is copied out: its last write up to the gap."""
    writes = lifetimes.writes[gap.tensor]
    return writes[bisect_right(writes, gap.after) - 1]
