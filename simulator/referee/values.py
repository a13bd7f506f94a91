"""The values that tensors hold in issue order, against those that program order gives them.

A *value* of a tensor is named by the op that made it, or is the one that the training step began with. In program
order an op reads of each tensor the value that the last op before it has made. A plan may run ops again, or in
another order, as long as every compute finds these values; a tensor that only ever holds one value cannot break this.
"""

from __future__ import annotations

from simulator.graph import Graph

_INITIAL = -1
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
        self._graph = graph
        makers = [0] * len(graph.tensors)
        for t in (*graph.inputs, *(t for op in graph.ops for t in op.writes)):
            makers[t] += 1
        self._reads: list[tuple[tuple[int, int], ...]] = []
        self._writes: list[tuple[int, ...]] = []
        latest: dict[int, int] = {}
        for i, op in enumerate(graph.ops):
            self._reads.append(tuple([(t, latest.get(t, _INITIAL)) for t in op.reads if makers[t] > 1]))
            self._writes.append(tuple([t for t in op.writes if makers[t] > 1]))
            latest.update(dict.fromkeys(self._writes[i], i))
        outputs = set(graph.outputs)
        self._final = {t: maker for t, maker in latest.items() if graph.tensors[t].persistent or t in outputs}
        self.begin_step()

    def begin_step(self) -> None:
        """Go to the start of a training step: what it finds is the initial value."""
        self._made_by: dict[int, int] = {}
        self.unlike = len(self._final)

    def wrong_read(self, op: int) -> tuple[int, int, int] | None:
        """The first tensor that does not hold what the op reads of it: (tensor, its maker, whose it should be)."""
        for t, maker in self._reads[op]:
            if (holds := self._made_by.get(t, _INITIAL)) != maker:
                return t, holds, maker
        return None

    def write(self, op: int) -> None:
        """Note what the op makes."""
        for t in self._writes[op]:
            if t in self._final:
                was, final = self._made_by.get(t, _INITIAL), self._final[t]
                self.unlike += (op != final) - (was != final)
            self._made_by[t] = op

    def first_made(self) -> int | None:
        """The first tensor that outlasts the step and that some op of it has written."""
        return min((t for t in self._made_by if t in self._final), default=None)

    def first_unlike(self) -> tuple[int, int, int]:
        """The first tensor that `unlike` counts: (tensor, its maker, whose it should be)."""
        holds = {t: self._made_by.get(t, _INITIAL) for t in sorted(self._final)}
        return next((t, maker, self._final[t]) for t, maker in holds.items() if maker != self._final[t])

    def said(self, tensor: int, maker: int, due: int) -> str:
        """Say which value a tensor holds, and which it should."""
        holds, wanted = (
            "as the training step began" if op == _INITIAL else f"as op {self._graph.ops[op].name!r} makes it"
            for op in (maker, due)
        )
        return f"{self._graph.tensors[tensor].name!r} {holds}, not {wanted}"
