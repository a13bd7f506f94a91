"""The cache of a runtime: where each tensor lies as issued, and the actions that change it.

Room is counted in issue order, and a copy in that is evicted unused is waited for, so whatever is issued can run: a
runtime never blocks itself where each link has a queue of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import Any

from simulator.errors import CapacityError
from simulator.graph import Op
from simulator.plan import COPY, DETACH, FREE, NOWHERE, SYNC, Code, View
from simulator.policies.problem import Problem


class Eviction:
    """Choose which tensor leaves the compute tier next.

    Parameters
    ----------
    order
        ``lru`` and ``hot``: the last use longest ago first. Others: the lowest rank first (`RANKS`).
    problem
        Problem with the graph that runs.
    stay
        Tensors that never leave.

    Attributes
    ----------
    now
        Index of the running op since the run began; set by the caller.
    """

    def __init__(self, order: str, problem: Problem, stay: Collection[int] = ()) -> None:
        self.problem, self.now, self.touches, self.uses = problem, -1, 0, Counter[int]()
        self._rank, self._stay = RANKS.get(order), stay
        # OrderedDict, as the first key of a plain dict is slow to find once thousands before it were deleted.
        self._ranks = OrderedDict[int, Any]()
        self._heap: list[tuple[Any, int]] = []

    def touch(self, tensor: int) -> None:
        """Note that a tensor came in, or that the running op uses it."""
        if tensor in self._stay:
            return
        if self._rank is None:
            self._ranks[tensor] = None
            self._ranks.move_to_end(tensor)
        elif (rank := self._rank(self, tensor)) != self._ranks.get(tensor):
            self._ranks[tensor] = rank
            heappush(self._heap, (rank, tensor))

    def use(self, tensors: Iterable[int]) -> list[int]:
        """Note that the running op uses some tensors; return those that are absent, or never leave."""
        ranks, touch, others = self._ranks, self._ranks.move_to_end if self._rank is None else self.touch, []
        for tensor in tensors:
            if tensor in ranks:
                touch(tensor)
            else:
                others.append(tensor)
        return others

    def discard(self, tensor: int) -> None:
        """Remove a tensor that has left or died."""
        self._ranks.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """Return the next victim, not one of `needed`; `NOWHERE` if there is none."""
        if self._rank is None:
            for tensor in self._ranks:
                if tensor not in needed:
                    return tensor
            return NOWHERE
        passed = []
        while self._heap and (self._is_old(self._heap[0]) or self._heap[0][1] in needed):
            passed.append(heappop(self._heap))
        victim = self._heap[0][1] if self._heap else NOWHERE
        for entry in passed:
            if not self._is_old(entry):
                heappush(self._heap, entry)
        return victim

    def _is_old(self, entry: tuple[Any, int]) -> bool:
        """Return whether an entry is outdated: its tensor has left, or has another rank by now."""
        rank, tensor = entry
        return bool(self._ranks.get(tensor) != rank)


def _times_used(eviction: Eviction, tensor: int) -> tuple[int, int]:
    """LFU: rank by uses since the run began; among equals, the least recent use first."""
    eviction.uses[tensor] += 1
    eviction.touches += 1
    return eviction.uses[tensor], eviction.touches


def _oldest_producer(eviction: Eviction, tensor: int) -> tuple[int, int, int]:
    """FIFO: rank by producer, then the larger first: the warm-up rule of the open-source HyperOffload."""
    problem = eviction.problem
    born = -1 if tensor in problem.lifetimes.inputs else problem.lifetimes.writes[tensor][0]
    return born, -problem.sizes[tensor], tensor


def _furthest_use(eviction: Eviction, tensor: int) -> tuple[int, int]:
    """Rank by the next use, the furthest first: the rule of MindSpore's sliding window."""
    ops, uses = len(eviction.problem.graph.ops), eviction.problem.lifetimes.uses[tensor]
    op = eviction.now % ops
    following = bisect_right(uses, op)
    next_use = uses[following] if following < len(uses) else ops + (uses[0] if uses else ops)
    return op - eviction.now - next_use, tensor


RANKS: dict[str, Callable[[Eviction, int], Any]] = {
    "lfu": _times_used,
    "fifo": _oldest_producer,
    "furthest": _furthest_use,
}
"""Order -> function that ranks a tensor as it comes in or is used."""


class RuntimeCache:
    """The tensors that a runtime decides about: where they are as issued, and the actions that move them.

    Parameters
    ----------
    homes
        Tensor that it decides about -> its tier at time 0, or `NOWHERE`.
    room_bytes
        Room that they may take of the compute tier [B].
    eviction
        Choice of the tensor that leaves first.
    is_direct
        Whether copies take the link between two tiers, rather than the fastest path via others.
    synchronous
        Whether the host waits for each copy.
    drains
        Whether it waits for all that it issued where room lacks for an op: see `drain`.

    Attributes
    ----------
    codes
        Codes that are issued and not yet handed on.
    resident
        Tensors in the compute tier, in the order in which they came.
    below, is_clean
        By tensor: the tier of its copy below, or `NOWHERE`; whether that is valid.
    room
        By tier: the room that is left [B].
    awaited
        Op with dynamic reads -> the chosen candidates, from their reveal until it runs.
    unused
        Tensors that were fetched ahead, and not used since.
    needed_until
        By tensor: the last op in view that uses it, counted since the run began.
    """

    def __init__(
        self,
        homes: Mapping[int, int],
        room_bytes: int | float,
        eviction: Eviction,
        *,
        is_direct: bool = False,
        synchronous: bool = False,
        drains: bool = False,
    ) -> None:
        self.problem, self.homes, self.eviction = eviction.problem, homes, eviction
        self.sizes, self.tier = self.problem.sizes, self.problem.compute_tier
        self._is_direct, self._synchronous, self._drains = is_direct, synchronous, drains
        self._under_way: dict[tuple[int, int], int] = {}  # by link: the last tensor whose copy was not waited for
        self.codes: list[Code] = []
        self.resident: dict[int, None] = {}
        self.below, self.is_clean = [NOWHERE] * len(self.sizes), [False] * len(self.sizes)
        self.room = list(self.problem.capacities)
        self.room[self.tier] = room_bytes
        self.awaited: dict[int, tuple[int, ...]] = {}
        self.unused = set[int]()
        self.needed_until = [-1] * len(self.sizes)
        self._gone: dict[int, None] = {}  # tensors with a copy below, in the order in which they left
        for tensor, tier in homes.items():
            if tier == self.tier:
                self.hold(tensor)
            elif tier != NOWHERE:
                self._count_below(tensor, tier)

    def take(self) -> list[Code]:
        """Hand over the codes issued so far."""
        codes = self.codes.copy()
        self.codes.clear()
        return codes

    def hold(self, tensor: int) -> None:
        """Count a tensor that an op makes or a copy brings into the compute tier."""
        self.resident[tensor] = None
        self.room[self.tier] -= self.sizes[tensor]
        self.eviction.touch(tensor)

    def fetch(self, tensor: int) -> None:
        """Copy a tensor in."""
        self._copy(tensor, self.below[tensor], self.tier)
        self.hold(tensor)

    def reveal(self, readers: Iterable[int], view: View) -> Iterator[list[Code]]:
        """Ask which candidates ops read, and fetch them; evict others for them, but nothing that an op awaits.

        Codes issued so far are handed on before each question.
        """
        for op in readers:
            yield self.take()
            self.awaited[op] = wanted = tuple(t for t in view.chosen(op) if t in self.homes)
            for tensor in wanted:
                if tensor in self.resident:
                    self.eviction.touch(tensor)
                else:
                    self.make_room(self.sizes[tensor], ())
                    self.fetch(tensor)

    def drain(self, last: Op) -> None:
        """Wait, if it drains, for the last op that was issued and for the last copy of each link."""
        if self._drains:
            tensors = (*(*last.writes, *last.reads)[:1], *self._under_way.values())
            self.codes.extend((SYNC, tensor, 0, 0) for tensor in dict.fromkeys(tensors))
            self._under_way.clear()

    def make_room(self, needed_bytes: int, kept: Collection[int], until: int | None = None) -> bool:
        """Evict until there is room; return False where all is kept or awaited, or the victim is used after `until`."""
        room = self.room
        if room[self.tier] < needed_bytes:
            kept = {*kept, *chain.from_iterable(self.awaited.values())}
        while room[self.tier] < needed_bytes:
            victim = self.eviction.first(kept)
            if victim == NOWHERE or (until is not None and self.needed_until[victim] > until):
                return False
            self.evict(victim)
        return True

    def evict(self, tensor: int) -> None:
        """Evict a tensor, with a copy out unless a valid one is below; wait for a copy in that nobody has used yet.

        Otherwise what is issued later could take the room that is freed here, and that copy in would never start.
        """
        if tensor in self.unused:
            self.unused.remove(tensor)
            self.codes.append((SYNC, tensor, 0, 0))
        if not self.is_clean[tensor]:
            if self.below[tensor] == NOWHERE:
                self._count_below(tensor, self._room_below(tensor))
            self._copy(tensor, self.tier, self.below[tensor])
            self.is_clean[tensor] = True
        self.leave(tensor)
        self._gone.pop(tensor)
        self._gone[tensor] = None

    def leave(self, tensor: int) -> None:
        """Free the place of a tensor in the compute tier."""
        self.codes.append((DETACH, tensor, self.tier, 0))
        self.room[self.tier] += self.sizes[tensor]
        del self.resident[tensor]
        self.eviction.discard(tensor)

    def drop(self, tensor: int) -> None:
        """Free the place of a tensor in a tier below, if it has one."""
        tier = self.below[tensor]
        if tier != NOWHERE:
            self.codes.append((DETACH, tensor, tier, 0))
            self.below[tensor], self.is_clean[tensor] = NOWHERE, False
            del self._gone[tensor]
            self.room[tier] += self.sizes[tensor]

    def bring_home(self, tensor: int) -> None:
        """Move the copy of a tensor below to its home."""
        home = self.homes[tensor]
        if self.below[tensor] != home:
            self._make_room_below(tensor, home)
            self._move(tensor, home)

    def _count_below(self, tensor: int, tier: int) -> None:
        """Count a valid copy in a tier below."""
        self.below[tensor], self.is_clean[tensor] = tier, True
        self._gone[tensor] = None
        self.room[tier] -= self.sizes[tensor]

    def _move(self, tensor: int, target: int) -> None:
        """Move a copy from one tier below to another."""
        self._copy(tensor, self.below[tensor], target)
        self.drop(tensor)
        self._count_below(tensor, target)

    def _copy(self, tensor: int, source: int, target: int) -> None:
        """Copy over all links of the path between two tiers."""
        path = (source, target) if self._is_direct else self.problem.path(source, target)
        for start, end in pairwise(path):
            if end != target:
                self._make_room_below(tensor, end)
            self.codes.append((COPY, tensor, start, end))
            self._under_way[start, end] = tensor
            if self._synchronous:
                self._under_way.clear()
                self.codes.append((SYNC, tensor, 0, 0))
        if path[2:]:
            self.codes.extend((DETACH, tensor, tier, 0) for tier in path[1:-1])

    def _room_below(self, tensor: int) -> int:
        """Find the nearest tier with room, there and on the way; else one where tensors can be demoted for it."""
        tiers, size, path = self.problem.away(tensor), self.sizes[tensor], self.problem.path
        free = (tier for tier in tiers if all(self.room[hop] >= size for hop in path(self.tier, tier)[1:]))
        for tier in chain(free, (tier for tier in tiers if self._demote_for(tensor, tier))):
            return tier
        raise self._too_small(tensor, tiers[0])

    def _make_room_below(self, tensor: int, tier: int) -> None:
        """Make room for a tensor in a tier below, or report that there is none."""
        if not self._demote_for(tensor, tier):
            raise self._too_small(tensor, tier)

    def _demote_for(self, tensor: int, tier: int) -> bool:
        """Demote tensors, the one first that left the compute tier longest ago; return whether there is room."""
        while self.room[tier] < self.sizes[tensor]:
            others = (t for t in [*self._gone] if self.below[t] == tier and t != tensor)
            if not any(self._give_way(t, tier) for t in others if self.problem.homes[t] == FREE):
                return False
        return True

    def _give_way(self, tensor: int, tier: int) -> bool:
        """Drop a copy of what the compute tier has, or demote it to the next tier; return whether that freed room."""
        if tensor in self.resident:
            if self.homes[tensor] == NOWHERE:
                self.drop(tensor)
            return self.below[tensor] == NOWHERE
        links, tiers = self.problem.links, self.problem.neighbours
        behind = (other for other in tiers[tiers.index(tier) + 1 :] if (tier, other) in links)
        target = next((other for other in behind if self.room[other] >= self.sizes[tensor]), NOWHERE)
        if target != NOWHERE:
            self._move(tensor, target)
        return target != NOWHERE

    def _too_small(self, tensor: int, tier: int) -> CapacityError:
        problem = self.problem
        demand_bytes = int(int(problem.capacities[tier]) - self.room[tier]) + self.sizes[tensor]
        moment = f"copy of {problem.graph.tensors[tensor].name!r}"
        return CapacityError(problem.shortfall(tier, demand_bytes, moment, (tensor,)))
