"""Checks the expectations of a scenario, and the conditions of a search, against rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from simulator import metrics
from simulator.errors import STATUSES
from simulator.faults import faults
from simulator.hardware import Hardware
from simulator.metrics import figure_of
from simulator.metrics.figures import present
from simulator.report.words import ABSENT, percent, ratio, shown, signed
from simulator.scenario import LIMITS, Claim, Expectation, Kind
from simulator.units import FieldError, did_you_mean, named_in, nearest, require

Word = Literal["holds", "guarded", "by construction", "fitted", "shown", "missed", "BROKEN"]
"""A verdict in a word."""

Summaries = Mapping[str, Mapping[str, Any]]
"""Label of a row -> its figures by column."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An expectation, the value that came out, and whether it holds.

    Attributes
    ----------
    row, column, must, found
        The row and the column that it is about; the condition and the value, for people.
    why
        The sentence or printed figure behind it.
    asks
        The expectation, in words that do not change with the outcome.
    printed, difference
        The figure as its source prints it, and the difference of ours from it; empty if none is printed.
    error
        The same difference as a share of the printed figure; None if none is printed, or there is no value.
    tolerance
        The accepted difference from a printed figure, for people.
    kind, figure, range, agrees_if, missed, headline
        See `Expectation`; the range for people.
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
    range: str = ""
    agrees_if: str = ""
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
        """``holds``, ``guarded`` if nothing is printed, or its kind; ``missed``, or ``BROKEN``, if it does not hold."""
        if not self.holds:
            return "missed" if self.missed else "BROKEN"
        predicted: Word = "holds" if self.printed else "guarded"
        return predicted if self.kind == "predicted" else self.kind


def verdicts(expected: Sequence[Expectation], rows: Summaries, source: str = "") -> list[Verdict]:
    """Check all expectations.

    Parameters
    ----------
    expected
        The expectations of the scenario.
    rows
        The rows of the table; expectations about rows that were not run are left out.
    source
        The source of printed figures without a source of their own.
    """
    return [_verdict(each, rows, source) for each in expected if set(each.rows.values()) <= set(rows)]


def check_columns(expected: Expectation, columns: tuple[str, ...]) -> None:
    """Refuse an expectation of a column that no row has, or that compares a text with a number.

    Parameters
    ----------
    expected, columns
        The expectation, and the columns of the summary.

    Raises
    ------
    FieldError
        If it can never hold, or means nothing.
    """
    for column in expected.columns:
        named_in(column, columns, "an expectation names a column of the summary", "column")
        if figure_of(column).unit == "text":
            other = next((key for key in ("over", *LIMITS[:-1]) if getattr(expected, key) is not None), "")
            require(not other, f"{column} is a text, which only equals compares", other, other, do="write equals")
            words, stated = _WORDS.get(column, ()), expected.equals
            if not (stated is None or stated in words or not (words or isinstance(stated, float))):
                must, do = f"{column} is a word that rows have", nearest(str(stated), words)
                raise FieldError(must, repr(stated), do, ("equals",))
        else:
            is_number = all(map(math.isfinite, map(_number, expected.ends("equals"))))
            must, do = f"{column} is a number", "write a finite number"
            require(is_number, must, repr(expected.equals), "equals", do=do)


_WORDS = {"status": (*STATUSES, "overloaded")}  # column of text -> all its values, if known


def untested(claim: Claim) -> list[Verdict]:
    """Return verdicts on the printed figures of a claim that no row can test.

    Parameters
    ----------
    claim
        The claim of the scenario.
    """
    made = []
    for figure in claim.untested:
        more: dict[str, Any] = {"printed": figure.printed, "source": figure.source or claim.source}
        more |= {"difference": ABSENT, "tolerance": ABSENT, "figure": figure.figure, "missed": figure.missed}
        made.append(Verdict("no row", figure.why, "run", ABSENT, holds=False, why=figure.why, asks=figure.why, **more))
    return made


def _verdict(expected: Expectation, rows: Summaries, source: str) -> Verdict:
    row, value = rows[expected.row], _value(expected, rows)
    limits = _limits(expected, value)
    text = f"{row.get(f'{expected.column}_is', '')} {_as_text(expected, value)}".strip()
    if expected.faster_than is not None:
        step_ns, other_ns = row.get("step_ns"), rows[expected.faster_than].get("step_ns")
        is_faster = _number(step_ns) < _number(other_ns)
        limits.append((f"less than {expected.faster_than}'s {_shown('step_ns', other_ns)}", is_faster))
        text = _shown("step_ns", step_ns)
    condition, holds = " and ".join(limit for limit, _ in limits), all(is_kept for _, is_kept in limits)
    if not holds and not present(value) and row["status"] != "ok":
        text = f"none, as the row is {row['status']}"
    elif not holds and text in condition and isinstance(value, int | float) and expected.faster_than is None:
        exact = f"{value:,}{f' {expected.unit}' if expected.unit and expected.over is None else ''}"
        text += f" ({exact} to be exact)" if text != f"{value:,}" else ""
    condition = condition or "anything: the printed figure is only shown"
    more: dict[str, Any] = {"kind": expected.kind, "missed": expected.missed, "headline": expected.headline}
    more |= {"figure": expected.figure or "", "source": expected.source or source, "agrees_if": expected.agrees_if}
    more["range"] = " to ".join(_as_text(expected, end) for end in expected.ends("range"))
    if expected.printed is not None:
        error, tolerance = _error(expected, value), ABSENT if expected.kind == "shown" else condition
        if expected.is_close_to_printed:
            tolerance = "within" if isinstance(expected.printed, tuple) else percent(expected.within)
        more |= {"printed": _printed(expected), "difference": signed(error), "error": error, "tolerance": tolerance}
    return Verdict(expected.row, expected.column, condition, text, holds, expected.why, asks(expected), **more)


def _error(expected: Expectation, value: object) -> float | None:
    """Return the relative error of a value to the printed figure; None if either is no number."""
    ends = [_number(end) for end in expected.ends("printed")]
    nearest = min(max(_number(value), ends[0]), ends[-1]) if ends else math.nan
    share = _number(value) / nearest - 1 if nearest and math.isfinite(nearest) else None
    return share if present(share) else None


def _value(expected: Expectation, rows: Summaries) -> object:
    """Return the value that an expectation is about; None if a row has no such value."""
    value = _summed(expected, rows[expected.row])
    if expected.over is None:
        return value
    divisor = _summed(expected, rows[expected.rows["over"]]) if "over" in expected.rows else expected.divisor
    return _number(value) / _number(divisor) if present(value) and divisor else None


def _summed(expected: Expectation, row: Mapping[str, Any]) -> object:
    values = [row.get(column) for column in expected.columns]
    return values[0] if len(values) == 1 else None if None in values else sum(map(_number, values))


def asks(expected: Expectation) -> str:
    """Write an expectation in words that do not depend on the outcome; two results are compared by these words."""
    faster = [] if expected.faster_than is None else [f"less than {expected.faster_than}'s"]
    limits = " and ".join([*(text for text, _ in _limits(expected)), *faster])
    over = "" if expected.over is None else f" over {expected.over}"
    return f"{expected.row}: {expected.column}{over} is {limits or 'shown'}"


def _limits(expected: Expectation, value: object = None) -> list[tuple[str, bool]]:
    """Return each limit on the value, in words, and whether the value keeps it."""
    limits, amount = list[tuple[str, bool]](), _number(value)
    ends = [_number(end) for end in expected.ends("printed")] if expected.is_close_to_printed else []
    if expected.equals is not None:
        wanted = expected.ends("equals")[0]
        limits.append((_as_text(expected, wanted), value == wanted))
    if len(ends) == 2:
        limits.append((_printed(expected), ends[0] <= amount <= ends[1]))
    if expected.about is not None or len(ends) == 1:
        target = ends[0] if ends else _number(expected.ends("about")[0])
        near = f"about {_as_text(expected, target)} (within {percent(expected.within)})"
        limits.append((near, abs(amount - target) <= expected.within * abs(target)))
    if len(ends) == 1 and "%" in str(expected.printed) and ends[0] != 1:  # 5 % around it may be a rise for a fall
        limits.append(("a fall" if ends[0] < 1 else "a rise", (amount - 1) * (ends[0] - 1) > 0))
    mosts, leasts = map(_number, expected.ends("at_most")), map(_number, expected.ends("at_least"))
    limits += [(f"at most {_as_text(expected, most)}", amount <= most) for most in mosts]
    return limits + [(f"at least {_as_text(expected, least)}", amount >= least) for least in leasts]


def _printed(expected: Expectation) -> str:
    """Write a printed figure as its source prints it."""
    printed = expected.printed if isinstance(expected.printed, tuple) else (expected.printed,)
    ends = [end if isinstance(end, str) else f"{end:g}" for end in printed]
    return f"at least {ends[0]}" if ends[1:] == ["inf"] else " to ".join(ends)


def _as_text(expected: Expectation, value: object) -> str:
    """Write a value for people; a ratio in the form of its printed figure, ``2.7x`` or ``-26 %``."""
    if expected.over is None or not present(value) or isinstance(value, str):
        return _shown(expected.columns[0], value)
    first = expected.printed[0] if isinstance(expected.printed, tuple) else expected.printed
    return f"{100 * (_number(value) - 1):+.1f} %" if isinstance(first, str) and "%" in first else ratio(value)


def _shown(column: str, value: object) -> str:
    return shown(column, value) if present(value) else "nothing"


def _number(value: object) -> float:
    """Return the value if it is a number, else NaN, which fails every comparison."""
    return value if isinstance(value, int | float) else math.nan


_CONDITION = re.compile(r"(?P<figure>.+?)\s*(?P<sign><=|>=)\s*(?P<limit>.+?)\s*")
_SHARE = re.compile(r"([0-9]+\.?[0-9]*)\s*%")
_LISTED = 20
"""Most names that a message lists."""
ITSELF, OTHER, STEP = "itself", "other", "step"
"""Rows of a condition: the row itself, the row that ratios are relative to, and the step of the row itself."""


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
        If the text is not a condition.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        do = "write for example 'stall <= 0.1 %' or 'step <= 1.01x'"
        raise FieldError("a condition is a figure, <= or >=, and an amount", repr(text), do)
    on = metrics.columns(hardware)
    parts = [named(part, tuple(on), "a condition is on a figure of the table") for part in match["figure"].split(" + ")]
    units, rule = {on[part].unit for part in parts}, "a condition is on a number, or on a sum of numbers of one unit"
    do = "name a figure that is one, such as step or stall; a row that does not run meets no condition"
    require("text" not in units and len(units) == 1, rule, f"{match['figure']!r}: {' and '.join(sorted(units))}", do=do)
    limit: str | float = match["limit"]
    stated = str(limit)
    share, is_time = _SHARE.fullmatch(stated), units == {"ns"}
    over = OTHER if stated[-1] == "x" or stated[0] in "+-" else STEP if share and is_time else None
    require(
        stated != "inf", "a condition has a limit", repr(text), do="write a finite amount, or leave the condition out"
    )
    if share:
        limit = float(share[1]) / 100
    elif over is None and not units & {"ns", "B"}:
        with suppress(ValueError):
            limit = float(stated)
        is_number = isinstance(limit, float) and math.isfinite(limit)
        require(
            is_number,
            f"the amount of {match['figure']} is a finite number",
            repr(stated),
            do="write one, without a unit",
        )
    asked = {"at_most" if match["sign"] == "<=" else "at_least": limit, "over": over}
    try:
        expected = Expectation(row=ITSELF, column=" + ".join(parts), why=text, **asked)
    except ValidationError as error:
        raise next(iter(faults(error, asked))) from None
    check_columns(expected, tuple(parts))
    return expected


def named(text: str, columns: Sequence[str], must: str, otherwise: str = "") -> str:
    """Find a column by its name or its heading, with dots or spaces (``peak.hbm``), or what begins one alone (``gap``).

    Parameters
    ----------
    text, columns
        The text, and the columns.
    must, otherwise
        The rule that it breaks if there is none, and what else to do then.

    Raises
    ------
    FieldError
        If there is no such column.
    """
    heads = {figure_of(column).head.replace(" ", "."): column for column in reversed(columns)}
    by_name, part = heads | dict(zip(columns, columns, strict=True)), text.strip().replace(" ", ".")
    begun = [column for head, column in heads.items() if head.startswith(f"{part}.")]
    part = begun[0] if part not in by_name and len(begun) == 1 else part
    listed = f"use one of {', '.join(sorted(heads))}" if len(heads) <= _LISTED else "take a heading, such as stall"
    require(part in by_name, must, repr(text.strip()), do=did_you_mean(part, by_name, listed) + otherwise)
    return by_name[part]


def unmet(
    asked: Sequence[Expectation], row: Mapping[str, Any], other: Mapping[str, Any] | None
) -> tuple[str, str] | None:
    """Return the figure of the first condition that a row does not meet, and its value.

    Parameters
    ----------
    asked
        The conditions.
    row, other
        The figures of the row, and of the row that ratios are relative to.
    """
    for expected in asked:
        first_column, *others = expected.columns
        step = {first_column: row.get("step_ns")} | dict.fromkeys(others, 0)  # a sum is over the step once
        value = _value(expected, {ITSELF: row, OTHER: other or {}, STEP: step})
        if not all(holds for _, holds in _limits(expected, value)):
            limit, first = (*expected.ends("at_most"), *expected.ends("at_least"))[0], next(_written(expected, value))
            pairs = zip(_written(expected, value), _written(expected, limit), strict=True)
            text = next((text for text, limit_text in pairs if text != limit_text), first)
            return " + ".join(figure_of(column).head for column in expected.columns), text
    return None


def _written(expected: Expectation, value: object) -> Iterator[str]:
    """Write a value of a condition with more and more digits, until the caller can tell it from the limit."""
    if expected.over:
        size, unit, least = (1, "x", 5) if expected.over == OTHER else (100, " %", 3)
        yield from (f"{size * _number(value):.{digits}g}{unit}" for digits in range(least, 17))
    else:
        yield _as_text(expected, value)
        if (unit := figure_of(expected.columns[0]).unit) in ("B", "ns"):
            yield f"{value:,} {unit}"
