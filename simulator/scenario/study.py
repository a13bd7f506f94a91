"""What is asked of a scenario: which value of a field is on the edge for a row, and what a study varies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simulator.document import Count, Document, Few, Part
from simulator.scenario.claim import WORKLOAD, Bound, Label
from simulator.units import exact, in_field, parse, ratio, require, unit_of

COMPUTE, FASTEST = "compute", "fastest"
"""In place of a row: what all computes take; and the fastest of the rows, with the documents as they are."""


Amount = Literal["at_least", "at_most", "multiple_of", "start"]
"""Fields of a question that are values of what is searched."""
_STEP = {"B": 10**8, "B/s": 10**8}
"""Unit -> only multiples of this are tried, if nothing is said."""
_REACH = {"largest": 16, "least": 1000}
"""So many times as much as the documents say, and as little, is tried: a long sequence takes long to try."""


class Largest(Part):
    """The question up to which value of a field a row still fits, and is not much slower than another one.

    Attributes
    ----------
    field
        Field of the workload, such as ``sequence`` or ``batch``; a dotted path names one further down. Under ``least``
        the field path of a figure of the machine, such as ``tiers.hbm.capacity`` or ``links.*.bandwidth``.
    at_most
        The largest value that is tried; under ``least`` with its unit (``200 GB/s``), as all that is tried; or a count.
    at_least
        The smallest value that is tried, if it is a multiple.
    multiple_of
        Only multiples of this are tried; under ``least``, if nothing is said, of 100 MB, or 100 MB/s.
    over
        Label of the row whose step is what a step is held against: with the same value, or under ``least`` with the
        largest one that is tried; or ``compute``: the time of all computes.
    slowdown
        How many times as long as that a step may be, such as ``[1.01x, 1.25x, inf]``; for each there is an answer.
        Default: any.
    """

    key: ClassVar[str] = "largest"
    assurance: ClassVar[str] = ""
    """What was done for what is taken for granted, for people."""
    further: ClassVar[tuple[str, str]] = ("lower at_least", "raise at_most")
    """What lets a search for the least, or the largest, go on where it ended, for people."""

    field: Annotated[str, Field(min_length=1)]
    at_most: Count
    at_least: Count = 1
    multiple_of: Count = 1
    over: Label = COMPUTE
    slowdown: tuple[Bound, ...] = ()

    @property
    def path(self) -> str:
        """Path to the field, from the three documents."""
        return WORKLOAD + self.field

    @property
    def direction(self) -> str:
        """Which value is searched: the ``largest`` or the ``least``."""
        return self.key

    @property
    def sign(self) -> int:
        """Times a value: the more, the harder it is to fit."""
        return 1 if self.direction == "largest" else -1

    @property
    def column(self) -> str:
        """The column that holds the answer."""
        return f"{self.direction}_{self.field}"

    @property
    def limits(self) -> tuple[float, ...]:
        """How many times as long a step may be, for each answer; ``inf`` if it may be any."""
        return tuple(map(ratio, self.slowdown)) or (math.inf,)

    def within(self, limit: float) -> str:
        """Say how long a step may be: one of the `limits`."""
        return "any step" if limit == math.inf else f"{limit:g}x {self.over}"

    def does(self, limit: float) -> str:
        """Say what a row does that meets all that is asked."""
        return f"fits within {self.within(limit)}" if self.slowdown else "fits"

    def columns(self, tier: str) -> dict[str, tuple[float, str]]:
        """Columns that the summary of a row gets -> of which answer they are, and the column there.

        Parameters
        ----------
        tier
            The compute tier.
        """
        found = {}
        for limit in self.limits:
            at = f"at_{limit:g}x" if limit < math.inf else f"at_{self.direction}"
            found[self.column if limit == math.inf else f"{at}_{self.column}"] = (limit, self.column)
            found |= {f"{at}_{own}": (limit, own) for own in ("step_ns", "slowdown", f"peak_{tier}_bytes")}
        return found

    @cached_property
    def values(self) -> Sequence[int | float]:
        """All values that may be tried, in order."""
        least, most, step = (int(self.read(key)) for key in ("at_least", "at_most", "multiple_of"))
        return range(-(-least // step) * step, most + 1, step)

    @property
    def unit(self) -> str | None:
        """Unit of what is searched; None of a number."""
        return unit_of(self.at_most)

    @property
    def size(self) -> str:
        """Which values are tried, for people."""
        step = self.written(self.read("multiple_of"))
        return "whole numbers" if step == "1" else f"multiples of {step}"

    def beside(self, value: int | float) -> int | float | None:
        """With which value the row runs that a step is held against; None: with the documents as they are."""
        return value

    def read(self, key: Amount) -> int | float:
        """Read an amount of the question as a number of its unit."""
        stated, usual = getattr(self, key), _STEP.get(self.unit or "", 1) if key == "multiple_of" else 1
        if isinstance(stated, int) and (self.unit is None or not stated):
            return stated or usual
        with in_field(key):
            whole = parse(stated, self.unit or "B")  # a number without a unit is none
            require(1 <= whole < math.inf, "what is tried is at least 1 and has an end", repr(stated), do="correct it")
        return int(whole)

    def written(self, value: int | float | None) -> str:
        """Write a value for people; nothing for none."""
        if value is None or self.unit in (None, "x"):
            return "" if value is None else f"{value:,}{self.unit or ''}"
        return exact(value, str(self.unit))

    def _check(self) -> None:
        step = int(self.read("multiple_of"))
        least = self.written(-(-int(self.read("at_least")) // step) * step)
        must, do = f"at_most is at least {least}, the least multiple that is tried", "raise it, or lower multiple_of"
        require(self.values, must, self.written(self.read("at_most")), "at_most", do=do)
        with in_field("slowdown"):
            must, shortest = "a step is held to more than 0x of another one", min(self.limits)
            require(shortest > 0, must, f"{shortest:g}x", "slowdown", do="write such as 1.01x")


class Least(Largest):
    """The question down to which value of a figure of the machine a row still fits, asked like `Largest`."""

    key: ClassVar[str] = "least"
    at_most: str | Count  # type: ignore[assignment]
    at_least: str | Count = 0  # type: ignore[assignment]
    multiple_of: str | Count = 0  # type: ignore[assignment]

    @property
    def path(self) -> str:
        """Path to the field, from the three documents."""
        return self.field

    def beside(self, value: int | float) -> int | float | None:
        """With which value the row runs that a step is held against: with the largest one."""
        return self.values[-1]

    def _check(self) -> None:
        super()._check()
        is_machines, do = not self.field.startswith((WORKLOAD, "scenario.")), "ask hosim largest for such fields"
        require(is_machines, "the least value is of the machine", self.field, "field", do=do)


class Frontier(Largest):
    """The question how far a field may go while a row meets conditions: up, of the workload and of times; else down.

    Attributes
    ----------
    field
        Field path from the three documents: of the machine (``links.*.bandwidth``), ``workload.sequence`` or
        ``scenario.budget``, or several, joined by `` + ``; or ``peak.TIER``: the capacity of a tier, for the peak
        there. Where the fields have several values all are multiplied by a factor.
    at_most, at_least
        Where the search ends; default: so far from what the documents say that it hardly gets there.
    multiple_of
        Only multiples of this are tried; default: what has so many significant digits as `resolution` says.
    over
        What ratios (``1.01x``) are of: a row with the documents as they are, the ``fastest`` of those that are asked
        for, or ``compute``.
    such_that
        What must hold of the row, such as ``stall <= 0.1 %``.
    resolution
        Significant digits of the answer.
    start
        What the documents say.
    """

    key: ClassVar[str] = "frontier"
    assurance: ClassVar[str] = ", as was tried beside each answer"
    further: ClassVar[tuple[str, str]] = ("lower --at-least", "raise --at-most")
    at_most: str | int | float | None = None  # type: ignore[assignment]
    at_least: str | int | float | None = None  # type: ignore[assignment]
    multiple_of: str | int | float = 0  # type: ignore[assignment]
    over: Label = FASTEST
    such_that: tuple[str, ...] = ()
    resolution: Annotated[int, Field(ge=1, le=5)] = 3
    start: str | int | float

    @staticmethod
    def path_of(field: str) -> str:
        """Path to a field, from the three documents."""
        return f"tiers.{field.removeprefix('peak.')}.capacity" if field.startswith("peak.") else field

    @property
    def path(self) -> str:
        """Path to the field, from the three documents."""
        return self.path_of(self.field)

    @property
    def direction(self) -> str:
        """Which value is searched: the ``largest`` or the ``least``."""
        return "largest" if self.path.startswith(WORKLOAD) or self.unit == "ns" else "least"

    @property
    def unit(self) -> str | None:
        """Unit of what is searched, of a factor ``x``; None of a number."""
        return "x" if str(self.start).endswith("x") else unit_of(self.start)

    @property
    def size(self) -> str:
        """Which values are tried, for people."""
        return super().size if self.multiple_of else f"values of {self.resolution} significant digits"

    def does(self, limit: float) -> str:
        """Say what a row does that meets all that is asked."""
        return f"meets {' and '.join(self.such_that)}" if self.such_that else "fits"

    def beside(self, value: int | float) -> int | float | None:
        """With which value the row runs that a step is held against: with the documents as they are."""
        return None

    @cached_property
    def values(self) -> Sequence[int | float]:
        """All values that may be tried, in order."""
        if self.multiple_of:
            return super().values
        return _rounded(self.read("at_least"), self.read("at_most"), self.resolution)

    def read(self, key: Amount) -> int | float:
        """Read an amount of the question as a number of its unit."""
        stated = getattr(self, key)
        if stated is None:
            start, reach = self.read("start"), _REACH[self.direction]
            least: int | float = 1 if isinstance(start, int) else 0.0
            return start * reach if key == "at_most" else max(least, type(start)(start / reach))
        with in_field(key):
            if self.unit == "x":
                return float(ratio(stated))
            value = stated if self.unit is None else parse(stated, self.unit)
            must, do = "what is searched is a number above 0 that has an end", "say where to look: at_least and at_most"
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
            require(is_number, must, repr(stated), do=do)
        return value

    def _check(self) -> None:
        self.read("start")
        low, high = self.read("at_least"), self.read("at_most")
        must, do = f"at_most is more than at_least, {self.written(low)}", "raise it"
        require(low < high, must, self.written(high), "at_most", do=do)


def _rounded(low: int | float, high: int | float, digits: int) -> list[int | float]:
    """Numbers with so many significant digits between two, and these: whole numbers if both are."""
    found, is_whole = {low, high}, isinstance(low, int) and isinstance(high, int)
    for power in range(math.floor(math.log10(low)) - digits + 1, math.ceil(math.log10(high)) - digits + 2):
        for digit in range(10 ** (digits - 1), 10**digits):
            value = digit * 10**power if power >= 0 else float(f"{digit}e{power}")
            if low < value < high and (not is_whole or value == int(value)):
                found.add(int(value) if is_whole else float(value))
    return sorted(found)


Values = str | Annotated[tuple[Any, ...], Field(min_length=1)]
"""Values of an axis: a list, or a text such as ``16..200 GB/s:8``."""
_SHAPES = {"c": "triang", "s": "lognorm"}
"""Parameter of shape -> the distribution that has it."""


class Distribution(Part):
    """What a figure may be that is not certain, by the names and parameters of ``scipy.stats``.

    Attributes
    ----------
    distribution
        ``uniform``: from `loc` to `loc` + `scale`. ``norm``: with the mean `loc` and the deviation `scale`. ``triang``:
        from `loc` to `loc` + `scale`, most likely at `loc` + `c` times `scale`. ``lognorm``: `loc` plus the median
        `scale` times a factor, of whose logarithm `s` is the deviation.
    loc, scale
        As the figure is stated, with its unit (``1.5 us``).
    c, s
        See `distribution`; the others have none.
    """

    distribution: Literal["uniform", "norm", "triang", "lognorm"]
    loc: str | float = 0
    scale: str | float
    c: Annotated[float, Field(ge=0, le=1)] | None = None
    s: Annotated[float, Field(gt=0, le=10)] | None = None

    @property
    def shape(self) -> float | None:
        """Its parameter of shape, if it has one."""
        return self.c if self.c is not None else self.s

    def _check(self) -> None:
        for key, distribution in _SHAPES.items():
            is_there, is_of_it = getattr(self, key) is not None, self.distribution == distribution
            must = f"{key} is of {distribution}, and needed there"
            require(is_there == is_of_it, must, f"{self.distribution} {'with' if is_there else 'without'} it", key)


class Sample(Part):
    """Independent draws of what is not certain; all policies meet the same in a draw.

    Attributes
    ----------
    size
        How many draws.
    seed
        What they begin with.
    of
        Field path -> what it may be, one independent of another.
    jitter
        Each op, and each link, takes its time times a factor with the mean 1 and this coefficient of variation.
    """

    size: Few
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    of: dict[str, Distribution] = {}
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0

    def _check(self) -> None:
        require(self.of or self.jitter, "a sample draws something", "neither", "of", do="add of, or jitter")


class StudyDocument(Document):
    """What varies about a scenario: its points are all cells of a grid, with each entry of a list and each draw.

    Attributes
    ----------
    scenario
        What runs: a name in the catalogue, or a path that ends in ``.yaml``, relative to this document.
    policies
        Rows of it, or names of policies; default: all its rows.
    set_
        Changes for all points, as of ``--set``.
    grid
        Field path -> its values, of which all cells run: of the machine (``links.*.bandwidth: 16..200 GB/s:8``), of the
        workload (``workload.batch: [1, 2, 4]``) or of the scenario (``scenario.budget``).
    list_
        Field path -> its values, of which the first run together, then the second, and so on: as many of each.
    sample
        What is drawn.
    plans
        ``anew``: at each point plans are made for it. ``once``: they are made for the documents as they are, and
        replayed unchanged; a runtime decides as it runs.
    """

    schema_: Literal["hosim/study/1"] = Field("hosim/study/1", alias="schema")
    scenario: str
    policies: tuple[str, ...] = ()
    set_: dict[str, Any] = Field({}, alias="set")
    grid: dict[str, Values] = {}
    list_: dict[str, Values] = Field({}, alias="list")
    sample: Sample | None = None
    plans: Literal["anew", "once"] = "anew"

    def figures(self) -> Iterator[str]:
        """Field paths of what is said of the world: what figures may be. All else is asked."""
        return (path for path in super().figures() if path.startswith(("sample.of.", "sample.jitter")))

    def _check(self) -> None:
        varied = [*self.grid, *self.list_, *(self.sample.of if self.sample else ())]
        twice = next((key for key in varied if varied.count(key) > 1), None)
        require(twice is None, "a field varies in one way", repr(twice), do="leave all but one out")
        require(varied or self.sample, "a study varies something", "nothing", do="add grid, list or sample")
