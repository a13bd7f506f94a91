"""What ranks ran, as columns, laid out once for all of them: what ops read and write, and the steps of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain

import numpy as np

from simulator.cost import chosen_op, duration_ns, durations_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, Plan
from simulator.referee.columns import Bools, Ints


class Uses:
    """What each op of a graph reads and writes, as flat columns.

    Parameters
    ----------
    op
        Op ids, ascending.
    tensor
        The tensor that the op uses, each once.
    reads, writes
        How it uses it.
    """

    def __init__(self, op: Ints, tensor: Ints, reads: Bools, writes: Bools) -> None:
        self.op, self.tensor, self.reads, self.writes = op, tensor, reads, writes

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """Collect the uses of a graph."""
        n = max(len(graph.tensors), 1)
        read = _keys([op.reads for op in graph.ops], n)
        written = _keys([op.writes for op in graph.ops], n)
        both = _distinct(np.concatenate((read, written)))
        return cls(both // n, both % n, _contains(read, both), _contains(written, both))

    def expand(self, ops: Ints) -> tuple[Ints, Ints]:
        """For each of `ops` find its uses: positions in `ops`, and positions in these columns."""
        first = np.searchsorted(self.op, ops, "left")
        count = np.searchsorted(self.op, ops, "right") - first
        who = np.repeat(np.arange(len(ops)), count)
        return who, np.arange(len(who)) - np.repeat(np.cumsum(count) - count - first, count)


def _keys(tensors: Sequence[tuple[int, ...]], n: int) -> Ints:
    counts = [len(t) for t in tensors]
    flat = np.fromiter(chain.from_iterable(tensors), np.int64, sum(counts))
    return _distinct(np.repeat(np.arange(len(tensors)), counts) * n + flat)


def _distinct(keys: Ints) -> Ints:
    keys = np.sort(keys)
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    return keys[new]


def _contains(keys: Ints, wanted: Ints) -> Bools:
    """Whether each wanted key is among the sorted keys."""
    if not len(keys):
        return np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)


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
