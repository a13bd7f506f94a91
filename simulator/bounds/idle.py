"""Values that are needed later but not by the op that runs: what a tight budget has to keep elsewhere.

A plan that may run ops again need not keep what it can make again. Of its values only those count that no op can make
again: those that the step began with, and what an op made that is not repeatable.

Where collectives run beside computes, an op may be late, so that what is made or used before it may be gone, and what
is used after it may not be there yet. So of such a graph only persistent tensors count that stay in the compute tier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import Lifetimes, lifetimes, working_set_bytes
from simulator.plan import FREE, NOWHERE


class Idle:
    """Bytes of the values that are needed later, but not by the op that runs; by op.

    Parameters
    ----------
    graph, hardware, homes
        See `bound`.
    may_repeat
        Whether ops may run again; then only values count that no op can make again, or that stay.
    found
        Lifetimes of the graph, if they are at hand.

    Attributes
    ----------
    made_here
        Of tensors that were in the compute tier before, in the same step (an op made or used them there), and of those
        that stay there because it is their home.
    read_later
        Of tensors that no op has to fetch from another home, if an op of the step reads them later; and of those that
        stay in the compute tier.
    stays
        Of tensors that stay in the compute tier because it is their home.
    all
        Of all tensors.
    put_out
        Of outputs that this op or a later one makes, and that the last op does not use.
    work
        What each op uses, and its workspace.
    lifetimes
        Of the graph's tensors.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        homes: Sequence[int],
        *,
        may_repeat: bool = False,
        found: Lifetimes | None = None,
    ) -> None:
        self.lifetimes = found = found or lifetimes(graph)
        self.work = working_set_bytes(graph)
        compute_tier, inputs = hardware.tier_names.index(hardware.compute_tier), set(graph.inputs)
        change, put_out = np.zeros((4, len(graph.ops) + 1), np.int64), np.zeros(len(graph.ops), np.int64)
        made_here, read_later, stays, everything = range(4)
        meets = graph.meets
        for t, first, last, is_read, from_start in idle_stretches(graph, found, inputs):
            size, home = graph.tensors[t].size_bytes, homes[t] if t in inputs else NOWHERE
            if may_repeat and home != compute_tier and can_be_made_again(graph, found.writes[t], first):
                continue
            if meets and not (home == compute_tier and graph.tensors[t].persistent):
                continue
            if t not in inputs and not is_read:  # the stretch of an output, after its last use
                put_out[found.first_use[t]] += size
            kinds = [everything]
            if home == compute_tier or (home == NOWHERE and (graph.steps == 1 or not from_start)):
                kinds.append(made_here)
            if home == compute_tier or (is_read and home in {NOWHERE, FREE}):
                kinds.append(read_later)
            if home == compute_tier:
                kinds.append(stays)
            for kind in kinds:
                change[kind, first] += size
                change[kind, last + 1] -= size
        self.made_here, self.read_later, self.stays, self.all = np.cumsum(change, axis=1)[:, :-1]
        self.put_out = np.cumsum(put_out[::-1])[::-1]


def can_be_made_again(graph: Graph, writes: Sequence[int], at: int) -> bool:
    """Whether the value that a tensor holds at an op was made by an op of the step that may run again."""
    earlier = bisect_left(writes, at)
    return earlier > 0 and graph.ops[writes[earlier - 1]].repeatable


class Stretch(NamedTuple):
    """Ops from `first` to `last` that do not use a tensor whose value is needed.

    Attributes
    ----------
    tensor, first, last
        Which tensor, which ops.
    is_read
        Whether an op of the step reads it next.
    from_start
        Whether no op of the step used it before.
    """

    tensor: int
    first: int
    last: int
    is_read: bool
    from_start: bool


def idle_stretches(graph: Graph, found: Lifetimes, inputs: set[int]) -> Iterable[Stretch]:
    """Yield the stretches of each tensor, in order; an output is needed until the last op has ended."""
    n, outputs = len(graph.ops), set(graph.outputs)
    for t, tensor in enumerate(graph.tensors):
        uses = found.uses[t]
        if t in inputs and uses and t in graph.ops[uses[0]].reads:
            uses = (-1, *uses)
        for after, before in pairwise(uses):
            if before > after + 1 and t in graph.ops[before].reads:
                yield Stretch(t, after + 1, before - 1, is_read=True, from_start=after < 0)
        last = uses[-1] if uses else -1
        if last < n - 1 and (tensor.persistent or t in outputs):
            yield Stretch(t, last + 1, n - 1, is_read=False, from_start=last < 0)


def reached(start: int, edges: Sequence[tuple[int, int]]) -> set[int]:
    """Tiers (ids) that can be reached from `start` along the edges, itself included."""
    reached, last = {start}, 0
    while len(reached) > last:
        last = len(reached)
        reached.update(target for source, target in edges if source in reached)
    return reached
