"""What the source of a claim does not state: ranges, listed values and discrete choices, in documents of their own.

They stand in `tests/claims/open`, one for each scenario, or beside a scenario `NAME.yaml` as `NAME.open.yaml`.
`sensitivity` varies the ones, `choices` combines the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.catalog.text import YamlTree, compose, errors_at, validated
from simulator.document import Count, Key, Line, Part, Reason
from simulator.errors import insist
from simulator.scenario.claim import Quantity
from simulator.units import in_yaml, nearest, parse, require, unit_of

OPEN = Path(__file__).parent / "claims" / "open"
WORKLOAD = "workload."

_FACTOR = re.compile(r"[0-9]+(\.[0-9]+)?x")
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
    low: Quantity | None = Field(None, alias="from")
    high: Quantity | None = Field(None, alias="to")
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


class OpenClaim(Part):
    """What the source of a claim leaves open.

    Attributes
    ----------
    unstated
        Parameters that it does not state.
    choices
        Discrete choices that it does not state.
    selects
        Names of printed figures: settings that reproduce all of them are selected, and shown with their other figures.
    screens
        One of the figures in `selects` that is a peak at inference where nothing moves, and so is known before a run:
        settings that cannot reproduce it are not run.
    predicts
        Other scenarios, by name or path, that are run with the selected settings.
    """

    unstated: tuple[Unstated, ...] = ()
    choices: tuple[Choice, ...] = ()
    selects: tuple[Key, ...] = ()
    screens: Key | None = None
    predicts: tuple[str, ...] = ()

    def _check(self) -> None:
        names = [choice.choice for choice in self.choices]
        twice = next((name for name in names if names.count(name) > 1), "")
        require(not twice, "each choice has a name of its own", f"{twice!r} twice", "choices", do="rename one")


def names() -> list[str]:
    """Scenarios of the catalogue whose claims leave something open, papers before measurements."""
    known = sorted(path.stem for path in OPEN.glob("*.yaml"))
    return sorted(known, key=lambda name: catalog.path_of(name, "scenario").parent.name)


class Opened(NamedTuple):
    """What the claim of a scenario leaves open, and its document; none if nothing is written."""

    claim: OpenClaim
    tree: YamlTree | None
    loaded: Loaded

    def place(self, *keys: str) -> str:
        """The place of a field, for errors."""
        return self.tree.place(*keys) if self.tree else self.loaded.place("claim")


def opened(loaded: Loaded) -> Opened:
    """Read what the claim of a scenario leaves open; refuse figures that select and that no expectation has."""
    scenario = loaded.paths["scenario"]
    files = (scenario.with_suffix(".open.yaml"), OPEN / f"{loaded.scenario.name}.yaml")
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return Opened(OpenClaim(), None, loaded)
    tree = compose(file.read_text(encoding="utf-8"), file.name)
    found = Opened(validated(OpenClaim, tree.data, file.name, tree.place), tree, loaded)
    figures = tuple(expected.figure for expected in loaded.scenario.expect if expected.figure)
    for figure in found.claim.selects:
        must = "what selects is a printed figure of an expectation"
        insist(figure in figures, found.place("selects"), must, repr(figure), nearest(figure, figures))
    return found


class OpenParameter(NamedTuple):
    """A parameter that the claim of a scenario leaves open.

    Attributes
    ----------
    parameter, axis
        The parameter as the claim states it, and its axis.
    taken
        The value that the scenario uses: a number of the parameter's unit, or the name of a listed value.
    """

    parameter: Unstated
    axis: Axis
    taken: float | str


def open_claim(name: str) -> OpenClaim:
    """What the claim of a scenario of the catalogue leaves open."""
    return opened(catalog.resolve(name)).claim


def open_parameters(loaded: Loaded) -> Iterator[OpenParameter]:
    """Iterate over the parameters that the claim of a scenario leaves open; none if it has no claim.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload.

    Raises
    ------
    ConfigError
        If a path names no field, the fields have different values, or one outside the range; or if a row sets one.
    """
    stated = opened(loaded)
    for index, unstated in enumerate(stated.claim.unstated):
        where = stated.place("unstated", str(index))
        axis = Axis(unstated.parameter, unstated.fields, where, unstated.unit, unstated.options)
        yield OpenParameter(unstated, axis, _value_taken(loaded, unstated, axis))


def _value_taken(loaded: Loaded, unstated: Unstated, axis: Axis) -> float | str:
    """Return the value that the scenario uses for a parameter; refuse several, and one outside its range."""
    set_by_rows = [key for row in loaded.scenario.policies for key in row.set_]
    paths: dict[float | str, str] = {}
    with errors_at(axis.where):
        for (document, *keys), value in chain.from_iterable(map(loaded.fields, unstated.fields)):
            path = ".".join(keys)
            paths[1.0 if unstated.is_factor else unstated.read(value)] = path
            is_own = document == "hardware" and not unstated.is_factor
            rule = "a field set by a row is stated, not an open parameter"  # other values would not reach it
            do = "drop it from unstated, or from the row; or vary it by a factor, such as 0.5x to 2x"
            require(not (is_own and any(fnmatchcase(path, key) for key in set_by_rows)), rule, path, do=do)
    values = " and ".join(f"{axis.written(value)} ({path})" for value, path in paths.items())
    rule, do = "the fields of a parameter have one value", "make each a parameter of its own"
    insist(len(paths) == 1, axis.where, rule, values, do)
    (value,) = paths
    is_inside = isinstance(value, str) or unstated.read(unstated.low) <= value <= unstated.read(unstated.high)
    found = f"{axis.written(value)} outside {unstated.low} to {unstated.high}"
    insist(is_inside, axis.where, "the scenario's value lies in the range", found, "widen the range")
    return value
