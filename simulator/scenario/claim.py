"""Expectations of a scenario on its rows, the published sentence that it tests, and what its source leaves open."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool

from simulator.document import Count, Key, Line, Part, Reason, flaw
from simulator.units import FieldError, in_field, in_yaml, parse, ratio, require, unit_of

Bound = str | Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A quantity, a bare number (where there is no unit) or a text."""
_FACTOR = re.compile(r"[0-9]+(\.[0-9]+)?x")
WITHIN = 0.05
"""The default relative error that an expectation accepts: most papers print two digits."""
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
            require(name, "what the scenario takes is one of the values", in_yaml(value), "values", do="list it")
            return name
        if self.unit not in (None, "x"):
            return parse(value, str(self.unit))
        if self.unit is None and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        is_factor = self.is_factor and isinstance(value, str) and _FACTOR.fullmatch(value)
        must = "both ends of a range, and what is varied, are numbers, quantities of one unit, or factors such as 0.5x"
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
        must = "what is open has a range (from, to), or values that are listed"
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


def label_of(label: str) -> str:
    """Return the label of a row, or refuse it."""
    found = flaw(label, 80) or ("" if {"/", "\\"}.isdisjoint(label) else repr(label))
    must = "a label is at most 80 characters on one line, without slashes, and begins with none of = + - @"
    require(not found, must, found, do="choose a shorter, plainer label")
    return label


Label = Annotated[str, AfterValidator(label_of)]
"""The name of a row."""
Printed = Bound | Annotated[tuple[Bound, Bound], Field(description="a range")]
"""A printed figure, or the ends of a printed range."""

Kind = Literal["predicted", "fitted", "shown", "by construction"]
"""Relation of ours to a printed figure: predicted without a fit to it; fitted; only shown beside it; cannot differ."""

Limit = Literal["about", "at_most", "at_least", "equals"]
LIMITS: tuple[Limit, ...] = ("about", "at_most", "at_least", "equals")
"""Fields of an expectation that limit a value by itself."""


class Expectation(Part):
    """A condition on a figure of a row; `hosim run` ends with exit code 1 if it does not hold.

    Attributes
    ----------
    row
        Label of the policy row.
    column
        Column of the summary, such as ``step_ns`` or ``peak_hbm_bytes``; or a sum of several, joined by `` + ``.
    over
        Divide the column's value by that of this row, or by this printed figure (``5.2 s``). The value is then a ratio,
        written as ``2.7x``, as ``-26 %`` (a change, so 0.74) or as a number.
    about
        The expected value: a quantity (``5.36 s``), a bare share or a text.
    within
        The accepted relative error of `about` or `printed`. If the figure is printed as a change (``-26 %``), ours must
        also have the same sign: 5 % of a ratio near 1 would accept a rise for a fall.
    at_most
        The largest value that is accepted: a quantity or a bare share.
    at_least
        The least value that is accepted.
    equals
        The exact text or number (``status: ok``).
    faster_than
        Label of a row that this row must beat in ``step_ns``.
    why
        The sentence or printed figure behind it.
    printed
        The figure as its source prints it, which reports show beside ours. If no other condition is given, ours must be
        within `within` of it, unless it is only ``shown``. A printed range is stated by both ends, ``[8 s, inf]``: ours
        must lie in it. A figure that is only ``shown`` may be any text.
    source
        The source that prints it, if that is not the claim's.
    figure
        Name of the printed figure, the same wherever it is used, so that no scenario predicts what it was fitted to.
    kind
        ``predicted``: nothing was fitted to it. ``fitted``: something was, and this checks the fit. ``shown``: the
        source's setting or its figure is too vague to compare with; other conditions given here must still hold.
        ``by construction``: nothing else can come out, whatever the machine does.
    missed
        Why hosim is known not to reproduce the printed figure: it stays in the table, and fails nothing.
    headline
        Whether `hosim validate --headline` checks it, as one of the main claims of the source.
    """

    row: Label
    column: str = "step_ns"
    over: Bound | None = None
    about: Bound | None = None
    within: Annotated[float, Field(gt=0, lt=1, strict=True)] = WITHIN
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
    headline: StrictBool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are added up; usually one."""
        return tuple(self.column.split(" + "))

    @property
    def rows(self) -> dict[str, str]:
        """Labels of the rows that it names, by field."""
        named = {"row": self.row, "faster_than": self.faster_than}
        named |= {"over": self.over} if isinstance(self.over, str) and unit_of(self.over) is None else {}
        return {key: row for key, row in named.items() if row is not None}

    @property
    def is_close_to_printed(self) -> bool:
        """Whether ours must be close to the printed figure."""
        return self.kind != "shown" and all(getattr(self, key) is None for key in (*LIMITS, "faster_than"))

    @property
    def unit(self) -> str | None:
        """Unit of the column, from the end of its name; None for a share, a count or a text."""
        ends = {"_bytes_per_s": "B/s", "_bytes": "B", "_ns": "ns"}
        return next((unit for end, unit in ends.items() if self.column.endswith(end)), None)

    @property
    def divisor(self) -> int | float | None:
        """The printed figure that the value is divided by, in the column's unit; None if there is none."""
        if self.over is None or "over" in self.rows:
            return None
        return parse(self.over, self.unit) if self.unit else self.over  # type: ignore[return-value]

    def ends(self, key: Limit | Literal["printed"]) -> tuple[int | float | str, ...]:
        """Read a field in the value's unit: one number, or both ends of a range; empty if it is not stated.

        A printed figure that is only shown may be a text, for which this is empty, too.
        """
        stated, may_be_text = getattr(self, key), key == "printed" and self.kind == "shown"
        try:
            ends = tuple(map(self._read, stated if isinstance(stated, tuple) else () if stated is None else (stated,)))
        except FieldError:
            if not may_be_text:
                raise
            return ()
        return () if may_be_text and any(isinstance(end, str) for end in ends) else ends

    def _read(self, stated: str | float) -> int | float | str:
        if self.over is not None:
            return ratio(stated)
        return parse(stated, self.unit) if self.unit else math.inf if stated == "inf" else stated

    def _check(self) -> None:
        is_said = any(getattr(self, key) is not None for key in (*LIMITS, "faster_than", "printed"))
        must, do = f"an expectation says {', '.join(LIMITS)}, faster_than or printed", "add one"
        require(is_said, must, "none of them", do=do)
        keys: tuple[Limit | Literal["printed"], ...] = (*LIMITS, "printed")
        for key in keys:
            with in_field(key):
                ends = self.ends(key)
            numbers = [end for end in ends if isinstance(end, int | float) and (end < math.inf or key == "printed")]
            is_text = key == "equals" and self.unit is None and self.over is None
            must = f"{key} of the column {self.column!r} is a number, or a range from less to more"
            fits = (len(numbers) == len(ends) or is_text) and numbers == sorted(set(numbers))
            do = "write a finite number, or a text under equals"
            require(fits, must, repr(getattr(self, key)), key, do=do)
        others = [key for key in (*LIMITS, "faster_than") if key != "about" and getattr(self, key) is not None]
        is_held = self.about is not None or not others or self.kind == "shown"  # sensitivities hold what is shown
        must, do = "within is of about, or of a printed figure that is the only condition", "drop within, or add about"
        require(is_held or "within" not in self.model_fields_set, must, f"within beside {others}", "within", do=do)
        with in_field("over"):
            divisor = self.divisor
        must, do = "a value is divided by that of a row, or by a printed figure above 0", "write the printed figure"
        require(divisor is None or divisor > 0, must, repr(self.over), "over", do=do)
        is_printed = self.printed is not None or (self.kind in ("predicted", "by construction") and not self.missed)
        require(is_printed, "what is fitted, shown or missed is a printed figure", "none", "printed", do="add printed")
        must, found = "what is missed was to be predicted", f"kind: {self.kind}"
        require(self.kind == "predicted" or not self.missed, must, found, "missed", do="drop kind, or missed")


class Untested(Part):
    """A printed figure for which no row can be run; claims count it as missed.

    Attributes
    ----------
    figure
        Name of the printed figure.
    why
        The figure in words.
    printed
        The figure as its source prints it.
    source
        The source that prints it, if that is not the claim's.
    missed
        Why nothing can be run.
    """

    figure: Key
    why: str = Field(min_length=1)
    printed: str = Field(min_length=1)
    source: str = ""
    missed: str = Field(min_length=1)


class Claim(Part):
    """A published sentence that the scenario tests.

    The `kind` of its expectations says which printed figures were used for a fit, and which are predicted.

    Attributes
    ----------
    sentence
        The claim, as printed or abridged.
    source
        The source that prints it.
    chosen
        Choices that the source does not print, made because its figures do not come out without them: name -> why.
    untested
        Printed figures for which no row can be run.
    unstated
        Parameters that the source does not state, for `hosim sensitivity`.
    choices
        Discrete choices that the source does not state, for `hosim sensitivity --choices`.
    selects
        Names of printed figures: settings that reproduce all of them are selected, and shown with their other figures.
    screens
        One of the figures in `selects` that is a peak at inference where nothing moves, and so is known before a run:
        settings that cannot reproduce it are not run.
    predicts
        Other scenarios, by name or path, that are run with the selected settings.
    counted
        Sentences that `hosim sensitivity --choices` printed when it last ran; `hosim validate` shows them.
    """

    sentence: str
    source: str
    chosen: dict[Line, Reason] = {}
    untested: tuple[Untested, ...] = ()
    unstated: tuple[Unstated, ...] = ()
    choices: tuple[Choice, ...] = ()
    selects: tuple[Key, ...] = ()
    screens: Key | None = None
    predicts: tuple[str, ...] = ()
    counted: tuple[Line, ...] = ()

    def _check(self) -> None:
        names = [choice.choice for choice in self.choices]
        twice = next((name for name in names if names.count(name) > 1), "")
        require(not twice, "each choice has a name of its own", f"{twice!r} twice", "choices", do="rename one")
