"""Where the training steps of a run begin, and which computes run an op again, from its trace alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.columns import Ints, at_first, firsts
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.metrics.issued import IssuedSteps
from simulator.plan import COMPUTE, NOWHERE, Plan
from simulator.trace import ISSUED, Block, Trace

NO_OP = -1
"""Stands for the op of a transfer."""


def recomputes(what: Graph | Job, trace: Trace) -> bool:
    """Whether some op runs more than once in a training step; of a run that did not end, whether it may have."""
    computes = sum(int(np.count_nonzero(block["kind"] == COMPUTE)) for block in trace.spans.blocks())
    return repeats(what, trace, computes)


def repeats(what: Graph | Job, trace: Trace, computes: int) -> bool:
    """Whether so many computes are more than one for each op in each training step.

    Parameters
    ----------
    what, trace
        What ran, and how it ended; the rows of the trace do not count.
    computes
        How many ran.
    """
    job = what if isinstance(what, Job) else Job.of(what, len(trace.issued))
    once = sum(len(job.graph(rank).ops) * job.graph(rank).steps for rank in set(trace.stands_in))
    return trace.status != "ok" or computes > once


def keeps_program(graph: Graph, plan: Plan, streams: Sequence[int], issued: IssuedSteps | None) -> bool:
    """Whether a rank first ran all ops of a step in program order, each on its stream: what no plan can beat is so.

    Parameters
    ----------
    graph, plan
        What ran, under what.
    streams
        By op, the stream that the bounds know it on.
    issued
        What the host issued, if it was recorded.
    """
    if plan.fixed is None or plan.repeats != graph.steps:
        return issued is not None and issued.keeps_program(streams)
    lap = IssuedSteps(replace(graph, steps=1), plan.home, 0)
    lap.take({name: np.array(getattr(plan.fixed, name), np.int64) for name in ISSUED})
    return lap.keeps_program(streams)


def run_numbers(graph: Graph, hardware: Hardware, trace: Trace) -> tuple[Ints, Ints]:
    """Number the computes of an op within a training step in issue order, from 1; one above 1 is a recompute.

    Parameters
    ----------
    graph, hardware, trace
        What ran, where, and what happened.

    Returns
    -------
    (array, array)
        For each row of the spans (1 for a transfer), and for each row of the waits: the number of the compute that
        it is of.
    """
    spans, waits = trace.spans.whole(), trace.waits.whole()
    is_transfer = spans["kind"] != COMPUTE
    if not recomputes(graph, trace):
        return np.ones(len(is_transfer), np.int64), np.ones(len(waits["op"]), np.int64)
    rank, issue = (np.concatenate((spans[name], waits[name])) for name in ("rank", "issue"))
    return _numbered(spans, waits, steps_of(graph, hardware, trace, {"rank": rank, "issue": issue}))


def run_numbers_in(starts: Ints, trace: Trace) -> tuple[Ints, Ints]:
    """Number the computes of one rank whose steps begin at these issue numbers, as `run_numbers` does."""
    spans, waits = trace.spans.whole(), trace.waits.whole()
    issue = np.concatenate((spans["issue"], waits["issue"]))
    return _numbered(spans, waits, np.searchsorted(starts, issue, "right") - 1)


def _numbered(spans: Block, waits: Block, step: Ints) -> tuple[Ints, Ints]:
    """Number the computes by the step of each span, and then of each wait."""
    is_transfer = spans["kind"] != COMPUTE
    ops = np.concatenate((np.where(is_transfer, NO_OP, spans["item"]), waits["op"]))
    rank, issue = (np.concatenate((spans[name], waits[name])) for name in ("rank", "issue"))
    order = np.lexsort((issue, ops, step, rank))
    of_op = ops[order], step[order], rank[order]
    count = np.cumsum(firsts(*of_op, issue[order]), dtype=np.int64)
    number = np.empty(len(order), np.int64)
    number[order] = count - at_first(firsts(*of_op), count) + 1
    number[: len(is_transfer)][is_transfer] = 1
    return number[: len(is_transfer)], number[len(is_transfer) :]


def steps_of(graph: Graph, hardware: Hardware, trace: Trace, rows: Block) -> Ints:
    """The training step of each row, from its rank and issue number.

    Parameters
    ----------
    graph, hardware, trace
        What ran, where, and what happened.
    rows
        Columns ``rank`` and ``issue`` of some spans or waits.
    """
    compute_tier = hardware.tier_names.index(hardware.compute_tier)
    found = np.zeros(len(rows["issue"]), np.int64)
    for rank in range(len(trace.issued)):
        mine = rows["rank"] == rank
        starts = step_starts(graph, trace, rank, compute_tier)
        found[mine] = np.searchsorted(starts, rows["issue"][mine], "right") - 1
    return found


def step_starts(graph: Graph, trace: Trace, rank: int, compute_tier: int) -> Ints:
    """Find the issue number at which each training step begins.

    Where a fixed plan repeats, the distance of a compute's issue number to the next step's is the length of a step.
    What a reactive plan issued, or one that holds several steps, is recorded (`simulator.metrics.issued`).

    Parameters
    ----------
    graph
        Runs ``graph.steps`` times.
    trace
        What happened.
    rank
        Whose steps.
    compute_tier
        Id of the tier that computes write to.

    Returns
    -------
    array of int64
        Ascending, from 0; one for each step that began (all of them if the run is complete).
    """
    if graph.steps == 1:
        return np.zeros(1, np.int64)
    codes = trace.issued[rank].whole()
    if len(codes["kind"]):
        issued = IssuedSteps(graph, homes(graph, trace, rank), compute_tier)
        issued.take(codes)
        return np.array(issued.starts, np.int64)
    issue, op = _computes(trace, rank)
    return _laps(graph, issue, op, complete=trace.status == "ok")


def _laps(graph: Graph, issue: Ints, op: Ints, *, complete: bool) -> Ints:
    """Where steps that are alike begin, from the issue numbers and ops of all computes."""
    each = len(issue) // graph.steps
    if not complete or not each or len(issue) % graph.steps:
        each = _first_round(op, len(graph.ops))
        if len(issue) <= each:
            return np.zeros(1, np.int64)
    length = int(issue[each] - issue[0])
    return np.arange(1 + int(issue[-1] - issue[0]) // length, dtype=np.int64) * length


def _computes(trace: Trace, rank: int) -> tuple[Ints, Ints]:
    """Issue number and op of each compute that ran, by issue."""
    spans = trace.spans.whole()
    mine = (spans["kind"] == COMPUTE) & (spans["rank"] == rank)
    order = np.argsort(spans["issue"][mine])
    return spans["issue"][mine][order], spans["item"][mine][order]


def _first_round(op: Ints, ops: int) -> int:
    """How many computes it takes until every op has run."""
    seen, first = np.unique(op, return_index=True)
    return int(first.max()) + 1 if len(seen) == ops else len(op)


def homes(graph: Graph, trace: Trace, rank: int) -> list[int]:
    """Tier of each tensor at time 0, from the first rows of the residencies; `NOWHERE` if none."""
    homes = np.full(len(graph.tensors), NOWHERE, np.int64)
    exists = np.array([t for t in graph.inputs if graph.tensors[t].size_bytes], np.int64)
    rows = trace.residencies.whole()
    mine = np.flatnonzero((rows["rank"] == rank) & np.isin(rows["tensor"], exists))
    tensor, first = np.unique(rows["tensor"][mine], return_index=True)
    homes[tensor] = rows["tier"][mine][first]
    return homes.tolist()
