"""Finds where training steps begin and how full each tier gets, and counts what the row of one rank needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Plan
from simulator.trace import ISSUED, NONE, Block, Ints, Trace, at_first, firsts, instances, pick, running, tuples


class IssuedActions:
    """The actions that a host issued, divided into training steps.

    Where a fixed plan is repeated for each step, all have as many actions, which are not recorded. Otherwise a step is
    over at the first action, once all its ops have run, after which the same places are held as at time 0.

    Parameters
    ----------
    graph
        What runs.
    home
        Tier of each tensor at time 0, or `NOWHERE`.
    compute_tier
        Id of the tier that computes write to.
    codes
        The actions that the host issued, if they are recorded.
    lap
        How many actions each step has, if a plan is repeated for each; else 0.

    Attributes
    ----------
    starts
        Issue number of the first action of each step that began.
    """

    def __init__(self, graph: Graph, home: Sequence[int], compute_tier: int, codes: Block, lap: int = 0) -> None:
        self._ops, self._compute_tier, self._steps, self._home = len(graph.ops), compute_tier, graph.steps, home
        self._writes = [op.writes for op in graph.ops]
        self._exists, self._may_stay = [tensor.size_bytes > 0 for tensor in graph.tensors], graph.cacheable
        self._unlike = set[tuple[int, int]]()
        self._ran = set[int]()
        self._streams = dict[int, int]()
        self._keeps_program = True
        self.starts = list(range(0, graph.steps * lap, lap)) if lap else [0]
        self._follow(codes)

    def _follow(self, codes: Block) -> None:
        ran, streams, hold = self._ran, self._streams, self._hold
        seeks = len(self.starts) < self._steps  # what is held matters only until the last step begins
        for issue, (kind, a, b, c) in enumerate(tuples(codes, *ISSUED)):
            if kind == COMPUTE:
                if streams.setdefault(a, b) != b or not (a in ran or a == len(ran)):
                    self._keeps_program = False
                ran.add(a)
                for tensor in self._writes[a] if seeks else ():
                    hold(tensor, self._compute_tier, held=True)
            elif seeks and kind == COPY:
                hold(a, c, held=True)
            elif seeks and kind == DETACH:
                hold(a, b, held=False)
            if seeks and len(ran) == self._ops and not self._unlike:
                self.starts.append(issue + 1)
                ran.clear()
                seeks = len(self.starts) < self._steps

    def keeps_program(self, streams: Sequence[int]) -> bool:
        """Tell whether in each step the first runs of its ops were in program order, each op on its stream.

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
    """Tell whether a rank first ran all ops of each step in program order, each on its stream, as the bounds assume.

    Parameters
    ----------
    graph, plan
        The graph and its plan.
    streams
        By op, the stream that the bounds assume.
    issued
        The actions that the host issued, if they were recorded.
    """
    if plan.fixed is not None and plan.repeats == graph.steps:
        codes = {name: np.array(getattr(plan.fixed, name), np.int64) for name in ISSUED}
        issued = IssuedActions(replace(graph, steps=1), plan.home, 0, codes)
    return issued is not None and issued.keeps_program(streams)


def repeats(job: Job, trace: Trace) -> bool:
    """Tell whether some op runs more than once in a training step; of a run that did not end, whether it may have.

    Parameters
    ----------
    job, trace
        What ran, and how it ended.
    """
    computes = int(np.count_nonzero(trace.spans.whole()["kind"] == COMPUTE))
    once = sum(len(job.graph(rank).ops) * job.graph(rank).steps for rank in set(trace.stands_in))
    return trace.status != "ok" or computes > once


def _issued(graph: Graph, hardware: Hardware, trace: Trace) -> IssuedActions:
    """Find the steps of a trace of one rank."""
    codes = trace.issued[0].whole()
    return IssuedActions(graph, _homes(graph, trace), hardware.compute_tier_id, codes, trace.laps[0])


def _homes(graph: Graph, trace: Trace) -> list[int]:
    """Find the tier of each tensor at time 0, from the first rows of the residencies; `NOWHERE` if none."""
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
    return numbered(_issued(graph, hardware, trace).starts, trace)


class Instances:
    """The instances of tiers that hold the places of ranks: the device's, the node's or the only one.

    A rank that stands in for others counts once for each of them in its instance. A tensor that is stored once for
    several ranks counts once.

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
        """Return the instance of each row of the residencies: its tier's id times `ranks`, plus a number."""
        return np.asarray(rows["tier"] * self.ranks + self._member[rows["tier"], rows["rank"]])

    def delta_bytes(self, rows: Block) -> Ints:
        """Return by how much each row changes what its instance holds [B]."""
        return np.asarray(rows["delta_bytes"] * self._count[rows["tier"], rows["rank"]] - self._repeated_bytes(rows))


def peaks_bytes(hardware: Hardware, trace: Trace) -> dict[str, int]:
    """Count the most that each tier ever holds: the largest running sum of its rows, in order [B].

    Where there are several instances of a tier, it is the fullest one's.
    """
    rows, instances_of = trace.residencies.whole(), Instances(hardware, trace)
    instance, most = instances_of.of(rows), np.zeros((len(hardware.tiers), instances_of.ranks), np.int64)
    np.maximum.at(most.reshape(-1), instance, running(instance, instances_of.delta_bytes(rows)))
    return dict(zip(hardware.tier_names, most.max(axis=1).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Ran:
    """A run of one rank, as its row is counted from it.

    Attributes
    ----------
    trace
        Its trace, with only those spans and waits that are of the last step or reach into it, unless ranks began in
        turn, so that another step may count.
    issued
        The actions that its host issued.
    ends_ns
        By stream with computes, the last end of each step's computes [ns].
    peaks_bytes
        By tier, the most that it held [B].
    makespan_ns, begun_ns
        The last end of anything, and the sum of the starts of all computes [ns].
    """

    trace: Trace
    issued: IssuedActions
    ends_ns: dict[int, Ints]
    peaks_bytes: dict[str, int]
    makespan_ns: int
    begun_ns: int

    @classmethod
    def of(cls, graph: Graph, hardware: Hardware, trace: Trace) -> Ran:
        """Count what happened on one rank.

        Parameters
        ----------
        graph, hardware, trace
            What ran, where, and what happened.
        """
        issued, spans = _issued(graph, hardware, trace), trace.spans.whole()
        computes = pick(spans, spans["kind"] == COMPUTE)
        step = np.searchsorted(issued.starts, computes["issue"], "right") - 1
        ends = np.zeros((1 + int(computes["track"].max(initial=0)), len(issued.starts)), np.int64)
        np.maximum.at(ends, (computes["track"], step), computes["end_ns"])
        ends_ns = {stream: ends[stream] for stream in np.unique(computes["track"]).tolist()}
        return cls(
            trace if trace.until_ns is not None else _of_last_step(graph, trace, issued.starts, ends_ns),
            issued,
            ends_ns,
            peaks_bytes(hardware, trace),
            int(spans["end_ns"].max(initial=0)),
            int(computes["start_ns"].sum()),
        )


def _of_last_step(graph: Graph, trace: Trace, starts: Sequence[int], ends_ns: Mapping[int, Ints]) -> Trace:
    """Leave out spans and waits of earlier steps that ended before each stream had come to the last step."""
    if graph.steps == 1 or len(starts) < graph.steps:
        return trace
    since = min((int(ends[:-1].max()) for ends in ends_ns.values()), default=0)
    tables = {name: getattr(trace, name) for name in ("spans", "waits")}
    blocks = {name: table.whole() for name, table in tables.items()}
    kept = {name: (rows["issue"] >= starts[-1]) | (rows["end_ns"] >= since) for name, rows in blocks.items()}
    return replace(trace, **{name: table.only(kept[name]) for name, table in tables.items()})
