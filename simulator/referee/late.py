"""Late reads in a trace: which of its candidates each compute read, and how long it took for that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.cost import chosen_op, duration_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.referee.earlier import Ints
from simulator.referee.uses import Uses


class LateUses:
    """Uses of ops by computes, where some read what is drawn.

    Parameters
    ----------
    graph, hardware, draws
        What ran, where; what late reads choose.

    Attributes
    ----------
    uses
        As for a graph whose late reads are certain; behind the last op, candidates of each op with late reads stand
        under a number of their own.
    """

    def __init__(self, graph: Graph, hardware: Hardware, draws: Draws) -> None:
        self._graph, self._hardware, self._draws = graph, hardware, draws
        known, n = Uses.of(graph.certain), len(graph.ops)
        self._ops = list(draws.chosen_bits)
        candidates = [np.array(late.candidates, np.int64) for op in self._ops if (late := graph.ops[op].late)]
        self._first = len(known.op) + np.cumsum([0, *map(len, candidates)])
        numbers = [np.full(len(tensors), n + i) for i, tensors in enumerate(candidates)]
        reads = np.ones(sum(map(len, candidates)), bool)
        self.uses = Uses(
            np.concatenate((known.op, *numbers)),
            np.concatenate((known.tensor, *candidates)),
            np.concatenate((known.reads, reads)),
            np.concatenate((known.writes, ~reads)),
        )

    def chosen(self, computes: Ints, ops: Ints, runs: Ints) -> tuple[Ints, Ints]:
        """For computes in issue order, with their ops: issue and place in `uses` of each use of what was chosen.

        By op, `runs` counts the computes before.
        """
        found = [
            (issues[step], self._first[number] + position)
            for number, op, issues in self._issues(computes, ops)
            for step, position in [np.nonzero(self._draws.flags(op, int(runs[op]), len(issues)))]
        ]
        issue, which = (np.concatenate([np.empty(0, np.int64), *column]) for column in zip(*found, strict=True))
        return issue, which

    def set_times(self, alone_ns: Ints, computes: Ints, ops: Ints, runs: Ints) -> None:
        """Give each compute with late reads the time of what it read [ns]; `alone_ns` is beside `computes`."""
        for _, op, issues in self._issues(computes, ops):
            read = self._draws.chosen_bytes(op, int(runs[op]), len(issues)).tolist()
            what = self._graph.ops[op]
            times = {size: duration_ns(chosen_op(what, size), self._hardware) for size in set(read)}
            alone_ns[np.searchsorted(computes, issues)] = [times[size] for size in read]

    def _issues(self, computes: Ints, ops: Ints) -> Iterator[tuple[int, int, Ints]]:
        """Number, op, and issues of each op with late reads; the k-th issue is for step k."""
        for number, op in enumerate(self._ops):
            yield number, op, computes[ops == op]
