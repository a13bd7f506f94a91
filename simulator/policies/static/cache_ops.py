"""Cache operators: they move tensors between the ops of a graph.

A *program point* ``p`` lies before op ``p``; the last one is the end of the step. A cache operator has a window of
points at which it may be issued, and the one that was chosen. For each trip away there is a chain

    producer -> Store -> Detach -> Prefetch -> consumer

of which a trip has what it needs: a tensor with a valid copy away is not stored again, one that is not read again is
not prefetched, and in a trip over the step boundary the Prefetch comes first. A Store is a copy out; the Detach frees
the place in the compute tier once the copy and all earlier users have ended. Freeing dead tensors takes no cache
operator: the writer does that from lifetimes alone. No window reaches across a barrier.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """Kind of a cache operator."""

    STORE = "store"
    DETACH = "detach"
    PREFETCH = "prefetch"


STORE, DETACH, PREFETCH = Role
"""The roles as globals, which are faster to look up than members of an enumeration."""


class CacheOp(NamedTuple):
    """A cache operator.

    Attributes
    ----------
    role
        Store, detach or prefetch.
    trip
        Index of its trip away, which its Store, Detach and Prefetch share.
    tensor, source, target
        Tensor that moves, and the tiers it leaves and enters (ids); the target of a Detach is `NOWHERE`.
    size_bytes, alone_ns
        Size [B], and time of the copy if it has its links for itself [ns].
    after, before
        The op that must have run before, and the op that needs it, or `NOWHERE`.
    first, last
        The window of program points, both included.
    turn
        Order at a point: by last use, and of prefetches by next use, unless the search found a better one.
    position
        The point that was chosen.
    stall_ns, residency_ns
        The cost terms of Algorithm 1 at that point: the time by which the copy outlasts the compute that it overlaps,
        and the cost of the room that it holds meanwhile.
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
    turn: float
    position: int
    stall_ns: int = 0
    residency_ns: int = 0


def issue_order(cache_op: CacheOp) -> tuple[int, bool, float, int, bool]:
    """Return the sort key: by point; at a point first what leaves, in turn, and then what comes in."""
    return cache_op.position, cache_op.role is PREFETCH, cache_op.turn, cache_op.tensor, cache_op.role is DETACH
