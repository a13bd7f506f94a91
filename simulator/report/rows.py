"""What a report is told about one row of the table, and how the numbers in it are written for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from simulator.errors import Shortfall
from simulator.graph import Graph, Job
from simulator.hardware import Hardware
from simulator.metrics import Ran
from simulator.plan import Plan
from simulator.trace import CAUSES, Trace
from simulator.units import human

ABSENT = "-"
"""What a cell shows when there is no such number."""


class Row(Protocol):
    """One row of the table: one policy, and what came of it.

    Attributes
    ----------
    label, policy
        Name of the row, and of the policy that decided: one that hosim has, a plan's file, or a function's name.
    summary
        The columns of ``summary.json`` for this row.
    job, hardware, budget_bytes
        What all ranks ran, on which machine, with how much of the compute tier [B].
    plans, trace
        What was decided for each graph of the job, and what happened; nothing where no plan can fit.
    graph, plan
        What rank 0 ran, and what was decided for it.
    ran
        Of one rank, what its row was counted from.
    shortfall
        Why no plan can fit; None where one ran.
    blocked
        Who waits for whom, where a plan blocked itself.
    homes_are_given
        Whether some homes are not free, so that what must be copied holds with these.
    """

    @property
    def label(self) -> str: ...  # noqa: D102 - said above
    @property
    def policy(self) -> str: ...  # noqa: D102
    @property
    def summary(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def job(self) -> Job: ...  # noqa: D102
    @property
    def graph(self) -> Graph: ...  # noqa: D102
    @property
    def hardware(self) -> Hardware: ...  # noqa: D102
    @property
    def budget_bytes(self) -> int | float: ...  # noqa: D102
    @property
    def plans(self) -> tuple[Plan, ...]: ...  # noqa: D102
    @property
    def plan(self) -> Plan | None: ...  # noqa: D102
    @property
    def trace(self) -> Trace | None: ...  # noqa: D102
    @property
    def ran(self) -> Ran | None: ...  # noqa: D102
    @property
    def shortfall(self) -> Shortfall | None: ...  # noqa: D102
    @property
    def blocked(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def homes_are_given(self) -> bool: ...  # noqa: D102


def is_ok(row: Row) -> bool:
    """Whether the row ran to its end."""
    return bool(row.summary["status"] == "ok")


def copies_nothing(row: Row) -> bool:
    """Whether the row ran to its end and copied nothing over any link."""
    return is_ok(row) and not any(row.summary.get(f"moved_{name}_bytes") for name in row.hardware.links)


def present(value: object) -> bool:
    """Whether there is a number (or text) to show: neither None nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def quantity(value: object, unit: str) -> str:
    """Write a quantity with three significant digits and its unit, or `ABSENT`."""
    return human(value, unit) if present(value) else ABSENT  # type: ignore[arg-type]


UNBOUNDED = "none"
"""Kind of bound of a row whose plan leaves the program's order or its streams."""

OF_FIXED = ", fixed plans"
"""Ends the kind of a bound of fixed plans where ops read late: of a step on average, so that the gap is of the run."""


def percent(fraction: object) -> str:
    """Write a share in per cent, or `ABSENT`; less than everything is never ``100 %``, and ``0 %`` is below 0.05 %."""
    if not present(fraction):
        return ABSENT
    value = 100 * float(fraction)  # type: ignore[arg-type]
    if abs(value) < 0.05 or value == 100:
        return f"{abs(value):.0f} %"
    if 99 < value < 100:
        return f"{math.floor(value * 10) / 10:.1f} %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def ratio(value: object) -> str:
    """Write how many times something is longer, such as ``1.32x``, or `ABSENT`."""
    return f"{float(value):.2f}x" if present(value) else ABSENT  # type: ignore[arg-type]


def causes(row: Row) -> list[tuple[str, int]]:
    """Causes of the row's stall and their time [ns], the largest first, without those that are 0."""
    found = [(cause, row.summary.get(f"wait_{cause}_ns")) for cause in CAUSES]
    return sorted(((c, int(ns)) for c, ns in found if present(ns) and ns), key=lambda item: -item[1])


def bound_name(row: Row) -> str:
    """Name the bound that the row's gap is to, or `ABSENT`.

    ``fixed plans`` if it holds of such plans only, else ``combinatorial``.
    """
    if not present(row.summary.get("gap_fraction")):
        return ABSENT
    return "fixed plans" if str(row.summary.get("bound_kind")).endswith(OF_FIXED) else "combinatorial"


def recomputed_ns(row: Row) -> int:
    """Time in which the row runs ops again [ns]."""
    return int(row.summary.get("recompute_ns") or 0)


def fastest_ns(rows: Sequence[Row]) -> float | None:
    """Least step time of the rows that ran to their end [ns]."""
    times = [row.summary["step_ns"] for row in rows if is_ok(row) and present(row.summary.get("step_ns"))]
    return min(times, default=None)


def listed(names: Sequence[str]) -> str:
    """Write names as a list for people: a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


_WHATEVER_HOMES = ("compute", "critical path")
"""Kinds of bounds that are the same wherever tensors have their homes."""


def bounded_plans(kind: str, *, homes_are_given: bool, also: str = "") -> str:
    """Say which plans a bound holds for, such as ``no plan with these homes``.

    Parameters
    ----------
    kind
        Its kind.
    homes_are_given
        Whether some homes are not free.
    also
        What else such plans must not do.
    """
    given = homes_are_given and kind.removesuffix(OF_FIXED) not in _WHATEVER_HOMES
    return " ".join(filter(None, ("no plan", "with these homes" if given else "", also)))


def held_to(rows: Sequence[Row], row: Row) -> str:
    """Which plans the bound of a row holds for: where others recompute and it does not, those that do not, either.

    Parameters
    ----------
    rows, row
        The rows of a table, and one of them.
    """
    also = "without recompute" if any(map(recomputed_ns, rows)) and not recomputed_ns(row) else ""
    kind = str(row.summary.get("bound_kind") or "compute")
    return bounded_plans(kind, homes_are_given=row.homes_are_given, also=also)


def above_bound(gap: float, kind: str, plans: str) -> str:
    """Say how far above a bound a step is, as the end of a sentence.

    Parameters
    ----------
    gap, kind
        How far, as a share of the bound, and which bound.
    plans
        Which plans it holds for: see `bounded_plans`.
    """
    if kind.endswith(OF_FIXED):
        kind = kind.removesuffix(OF_FIXED)
        if gap < _NO_GAP:
            return f", and over the run {plans} that is fixed before it can be faster ({kind})"
        return f"; over the run {percent(gap)} above what {plans} that is fixed before it can beat ({kind})"
    if gap < _NO_GAP:
        return f", and {plans} can be faster ({kind})"
    return f", {percent(gap)} above the bound that {plans} can beat ({kind})"


_NO_GAP = 0.0005
"""A smaller gap is not shown."""
