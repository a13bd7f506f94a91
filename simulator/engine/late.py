"""Late reads of one rank: what each issue of an op reads, and what of that has been revealed.

The k-th issue of an op with late reads reads what is drawn for step k. In issue order it names all its candidates, so
that a detach after it waits for it; but only what it is sure to read, and what is chosen, must be valid when it starts.
"""

from __future__ import annotations

from itertools import chain

from simulator.draws import Draws
from simulator.engine.program import Columns
from simulator.engine.stream import Compute, Stream
from simulator.graph import Graph


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
    """

    def __init__(self, graph: Graph, draws: Draws, columns: Columns) -> None:
        self.draws, self._tracked = draws, columns.tracked
        self._late = {op: late for op in draws.chosen_bits if (late := graph.ops[op].late) is not None}
        candidates = frozenset(chain.from_iterable(late.candidates for late in self._late.values()))
        self.certain = [tuple([t for t in reads if t not in candidates]) for reads in columns.reads]
        self.possible = [tuple([t for t in reads if t in candidates]) for reads in columns.reads]
        own = {op: frozenset(late.candidates) for op, late in self._late.items()}
        self._others = [tuple([t for t in reads if t not in own.get(op, ())]) for op, reads in enumerate(self.possible)]
        self._durations = {op: draws.durations_ns(op) for op in self._late}
        self._chosen_bytes = {op: draws.chosen_bytes(op).tolist() for op in self._late}
        self._issued = dict.fromkeys(self._late, 0)
        self._revealed_by: dict[int, tuple[int, Stream | None, int]] = {
            late.revealed_by: (0, None, 0) for late in self._late.values()
        }

    def __contains__(self, op: int) -> bool:
        return op in self._issued

    def needed(self, op: int, stream: Stream, number: int) -> tuple[int, ...]:
        """What of its possible reads an op reads that is issued now, as a stream's compute of that number."""
        if op in self._revealed_by:
            self._revealed_by[op] = self._revealed_by[op][0] + 1, stream, number
        if op not in self._issued:
            return self._others[op]
        self._issued[op] += 1
        chosen = self.draws.chosen(op, self._issued[op] - 1)
        return (*[tensor for tensor in chosen if self._tracked[tensor]], *self._others[op])

    def timed(self, compute: Compute) -> Compute:
        """Give an issue that was just counted its own time, if its op has late reads."""
        if issued := self._issued.get(compute.op):
            compute.duration_ns = self._durations[compute.op][issued - 1]
            compute.chosen_bytes = self._chosen_bytes[compute.op][issued - 1]
        return compute

    def step_of(self, op: int) -> int:
        """For which step the next issue of an op is."""
        return self._issued[op]

    def is_revealed(self, op: int) -> bool:
        """Whether what the next issue of an op reads is known: its revealing op is issued for it and has ended."""
        times, stream, number = self._revealed_by[self._late[op].revealed_by]
        return stream is not None and times > self._issued[op] and stream.ended >= number

    def is_predictable(self, op: int) -> bool:
        """Whether the op that reveals something before the one that reveals this op's next issue has ended for that."""
        reveals = sorted(self._revealed_by)
        at = reveals.index(self._late[op].revealed_by)
        needed = self._issued[op] + (at > 0)
        times, stream, number = self._revealed_by[reveals[at - 1]]
        return stream is not None and times >= needed > 0 and stream.ended >= number
