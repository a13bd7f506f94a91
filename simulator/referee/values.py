"""Which op made the value that each tensor holds, as issued, and which op program order wants."""

from __future__ import annotations

from simulator.graph import Graph

_INITIAL = -1
"""Stands for the maker of a value with which a training step began."""


class Values:
    """The value that each tensor holds, as issued; tensors that only ever hold one value are not tracked.

    Parameters
    ----------
    graph
        The graph that runs.

    Attributes
    ----------
    unlike
        Number of tensors that outlast the step and do not hold the value that program order leaves in them.
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
        """Begin a training step: all tensors hold their initial values."""
        self._made_by: dict[int, int] = {}
        self.unlike = len(self._final)

    def wrong_read(self, op: int) -> tuple[int, int, int] | None:
        """Return the first tensor that does not hold the value that the op reads: (tensor, its maker, due maker)."""
        for t, maker in self._reads[op]:
            if (holds := self._made_by.get(t, _INITIAL)) != maker:
                return t, holds, maker
        return None

    def write(self, op: int) -> None:
        """Record the values that the op makes."""
        for t in self._writes[op]:
            if t in self._final:
                was, final = self._made_by.get(t, _INITIAL), self._final[t]
                self.unlike += (op != final) - (was != final)
            self._made_by[t] = op

    def first_made(self) -> int | None:
        """Return the first tensor that outlasts the step and was written in it."""
        return min((t for t in self._made_by if t in self._final), default=None)

    def first_unlike(self) -> tuple[int, int, int]:
        """Return the first tensor that `unlike` counts: (tensor, its maker, due maker)."""
        made_by = ((t, self._made_by.get(t, _INITIAL), due) for t, due in sorted(self._final.items()))
        return next((t, maker, due) for t, maker, due in made_by if maker != due)

    def difference(self, tensor: int, maker: int, due: int) -> str:
        """Return a text: which value a tensor holds, and which it should hold."""
        values = {op: f"as op {self._graph.ops[op].name!r} makes it" for op in (maker, due)}
        values[_INITIAL] = "as the training step began"
        return f"{self._graph.tensors[tensor].name!r} {values[maker]}, not {values[due]}"
