"""What ranks ran, as columns, laid out once for all of them: what ops read and write, and the steps of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain

import numpy as np

from simulator.columns import Bools, Ints
from simulator.cost import chosen_op, duration_ns, durations_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan
from simulator.trace import ISSUED, Block, pick


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
        read, written = _keys([op.reads for op in graph.ops], n), _keys([op.writes for op in graph.ops], n)
        both = np.union1d(read, written)
        return cls(both // n, both % n, np.isin(both, read), np.isin(both, written))

    def expand(self, ops: Ints) -> tuple[Ints, Ints]:
        """For each of `ops` find its uses: positions in `ops`, and positions in these columns."""
        first = np.searchsorted(self.op, ops, "left")
        count = np.searchsorted(self.op, ops, "right") - first
        who = np.repeat(np.arange(len(ops)), count)
        return who, np.arange(len(who)) - np.repeat(np.cumsum(count) - count - first, count)


def _keys(tensors: Sequence[tuple[int, ...]], n: int) -> Ints:
    counts = [len(t) for t in tensors]
    flat = np.fromiter(chain.from_iterable(tensors), np.int64, sum(counts))
    return np.repeat(np.arange(len(tensors)), counts) * n + flat


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
    tiers, compute_tier
        How many tiers there are, and which one computes work in.
    sizes, persistent
        Of each tensor [B].
    homes
        Places (``tensor * tiers + tier``) of more than 0 B that are held at time 0.
    workspace
        Of each op [B].
    alone_ns
        Time of each op alone [ns].
    meets
        Of each op, whether it is a collective.
    streams
        Those that computes may run on.
    links
        For each link the tiers from which and to which it leads, and its channels.
    queues
        For each link the queue that it waits in, as the number of the first link there.
    """

    def __init__(self, graph: Graph, hardware: Hardware, plan: Plan) -> None:
        self.graph, self.hardware, self.plan = graph, hardware, plan
        self.uses = Uses.of(graph)
        self.late: LateUses | None = None
        self.tiers, self.compute_tier = len(plan.tiers), plan.tiers.index(hardware.compute_tier)
        self.sizes = np.array([t.size_bytes for t in graph.tensors], np.int64)
        self.persistent = np.array([t.persistent for t in graph.tensors], bool)
        home = np.array(plan.home, np.int64)
        housed = np.flatnonzero((home != NOWHERE) & (self.sizes > 0))
        self.homes = housed * self.tiers + home[housed]
        self.workspace = np.array([op.workspace_bytes for op in graph.ops], np.int64)
        self.alone_ns = np.array(durations_ns(graph, hardware), np.int64)
        self.meets = np.array([op.collective is not None for op in graph.ops], bool)
        self.streams: Sequence[int] = range(1 + len(graph.groups))
        number = {name: tier for tier, name in enumerate(plan.tiers)}
        ends = [(number[link.source], number[link.target], link.channels) for link in hardware.links.values()]
        self.links = np.array(ends, np.int64).reshape(-1, 3)
        self.queues = np.arange(len(hardware.links))
        for shared in hardware.copy_queues.values():
            members = [hardware.link_names.index(name) for name in shared]
            self.queues[members] = min(members)
        self._lap: Block | None = None
        if plan.fixed is not None:
            self._lap = {name: np.array(getattr(plan.fixed, name), np.int64) for name in ISSUED}
            self.streams = np.unique(self._lap["b"][self._lap["kind"] == COMPUTE]).tolist()

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
        return None if self._lap is None else len(self._lap["kind"]) * self.plan.repeats

    def planned(self, first: int, last: int) -> Block:
        """Columns of the steps of a fixed plan from one issue number up to another; none of a reactive one."""
        lap = self._lap or dict.fromkeys(ISSUED, np.empty(0, np.int64))
        return pick(lap, np.arange(first, last if self._lap else first) % max(len(lap["kind"]), 1))
