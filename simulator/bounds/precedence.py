"""Which ops come after which, whatever a plan decides: what happens before what, within a step and over its boundary.

Ops on one stream run one after another. An op starts after the end of those that write what it reads or use what it
writes, on whatever stream and in whatever step (semantics, rules 2 and 5). Room is taken in issue order: an op that
takes some starts no sooner than those before it that do (rule 8). What is sure to take room has a workspace, or makes a
tensor that did not exist before in the step. Nothing else is certain: an op that runs beside the *line*, the ops of
stream 0, may be early or late, as far as these permit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.graph import Graph


def own_streams(graph: Graph) -> tuple[int, ...]:
    """For each op its stream, if collectives run beside computes: 0 computes, each group has one of its own."""
    number = {group.name: 1 + position for position, group in enumerate(graph.groups)}
    return tuple(number[op.collective.group] if op.collective else 0 for op in graph.ops)


@dataclass(frozen=True)
class Precedence:
    """What happens before what in one rank.

    Attributes
    ----------
    graph, streams
        What runs; by op, on which stream.
    """

    graph: Graph
    streams: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, streams: Sequence[int] | None = None) -> Precedence:
        """Take the given streams, or else those of `own_streams`."""
        return cls(graph, own_streams(graph) if streams is None else tuple(streams))

    @cached_property
    def in_line(self) -> bool:
        """Whether all ops run on stream 0, so that program order is the order of time."""
        return not any(self.streams)

    @cached_property
    def last(self) -> int:
        """The last op of the line; -1 if there is none."""
        return max((op for op, stream in enumerate(self.streams) if not stream), default=-1)

    @cached_property
    def inputs(self) -> frozenset[int]:
        """What exists before the first op."""
        return frozenset(self.graph.inputs)

    @cached_property
    def outputs(self) -> frozenset[int]:
        """What is needed until a step ends, beside what is persistent."""
        return frozenset(self.graph.outputs)

    @property
    def within(self) -> Sequence[Sequence[int]]:
        """By op, those of the same step after whose end it starts."""
        return self._earlier[0]

    @property
    def across(self) -> Mapping[int, Sequence[int]]:
        """Op -> those of the step before after whose end it starts, where that does not follow from the others."""
        return self._earlier[1]

    @cached_property
    def opened(self) -> tuple[dict[int, int], dict[int, int]]:
        """Op beside the line -> the compute of the line that starts no later: of the same step, of the step before."""
        tensors, exists = self.graph.tensors, set(self.inputs)
        within: dict[int, int] = {}
        late, latest = [], -1
        for op, (what, stream) in enumerate(zip(self.graph.ops, self.streams, strict=True)):
            made_bytes = sum(tensors[t].size_bytes for t in what.writes if t not in exists)
            exists.update(what.writes)
            if not made_bytes and not what.workspace_bytes:
                continue
            if stream and latest < 0:
                late.append(op)
            elif stream:
                within[op] = latest
            elif what.collective is None:
                latest = op
        return within, dict.fromkeys(late, latest) if latest >= 0 else {}

    @cached_property
    def ended(self) -> list[int]:
        """By op, the last of the line that has surely ended when it starts, in the same step; -1 if none has."""
        if self.in_line:
            return list(range(-1, len(self.streams) - 1))
        found: list[int] = []
        for earlier in self.within:
            found.append(max((found[p] if self.streams[p] else p for p in earlier), default=-1))
        return found

    @cached_property
    def follows(self) -> list[int]:
        """By op, the first of the line that surely starts after its end, in the same step; else how many ops it has."""
        ops = len(self.streams)
        if self.in_line:
            return list(range(1, ops + 1))
        found = [ops] * ops
        for op in reversed(range(ops)):
            first = found[op] if self.streams[op] else op
            for p in self.within[op]:
                found[p] = min(found[p], first)
        return found

    def first_behind(self, op: int) -> int:
        """The first op of the line that surely starts after the end of an op; of -1, of the start of the step."""
        return self.follows[op] if op >= 0 else 0

    def no_sooner(self, op: int) -> int:
        """The last op of the line than which it surely starts no sooner; -1 if there is none."""
        return self.ended[op] if self.streams[op] else op

    def awaited_by(self, op: int) -> int:
        """The first op of the line that surely starts no sooner than it; else how many ops there are."""
        return self.follows[op] if self.streams[op] else op

    def leads_on(self, op: int) -> bool:
        """Whether the last op of the line surely starts no sooner than this op."""
        return not self.streams[op] or self.follows[op] < len(self.streams)

    @cached_property
    def _earlier(self) -> tuple[list[list[int]], dict[int, list[int]]]:
        """Go through the ops of a step; remember who ran last on a stream, and wrote and used what streams share."""
        streams, shared = self.streams, self._shared
        previous, opening = dict[int, int](), dict[int, int]()
        writer, users = dict[int, int](), dict[int, list[int]]()
        within: list[list[int]] = []
        first: list[tuple[int, int, bool]] = []
        for op, (what, stream) in enumerate(zip(self.graph.ops, streams, strict=True)):
            reads = [t for t in what.reads if t in shared]
            writes = [t for t in what.writes if t in shared]
            earlier = [writer[t] for t in reads if t in writer]
            for t in writes:
                earlier += users.get(t, ())
            within.append([previous[stream]] if stream in previous else [])
            within[op] += self._on_others(op, earlier)
            first += [(op, t, False) for t in reads if t not in writer]
            first += [(op, t, True) for t in writes if t not in writer]
            for t in reads:
                known = users.setdefault(t, [])
                if known and streams[known[-1]] == stream:
                    known.pop()
                known.append(op)
            for t in writes:
                writer[t], users[t] = op, [op]
            opening.setdefault(stream, op)
            previous[stream] = op
        across = {op: [previous[stream]] for stream, op in opening.items()}
        for op, t, is_write in first:
            earlier = users[t] if is_write else [writer[t]] if t in writer else []
            across.setdefault(op, []).extend(self._on_others(op, earlier))
        return within, across

    def _on_others(self, op: int, earlier: Iterable[int]) -> list[int]:
        """Those of them, each once, that are on other streams than the op."""
        return sorted({p for p in earlier if self.streams[p] != self.streams[op]})

    @cached_property
    def _shared(self) -> frozenset[int]:
        """Tensors that an op beside the line uses: what only the line uses is in order anyway."""
        beside = (what for what, stream in zip(self.graph.ops, self.streams, strict=True) if stream)
        return frozenset(t for what in beside for t in (*what.reads, *what.writes))
