"""The room of the program: what is away when room is taken, at the start of each op and of each copy in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import gcd

from simulator.policies.optimal.model import FALSE, TRUE, Expression, constant, negated, no, times
from simulator.policies.optimal.times import Times


class Room:
    """Flags that say what comes before what, and rows that let everything fit.

    Parameters
    ----------
    when
        The times of the program.

    Attributes
    ----------
    absent
        ``(gap, op)`` -> whether its tensor is away while the op runs, for ops that need that somebody is.
    late_flags
        ``(gap, op)`` -> `late`, as far as it matters.
    """

    def __init__(self, when: Times) -> None:
        self._when, self._space, self._model = when, when.space, when.model
        self._ops = len(when.starts)
        self._budget = int(min(when.problem.budget_bytes, 2**62))
        self.absent: dict[tuple[int, int], Expression] = {}
        self.late_flags: dict[tuple[int, int], Expression] = {}
        self.freed: Callable[[int, int], Expression] = cache(self._freed)
        self._over: Callable[[int, int], Expression] = cache(self._new_over)
        self._fit_start()
        for k in range(self._ops):
            self._fit_op(k)
        for g in when.ins:
            self._fit_copy(g)

    def late(self, g: int, k: int) -> Expression:
        """Whether the copy in of gap `g` starts after op `k` has taken its room."""
        gap = self._space.gaps[g]
        if k <= max(gap.after, self._when.problem.fences[gap.before] - 1):
            return TRUE
        if k >= gap.before:
            return FALSE
        if (g, k) not in self.late_flags:
            self.late_flags[g, k] = self._new_late(g, k)
        return self.late_flags[g, k]

    def _new_late(self, g: int, k: int) -> Expression:
        when, away = self._when, self._when.away(g)
        begin, start = when.in_start(g), when.start(k)
        if when.lack(start, begin) <= 0:
            return TRUE
        if when.lack(begin, start) <= 0:
            return FALSE
        late: Expression = [(1, self._model.flag())]
        when.order_if(start, begin, late, away)
        when.order_if(begin, start, no(late), away)
        if self._space.taken_bytes[k]:
            self._keep_back(g, k, no(late))
        self._model.at_least([*self._over(g, k - 1), *negated(late)])
        return late

    def _keep_back(self, g: int, k: int, early: Expression) -> None:
        """A copy that op `k` does not wait for takes room before the op only if it can when the op is ready."""
        when, gaps = self._when, self._space.gaps
        others = [no(when.away(h)) for h in when.ins if gaps[h].before == k]
        when.order_if(when.in_start(g), when.ended(k - 1), early, when.away(g), *others)

    def _new_over(self, g: int, k: int) -> Expression:
        """Whether the copy in of gap `g` starts after op `k` has ended."""
        gap, when = self._space.gaps[g], self._when
        if k <= gap.after:
            return TRUE
        if k >= gap.before:
            return FALSE
        begin, end = when.in_start(g), when.ended(k)
        if when.lack(end, begin) <= 0:
            return TRUE
        if when.lack(begin, end) < 0:
            return FALSE
        over: Expression = [(1, self._model.flag())]
        when.order_if(end, begin, over, when.away(g))
        self._model.at_least([*self.late(g, k), *negated(over)])
        return over

    def _freed(self, g: int, k: int) -> Expression:
        """Whether the room of gap `g`, which op `k` lies in, is free when the op starts."""
        gap, when = self._space.gaps[g], self._when
        if gap.out is None:
            return when.away(g)
        end, is_needed = when.out_end(gap.out), self._space.outs[gap.out].needless_if is None
        if is_needed and when.lack(when.start(k), end) < 0:
            return FALSE
        freed: Expression = [(1, self._model.flag())]
        when.order_if(end, when.start(k), freed, when.made(gap.out))
        self._model.at_least([*when.away(g), *negated(freed)])
        if k - 1 > gap.after:
            self._model.at_least([*freed, *negated(self.freed(g, k - 1))])
        return freed

    def _absent(self, g: int, k: int) -> Expression:
        """Whether the tensor of gap `g`, which op `k` lies in, is away while the op runs: freed, and not back."""
        freed = self.freed(g, k)
        if g not in self._when.ins or not freed:
            return freed
        late = self.late(g, k)
        if constant(late):
            return freed if late else FALSE
        both: Expression = [(1, self._model.share())]
        self._model.at_least([*freed, *negated(both)])
        self._model.at_least([*late, *negated(both)])
        self._model.at_least([*freed, *late, *negated(self._when.away(g)), *negated(both)])
        return both

    def _fit_start(self) -> None:
        """What is at home in the compute tier fits before the first op."""
        gaps = self._space.gaps
        away = [(gaps[g].size_bytes, self._when.away(g)) for g in self._space.leading]
        self._fits(self._space.at_home_bytes, away)

    def _fit_op(self, k: int) -> None:
        held = self._space.during(k)
        if held > self._budget:
            inside = [g for g, gap in enumerate(self._space.gaps) if gap.after < k < gap.before]
            self.absent |= {(g, k): self._absent(g, k) for g in inside}
            self._fits(held, [(self._space.gaps[g].size_bytes, self.absent[g, k]) for g in inside])

    def _fit_copy(self, g: int) -> None:
        """Room when the copy in of gap `g` starts."""
        space, gap = self._space, self._space.gaps[g]
        held = most = at_first = space.after(gap.after)
        changes: list[tuple[int, Expression]] = []
        for k in range(gap.after + 1, gap.before):
            most = max(most, held + space.taken_bytes[k])
            held += space.taken_bytes[k] - space.freed_bytes[k]
        if most <= self._budget:
            return
        for k in range(gap.after + 1, gap.before):
            changes += [(-space.taken_bytes[k], self.late(g, k)), (space.freed_bytes[k], self._over(g, k))]
        others = [h for h, other in enumerate(space.gaps) if other.tensor != gap.tensor]
        gone = [(space.gaps[h].size_bytes, self._gone(h, g)) for h in others]
        self._fits(at_first, [*changes, *gone, (most - self._budget, no(self._when.away(g)))])

    def _gone(self, h: int, g: int) -> Expression:
        """Whether the tensor of gap `h` is away when the copy in of gap `g` takes room."""
        other, gap, when = self._space.gaps[h], self._space.gaps[g], self._when
        if other.after >= gap.before or gap.after >= other.before or not other.size_bytes:
            return FALSE
        free = TRUE if other.after < 0 else self._over(g, other.after)
        if h in when.ins:
            not_back = when.in_first(g, h)
        else:
            not_back = no(self.late(g, other.before)) if other.before < self._ops else TRUE
        if not free or not not_back:
            return FALSE
        gone: Expression = [(1, self._model.flag())]
        for needed in (when.away(h), free, not_back):
            self._model.at_least([*needed, *negated(gone)])
        if other.out is not None:
            when.order_if(when.out_end(other.out), when.in_start(g), gone, when.made(other.out))
        return gone

    def _fits(self, held_bytes: int, less: Sequence[tuple[int, Expression]]) -> None:
        """What is held, less what is away, is at most the budget; in the largest unit that keeps numbers whole."""
        terms = [term for size, flag in less for term in times(size, flag)]
        unit = gcd(*(int(c) for c, _ in terms)) or 1
        whole = [(c // unit, v) for c, v in terms]
        self._model.at_least(whole, -((self._budget - held_bytes) // unit))
