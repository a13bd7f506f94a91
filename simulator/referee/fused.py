"""Fused groups in issue order: the ops of a group are issued in a row, on one stream, with nothing between them."""

from __future__ import annotations

from typing import NamedTuple

from simulator.graph import Graph
from simulator.plan import COMPUTE


class Breach(NamedTuple):
    """What a step breaks: the rule, what was found, and what to do."""

    must: str
    found: str
    do: str


class FusedGroups:
    """Follows the steps of a plan through the fused groups of its graph.

    Parameters
    ----------
    graph
        What runs.
    """

    def __init__(self, graph: Graph) -> None:
        self._ops = graph.ops
        groups = graph.launches
        self._inner = {op for group in groups for op in group[1:]}
        self._due: int | None = None
        self._stream = 0

    def step(self, kind: int, a: int, b: int) -> Breach | None:
        """Take the next step of the plan; say what it breaks, if it breaks anything.

        Parameters
        ----------
        kind, a, b
            The first numbers of its code.
        """
        due = self._due
        if due is not None and (kind, a) != (COMPUTE, due):
            must = f"nothing is issued between two ops of fused group {self._ops[due].fused!r}"
            return Breach(must, f"this step {self._place(due)}", "issue it before the group or behind it")
        if due is not None and b != self._stream:
            must = f"all ops of fused group {self._ops[due].fused!r} run on one stream"
            return Breach(must, f"streams {self._stream} and {b}", "issue them on one")
        if kind == COMPUTE and due is None and a in self._inner:
            must = f"fused group {self._ops[a].fused!r} is issued as a whole, from its first op on"
            return Breach(must, f"op {self._ops[a].name!r} alone", "issue the ops of the group in a row")
        if kind == COMPUTE:
            self._due, self._stream = (a + 1 if a + 1 in self._inner else None), b
        return None

    def end(self) -> Breach | None:
        """Say whether a group was left in the middle."""
        if self._due is None:
            return None
        op = self._ops[self._due]
        return Breach(
            f"fused group {op.fused!r} is issued as a whole", f"the end before op {op.name!r}", "add the rest of it"
        )

    def _place(self, due: int) -> str:
        return f"between {self._ops[due - 1].name!r} and {self._ops[due].name!r}"
