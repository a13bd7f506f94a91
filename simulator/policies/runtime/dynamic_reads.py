"""Dynamic reads: what an op reads of some candidates, known once an earlier op has revealed it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from simulator.errors import ScopeError
from simulator.graph import Late
from simulator.plan import FREE, NOWHERE
from simulator.policies.problem import Problem


@dataclass(frozen=True)
class DynamicReads:
    """The dynamic reads of a problem.

    Attributes
    ----------
    problem
        What they are of.
    on_demand
        Whether they are handled once they are revealed; else there are none, and all candidates are read.
    """

    problem: Problem
    on_demand: bool = True

    @cached_property
    def readers(self) -> dict[int, Late]:
        """What each op reads dynamically, in program order."""
        return {op: what.late for op, what in enumerate(self.problem.graph.ops) if what.late and self.on_demand}

    @cached_property
    def revealed(self) -> dict[int, list[int]]:
        """By revealing op, the readers whose choice it reveals."""
        readers: dict[int, list[int]] = {}
        for op, late in self.readers.items():
            readers.setdefault(late.revealed_by, []).append(op)
        return readers

    @cached_property
    def signal(self) -> dict[int, int]:
        """By revealing op, a tensor that it writes: who has synced it knows what is revealed."""
        return {op: self.problem.graph.ops[op].writes[0] for op in self.revealed}

    @cached_property
    def candidates(self) -> frozenset[int]:
        """All that may be read dynamically, and may move."""
        candidates = {t for late in self.readers.values() for t in late.candidates}
        return frozenset(t for t in candidates if not self.problem.pinned(t))

    @cached_property
    def free(self) -> frozenset[int]:
        """Those candidates whose home is free."""
        return frozenset(t for t in self.candidates if self.problem.homes[t] == FREE)

    def settled(self, here: Collection[int]) -> DynamicReads:
        """Give each candidate a home: those of `here` the compute tier, other free ones a tier away.

        Away is the nearest tier with room from which a link leads into the compute tier, for the likeliest first.
        """
        problem, tier = self.problem, self.problem.compute_tier
        left = {away: room for away, room in problem.left_away.items() if (away, tier) in problem.links}
        full = next(iter(left or problem.neighbours), NOWHERE)
        homes = dict.fromkeys(here, tier) | assigned(problem, self.likeliest(self.free - {*here}), left, full)
        settled = (homes.get(t, home) for t, home in enumerate(problem.homes))
        return DynamicReads(replace(problem, homes=tuple(settled)))

    def most_bytes(self, op: int) -> int:
        """What an op may choose at most [B], of what may move."""
        late = self.readers[op]
        sizes = sorted((self.problem.sizes[t] for t in late.candidates if t in self.candidates), reverse=True)
        return sum(sizes[: late.samples * late.each])

    @cached_property
    def awaited_bytes(self) -> list[int]:
        """By op, what is revealed and not read before it at most [B], that of the op itself included."""
        change = [0] * (len(self.problem.graph.ops) + 1)
        for op, late in self.readers.items():
            change[late.revealed_by + 1] += self.most_bytes(op)
            change[op + 1] -= self.most_bytes(op)
        return list(accumulate(change))[:-1]

    @cached_property
    def shares(self) -> dict[int, float]:
        """How likely each candidate is to be chosen by the op that is likeliest to."""
        likely: dict[int, float] = {}
        for op, late in self.readers.items():
            for tensor, share in zip(late.candidates, self.problem.popularity.get(op, ()), strict=False):
                likely[tensor] = max(share, likely.get(tensor, 0.0))
        return likely

    def likeliest(self, among: Collection[int]) -> list[int]:
        """Some candidates, the likeliest first."""
        return sorted(among, key=lambda t: (-self.shares.get(t, 0.0), t))

    def hottest(self, room_bytes: int | float, among: Collection[int]) -> frozenset[int]:
        """The likeliest of some candidates that have room together."""
        order = self.likeliest(among)
        taken = accumulate(self.problem.sizes[t] for t in order)
        return frozenset(t for t, size in zip(order, taken, strict=True) if size <= room_bytes)

    def check(self, policy: str) -> None:
        """Refuse what cannot be handled at run time.

        Raises
        ------
        ScopeError
            If a candidate may change or does not persist, or a revealing op writes nothing that could be synced.
        """
        graph = self.problem.graph
        odd = next(iter(self.candidates - graph.cacheable), None)
        if odd is not None:
            name = graph.tensors[odd].name
            must, do = "what is handled at run time persists, and no op writes it", "keep its home in the compute tier"
            raise ScopeError(f"policy {policy!r}", must, f"{name!r}, which may be read late", do)
        mute = next((op for op in self.revealed if not graph.ops[op].writes), None)
        if mute is not None:
            must, do = "an op that reveals late reads writes what can be synced", "let it write what it decides"
            raise ScopeError(f"policy {policy!r}", must, f"nothing written by {graph.ops[mute].name!r}", do)


def assigned(problem: Problem, order: Iterable[int], left: dict[int, int | float], full: int) -> dict[int, int]:
    """Assign tensors in some order to the first tier that has room.

    Parameters
    ----------
    problem, order
        Whose tensors, and in which order.
    left
        Tier -> what it has left [B], the best first; what is assigned is taken off.
    full
        The tier for what has room in none.
    """
    homes = {}
    for tensor in order:
        size = problem.sizes[tensor]
        homes[tensor] = home = next((tier for tier, room in left.items() if size <= room), full)
        left[home] = left.get(home, 0) - size
    return homes
