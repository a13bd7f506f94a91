"""Working sets of ops, the homes that leave room for them, and whether every op can run at all.

*Dynamic reads* are an op's reads of some candidates, known once an earlier op has revealed them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from simulator.errors import CapacityError, ScopeError
from simulator.graph import DynamicReads
from simulator.lifetime import NEVER, live_bytes
from simulator.plan import FREE, NOWHERE
from simulator.policies.problem import Problem
from simulator.trace import Ints, held_bytes


@dataclass(frozen=True)
class DynamicReaders:
    """The dynamic reads of a problem.

    Attributes
    ----------
    problem
        Problem with these reads.
    on_demand
        Whether they are handled once they are revealed; else `readers` is empty, and ops read all candidates.
    """

    problem: Problem
    on_demand: bool = True

    @cached_property
    def readers(self) -> dict[int, DynamicReads]:
        """Op -> its dynamic reads, in program order."""
        return self.problem.graph.dynamic_reads if self.on_demand else {}

    @cached_property
    def revealed(self) -> dict[int, list[int]]:
        """Revealing op -> ops whose dynamic reads it reveals."""
        readers: dict[int, list[int]] = {}
        for op, reads in self.readers.items():
            readers.setdefault(reads.revealed_by, []).append(op)
        return readers

    def signal(self, op: int) -> int:
        """Return a tensor that a revealing op writes; once it is synced the choice is known."""
        return self.problem.graph.ops[op].writes[0]

    @cached_property
    def candidates(self) -> frozenset[int]:
        """Tensors that ops may read dynamically and that may move."""
        candidates = {t for reads in self.readers.values() for t in reads.candidates}
        return frozenset(t for t in candidates if not self.problem.pinned(t))

    @cached_property
    def free(self) -> frozenset[int]:
        """Candidates whose home is free."""
        return frozenset(t for t in self.candidates if self.problem.homes[t] == FREE)

    def settled(self, chosen: Collection[int]) -> DynamicReaders:
        """Fix the homes of candidates: the compute tier for those in `chosen`, a tier away for other free ones.

        Away is the nearest tier with room from which a link leads into the compute tier, for the likeliest first.
        """
        problem, tier = self.problem, self.problem.compute_tier
        left = {away: room for away, room in problem.left_away.items() if (away, tier) in problem.links}
        full = next(iter(left or problem.neighbours), NOWHERE)
        homes = dict.fromkeys(chosen, tier) | _assign_homes(problem, self.likeliest(self.free - {*chosen}), left, full)
        settled = (homes.get(t, home) for t, home in enumerate(problem.homes))
        return DynamicReaders(replace(problem, homes=tuple(settled)))

    def most_bytes(self, op: int) -> int:
        """Return the most bytes that an op may choose of candidates that may move."""
        reads = self.readers[op]
        sizes = sorted((self.problem.sizes[t] for t in reads.candidates if t in self.candidates), reverse=True)
        return sum(sizes[: reads.samples * reads.each])

    @cached_property
    def awaited_bytes(self) -> Ints:
        """Op -> the most bytes that are revealed and not yet read before it, its own included."""
        readers = self.readers.items()
        first, last = [reads.revealed_by + 1 for _, reads in readers], [op for op, _ in readers]
        return held_bytes(first, last, [self.most_bytes(op) for op, _ in readers], len(self.problem.graph.ops))

    @property
    def most_awaited_bytes(self) -> int:
        """The most bytes that are revealed and not yet read at once."""
        return int(self.awaited_bytes.max())

    @cached_property
    def shares(self) -> dict[int, float]:
        """Candidate -> the highest probability with which any op chooses it."""
        likely: dict[int, float] = {}
        for op, reads in self.readers.items():
            for tensor, share in zip(reads.candidates, self.problem.popularity.get(op, ()), strict=False):
                likely[tensor] = max(share, likely.get(tensor, 0.0))
        return likely

    def likeliest(self, among: Collection[int]) -> list[int]:
        """Sort candidates, the likeliest first."""
        return sorted(among, key=lambda t: (-self.shares.get(t, 0.0), t))

    def hottest(self, room_bytes: int | float, among: Collection[int]) -> frozenset[int]:
        """Return the likeliest candidates that fit into some room together."""
        order = self.likeliest(among)
        taken = accumulate(self.problem.sizes[t] for t in order)
        return frozenset(t for t, size in zip(order, taken, strict=True) if size <= room_bytes)

    def check(self, policy: str, *, writes_back: bool = False) -> None:
        """Refuse dynamic reads that cannot be handled at run time.

        Parameters
        ----------
        policy
            Its name, for messages.
        writes_back
            Whether it copies home what ops update of what they have chosen, in each step.

        Raises
        ------
        ScopeError
            If a candidate may change or does not persist, or a revealing op writes nothing that could be synced.
        """
        graph = self.problem.graph
        updated = {t for t in graph.updated if graph.tensors[t].persistent} if writes_back else frozenset[int]()
        odd = next(iter(self.candidates - graph.cacheable - updated), None)
        if odd is not None:
            name = graph.tensors[odd].name
            must, do = "a candidate persists, and no op writes it", "keep its home in the compute tier"
            raise ScopeError(f"policy {policy!r}", must, f"the candidate {name!r}", do)
        mute = next((op for op in self.revealed if not graph.ops[op].writes), None)
        if mute is not None:
            must, do = "an op that reveals dynamic reads writes a tensor to sync", "let it write its choice"
            raise ScopeError(f"policy {policy!r}", must, f"nothing written by {graph.ops[mute].name!r}", do)


def _assign_homes(problem: Problem, order: Iterable[int], left: dict[int, int | float], full: int) -> dict[int, int]:
    """Assign tensors in some order to the first tier that has room.

    Parameters
    ----------
    problem, order
        Problem of the tensors, and their order.
    left
        Tier -> room it has left [B], the best first; reduced by the tensors that are assigned.
    full
        The tier for tensors that no tier has room for.
    """
    homes = {}
    for tensor in order:
        size = problem.sizes[tensor]
        homes[tensor] = home = next((tier for tier, room in left.items() if size <= room), full)
        left[home] = left.get(home, 0) - size
    return homes


class WorkingSets:
    """The working sets of all ops.

    Parameters
    ----------
    dynamic
        Dynamic reads of the problem; no op counts as a user of their candidates.

    Attributes
    ----------
    ops
        The ops; without their dynamic reads if these are handled apart.
    reads, uses
        By op: tensors that it reads, or uses, without those that stay in the compute tier for good.
    pinned
        Tensors that never leave.
    homes
        By tensor: its tier at time 0.
    residents, guests
        Persistent tensors that may move: those with their home in the compute tier, and with another.
    outputs
        Outputs that are not persistent.

    Raises
    ------
    CapacityError
        If some op cannot run within the budget whatever is evicted.
    """

    def __init__(self, dynamic: DynamicReaders) -> None:
        self.problem, self.dynamic = dynamic.problem, dynamic
        problem, graph = dynamic.problem, dynamic.problem.graph
        self.ops = graph.certain.ops if dynamic.readers else graph.ops
        self.pinned = frozenset(t for t in range(len(graph.tensors)) if problem.pinned(t))
        staying = frozenset(t for t in self.pinned if graph.tensors[t].persistent and t in problem.lifetimes.inputs)
        self.reads = [dict.fromkeys(t for t in op.reads if t not in staying) for op in self.ops]
        self.uses = [tuple(dict.fromkeys(t for t in (*op.reads, *op.writes) if t not in staying)) for op in self.ops]
        self.outputs = [t for t in graph.outputs if not graph.tensors[t].persistent]
        persistent = [t for t, about in enumerate(graph.tensors) if about.persistent and t not in self.pinned]
        self.homes = problem.resolved_homes({} if self.nothing_moves else self._choose_homes(persistent))
        self.residents = dict.fromkeys(t for t in persistent if self.homes[t] == problem.compute_tier)
        self.guests = [t for t in persistent if self.homes[t] != problem.compute_tier]

    @cached_property
    def nothing_moves(self) -> bool:
        """Whether everything fits into the compute tier and may live there."""
        return self.fits_without(frozenset())

    def fits_without(self, away: frozenset[int]) -> bool:
        """Return whether all tensors but those away fit into the compute tier, beside what ops await of these."""
        problem, awaited = self.problem, self.dynamic.awaited_bytes if away else 0
        live = live_bytes(problem.graph) - sum(problem.sizes[t] for t in away) + awaited
        homes = {home for t, home in enumerate(problem.homes) if t not in away}
        return homes <= {FREE, problem.compute_tier} and int(live.max()) <= problem.budget_bytes

    def _choose_homes(self, persistent: Iterable[int]) -> dict[int, int]:
        """Choose free homes by first use: the compute tier while all ops still fit, then the nearest tier with room.

        Candidates of dynamic reads come last, the likeliest first.
        """
        problem, first_use, dynamic = self.problem, self.problem.lifetimes.first_use, self.dynamic
        left = {problem.compute_tier: problem.budget_bytes - self.demand_bytes, **problem.left_away}
        share = dict.fromkeys(dynamic.candidates, 0.0) | dynamic.shares
        free = (t for t in persistent if problem.homes[t] == FREE)
        order = sorted(free, key=lambda t: (-share.get(t, 2.0), first_use[t] == NEVER, first_use[t], t))
        return _assign_homes(problem, order, left, (NOWHERE, *problem.neighbours)[-1])

    @cached_property
    def hottest(self) -> frozenset[int]:
        """Candidates that never leave: those at home in the compute tier, and the likeliest that fit beside them."""
        spare = self.problem.budget_bytes - self.demand_bytes - sum(self.problem.sizes[t] for t in self.residents)
        live = self.dynamic.candidates & self.residents.keys()
        return live | self.dynamic.hottest(spare, self.dynamic.candidates - live)

    @cached_property
    def demand_bytes(self) -> int:
        """The most that any op needs with all else evicted [B]."""
        problem, lifetimes = self.problem, self.problem.lifetimes
        used = [sum(problem.sizes[t] for t in tensors if t not in self.pinned) for tensors in self.uses]
        demand = live_bytes(problem.graph, self.pinned) + used + self.dynamic.awaited_bytes
        most, op = int(demand.max()), int(demand.argmax())
        if most <= problem.budget_bytes:
            return most
        held = {*self.uses[op], *(t for t in self.pinned if lifetimes.born[t] <= op <= lifetimes.dies[t])}
        moment = f"op {problem.graph.ops[op].name}"
        raise CapacityError(problem.shortfall(problem.compute_tier, most, moment, held))
