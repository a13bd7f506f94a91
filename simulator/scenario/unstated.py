"""What the source of a claim does not state: a range, listed values, or a discrete choice."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from simulator.document import Count, Line, Part, Reason
from simulator.units import in_yaml, parse, require, unit_of

Bound = str | Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A quantity, a bare number (where there is no unit) or a text."""
_FACTOR = re.compile(r"[0-9]+(\.[0-9]+)?x")
WORKLOAD = "workload."
"""Prefix of paths to fields of the workload."""
_PARTS = 64
"""Parts into which a range without multiples is cut: bisection takes at most 6 steps."""
MOST_VALUES = 100_000
"""Most multiples in a range; all are held in memory."""

Values = Annotated[tuple[Any, ...] | dict[Line, Any], Field(min_length=2, max_length=64)]
"""Values as a document states them: a list, or a mapping from a readable name to the value."""


class Open(Part):
    """Something that the source of a claim does not state.

    Attributes
    ----------
    fields
        Its field paths: of the machine (``tiers.hbm.capacity``), of the workload (``workload.batch``) or, for a choice,
        of the scenario (``scenario.policies.0.allocator``). All have the same value.
    values
        Possible values, as a document states them: a list, or a mapping from a readable name to the value.
    why
        Source of the values, or of the range.
    """

    fields: Annotated[tuple[str, ...], Field(min_length=1)]
    values: Values | None = None
    why: Reason

    @property
    def options(self) -> dict[str, Any]:
        """The values by name; empty for a range."""
        return self.values if isinstance(self.values, dict) else {in_yaml(x).strip("'"): x for x in self.values or ()}

    def _check(self) -> None:
        listed = [in_yaml(x) for x in (self.values.values() if isinstance(self.values, dict) else self.values or ())]
        twice = next((value for value in listed if listed.count(value) > 1), "")
        require(not twice, "a value is listed once, as it counts once", f"{twice} twice", "values", do="drop one")


class Choice(Open):
    """A discrete choice that the source of a claim does not state.

    Attributes
    ----------
    choice
        Its name.
    """

    choice: Annotated[Line, Field(min_length=1)]
    values: Values


class Unstated(Open):
    """A parameter that the source of a claim does not state: a range, or values.

    Attributes
    ----------
    parameter
        Its name.
    low
        The least value that it may have: a quantity, a number without a unit, or a factor (``0.5x``) by which figures
        of the machine are multiplied, those that rows set for themselves included. The value that the scenario uses
        lies in the range, or is one of `values`.
    high
        The largest value that it may have.
    multiple_of
        Only multiples of this are tried; for fields that are whole numbers.
    """

    parameter: Annotated[Line, Field(min_length=1)]
    low: Bound | None = Field(None, alias="from")
    high: Bound | None = Field(None, alias="to")
    multiple_of: Count | None = None

    @cached_property
    def unit(self) -> str | None:
        """Unit of its values; ``x`` for factors, None for numbers."""
        if not isinstance(self.low, str):
            return None
        return "x" if self.low.endswith("x") else unit_of(self.low)

    def read(self, value: object) -> Any:
        """Read an end of the range, or a value of a field: as a number of its unit, or the name of a listed value.

        Parameters
        ----------
        value
            As a document states it.

        Raises
        ------
        FieldError
            If it has another unit, or is not listed.
        """
        if self.values is not None:
            name = next((name for name, option in self.options.items() if option == value), "")
            require(name, "the scenario's value is one of the values", in_yaml(value), "values", do="list it")
            return name
        if self.unit not in (None, "x"):
            return parse(value, str(self.unit))
        if self.unit is None and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        is_factor = self.is_factor and isinstance(value, str) and _FACTOR.fullmatch(value)
        must = "both ends of a range, and the field varied, are numbers, quantities of one unit, or factors (0.5x)"
        require(is_factor, must, repr(value), do="write them alike")
        return float(str(value)[:-1])

    @property
    def written(self) -> str:
        """The values, or the range, for people."""
        return ", ".join(self.options) or f"{self.low} to {self.high}"

    @property
    def is_factor(self) -> bool:
        """Whether figures are multiplied rather than replaced."""
        return self.unit == "x"

    @cached_property
    def tried(self) -> tuple[Any, ...]:
        """Values to try: the names of listed values; for a range, ascending, its multiples or 65 even points."""
        if self.values is not None:
            return tuple(self.options)
        low, high = self.read(self.low), self.read(self.high)
        if self.multiple_of:
            first, last = math.ceil(low / self.multiple_of), math.floor(high / self.multiple_of)
            return tuple(self.multiple_of * index for index in range(first, min(last, first + MOST_VALUES) + 1))
        values = (low + part * (high - low) / _PARTS for part in range(_PARTS + 1))
        whole = self.unit not in (None, "x")
        return tuple(dict.fromkeys(round(value) if whole else float(f"{value:.6g}") for value in values))

    def _check(self) -> None:
        super()._check()
        ends = self.low, self.high, self.multiple_of
        must = "an open parameter has a range (from, to), or a list of values"
        if self.values is not None:
            require(ends == (None, None, None), must, "both", do="state one of the two")
            return
        require(None not in ends[:2], must, "no whole range", do="state one of the two")
        is_of_machine = not any(field.startswith(WORKLOAD) for field in self.fields)
        must = "figures of the machine are multiplied"
        require(is_of_machine or not self.is_factor, must, "a field of the workload", "from", do="state values")
        is_range = self.read(self.low) < self.read(self.high) < math.inf
        must = f"a range goes from a value to a higher one, with 2 to {MOST_VALUES:,} values in it"
        fits = is_range and 2 <= len(self.tried) <= MOST_VALUES
        require(fits, must, f"{self.low} to {self.high}", "to", do="widen or narrow it")
