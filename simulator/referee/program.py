"""What ranks ran, laid out once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from simulator.cost import durations_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, Plan
from simulator.referee.earlier import Ints
from simulator.referee.late import LateUses
from simulator.referee.uses import Uses

Columns = tuple[Ints, Ints, Ints, Ints]


class Program:
    """What ranks ran, laid out once for all of them.

    Parameters
    ----------
    graph, hardware, plan
        What ran, where, as decided.

    Attributes
    ----------
    uses, late
        What ops read and write; what late reads choose, if that is drawn.
    sizes
        Of each tensor [B].
    alone_ns
        Time of each op alone [ns].
    meets
        Of each op, whether it is a collective.
    streams
        Those that computes may run on.
    queues
        For each link the queue that it waits in, as the number of the first link there.
    """

    def __init__(self, graph: Graph, hardware: Hardware, plan: Plan) -> None:
        self.graph, self.hardware, self.plan = graph, hardware, plan
        self.uses = Uses.of(graph)
        self.late: LateUses | None = None
        self.sizes = np.array([t.size_bytes for t in graph.tensors], np.int64)
        self.alone_ns = np.array(durations_ns(graph, hardware), np.int64)
        self.meets = np.array([op.collective is not None for op in graph.ops], bool)
        steps = plan.fixed
        self.streams: Sequence[int] = range(1 + len(graph.groups))
        self.queues = np.arange(len(hardware.links))
        for shared in hardware.copy_queues.values():
            members = [hardware.link_names.index(name) for name in shared]
            self.queues[members] = min(members)
        self._lap: Columns | None = None
        if steps is not None:
            kind, a, b, c = (np.array(column, np.int64) for column in (steps.kind, steps.a, steps.b, steps.c))
            self._lap = kind, a, b, c
            self.streams = np.unique(b[kind == COMPUTE]).tolist()

    def with_draws(self, draws: Draws | None) -> Program:
        """The same where it is known what late reads choose."""
        if draws is None:
            return self
        found = copy(self)
        found.late = LateUses(self.graph, self.hardware, draws)
        found.uses = found.late.uses
        return found

    @property
    def planned_steps(self) -> int | None:
        """How many steps a fixed plan has, all repeats; None for a reactive one."""
        return None if self._lap is None else len(self._lap[0]) * self.plan.repeats

    def planned(self, first: int, last: int) -> Columns:
        """Columns of the steps of a fixed plan from one issue number up to another; none of a reactive one."""
        if self._lap is None or first >= last:
            return (np.empty(0, np.int64),) * 4
        at = np.arange(first, last) % len(self._lap[0])
        kind, a, b, c = (column[at] for column in self._lap)
        return kind, a, b, c
