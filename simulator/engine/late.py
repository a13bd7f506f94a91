"""Late reads of one rank: what each issue of an op reads, and what of that has been revealed.

The k-th issue of an op with late reads reads what is drawn for step k. In issue order it names all its candidates, so
that a detach after it waits for it; but only what it is sure to read, and what is chosen, must be valid when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from simulator.draws import Draws
from simulator.engine.program import Columns
from simulator.engine.steps import ComputeStep
from simulator.engine.waits import NEVER, Counter, Issuer
from simulator.graph import Graph, Late


class LateReads:
    """What ops with late reads read, issue by issue.

    Parameters
    ----------
    graph, draws
        The ops, and what they choose.
    columns
        The compiled graph.

    Attributes
    ----------
    certain, possible
        Per op: tracked tensors that it reads for certain and that no op reads late; other tracked ones of its reads.
        Of the latter nothing is known from the ops before, which may have named them without reading them.
    concerns
        Per op: whether an issue has to be noted here, as it has late reads, reveals some, or reads a tracked tensor
        that some op reads late.
    """

    __slots__ = (
        "_chosen_bytes",
        "_durations",
        "_graph",
        "_issued",
        "_revealed_by",
        "_tracked",
        "certain",
        "concerns",
        "draws",
        "possible",
    )

    def __init__(self, graph: Graph, draws: Draws, columns: Columns) -> None:
        self._graph, self.draws, self._tracked = graph, draws, columns.tracked
        candidates = bytearray(len(graph.tensors))
        for op in draws.chosen_bits:
            for tensor in self._late(op).candidates:
                candidates[tensor] = 1
        self.certain = [tuple([t for t in reads if not candidates[t]]) for reads in columns.reads]
        self.possible = [tuple([t for t in reads if candidates[t]]) for reads in columns.reads]
        self._durations = {op: draws.durations_ns(op) for op in draws.chosen_bits}
        self._chosen_bytes = {op: draws.chosen_bytes(op).tolist() for op in draws.chosen_bits}
        self._issued = dict.fromkeys(draws.chosen_bits, 0)
        self._revealed_by: dict[int, tuple[int, Counter | None, int]] = {
            self._late(op).revealed_by: (0, None, 0) for op in draws.chosen_bits
        }
        self.concerns = [
            bool(reads) or op in self._issued or op in self._revealed_by for op, reads in enumerate(self.possible)
        ]

    def __contains__(self, op: int) -> bool:
        return op in self._issued

    def needed(self, op: int, stream: Counter, number: int) -> tuple[int, ...]:
        """What of its possible reads an op reads that is issued now, as a stream's compute of that number."""
        if op in self._revealed_by:
            self._revealed_by[op] = self._revealed_by[op][0] + 1, stream, number
        step = self._issued.get(op)
        if step is None:
            return self.possible[op]
        self._issued[op] = step + 1
        own = self._late(op).candidates
        others = self.possible[op] if len(self.possible[op]) > len(own) else ()
        chosen = self.draws.chosen(op, step)
        tracked = self._tracked
        return (*[t for t in chosen if tracked[t]], *(t for t in others if t not in own))

    def timed(self, step: ComputeStep) -> ComputeStep:
        """Return the step of an issue that was just counted, with its own time if the op has late reads."""
        issued = self._issued.get(step.op)
        if issued is None:
            return step
        step.is_free, step.duration_ns = False, self._durations[step.op][issued - 1]
        step.chosen_bytes = self._chosen_bytes[step.op][issued - 1]
        return step

    def step_of(self, op: int) -> int:
        """For which step the next issue of an op is."""
        return self._issued[op]

    def is_revealed(self, op: int) -> bool:
        """Whether what the next issue of an op reads is known: its revealing op is issued for it and has ended."""
        times, stream, number = self._revealed_by[self._late(op).revealed_by]
        return stream is not None and times > self._issued[op] and stream.ended >= number

    def is_predictable(self, op: int) -> bool:
        """Whether the op that reveals something before the one that reveals this op's next issue has ended for that."""
        reveals = sorted(self._revealed_by)
        at = reveals.index(self._late(op).revealed_by)
        needed = self._issued[op] + (at > 0)
        times, stream, number = self._revealed_by[reveals[at - 1]]
        return stream is not None and times >= needed > 0 and stream.ended >= number

    def _late(self, op: int) -> Late:
        late = self._graph.ops[op].late
        if late is None:
            raise KeyError(op)
        return late


class Decider(Protocol):
    """Who decides at run time what moves of the tensors that are read late."""

    def meet_late(self, op: int, stream: Counter, number: int) -> tuple[tuple[int, ...], Sequence[int]]:
        """Say what a compute reads late and, for each tensor, after how many of its moves it may be read."""


class LateStep:
    """A compute of a lap that reads late, or reveals what others do: each lap makes a step of it.

    Attributes
    ----------
    certain
        The compute with what it is sure to need.
    number
        Its number among the computes of its stream, from the begin of the lap.
    late
        What it reads besides.
    fence
        By tensor that it may read besides: moves that must have ended, by the lap.
    decider
        Who knows that where the moves of those tensors are decided at run time, and is told of the compute; or None.
    made
        The step of the present lap, if it waits to be issued.
    """

    certain: ComputeStep
    number: int
    late: LateReads
    fence: Mapping[int, int] | Sequence[int]
    decider: Decider | None
    made: ComputeStep | None
    queue: ClassVar[tuple[()]] = ()
    __slots__ = ("certain", "decider", "fence", "late", "made", "number")

    def issue(self, host: Issuer) -> bool:
        """Issue the step of this lap, unless the queue is full."""
        step = self.made or self._make(host.lap)
        is_issued = step.issue(host)
        self.made = None if is_issued else step
        return is_issued

    def _make(self, lap: int) -> ComputeStep:
        certain, fence = self.certain, self.fence
        number = self.number + lap * certain.stream.per_lap
        if self.decider is None:
            reads = self.late.needed(certain.op, certain.stream, number)
        else:
            reads, fence = self.decider.meet_late(certain.op, certain.stream, number)
        step = certain.reading(reads, [(tensor, fence[tensor]) for tensor in reads if fence[tensor] > NEVER])
        return self.late.timed(step)
