"""Who leaves first: orders of eviction, each at most O(log n) per use.

An order holds the tensors that are in the compute tier and may leave it. `first` names the next to leave, never one
that the running op needs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from heapq import heappop, heappush
from typing import Any, Protocol

from simulator.policies import late
from simulator.policies.problem import Problem


class Victims(Protocol):
    """An order of eviction.

    Attributes
    ----------
    tells_time
        Whether it needs to know `now`.
    now
        Number of the running op since the run began; the runtime keeps it for an order that needs it.
    """

    tells_time: bool
    now: int

    def add(self, tensor: int) -> None:
        """Take in a tensor that has come into the compute tier."""

    def touch(self, tensor: int) -> None:
        """Note that the running op uses a tensor that is held."""

    def discard(self, tensor: int) -> None:
        """Leave out a tensor that is held: it has left or died."""

    def first(self, needed: Collection[int]) -> int:
        """The tensor to evict first, none of `needed`; -1 if there is none."""


class LeastRecent:
    """``lru``: the one whose last use is longest ago; a chain, which is moved along at each use."""

    tells_time = False
    __slots__ = ("_after", "_before", "_end", "now")

    def __init__(self, problem: Problem) -> None:
        self.now = -1
        self._end = end = len(problem.sizes)
        self._after, self._before = [end] * (end + 1), [end] * (end + 1)

    def add(self, tensor: int) -> None:
        """Take in a tensor as the most recent."""
        after, before, end = self._after, self._before, self._end
        last = before[end]
        after[last] = before[end] = tensor
        before[tensor], after[tensor] = last, end

    def touch(self, tensor: int) -> None:
        """Make a tensor the most recent."""
        after, before, end = self._after, self._before, self._end
        left, right, last = before[tensor], after[tensor], before[end]
        if right != end:
            after[left], before[right] = right, left
            after[last] = before[end] = tensor
            before[tensor], after[tensor] = last, end

    def discard(self, tensor: int) -> None:
        """Leave out a tensor."""
        left, right = self._before[tensor], self._after[tensor]
        self._after[left], self._before[right] = right, left

    def first(self, needed: Collection[int]) -> int:
        """Return the least recent; what is needed has mostly just been touched, so it comes last."""
        after, end = self._after, self._end
        tensor = after[end]
        while tensor != end and tensor in needed:
            tensor = after[tensor]
        return -1 if tensor == end else tensor


class _Front:
    """Entries of a heap that the running op needs, taken off its front: they go back when another op asks.

    Parameters
    ----------
    heap
        What they are taken from.
    """

    def __init__(self, heap: list[Any]) -> None:
        self._heap, self._entries = heap, list[Any]()
        self._needed: Collection[int] = ()

    def ask(self, needed: Collection[int]) -> None:
        """Put entries back, unless it is for the same op that something is to leave."""
        if needed is not self._needed:
            self._needed = needed
            for entry in self._entries:
                heappush(self._heap, entry)
            self._entries.clear()

    def take(self) -> None:
        """Take off the first entry."""
        self._entries.append(heappop(self._heap))


class Oldest:
    """``fifo``: the one whose producer is oldest, then the larger (upstream's warm-up rule)."""

    tells_time = False

    def __init__(self, problem: Problem) -> None:
        self.now = -1
        born, sizes = problem.lifetimes.first_write, problem.sizes
        order = sorted(range(len(sizes)), key=lambda t: (-1 if problem.starts_with[t] else born[t], -sizes[t], t))
        self._rank = [0] * len(order)
        for rank, tensor in enumerate(order):
            self._rank[tensor] = rank
        self._tensor = order
        self._held = bytearray(len(order))
        self._queued = bytearray(len(order))
        self._heap: list[int] = []
        self._front = _Front(self._heap)

    def add(self, tensor: int) -> None:
        """Take in a tensor; its age is that of its producer."""
        self._held[tensor] = 1
        if not self._queued[tensor]:
            self._queued[tensor] = 1
            heappush(self._heap, self._rank[tensor])

    def touch(self, tensor: int) -> None:
        """Do nothing: a use makes nothing younger."""

    def discard(self, tensor: int) -> None:
        """Leave it out."""
        self._held[tensor] = 0

    def first(self, needed: Collection[int]) -> int:
        """Return the oldest."""
        self._front.ask(needed)
        while self._heap:
            tensor = self._tensor[self._heap[0]]
            if not self._held[tensor]:
                heappop(self._heap)
                self._queued[tensor] = 0
            elif tensor in needed:
                self._front.take()
            else:
                return tensor
        return -1


class LeastUsed:
    """``lfu``: the one that was used least often since the run began; of equals, whose last use is longest ago."""

    tells_time = False

    def __init__(self, problem: Problem) -> None:
        self.now = -1
        self._order = late.LeastUsed()
        self.touch = self.add = self._order.touch
        self.discard = self._order.discard

    def first(self, needed: Collection[int]) -> int:
        """Return the least used."""
        return self._order.first(needed)


class Staying:
    """Another order, but some tensors never leave.

    Parameters
    ----------
    others
        The order of the others.
    stay
        Those that stay.
    """

    def __init__(self, others: Victims, stay: Collection[int]) -> None:
        self._others, self._stay = others, stay
        self.tells_time, self.now = others.tells_time, -1

    def add(self, tensor: int) -> None:
        """Take in a tensor that may leave."""
        if tensor not in self._stay:
            self._others.add(tensor)

    def touch(self, tensor: int) -> None:
        """Note a use."""
        if tensor not in self._stay:
            self._others.touch(tensor)

    def discard(self, tensor: int) -> None:
        """Leave it out."""
        if tensor not in self._stay:
            self._others.discard(tensor)

    def first(self, needed: Collection[int]) -> int:
        """Return the first of the others."""
        return self._others.first(needed)


class Furthest:
    """``furthest``: the one whose next use is furthest away (the rule of MindSpore's sliding window)."""

    tells_time = True

    def __init__(self, problem: Problem) -> None:
        self.now = -1
        self._uses, self._n = problem.lifetimes.uses, len(problem.graph.ops)
        self._next = [-1] * len(problem.sizes)
        self._heap: list[tuple[int, int]] = []
        self._front = _Front(self._heap)

    def add(self, tensor: int) -> None:
        """Take in a tensor, by its first use after the running op."""
        step, op = divmod(self.now, self._n)
        uses = self._uses[tensor]
        at = bisect_right(uses, op)
        if at < len(uses):
            following = step * self._n + uses[at]
        else:
            following = (step + 1) * self._n + (uses[0] if uses else self._n)
        self._next[tensor] = following
        heappush(self._heap, (-following, tensor))

    touch = add

    def discard(self, tensor: int) -> None:
        """Leave it out."""
        self._next[tensor] = -1

    def first(self, needed: Collection[int]) -> int:
        """Return the one with the furthest next use."""
        self._front.ask(needed)
        while self._heap:
            key, tensor = self._heap[0]
            if self._next[tensor] != -key:
                heappop(self._heap)
            elif tensor in needed:
                self._front.take()
            else:
                return tensor
        return -1
