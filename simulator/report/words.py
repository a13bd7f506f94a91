"""Words and numbers as people read them: quantities with units, shares, ratios, and what a row is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simulator.metrics import figure_of
from simulator.metrics.figures import Unit, present
from simulator.metrics.rows import OF_FIXED, Row
from simulator.units import counted, human, parse

ENDS = {"infeasible": "does not fit", "blocked": "is blocked", "refused": "is refused", "failed": "fails"}
ENDS["overloaded"] = "is overloaded"
"""Status of a row that did not run, or was not served -> its words."""
ABSENT = "-"
"""The text of a cell without a number."""


def quantity(value: object, unit: str) -> str:
    """Write a quantity with three significant digits and its unit, or `ABSENT`."""
    return human(value, unit) if present(value) else ABSENT  # type: ignore[arg-type]


def units(value: float, unit: str = "ns") -> tuple[str, float]:
    """Choose a multiple of a unit for an axis with values like this one: its name, and its size in `unit`."""
    if unit not in ("ns", "B", "B/s"):
        return unit, 0.01 if unit == "%" else 1
    name = human(value, unit).partition(" ")[2]
    return name, int(parse(f"1 {name}", unit))


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
    """Return what a table has of a row in words: its ``kind_of_bound``, and the interval of its ``real_step``.

    A bound is of ``fixed plans`` if it holds for such plans only, else ``combinatorial``.
    """
    low, high = (quantity(row.summary.get(f"real_{end}_ns"), "ns") for end in ("low", "high"))
    kind = "fixed plans" if str(row.summary.get("bounded_by")).endswith(OF_FIXED) else "combinatorial"
    kind = kind if present(row.summary.get("gap_fraction")) else ABSENT
    return {"kind_of_bound": kind, "real_step": ABSENT if low == ABSENT else f"{low} to {high}"}


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
    kind = str(row.summary.get("bounded_by") or "compute").removesuffix(OF_FIXED)
    given = "for this placement" if row.homes_are_given and kind not in _WHATEVER_HOMES else ""
    return " ".join(filter(None, (to, also, given)))


def omitted(row: Row, shown: Sequence[int]) -> str:
    """Say how many ranks are shown, and how many were folded; empty if all are shown."""
    folded = row.job.ranks - len(row.simulated)
    others = f"; {folded:,} do exactly the same as one of these" if folded else ""
    text = f"{len(shown):,} of {counted(row.job.ranks, 'rank')} are shown{others}"
    return text if len(shown) < row.job.ranks else ""
