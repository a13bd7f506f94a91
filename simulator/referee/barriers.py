"""Barriers in issue order: what is copied into the compute tier before one is used before it.

What comes home at the end of a training step stays for the next, whatever barriers that has.
"""

from __future__ import annotations

from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH
from simulator.referee.naming import Breach


class Barriers:
    """Follows the steps of a plan past the barriers of its graph.

    Parameters
    ----------
    graph, compute_tier
        What runs, and where.
    """

    def __init__(self, graph: Graph, compute_tier: int) -> None:
        self._graph, self._here = graph, compute_tier
        self._has_some = any(op.barrier for op in graph.ops)
        self._unused: set[int] = set()

    def step(self, kind: int, a: int, b: int, c: int) -> Breach | None:
        """Take the next step of the plan; say what it breaks, if it breaks anything.

        Parameters
        ----------
        kind, a, b, c
            Its code.
        """
        if not self._has_some:
            return None
        if kind == COPY and c == self._here:
            self._unused.add(a)
        elif kind == DETACH and b == self._here:
            self._unused.discard(a)
        elif kind == COMPUTE:
            op, unused = self._graph.ops[a], self._unused
            unused.difference_update(op.reads, op.writes)
            if op.barrier and unused:
                names = ", ".join(repr(self._graph.tensors[t].name) for t in sorted(unused)[:3])
                found = f"{names} copied in before it and not used yet ({len(unused)} in all)"
                return Breach(f"no copy in is moved across barrier {op.name!r}", found, "copy it in behind the barrier")
        return None

    def begin_step(self) -> None:
        """The next training step begins."""
        self._unused.clear()
