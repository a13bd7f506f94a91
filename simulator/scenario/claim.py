"""What a scenario expects of its rows, and the published sentence that it tests, with what its source leaves open."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from simulator.document import Count, Key, Line, Part, flaw
from simulator.units import FieldError, in_field, parse, unit_of

End = str | Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A quantity, or a number."""
_FACTOR = re.compile(r"[0-9]+(\.[0-9]+)?x")
WORKLOAD = "workload."
"""How paths to fields of the workload begin."""
_PARTS = 64
"""Into so many parts a range without multiples is cut."""
MOST_VALUES = 100_000
"""Most multiples in a range."""


class Unstated(Part):
    """A parameter that the source of a claim does not state.

    Attributes
    ----------
    parameter
        What it is called.
    fields
        Where it stands: field paths of the machine (``links.h2d.bandwidth``), or of the workload
        (``workload.sequence``). All have one value.
    low
        The least value of the range in which it may lie: a quantity, or a number without a unit; or a factor
        (``0.5x``) by which figures of the machine are multiplied, which reaches also what rows set for
        themselves. What the scenario takes lies in the range.
    high
        The largest value of that range.
    multiple_of
        Of which whole number the values are multiples; for fields that are whole numbers.
    why
        Where the range comes from.
    """

    parameter: Annotated[Line, Field(min_length=1)]
    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    low: End = Field(alias="from")
    high: End = Field(alias="to")
    multiple_of: Count | None = None
    why: Annotated[str, Field(min_length=1)]

    @cached_property
    def unit(self) -> str | None:
        """Unit of its values, of factors ``x``; None if they have none."""
        if not isinstance(self.low, str):
            return None
        return "x" if self.low.endswith("x") else unit_of(self.low)

    def number(self, value: object) -> float:
        """Read a value of one of its fields, as a number of its unit.

        Parameters
        ----------
        value
            As a document states it.

        Raises
        ------
        FieldError
            If it has another unit.
        """
        if self.unit not in (None, "x"):
            return parse(value, str(self.unit))
        if self.is_factor and isinstance(value, str) and _FACTOR.fullmatch(value):
            return float(value[:-1])
        if self.unit is None and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        must = "both ends of a range, and what is varied, are numbers, quantities of one unit, or factors such as 0.5x"
        raise FieldError(must, repr(value), "write them alike")

    @property
    def is_factor(self) -> bool:
        """Whether figures are multiplied, and not replaced."""
        return self.unit == "x"

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The values that may be tried, ascending: multiples, or both ends and what lies between in equal parts."""
        low, high = self.number(self.low), self.number(self.high)
        if self.multiple_of:
            first, last = math.ceil(low / self.multiple_of), math.floor(high / self.multiple_of)
            return tuple(self.multiple_of * number for number in range(first, min(last, first + MOST_VALUES) + 1))
        points = (low + part * (high - low) / _PARTS for part in range(_PARTS + 1))
        whole = self.unit not in (None, "x")
        return tuple(dict.fromkeys(round(one) if whole else float(f"{one:.6g}") for one in points))

    def _check(self) -> None:
        if self.is_factor and any(field.startswith(WORKLOAD) for field in self.fields):
            must, found = "figures of the machine are multiplied", "a field of the workload"
            raise FieldError(must, found, "state values", ("from",))
        low, high = self.number(self.low), self.number(self.high)
        if not low < high < math.inf or not 2 <= len(self.values) <= MOST_VALUES:
            must = f"a range goes from a value to a higher one, with 2 to {MOST_VALUES:,} values in it"
            raise FieldError(must, f"{self.low} to {self.high}", "widen or narrow it", ("to",))


def label_of(label: str) -> str:
    """Take a name of a row, or refuse it."""
    if (found := flaw(label, 80)) or "/" in label or "\\" in label:
        must = "a label is at most 80 characters on one line, without slashes, and begins with none of = + - @"
        raise FieldError(must, found or repr(label), "choose a shorter, plainer label")
    return label


Label = Annotated[str, AfterValidator(label_of)]
"""The name of a row."""
Bound = str | Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A quantity, a bare number (of a column without a unit) or a text."""

Printed = Bound | Annotated[tuple[Bound, Bound], Field(description="a range")]
"""A printed figure, or the ends of a printed range."""

Kind = Literal["predicted", "fitted", "shown"]
"""Whether nothing was fitted to a printed figure, something was, or it is only put beside ours."""

Limit = Literal["about", "at_most", "at_least", "equals"]
LIMITS: tuple[Limit, ...] = ("about", "at_most", "at_least", "equals")
"""Fields that say what must hold of a value by itself."""
_RATIO = re.compile(r"(?P<times>\d+(\.\d+)?) ?x|(?P<change>[+-]\d+(\.\d+)?) ?%")


class Expectation(Part):
    """A figure that must hold; `hosim run` ends with exit code 1 if it does not.

    Attributes
    ----------
    row
        Label of the policy row.
    column
        Column of the summary, such as ``step_ns`` or ``peak_hbm_bytes``; or a sum of several, joined by `` + ``.
    over
        What is meant is the column's value divided by that of this row, or by this printed figure (``5.2 s``). It is
        then a ratio, and written as ``2.7x``, as ``-26 %`` (a change, so 0.74) or as a number.
    about
        The expected value, as a quantity (``5.36 s``) or a bare share or text.
    within
        The accepted relative error of what is `about` or `printed`.
    at_most
        The largest value that is accepted, as a quantity or a bare share.
    at_least
        The least value that is accepted.
    equals
        The exact text or number (``status: ok``).
    faster_than
        Label of a row that this row must beat in ``step_ns``.
    why
        The sentence or printed figure behind it.
    printed
        The figure as its source prints it, which reports show beside ours. If nothing else is said of what must
        hold, ours must be within `within` of it, unless it is only shown. Of a range both ends are stated, ``[8
        s, inf]``: ours must lie in it. What is only shown may be any text.
    source
        Where it is printed, if that is not the claim's source.
    figure
        Name of the printed figure, the same wherever it is used, so that no scenario is fitted to what it predicts.
    kind
        ``predicted``: nothing was fitted to it. ``fitted``: something was, and this holds the fit. ``shown``: the
        source's setting or its figure is too vague to be held against; what else is said of it must still hold.
    missed
        Why hosim is known not to reproduce the printed figure: it stays in the table, and fails nothing.
    """

    row: Label
    column: str = "step_ns"
    over: Bound | None = None
    about: Bound | None = None
    within: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.05
    at_most: Bound | None = None
    at_least: Bound | None = None
    equals: Bound | None = None
    faster_than: Label | None = None
    why: str = ""
    printed: Printed | None = None
    source: str = ""
    figure: Key | None = None
    kind: Kind = "predicted"
    missed: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are added up; mostly one."""
        return tuple(self.column.split(" + "))

    @property
    def rows(self) -> dict[str, str]:
        """The rows that it is about, by the field that names them."""
        named = {"row": self.row, "faster_than": self.faster_than}
        named |= {"over": self.over} if isinstance(self.over, str) and unit_of(self.over) is None else {}
        return {key: row for key, row in named.items() if row is not None}

    @property
    def is_close_to_printed(self) -> bool:
        """Whether what must hold is that ours is close to what is printed."""
        return self.kind != "shown" and all(getattr(self, key) is None for key in (*LIMITS, "faster_than"))

    @property
    def unit(self) -> str | None:
        """Unit of the column, by the end of its name; None for a share, a count or a text."""
        ends = {"_bytes_per_s": "B/s", "_bytes": "B", "_ns": "ns"}
        return next((unit for end, unit in ends.items() if self.column.endswith(end)), None)

    @property
    def divisor(self) -> int | float | None:
        """The printed figure that the value is divided by, as a number of the column's unit."""
        if self.over is None or "over" in self.rows:
            return None
        return parse(self.over, self.unit) if self.unit else self.over  # type: ignore[return-value]

    def bound(self, key: Limit) -> int | float | str | None:
        """What `key` says, as a number of the value's unit; None if it says nothing."""
        stated: str | float | None = getattr(self, key)
        return None if stated is None else self._read(stated)

    def _read(self, stated: str | float) -> int | float | str:
        if self.over is not None:
            return _ratio(stated)
        return parse(stated, self.unit) if self.unit else math.inf if stated == "inf" else stated

    @property
    def printed_ends(self) -> tuple[int | float | str, ...]:
        """What is printed, as a number of the value's unit; of a range both ends; empty if it is no number."""
        stated = self.printed if isinstance(self.printed, tuple) else (self.printed,)
        try:
            ends = tuple(self._read(end) for end in stated if end is not None)
        except FieldError:
            if self.kind != "shown":
                raise
            return ()
        return () if self.kind == "shown" and any(isinstance(end, str) for end in ends) else ends

    def _check(self) -> None:
        limits = (*LIMITS, "faster_than", "printed")
        must, do = f"an expectation says {', '.join(limits[:-1])} or printed", "add one"
        if all(getattr(self, key) is None for key in limits):
            raise FieldError(must, "none of them", do)
        for key in (*LIMITS, "printed"):
            with in_field(key):
                ends = self.printed_ends if key == "printed" else (self.bound(key),)  # type: ignore[arg-type]
            numbers = [end for end in ends if isinstance(end, int | float)]
            is_text = key == "equals" and self.unit is None and self.over is None
            if (len(numbers) < len(ends) and ends != (None,) and not is_text) or numbers != sorted(set(numbers)):
                must = f"{key} of the column {self.column!r} is a number, or a range from less to more"
                raise FieldError(
                    must, repr(getattr(self, key)), "write a finite number, or a text under equals", (key,)
                )
        with in_field("over"):
            divisor = self.divisor
        if divisor is not None and not divisor > 0:
            must, do = "a value is divided by that of a row, or by a printed figure above 0", "write the printed figure"
            raise FieldError(must, repr(self.over), do, ("over",))
        if (self.missed or self.kind != "predicted") and self.printed is None:
            must = "what is fitted, shown or missed is a printed figure"
            raise FieldError(must, "none", "add printed", ("printed",))
        if self.missed and self.kind != "predicted":
            must = "what is missed was to be predicted"
            raise FieldError(must, f"kind: {self.kind}", "drop kind, or missed", ("missed",))


class Untested(Part):
    """A printed figure for which no row can be run; it stays among the claims, missed.

    Attributes
    ----------
    figure
        Name of the printed figure.
    why
        What it says, in words.
    printed
        The figure as its source prints it.
    source
        Where it is printed, if that is not the claim's source.
    missed
        Why nothing can be run.
    """

    figure: Key
    why: str = Field(min_length=1)
    printed: str = Field(min_length=1)
    source: str = ""
    missed: str = Field(min_length=1)


class Claim(Part):
    """A published sentence that the scenario puts to the test.

    Attributes
    ----------
    sentence
        What is claimed.
    source
        Where it is printed.
    fitted
        Which printed figures the scenario was fitted to, in words; `figure` and `kind` of its expectations, and
        its table `fitted`, say the same for `hosim validate`.
    predicted
        Which printed figures it predicts, in words.
    untested
        Printed figures for which no row can be run.
    unstated
        Parameters that the source does not state, for `hosim sensitivity`.
    """

    sentence: str
    source: str
    fitted: str = ""
    predicted: str = ""
    untested: tuple[Untested, ...] = ()
    unstated: tuple[Unstated, ...] = ()


def _ratio(stated: str | float) -> float:
    """Read ``2.7x``, ``-26 %`` or a number."""
    if not isinstance(stated, str):
        return stated
    if stated.strip() == "inf":
        return math.inf
    found = _RATIO.fullmatch(stated.strip())
    if found is None:
        must = "a ratio is written as '2.7x', as a change such as '-26 %', or as a number"
        raise FieldError(must, repr(stated), "write it so")
    return float(found["times"]) if found["times"] else 1 + float(found["change"]) / 100
