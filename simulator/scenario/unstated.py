"""Parameters that the source of a claim does not state, each with a range in which it may lie."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Annotated

from pydantic import Field

from simulator.document import Count, Line, Part
from simulator.units import FieldError, exact, in_field, parse

End = str | Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A quantity, or a number."""
_UNITS = ("B/s", "FLOP/s", "ns", "B")
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
        for unit in _UNITS:
            try:
                parse(self.low, unit)
            except FieldError:
                continue
            return unit
        raise FieldError(
            "an end of a range is a quantity, or a number", repr(self.low), "write such as '20 GB/s'", ("from",)
        )

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
            raise FieldError(
                "figures of the machine are multiplied", "a field of the workload", "state values", ("from",)
            )
        for key, end in (("from", self.low), ("to", self.high)):
            with in_field(key):
                number = self.number(end)
            if math.isinf(number):
                raise FieldError("an end of a range is finite", repr(end), "write a number", (key,))
        if len(self.values) < 2 or self.number(self.low) >= self.number(self.high):
            must = "a range goes from a value to a higher one, with two values in it at least"
            raise FieldError(must, f"{self.low} to {self.high}", "widen it", ("to",))
