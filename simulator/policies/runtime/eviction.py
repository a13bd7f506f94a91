"""Eviction policies: which tensor leaves the compute tier first, each in at most O(log n) per use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection
from heapq import heappop, heappush
from typing import Any

from simulator.plan import NOWHERE
from simulator.policies.problem import Problem


class Eviction(ABC):
    """The tensors that are in the compute tier and may leave it.

    Attributes
    ----------
    now
        Number of the running op since the run began; whoever runs ops sets it.
    """

    now = -1

    @abstractmethod
    def touch(self, tensor: int) -> None:
        """Note that a tensor has come, or that the running op uses it."""

    @abstractmethod
    def discard(self, tensor: int) -> None:
        """Leave out a tensor that has left or died."""

    @abstractmethod
    def first(self, needed: Collection[int]) -> int:
        """The tensor to evict first, none of `needed`; `NOWHERE` if there is none."""


class LeastRecent(Eviction):
    """``lru``: the tensor whose last use is longest ago.

    Parameters
    ----------
    stay
        Tensors that never leave.
    """

    def __init__(self, stay: Collection[int] = ()) -> None:
        self._stay, self._order = stay, OrderedDict[int, None]()

    def touch(self, tensor: int) -> None:
        """Make a tensor the most recent."""
        if tensor not in self._stay:
            self._order[tensor] = None
            self._order.move_to_end(tensor)

    def discard(self, tensor: int) -> None:
        """Leave it out."""
        self._order.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """Return the least recent; what is needed has mostly just been touched, so it comes last."""
        for tensor in self._order:
            if tensor not in needed:
                return tensor
        return NOWHERE


class Ranked(Eviction):
    """The tensor of the least rank; a heap, whose entries are dropped late if their rank has changed since."""

    def __init__(self) -> None:
        self._ranks: dict[int, Any] = {}
        self._heap: list[tuple[Any, int]] = []
        self._needed: Collection[int] = ()
        self._passed: list[tuple[Any, int]] = []

    @abstractmethod
    def _rank(self, tensor: int) -> Any:
        """The rank of a tensor that has just come, or is just used."""

    def touch(self, tensor: int) -> None:
        """Rank a tensor anew."""
        rank = self._rank(tensor)
        if self._ranks.get(tensor) != rank:
            self._ranks[tensor] = rank
            heappush(self._heap, (rank, tensor))

    def discard(self, tensor: int) -> None:
        """Leave it out."""
        self._ranks.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """Return the first; what is passed over for an op goes back when another asks."""
        if needed is not self._needed:
            self._needed = needed
            while self._passed:
                heappush(self._heap, self._passed.pop())
        while self._heap:
            rank, tensor = self._heap[0]
            if self._ranks.get(tensor) != rank:
                heappop(self._heap)
            elif tensor in needed:
                self._passed.append(heappop(self._heap))
            else:
                return tensor
        return NOWHERE


class LeastUsed(Ranked):
    """``lfu``: the tensor used least often since the run began; of equals, the one whose last use is longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[int, int] = {}
        self._touches = 0

    def _rank(self, tensor: int) -> tuple[int, int]:
        self._touches += 1
        self._uses[tensor] = uses = self._uses.get(tensor, 0) + 1
        return uses, self._touches


class Oldest(Ranked):
    """``fifo``: the tensor whose producer is oldest, then the larger (upstream's warm-up rule)."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self._problem = problem

    def _rank(self, tensor: int) -> tuple[int, int]:
        born = -1 if self._problem.starts_with[tensor] else self._problem.lifetimes.first_write[tensor]
        return born, -self._problem.sizes[tensor]


class Furthest(Ranked):
    """``furthest``: the tensor whose next use is furthest away (the rule of MindSpore's sliding window)."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self._uses, self._ops = problem.lifetimes.uses, len(problem.graph.ops)

    def _rank(self, tensor: int) -> int:
        """The first use after the running op, with the sign turned."""
        step, op = divmod(self.now, self._ops)
        uses = self._uses[tensor]
        following = bisect_right(uses, op)
        if following < len(uses):
            return -step * self._ops - uses[following]
        return -(step + 1) * self._ops - (uses[0] if uses else self._ops)


def eviction(order: str, problem: Problem, stay: Collection[int]) -> Eviction:
    """Make an eviction policy; under ``hot`` some tensors stay, of the others the least recent leaves first."""
    if order == "furthest":
        return Furthest(problem)
    if order == "fifo":
        return Oldest(problem)
    return LeastUsed() if order == "lfu" else LeastRecent(stay if order == "hot" else ())
