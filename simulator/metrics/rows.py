"""Rows of the table: what a policy, or one rank of it, came to, and how rows compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from simulator.errors import Shortfall
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.metrics.figures import present
from simulator.metrics.frames import place_name
from simulator.metrics.ranks import by_rank
from simulator.metrics.steps import RankRun
from simulator.metrics.summary import waits_by_place
from simulator.plan import Plan
from simulator.trace import CAUSES, Trace
from simulator.units import counted

DRAINED = "copies after the last op"
"""The last part of a step."""
R = TypeVar("R", bound="Row")


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the table: a policy and its outcome; or one rank of it.

    Attributes
    ----------
    label, policy
        Name of the row, and of its policy: one of hosim's, a plan's file, or the name of a function.
    summary
        Its figures by column (`simulator.metrics.figures`), as in ``summary.json``.
    job, hardware, budget_bytes
        The graphs of all ranks, the machine, and the budget in the compute tier [B].
    plans, trace
        The plan of each graph of the job, and the trace; none if no such plan fits. For a single rank, its own trace,
        in which it is rank 0.
    shortfall
        Why no such plan fits, and what would help; None if one ran.
    homes_are_given
        Whether some homes are given, so that its bound holds for this placement only.
    rank, stands_for
        The rank that it is about, and how many ranks do the same, itself included.
    waits_by_place
        Its waits by cause and place (`by_place`), if they were summed up where the row ran, as its trace has
        no tables here.
    measured
        What was measured when its plan was executed, which is shown under it; None if it was not.
    """

    label: str
    policy: str
    summary: dict[str, Any] = field(repr=False)
    job: Job = field(repr=False)
    hardware: Hardware = field(repr=False)
    budget_bytes: int | float = field(repr=False)
    plans: tuple[Plan, ...] = field(default=(), repr=False)
    trace: Trace | None = field(default=None, repr=False)
    shortfall: Shortfall | None = field(default=None, repr=False)
    homes_are_given: bool = field(default=False, repr=False)
    rank: int = 0
    stands_for: int = 1
    waits_by_place: list[dict[str, str | int]] | None = field(default=None, repr=False)
    measured: Row | None = field(default=None, repr=False)

    @property
    def is_ok(self) -> bool:
        """Whether it ran to its end."""
        return bool(self.summary["status"] == "ok")

    @property
    def is_job(self) -> bool:
        """Whether it is about several ranks."""
        return self.trace is not None and len(self.trace.stands_in) > 1

    @property
    def simulated(self) -> list[int]:
        """The ranks that have a trace of their own."""
        return sorted(set(self.trace.stands_in)) if self.trace else []

    @property
    def recompute_ns(self) -> int:
        """Time spent on recompute [ns]."""
        return int(self.summary.get("recompute_ns") or 0)

    @property
    def is_free(self) -> bool:
        """Whether it runs no op again, and waits neither for a copy nor for room."""
        return not self.recompute_ns and not {"capacity", "transfer", "compaction"} & self.causes.keys()

    @property
    def causes(self) -> dict[str, int]:
        """Stall by root cause [ns], the longest first, without zeros."""
        stalls = Counter({cause: int(self.summary.get(f"wait_{cause}_ns") or 0) for cause in CAUSES})
        return dict((+stalls).most_common())

    @property
    def spent(self) -> dict[str, int]:
        """The parts of a step [ns]: compute, recompute, delays, stalls (the longest first), the drain; no zeros."""
        parts = {"compute": int(self.summary["compute_ns"]), "recompute": self.recompute_ns}
        parts["delay"] = self.summary.get("delay_ns") or 0
        parts |= {f"stall: {cause}": ns for cause, ns in self.causes.items()}
        parts[DRAINED] = int(self.summary.get("drain_ns") or 0)
        return {name: ns for name, ns in parts.items() if ns}

    @property
    def graph(self) -> Graph:
        """The graph that the rank ran."""
        return self.job.graph(self.rank)

    @property
    def plan(self) -> Plan | None:
        """The plan of the rank."""
        return self.plans[self.job.graph_of[self.rank]] if self.plans else None

    @property
    def blocked(self) -> tuple[str, ...]:
        """The waits with which a plan blocks itself."""
        return self.trace.blocked if self.trace else ()

    @property
    def program(self) -> str:
        """The name of the graph that the rank runs; empty if all ranks run the same."""
        return self.job.labels[self.job.graph_of[self.rank]] if len(self.job.graphs) > 1 else ""

    @property
    def rank_name(self) -> str:
        """The rank, its program, and the number of ranks that do the same: ``rank 3, stage 0, stands for 4 ranks``."""
        others = f"stands for {counted(self.stands_for, 'rank')}" if self.stands_for > 1 else ""
        return ", ".join(filter(None, (f"rank {self.rank}", self.program, others)))


def with_measured(rows: Iterable[Row]) -> list[Row]:
    """Return rows, each followed by what was measured of it, if anything was."""
    return [shown for row in rows for shown in (row, row.measured) if shown is not None]


UNBOUNDED = "none"
"""Kind of bound of a row whose plan leaves the program's order or its streams."""
OF_FIXED = ", fixed plans"
"""Suffix of the kind of a bound that holds for fixed plans with dynamic reads: of the average step of the run."""


def by_step(rows: Iterable[R]) -> list[R]:
    """Sort the rows that ran to their end, the fastest first."""
    return sorted((row for row in rows if row.is_ok), key=lambda row: int(row.summary["step_ns"]))


def pace(rows: Sequence[Mapping[str, Any]], *, is_same_work: bool) -> str:
    """Name the figure by which rows are compared, or return an empty text if none compares them.

    Rows that do the same work are compared by their step; else by the tokens, or the samples, of a second.

    Parameters
    ----------
    rows
        Figures of rows that ran.
    is_same_work
        Whether they do the same work as far as their documents tell; it counts where tokens and samples are unknown.
    """
    for column in ("tokens_per_s", "samples_per_s"):
        if rows and all(present(row.get(column)) and row.get("step_ns") for row in rows):
            handled = {round(row[column] * row["step_ns"] / 10**9) for row in rows}
            return column if len(handled) > 1 else "step_ns"
    return "step_ns" if is_same_work else ""


def of_ranks(row: Row, ranks: Sequence[int]) -> list[Row]:
    """Make a row of each of some ranks; a row of one rank is returned as it is.

    Parameters
    ----------
    row
        A row with a trace.
    ranks
        Some of the simulated ranks (`Row.simulated`).
    """
    trace = row.trace
    if trace is None or not row.is_job:
        return [row]
    summaries, traces, stand = by_rank(row.job, row.hardware, trace), trace.by_rank(), Counter(trace.stands_in)
    return [replace(row, summary=dict(summaries[i]), trace=traces[i], rank=i, stands_for=stand[i]) for i in ranks]


def chosen(row: Row, most: int) -> list[int]:
    """Choose at most `most` ranks to show: the first of each program, the slowest, then in order."""
    if row.trace is None:
        return []
    firsts = (row.job.ranks_of(index)[0] for index in range(len(row.job.graphs)))
    wanted = [row.trace.stands_in[rank] for rank in (*firsts, row.summary.get("slowest_rank") or 0)]
    return sorted([*dict.fromkeys((*wanted, *row.simulated))][:most])


def by_place(row: Row) -> list[dict[str, str | int]]:
    """Sum up the waits of the measured step by cause and place; for a job, those of the slowest rank.

    Parameters
    ----------
    row
        Any row.

    Returns
    -------
    list of dict
        ``cause``; ``on``: the tier, link or rank, or empty; ``ns``. The longest come first; those of a cause sum to the
        row's ``wait_<cause>_ns``, with a rest that has no place. Empty if the row did not run to its end.
    """
    if row.trace is None or not row.is_ok:
        return []
    if row.waits_by_place is not None:
        return row.waits_by_place
    rank = row.summary.get("slowest_rank", row.rank)
    graph, trace = row.job.graph(rank), row.trace.by_rank()[rank if row.is_job else 0]
    sums = Counter(waits_by_place(graph, RankRun.of(graph, row.hardware, trace)))
    for cause, name in enumerate(CAUSES):
        placed = sum(ns for (other, _), ns in sums.items() if other == cause)
        sums[cause, -1] += (row.summary.get(f"wait_{name}_ns") or 0) - placed
    ordered = sorted(((key, ns) for key, ns in sums.items() if ns), key=lambda item: (-item[1], item[0]))
    return [{"cause": CAUSES[place[0]], "on": place_name(row.hardware, *place), "ns": ns} for place, ns in ordered]
