"""The augmented graph: the ops, and between them the cache operators that move tensors.

A *program point* ``p`` lies before op ``p``; the last one is the end of the step. A cache operator has a window of
points at which it may be issued, and the one that was chosen. For each trip away there is a chain

    producer -> Store -> Detach -> Prefetch -> consumer

of which a trip has what it needs: a tensor that is valid away is not stored again, what is not read again is not
prefetched, and in a trip over the step boundary the Prefetch comes first. A Store is a copy out; the Detach frees the
place in the compute tier once the copy and all earlier users have ended. Deaths are no cache operators: the writer
places them from lifetimes alone. No window reaches across a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from simulator.policies.problem import Problem
from simulator.policies.static.analyse import PricedIdle


class Role(StrEnum):
    """Kind of a cache operator."""

    STORE = "store"
    DETACH = "detach"
    PREFETCH = "prefetch"


STORE, DETACH, PREFETCH = Role
"""Global names for the roles: faster to look up than members of an enumeration, and used often."""


class CacheOp(NamedTuple):
    """A cache operator.

    Attributes
    ----------
    role
        What it does.
    trip
        Which trip it belongs to: a number that its Store, Detach and Prefetch share.
    tensor, source, target
        What is moved, from which tier to which (ids); the target of a Detach is `NOWHERE`.
    size_bytes, alone_ns
        How much [B], and how long the copy takes if it has its links for itself [ns].
    after, before
        The op that must have run before, and the op that needs it, or `NOWHERE`.
    first, last
        The window of program points, both included.
    position
        The point that was chosen.
    stall_ns, residency_ns
        The cost terms of Algorithm 1 at that point: what the copy lasts beyond the compute that it overlaps, and what
        it costs to hold the room meanwhile.
    """

    role: Role
    trip: int
    tensor: int
    source: int
    target: int
    size_bytes: int
    alone_ns: int
    after: int
    before: int
    first: int
    last: int
    position: int
    stall_ns: int = 0
    residency_ns: int = 0


def issue_order(cache_op: CacheOp) -> tuple[int, bool, int, int, bool]:
    """Sort key: by point; at a point stores and detaches come first, by last use, and then prefetches, by next use."""
    comes = cache_op.role is PREFETCH
    use = cache_op.before if comes else cache_op.after
    return cache_op.position, comes, use, cache_op.tensor, cache_op.role is DETACH


class Edge(NamedTuple):
    """A dependency between two nodes, by name; `wraps` if it leads into the next step."""

    source: str
    target: str
    wraps: bool = False


@dataclass(frozen=True)
class Augmented:
    """A graph augmented with cache operators.

    Attributes
    ----------
    problem
        With the ops, and the tiers.
    homes
        Tensor -> tier for tensors whose home the planner chose away from the compute tier.
    intervals
        The interval of each trip.
    cache_ops
        The cache operators in the order of their issue.
    """

    problem: Problem
    homes: Mapping[int, int]
    intervals: tuple[PricedIdle, ...]
    cache_ops: tuple[CacheOp, ...]

    def moved(self, changed: Mapping[CacheOp, CacheOp]) -> Augmented:
        """Return the same graph with some cache operators replaced.

        Parameters
        ----------
        changed
            Old -> new.
        """
        new = sorted((changed.get(cache_op, cache_op) for cache_op in self.cache_ops), key=issue_order)
        return replace(self, cache_ops=tuple(new))

    @cached_property
    def chains(self) -> tuple[dict[Role, CacheOp], ...]:
        """Trip -> role -> cache operator."""
        chains: tuple[dict[Role, CacheOp], ...] = tuple({} for _ in self.intervals)
        for cache_op in self.cache_ops:
            chains[cache_op.trip][cache_op.role] = cache_op
        return chains

    def name(self, cache_op: CacheOp) -> str:
        """Name a cache operator: ``store L00/ctx #3``."""
        return f"{cache_op.role} {self.problem.graph.tensors[cache_op.tensor].name} #{cache_op.trip}"

    def point(self, position: int) -> str:
        """Name a program point."""
        ops = self.problem.graph.ops
        return f"before {ops[position].name}" if position < len(ops) else "at the end of the step"

    def edges(self) -> Iterator[Edge]:
        """Yield the dependencies of the cache operators, trip by trip."""
        ops = self.problem.graph.ops
        for chain in self.chains:
            order = [chain[role] for role in Role if role in chain]
            for cache_op in order:
                if cache_op.after >= 0:
                    yield Edge(ops[cache_op.after].name, self.name(cache_op))
                if 0 <= cache_op.before < len(ops):
                    yield Edge(self.name(cache_op), ops[cache_op.before].name)
            for cache_op, other in pairwise(order):
                yield Edge(self.name(cache_op), self.name(other), wraps=other.position < cache_op.position)
