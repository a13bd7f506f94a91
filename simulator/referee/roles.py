"""Who meets whom: the calls that a graph makes on its groups, and the members that answer them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from simulator.graph import PAIRED, CollectiveKind, Graph

Members = tuple[int, ...]


class Call(NamedTuple):
    """A rank's part in the collectives of a group.

    Attributes
    ----------
    group
        Its name.
    role
        ``send`` or ``recv``, or empty where all members do the same.
    """

    group: str
    role: str


def call_of(graph: Graph, op: int) -> Call | None:
    """The call that an op makes; None if it is no collective."""
    collective = graph.ops[op].collective
    if collective is None:
        return None
    return Call(collective.group, str(collective.kind) if collective.kind in PAIRED else "")


class Roles:
    """The collectives of a graph by call, and with whom each rank meets there.

    Parameters
    ----------
    graph
        What ranks run.

    Attributes
    ----------
    ops
        Call -> op ids, in program order.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: dict[Call, list[int]] = {}
        for op in range(len(graph.ops)):
            call = call_of(graph, op)
            if call is not None:
                self.ops.setdefault(call, []).append(op)

    @cached_property
    def members(self) -> dict[Call, dict[int, Members]]:
        """Call -> rank -> who meets there, in order."""
        groups = {group.name: group.members for group in self.graph.groups}
        return {call: _by_rank(groups.get(call.group, ()), call.role) for call in self.ops}

    def others(self, call: Call, rank: int) -> list[tuple[int, Call]]:
        """Whom to compare a rank with at a call of its own, and by which call they answer.

        The first member is compared with all others, each of these with the first, so that the work is linear.
        """
        members = self.members[call][rank]
        answer = Call(call.group, {"send": "recv", "recv": "send", "": ""}[call.role])
        others = members[1:] if rank == members[0] else members[:1]
        return [(other, answer) for other in others]


def _by_rank(members: tuple[Members, ...], role: str) -> dict[int, Members]:
    if role == CollectiveKind.SEND:
        return {ranks[0]: ranks for ranks in members}
    if role == CollectiveKind.RECV:
        return {ranks[-1]: ranks for ranks in members}
    return {rank: ranks for ranks in members for rank in ranks}
