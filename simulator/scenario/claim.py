"""What a scenario expects of its rows, and the published sentence that it tests, with what its source leaves open."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from simulator.document import Count, Key, Line, Part, flaw
from simulator.units import FieldError, exact, in_field, parse, unit_of

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
    low, high
        The range in which it may lie, ``from`` and ``to``: quantities, or numbers without a unit; or factors (``0.5x``)
        by which figures of the machine are multiplied, which reaches also what rows set for themselves. What the
        scenario takes lies in it.
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
        if _FACTOR.fullmatch(self.low):
            return "x"
        if (unit := unit_of(self.low)) is None:
            must, do = "an end of a range is a quantity, or a number", "write such as '20 GB/s'"
            raise FieldError(must, repr(self.low), do, ("from",))
        return unit

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
        if self.is_factor:
            return self._factor(value)
        if self.unit is not None:
            return parse(value, self.unit)
        if not isinstance(value, int | float) or isinstance(value, bool):
            must = "a value of a range without a unit is a number"
            raise FieldError(must, repr(value), "give the ends of the range the same unit")
        return value

    @property
    def is_factor(self) -> bool:
        """Whether figures are multiplied, and not replaced."""
        return self.unit == "x"

    def _factor(self, value: object) -> float:
        if isinstance(value, str) and _FACTOR.fullmatch(value):
            return float(value[:-1])
        raise FieldError("both ends of a range are factors", repr(value), "write such as '2x'")

    def written(self, number: float) -> str | float:
        """Write a number of its unit as a document states it."""
        if self.unit is not None and not self.is_factor:
            return exact(int(number), self.unit)
        return int(number) if self.multiple_of else number

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The values that may be tried, ascending."""
        low, high = self.number(self.low), self.number(self.high)
        if self.multiple_of:
            first, last = math.ceil(low / self.multiple_of), math.floor(high / self.multiple_of)
            if last - first >= MOST_VALUES:
                must, found = f"a range has at most {MOST_VALUES:,} multiples", f"{last - first + 1:,}"
                raise FieldError(must, found, "narrow it, or raise multiple_of", ("to",))
            return tuple(self.multiple_of * number for number in range(first, last + 1))
        points = (low + part * (high - low) / _PARTS for part in range(_PARTS + 1))
        whole = self.unit is not None and not self.is_factor
        return tuple(dict.fromkeys(round(one) if whole else float(f"{one:.6g}") for one in points))

    def _check(self) -> None:
        if self.is_factor and any(field.startswith(WORKLOAD) for field in self.fields):
            must, found = "figures of the machine are multiplied", "a field of the workload"
            raise FieldError(must, found, "state values", ("from",))
        for key, end in (("from", self.low), ("to", self.high)):
            with in_field(key):
                number = self.number(end)
            if math.isinf(number):
                raise FieldError("an end of a range is finite", repr(end), "write a number", (key,))
        if len(self.values) < 2 or self.number(self.low) >= self.number(self.high):
            must = "a range goes from a value to a higher one, with two values in it at least"
            raise FieldError(must, f"{self.low} to {self.high}", "widen it", ("to",))


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
_TIMES = re.compile(r"(\d+(?:\.\d+)?) ?x")
_CHANGE = re.compile(r"([+-]\d+(?:\.\d+)?) ?%")


class Expectation(Part):
    """A figure that must hold; `hosim run` ends with exit code 1 if it does not.

    Attributes
    ----------
    row
        Label of the policy row.
    column
        Column of the summary, such as ``step_ns`` or ``peak_hbm_bytes``; or a sum of several, joined by `` + ``.
    over, over_printed
        What is meant is the column's value divided by that of this row, or by this printed figure. It is then a ratio,
        and written as ``2.7x``, as ``-26 %`` (a change, so 0.74) or as a number.
    about, within
        The expected value, as a quantity (``5.36 s``) or a bare share or text, and the accepted relative error.
    at_most, at_least
        Bounds, as a quantity or a bare share.
    equals
        The exact text or number (``status: ok``).
    faster_than
        Label of a row that this row must beat in ``step_ns``.
    why
        The sentence or printed figure behind it.
    printed, source
        The figure as its source prints it, which reports show beside ours, and that source if it is not the claim's.
        If nothing else is said of what must hold, ours must be within `within` of it, unless it is only shown. Of a
        range both ends are stated, ``[8 s, inf]``: ours must lie in it. What is only shown may be any text.
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
    over: Label | None = None
    over_printed: Bound | None = None
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
    def is_ratio(self) -> bool:
        """Whether the value is divided by another one."""
        return self.over is not None or self.over_printed is not None

    @property
    def is_close_to_printed(self) -> bool:
        """Whether what must hold is that ours is close to what is printed."""
        said = any(getattr(self, key) is not None for key in (*LIMITS, "faster_than"))
        return not said and self.kind != "shown"

    @property
    def unit(self) -> str | None:
        """Unit of the value, by the end of the column's name; None for a ratio, a share, a count or a text."""
        return None if self.is_ratio else self._unit_of_column

    @property
    def _unit_of_column(self) -> str | None:
        ends = {"_bytes_per_s": "B/s", "_bytes": "B", "_ns": "ns"}
        return next((unit for end, unit in ends.items() if self.column.endswith(end)), None)

    @property
    def divisor(self) -> int | float | None:
        """The printed figure that the value is divided by, as a number of the column's unit."""
        unit, said = self._unit_of_column, self.over_printed
        return parse(said, unit) if unit and said is not None else said  # type: ignore[return-value]

    def bound(self, key: Limit) -> int | float | str | None:
        """What `key` says, as a number of the value's unit; None if it says nothing."""
        said: str | float | None = getattr(self, key)
        return None if said is None else self._read(said)

    def _read(self, said: str | float) -> int | float | str:
        if self.is_ratio:
            return _ratio(said)
        return parse(said, self.unit) if self.unit else math.inf if said == "inf" else said

    @property
    def printed_ends(self) -> tuple[int | float | str, ...]:
        """What is printed, as a number of the value's unit; of a range both ends; empty if it is no number."""
        if self.printed is None:
            return ()
        try:
            ends = tuple(map(self._read, self.printed if isinstance(self.printed, tuple) else (self.printed,)))
        except FieldError:
            if self.kind != "shown":
                raise
            return ()
        return () if self.kind == "shown" and any(isinstance(end, str) for end in ends) else ends

    def _check(self) -> None:
        keys = (*LIMITS, "faster_than", "printed")
        if all(getattr(self, key) is None for key in keys):
            must = f"an expectation says {', '.join(keys[:-1])} or printed"
            raise FieldError(must, "none of them", "add one")
        for key in (*LIMITS, "printed"):
            with in_field(key):
                ends = self.printed_ends if key == "printed" else (self.bound(key),)  # type: ignore[arg-type]
            texts = [end for end in ends if isinstance(end, str)]
            if any(map(_is_quantity, texts)):
                must = "a limit with a unit is of a column that ends in _ns, _bytes or _bytes_per_s"
                found = f"{texts[0]!r} of {self.column!r}"
                raise FieldError(must, found, "correct the column, or write a number without a unit", ("column",))
            if texts and (key != "equals" or any(map(_is_number, texts))):
                must = f"{key} of the column {self.column!r} is a number"
                do = "write a finite number, or a text under equals"
                raise FieldError(must, repr(getattr(self, key)), do, (key,))
            if len(ends) == 2 and not ends[0] < ends[1]:  # type: ignore[operator]
                must, found = "a range goes from less to more", f"{ends[0]} and {ends[1]}"
                raise FieldError(must, found, "write the lower end first", (key,))
        self._check_divisor()

    def _check_divisor(self) -> None:
        if self.over is not None and self.over_printed is not None:
            must = "a value is divided by that of a row, or by a printed figure"
            raise FieldError(must, "both", "drop over or over_printed", ("over_printed",))
        with in_field("over_printed"):
            divisor = self.divisor
        if divisor is not None and not (isinstance(divisor, int | float) and divisor > 0):
            must = "a value is divided by a number above 0"
            raise FieldError(must, repr(self.over_printed), "write the printed figure", ("over_printed",))
        said = "missed" if self.missed else self.kind
        if said != "predicted" and self.printed is None:
            must = "what is fitted, shown or missed is a printed figure"
            raise FieldError(must, f"{said} without one", "add printed", ("printed",))
        if self.missed and self.kind != "predicted":
            must = "what is missed was to be predicted"
            raise FieldError(must, f"kind: {self.kind}", "drop kind, or missed", ("missed",))


class Untested(Part):
    """A printed figure for which no row can be run; it stays among the claims, missed.

    Attributes
    ----------
    figure, why, printed, source
        As of an `Expectation`; what is printed, in words.
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
    sentence, source
        What is claimed, and where it is printed.
    fitted, predicted
        Which printed figures the scenario was fitted to, and which it predicts, in words; `figure` and `kind` of its
        expectations, and its table `fitted`, say the same for `hosim validate`.
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


def _is_quantity(said: str) -> bool:
    """Whether a text is a quantity of some unit."""
    return unit_of(said) is not None and said.strip() != "inf"


def _is_number(said: str) -> bool:
    """Whether a text says a number, also none that is finite (``nan``, ``.inf``)."""
    with suppress(ValueError):
        return bool(float(re.sub(r"\.(?=[a-z])", "", said.lower())) or True)
    return False


def _ratio(said: str | float) -> float | str:
    """Read ``2.7x``, ``-26 %`` or a number."""
    if not isinstance(said, str):
        return said
    if said.strip() == "inf":
        return math.inf
    times, change = _TIMES.fullmatch(said.strip()), _CHANGE.fullmatch(said.strip())
    if times is None and change is None:
        must = "a ratio is written as '2.7x', as a change such as '-26 %', or as a number"
        raise FieldError(must, repr(said), "write it so")
    return float(times[1]) if times else 1 + float(change[1]) / 100  # type: ignore[index]
