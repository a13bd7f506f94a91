"""Lifetimes of tensors, from the operator order alone; and tensors that ranks share, so that they are stored once.

Ops of the host use nothing of the accelerator's: all is counted of `Graph.on_accelerator`.

Glossary of this module; every moment is the index of an op within one training step:

use
    An op that reads or writes the tensor.
born
    The op at which the tensor takes room if nothing ever moves: its first use, or op 0 for what exists before
    the first op (persistent tensors and inputs).
dies
    The last op during which the tensor takes room: its last use, or the last op of the step for persistent
    tensors and outputs.
dead after an op
    Its last use is that op and nobody needs it later: it is neither persistent nor an output.
live bytes
    Size of what is born and has not died while an op runs, and of the op's workspace: after the op's allocations
    and before its frees, where peaks are.
idle interval
    The ops between two consecutive uses of a tensor. A persistent tensor of a graph that runs several steps
    has one more, which wraps: from its last use over the step boundary to its first use in the next step.
working set
    What one op needs at once: all it reads, all it writes and its workspace.

Everything here is a pure function, and linear in the number of uses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.trace import Ints, held_bytes

NEVER = -1
"""Op index of what never happens."""


class IdleInterval(NamedTuple):
    """An idle interval of a tensor.

    Attributes
    ----------
    after, before
        The uses on either side (op indices); the ops between them do not need the tensor.
    wraps
        Whether `before` lies in the next step, and the interval spans the step boundary.
    """

    tensor: int
    after: int
    before: int
    wraps: bool = False


class Lifetimes:
    """Uses and lifetimes of all tensors of a graph; lists are by tensor id, `dead_after` by op.

    Parameters
    ----------
    graph
        The graph.

    Attributes
    ----------
    uses, reads, writes
        Ops that use, that read, and that write, the tensor, ascending.
    first_use, last_use
        Ops, or `NEVER`.
    born, dies
        First and last op during which it is live, or `NEVER` for what is neither used nor persistent.
    dead_after
        For each op, the tensors (ascending) that are dead after it.
    inputs, stays
        Tensors that exist before the first op; those that are needed when the step ends.
    """

    def __init__(self, graph: Graph) -> None:
        graph = graph.on_accelerator
        reads, writes = ([list[int]() for _ in graph.tensors] for _ in range(2))
        for i, op in enumerate(graph.ops):
            for lists, tensors in ((reads, op.reads), (writes, op.writes)):
                for t in set(tensors):
                    lists[t].append(i)
        self.reads, self.writes = tuple(map(tuple, reads)), tuple(map(tuple, writes))
        self.uses = tuple(tuple(sorted({*r, *w})) for r, w in zip(self.reads, self.writes, strict=True))
        self.first_use, self.last_use = (tuple(o[end] if o else NEVER for o in self.uses) for end in (0, -1))
        born, dies = list(self.first_use), list(self.last_use)
        dead_after: list[list[int]] = [[] for _ in graph.ops]
        self.inputs = frozenset(graph.inputs)
        self.stays = frozenset(graph.outputs).union(t for t, tensor in enumerate(graph.tensors) if tensor.persistent)
        for t in self.inputs:
            born[t] = 0
        for t, last in enumerate(self.last_use):
            if t in self.stays:
                dies[t] = len(graph.ops) - 1
            elif last != NEVER:
                dead_after[last].append(t)
        self.born, self.dies, self.dead_after = tuple(born), tuple(dies), tuple(map(tuple, dead_after))

    @classmethod
    def of(cls, graph: Graph) -> Lifetimes:
        """Return the lifetimes of a graph, which are computed once."""
        return cast(Lifetimes, graph.known.get(cls) or graph.known.setdefault(cls, cls(graph)))

    def is_read(self, tensor: int, op: int) -> bool:
        """Return whether an op reads the tensor, by bisection: an op may read thousands."""
        reads = self.reads[tensor]
        position = bisect_left(reads, op)
        return position < len(reads) and reads[position] == op


def idle_intervals(graph: Graph) -> Iterator[IdleInterval]:
    """Iterate over the idle intervals by tensor id, then by time; consecutive uses with no op between have none.

    Parameters
    ----------
    graph
        The graph.
    """
    for t, uses in enumerate(Lifetimes.of(graph).uses):
        for after, before in pairwise(uses):
            if before > after + 1:
                yield IdleInterval(t, after, before)
        may_wrap = graph.steps > 1 and graph.tensors[t].persistent
        if may_wrap and uses and (uses[0] > 0 or uses[-1] < len(graph.ops) - 1):
            yield IdleInterval(t, uses[-1], uses[0], wraps=True)


def live_bytes(graph: Graph, tensors: Iterable[int] | None = None) -> Ints:
    """Count the live bytes during each op if nothing ever moves [B].

    Parameters
    ----------
    graph
        The graph.
    tensors
        Tensors that count; default: all.

    Returns
    -------
    array of int64, shape (ops,)
        Live bytes during each op, its workspace included; the largest is the peak that everything resident needs.
    """
    lifetimes, every = Lifetimes.of(graph), range(len(graph.tensors)) if tensors is None else tensors
    graph = graph.on_accelerator
    live = [t for t in every if lifetimes.born[t] != NEVER]
    born, dies = ([ops[t] for t in live] for ops in (lifetimes.born, lifetimes.dies))
    workspace = np.array([op.workspace_bytes for op in graph.ops], np.int64)
    return workspace + held_bytes(born, dies, [graph.tensors[t].size_bytes for t in live], len(graph.ops))


def working_set_bytes(graph: Graph) -> Ints:
    """Count the bytes that each op needs in the compute tier at once [B].

    Returns
    -------
    array of int64, shape (ops,)
        Sizes of what it reads or writes, each tensor once, plus its workspace.
    """
    graph, sizes = graph.on_accelerator, [t.size_bytes for t in graph.tensors]
    return np.array([op.workspace_bytes + sum(sizes[t] for t in {*op.reads, *op.writes}) for op in graph.ops], np.int64)


# tensors that ranks share: stored once in each instance of a tier that these ranks share


class Duplicates(NamedTuple):
    """Shared tensors of a rank that a lower rank stores already.

    Attributes
    ----------
    tensors
        Ids of the tensors that take no room of their own there.
    """

    rank: int
    tier: int
    tensors: tuple[int, ...]
    size_bytes: int


def duplicates(ranks: Sequence[tuple[Graph, Sequence[int]]], hardware: Hardware) -> Iterator[Duplicates]:
    """Yield, rank by rank, the shared tensors that a lower rank stores already.

    In each instance of a tier a shared tensor is stored once for all ranks of a node, or of the supernode, as the
    tensor says: by the lowest of these ranks.

    Parameters
    ----------
    ranks
        For each rank its graph, and the tier id of each tensor at time 0 (negative: in no tier).
    hardware
        Scopes of the tiers.
    """
    groups: dict[tuple[int, int], dict[tuple[int, str], Duplicates]] = {}
    stored, complete, sharing = set[tuple[object, ...]](), set[tuple[object, ...]](), hardware.topology.sharing
    tiers = list(hardware.tiers.values())
    for rank, (graph, home) in enumerate(ranks):
        kind = (id(graph), id(home))
        if kind not in groups:
            groups[kind] = _shared(graph, home, hardware)
        for (tier, shared), group in groups[kind].items():
            instance = (tier, rank // sharing[tiers[tier].scope], rank // sharing[shared])
            stored_before = group
            if (kind, shared, *instance) not in complete:
                copies = {t: (*instance, graph.tensors[t].name, graph.tensors[t].size_bytes) for t in group.tensors}
                ids = tuple(t for t, copy in copies.items() if copy in stored)
                stored_before = Duplicates(rank, tier, ids, sum(graph.tensors[t].size_bytes for t in ids))
                stored.update(copies.values())
                complete.add((kind, shared, *instance))
            if stored_before.tensors:
                yield stored_before._replace(rank=rank)


def _shared(graph: Graph, home: Sequence[int], hardware: Hardware) -> dict[tuple[int, str], Duplicates]:
    """Return the shared tensors of a graph by tier and by who shares them, as if all were stored already."""
    scopes, shared = [tier.scope for tier in hardware.tiers.values()], dict[tuple[int, str], list[int]]()
    for index, (tensor, tier) in enumerate(zip(graph.tensors, home, strict=True)):
        if tensor.shared is not None and tensor.persistent and tier >= 0 and scopes[tier] != "device":
            shared.setdefault((tier, tensor.shared), []).append(index)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    return {key: Duplicates(-1, key[0], tuple(ids), sum(sizes[t] for t in ids)) for key, ids in shared.items()}
