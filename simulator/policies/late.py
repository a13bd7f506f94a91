"""What policies share that decide about late reads at run time: what there is to decide, and who leaves a cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate
from typing import Protocol

from simulator.errors import ScopeError
from simulator.graph import Late
from simulator.plan import FREE
from simulator.policies.problem import Problem


@dataclass(frozen=True)
class LateOps:
    """The ops with late reads of a problem.

    Attributes
    ----------
    problem
        What they are of.
    """

    problem: Problem

    @cached_property
    def late(self) -> dict[int, Late]:
        """By op, in program order."""
        return {op: what.late for op, what in enumerate(self.problem.graph.ops) if what.late is not None}

    @cached_property
    def revealed(self) -> dict[int, list[int]]:
        """By revealing op, the ops whose reads it reveals."""
        found: dict[int, list[int]] = {}
        for op, late in self.late.items():
            found.setdefault(late.revealed_by, []).append(op)
        return found

    @cached_property
    def signal(self) -> dict[int, int]:
        """By revealing op, a tensor that it writes: who has synced it knows what is revealed."""
        return {op: self.problem.graph.ops[op].writes[0] for op in self.revealed}

    @cached_property
    def candidates(self) -> frozenset[int]:
        """All that may be read late, and may move."""
        found = {t for late in self.late.values() for t in late.candidates}
        return frozenset(t for t in found if not self.problem.pinned(t))

    @cached_property
    def free(self) -> frozenset[int]:
        """Those candidates whose home is free."""
        return frozenset(t for t in self.candidates if self.problem.homes[t] == FREE)

    def settled(self, here: Collection[int]) -> Problem:
        """The problem with a home for each candidate: those of `here` in the compute tier, other free ones away.

        Away is the nearest tier with room from which a link leads into the compute tier, for the likeliest first.
        """
        problem, settled = self.problem, dict.fromkeys(here, self.problem.compute_tier)
        left = {tier: room for tier, room in problem.left_away.items() if (tier, problem.compute_tier) in problem.links}
        for tensor in self.likeliest(self.free - settled.keys()):
            size = problem.sizes[tensor]
            fits = (tier for tier, room in left.items() if size <= room)
            settled[tensor] = home = next(fits, next(iter(left), problem.neighbours[0]))
            left[home] = left.get(home, 0) - size
        return replace(problem, homes=tuple(settled.get(t, home) for t, home in enumerate(problem.homes)))

    def most_bytes(self, op: int) -> int:
        """What an op may choose at most [B], of what may move."""
        late = self.late[op]
        sizes = sorted((self.problem.sizes[t] for t in late.candidates if t in self.candidates), reverse=True)
        return sum(sizes[: late.samples * late.each])

    @cached_property
    def awaited_bytes(self) -> list[int]:
        """By op, what is revealed and not read before it at most [B], that of the op itself included."""
        change = [0] * (len(self.problem.graph.ops) + 1)
        for op, late in self.late.items():
            change[late.revealed_by + 1] += self.most_bytes(op)
            change[op + 1] -= self.most_bytes(op)
        return list(accumulate(change))[:-1]

    @cached_property
    def shares(self) -> dict[int, float]:
        """How likely each candidate is to be chosen by the op that is likeliest to."""
        found: dict[int, float] = {}
        for op, shares in self.problem.popularity.items():
            for tensor, share in zip(self.late[op].candidates, shares, strict=True):
                found[tensor] = max(share, found.get(tensor, 0.0))
        return found

    def likeliest(self, among: Collection[int]) -> list[int]:
        """Some candidates, the likeliest first."""
        return sorted(among, key=lambda t: (-self.shares.get(t, 0.0), t))

    def hottest(self, room_bytes: int | float, among: Collection[int] | None = None) -> frozenset[int]:
        """The likeliest candidates, of all or among some, that have room together."""
        found, left = set(), room_bytes
        for tensor in self.likeliest(self.candidates if among is None else among):
            if self.problem.sizes[tensor] > left:
                break
            left -= self.problem.sizes[tensor]
            found.add(tensor)
        return frozenset(found)

    def check(self, policy: str) -> None:
        """Refuse what no policy of this kind can handle.

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


class Leaving(Protocol):
    """Who leaves a cache first."""

    def touch(self, tensor: int) -> None:
        """Note that a tensor is used, or has come."""

    def discard(self, tensor: int) -> None:
        """Leave out one that has left."""

    def first(self, needed: Collection[int]) -> int:
        """The one to leave first, none of `needed`; -1 if there is none."""


class LeastRecent:
    """Who was used last the longest ago leaves first.

    Parameters
    ----------
    stay
        Those that never leave.
    """

    def __init__(self, stay: Collection[int] = ()) -> None:
        self._stay, self._order = stay, OrderedDict[int, None]()

    def touch(self, tensor: int) -> None:
        """Note that a tensor is used, or has come."""
        if tensor not in self._stay:
            self._order[tensor] = None
            self._order.move_to_end(tensor)

    def discard(self, tensor: int) -> None:
        """Leave out one that has left."""
        self._order.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """The one to leave first, none of `needed`; -1 if there is none."""
        for tensor in self._order:
            if tensor not in needed:
                return tensor
        return -1


class LeastUsed:
    """Who was used least often leaves first, of these who was used last the longest ago."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}
        self._now = 0
        self._current: dict[int, tuple[int, int]] = {}
        self._heap: list[tuple[tuple[int, int], int]] = []

    def touch(self, tensor: int) -> None:
        """Note that a tensor is used, or has come."""
        self._now += 1
        self._uses[tensor] = uses = self._uses.get(tensor, 0) + 1
        self._current[tensor] = rank = uses, self._now
        heappush(self._heap, (rank, tensor))

    def discard(self, tensor: int) -> None:
        """Leave out one that has left."""
        self._current.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """The one to leave first, none of `needed`; -1 if there is none."""
        kept, found = [], -1
        while self._heap and found < 0:
            rank, tensor = self._heap[0]
            if self._current.get(tensor) != rank:
                heappop(self._heap)
            elif tensor in needed:
                kept.append(heappop(self._heap))
            else:
                found = tensor
        for entry in kept:
            heappush(self._heap, entry)
        return found


CACHES = ("lru", "lfu", "hot")
"""Orders in which a cache may be left: least recent use first; least often used first; the likeliest candidates stay,
of the others least recent use first."""


def leaving(order: str, ops: LateOps, room_bytes: int | float) -> Leaving:
    """Make the order of leaving a cache of `room_bytes` beside what one op may choose [B]; see `CACHES`."""
    if order == "hot":
        return LeastRecent(ops.hottest(room_bytes))
    return LeastUsed() if order == "lfu" else LeastRecent()
