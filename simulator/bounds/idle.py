"""Values that are needed later but not by the op that runs: what a tight budget has to keep elsewhere.

A plan that may run ops again need not keep what it can make again. Of its values only those count that no op can make
again: those that the step began with, and what an op made that is not repeatable.

Where collectives run beside computes, program order does not say what is there when an op runs. Such a graph has a
*line*, the ops of stream 0 (see `before`). While an op of the line runs, a value is needed for certain if what made or
used it before has surely ended by then, and what reads it next has surely not begun. What only reads it meanwhile, on
another stream, does not matter: until the last of them has read it, the value, or what they make of it in place, is
needed. Of what runs beside the line only what it uses itself counts, and what stays in the compute tier.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.before import Before
from simulator.bounds.rings import rings_of
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import Lifetimes, lifetimes, working_set_bytes
from simulator.plan import FREE, NOWHERE


class Spells(NamedTuple):
    """Values that are needed and may be elsewhere, by column; a spell lies over ops of the line that do not use it.

    Attributes
    ----------
    size
        Of the tensor [B].
    first, last
        The ops.
    due
        The op of the line that surely starts no sooner than the one that reads the value; the number of ops if no op
        of the step reads it, or none of the line is known to wait for that.
    made
        The last op of the line than which the op that made the value surely starts no sooner; -1 if it was not made in
        the step, or nothing is known of when.
    maker
        The op that made the value; -1 if it was not made in the step.
    """

    size: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    due: NDArray[np.int64]
    made: NDArray[np.int64]
    maker: NDArray[np.int64]

    def over(self, ops: int) -> NDArray[np.int64]:
        """By op, of so many, what lies over it [B]."""
        change = np.zeros(ops + 1, np.int64)
        np.add.at(change, self.first, self.size)
        np.add.at(change, self.last + 1, -self.size)
        found: NDArray[np.int64] = np.cumsum(change)[:-1]
        return found

    def where(self, mask: NDArray[np.bool_]) -> Spells:
        """Only some of them."""
        return Spells(*(column[mask] for column in self))


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
    before
        What happens before what in the graph, if it is at hand.

    Attributes
    ----------
    rings
        The compute tier, and with it the tiers around it that may be too small for what it has no room for.
    made_in
        For each ring, of tensors that were in it before, in the same step (an op made or used them there, or their home
        is in it), and of those that stay in the compute tier because it is their home.
    read_in
        For each ring, of tensors that no op has to fetch from a home outside it, if an op of the step reads them later;
        and of those that stay in the compute tier.
    stays
        Of tensors that stay in the compute tier because it is their home.
    all
        Of all tensors.
    work
        What each op uses, and its workspace.
    spells
        The values themselves, also those that can be made again, without what stays in the compute tier.
    lifetimes, before, may_repeat
        Of the graph; whether ops may run again.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        homes: Sequence[int],
        *,
        may_repeat: bool = False,
        found: Lifetimes | None = None,
        before: Before | None = None,
    ) -> None:
        self.may_repeat = may_repeat
        self.lifetimes = found = found or lifetimes(graph)
        self.before = before = before or Before.of(graph)
        self.work = working_set_bytes(graph)
        compute_tier, inputs = hardware.tier_names.index(hardware.compute_tier), before.inputs
        self.rings = rings_of(hardware, sum(tensor.size_bytes for tensor in graph.tensors))
        change = np.zeros((3 + 2 * len(self.rings), len(graph.ops) + 1), np.int64)
        spells = [array("q") for _ in Spells._fields]
        always, stays, everything, first = range(4)
        pinned = {t for t in inputs if homes[t] == compute_tier and graph.tensors[t].persistent}
        for stretch in idle_stretches(graph, found, before, pinned, may_repeat=may_repeat):
            t = stretch.tensor
            size, home = graph.tensors[t].size_bytes, homes[t] if t in inputs else NOWHERE
            if home != compute_tier and size:
                for column, value in zip(spells, self._spell(stretch), strict=True):
                    column.append(value)
            if may_repeat and home != compute_tier and can_be_made_again(graph, found.writes[t], stretch.first):
                continue
            kinds = [everything]
            is_new = not stretch.from_start and before.no_sooner(found.first_use[t]) >= 0
            is_made = home == compute_tier or (home == NOWHERE and (graph.steps == 1 or is_new))
            comes_back = stretch.is_read and before.leads_on(stretch.before)
            for kind, ring in enumerate(self.rings):
                if is_made or (graph.steps == 1 and home in ring.tiers):
                    kinds.append(first + 2 * kind)
                if home == compute_tier or (comes_back and (home in {NOWHERE, FREE} or home in ring.tiers)):
                    kinds.append(first + 2 * kind + 1)
            if home == compute_tier:
                kinds.append(stays)
            for kind in (always,) if t in pinned else kinds:
                change[kind, stretch.first] += size
                change[kind, stretch.last + 1] -= size
        sums = np.cumsum(change, axis=1)[:, :-1]
        in_line = np.array(before.streams, np.int64) == 0
        self.stays, self.all, *by_ring = sums[stays:] * in_line + sums[always]
        self.made_in, self.read_in = by_ring[::2], by_ring[1::2]
        self.spells = Spells(*(np.array(column, np.int64) for column in spells))

    def _spell(self, stretch: Stretch) -> tuple[int, ...]:
        """The columns of a stretch."""
        before, graph = self.before, self.before.graph
        writes = self.lifetimes.writes[stretch.tensor]
        version = bisect_right(writes, stretch.after) - 1
        due = before.awaited_by(stretch.before) if stretch.is_read else len(graph.ops)
        maker = writes[version] if version >= 0 else -1
        made = before.no_sooner(maker) if version >= 0 else -1
        return graph.tensors[stretch.tensor].size_bytes, stretch.first, stretch.last, due, made, maker


def shortest(ops: NDArray[np.int64], demand: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Of each of so many equally long stretches of these ops, the one at which most is needed."""
    if len(ops) <= count:
        return ops
    stretch = np.arange(len(ops)) * count // len(ops)
    in_turn = np.lexsort((-demand[ops], stretch))
    found: NDArray[np.int64] = ops[in_turn[np.flatnonzero(np.diff(stretch, prepend=-1))]]
    return found


def can_be_made_again(graph: Graph, writes: Sequence[int], at: int) -> bool:
    """Whether the value that a tensor holds at an op was made by an op of the step that may run again."""
    earlier = bisect_left(writes, at)
    return earlier > 0 and graph.ops[writes[earlier - 1]].repeatable


class Stretch(NamedTuple):
    """Between two uses of a tensor whose value is needed: ops of the line that do not use it.

    Attributes
    ----------
    tensor
        Which one.
    after, before
        The uses on either side: ops; -1 for the start, the number of ops for the end of the step.
    first, last
        The ops: those of the line from the first to the last one.
    is_read
        Whether `before` is an op, which reads it.
    """

    tensor: int
    after: int
    before: int
    first: int
    last: int
    is_read: bool

    @property
    def from_start(self) -> bool:
        """Whether no op of the step used it before."""
        return self.after < 0


def idle_stretches(
    graph: Graph, found: Lifetimes, before: Before, always: Collection[int] = (), *, may_repeat: bool = False
) -> Iterable[Stretch]:
    """Yield the stretches of each tensor, in order; an output is needed until the last op has ended.

    Parameters
    ----------
    graph, found, before
        The graph, with its lifetimes and what happens before what.
    always
        Tensors that are there all the time: their stretches count for all ops between their uses.
    may_repeat
        Whether ops may run again: then it matters which version of a value is needed.
    """
    n, inputs, outputs = len(graph.ops), before.inputs, set(graph.outputs)
    for t, tensor in enumerate(graph.tensors):
        uses = found.uses[t]
        if t in inputs and uses and found.is_read(t, uses[0]):
            uses = (-1, *uses)
        is_pinned = before.in_line or t in always
        if not is_pinned:
            uses = _telling(graph, before, t, uses, may_repeat=may_repeat)
        for after, reader in pairwise(uses):
            first, last = (after + 1, reader - 1) if is_pinned else (before.first_behind(after), before.ended[reader])
            if first <= last and found.is_read(t, reader):
                yield Stretch(t, after, reader, first, last, is_read=True)
        last_use = uses[-1] if uses else -1
        first = last_use + 1 if is_pinned else before.first_behind(last_use)
        if first < n and (tensor.persistent or t in outputs):
            yield Stretch(t, last_use, n, first, n - 1, is_read=False)


def _telling(graph: Graph, before: Before, tensor: int, uses: Sequence[int], *, may_repeat: bool) -> tuple[int, ...]:
    """Uses without those beside the line of which the next one says more: the tensor is needed through them."""
    kept: list[int] = []
    is_needed = graph.tensors[tensor].persistent or tensor in graph.outputs
    for use in reversed(uses):
        reads, writes = (graph.ops[use].reads, graph.ops[use].writes) if use >= 0 else ((), ())
        is_beside = use >= 0 and before.streams[use] > 0 and use != uses[0]
        if not (is_beside and is_needed and tensor in reads) or (may_repeat and tensor in writes):
            kept.append(use)
            is_needed = tensor in reads
    return tuple(kept[::-1])


def reached(start: int, edges: Sequence[tuple[int, int]]) -> set[int]:
    """Tiers (ids) that can be reached from `start` along the edges, itself included."""
    reached, last = {start}, 0
    while len(reached) > last:
        last = len(reached)
        reached.update(target for source, target in edges if source in reached)
    return reached
