"""Order of ops that holds whatever a plan decides: what happens before what, within a step and over its boundary.

Ops on one stream run one after another. An op starts after the end of those that write what it reads or use what it
writes, on whatever stream and in whatever step (semantics, rules 2 and 5). Ops take room in issue order: one that takes
room starts no sooner than those before it that do (rule 8). An op surely takes room if it has a workspace, or makes a
tensor that did not exist before in the step. Nothing else is certain: an op that runs beside the *line*, the ops of
stream 0, may be early or late, as far as these permit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from simulator.cost import is_contended
from simulator.graph import Graph
from simulator.lifetime import Lifetimes


def streams_of(graph: Graph, collectives: str = "own_stream") -> tuple[int, ...]:
    """Return the stream of each op; where collectives run beside computes, each group has one after those of ops."""
    if collectives != "own_stream":
        return tuple(op.stream for op in graph.ops)
    last = max((op.stream for op in graph.ops), default=0)
    stream_of = {group.name: last + position for position, group in enumerate(graph.groups, 1)}
    return tuple(stream_of[op.collective.group] if op.collective else op.stream for op in graph.ops)


@dataclass(frozen=True)
class Precedence:
    """Order of the ops of one rank: what happens before what.

    Attributes
    ----------
    graph, streams
        Graph that runs, as its accelerator sees it (`Graph.on_accelerator`); stream of each op.
    shares_memory
        Whether copies take bandwidth from kernels of one stream.
    in_place
        The graph with what ops may read in place, which `graph` has not; None if nothing.
    """

    graph: Graph
    streams: tuple[int, ...]
    shares_memory: bool = False
    in_place: Graph | None = None

    @property
    def whole(self) -> Graph:
        """The graph with what ops of the host use."""
        return self.graph.whole

    @cached_property
    def written_on_host(self) -> frozenset[int]:
        """Tensors that ops of the host write: their values are not followed, as these may take the place of any."""
        return frozenset(t for op in self.whole.on_host for t in self.whole.ops[op].writes)

    @classmethod
    def of(cls, graph: Graph, streams: tuple[int, ...] | None = None, *, shares_memory: bool = False) -> Precedence:
        """Return the order of a graph, computed once for its streams: by default collectives run beside computes."""
        key, view = (cls, streams or streams_of(graph), shares_memory), graph.on_accelerator
        if key not in graph.known:
            marked = graph if graph.in_place else None
            graph.known[key] = cls(view.without_reads(graph.in_place) if marked else view, *key[1:], marked)
        return cast(Precedence, graph.known[key])

    @cached_property
    def handed_over(self) -> list[int]:
        """Tensors that ops of the host read as one of the accelerator wrote them, once for each such value."""
        maker, values = dict[int, int](), set[tuple[int, int]]()
        for index, op in enumerate(self.whole.ops):
            if index in self.whole.on_host:
                values.update((t, maker[t]) for t in op.reads if maker.get(t, index) not in self.whole.on_host)
            maker |= dict.fromkeys(op.writes, index)
        return sorted(t for t, _ in values)

    @cached_property
    def in_line(self) -> bool:
        """Whether all ops run on stream 0, so that program order is the order of time."""
        return not any(self.streams)

    @cached_property
    def is_contended(self) -> bool:
        """Whether kernels share the device, so that others may stretch them."""
        return is_contended(self.graph, enumerate(self.streams), shares_memory=self.shares_memory)

    @cached_property
    def is_stretched(self) -> bool:
        """Whether others may stretch the last op of the line, or beside the line any op."""
        if self.in_place is None or self.is_contended:
            return self.is_contended
        return not self.in_line or not self.in_place.in_place.isdisjoint(self.in_place.ops[self.last].reads)

    @cached_property
    def last(self) -> int:
        """The last op of the line; -1 if there is none."""
        return max((op for op, stream in enumerate(self.streams) if not stream), default=-1)

    @cached_property
    def within(self) -> Sequence[Sequence[int]]:
        """Op -> ops of the same step after whose end it starts."""
        return self.after[: len(self.streams)]

    @cached_property
    def after(self) -> list[list[int]]:
        """Op of two steps, one after the other -> ops after whose end it starts; implied ones may be left out."""
        ops, streams = len(self.streams), self.streams
        beside = [node for node, stream in zip(self.whole.ops, streams, strict=True) if stream]
        shared = {t for node in beside for t in (*node.reads, *node.writes)}  # what only the line uses is in order
        previous, writer, users = dict[int, int](), dict[int, int](), dict[int, list[int]]()
        after = list[list[int]]()
        for position, node in enumerate(self.whole.ops * 2):
            stream = streams[position % ops]
            reads, writes = ([t for t in tensors if t in shared] for tensors in (node.reads, node.writes))
            earlier = {writer[t] for t in reads if t in writer}.union(*(users.get(t, ()) for t in writes))
            after.append([previous[stream]] if stream in previous else [])
            after[position] += sorted(op for op in earlier if streams[op % ops] != stream)
            for t in reads:
                readers = users.setdefault(t, [])
                if readers and streams[readers[-1] % ops] == stream:
                    readers.pop()
                readers.append(position)
            for t in writes:
                writer[t], users[t] = position, [position]
            previous[stream] = position
        return after

    @cached_property
    def no_earlier(self) -> dict[int, int]:
        """Op of two steps that takes room beside the line -> last compute of the line before it that takes room.

        None where streams share the device, or delays vary: what starts with an op that others stretch, or that is
        longer on some ranks, may come long before its end.
        """
        if self.is_stretched or self.graph.spreads:
            return {}
        ops, tensors, exists = len(self.streams), self.graph.tensors, set(Lifetimes.of(self.graph).inputs)
        takes, no_earlier, latest = list[bool](), dict[int, int](), -1
        for node in self.graph.ops:
            takes.append(any(tensors[t].size_bytes for t in node.writes if t not in exists) or node.workspace_bytes > 0)
            exists.update(node.writes)
        for position, node in enumerate(self.graph.ops * 2):
            if takes[position % ops] and self.streams[position % ops] and latest >= 0:
                no_earlier[position] = latest
            elif takes[position % ops] and not self.streams[position % ops] and node.collective is None:
                latest = position
        return no_earlier

    @cached_property
    def ended(self) -> list[int]:
        """Op -> last op of the line that has surely ended when it starts, in the same step; -1 if none has.

        A further entry is for the end of the step: the last op.
        """
        ops = len(self.streams)
        if self.in_line:
            return list(range(-1, ops))
        ended: list[int] = []
        for earlier in self.within:
            ended.append(max((ended[p] if self.streams[p] else p for p in earlier), default=-1))
        return [*ended, ops - 1]

    @cached_property
    def follows(self) -> list[int]:
        """Op -> first op of the line that surely starts after its end, in the same step; if none, the number of ops."""
        ops = len(self.streams)
        if self.in_line:
            return list(range(1, ops + 1))
        follows = [ops] * ops
        for op in reversed(range(ops)):
            first = follows[op] if self.streams[op] else op
            for p in self.within[op]:
                follows[p] = min(follows[p], first)
        return follows

    def no_sooner(self, op: int) -> int:
        """Return the last op of the line that surely starts no later than it; -1 if there is none."""
        return self.ended[op] if self.streams[op] else op

    def awaited_by(self, op: int) -> int:
        """Return the first op of the line that surely starts no sooner than it; if none, the number of ops."""
        return self.follows[op] if self.streams[op] else op
