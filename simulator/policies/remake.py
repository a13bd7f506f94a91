"""Which ops to run again so that a tensor that was given up is there again.

An op may run again before op ``k`` if it makes there what it made the first time, and nothing else:

- it is a compute that the graph calls repeatable, and no collective or host op;
- it writes no persistent tensor, and updates nothing in place;
- what it reads and what it writes has not been overwritten between its first run and ``k``.

Everything here is pure and depends on the order of the ops only, so that any policy can use it: `gaps` tells for each
idle gap of a graph what it takes to make the tensor again instead of keeping it; `Remaker.chain` does the same for any
set of tensors at any op, given what is there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator

from simulator.graph import Graph, OpKind
from simulator.lifetime import NEVER, Gap, Lifetimes, idle_gaps

LONGEST_CHAIN = 256
"""A tensor that takes more ops than this to make again is kept."""


class Remaker:
    """Finds the ops to run again.

    Parameters
    ----------
    graph
        The graph.
    lifetimes
        Of its tensors.
    """

    def __init__(self, graph: Graph, lifetimes: Lifetimes) -> None:
        self._graph, self._writes = graph, lifetimes.writes
        self._until = [self._repeatable_until(op) for op in range(len(graph.ops))]

    def _repeatable_until(self, op: int) -> int:
        """The last op before which this one may run again, or `NEVER`."""
        what, tensors, last = self._graph.ops[op], self._graph.tensors, len(self._graph.ops)
        if what.kind is not OpKind.COMPUTE or not what.repeatable or any(tensors[t].persistent for t in what.writes):
            return NEVER
        reads = frozenset(what.reads)
        for t in reads.union(what.writes):
            at = bisect_right(self._writes[t], op)
            if t in reads and at and self._writes[t][at - 1] == op:
                return NEVER
            if at < len(self._writes[t]):
                last = min(last, self._writes[t][at])
        return last

    def maker(self, tensor: int, before: int) -> int:
        """The op that made what the tensor holds before an op; `NEVER` if none of the step did, or may not again."""
        at = bisect_left(self._writes[tensor], before)
        op = self._writes[tensor][at - 1] if at else NEVER
        return op if op != NEVER and self._until[op] >= before else NEVER

    def chain(
        self, wanted: Collection[int], before: int, is_there: Callable[[int], bool], most_ops: int | None = None
    ) -> tuple[int, ...] | None:
        """Find the ops to run again before an op, in program order.

        Parameters
        ----------
        wanted
            Tensors that are not there.
        before
            The op that needs them.
        is_there
            Whether another tensor may be read.
        most_ops
            Give up beyond so many ops.

        Returns
        -------
        tuple of int or None
            None if they cannot be made again from what is there, or not by so few ops.
        """
        ops: set[int] = set()
        asked, todo = set(wanted), list(wanted)
        while todo:
            op = self.maker(todo.pop(), before)
            if op == NEVER or (most_ops is not None and len(ops) > most_ops):
                return None
            if op in ops:
                continue
            ops.add(op)
            for t in self._graph.ops[op].reads:
                if t not in asked and not is_there(t):
                    asked.add(t)
                    todo.append(t)
        return tuple(sorted(ops))


def gaps(graph: Graph, most_ops: int = LONGEST_CHAIN) -> Iterator[tuple[Gap, tuple[int, ...]]]:
    """Tell for each idle gap which ops make its tensor again at the end, if all that is live by then is kept.

    Parameters
    ----------
    graph
        The graph.
    most_ops
        Gaps that take more ops than this are left out, as are those whose tensor cannot be made again; so that this
        takes time in proportion to the number of gaps.
    """
    found = Lifetimes(graph)
    remaker = Remaker(graph, found)
    for gap in idle_gaps(graph, found):
        if gap.wraps or not found.is_read(gap.tensor, gap.before):
            continue

        def is_there(t: int, gap: Gap = gap) -> bool:
            return t != gap.tensor and NEVER < found.born[t] < gap.before <= found.dies[t]

        ops = remaker.chain((gap.tensor,), gap.before, is_there, most_ops)
        if ops is not None:
            yield gap, ops
