"""A graph and a plan as columns, made once for all ranks that ran them: uses of tensors by ops, and actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import NamedTuple

import numpy as np

from simulator.cost import durations_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan
from simulator.trace import ISSUED, Block, Bools, Ints


class Uses(NamedTuple):
    """Columns of the uses of tensors by the ops of a graph.

    Attributes
    ----------
    op
        Op ids, ascending.
    tensor
        The tensor that the op uses, each once.
    """

    op: Ints
    tensor: Ints
    reads: Bools
    writes: Bools

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """Collect the uses of a graph."""
        n = max(len(graph.tensors), 1)
        read, written = _keys([op.reads for op in graph.ops], n), _keys([op.writes for op in graph.ops], n)
        both = np.union1d(read, written)
        return cls(both // n, both % n, np.isin(both, read), np.isin(both, written))


def _keys(tensors: Sequence[tuple[int, ...]], n: int) -> Ints:
    counts = [len(t) for t in tensors]
    flat = np.fromiter(chain.from_iterable(tensors), np.int64, sum(counts))
    return np.repeat(np.arange(len(tensors)), counts) * n + flat


class ProgramColumns:
    """A graph and its plan as columns, made once for all ranks that ran them.

    Parameters
    ----------
    graph, hardware, plan
        The graph, the machine as their ranks see it, and the plan.
    delays_ns
        Op -> how long a delay takes that varies [ns].

    Attributes
    ----------
    uses
        Uses by ops; where dynamic reads are drawn, those that are certain, and after the last op the candidates of each
        op with dynamic reads.
    tier_of, is_host
        The tier in which each op works, and whether that is the host's.
    sizes, persistent
        Size of each tensor [B]; whether it persists.
    valid_homes, homes
        Places (``tensor * tiers + tier``) that are valid at time 0; those of more than 0 B, which are held.
    workspace
        Workspace of each op [B].
    meets
        Whether each op is a collective.
    is_modelled, is_contended
        Whether the time of each op is modelled, neither measured nor that of a collective; whether such ops of the
        accelerator share it, as they run on several streams, or as the machine says so.
    links
        Source tier, target tier and channels of each link.
    queues
        The copy queue of each link, as the index of its first link.
    in_place, loads
        Tensors that ops may read in place; by tier that kernels load from, in the order of their choice, the link.
    """

    def __init__(self, graph: Graph, hardware: Hardware, plan: Plan, delays_ns: Mapping[int, int]) -> None:
        self.graph, self.hardware, self.plan = graph, hardware, plan
        self.uses = Uses.of(graph)
        self._draws: Draws | None = None
        self._candidates_from: dict[int, int] = {}
        self.tiers, self.compute_tier = len(plan.tiers), plan.tiers.index(hardware.compute_tier)
        self.is_host = np.array([op.device == "host" for op in graph.ops], bool)
        cores = hardware.host_compute
        host_tier = self.compute_tier if cores is None else plan.tiers.index(cores.tier)
        self.tier_of = np.where(self.is_host, host_tier, self.compute_tier)
        self.sizes = np.array([t.size_bytes for t in graph.tensors], np.int64)
        self.persistent = np.array([t.persistent for t in graph.tensors], bool)
        home = np.array(plan.home, np.int64)
        self.valid_homes = np.flatnonzero(home != NOWHERE) * self.tiers + home[home != NOWHERE]
        self.homes = self.valid_homes[self.sizes[self.valid_homes // self.tiers] > 0]
        self.workspace = np.array([op.workspace_bytes for op in graph.ops], np.int64)
        self._alone_ns = np.array(durations_ns(graph, hardware), np.int64)
        self._alone_ns[[*delays_ns]] = [*delays_ns.values()]
        self.meets = np.array([op.collective is not None for op in graph.ops], bool)
        links = [(*map(plan.tiers.index, (k.source, k.target)), k.channels) for k in hardware.links.values()]
        self.links = np.array(links, np.int64).reshape(-1, 3)
        self.queues = np.arange(len(hardware.links))
        for shared in hardware.copy_queues.values():
            members = [hardware.link_names.index(name) for name in shared]
            self.queues[members] = min(members)
        self.in_place = np.array(sorted(graph.in_place), np.int64)
        self.loads = {plan.tiers.index(hardware.tier_names[tier]): link for tier, link in hardware.loads.items()}
        self._lap: Block = {}
        ops, streams = np.arange(len(graph.ops)), np.array([op.stream for op in graph.ops], np.int64)
        if plan.fixed is not None:
            self._lap = {name: np.array(getattr(plan.fixed, name), np.int64) for name in ISSUED}
            ops, streams = (self._lap[name][self._lap["kind"] == COMPUTE] for name in ("a", "b"))
        self.is_modelled = np.array([op.duration_ns is None and op.collective is None for op in graph.ops], bool)
        modelled = (self.is_modelled & ~self.is_host)[ops]
        self.is_contended = hardware.shares_memory or len(np.unique(streams[modelled])) > 1

    def with_draws(self, draws: Draws | None) -> ProgramColumns:
        """Return the same program with draws of its dynamic reads."""
        if draws is None:
            return self
        program, certain = copy(self), Uses.of(self.graph.certain)
        dynamic = {op: np.array(reads.candidates) for op in draws.chosen_flags if (reads := self.graph.ops[op].dynamic)}
        behind = len(self.graph.ops) + np.arange(len(dynamic))
        op_ids = np.repeat(behind, [*map(len, dynamic.values())])
        updates = [reads.updates for op in dynamic if (reads := self.graph.ops[op].dynamic)]
        writes = np.repeat(np.array(updates, bool), [*map(len, dynamic.values())])
        candidates = Uses(op_ids, np.concatenate([*dynamic.values()]), np.ones_like(op_ids, bool), writes)
        program.uses = Uses(*(np.concatenate(columns) for columns in zip(certain, candidates, strict=True)))
        first = len(certain.op) + np.searchsorted(op_ids, behind)
        program._draws, program._candidates_from = draws, dict(zip(dynamic, first.tolist(), strict=True))
        return program

    def uses_of(self, computes: Ints, ops: Ints) -> tuple[Ints, Ints]:
        """Return the uses by computes in issue order: issues, and positions in `uses`.

        Parameters
        ----------
        computes, ops
            Issues, and the op of each.
        """
        first = np.searchsorted(self.uses.op, ops, "left")
        count = np.searchsorted(self.uses.op, ops, "right") - first
        issue = [np.repeat(computes, count)]
        use = [np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - first, count)]
        for op, drawing, draws in self._drawn_reads(ops):
            step, position = np.nonzero(draws.chosen_flags[op][: len(drawing)])
            issue.append(computes[drawing[step]])
            use.append(self._candidates_from[op] + position)
        return np.concatenate(issue), np.concatenate(use)

    def alone_ns(self, ops: Ints) -> Ints:
        """Return the times alone of computes of these ops, in issue order [ns]."""
        alone = self._alone_ns[ops]
        for op, drawing, draws in self._drawn_reads(ops):
            alone[drawing] = draws.durations_ns(op)[: len(drawing)]
        return alone

    def _drawn_reads(self, ops: Ints) -> Iterator[tuple[int, Ints, Draws]]:
        """Yield each op whose dynamic reads are drawn, its positions among `ops` (the k-th is of step k), and draws."""
        if self._draws is not None:
            yield from ((op, np.flatnonzero(ops == op), self._draws) for op in self._candidates_from)

    def planned(self) -> Block:
        """Return the columns of all actions of a fixed plan."""
        return {name: np.tile(codes, self.plan.repeats) for name, codes in self._lap.items()}
