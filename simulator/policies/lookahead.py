"""`lookahead`: fixed distances, counted in ops, as MindSpore's compile pass uses them.

What it knows is the order of the ops; it knows no durations, no sizes, no bandwidth and no budget.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from simulator.document import Part
from simulator.lifetime import live_bytes
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.search import tune
from simulator.policies.writer import Writer

Distance = Annotated[int, Field(ge=0)]
"""A number of ops."""

SELECT_DISTANCES = (100, 200, 400)
DISTANCES = (50, 20, 100)
"""What ``best`` tries; MindSpore's defaults first."""
PARTS = (4, 8, 16)
"""It tries these parts of the graph's length as well, because distances in ops suit graphs of some lengths only."""


class Options(Part):
    """The distances; ``best`` tries a short list by replay, option by option, and takes the fastest that fits.

    Attributes
    ----------
    select_distance
        A tensor leaves between two uses that are more than so many ops apart (``best``: 100, 200, 400, and a quarter,
        an eighth and a sixteenth of the graph's ops).
    select_num
        How many tensors move, those that are made first (``best``: as few as fit; MindSpore's default is 100).
    distance
        How many ops before its use a copy in is issued (``best``: 50, 20, 100, and the same parts of the graph's ops).
    release_distance
        How many ops after the last use compute waits for the copy out and frees the room.
    """

    select_distance: Distance | Literal["best"] = Field("best", description="least distance between two uses [ops]")
    select_num: Annotated[int, Field(ge=1)] | Literal["best"] = Field("best", description="how many tensors move")
    distance: Distance | Literal["best"] = Field("best", description="lead of a copy in [ops]")
    release_distance: Distance = Field(0, description="when compute waits for the copy out, after the last use [ops]")


class Stretch(NamedTuple):
    """A stretch in which a tensor is out of the compute tier.

    Attributes
    ----------
    tensor
        What leaves.
    freed
        The op after which its room is free; -1 if it starts the step away.
    fetched, before
        The op before which it is copied in, and the one that needs it; the number of ops if it ends the step away.
    """

    tensor: int
    freed: int
    fetched: int
    before: int


def plan(problem: Problem, options: Options) -> Plan:
    """Copy out right after the producer, free after the last use, copy in a fixed number of ops before the next use.

    Only tensors that ops make are chosen, in the order in which they are made. Persistent tensors whose home is
    another tier are copied in by the same distance, and go back after their last use.

    Parameters
    ----------
    problem
        What to plan for.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If the result does not fit the budget, of which the decisions know nothing.
    """
    select, lead = options.select_distance, options.distance
    ops = len(problem.graph.ops)
    selects = _candidates(SELECT_DISTANCES, ops) if select == "best" else (select,)
    leads = _candidates(DISTANCES, ops) if lead == "best" else (lead,)
    return tune(problem, (selects, leads), partial(_plan, problem, options))


def _candidates(defaults: tuple[int, ...], ops: int) -> tuple[int, ...]:
    """Distances to try: the defaults, and parts of the graph's length."""
    return tuple(dict.fromkeys((*defaults, *(ops // part for part in PARTS))))


def _plan(problem: Problem, options: Options, select_distance: int, distance: int) -> Plan:
    """Plan with these two distances."""
    stretch = partial(_stretch, problem, distance, options.release_distance)
    made = [[stretch(*gap) for gap in gaps] for gaps in _made(problem, select_distance)]
    visits = [stretch(*gap) for gap in _visits(problem, select_distance)]
    number = _fewest(problem, made, visits) if options.select_num == "best" else options.select_num
    chosen = [*visits, *(s for stretches in made[:number] for s in stretches)]
    number = min(number, len(made))
    note = f"select_distance {select_distance}, select_num {number}, distance {distance}"
    return _write(problem, chosen, note)


def _made(problem: Problem, select_distance: int) -> list[list[tuple[int, int, int]]]:
    """For each tensor that an op makes and that qualifies, in that order: ``(tensor, after, before)`` of its gaps."""
    uses, starts_with = problem.lifetimes.uses, problem.starts_with
    made = [t for t, used in enumerate(uses) if used and not starts_with[t] and not problem.pinned(t)]
    made.sort(key=lambda t: (uses[t][0], t))
    gaps = [[(t, a, b) for a, b in pairwise(uses[t]) if b - a > select_distance] for t in made]
    return [found for found in gaps if found]


def _visits(problem: Problem, select_distance: int) -> list[tuple[int, int, int]]:
    """The same for tensors that live in another tier; -1 and the number of ops stand for the ends of the step."""
    found = []
    for tensor in problem.visitors:
        used = problem.lifetimes.uses[tensor]
        found.append((tensor, -1, used[0]))
        found.extend((tensor, a, b) for a, b in pairwise(used) if b - a > select_distance)
        if problem.graph.tensors[tensor].persistent:
            found.append((tensor, used[-1], len(problem.graph.ops)))
    return found


def _stretch(problem: Problem, distance: int, release: int, tensor: int, after: int, before: int) -> Stretch:
    freed = min(after + release, before - 1) if after >= 0 else after
    if before == len(problem.graph.ops) or (after < 0 and not problem.comes_in(tensor)):
        return Stretch(tensor, freed, before, before)
    earliest = max(freed + 1, problem.fences[before])
    return Stretch(tensor, freed, max(earliest, before - distance), before)


def _fewest(problem: Problem, made: list[list[Stretch]], visits: list[Stretch]) -> int:
    """How many tensors must move so that live bytes fit in issue order; all if that is not enough."""
    live = live_bytes(problem.graph, problem.lifetimes)

    def fits(number: int) -> bool:
        change = np.zeros(len(live) + 1, np.int64)
        for s in (*visits, *(s for stretches in made[:number] for s in stretches)):
            change[s.freed + 1] -= problem.sizes[s.tensor]
            change[s.fetched] += problem.sizes[s.tensor]
        return int((live + np.cumsum(change)[:-1]).max()) <= problem.budget_bytes

    return bisect_left(range(len(made)), True, key=fits)


def _write(problem: Problem, stretches: list[Stretch], note: str) -> Plan:
    writer, ops = Writer(problem, "lookahead"), len(problem.graph.ops)
    copies_out: dict[int, list[int]] = {}
    frees: dict[int, list[int]] = {}
    copies_in: dict[int, list[int]] = {}
    for tensor, freed, fetched, before in sorted(stretches, key=lambda s: s.before):
        if freed >= 0:
            copies_out.setdefault(problem.lifetimes.first_use[tensor], []).append(tensor)
            frees.setdefault(freed, []).append(tensor)
        if before < ops and (freed >= 0 or problem.comes_in(tensor)):
            copies_in.setdefault(fetched, []).append(tensor)
    for op in range(ops):
        for tensor in copies_in.get(op, ()):
            writer.fetch(tensor)
        writer.compute(op)
        for tensor in copies_out.get(op, ()):
            writer.back_up(tensor)
        for tensor in frees.get(op, ()):
            writer.back_up(tensor)
            writer.sync(tensor)
            writer.evict(tensor)
    return writer.finish((note,))
