"""Counts the figures of each of several ranks, and the row of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from simulator.bounds import Bound
from simulator.cost.service import transfer_ns
from simulator.draws import Draws
from simulator.errors import InvariantError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware, reachable
from simulator.metrics import summary
from simulator.metrics.figures import columns
from simulator.metrics.steps import RankRun, in_use, peaks_bytes
from simulator.metrics.summary import bound_figures, exposed_ns, flop_rates, is_collective, peak_figures, rank_figures
from simulator.plan import COMPUTE, COPY
from simulator.trace import Trace, instances, pick, tuples


def summarise(
    job: Graph | Job, hardware: Hardware, trace: Trace, bound: Bound | None = None, ran: RankRun | None = None
) -> dict[str, Any]:
    """Count one run.

    Parameters
    ----------
    job
        What ran: a job, or the graph of all ranks.
    hardware, trace
        The machine and the trace.
    bound
        The step that no plan can beat, if known.
    ran
        The run of a single rank, if it was counted before; the trace is then not read.

    Returns
    -------
    dict
        The figures of the run by column (`simulator.metrics.figures`). Of several ranks, all times are those of the
        slowest, which has the longest step; on a tie, of the one that waits least for peers, then of the one whose step
        ends last, whose makespan it is, then of the lowest number.
    """
    job = job if isinstance(job, Job) else Job.of(job, len(trace.issued))
    if job.ranks == 1:
        ran = ran or RankRun.of(job.graphs[0], hardware, trace)
        row = rank_figures(job.graphs[0], hardware, ran, bound)
        return row | in_use(hardware, ran.trace, row)
    rows = by_rank(job, hardware, trace)
    whole: dict[str, Any] = peak_figures(hardware, peaks_bytes(hardware, trace))
    if len(trace.reserved):  # ranks counted what their allocators kept
        whole.pop(f"process_{hardware.compute_tier}_bytes", None)
    if trace.status != "ok":
        makespan = max(row["makespan_ns"] for row in rows)
        return {**rows[0], "makespan_ns": makespan, **whole, **bound_figures(None, bound), "ranks": job.ranks}
    steps_ns = _steps_ns(job, hardware, trace, rows)
    # a rank that waits for others catches up now and then; of those that end together, others wait for who waits least
    steps = [(min(ns[len(ns) // 2 :]), row["step_ns"]) for ns, row in zip(steps_ns, rows, strict=True)]
    last = max(range(job.ranks), key=lambda rank: (steps[rank], rows[rank]["warmup_ns"], -rank))
    slowest = max(range(job.ranks), key=lambda rank: (steps[rank], -rows[rank]["wait_peer_ns"], rank == last, -rank))
    of_job = {column: value for column, value in rows[slowest].items() if column not in _SHARES}
    of_job["makespan_ns"] = rows[last]["makespan_ns"]
    for column, figure in columns(hardware).items():
        if (merge := _MERGED.get(figure.over_ranks)) and column in of_job:
            values = [row[column] for row in rows]
            if None in values:
                must, do = f"a figure with over_ranks={figure.over_ranks!r} is counted for each rank", "count it there"
                raise InvariantError(column, must, "nothing", f"{do}: `rank_figures` of metrics/summary.py")
            of_job[column] = merge(values)
    computed = [(job.graphs[graph_id].arithmetic, ranks) for graph_id, ranks in Counter(job.graph_of).items()]
    whole |= flop_rates(computed, hardware, of_job["step_ns"])
    shares = {
        "ranks": job.ranks,
        "slowest_rank": slowest,
        **_settling(job, steps_ns, slowest),
        "collective_ns": of_job.pop("collective_ns"),
        **_shares(rows, job.ranks * of_job["step_ns"]),
    }
    communication_ns = of_job["wait_peer_ns"] + of_job["wait_collective_ns"]
    for name, time_ns in (("collective", shares["collective_ns"]), ("communication", communication_ns)):
        shares[f"{name}_fraction"] = time_ns / of_job["step_ns"] if of_job["step_ns"] else None
    by_bus = crowds(hardware, trace)
    shares |= {f"pulling_{name}": crowd.transfers for name, crowd in by_bus.items()}
    shares |= {f"demand_{name}": crowd.demand for name, crowd in by_bus.items()}
    whole |= in_use(hardware, trace, of_job | whole)
    return {**of_job, **whole, **bound_figures(of_job["step_ns"], bound), **shares, **crowding(job, hardware, trace)}


def hit_fraction(job: Job, hardware: Hardware, trace: Trace, draws: Sequence[Draws | None]) -> float | None:
    """Return the share of what all ranks chose that was in the compute tier, or on its way, when that became known.

    Parameters
    ----------
    job, hardware, trace
        The job, the machine and the trace.
    draws
        For each rank what its dynamic reads chose, if it has some.
    """
    alone, counts, target = trace.by_rank(), Counter[bool](), hardware.compute_tier_id
    into = [link for link, (_, end) in enumerate(hardware.hops) if end == target]
    for rank, of_rank in enumerate(draws):
        if of_rank is None:
            continue
        graph, ran = job.graph(rank), RankRun.of(job.graph(rank), hardware, alone[trace.stands_in[rank]])
        window, spans = summary.measured(graph, ran), ran.trace.spans.whole()
        step, spans = ran.starts.index(window.first_issue), pick(spans, summary.is_issued(spans, window))
        computes, copies = spans["kind"] == COMPUTE, (spans["kind"] == COPY) & np.isin(spans["track"], into)
        times = {op: (start, end) for op, start, end in tuples(pick(spans, computes), "item", "start_ns", "end_ns")}
        begun = [*tuples(pick(spans, copies), "item", "start_ns")]
        for op, reads in graph.dynamic_reads.items():
            late = {t for t, start in begun if times[reads.revealed_by][1] <= start < times[op][0]}
            counts.update(t not in late for t in of_rank.chosen(op, step) if not reads.updates)
    return counts[True] / counts.total() if counts else None


def _steps_ns(job: Job, hardware: Hardware, trace: Trace, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return how long the steps of each rank took after its first; of at most four, the measured one."""
    alone, lengths = trace.by_rank(), dict[int, list[int]]()
    for rank in {*trace.stands_in}:
        graph, lengths[rank] = job.graph(rank), [rows[rank]["step_ns"]]
        if graph.steps > 4 and (ran := RankRun.of(graph, hardware, alone[rank])).ends_ns:
            lengths[rank] = np.diff(np.maximum.accumulate(ran.ends_ns[summary.measured(graph, ran).stream])).tolist()
    return [lengths[rank] for rank in trace.stands_in]


def _settling(job: Job, steps_ns: Sequence[Sequence[int]], slowest: int) -> dict[str, int]:
    """Return the least step of the slowest rank and those that it meets, directly or through others, in as many steps.

    Of more than four steps a rank's is the mean of the last half, as one that is ahead of others waits now and then.
    And after how many steps theirs repeat, with the time of those, unless that is one or not to be seen.
    """
    met = set[tuple[int, ...]]()
    for graph in job.graphs:
        used = {op.collective.group for op in graph.ops if op.collective is not None}
        met.update(*(group.members for group in graph.groups if group.name in used))
    pairs = [pair for members in sorted(met) for pair in (*pairwise(members), *pairwise(members[::-1]))]
    peers = [peer for peer in reachable(slowest, pairs) if job.graph(peer).steps == job.graph(slowest).steps]
    lengths, last_half = [steps_ns[peer] for peer in peers], slice(len(steps_ns[slowest]) // 2, None)
    least = {"least_step_ns": min(round(mean(each[last_half])) for each in lengths)}
    for period in range(2, len(lengths[0]) // 2 + 1) if len({*steps_ns[slowest][last_half]}) > 1 else ():
        took = {sum(each[-period:]) for each in lengths}
        if len(took) == 1 and all(each[-period:] == each[-2 * period : -period] for each in lengths):
            return least | {"period": period, "period_ns": took.pop()}
    return least


def crowding(job: Job, hardware: Hardware, trace: Trace) -> dict[str, float | None]:
    """Compute, by link, the time of its transfers as a multiple of their time alone; None if there were none.

    Parameters
    ----------
    job, hardware, trace
        The job, the machine and the trace.
    """
    took, alone = Counter[str](), Counter[str]()
    spans, stands_for = trace.spans.whole(), Counter(trace.stands_in)
    copies = pick(spans, spans["kind"] == COPY)
    for rank, track, tensor, start, end in tuples(copies, "rank", "track", "item", "start_ns", "end_ns"):
        name, size = hardware.link_names[track], job.graph(rank).tensors[tensor].size_bytes
        took[name] += stands_for[rank] * (end - start)
        alone[name] += stands_for[rank] * transfer_ns(size, hardware.links[name])
    return {f"crowding_{name}": took[name] / alone[name] if alone[name] else None for name in hardware.link_names}


_MERGED: Mapping[str, Callable[[Iterable[Any]], Any]] = {"sum": sum, "most": max}

_SHARES = ("masked_ns", "masked_fraction", "utilisation", "bubble_fraction")


def _shares(rows: Sequence[dict[str, Any]], total_ns: int) -> dict[str, float | None]:
    """Compute the share of collectives that compute masks, and those of compute and of waits for peers in a time."""
    columns = ("masked_ns", "collective_ns", "compute_ns", "wait_peer_ns")
    masked, collective, compute, peer = (sum(row[column] for row in rows) for column in columns)
    return {
        "masked_fraction": masked / collective if collective else None,
        "utilisation": compute / total_ns if total_ns else None,
        "bubble_fraction": peer / total_ns if total_ns else None,
    }


def by_rank(job: Job, hardware: Hardware, trace: Trace) -> list[dict[str, Any]]:
    """Count the figures of each rank of a run as if it were alone.

    Parameters
    ----------
    job, hardware, trace
        The job, the machine and the trace.

    Returns
    -------
    list of dict
        For each rank the columns of `rank_figures`; its peaks of shared tiers count only what it holds itself. And:

        ``collective_ns``, ``masked_ns``, ``masked_fraction``
            Time of the measured step in which a collective of the rank is under way; how much of it compute masks; the
            share of that.
        ``utilisation``, ``bubble_fraction``
            Compute, and waits for peers, as shares of the step.
    """
    alone = trace.by_rank()
    rows = {rank: _counted(job.graph(rank), hardware, alone[rank]) for rank in set(trace.stands_in)}
    return [rows[rank] for rank in trace.stands_in]


def _counted(graph: Graph, hardware: Hardware, trace: Trace) -> dict[str, Any]:
    row = rank_figures(graph, hardware, RankRun.of(graph, hardware, trace))
    if trace.status != "ok":
        return row | dict.fromkeys(("collective_ns", *_SHARES))
    first, step = row["warmup_ns"], row["step_ns"]
    spans, meets = trace.spans.whole(), is_collective(graph, trace)
    masks = (spans["kind"] == COMPUTE) & ~meets & ~np.isin(spans["item"], [*graph.on_host, *graph.delays])
    collectives, computes = ((spans["start_ns"][flags], spans["end_ns"][flags]) for flags in (meets, masks))
    row["collective_ns"], row["masked_ns"] = exposed_ns(collectives, computes, (first, first + step))
    return row | _shares([row], step)


class Crowd(NamedTuple):
    """The most transfers at once on the fullest instance of a bus.

    Attributes
    ----------
    transfers
        Number of transfers under way.
    demand
        Bandwidth of their links, together, as a multiple of that of the bus: above 1 they slow one another down.
    """

    transfers: int
    demand: float


def crowds(hardware: Hardware, trace: Trace) -> dict[str, Crowd]:
    """Find the largest demand of transfers on each bus that ranks share, in the whole run.

    A transfer that ends gives way to one that starts at the same time.

    Parameters
    ----------
    hardware, trace
        The machine and the trace.

    Returns
    -------
    dict
        By bus with links, of a node or of the supernode; those without a limit are left out.
    """
    spans, by_bus = trace.spans.whole(), {}
    copies = pick(spans, (spans["kind"] == COPY) & (spans["end_ns"] > spans["start_ns"]))
    for name, bus in hardware.caps.items():
        passing = hardware.passing(bus.links)
        rates = [passing.get(link, 0) * hardware.links[link].bandwidth_bytes_per_s for link in hardware.link_names]
        if bus.scope == "device" or not any(rates) or inf in (bus.bandwidth_bytes_per_s, *rates):
            continue
        rate = np.array(rates, np.float64)
        over_bus = pick(copies, rate[copies["track"]] > 0)
        where, times = instances(hardware.topology.sharing[bus.scope], trace.stands_in)
        time, instance = np.append(over_bus["start_ns"], over_bus["end_ns"]), np.tile(where[over_bus["rank"]], 2)
        order = np.lexsort((np.arange(len(time)) < len(over_bus["rank"]), time, instance))  # ends come first
        count = times[over_bus["rank"]]
        changes = (np.append(size, -size)[order] for size in (count, count * rate[over_bus["track"]]))
        transfers, demand = (float(np.cumsum(change).max(initial=0)) for change in changes)
        by_bus[name] = Crowd(int(transfers), demand / bus.bandwidth_bytes_per_s)
    return by_bus
