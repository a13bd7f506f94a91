"""What ranks do together, and who meets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CollectiveKind(StrEnum):
    """What a collective does."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND = "send"
    RECV = "recv"


PAIRED = frozenset((CollectiveKind.SEND, CollectiveKind.RECV))
"""Kinds that meet in pairs."""

ALGORITHMS = ("auto", "ring", "tree", "direct", "hierarchical")
"""How members may go about a collective."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What an op does together with the other ranks of a group.

    The k-th collective that a rank issues on some members of a group meets the k-th that each other member issues on
    the same members there; they are of one kind (a send meets a receive), of one size and of one algorithm.

    Attributes
    ----------
    kind
        What it does.
    group
        Name of a group of the graph. A send is to the second of two members, a receive from the first.
    size_bytes
        What it is about [B]: the tensor that each member holds before (all_reduce, reduce_scatter, all_to_all), that
        each holds after (all_gather, broadcast), or the message (send, recv).
    algorithm
        ``ring``, ``tree``, ``direct``, ``hierarchical``, or ``auto``: the one that alone is the fastest here.
    """

    kind: CollectiveKind
    group: str
    size_bytes: int
    algorithm: str = "auto"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that meet under one name: a partition of some ranks for collectives, pairs for send and receive.

    Attributes
    ----------
    name
        Such as ``tensor`` or ``pipeline.next``.
    members
        Ranks that meet, each in order. For collectives no rank is in two of them. For sends and receives each is a
        pair (from, to); a rank is the first of at most one pair and the second of at most one.
    """

    name: str
    members: tuple[tuple[int, ...], ...]

    def by_rank(self, kind: str) -> dict[int, tuple[int, ...]]:
        """For each rank that may issue a collective of this kind, who meets then."""
        if kind == CollectiveKind.SEND:
            return {members[0]: members for members in self.members}
        if kind == CollectiveKind.RECV:
            return {members[-1]: members for members in self.members}
        return {rank: members for members in self.members for rank in members}
