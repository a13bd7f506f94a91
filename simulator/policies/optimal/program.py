"""The integer program: when each op and each copy starts, which gaps are spent away, and who comes before whom.

Times are continuous; flags say what decides the order. Room is looked at wherever it is taken: at the start of each op
and of each copy in. A flag that the windows of time decide is a constant, and the windows follow from the plan to beat:
a step that is faster leaves little slack.

Every run of a plan of this space on the engine is a solution, so that no plan is faster than the best solution. The
other way round, a solution may let something wait that the engine would start; the replay tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.policies.optimal.crowding import crowd
from simulator.policies.optimal.model import Solution
from simulator.policies.optimal.room import Room
from simulator.policies.optimal.space import Space
from simulator.policies.optimal.times import Times
from simulator.policies.problem import Problem


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a solution says, without its times.

    Attributes
    ----------
    taken
        Choices that are taken.
    outs
        Copies out, in the order of their link.
    ins
        Gaps whose copies in are made, in the order of their link, each with the op after whose start it is issued.
    """

    taken: frozenset[int]
    outs: tuple[int, ...]
    ins: tuple[tuple[int, int], ...]


def solve(
    problem: Problem, space: Space, horizon_ns: int, least_ns: int, time_limit_s: float
) -> tuple[Solution, Decisions | None]:
    """Look for the shortest step.

    Parameters
    ----------
    problem, space
        What is decided.
    horizon_ns, least_ns
        No step is looked at that takes longer; none takes less [ns].
    time_limit_s
        When to stop [s].

    Returns
    -------
    Solution, Decisions or None
        What the solver says, its objective in nanoseconds; and what is decided, if anything is.
    """
    when = Times(problem, space, horizon_ns, least_ns)
    if not when.is_possible:
        return Solution(None, is_complete=True, least=float("inf")), None
    room = Room(when)
    crowd(when, room)
    found = when.model.minimise(when.end, time_limit_s)
    decided = None if found.values is None else _read(when, room, found.values)
    return Solution(found.values, found.is_complete, found.least * when.unit_ns), decided


def _read(when: Times, room: Room, values: NDArray[np.float64]) -> Decisions:
    space = when.space
    taken = frozenset(c for c in range(space.choices) if when.model.value(when.chosen(c), values) > 0.5)
    outs = sorted(_needed(space, taken), key=lambda o: (values[when.outs[o]], o))
    made = [g for g in when.ins if space.gaps[g].choice is None or space.gaps[g].choice in taken]
    ins = sorted(made, key=lambda g: (values[when.ins[g]], g))
    return Decisions(taken, tuple(outs), tuple((g, _issued_after(when, room, g, values)) for g in ins))


def _needed(space: Space, taken: frozenset[int]) -> set[int]:
    """Copies out that the chosen gaps need."""
    chosen = [gap for gap in space.gaps if gap.choice is None or gap.choice in taken]
    return {gap.out for gap in chosen if gap.out is not None and space.outs[gap.out].needless_if not in taken}


def _issued_after(when: Times, room: Room, g: int, values: NDArray[np.float64]) -> int:
    """The last op that takes its room before the copy in does: a flag says so where it matters, else the time."""
    begin = values[when.ins[g]] + 1e-9

    def is_late(k: int) -> bool:
        flag = room.late_flags.get((g, k))
        return bool(values[when.starts[k]] <= begin if flag is None else when.model.value(flag, values) > 0.5)

    return max((k for k in range(when.space.gaps[g].before) if is_late(k)), default=-1)
