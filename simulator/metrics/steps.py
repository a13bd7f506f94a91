"""Finds where steps begin and how full each tier gets, and keeps of one rank's trace what its row is counted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Plan
from simulator.trace import ISSUED, NONE, Block, Ints, Trace, at_first, digest, firsts, instances, pick, running, tuples


def step_starts(graph: Graph, home: Sequence[int], hardware: Hardware, codes: Block, lap: int = 0) -> list[int]:
    """Find the issue number of the first action of each training step that began.

    If a fixed plan is repeated for each step, all steps have as many actions, which are not recorded. Otherwise a step
    ends with the first action, once all its ops have run, after which the same places are held as at time 0. Copies
    that may outlast a step, because dynamic reads may choose them again, do not count.

    Parameters
    ----------
    graph
        What runs.
    home
        Tier of each tensor at time 0, or `NOWHERE`.
    hardware
        Has the tiers that computes write to.
    codes
        The actions that the host issued, if they are recorded.
    lap
        How many actions each step has, if a plan is repeated for each; else 0.
    """
    if lap:
        return list(range(0, graph.steps * lap, lap))
    starts, ran, unlike = [0], set[int](), set[tuple[int, int]]()
    compute_tier, host_tier = hardware.compute_tier_id, hardware.host_tier_id
    exists, may_stay, ops = [tensor.size_bytes > 0 for tensor in graph.tensors], graph.cacheable, graph.certain.ops

    def hold(tensor: int, tier: int, *, held: bool) -> None:
        is_home = home[tensor] == tier
        if exists[tensor] and (is_home or tensor not in may_stay):
            (unlike.discard if held == is_home else unlike.add)((tensor, tier))

    for issue, (kind, a, b, c) in enumerate(tuples(codes, *ISSUED)):
        if len(starts) == graph.steps:
            break
        if kind == COMPUTE:
            ran.add(a)
            for tensor in ops[a].writes:  # what was chosen is held already
                hold(tensor, host_tier if a in graph.on_host else compute_tier, held=True)
        elif kind == COPY:
            hold(a, c, held=True)
        elif kind == DETACH:
            hold(a, b, held=False)
        if len(ran) == len(graph.ops) and not unlike:
            starts.append(issue + 1)
            ran.clear()
    return starts


def keeps_program(graph: Graph, plan: Plan, streams: Sequence[int], codes: Block, starts: Sequence[int]) -> bool:
    """Return whether the first runs of ops were in program order, and each op on its stream, as the bounds assume.

    Parameters
    ----------
    graph, plan
        The graph and its plan.
    streams
        By op, the stream that the bounds assume.
    codes, starts
        The actions that the host issued, if they were recorded, and where its steps begin.
    """
    steps = graph.steps
    if plan.fixed is not None and plan.repeats == steps:  # all steps are alike
        steps, starts, codes = 1, [0], {name: np.array(getattr(plan.fixed, name), np.int64) for name in ISSUED}
    computes = np.flatnonzero(codes["kind"] == COMPUTE)
    op, step = codes["a"][computes], np.searchsorted(starts, computes, "right") - 1
    order = np.lexsort((computes, op, step))
    first = np.sort(order[firsts(step[order], op[order])])
    is_in_order = np.array_equal(op[first], np.tile(np.arange(len(graph.ops)), steps))
    return is_in_order and np.array_equal(codes["b"][computes], np.array(streams)[op])


def repeats(job: Job, trace: Trace) -> bool:
    """Return whether some op ran more than once in a step; true of a run that did not end, as it may have.

    Parameters
    ----------
    job, trace
        What ran, and how it ended.
    """
    computes = int(np.count_nonzero(trace.spans.whole()["kind"] == COMPUTE))
    once = sum(len(job.graph(rank).ops) * job.graph(rank).steps for rank in set(trace.stands_in))
    return trace.status != "ok" or computes > once


def _starts(graph: Graph, hardware: Hardware, trace: Trace) -> list[int]:
    """Find where the steps of a trace of one rank begin; once for the same actions."""
    codes, homes = trace.issued[0].whole(), _homes(graph, trace)
    about = step_starts, hardware.compute_tier_id, hardware.host_tier_id, trace.laps[0], *homes, digest(*codes.values())
    if about not in graph.known:
        graph.known[about] = step_starts(graph, homes, hardware, codes, trace.laps[0])
    return list(graph.known[about])


def _homes(graph: Graph, trace: Trace) -> list[int]:
    """Find the tier of each tensor at time 0, from the first rows of the residencies; `NOWHERE` if none."""
    homes, rows = np.full(len(graph.tensors), NOWHERE, np.int64), trace.residencies.whole()
    exists = [t for t in graph.inputs if graph.tensors[t].size_bytes]
    of_inputs = np.flatnonzero(np.isin(rows["tensor"], exists))
    tensor, first = np.unique(rows["tensor"][of_inputs], return_index=True)
    homes[tensor] = rows["tier"][of_inputs][first]
    return homes.tolist()


def numbered(starts: Sequence[int], trace: Trace) -> tuple[Block, Block]:
    """Number the computes of each op within a step in issue order, from 1; one above 1 is a recompute.

    Parameters
    ----------
    starts
        Issue number at which each step begins.
    trace
        What happened on a rank.

    Returns
    -------
    (spans, waits)
        The rows with ``step``, from 0, and ``run``, the number of their compute (1 for a transfer).
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


def with_steps(graph: Graph, hardware: Hardware, trace: Trace) -> tuple[Block, Block]:
    """Return spans and waits with their step, and the run of their op in that step (see `numbered`).

    Parameters
    ----------
    graph, hardware, trace
        The graph, the machine and the trace.
    """
    return numbered(_starts(graph, hardware, trace), trace)


class Instances:
    """The instances of tiers: one for each device or node, or a single one.

    A rank that stands for others counts once for each of them in its instance. A tensor that is stored once for several
    ranks counts once.

    Parameters
    ----------
    hardware, trace
        Scopes of the tiers, and which rank stands for which.

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
        """Return the instance of each row of the residencies, as its tier's id times `ranks`, plus its number."""
        return np.asarray(rows["tier"] * self.ranks + self._member[rows["tier"], rows["rank"]])

    def delta_bytes(self, rows: Block) -> Ints:
        """Return how much each row changes what its instance holds [B]."""
        return np.asarray(rows["delta_bytes"] * self._count[rows["tier"], rows["rank"]] - self._repeated_bytes(rows))


def peaks_bytes(hardware: Hardware, trace: Trace) -> dict[str, int]:
    """Count the most that each tier ever holds: the largest running sum of its rows, in order [B].

    Of several instances of a tier, it is that of the fullest.
    """
    rows, instances_of = trace.residencies.whole(), Instances(hardware, trace)
    instance, most = instances_of.of(rows), np.zeros((len(hardware.tiers), instances_of.ranks), np.int64)
    np.maximum.at(most.reshape(-1), instance, running(instance, instances_of.delta_bytes(rows)))
    return dict(zip(hardware.tier_names, most.max(axis=1).tolist(), strict=True))


def mean_bytes(hardware: Hardware, trace: Trace, window: tuple[int, int]) -> dict[str, int]:
    """Average what each tier holds over a stretch of time, and over its instances; rounded down [B].

    Parameters
    ----------
    hardware, trace
        The machine and the trace.
    window
        Start and end of the stretch, which is not empty [ns].
    """
    rows, instances_of, (start, end) = trace.residencies.whole(), Instances(hardware, trace), window
    left_ns = end - np.clip(rows["time_ns"], start, end)
    instance, delta = instances_of.of(rows), instances_of.delta_bytes(rows)
    at_start, within = left_ns == end - start, (left_ns > 0) & (left_ns < end - start)
    held = np.zeros(len(hardware.tiers) * instances_of.ranks, np.int64)
    np.add.at(held, instance[at_start], delta[at_start])
    byte_ns = held.astype(object) * (end - start)  # more than 64 bits hold
    np.add.at(byte_ns, instance[within], delta[within].astype(object) * left_ns[within])
    means = dict[str, int]()
    for index, (name, tier) in enumerate(hardware.tiers.items()):
        shown = np.array(trace.stands_in)[:: hardware.topology.sharing[tier.scope]]  # whose instance tells of each
        of_each = byte_ns[instances_of.of({"tier": np.full_like(shown, index), "rank": shown})]
        means[name] = sum(of_each) // (len(shown) * (end - start))
    return means


def in_use(hardware: Hardware, trace: Trace, row: Mapping[str, Any]) -> dict[str, float]:
    """Count how much of the tiers with a capacity is in use, on average over the measured step and at most.

    Parameters
    ----------
    hardware, trace
        The machine and the trace.
    row
        Figures of its row: the step, what was before it, and the peaks. Without a step there are no figures.
    """
    first, step_ns, shares = row["warmup_ns"], row["step_ns"], dict[str, float]()
    means = mean_bytes(hardware, trace, (first, first + step_ns)) if step_ns else {}
    devices, unlike = hardware.devices(len(trace.stands_in)), hardware.compute_tier if hardware.ranks else ""
    for name, mean in means.items():
        tier, sizes = hardware.tiers[name], [device.tiers[name].capacity_bytes for device in devices]
        if tier.capacity_bytes in (0, inf):
            continue
        shares[f"in_use_{name}_fraction"] = tier.held_bytes(mean) / (sum(sizes) / len(sizes))
        of_ranks = map(trace.by_rank().__getitem__, trace.stands_in) if name == unlike else ()
        peaks = [peaks_bytes(hardware, alone)[name] for alone in of_ranks] or [row[f"peak_{name}_bytes"]]
        filled = (tier.held_bytes(peak) / size for peak, size in zip(peaks, sizes, strict=False))
        shares[f"peak_in_use_{name}_fraction"] = max(filled)
    return shares


@dataclass(frozen=True, eq=False)
class RankRun:
    """A run of one rank, with what its row is counted from.

    Attributes
    ----------
    trace
        Its trace. Unless ranks began in turn, so that another step may be measured, it has only the spans and waits
        that are of the last step or reach into it.
    starts
        Issue number of the first action of each step that began.
    ends_ns
        By stream with computes, the last end of each step's computes [ns].
    peaks_bytes
        By tier, the most that it held [B].
    makespan_ns, begun_ns
        The last end of anything, and the sum of the starts of all computes [ns].
    """

    trace: Trace
    starts: list[int]
    ends_ns: dict[int, Ints]
    peaks_bytes: dict[str, int]
    makespan_ns: int
    begun_ns: int

    @classmethod
    def of(cls, graph: Graph, hardware: Hardware, trace: Trace) -> RankRun:
        """Lay out what happened on one rank.

        Parameters
        ----------
        graph, hardware, trace
            The graph, the machine and the trace.
        """
        starts, spans = _starts(graph, hardware, trace), trace.spans.whole()
        computes = pick(spans, spans["kind"] == COMPUTE)
        step = np.searchsorted(starts, computes["issue"], "right") - 1
        ends = np.zeros((1 + int(computes["track"].max(initial=0)), len(starts)), np.int64)
        np.maximum.at(ends, (computes["track"], step), computes["end_ns"])
        ends_ns = {stream: ends[stream] for stream in np.unique(computes["track"]).tolist()}
        return cls(
            trace if trace.until_ns is not None else _of_last_step(graph, trace, starts, ends_ns),
            starts,
            ends_ns,
            peaks_bytes(hardware, trace),
            int(spans["end_ns"].max(initial=0)),
            int(computes["start_ns"].sum()),
        )


def _of_last_step(graph: Graph, trace: Trace, starts: Sequence[int], ends_ns: Mapping[int, Ints]) -> Trace:
    """Leave out spans and waits of earlier steps that ended before any stream came to the last step."""
    if graph.steps == 1 or len(starts) < graph.steps:
        return trace
    since = min((int(ends[:-1].max()) for ends in ends_ns.values()), default=0)
    tables = {name: getattr(trace, name) for name in ("spans", "waits")}
    blocks = {name: table.whole() for name, table in tables.items()}
    kept = {name: (rows["issue"] >= starts[-1]) | (rows["end_ns"] >= since) for name, rows in blocks.items()}
    return replace(trace, **{name: table.only(kept[name]) for name, table in tables.items()})
