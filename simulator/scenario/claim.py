"""Expectations of a scenario on its rows, and the published sentence that it tests."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from simulator.document import Key, Line, Part, Reason, flaw
from simulator.units import FieldError, in_field, parse, ratio, require, unit_of

Quantity = str | Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A quantity, a bare number (where there is no unit) or a text."""
WITHIN = 0.05
"""The default relative error that an expectation accepts: most papers print two digits."""


def label_of(label: str) -> str:
    """Return the label of a row, or refuse it."""
    found = flaw(label, 80) or ("" if {"/", "\\"}.isdisjoint(label) else repr(label))
    must = "a label is at most 80 characters on one line, without slashes, and begins with none of = + - @"
    require(not found, must, found, do="choose a shorter, plainer label")
    return label


Label = Annotated[str, AfterValidator(label_of)]
"""The name of a row."""
Printed = Quantity | Annotated[tuple[Quantity, Quantity], Field(description="a range")]
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
        Name of the printed figure, the same in all documents, so that no scenario predicts a figure that it was fitted
        to.
    kind
        ``predicted``: no parameter was fitted to it. ``fitted``: some parameter was, and this checks the fit.
        ``shown``: the source's setting or its figure is too vague to compare with; other conditions given here must
        still hold. ``by construction``: the figure is the same on every machine.
    range
        Of a figure that is only ``shown``: the least and the largest of ours over all parameters that the source leaves
        open, one at a time.
    agrees_if
        Of a figure that is only ``shown``: the condition under which ours and the printed one would agree.
    missed
        Why hosim is known not to reproduce the printed figure: it stays in the table, and fails nothing.
    headline
        Whether `hosim validate --headline` checks it, as one of the main claims of the source.
    """

    row: Label
    column: str = "step_ns"
    over: Quantity | None = None
    about: Quantity | None = None
    within: Annotated[float, Field(gt=0, lt=1, strict=True)] = WITHIN
    at_most: Quantity | None = None
    at_least: Quantity | None = None
    equals: Quantity | None = None
    faster_than: Label | None = None
    why: str = ""
    printed: Printed | None = None
    source: str = ""
    figure: Key | None = None
    kind: Kind = "predicted"
    range: tuple[Quantity, Quantity] | None = None
    agrees_if: str = ""
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

    def ends(self, key: Limit | Literal["printed", "range"]) -> tuple[int | float | str, ...]:
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
        keys: tuple[Limit | Literal["printed", "range"], ...] = (*LIMITS, "printed", "range")
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
        require(is_printed, "only a printed figure is fitted, shown or missed", "none", "printed", do="add printed")
        must, found = "only a predicted figure is missed", f"kind: {self.kind}"
        require(self.kind == "predicted" or not self.missed, must, found, "missed", do="drop kind, or missed")
        shown = "agrees_if" if self.range is None else "range"
        must, do = f"{shown} is of a figure that is only shown", "write kind: shown, or drop it"
        is_right = self.kind == "shown" or not (self.range or self.agrees_if)
        require(is_right, must, f"kind: {self.kind}", shown, do=do)
        ends, ours, found = self.ends("range"), self.ends("about"), f"about: {self.about}, printed: {self.printed}"
        must, do = "a range holds ours, beside one printed number", "write about, a range around it, and a number"
        is_held = not ends or bool(ours and ends[0] <= ours[0] <= ends[1] and len(self.ends("printed")) == 1)  # type: ignore[operator]
        require(is_held, must, found, "range", do=do)


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
    setting
        The setting that the scenario states where its source prints none; from public dimensions, and fitted to no
        printed figure.
    chosen
        Choices that the source does not print, made because its figures do not come out without them: name -> why.
    untested
        Printed figures for which no row can be run.
    counted
        Sentences on how many combinations of choices that the source leaves open reproduce its figures, as they were
        counted beside the scenario; `hosim validate` shows them.
    """

    sentence: str
    source: str
    setting: str = ""
    chosen: dict[Line, Reason] = {}
    untested: tuple[Untested, ...] = ()
    counted: tuple[Line, ...] = ()
