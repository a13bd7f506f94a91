"""The integer program: when each op and each copy starts, which gaps are spent away, and who comes before whom.

Flags say what decides the order; times are whole. Room is looked at wherever it is taken: at the start of each op
and of each copy in. A flag that the windows of time decide is a constant, and the windows follow from the plan to beat:
a step that is faster leaves little slack.

Every run of a plan of this space on the engine is a solution, so that no plan is faster than the best solution. The
other way round, a solution may let something wait that the engine would start; the replay tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.policies.optimal.crowding import crowd
from simulator.policies.optimal.model import Solution, Values
from simulator.policies.optimal.observe import Observed
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


class Program:
    """All rows, ready for the solver.

    Parameters
    ----------
    problem, space
        What is decided; of several steps, the window of one.
    horizon_ns, least_ns
        No window is looked at that takes longer; none takes less [ns].
    """

    def __init__(self, problem: Problem, space: Space, horizon_ns: int, least_ns: int) -> None:
        self._when = Times(problem, space, horizon_ns, least_ns)
        if self._when.is_possible:
            self._room = Room(self._when)
            crowd(self._when, self._room)

    def solve(self, time_limit_s: float, observed: Observed | None = None) -> Solution:
        """Look for the shortest window.

        Parameters
        ----------
        time_limit_s
            When to stop [s].
        observed
            Only solutions with these decisions, and flags that suit these times, are looked at; the times themselves
            are then found anew.
        """
        if not self._when.is_possible:
            return Solution(None, is_exact=False, is_complete=True, least_ns=math.inf)
        held = {} if observed is None else self._held(observed)
        return self._when.model.minimise(self._when.end, time_limit_s, held)

    def length_ns(self, values: Values) -> int:
        """How long the window of a solution is [ns]."""
        return int(values[self._when.end])

    def read(self, values: Values) -> Decisions:
        """What a solution decides."""
        when, room, space = self._when, self._room, self._when.space
        taken = frozenset(c for c in range(space.choices) if when.model.value(when.chosen(c), values))
        outs = sorted(_needed(space, taken), key=lambda o: (values[when.outs[o]], when.out_ns[o], o))
        made = [g for g in when.ins if space.gaps[g].choice is None or space.gaps[g].choice in taken]
        ins = sorted(made, key=lambda g: (values[when.ins[g]], when.in_ns[g], g))
        return Decisions(taken, tuple(outs), tuple((g, _issued_after(when, room, g, values)) for g in ins))

    def _held(self, observed: Observed) -> dict[int, int]:
        """What an observed run says of the variables."""
        when = self._when
        held = dict(zip(when.starts, observed.starts, strict=True))
        held |= {when.outs[o]: start for o, start in observed.outs.items()}
        held |= {when.ins[g]: start for g, start in observed.ins.items()}
        held |= {v: int(o in observed.outs) for o in when.outs for _, v in when.made(o)}
        choices = range(when.space.choices)
        return held | {v: int(choice in observed.taken) for choice in choices for _, v in when.chosen(choice)}


def _needed(space: Space, taken: frozenset[int]) -> set[int]:
    """Copies out that the chosen gaps need."""
    chosen = [gap for gap in space.gaps if gap.choice is None or gap.choice in taken]
    return {gap.out for gap in chosen if gap.out is not None and space.outs[gap.out].needless_if not in taken}


def _issued_after(when: Times, room: Room, g: int, values: Values) -> int:
    """The last op that takes its room before the copy in does: a flag says so where it matters, else the time."""
    begin = values[when.ins[g]]

    def is_late(k: int) -> bool:
        flag = room.late_flags.get((g, k))
        return bool(values[when.starts[k]] <= begin if flag is None else when.model.value(flag, values))

    return max((k for k in range(when.space.gaps[g].before) if is_late(k)), default=-1)
