"""Follows a run: where its training steps begin, how full each tier gets, and what the row of one rank is counted from.

Whoever follows a run keeps little of all its steps, and what happened in the last one; a run that was kept is followed
afterwards, so that both give one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Plan
from simulator.trace import ISSUED, NONE, Block, Ints, Trace, at_first, firsts, instances, pick, running, tuples


class IssuedActions:
    """Where the training steps of a run begin, among the actions that its host issues.

    Where a fixed plan is repeated for each step, all have as many actions, which are not recorded. Otherwise a step is
    over at the first place, once all its ops have run, where what is held is what was held at time 0.

    Parameters
    ----------
    graph
        What runs.
    home
        Tier of each tensor at time 0, or `NOWHERE`.
    compute_tier
        Id of the tier that computes write to.
    lap
        How many actions each step has, if a plan is repeated for each; else 0.

    Attributes
    ----------
    starts
        Issue number at which each step begins that began, from 0.
    """

    def __init__(self, graph: Graph, home: Sequence[int], compute_tier: int, lap: int = 0) -> None:
        self._ops, self._here, self._steps, self._home = len(graph.ops), compute_tier, graph.steps, home
        self._writes = [op.writes for op in graph.ops]
        self._exists, self._may_stay = [tensor.size_bytes > 0 for tensor in graph.tensors], graph.cacheable
        self._unlike = set[tuple[int, int]]()
        self._ran = set[int]()
        self._streams = dict[int, int]()
        self._keeps_program, self._issued = True, 0
        self.starts = list(range(0, graph.steps * lap, lap)) if lap else [0]

    def take(self, codes: Block) -> None:
        """Follow what is issued next."""
        ran, streams, hold, here = self._ran, self._streams, self._hold, self._here
        seeks = len(self.starts) < self._steps  # what is held matters only until the last step begins
        for kind, a, b, c in tuples(codes, *ISSUED):
            self._issued += 1
            if kind == COMPUTE:
                if streams.setdefault(a, b) != b or not (a in ran or a == len(ran)):
                    self._keeps_program = False
                ran.add(a)
                for tensor in self._writes[a] if seeks else ():
                    hold(tensor, here, held=True)
            elif seeks and kind == COPY:
                hold(a, c, held=True)
            elif seeks and kind == DETACH:
                hold(a, b, held=False)
            if seeks and len(ran) == self._ops and not self._unlike:
                self.starts.append(self._issued)
                ran.clear()
                seeks = len(self.starts) < self._steps

    def keeps_program(self, streams: Sequence[int]) -> bool:
        """Whether in each step the first runs of its ops were in program order, each op on its stream.

        Parameters
        ----------
        streams
            By op, the stream that it should run on.
        """
        is_complete = len(self.starts) == self._steps and len(self._ran) == self._ops
        return is_complete and self._keeps_program and self._streams == dict(enumerate(streams))

    def _hold(self, tensor: int, tier: int, *, held: bool) -> None:
        """Note whether a place is held, and whether that differs from time 0.

        Copies that may outlast a step, because dynamic reads may choose them again, do not count.
        """
        is_home = self._home[tensor] == tier
        if self._exists[tensor] and (is_home or tensor not in self._may_stay):
            (self._unlike.discard if held == is_home else self._unlike.add)((tensor, tier))


def keeps_program(graph: Graph, plan: Plan, streams: Sequence[int], issued: IssuedActions | None) -> bool:
    """Whether a rank first ran all ops of each step in program order, each on its stream, as the bounds assume.

    Parameters
    ----------
    graph, plan
        What ran, under what.
    streams
        By op, the stream that the bounds know it on.
    issued
        What the host issued, if it was recorded.
    """
    if plan.fixed is not None and plan.repeats == graph.steps:
        issued = IssuedActions(replace(graph, steps=1), plan.home, 0)
        issued.take({name: np.array(getattr(plan.fixed, name), np.int64) for name in ISSUED})
    return issued is not None and issued.keeps_program(streams)


def repeats(what: Graph | Job, trace: Trace, computes: int | None = None) -> bool:
    """Whether some op runs more than once in a training step; of a run that did not end, whether it may have.

    Parameters
    ----------
    what, trace
        What ran, and how it ended.
    computes
        How many ran; those of the trace if it is not said.
    """
    if computes is None:
        computes = int(np.count_nonzero(trace.spans.whole()["kind"] == COMPUTE))
    job = what if isinstance(what, Job) else Job.of(what, len(trace.issued))
    once = sum(len(job.graph(rank).ops) * job.graph(rank).steps for rank in set(trace.stands_in))
    return trace.status != "ok" or computes > once


def _issued(graph: Graph, hardware: Hardware, trace: Trace) -> IssuedActions:
    """What finds the steps of a trace of one rank, once it has taken what was issued."""
    here = hardware.compute_tier_id
    return IssuedActions(graph, _homes(graph, trace), here, trace.laps[0])


def _homes(graph: Graph, trace: Trace) -> list[int]:
    """Tier of each tensor at time 0, from the first rows of the residencies; `NOWHERE` if none."""
    homes, rows = np.full(len(graph.tensors), NOWHERE, np.int64), trace.residencies.whole()
    exists = [t for t in graph.inputs if graph.tensors[t].size_bytes]
    of_inputs = np.flatnonzero(np.isin(rows["tensor"], exists))
    tensor, first = np.unique(rows["tensor"][of_inputs], return_index=True)
    homes[tensor] = rows["tier"][of_inputs][first]
    return homes.tolist()


def numbered(starts: Sequence[int], trace: Trace) -> tuple[Block, Block]:
    """Number the computes of an op within a training step in issue order, from 1; one above 1 is a recompute.

    Parameters
    ----------
    starts
        Issue number at which each step begins.
    trace
        What happened on a rank.

    Returns
    -------
    (spans, waits)
        The rows with ``step``, from 0, and ``run``, the number of the compute that they are of (1 for a transfer).
    """
    spans, waits = trace.spans.whole(), trace.waits.whole()
    op = np.append(np.where(spans["kind"] == COMPUTE, spans["item"], NONE), waits["op"])
    issue = np.append(spans["issue"], waits["issue"])
    step = np.searchsorted(starts, issue, "right") - 1
    order = np.lexsort((issue, op, step))
    count = np.cumsum(firsts(step[order], op[order], issue[order]), dtype=np.int64)
    run = np.empty(len(order), np.int64)
    run[order] = count - at_first(firsts(step[order], op[order]), count) + 1
    run[op == NONE] = 1
    n = len(spans["issue"])
    return {**spans, "step": step[:n], "run": run[:n]}, {**waits, "step": step[n:], "run": run[n:]}


def laid_out(graph: Graph, hardware: Hardware, trace: Trace) -> tuple[Block, Block]:
    """Number the step of each span and wait, and the run of its op in that step (see `numbered`).

    Parameters
    ----------
    graph, hardware, trace
        What ran, where, and what happened on the rank.
    """
    issued = _issued(graph, hardware, trace)
    issued.take(trace.issued[0].whole())
    return numbered(issued.starts, trace)


ALONE = Trace("ok")
"""A trace of one rank that stands for no other."""


class Instances:
    """Which instance of a tier holds what a rank holds: the device's, the node's or the only one.

    A rank that stands in for others counts once for each of them in its instance. What is stored once for several ranks
    counts once.

    Parameters
    ----------
    hardware, trace
        Scopes of the tiers, and which rank stands in for which.

    Attributes
    ----------
    ranks
        How many ranks there are.
    """

    def __init__(self, hardware: Hardware, trace: Trace) -> None:
        self.ranks, sharing = len(trace.stands_in), hardware.topology.sharing
        self._repeated_bytes = trace.repeated_bytes
        by_tier = [instances(sharing[tier.scope], trace.stands_in) for tier in hardware.tiers.values()]
        self._member, self._count = (np.array(column) for column in zip(*by_tier, strict=True))

    def of(self, rows: Block) -> Ints:
        """The instance in which each row of the residencies is: its tier's id times `ranks`, plus a number."""
        found: Ints = rows["tier"] * self.ranks + self._member[rows["tier"], rows["rank"]]
        return found

    def delta_bytes(self, rows: Block) -> Ints:
        """By how much each row changes what its instance holds [B]."""
        found: Ints = rows["delta_bytes"] * self._count[rows["tier"], rows["rank"]] - self._repeated_bytes(rows)
        return found


def peaks_bytes(hardware: Hardware, trace: Trace) -> dict[str, int]:
    """Count the most that each tier ever holds: the largest running sum of its rows, in order [B].

    Where there are several instances of a tier, it is the fullest one's.
    """
    peaks = Peaks(hardware, trace)
    peaks.take(trace.residencies.whole())
    return peaks.bytes


class Peaks:
    """Counts the most that each tier ever holds, as places are taken and freed.

    Parameters
    ----------
    hardware, trace
        The tiers, and whose rows count where.
    """

    def __init__(self, hardware: Hardware, trace: Trace = ALONE) -> None:
        self._names, self._instances = hardware.tier_names, Instances(hardware, trace)
        self._used, self._most = np.zeros((2, len(hardware.tiers) * self._instances.ranks), np.int64)

    def take(self, rows: Block) -> None:
        """Count some rows of the residencies, in order."""
        instance, delta = self._instances.of(rows), self._instances.delta_bytes(rows)
        used = self._used[instance] + running(instance, delta)
        np.maximum.at(self._most, instance, used)
        np.add.at(self._used, instance, delta)

    @property
    def bytes(self) -> dict[str, int]:
        """By tier, the most that the fullest instance of it ever held [B]."""
        by_tier = self._most.reshape(-1, self._instances.ranks).max(axis=1).tolist()
        return dict(zip(self._names, by_tier, strict=True))


class Ran:
    """What the row of one rank needs to know of its run.

    Parameters
    ----------
    graph, hardware
        What runs, where.
    issued
        Follows where its steps begin.
    streams
        Those that computes may run on.

    Attributes
    ----------
    trace
        How it ended, with those spans and waits that reach into the last step, or are of it.
    makespan_ns, begun_ns
        The last end of anything, and the sum of the starts of all computes [ns].
    repeats
        Whether some op ran more than once in a step.
    keeps_all
        Whether another step than the last may be the one that counts.
    """

    def __init__(self, graph: Graph, hardware: Hardware, issued: IssuedActions, streams: Sequence[int]) -> None:
        self._graph, self.issued, self._streams = graph, issued, list(streams)
        self._ends = np.full((1 + max(streams, default=0), graph.steps), NONE)
        self._peaks, self.keeps_all, self.repeats = Peaks(hardware), False, False
        self.makespan_ns = self.begun_ns = self._computes = 0
        self.trace = Trace("ok")

    @classmethod
    def under(cls, graph: Graph, hardware: Hardware, plan: Plan) -> Ran:
        """Follow the run of a plan from its start: `take` what happens, then say how it `ended`.

        Parameters
        ----------
        graph, hardware, plan
            What will run, where, as decided.
        """
        here, actions, lap = hardware.compute_tier_id, plan.fixed, 0
        streams = {*range(1 + len(graph.groups))}
        if actions is not None:
            streams = {b for kind, b in zip(actions.kind, actions.b, strict=True) if kind == COMPUTE}
            lap = len(actions) if plan.repeats == graph.steps else 0
        return cls(graph, hardware, IssuedActions(graph, plan.home, here, lap), sorted(streams))

    @classmethod
    def of(cls, graph: Graph, hardware: Hardware, trace: Trace) -> Ran:
        """Follow a run that was kept."""
        spans = trace.spans.whole()
        streams = np.unique(spans["track"][spans["kind"] == COMPUTE]).tolist()
        ran = cls(graph, hardware, _issued(graph, hardware, trace), streams)
        ran.keeps_all = trace.until_ns is not None
        rows = {"spans": spans, "waits": trace.waits.whole(), "residencies": trace.residencies.whole()}
        ran.take({"issued": trace.issued[0].whole(), **rows})
        return ran.ended(trace)

    @property
    def ends_ns(self) -> dict[int, Ints]:
        """By stream with computes, the last end of each step's computes [ns]."""
        ran = np.flatnonzero((self._ends != NONE).any(axis=1)).tolist()
        return {stream: np.maximum(self._ends[stream, : len(self.issued.starts)], 0) for stream in ran}

    @property
    def peaks_bytes(self) -> dict[str, int]:
        """By tier the most that it held [B]."""
        return self._peaks.bytes

    def take(self, happened: Mapping[str, Block]) -> None:
        """Take what happened since the last time."""
        self.issued.take(happened["issued"])
        spans, waits = happened["spans"], happened["waits"]
        self._peaks.take(happened["residencies"])
        self.makespan_ns = int(spans["end_ns"].max(initial=self.makespan_ns))
        computes = pick(spans, spans["kind"] == COMPUTE)
        self._computes += len(computes["issue"])
        self.begun_ns += int(computes["start_ns"].sum())
        step = np.searchsorted(self.issued.starts, computes["issue"], "right") - 1
        np.maximum.at(self._ends, (computes["track"], step), computes["end_ns"])
        self._keep(spans, waits)

    def _keep(self, spans: Block, waits: Block) -> None:
        """Keep what belongs to the last step, and what ended after the point that the slowest stream has come to."""
        last, starts = self._graph.steps - 1, self.issued.starts
        first_issue = starts[last] if len(starts) > last else np.iinfo(np.int64).max
        since = min((int(self._ends[stream, :last].max(initial=0)) for stream in self._streams), default=0)
        for kept, rows in ((self.trace.spans, spans), (self.trace.waits, waits)):
            kept.add(rows)
            if not self.keeps_all:
                every = kept.whole()
                kept.pull((every["issue"] < first_issue) & (every["end_ns"] < since))

    def ended(self, trace: Trace) -> Ran:
        """Note how the run ended; its own rows of spans and waits do not count."""
        self.repeats = repeats(self._graph, trace, self._computes)
        self.trace = replace(trace, spans=self.trace.spans, waits=self.trace.waits)
        return self
