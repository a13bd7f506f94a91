"""What a scenario expects of its rows, held against what came out; and the same as JUnit XML, a case an expectation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from simulator import metrics
from simulator.document import faults
from simulator.hardware import Hardware
from simulator.metrics import figure_of
from simulator.report.rows import ABSENT, percent, present, ratio, shown, signed
from simulator.report.views import rendered
from simulator.scenario import Claim, Expectation, Kind
from simulator.units import FieldError, nearest, require, unit_of

Word = Literal["holds", "guarded", "by construction", "fitted", "shown", "missed", "BROKEN"]
"""A verdict in a word."""


Summaries = Mapping[str, Mapping[str, Any]]
"""Rows of a table by label: the figures of each by column."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An expectation, what came out, and whether it holds.

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
    asks
        What is expected, in words that do not change with what came out.
    source
        Of the claim, or of the figure.
    printed, difference
        The figure as its source prints it, and how far ours is from it; empty if none is printed.
    error
        The same difference as a share of what is printed; None if none is printed, or nothing was found.
    tolerance
        What is accepted of a printed figure, for people.
    kind, figure, missed, headline
        As the expectation says.
    """

    row: str
    column: str
    must: str
    found: str
    holds: bool
    why: str
    asks: str = ""
    printed: str = ""
    difference: str = ""
    source: str = ""
    error: float | None = None
    tolerance: str = ""
    kind: Kind = "predicted"
    figure: str = ""
    missed: str = ""
    headline: bool = False

    def __str__(self) -> str:
        return f"{self.row}: {self.column} must be {self.must}, found {self.found}"

    @property
    def is_broken(self) -> bool:
        """Whether it fails unexpectedly."""
        return not self.holds and not self.missed

    @property
    def word(self) -> Word:
        """What holds: ``holds``, ``guarded`` if nothing is printed, or its kind; else ``missed``, or ``BROKEN``."""
        if not self.holds:
            return "missed" if self.missed else "BROKEN"
        predicted: Word = "holds" if self.printed else "guarded"
        return predicted if self.kind == "predicted" else self.kind


def verdicts(expected: Sequence[Expectation], rows: Summaries, source: str = "") -> list[Verdict]:
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
    known = (one for one in expected if set(one.rows.values()) <= set(rows))
    return [_verdict(one, rows, source) for one in known]


def untested(claim: Claim) -> list[Verdict]:
    """Return verdicts on the printed figures of a claim that no row can test.

    Parameters
    ----------
    claim
        Of the scenario.
    """
    found = []
    for one in claim.untested:
        printed = {"printed": one.printed, "difference": ABSENT, "source": one.source or claim.source}
        more: dict[str, Any] = {**printed, "tolerance": ABSENT, "figure": one.figure, "missed": one.missed}
        found.append(Verdict("no row", one.why, "run", ABSENT, holds=False, why=one.why, asks=one.why, **more))
    return found


def _verdict(one: Expectation, rows: Summaries, source: str) -> Verdict:
    row, value = rows[one.row], _value(one, rows)
    limits, found = _limits(one, value), f"{row.get(f'{one.column}_is', '')} {_said(one, value)}".strip()
    if one.faster_than is not None:
        own, other = row.get("step_ns"), rows[one.faster_than].get("step_ns")
        limits.append((f"less than {one.faster_than}'s {_shown('step_ns', other)}", _number(own) < _number(other)))
        found = _shown("step_ns", own)
    must, holds = " and ".join(text for text, _ in limits), all(good for _, good in limits)
    if not holds and not present(value) and row["status"] != "ok":
        found = f"none, as the row is {row['status']}"
    elif not holds and found in must and isinstance(value, int | float) and one.faster_than is None:
        exact = f"{value:,}{f' {one.unit}' if one.unit and one.over is None else ''}"
        found += f" ({exact} to be exact)" if found != f"{value:,}" else ""
    must = must or "anything: the printed figure is only shown"
    more: dict[str, Any] = {"kind": one.kind, "missed": one.missed, "headline": one.headline}
    more |= {"figure": one.figure or "", "source": one.source or source}
    if one.printed is not None:
        error, tolerance = _error(one, value), ABSENT if one.kind == "shown" else must
        if one.is_close_to_printed:
            tolerance = "within" if isinstance(one.printed, tuple) else percent(one.within)
        more |= {"printed": _said_range(one), "difference": signed(error), "error": error, "tolerance": tolerance}
    return Verdict(one.row, one.column, must, found, holds, one.why, asks(one), **more)


def _error(one: Expectation, value: object) -> float | None:
    """Return the relative error of a value to the printed figure; None if either is no number."""
    ends = [_number(end) for end in one.ends("printed")]
    nearest = min(max(_number(value), ends[0]), ends[-1]) if ends else math.nan
    share = _number(value) / nearest - 1 if nearest and math.isfinite(nearest) else None
    return share if present(share) else None


def _value(one: Expectation, rows: Summaries) -> object:
    """Return the value that an expectation is about; None if a row has no such value."""
    value = _summed(one, rows[one.row])
    if one.over is None:
        return value
    divisor = _summed(one, rows[one.rows["over"]]) if "over" in one.rows else one.divisor
    return _number(value) / _number(divisor) if present(value) and divisor else None


def _summed(one: Expectation, row: Mapping[str, Any]) -> object:
    found = [row.get(column) for column in one.columns]
    return found[0] if len(found) == 1 else None if None in found else sum(map(_number, found))


def asks(one: Expectation) -> str:
    """Say what is expected, in words that do not depend on the outcome: two runs are matched by them."""
    faster = [] if one.faster_than is None else [f"less than {one.faster_than}'s"]
    limits = " and ".join([*(text for text, _ in _limits(one)), *faster])
    over = "" if one.over is None else f" over {one.over}"
    return f"{one.row}: {one.column}{over} is {limits or 'shown'}"


def _limits(one: Expectation, value: object = None) -> list[tuple[str, bool]]:
    """Return each limit on the value, in words, and whether the value keeps it."""
    found, number = list[tuple[str, bool]](), _number(value)
    ends = [_number(end) for end in one.ends("printed")] if one.is_close_to_printed else []
    if one.equals is not None:
        wanted = one.ends("equals")[0]
        found.append((_said(one, wanted), value == wanted))
    if len(ends) == 2:
        found.append((_said_range(one), ends[0] <= number <= ends[1]))
    if one.about is not None or len(ends) == 1:
        target = ends[0] if ends else _number(one.ends("about")[0])
        must = f"about {_said(one, target)} (within {percent(one.within)})"
        found.append((must, abs(number - target) <= one.within * abs(target)))
    if len(ends) == 1 and "%" in str(one.printed) and ends[0] != 1:  # 5 % of a ratio near 1 may be a rise for a fall
        found.append(("a fall" if ends[0] < 1 else "a rise", (number - 1) * (ends[0] - 1) > 0))
    found += [(f"at most {_said(one, most)}", number <= most) for most in map(_number, one.ends("at_most"))]
    found += [(f"at least {_said(one, least)}", number >= least) for least in map(_number, one.ends("at_least"))]
    return found


def _said_range(one: Expectation) -> str:
    """Write a printed figure as its source prints it."""
    if not isinstance(one.printed, tuple):
        return one.printed if isinstance(one.printed, str) else f"{one.printed:g}"
    low, high = (end if isinstance(end, str) else f"{end:g}" for end in one.printed)
    return f"at least {low}" if high == "inf" else f"{low} to {high}"


def _said(one: Expectation, value: object) -> str:
    """Write a value for people; a ratio in the form of its printed figure, ``2.7x`` or ``-26 %``."""
    if one.over is None or not present(value) or isinstance(value, str):
        return _shown(one.columns[0], value)
    printed = one.printed[0] if isinstance(one.printed, tuple) else one.printed
    if isinstance(printed, str) and "%" in printed:
        return f"{100 * (_number(value) - 1):+.1f} %"
    return ratio(value)


def _shown(column: str, value: object) -> str:
    return shown(column, value) if present(value) else "nothing"


def _number(value: object) -> float:
    """Return the value if it is a number, else NaN, which fails every comparison."""
    return value if isinstance(value, int | float) else math.nan


_CONDITION = re.compile(r"(?P<what>.+?)\s*(?P<sign><=|>=)\s*(?P<limit>.+?)\s*")
_SHARE = re.compile(r"([0-9]+\.?[0-9]*)\s*%")
ITSELF, OTHER, STEP = "itself", "other", "step"
"""In a condition: the row that it is about, the one that ratios are of, and the step of the first."""


def condition(text: str, hardware: Hardware) -> Expectation:
    """Read a condition on the figures of a row: ``stall <= 0.1 %`` (of the step), ``peak.hbm <= 32 GB``.

    Parameters
    ----------
    text
        A column or its heading, ``<=`` or ``>=``, and an amount: a quantity, a number, a share, or a ratio (``1.01x``)
        to the figure of another row.
    hardware
        The machine, whose tiers and links have columns.

    Raises
    ------
    FieldError
        If it is none.
    """
    found = _CONDITION.fullmatch(text)
    must, do = "a condition is a figure, <= or >=, and an amount", "write such as 'stall <= 0.1 %' or 'step <= 1.01x'"
    if found is None:
        raise FieldError(must, repr(text), do)
    parts = [named(part, metrics.columns(hardware)) for part in found["what"].split(" + ")]
    stated: str = found["limit"]
    limit: str | float = stated
    share, is_time = _SHARE.fullmatch(stated), parts[0].endswith("_ns")
    over = OTHER if stated[-1] == "x" or stated[0] in "+-" else STEP if share and is_time else None
    if share:
        limit = float(share[1]) / 100
    elif over is None and unit_of(stated) is None:
        with suppress(ValueError):
            limit = float(stated)
    asked = {"at_most" if found["sign"] == "<=" else "at_least": limit, "over": over}
    try:
        return Expectation(row=ITSELF, column=" + ".join(parts), why=text, **asked)
    except ValidationError as error:
        raise next(iter(faults(error, asked))) from None


def named(text: str, columns: Sequence[str]) -> str:
    """Find a column by its name or its heading, with dots or blanks: ``peak.hbm``.

    Raises
    ------
    FieldError
        If there is none.
    """
    known = {figure_of(column).head.replace(" ", "."): column for column in reversed(columns)}
    known |= {column: column for column in columns}
    part = text.strip().replace(" ", ".")
    require(part in known, "what is asked for is a figure of the table", repr(part), do=nearest(part, tuple(known)))
    return known[part]


def unmet(
    asked: Sequence[Expectation], row: Mapping[str, Any], other: Mapping[str, Any] | None
) -> tuple[str, str] | None:
    """Return the figure of the first condition that a row does not meet, and what it is.

    Parameters
    ----------
    asked
        Conditions.
    row, other
        The figures of the row, and of the one that ratios are of.
    """
    for one in asked:
        step = dict.fromkeys(one.columns, 0) | {one.columns[0]: row.get("step_ns")}  # a sum is over the step once
        value = _value(one, {ITSELF: row, OTHER: other or {}, STEP: step})
        if not all(holds for _, holds in _limits(one, value)):
            limit, first = (*one.ends("at_most"), *one.ends("at_least"))[0], next(_written(one, value))
            pairs = zip(_written(one, value), _written(one, limit), strict=True)
            said = next((told for told, asked_for in pairs if told != asked_for), first)
            return " + ".join(figure_of(own).head for own in one.columns), said
    return None


def _written(one: Expectation, value: object) -> Iterator[str]:
    """Write the value of a condition with more and more digits, until they tell it from what is asked for."""
    if one.over:
        size, unit, least = (1, "x", 5) if one.over == OTHER else (100, " %", 3)
        yield from (f"{size * _number(value):.{digits}g}{unit}" for digits in range(least, 17))
    else:
        yield _said(one, value)
        if (unit := figure_of(one.columns[0]).unit) in ("B", "ns"):
            yield f"{value:,} {unit}"


class Check(NamedTuple):
    """A test case of JUnit.

    Attributes
    ----------
    name
        What it is called, in every run alike.
    failure, details
        Why it fails, in one line and in full; empty if it does not.
    skipped
        Why it was not looked at; empty if it was.
    """

    name: str
    failure: str = ""
    details: str = ""
    skipped: str = ""


def check(verdict: Verdict) -> Check:
    """Make a test case of a verdict.

    Parameters
    ----------
    verdict
        Of an expectation.
    """
    if not verdict.is_broken:
        return Check(verdict.asks, skipped="" if verdict.holds else f"known to be missed, {verdict}: {verdict.missed}")
    printed = f"{verdict.printed} ({verdict.source})" if verdict.printed and verdict.source else verdict.printed
    lines = {"must be": verdict.must, "found": verdict.found, "why": verdict.why, "printed": printed}
    return Check(verdict.asks, str(verdict), "\n".join(f"{what}: {said}" for what, said in lines.items() if said))


def write_junit(suites: Mapping[str, Sequence[Check]], file: Path) -> None:
    """Write test cases as JUnit XML, which GitHub, GitLab and Jenkins read; all durations are 0.

    Parameters
    ----------
    suites
        By name of the scenario.
    file
        An earlier one is replaced; its folders are made. What XML 1.0 has no way to write is replaced in it.
    """
    text = rendered("junit.xml.j2", suites=suites)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(re.sub(_UNWRITABLE, "\ufffd", text).encode())


_UNWRITABLE = "[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
