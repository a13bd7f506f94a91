"""A row of the table and its ranks, as reports see them, and the formatting of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from simulator.errors import Shortfall
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.metrics import by_rank, figure_of
from simulator.metrics.figures import Unit
from simulator.plan import Plan
from simulator.trace import CAUSES, Trace
from simulator.units import counted, human, parse

DRAINED = "copies after the last op"
"""The last part of a step."""
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound="Row")
ENDS = {"infeasible": "does not fit", "blocked": "is blocked", "refused": "is refused", "failed": "fails"}
ENDS["overloaded"] = "is overloaded"
"""Status of a row that did not run, or was not served -> its words."""
ABSENT = "-"
"""The text of a cell without a number."""


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
        Its waits by cause and place (`readings.by_place`), if they were summed up where the row ran, as its trace has
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


def present(value: object) -> bool:
    """Tell whether there is a number (or text) to show: neither None nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def quantity(value: object, unit: str) -> str:
    """Write a quantity with three significant digits and its unit, or `ABSENT`."""
    return human(value, unit) if present(value) else ABSENT  # type: ignore[arg-type]


def units(value: float, unit: str = "ns") -> tuple[str, float]:
    """Choose a multiple of a unit for an axis with values like this one: its name, and its size in `unit`."""
    if unit not in ("ns", "B", "B/s"):
        return unit, 0.01 if unit == "%" else 1
    name = human(value, unit).partition(" ")[2]
    return name, int(parse(f"1 {name}", unit))


UNBOUNDED = "none"
"""Kind of bound of a row whose plan leaves the program's order or its streams."""
OF_FIXED = ", fixed plans"
"""Suffix of the kind of a bound that holds for fixed plans with dynamic reads: of the average step of the run."""


def percent(fraction: object) -> str:
    """Write a share in per cent, or `ABSENT`; only 1 is ``100 %``, and ``0 %`` is below 0.05 %."""
    if not present(fraction):
        return ABSENT
    value = 100 * float(fraction)  # type: ignore[arg-type]
    if abs(value) < 0.05 or value == 100:
        return f"{abs(value):.0f} %"
    if 99 < value < 100:
        return f"{math.floor(value * 10) / 10:.1f} %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def signed(share: float | None) -> str:
    """Write a difference in per cent with its sign, or `ABSENT`."""
    if not present(share) or share is None:
        return ABSENT
    written = percent(abs(share))
    return written if written == "0 %" else f"{'+' if share > 0 else '-'}{written}"


def ratio(value: object) -> str:
    """Write a ratio, such as ``1.32x``, or `ABSENT`."""
    return f"{float(value):.2f}x" if present(value) else ABSENT  # type: ignore[arg-type]


def shown(column: str, value: object) -> str:
    """Write the value of a column in the unit of its figure, or `ABSENT`."""
    return written(value, figure_of(column).unit)


def written(value: Any, unit: Unit) -> str:
    """Write a value in a unit, or `ABSENT`; text stays as it is."""
    if not present(value) or not isinstance(value, int | float):
        return str(value) if present(value) else ABSENT
    if unit in ("share", "times"):
        return percent(value) if unit == "share" else ratio(value)
    if unit in ("ns", "B"):
        return human(value, unit)
    if unit in ("J", "USD", "years"):
        digits = max(0, 2 - math.floor(math.log10(abs(value) or 1)))
        return f"{value:,.{digits}f} {unit}"
    if unit == "per s" and value < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if unit == "per s" or float(value).is_integer() else f"{value:.4g}"


def named(row: Row) -> dict[str, str]:
    """Return what a table has of a row in words: the kind of its ``bound``, and the interval of its ``real_step``."""
    low, high = (quantity(row.summary.get(f"real_{end}_ns"), "ns") for end in ("low", "high"))
    return {"bound": bound_name(row), "real_step": ABSENT if low == ABSENT else f"{low} to {high}"}


def bound_name(row: Row) -> str:
    """Name the bound from which the row's gap is measured, or `ABSENT`.

    ``fixed plans`` if it holds for such plans only, else ``combinatorial``.
    """
    if not present(row.summary.get("gap_fraction")):
        return ABSENT
    return "fixed plans" if str(row.summary.get("bound_kind")).endswith(OF_FIXED) else "combinatorial"


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


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, in the order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


_WHATEVER_HOMES = ("compute", "critical path")
"""Kinds of bounds that do not depend on the placement."""


def held_to(rows: Sequence[Row], row: Row, to: str = "lower bound") -> str:
    """Name the bound of a row by the plans that it covers, such as ``lower bound for this placement``.

    Where other rows recompute and it does not, the bound covers only plans that do not, either.

    Parameters
    ----------
    rows, row
        The rows of a table, and one of them.
    to
        What is named.
    """
    also = "without recompute" if any(row.recompute_ns for row in rows) and not row.recompute_ns else ""
    kind = str(row.summary.get("bound_kind") or "compute").removesuffix(OF_FIXED)
    given = "for this placement" if row.homes_are_given and kind not in _WHATEVER_HOMES else ""
    return " ".join(filter(None, (to, also, given)))


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


def omitted(row: Row, shown: Sequence[int]) -> str:
    """Say how many ranks are shown, and how many were folded; empty if all are shown."""
    folded = row.job.ranks - len(row.simulated)
    others = f"; {folded:,} do exactly what the one does that stands for them" if folded else ""
    text = f"{len(shown):,} of {counted(row.job.ranks, 'rank')} are shown{others}"
    return text if len(shown) < row.job.ranks else ""
