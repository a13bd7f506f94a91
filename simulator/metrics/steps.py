"""Where the training steps of a run begin, and which computes run an op again, from its trace alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, Plan
from simulator.trace import Block, Trace

Ints = NDArray[np.int64]

NO_OP = -1
"""Stands for the op of a transfer."""


def recomputes(what: Graph | Job, trace: Trace) -> bool:
    """Whether some op runs more than once in a training step; of a run that did not end, whether it may have."""
    computes = sum(int(np.count_nonzero(block["kind"] == COMPUTE)) for block in trace.spans.blocks())
    job = what if isinstance(what, Job) else Job.of(what, len(trace.issued))
    once = sum(len(job.graph(rank).ops) * job.graph(rank).steps for rank in set(trace.stands_in))
    return trace.status != "ok" or computes > once


def keeps_program(graph: Graph, plan: Plan, streams: Sequence[int], trace: Trace, rank: int) -> bool:
    """Whether a rank first ran all ops of a step in program order, each on its stream: what no plan can beat is so.

    Parameters
    ----------
    graph, plan
        What ran, under what.
    streams
        By op, the stream that the bounds know it on.
    trace, rank
        What happened, and of whom.
    """
    if plan.fixed is not None:
        kind, op, stream = (np.array(column, np.int64) for column in (plan.fixed.kind, plan.fixed.a, plan.fixed.b))
        laps = 1
    else:
        issued = trace.issued[rank].whole()
        kind, op, stream, laps = issued["kind"], issued["a"], issued["b"], graph.steps
    op, stream = op[kind == COMPUTE], stream[kind == COMPUTE]
    runs = np.bincount(op, minlength=len(graph.ops))
    if (runs % laps).any() or (stream != np.array(streams, np.int64)[op]).any():
        return False
    by_op = np.argsort(op, kind="stable")
    first = (np.cumsum(runs) - runs)[None, :] + np.arange(laps)[:, None] * (runs // laps)[None, :]
    return bool((np.diff(by_op[first].ravel()) > 0).all()) if len(op) else True


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
    ops = np.concatenate((np.where(is_transfer, NO_OP, spans["item"]), waits["op"]))
    rank, issue = (np.concatenate((spans[name], waits[name])) for name in ("rank", "issue"))
    step = steps_of(graph, hardware, trace, {"rank": rank, "issue": issue})
    order = np.lexsort((issue, ops, step, rank))
    other_op = np.zeros(len(order), bool)
    for key in (ops[order], step[order], rank[order]):
        other_op[1:] |= key[1:] != key[:-1]
    other_issue = other_op.copy()
    other_issue[1:] |= np.diff(issue[order]) != 0
    count = np.cumsum(other_issue)
    number = np.empty(len(order), np.int64)
    number[order] = count - np.maximum.accumulate(np.where(other_op, count, 0)) + 1
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

    A fixed plan repeats: the distance of a compute's issue number to the next step's is the length of a step. What a
    reactive plan issued is recorded: a step is over at the first place after its last op where all that is held is
    what was held at time 0.

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
        return _recorded(graph, codes, _homes(graph, trace, rank), compute_tier)
    issue, op = _computes(trace, rank)
    each = len(issue) // graph.steps
    if trace.status != "ok" or not each or len(issue) % graph.steps:
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


def _homes(graph: Graph, trace: Trace, rank: int) -> Ints:
    """Tier of each tensor at time 0, from the first rows of the residencies; -1 if none."""
    homes = np.full(len(graph.tensors), -1, np.int64)
    exists = np.array([t for t in graph.inputs if graph.tensors[t].size_bytes], np.int64)
    rows = trace.residencies.whole()
    mine = np.flatnonzero((rows["rank"] == rank) & np.isin(rows["tensor"], exists))
    tensor, first = np.unique(rows["tensor"][mine], return_index=True)
    homes[tensor] = rows["tier"][mine][first]
    return homes


def _recorded(graph: Graph, codes: dict[str, Ints], homes: Ints, compute_tier: int) -> Ints:
    kind, a = codes["kind"], codes["a"]
    ends = np.flatnonzero((kind == COMPUTE) & (a == len(graph.ops) - 1))
    each = max(len(ends) // graph.steps, 1)
    ends = ends[each - 1 :: each]
    level = np.flatnonzero(_unlike_home(graph, codes, homes, compute_tier) == 0)
    at = np.searchsorted(level, ends)
    after = np.append(level, len(kind))[at]
    limit = np.append(ends[1:], len(kind))
    starts = np.where(after < limit, after, ends) + 1
    return np.concatenate(([0], starts[: graph.steps - 1]))


def _unlike_home(graph: Graph, codes: dict[str, Ints], homes: Ints, compute_tier: int) -> Ints:
    """After each step, how many places are held that are no homes, or are homes that are not held.

    Copies that may outlast a step, because late reads may choose them again, do not count.
    """
    kind, a, b, c = (codes[name] for name in ("kind", "a", "b", "c"))
    writes = [op.writes for op in graph.ops]
    computes, copies, detaches = (np.flatnonzero(kind == k) for k in (COMPUTE, COPY, DETACH))
    counts = np.array([len(w) for w in writes], np.int64)[a[computes]]
    written = np.array([t for op in a[computes].tolist() for t in writes[op]], np.int64)
    tensor = np.concatenate((np.arange(len(homes)), written, a[copies], a[detaches]))
    tier = np.concatenate((homes, np.full(len(written), compute_tier), c[copies], b[detaches]))
    issue = np.concatenate((np.full(len(homes), -1), np.repeat(computes, counts), copies, detaches))
    held = np.arange(len(tensor)) < len(tensor) - len(detaches)
    size = np.array([t.size_bytes for t in graph.tensors], np.int64)
    is_copy = np.isin(tensor, list(graph.cacheable)) & (homes[tensor] != tier)
    chosen = np.flatnonzero((size[tensor] > 0) & (tier >= 0) & ~is_copy)
    tensor, tier, issue, held = tensor[chosen], tier[chosen], issue[chosen], held[chosen]
    place = tensor * (int(tier.max(initial=0)) + 1) + tier
    order = np.lexsort((issue, place))
    place, issue, held, tensor, tier = place[order], issue[order], held[order], tensor[order], tier[order]
    before = np.concatenate(([False], held[:-1] & (place[1:] == place[:-1]))) if len(place) else held
    sign = np.where(homes[tensor] == tier, -1, 1)
    change = sign * (held.astype(np.int64) - before)
    found = np.zeros(len(kind) + 1, np.int64)
    np.add.at(found, issue + 1, change)
    found[0] = 0
    return np.cumsum(found)[1:]
