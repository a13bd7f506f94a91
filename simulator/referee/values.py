"""Which value of a tensor is where, as issued: what an op makes, it makes of the values that program order gives it.

A *value* of a tensor is named by the op that made it, or is the one that the training step began with. In program
order an op reads of each tensor the value that the last op before it has made. A plan may run ops again, or in
another order, as long as every compute finds these values; a tensor that only ever holds one value cannot break this.
"""

from __future__ import annotations

from simulator.graph import Graph

INITIAL = -1
"""The maker of a value that a training step began with."""


class Values:
    """The value that each tensor holds, as issued.

    Parameters
    ----------
    graph
        What runs.

    Attributes
    ----------
    unlike
        How many tensors that outlast the step do not hold the value that program order leaves in them.
    """

    def __init__(self, graph: Graph) -> None:
        exists, makers = set(graph.inputs), [0] * len(graph.tensors)
        for op in graph.ops:
            for t in op.writes:
                makers[t] += 1
        self._changes = [count + (t in exists) > 1 for t, count in enumerate(makers)]
        self._reads: list[tuple[tuple[int, int], ...]] = []
        self._writes: list[tuple[int, ...]] = []
        latest: dict[int, int] = {}
        for i, op in enumerate(graph.ops):
            self._reads.append(tuple([(t, latest.get(t, INITIAL)) for t in op.reads if self._changes[t]]))
            self._writes.append(tuple([t for t in op.writes if self._changes[t]]))
            latest.update(dict.fromkeys(self._writes[i], i))
        outlasts = {t for t, tensor in enumerate(graph.tensors) if tensor.persistent} | set(graph.outputs)
        self._final = {t: maker for t, maker in latest.items() if t in outlasts}
        self.begin_step()

    def begin_step(self) -> None:
        """Go to the start of a training step: what it finds is the initial value."""
        self._made_by: dict[int, int] = {}
        self.unlike = len(self._final)

    def wrong_read(self, op: int) -> tuple[int, int, int] | None:
        """The first tensor that does not hold what the op reads of it: (tensor, its maker, whose it should be)."""
        for t, maker in self._reads[op]:
            found = self._made_by.get(t, INITIAL)
            if found != maker:
                return t, found, maker
        return None

    def write(self, op: int) -> None:
        """Note what the op makes."""
        for t in self._writes[op]:
            if t in self._final:
                was, final = self._made_by.get(t, INITIAL), self._final[t]
                self.unlike += (op != final) - (was != final)
            self._made_by[t] = op

    def first_made(self) -> int | None:
        """The first tensor that outlasts the step and that some op of it has written."""
        return min((t for t in self._made_by if t in self._final), default=None)

    def first_unlike(self) -> tuple[int, int, int]:
        """The first tensor that `unlike` counts: (tensor, its maker, whose it should be)."""
        return next(
            (t, found, maker)
            for t, maker in sorted(self._final.items())
            if (found := self._made_by.get(t, INITIAL)) != maker
        )
