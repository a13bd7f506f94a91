"""The times of the program: when each op and each copy starts, and which copy of a link goes first.

A condition that holds only if some flags are set is written with a slack that covers its absence; how much that must
be follows from the windows in which things can happen, and a flag that the windows decide is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from simulator.policies.optimal.model import FALSE, ONE, TRUE, Expression, Model, negated, no
from simulator.policies.optimal.space import Gap, Space
from simulator.policies.problem import Problem


class Times:
    """Variables of time and of what is done, with the rows between them.

    Parameters
    ----------
    problem, space
        What is decided.
    horizon_ns, least_ns
        No step is looked at that takes longer; none takes less [ns].

    Attributes
    ----------
    model
        The program.
    end
        Variable: the length of the step.
    starts, ins, outs
        Variables: start of each op; of the copy in of each gap that has one; of each copy out.
    in_ns, out_ns
        How long the copies take [ns].
    is_possible
        Whether the windows leave any time at all.
    """

    def __init__(self, problem: Problem, space: Space, horizon_ns: int, least_ns: int) -> None:
        self.problem, self.space, self.model = problem, space, Model()
        clock, self._horizon = problem.clock, horizon_ns
        self._durations = problem.durations_ns
        self._earliest = clock[:-1]
        self._latest = [horizon_ns - (clock[-1] - start) for start in self._earliest]
        self.is_possible = least_ns <= horizon_ns and clock[-1] <= horizon_ns
        if self.is_possible:
            self.end = self.model.time(least_ns, horizon_ns)
            self.starts = [self.model.time(*window) for window in zip(self._earliest, self._latest, strict=True)]
            self._choices = [self.model.flag() for _ in range(space.choices)]
            self._declare_copies()
            self._order_ops()
            self._order_copies_out()
            self._order_copies_in()
            self._out_first = self._take_turns(self.outs, self.out_ns, self.made)
            self._in_first = self._take_turns(self.ins, self.in_ns, self.away)

    def away(self, g: int) -> Expression:
        """Whether a gap is spent away."""
        choice = self.space.gaps[g].choice
        return TRUE if choice is None else [(1, self._choices[choice])]

    def chosen(self, choice: int) -> Expression:
        """Whether a choice is taken."""
        return [(1, self._choices[choice])]

    def made(self, o: int) -> Expression:
        """Whether a copy out is made."""
        return [(1, self._copied[o])]

    def start(self, k: int) -> Expression:
        """Start of an op; of the number of ops, the end of the step."""
        return [(1, self.starts[k])]

    def ended(self, k: int) -> Expression:
        """End of an op; of -1, the start of the step."""
        return [] if k < 0 else [(1, self.starts[k]), (self._durations[k], ONE)]

    def out_end(self, o: int) -> Expression:
        """End of a copy out."""
        return [(1, self.outs[o]), (self.out_ns[o], ONE)]

    def in_start(self, g: int) -> Expression:
        """Start of a copy in."""
        return [(1, self.ins[g])]

    def in_first(self, a: int, b: int) -> Expression:
        """Whether of two copies in, by their gaps, `a` goes first."""
        return self._in_first[a, b]

    def order_if(self, early: Expression, late: Expression, *flags: Expression) -> None:
        """`early` is not after `late` if all flags are set."""
        lack = self.lack(early, late)
        if lack > 0:
            unset = [(lack * c, v) for flag in flags for c, v in no(flag)]
            self.model.at_least([*late, *negated(early), *unset])

    def lack(self, early: Expression, late: Expression) -> int:
        """By how much `late` can come before `early` at most; not positive if it never does."""
        return self.model.largest([*early, *negated(late)])

    def _window(self, gap: Gap) -> tuple[int, int]:
        """When the copy in that ends the gap may start."""
        fence = self.problem.fences[gap.before]
        earliest = self._earliest[fence - 1] if fence else 0
        if gap.after >= 0:
            earliest = max(earliest, self._earliest[gap.after] + self._durations[gap.after])
        return earliest, self._latest[gap.before] - (gap.in_ns or 0)

    def _declare_copies(self) -> None:
        space, model = self.space, self.model
        self.out_ns = {o: out.takes_ns for o, out in enumerate(space.outs)}
        self.outs: dict[int, int] = {}
        self._copied = [model.flag() for _ in space.outs]
        until = self._horizon + (sum(self.out_ns.values()) if space.lead else 0)
        for o, out in enumerate(space.outs):
            earliest = 0 if out.written < 0 else self._earliest[out.written] + self._durations[out.written]
            self.outs[o] = self._start_of_copy((earliest, until - self.out_ns[o]), self.made(o))
        made = {g: gap for g, gap in enumerate(space.gaps) if gap.in_ns is not None}
        self.in_ns = {g: (gap.in_ns or 0) for g, gap in made.items()}
        self.ins = {g: self._start_of_copy(self._window(gap), self.away(g)) for g, gap in made.items()}

    def _start_of_copy(self, window: tuple[int, int], made: Expression) -> int:
        earliest, latest = window
        if earliest > latest:
            self.model.at_least(negated(made))
        return self.model.time(earliest, max(earliest, latest))

    def _order_ops(self) -> None:
        for k in range(len(self.starts)):
            self.order_if(self.ended(k - 1), self.start(k))
        self.order_if(self.ended(len(self.starts) - 1), [(1, self.end)])

    def _order_copies_out(self) -> None:
        """A copy out follows the op that makes its version; the only step of a run ends after it."""
        for o, out in enumerate(self.space.outs):
            self.order_if(self.ended(out.written), [(1, self.outs[o])], self.made(o))
            if not self.space.lead:
                self.order_if(self.out_end(o), [(1, self.end)], self.made(o))
        for g, gap in enumerate(self.space.gaps):
            if gap.out is not None:
                needless = self.space.outs[gap.out].needless_if
                away_already = FALSE if needless is None else self.chosen(needless)
                self.model.at_least([*self.made(gap.out), *away_already, *negated(self.away(g))])

    def _order_copies_in(self) -> None:
        """A copy in follows the last use, the copy out and the fence; the next use follows it."""
        for g in self.ins:
            gap, away = self.space.gaps[g], self.away(g)
            self.order_if(self.ended(gap.after), self.in_start(g), away)
            fence = self.problem.fences[gap.before]
            if fence:
                self.order_if(self.start(fence - 1), self.in_start(g), away)
            if gap.out is not None:
                self.order_if(self.out_end(gap.out), self.in_start(g), away, self.made(gap.out))
            self.order_if([*self.in_start(g), (self.in_ns[g], ONE)], self.start(gap.before), away)

    def _take_turns(
        self, starts: Mapping[int, int], takes: Mapping[int, int], made: Callable[[int], Expression]
    ) -> dict[tuple[int, int], Expression]:
        """Copies of one link follow each other; say who goes first."""
        first: dict[tuple[int, int], Expression] = {}
        for a, b in combinations(starts, 2):
            end_a, end_b = ([(1, starts[c]), (takes[c], ONE)] for c in (a, b))
            if self.model.least([*end_a, (-1, starts[b])]) > 0:
                first[a, b] = FALSE
            elif self.model.least([*end_b, (-1, starts[a])]) > 0:
                first[a, b] = TRUE
            else:
                first[a, b] = [(1, self.model.flag())]
            first[b, a] = no(first[a, b])
            self.order_if(end_a, [(1, starts[b])], first[a, b], made(a), made(b))
            self.order_if(end_b, [(1, starts[a])], first[b, a], made(a), made(b))
        return first
