"""The cache of a runtime that decides about late reads alone: what is read late and has a copy in the compute tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.errors import ScopeError
from simulator.plan import COPY, DETACH, Code
from simulator.policies.late import LateOps, Leaving


class Cache:
    """What is read late and has a copy in the compute tier, as issued.

    Parameters
    ----------
    ops
        What there is to read late.
    home
        Tier of each tensor at time 0.
    room_bytes
        How much it may hold [B].
    leaving
        Who leaves first.
    """

    def __init__(self, ops: LateOps, home: tuple[int, ...], room_bytes: int, leaving: Leaving) -> None:
        problem = ops.problem
        self._home, self._sizes, self._tier = home, problem.sizes, problem.compute_tier
        self._moves = frozenset(t for t in ops.candidates if home[t] != self._tier)
        self._left, self._leaving = room_bytes, leaving
        self._here: dict[int, None] = {}
        self._awaited: dict[int, frozenset[int]] = {}
        for tensor in self._moves:
            if (home[tensor], self._tier) not in problem.links:
                name, tier = problem.graph.tensors[tensor].name, problem.tiers[home[tensor]]
                must, do = "a link leads from the home of what is read late into the compute tier", "change its home"
                raise ScopeError("policy 'hybrid'", must, f"none from {tier}, the home of {name!r}", do)

    def bring(self, op: int, chosen: Iterable[int]) -> Iterator[Code]:
        """Copy in what an op is known to read, as far as it is not here; whatever is in the way leaves."""
        wanted = [t for t in chosen if t in self._moves]
        self._awaited[op] = frozenset(wanted)
        kept = frozenset().union(*self._awaited.values())
        for tensor in wanted:
            if tensor in self._here:
                self._leaving.touch(tensor)
            else:
                yield from self._room_for(tensor, kept)
                yield self._come(tensor)

    def read(self, op: int) -> None:
        """Note that an op was issued: what it reads may leave."""
        self._awaited.pop(op, None)

    def fetch(self, wanted: Iterable[int]) -> Iterator[Code]:
        """Copy in what may be read later, as far as there is room beside what is awaited."""
        tensors = [t for t in wanted if t in self._moves]
        kept = frozenset(tensors).union(*self._awaited.values())
        for tensor in tensors:
            if tensor not in self._here:
                yield from self._room_for(tensor, kept)
                if self._left < self._sizes[tensor]:
                    return
                yield self._come(tensor)

    def clear(self) -> Iterator[Code]:
        """Let all leave."""
        for tensor in list(self._here):
            yield self._leave(tensor)

    def _room_for(self, tensor: int, kept: frozenset[int]) -> Iterator[Code]:
        while self._left < self._sizes[tensor]:
            first = self._leaving.first(kept)
            if first < 0:
                return
            yield self._leave(first)

    def _come(self, tensor: int) -> Code:
        self._here[tensor] = None
        self._left -= self._sizes[tensor]
        self._leaving.touch(tensor)
        return COPY, tensor, self._home[tensor], self._tier

    def _leave(self, tensor: int) -> Code:
        del self._here[tensor]
        self._left += self._sizes[tensor]
        self._leaving.discard(tensor)
        return DETACH, tensor, self._tier, 0
