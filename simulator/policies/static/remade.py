"""What is made again, as decisions: one for each time that a tensor is, with its cost beside that of copies.

A tensor that is given up and made again idles from its last use to the run that makes it again. That gap is neither
kept nor moved: its third answer costs the time of the run, saves the room meanwhile, and saves the copies out and in.
What was dead and is made again only because others are made of it is made *in passing*: that costs time and saves none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from simulator.plan import NOWHERE
from simulator.policies import remake
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Idle
from simulator.policies.static.mix import Rewritten
from simulator.policies.static.room import Room, held
from simulator.policies.static.score import Rank
from simulator.policies.static.select import Choice, Decision, Remade

IN_PASSING = "in passing: others are made of it"
CHEAPER = "making it again takes less time than its copies"
DEARER = "making it again takes no less time than its copies, but none of the links"


def remade(rewritten: Rewritten, spent: Sequence[Idle], score: Rank) -> list[Choice]:
    """Say of each tensor that is made again what it costs and saves, in the order in which they are.

    Parameters
    ----------
    rewritten
        The problem in which ops run again.
    spent
        The gaps that are moved, in their tiers.
    score
        Scores its gaps.
    """
    below = held(rewritten.problem, spent)
    return [_choice(rewritten.problem, *found, below=below, score=score) for found in _found(rewritten)]


def _found(rewritten: Rewritten) -> Iterator[tuple[int, Remade, bool]]:
    """Tensor, what makes it again, and whether that is in passing."""
    problem = rewritten.problem
    lifetimes, durations_ns = problem.lifetimes, problem.durations_ns
    first = dict(zip(reversed(rewritten.op_of), range(len(rewritten.op_of) - 1, -1, -1), strict=True))
    holds: dict[int, int] = {}
    for tensor, original in enumerate(rewritten.tensor_of):
        if original in holds:
            by = lifetimes.writes[tensor][0]
            readers = lifetimes.uses[tensor][1:]
            in_passing = all(first[rewritten.op_of[op]] != op for op in readers)
            yield holds[original], Remade(tensor, by, durations_ns[by]), in_passing
        holds[original] = tensor


def _choice(problem: Problem, tensor: int, made: Remade, in_passing: bool, *, below: Room, score: Rank) -> Choice:
    after, tiers, here = problem.lifetimes.last_use[tensor], problem.away(tensor), problem.compute_tier
    idle_ns = problem.clock[made.by] - problem.clock[after + 1]
    first = tiers[0] if tiers else NOWHERE
    gap = Idle(tensor, after, made.by, False, True, problem.sizes[tensor], idle_ns, 0, 0, 0, first)
    if tiers:
        tier = below.nearest(gap)
        copies_ns = problem.copy_ns(tensor, here, tier), problem.copy_ns(tensor, tier, here)
        gap = gap._replace(away=tier, out_ns=copies_ns[0], in_ns=copies_ns[1])
    reason = IN_PASSING if in_passing else CHEAPER if not tiers or made.time_ns < gap.out_ns + gap.in_ns else DEARER
    return Choice(gap, Decision.RECOMPUTE, score(gap, made.time_ns), reason, made.time_ns, made)


def with_alternatives(problem: Problem, choices: Iterable[Choice]) -> list[Choice]:
    """Add to the choices about gaps what making the tensor again would take there.

    Parameters
    ----------
    problem
        What was compiled.
    choices
        Decisions to keep or to move.
    """
    found = {tuple(gap[:3]): made.time_ns for gap, made in remake.gaps(problem.graph, problem.durations_ns)}
    keys = ((choice, (choice.gap.tensor, choice.gap.after, choice.gap.before)) for choice in choices)
    return [choice if choice.gap.wraps else replace(choice, remake_ns=found.get(key)) for choice, key in keys]
