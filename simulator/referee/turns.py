"""Collectives in issue order: each rank comes to those of a group in program order, once each, on one stream."""

from __future__ import annotations

from simulator.graph import Graph
from simulator.plan import COMPUTE
from simulator.referee.naming import Breach
from simulator.referee.roles import Call, Roles


class Turns:
    """Follows the steps of a plan through the collectives of its graph.

    Parameters
    ----------
    graph
        What runs.
    """

    def __init__(self, graph: Graph) -> None:
        self._ops = graph.ops
        self._lines = Roles(graph).ops
        self._calls = {op: call for call, ops in self._lines.items() for op in ops}
        self._done = dict.fromkeys(self._lines, 0)
        self._streams: dict[Call, int] = {}

    def step(self, kind: int, a: int, b: int) -> Breach | None:
        """Take the next step of the plan; say what it breaks, if it breaks anything.

        Parameters
        ----------
        kind, a, b
            The first numbers of its code.
        """
        if kind != COMPUTE or a not in self._calls:
            return None
        call = self._calls[a]
        line = self._lines[call]
        due = line[self._done[call] % len(line)]
        self._done[call] += 1
        if due != a:
            must = f"collectives of group {call.group!r} are issued in program order, each once in a step"
            found = f"op {self._ops[a].name!r} where op {self._ops[due].name!r} is due"
            return Breach(must, found, "issue them in program order, or the other members meet something else")
        if self._streams.setdefault(call, b) != b:
            must = f"collectives of group {call.group!r} run on one stream"
            return Breach(must, f"streams {self._streams[call]} and {b}", "issue them on one")
        return None
