"""What the row of one rank is counted from: little of all its steps, and what happened in the last one.

Whoever follows a run keeps no more than that; a run that was kept is followed afterwards, so that both give one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.columns import Ints
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.metrics.issued import IssuedSteps
from simulator.metrics.peaks import Instances, Peaks
from simulator.metrics.steps import homes, repeats, step_starts
from simulator.plan import COMPUTE, Plan
from simulator.trace import SPANS, WAITS, Block, Happened, Table, Trace


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of one rank, as far as its row needs it.

    Attributes
    ----------
    trace
        How it ended, with those spans and waits that reach into the last step, or are of it.
    starts
        Issue number at which each step begins.
    ends_ns
        By stream with computes, the last end of each step's computes [ns].
    makespan_ns, peaks_bytes
        The last end of anything [ns]; by tier the most that it held [B].
    begun_ns
        Sum of the starts of all computes [ns].
    repeats
        Whether some op ran more than once in a step.
    issued
        What the host issued, if the plan is reactive or holds several steps.
    """

    trace: Trace
    starts: Ints
    ends_ns: dict[int, Ints]
    makespan_ns: int
    begun_ns: int
    peaks_bytes: dict[str, int]
    repeats: bool
    issued: IssuedSteps | None = None

    @classmethod
    def of(cls, graph: Graph, hardware: Hardware, trace: Trace) -> Ran:
        """Follow a run that was kept."""
        tier, is_ok = hardware.tier_names.index(hardware.compute_tier), trace.status == "ok"
        codes = trace.issued[0].whole()
        starts: Ints | IssuedSteps = np.zeros(1, np.int64)
        if len(codes["kind"]):
            starts = IssuedSteps(graph, homes(graph, trace, 0), tier)
        elif is_ok:
            starts = step_starts(graph, trace, 0, tier)
        spans = trace.spans.whole()
        streams = np.unique(spans["track"][spans["kind"] == COMPUTE]).tolist()
        found = Following(graph, Peaks(hardware, Instances(hardware, trace)), starts, streams)
        found.keeps_all = trace.until_ns is not None
        tables = {"spans": trace.spans, "waits": trace.waits, "residencies": trace.residencies}
        found.take({"issued": codes, **{name: table.whole() for name, table in tables.items()}})
        return found.ran(trace)


class Following:
    """Follows a run of one rank.

    Parameters
    ----------
    graph
        What runs.
    peaks
        Counts what tiers hold.
    starts
        Where its steps begin, or what finds that as they are issued.
    streams
        Those that computes may run on.

    Attributes
    ----------
    keeps_all
        Whether another step than the last may be the one that counts.
    """

    def __init__(self, graph: Graph, peaks: Peaks, starts: Ints | IssuedSteps, streams: Sequence[int]) -> None:
        self._graph, self._peaks, self._streams = graph, peaks, streams
        self._issued = starts if isinstance(starts, IssuedSteps) else None
        self._planned = np.zeros(1, np.int64) if isinstance(starts, IssuedSteps) else starts
        steps = max(graph.steps, len(self._planned))
        self._ends = {stream: np.zeros(steps, np.int64) for stream in streams}
        self._seen, self.keeps_all = set[int](), False
        self._makespan_ns = self._computes = self._begun_ns = 0
        self._spans, self._waits = Table(SPANS), Table(WAITS)

    @classmethod
    def plan(cls, graph: Graph, hardware: Hardware, plan: Plan) -> Following:
        """Follow the run of a plan on one rank, from its start.

        Parameters
        ----------
        graph, hardware, plan
            What will run, where, as decided.
        """
        nothing = Trace("ok", Table(SPANS), Table(WAITS), Table(()), ())
        peaks, steps = Peaks(hardware, Instances(hardware, nothing)), plan.fixed
        issued = IssuedSteps(graph, plan.home, hardware.tier_names.index(hardware.compute_tier))
        if steps is None:
            return cls(graph, peaks, issued, range(1 + len(graph.groups)))
        streams = sorted({b for kind, b in zip(steps.kind, steps.b, strict=True) if kind == COMPUTE})
        if plan.repeats != graph.steps:
            return cls(graph, peaks, issued, streams)
        return cls(graph, peaks, np.arange(plan.repeats, dtype=np.int64) * len(steps), streams)

    @property
    def _starts(self) -> Ints:
        return self._planned if self._issued is None else np.array(self._issued.starts, np.int64)

    def take(self, happened: Happened) -> None:
        """Take what happened since the last time."""
        if self._issued is not None and "issued" in happened:
            self._issued.take(happened["issued"])
        spans, waits = happened["spans"], happened["waits"]
        self._peaks.take(happened["residencies"])
        self._makespan_ns = int(spans["end_ns"].max(initial=self._makespan_ns))
        computes = np.flatnonzero(spans["kind"] == COMPUTE)
        self._computes += len(computes)
        self._begun_ns += int(spans["start_ns"][computes].sum())
        step = np.searchsorted(self._starts, spans["issue"][computes], "right") - 1
        stream, end = spans["track"][computes], spans["end_ns"][computes]
        for number in np.unique(stream).tolist():
            mine = stream == number
            np.maximum.at(self._ends[number], step[mine], end[mine])
            self._seen.add(number)
        self._keep(spans, waits)

    def _keep(self, spans: Block, waits: Block) -> None:
        """Keep what is of the last step, and what ended no earlier than where the stream is that is furthest behind."""
        last = self._graph.steps - 1
        starts = self._starts
        first_issue = int(starts[last]) if len(starts) > last else np.iinfo(np.int64).max
        since = min((int(ends[:last].max(initial=0)) for ends in self._ends.values()), default=0)
        for kept, rows in ((self._spans, spans), (self._waits, waits)):
            kept.add(rows)
            if self.keeps_all:
                continue
            every = kept.whole()
            kept.pull((every["issue"] < first_issue) & (every["end_ns"] < since))

    def ran(self, trace: Trace) -> Ran:
        """What the row is counted from.

        Parameters
        ----------
        trace
            How the run ended; its own rows of spans and waits do not count.
        """
        starts = self._starts
        ends = {stream: self._ends[stream][: len(starts)] for stream in sorted(self._seen)}
        again = repeats(self._graph, trace, self._computes)
        last = replace(trace, spans=self._spans, waits=self._waits)
        return Ran(last, starts, ends, self._makespan_ns, self._begun_ns, self._peaks.bytes, again, self._issued)
