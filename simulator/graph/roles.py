"""Who meets whom: the calls that a graph makes on its groups, and the members that answer them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from simulator.graph.collective import PAIRED
from simulator.graph.ops import Graph

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

    @property
    def answer(self) -> Call:
        """The call by which the other members come there."""
        return Call(self.group, {"send": "recv", "recv": "send", "": ""}[self.role])


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
    calls
        Op id of a collective -> its call.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: dict[Call, list[int]] = {}
        self.calls: dict[int, Call] = {}
        for op, what in enumerate(graph.ops):
            if what.collective is not None:
                kind = what.collective.kind
                call = self.calls[op] = Call(what.collective.group, str(kind) if kind in PAIRED else "")
                self.ops.setdefault(call, []).append(op)

    @cached_property
    def members(self) -> dict[Call, dict[int, Members]]:
        """Call -> rank -> who meets there, in order."""
        groups = {group.name: group for group in self.graph.groups}
        return {call: groups[call.group].by_rank(call.role) if call.group in groups else {} for call in self.ops}

    def others(self, call: Call, rank: int) -> list[int]:
        """Whom to compare a rank with at a call of its own: they answer it.

        The first member is compared with all others, each of these with the first, so that the work is linear.
        """
        members = self.members[call][rank]
        return [*(members[1:] if rank == members[0] else members[:1])]
