"""What a runtime holds: where each tensor lies once all that was issued has acted, and the steps that change it.

Room is counted in issue order, and what is given up unused is waited for, so that whatever is issued can run: a runtime
never blocks itself where each link has a queue of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import Any

from simulator.errors import CapacityError
from simulator.plan import COPY, DETACH, FREE, NOWHERE, SYNC, Code
from simulator.policies.problem import Problem


class Eviction:
    """The tensors that are in the compute tier and may leave it, in the order in which they leave.

    Each has a rank from when it has come, or was used last, and the least leaves first. A heap has them in order; its
    entries are dropped late if their rank has changed since.

    Parameters
    ----------
    order
        By which rank. ``lfu``: used least often since the run began; of equals, the last use longest ago. ``fifo``: the
        oldest producer, then the larger (upstream's warm-up rule). ``furthest``: the next use
        furthest away (the rule of MindSpore's sliding window).
    problem
        What runs.

    Attributes
    ----------
    now
        Number of the running op since the run began; whoever runs ops sets it.
    """

    def __init__(self, order: str, problem: Problem) -> None:
        self._order, self._problem = order, problem
        self.now, self._touches, self._uses = -1, 0, Counter[int]()
        self._ranks: dict[int, Any] = {}
        self._heap: list[tuple[Any, int]] = []
        self._needed: Collection[int] = ()
        self._passed: list[tuple[Any, int]] = []

    def _rank(self, tensor: int) -> Any:
        """The rank of a tensor that has just come, or is just used."""
        lifetimes = self._problem.lifetimes
        if self._order == "furthest":
            ops, uses = len(self._problem.graph.ops), lifetimes.uses[tensor]
            step, op = divmod(self.now, ops)
            following = bisect_right(uses, op)
            if following < len(uses):
                return -step * ops - uses[following]
            return -(step + 1) * ops - (uses[0] if uses else ops)
        if self._order == "fifo":
            born = -1 if self._problem.starts_with[tensor] else lifetimes.first_write[tensor]
            return born, -self._problem.sizes[tensor]
        self._touches += 1
        self._uses[tensor] += 1
        return self._uses[tensor], self._touches

    def touch(self, tensor: int) -> None:
        """Note that a tensor has come, or that the running op uses it."""
        rank = self._rank(tensor)
        if self._ranks.get(tensor) != rank:
            self._ranks[tensor] = rank
            heappush(self._heap, (rank, tensor))

    def discard(self, tensor: int) -> None:
        """Leave out a tensor that has left or died."""
        self._ranks.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """The first to evict, none of `needed`, or `NOWHERE`; what is passed over goes back when another asks."""
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


class LeastRecent:
    """``lru``: the last use longest ago leaves first. ``hot``: some stay; of the others, as ``lru``.

    A dictionary by last use: with a heap, the benchmark of a runtime with 3,000 residents takes 1.7 times as long.

    Parameters
    ----------
    stay
        What never leaves.

    Attributes
    ----------
    now
        As of `Eviction`.
    """

    def __init__(self, stay: Collection[int] = ()) -> None:
        self.now, self._stay = -1, stay
        self._recent = OrderedDict[int, None]()

    def touch(self, tensor: int) -> None:
        """Make a tensor the most recent."""
        if tensor not in self._stay:
            self._recent[tensor] = None
            self._recent.move_to_end(tensor)

    def discard(self, tensor: int) -> None:
        """Leave it out."""
        self._recent.pop(tensor, None)

    def first(self, needed: Collection[int]) -> int:
        """The least recent; what is needed has mostly just been touched, so it comes last."""
        return next((tensor for tensor in self._recent if tensor not in needed), NOWHERE)


@dataclass(frozen=True)
class Setting:
    """What a runtime decides about, and how.

    Attributes
    ----------
    problem
        What runs.
    homes
        The tensors that it decides about -> tier at time 0, or `NOWHERE`.
    room_bytes
        What they may take of the compute tier [B].
    evict, stay
        Which of them leaves first; see `Eviction`.
    synchronous
        Whether the host waits for each copy.
    direct
        Pairs of tiers between which copies take the link that joins them, even if a way over others is faster.
    """

    problem: Problem
    homes: Mapping[int, int]
    room_bytes: int | float
    evict: str
    stay: Collection[int]
    synchronous: bool = False
    direct: Collection[tuple[int, int]] = ()


class RuntimeCache:
    """The places of the tensors that a runtime decides about.

    Parameters
    ----------
    setting
        See `Setting`.

    Attributes
    ----------
    codes
        What is issued and not yet handed on.
    here
        What is in the compute tier, in the order in which it came.
    below, is_clean
        By tensor: the tier of its copy below, or `NOWHERE`; whether that is valid.
    room
        By tier: what is left [B].
    awaited
        By op with dynamic reads: what it is known to read, from when that is revealed until it runs.
    unused
        What came before an op needed it, and has not been used since.
    needed_until
        By tensor: the last op since the run began that is in view and uses it.
    """

    def __init__(self, setting: Setting) -> None:
        self.problem = problem = setting.problem
        self.sizes, self.tier, self.homes = problem.sizes, problem.compute_tier, setting.homes
        self.eviction: Eviction | LeastRecent = Eviction(setting.evict, problem)
        if setting.evict in ("lru", "hot"):
            self.eviction = LeastRecent(setting.stay if setting.evict == "hot" else ())
        self._synchronous, self._direct = setting.synchronous, setting.direct
        self.codes: list[Code] = []
        self.here: dict[int, None] = {}
        self.below, self.is_clean = [NOWHERE] * len(self.sizes), [False] * len(self.sizes)
        self.room = list(problem.capacities)
        self.room[self.tier] = setting.room_bytes
        self.awaited: dict[int, tuple[int, ...]] = {}
        self.unused = set[int]()
        self.needed_until = [-1] * len(self.sizes)
        self._may_go_on = [home == FREE and len(problem.neighbours) > 1 for home in problem.homes]
        self._longest_gone = [dict[int, None]() for _ in problem.capacities]
        for tensor, tier in self.homes.items():
            if tier == self.tier:
                self.hold(tensor)
            elif tier != NOWHERE:
                self._lie(tensor, tier)

    def hold(self, tensor: int) -> None:
        """Take in a tensor that an op makes, or that a copy brings."""
        self.here[tensor] = None
        self.room[self.tier] -= self.sizes[tensor]
        self.eviction.touch(tensor)

    def fetch(self, tensor: int) -> None:
        """Copy a tensor in."""
        self._copy(tensor, self.below[tensor], self.tier)
        self.hold(tensor)

    def expect(self, op: int, chosen: Collection[int]) -> None:
        """Bring what an op is known to read; whatever is in the way leaves, but nothing that is awaited."""
        self.awaited[op] = wanted = tuple(t for t in chosen if t in self.homes)
        for tensor in wanted:
            if tensor in self.here:
                self.eviction.touch(tensor)
            else:
                self.make_room(self.sizes[tensor], ())
                self.fetch(tensor)

    def make_room(self, needed_bytes: int, kept: Collection[int], until: int | None = None) -> bool:
        """Evict until there is room, nothing that is kept or awaited, nor what comes first if used after op `until`."""
        room = self.room
        if room[self.tier] < needed_bytes and self.awaited:
            kept = {*kept, *chain.from_iterable(self.awaited.values())}
        while room[self.tier] < needed_bytes:
            victim = self.eviction.first(kept)
            if victim == NOWHERE or (until is not None and self.needed_until[victim] > until):
                return False
            self.evict(victim)
        return True

    def evict(self, tensor: int) -> None:
        """Let a tensor leave, with a copy out if it has no valid one below; if it came unused, once it has come.

        Until then what is issued later may take the room that is freed here, and keep the copy in out.
        """
        if tensor in self.unused:
            self.unused.remove(tensor)
            self.codes.append((SYNC, tensor, 0, 0))
        if not self.is_clean[tensor]:
            if self.below[tensor] == NOWHERE:
                self._lie(tensor, self._room_below(tensor))
            self._copy(tensor, self.tier, self.below[tensor])
            self.is_clean[tensor] = True
        self.leave(tensor)
        lying = self._longest_gone[self.below[tensor]]
        if tensor in lying:
            del lying[tensor]
            lying[tensor] = None

    def leave(self, tensor: int) -> None:
        """Give up the room of a tensor in the compute tier."""
        self.codes.append((DETACH, tensor, self.tier, 0))
        self.room[self.tier] += self.sizes[tensor]
        if tensor in self.here:
            del self.here[tensor]
            self.eviction.discard(tensor)

    def drop(self, tensor: int) -> None:
        """Give up the copy of a tensor below, if there is one."""
        tier = self.below[tensor]
        if tier != NOWHERE:
            self.codes.append((DETACH, tensor, tier, 0))
            self.below[tensor], self.is_clean[tensor] = NOWHERE, False
            self._longest_gone[tier].pop(tensor, None)
            self.room[tier] += self.sizes[tensor]

    def bring_home(self, tensor: int) -> None:
        """Move the copy of a tensor below to its home."""
        home = self.homes[tensor]
        if self.below[tensor] != home:
            self._clear(tensor, home)
            self._move(tensor, home)

    def _lie(self, tensor: int, tier: int) -> None:
        """Take room for a valid copy in a tier below."""
        self.below[tensor], self.is_clean[tensor] = tier, True
        if self._may_go_on[tensor]:
            self._longest_gone[tier][tensor] = None
        self.room[tier] -= self.sizes[tensor]

    def _move(self, tensor: int, target: int) -> None:
        """Move a copy from one tier below to another."""
        self._copy(tensor, self.below[tensor], target)
        self.drop(tensor)
        self._lie(tensor, target)

    def _copy(self, tensor: int, source: int, target: int) -> None:
        is_joined = (source, target) in self._direct
        hops = ((source, target),) if is_joined else tuple(pairwise(self.problem.path(source, target)))
        for start, end in hops:
            if end != target:
                self._clear(tensor, end)
            self.codes.append((COPY, tensor, start, end))
            if self._synchronous:
                self.codes.append((SYNC, tensor, 0, 0))
        self.codes.extend((DETACH, tensor, tier, 0) for _, tier in hops[:-1])

    def _room_below(self, tensor: int) -> int:
        """The nearest tier with room for it, on the way there, too; or else one in which others make room."""
        tiers, size, path = self.problem.away(tensor), self.sizes[tensor], self.problem.path
        free = (tier for tier in tiers if all(self.room[hop] >= size for hop in path(self.tier, tier)[1:]))
        for tier in chain(free, (tier for tier in tiers if self._demote_for(tensor, tier))):
            return tier
        raise self._too_small(tensor, tiers[0])

    def _clear(self, tensor: int, tier: int) -> None:
        """Make room for a tensor in a tier below."""
        if not self._demote_for(tensor, tier):
            raise self._too_small(tensor, tier)

    def _demote_for(self, tensor: int, tier: int) -> bool:
        """Until there is room in this tier, move on what left the compute tier longest ago; say whether there is."""
        while self.room[tier] < self.sizes[tensor]:
            for lying in self._longest_gone[tier]:
                if lying == tensor:
                    continue
                if lying in self.here:
                    if self.homes[lying] == NOWHERE:
                        self.drop(lying)
                        break
                elif (target := self._next_tier(lying, tier)) != NOWHERE:
                    self._move(lying, target)
                    break
            else:
                return False
        return True

    def _next_tier(self, tensor: int, tier: int) -> int:
        """The nearest tier that has room for what lies in this one, and a way there that no other tier is on."""
        links, size, tiers = self.problem.links, self.sizes[tensor], self.problem.neighbours
        behind = tiers[tiers.index(tier) + 1 :]
        return next((other for other in behind if (tier, other) in links and self.room[other] >= size), NOWHERE)

    def _too_small(self, tensor: int, tier: int) -> CapacityError:
        problem = self.problem
        demand_bytes = int(int(problem.capacities[tier]) - self.room[tier]) + self.sizes[tensor]
        others = [problem.tiers[other] for other in problem.neighbours if other != tier]
        further = f", which cannot go on to {' or '.join(others)} either" if others else ""
        at = f"copy of {problem.graph.tensors[tensor].name!r}{further}"
        return CapacityError(problem.shortfall(tier, demand_bytes, at, (tensor,)))
