"""`lookahead`: fixed distances, counted in ops, as MindSpore's compile pass uses them.

What it knows is the order of the ops; it knows no durations, no sizes, no bandwidth and no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Annotated, Literal

from pydantic import Field

from simulator.document import Part
from simulator.lifetime import NEVER, Gap, live_bytes
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.search import tune
from simulator.policies.writer import Move, Writer, write

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
    """

    select_distance: Distance | Literal["best"] = Field("best", description="least distance between two uses [ops]")
    select_num: Annotated[int, Field(ge=1)] | Literal["best"] = Field("best", description="how many tensors move")
    distance: Distance | Literal["best"] = Field("best", description="lead of a copy in [ops]")


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
    return tune(problem, (selects, leads), partial(_plan, problem, options.select_num))


def _candidates(defaults: tuple[int, ...], ops: int) -> tuple[int, ...]:
    """Distances to try: the defaults, and parts of the graph's length."""
    return tuple(dict.fromkeys((*defaults, *(ops // part for part in PARTS))))


def _plan(problem: Problem, most: int | Literal["best"], select_distance: int, distance: int) -> Plan:
    """Plan with these two distances."""
    made, visits = _made(problem, select_distance), list(_visits(problem, select_distance))
    back = partial(_back, problem, distance)
    number = _fewest(problem, made, visits, back) if most == "best" else min(most, len(made))
    gaps = sorted((*visits, *chain.from_iterable(made[:number])), key=lambda gap: gap.before)
    leaving = [gap for gap in gaps if gap.after != NEVER]
    moves = [Move(problem.lifetimes.first_use[gap.tensor] + 1, Writer.back_up, gap.tensor) for gap in leaving]
    moves += [Move(gap.after + 1, _leave, gap.tensor) for gap in leaving]
    moves += [Move(back(gap), Writer.fetch, gap.tensor) for gap in gaps if _comes_back(problem, gap)]
    note = f"select_distance {select_distance}, select_num {number}, distance {distance}"
    return write(problem, "lookahead", moves, (note,))


def _leave(writer: Writer, tensor: int) -> None:
    """Free the place when the copy out has ended."""
    writer.back_up(tensor)
    writer.sync(tensor)
    writer.evict(tensor)


def _made(problem: Problem, select_distance: int) -> list[list[Gap]]:
    """The gaps of each tensor that an op makes and that qualifies, by first use."""
    uses, exists = problem.lifetimes.uses, problem.starts_with
    made = [t for t, used in enumerate(uses) if used and not exists[t] and not problem.pinned(t)]
    gaps = (_between(problem, t, select_distance) for t in sorted(made, key=lambda t: (uses[t][0], t)))
    return [found for found in gaps if found]


def _visits(problem: Problem, select_distance: int) -> Iterator[Gap]:
    """The gaps of what lives in another tier; `NEVER` and the number of ops stand for the ends of the step."""
    for tensor in problem.visitors:
        uses = problem.lifetimes.uses[tensor]
        yield Gap(tensor, NEVER, uses[0])
        yield from _between(problem, tensor, select_distance)
        if problem.graph.tensors[tensor].persistent:
            yield Gap(tensor, uses[-1], len(problem.graph.ops))


def _between(problem: Problem, tensor: int, select_distance: int) -> list[Gap]:
    """The gaps of a tensor that are longer than a distance."""
    return [Gap(tensor, a, b) for a, b in pairwise(problem.lifetimes.uses[tensor]) if b - a > select_distance]


def _comes_back(problem: Problem, gap: Gap) -> bool:
    """Whether a gap ends with a copy in."""
    return gap.before < len(problem.graph.ops) and (gap.after != NEVER or problem.comes_in(gap.tensor))


def _back(problem: Problem, distance: int, gap: Gap) -> int:
    """The op before which a tensor takes room again."""
    if not _comes_back(problem, gap):
        return gap.before
    return max(gap.after + 1, problem.fences[gap.before], gap.before - distance)


def _fewest(problem: Problem, made: Sequence[Sequence[Gap]], visits: Sequence[Gap], back: Callable[[Gap], int]) -> int:
    """How many tensors must move so that live bytes fit in issue order; all if that is not enough."""
    live, last = Profile(live_bytes(problem.graph, problem.lifetimes)), len(problem.graph.ops) - 1
    for number, gaps in enumerate((visits, *made)):
        for gap in gaps:
            live.add(gap.after + 1, back(gap) - 1, -problem.sizes[gap.tensor])
        if live.peak(0, last) <= problem.budget_bytes:
            return number
    return len(made)
