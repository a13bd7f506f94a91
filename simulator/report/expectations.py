"""What a scenario expects of its rows, held against what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from simulator.report.rows import ABSENT, percent, present, quantity, ratio
from simulator.scenario import Expectation


class Counted(Protocol):
    """A row of a table: its label, and the columns of its summary."""

    @property
    def label(self) -> str: ...  # noqa: D102 - said above
    @property
    def summary(self) -> Mapping[str, Any]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an expectation holds.

    Attributes
    ----------
    row, column
        What it is about.
    must, found
        What must hold and what was found, for people.
    holds
        Whether it does.
    why
        The sentence or printed figure behind it.
    printed, difference, source
        The figure as its source prints it, how far ours is from it, and the source; empty if none is printed.
    """

    row: str
    column: str
    must: str
    found: str
    holds: bool
    why: str
    printed: str = ""
    difference: str = ""
    source: str = ""

    def __str__(self) -> str:
        return f"{self.row}: {self.column} must be {self.must}, found {self.found}"


def shown(column: str, value: object) -> str:
    """Write a value of a column of the summary for people."""
    if isinstance(value, str) or not present(value):
        return str(value) if present(value) else "nothing"
    for suffix, unit in (("_ns", "ns"), ("_bytes", "B")):
        if column.endswith(suffix):
            return quantity(value, unit)
    if column.endswith("_fraction") or column == "utilisation":
        return percent(value)
    return ratio(value) if column.startswith(("slowdown_", "crowding_", "demand_")) else str(value)


def verdicts(expected: Sequence[Expectation], rows: Sequence[Counted], source: str = "") -> list[Verdict]:
    """Check all expectations.

    Parameters
    ----------
    expected
        Of the scenario.
    rows
        The rows of the table; an expectation about a row that was not run is left out.
    source
        Of printed figures that name none of their own.
    """
    by_label = {row.label: row for row in rows}
    known = [one for one in expected if one.row in by_label and one.faster_than in (None, *by_label)]
    return [_beside_printed(_verdict(one, by_label), one, by_label[one.row], source) for one in known]


def _beside_printed(verdict: Verdict, one: Expectation, row: Counted, source: str) -> Verdict:
    """Add the printed figure, if there is one."""
    if one.printed is None:
        return verdict
    printed, ours = one.bound("printed"), row.summary.get(one.column)
    share = _or_nan(ours) / _or_nan(printed) - 1 if printed else math.nan
    difference = f"{'+' if share > 0 else '-' if share < 0 else ''}{percent(abs(share))}" if present(share) else ABSENT
    return replace(verdict, printed=shown(one.column, printed), difference=difference, source=one.source or source)


def _verdict(one: Expectation, rows: dict[str, Counted]) -> Verdict:
    value = rows[one.row].summary.get(one.column)
    checks: list[tuple[str, bool]] = []
    if one.equals is not None:
        wanted = one.bound("equals")
        checks.append((shown(one.column, wanted), value == wanted))
    if one.about is not None:
        target = _or_nan(one.bound("about"))
        must = f"about {shown(one.column, target)} (within {percent(one.within)})"
        checks.append((must, abs(_or_nan(value) - target) <= one.within * abs(target)))
    if one.at_most is not None:
        limit = _or_nan(one.bound("at_most"))
        checks.append((f"at most {shown(one.column, limit)}", _or_nan(value) <= limit))
    if one.at_least is not None:
        limit = _or_nan(one.bound("at_least"))
        checks.append((f"at least {shown(one.column, limit)}", _or_nan(value) >= limit))
    if one.faster_than is not None:
        other = rows[one.faster_than].summary.get("step_ns")
        value = rows[one.row].summary.get("step_ns")
        checks.append((f"less than {one.faster_than}'s {shown('step_ns', other)}", _or_nan(value) < _or_nan(other)))
    must, holds = " and ".join(text for text, _ in checks), all(good for _, good in checks)
    return Verdict(one.row, one.column, must, shown(one.column, value), holds, one.why)


def _or_nan(value: object) -> float:
    """The value if it is a number, else NaN, which no comparison accepts."""
    return value if isinstance(value, int | float) else math.nan
