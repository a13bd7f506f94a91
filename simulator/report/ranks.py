"""The ranks of a row for readers: each as a row of its own, and which of them are worth showing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import Shortfall
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.metrics import Ran, by_rank
from simulator.plan import Plan
from simulator.report.rows import Row, present
from simulator.trace import Trace
from simulator.units import counted


@dataclass(frozen=True, slots=True)
class OfRank:
    """What one rank of a row did: a row itself, in whose trace it is number 0.

    Attributes
    ----------
    rank
        Its number in the job.
    program
        What it runs; empty if all ranks run the same.
    stands_for
        How many ranks it stands for, itself among them.
    label, policy, summary, graph, hardware, budget_bytes, plan, trace, shortfall, blocked, homes_are_given
        As of any row.
    job
        What all ranks run.
    """

    rank: int
    program: str
    stands_for: int
    label: str
    policy: str
    summary: Mapping[str, Any]
    job: Job
    graph: Graph
    hardware: Hardware
    budget_bytes: int | float
    plan: Plan | None
    trace: Trace | None
    shortfall: Shortfall | None = field(default=None)
    blocked: tuple[str, ...] = field(default=())
    homes_are_given: bool = field(default=False)

    @property
    def ran(self) -> Ran | None:
        """What its row is counted from."""
        return None if self.trace is None else Ran.of(self.graph, self.hardware, self.trace)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was decided."""
        return () if self.plan is None else (self.plan,)

    @property
    def name(self) -> str:
        """What it is called: ``rank 3``."""
        return f"rank {self.rank}"

    @property
    def says(self) -> str:
        """What it runs, and for how many ranks it stands; empty if there is nothing to say."""
        others = f"stands for {counted(self.stands_for, 'rank')}" if self.stands_for > 1 else ""
        return ", ".join(filter(None, (self.program, others)))


def is_job(row: Row) -> bool:
    """Whether the row is about several ranks."""
    return row.trace is not None and len(row.trace.stands_in) > 1


def of_ranks(row: Row, ranks: Sequence[int] | None = None) -> list[OfRank]:
    """Show ranks of a row, each as a row of its own.

    Parameters
    ----------
    row
        A row with a trace.
    ranks
        Which; default: all that were simulated.
    """
    trace = row.trace
    if trace is None:
        return []
    if not is_job(row):
        return [_view(row, 0, row.trace, row.summary)]
    alone, counts = trace.by_rank(), by_rank(row.job, row.hardware, trace)
    chosen = simulated(trace) if ranks is None else ranks
    return [_view(row, rank, alone[rank], counts[rank]) for rank in chosen]


def _view(row: Row, rank: int, trace: Trace | None, summary: Mapping[str, Any]) -> OfRank:
    job, whole = row.job, row.trace
    number = job.graph_of[rank]
    return OfRank(
        rank=rank,
        program=job.labels[number] if len(job.graphs) > 1 else "",
        stands_for=Counter(whole.stands_in)[rank] if whole is not None else 1,
        label=row.label,
        policy=row.policy,
        summary=summary,
        job=job,
        graph=job.graphs[number],
        hardware=row.hardware,
        budget_bytes=row.budget_bytes,
        plan=row.plans[number] if row.plans else None,
        trace=trace,
        blocked=row.blocked,
        homes_are_given=row.homes_are_given,
    )


def simulated(trace: Trace) -> list[int]:
    """Ranks with rows of their own."""
    return [rank for rank, by in enumerate(trace.stands_in) if rank == by]


def chosen(row: Row, most: int) -> list[int]:
    """Choose ranks to show: all that were simulated, or so many of them that tell most.

    Parameters
    ----------
    row
        A row with a trace.
    most
        How many at most.

    Returns
    -------
    list of int
        Ascending: the first of each program, the slowest, the first of each node, and then those with the lowest
        numbers.
    """
    trace = row.trace
    if trace is None:
        return []
    candidates = simulated(trace)
    if len(candidates) <= most:
        return candidates
    each = row.hardware.topology.devices_per_node
    firsts = [row.job.ranks_of(number)[0] for number in range(len(row.job.graphs))]
    slowest = row.summary.get("slowest_rank")
    wanted = [*firsts, *([slowest] if present(slowest) else []), *range(0, row.job.ranks, each)]
    found = dict.fromkeys(trace.stands_in[rank] for rank in wanted)
    return sorted([*found, *(rank for rank in candidates if rank not in found)][:most])


def omitted(row: Row, shown: Sequence[int]) -> str:
    """Say which ranks are not shown, and why; empty if all are.

    Parameters
    ----------
    row
        A row with a trace.
    shown
        Ranks that are shown.
    """
    trace, total = row.trace, row.job.ranks
    if trace is None or len(shown) == total:
        return ""
    own = len(simulated(trace))
    text = f"{len(shown):,} of {counted(total, 'rank')} {'is' if len(shown) == 1 else 'are'} shown"
    if own < total:
        text += f"; {total - own:,} do exactly what the one does that stands for them"
    if len(shown) < own:
        text += (
            "; of those with rows of their own, the first of each program and node, the slowest, and the lowest numbers"
        )
    return text
