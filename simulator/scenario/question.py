"""Questions that a scenario asks: how far a field may go before a row fails, and which layout is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simulator.document import Count, Part, Ranks
from simulator.scenario.claim import Label, Quantity
from simulator.units import decimal, exact, in_field, parse, ratio, require, unit_of

WORKLOAD = "workload."
"""Prefix of paths to fields of the workload."""
COMPUTE, FASTEST, UNMOVED = "compute", "fastest", "unmoved"
"""Names in place of a row's: the time of all computes; the fastest row, with the documents as they are; and the step
with all data in the compute tier, whatever room that takes, so that nothing moves."""
BOUNDS = "bound", "bound with recompute"
"""Rows of answers that are lower bounds: for plans that run each op once, and for all plans."""
Amount = Literal["at_least", "at_most", "multiple_of", "start"]
"""Fields of a question that hold values of the field that is searched."""
_REACH = {"largest": 16, "least": 1000}
"""Default range of the search, as a factor above and below the documents: a long sequence takes long to try."""


class Frontier(Part):
    """The last value of a field before a row violates a condition: upwards for times and the workload, down for ranks.

    Attributes
    ----------
    of
        Field path from the three documents: of the machine (``links.*.bandwidth``), ``workload.sequence`` or
        ``scenario.budget``, or several, joined by `` + ``; or ``peak.TIER``: the capacity of a tier, for the peak
        there. If the fields have different values, all are multiplied by a factor, unless `at_most` has a unit.
    at_most, at_least
        Ends of the search; default: so far from the values of the documents that a search hardly gets there.
    multiple_of
        Only multiples of this are tried; default: values with as many significant digits as `resolution`.
    over
        What ratios (``1.01x``) are relative to: a row with the documents as they are, the ``fastest`` of the rows that
        are searched, ``compute`` (the time of all computes), or ``unmoved``: the step with the same value if nothing
        moved, as there was room for everything in the compute tier. Default: ``fastest``; of slowdowns ``compute``.
    such_that
        Conditions on the row, such as ``stall <= 0.1 %``.
    slowdown
        In place of conditions, limits on the step as multiples of that of `over`, such as ``[1.01x, 1.25x, inf]``; each
        has an answer of its own. The row `over` then has the same value of a field of the workload, and the easiest
        one of another field.
    resolution
        Significant digits of the answer.
    """

    key: ClassVar[str] = "frontier"
    """The command that asks it, and its key in a scenario."""

    of: Annotated[str, Field(min_length=1)]
    at_most: str | int | float | None = None
    at_least: str | int | float | None = None
    multiple_of: str | int | float = 0
    over: Label | None = None
    such_that: tuple[str, ...] = ()
    slowdown: tuple[Quantity, ...] = ()
    resolution: Annotated[int, Field(ge=1, le=5)] = 3

    @staticmethod
    def paths_of(of: str) -> tuple[str, ...]:
        """Return the paths to fields that are joined by `` + ``, mostly one; for a tier's peak to its capacity."""
        return tuple((f"tiers.{of.removeprefix('peak.')}.capacity" if of.startswith("peak.") else of).split(" + "))


class Question(Frontier):
    """A frontier that is searched, with what its documents leave to defaults.

    Attributes
    ----------
    start
        Value of the field in the documents.
    is_burden
        Whether more of a field of the machine makes a step longer or leaves less room: a time, or memory that is taken.
    """

    over: Label
    start: str | int | float
    is_burden: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths to the fields, from the three documents."""
        return self.paths_of(self.of)

    @property
    def is_of_load(self) -> bool:
        """Whether the field is one of the workload, but for ranks of a program, and what the host takes over."""
        path = self.paths[0]
        return path.startswith(WORKLOAD) and not (path.endswith(".ranks") or path.startswith(f"{WORKLOAD}on."))

    @property
    def direction(self) -> str:
        """The end that is searched: ``largest`` or ``least``."""
        return "largest" if self.is_of_load or self.is_burden else "least"

    @property
    def sign(self) -> int:
        """1 if larger values are harder to fit, -1 if smaller ones are."""
        return 1 if self.direction == "largest" else -1

    @property
    def column(self) -> str:
        """Column of the answer."""
        return f"{self.direction}_{self.of.removeprefix(WORKLOAD)}"

    @property
    def limits(self) -> tuple[float, ...]:
        """Limits on the step, as multiples of that of `over`, one for each answer; ``inf``: no limit."""
        return tuple(map(ratio, self.slowdown)) or (math.inf,)

    def within(self, limit: float) -> str:
        """Write one of the `limits` for people."""
        return "any step" if limit == math.inf else f"{limit:g}x {self.over}"

    def does(self, limit: float) -> str:
        """Say what a row does that meets all conditions."""
        if self.slowdown:
            return f"fits within {self.within(limit)}"
        return f"meets {' and '.join(self.such_that)}" if self.such_that else "fits"

    def columns(self, tier: str) -> dict[str, tuple[float, str]]:
        """Map the columns that a summary gets to the limit whose answer they come from, and the column of that answer.

        Parameters
        ----------
        tier
            The compute tier.
        """
        columns = {}
        for limit in self.limits:
            prefix = f"at_{limit:g}x" if limit < math.inf else f"at_{self.direction}"
            columns[self.column if limit == math.inf else f"{prefix}_{self.column}"] = (limit, self.column)
            columns |= {f"{prefix}_{name}": (limit, name) for name in ("step_ns", "slowdown", f"peak_{tier}_bytes")}
        return columns

    @cached_property
    def values(self) -> Sequence[int | float]:
        """All values that may be tried, ascending."""
        low, high = self.read("at_least"), self.read("at_most")
        if not self.multiple_of:
            return _rounded(low, high, self.resolution)
        step = self.read("multiple_of")
        if isinstance(step, int):
            return range(-(-int(low) // step) * step, int(high) + 1, step)
        return [float(decimal(step) * n) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]

    @property
    def unit(self) -> str | None:
        """Unit of the field that is searched; ``x`` for a factor, None for a number."""
        return "x" if str(self.start).endswith("x") else unit_of(self.start)

    @property
    def size(self) -> str:
        """Kind of the values that are tried, for people."""
        if not self.multiple_of:
            return f"values of {self.resolution} significant digits"
        step = self.written(self.read("multiple_of"))
        return "whole numbers" if step == "1" else f"multiples of {step}"

    def value_for_over(self, value: int | float) -> int | float | None:
        """Return the value with which the row `over` runs; None: with the documents as they are."""
        if self.over == UNMOVED:  # it has all the room of the compute tier, whatever the value is
            return None if self.of.startswith("peak.") else value
        if self.slowdown and self.is_of_load:
            return value
        return self.values[0 if self.sign > 0 else -1] if self.slowdown else None

    def read(self, key: Amount) -> int | float:
        """Read an amount of the question as a number of its unit."""
        stated = getattr(self, key)
        if stated is None:
            start, reach = self.read("start"), _REACH[self.direction]
            least: int | float = 1 if isinstance(start, int) else 0.0
            most = 1.0 if self.unit is None and isinstance(start, float) and start <= 1 else math.inf  # a share
            return min(most, start * reach) if key == "at_most" else max(least, type(start)(start / reach))
        with in_field("of" if key == "start" else key):
            if self.unit == "x":
                return float(ratio(stated))
            value = stated if self.unit is None else parse(stated, self.unit)
            must, do = "the field searched is a finite number above 0", "say where to look: at_least and at_most"
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
            require(is_number, must, repr(stated), do=do)
        return value

    def written(self, value: int | float | None) -> str:
        """Write a value for people; None becomes an empty text."""
        if value is None or self.unit in (None, "x"):
            return "" if value is None else f"{value:,}{self.unit or ''}"
        return exact(value, str(self.unit))

    def _check(self) -> None:
        self.read("start")
        low, high = self.read("at_least"), self.read("at_most")
        must, do = f"at_most is more than at_least, {self.written(low)}", "raise it"
        require(low < high, must, self.written(high), "at_most", do=do)
        must, found = "a multiple of multiple_of lies between the ends", self.written(high)
        require(self.values, must, f"none up to {found}", "multiple_of", do="lower it, or raise at_most")
        must, found = "a step is limited by slowdowns, or by conditions", "both"
        require(not (self.slowdown and self.such_that), must, found, "slowdown", do="leave one of the two out")
        with in_field("slowdown"):
            must, shortest = "a limit on a step is more than 0x of another one", min(self.limits)
            require(shortest > 0, must, f"{shortest:g}x", "slowdown", do="write for example 1.01x")


class Layouts(Part):
    """Layouts of a training step on so many devices, of which the best are replayed: see `hosim layout search`.

    Of a job whose programs are models that train, each on ranks of its own, they are all ways to share the devices out,
    each with all `data`, `tensor` and `pipeline` on the ranks of a program; its micro-batches keep their sequences.

    Attributes
    ----------
    devices
        Number of ranks in every layout.
    global_batch
        Sequences that all replicas train on in a step; of a job, none.
    over
        Workload field -> its values, such as ``parallel.tensor: [2, 4, 8]``, of a job ``programs.vision.ranks: [2]``.
        All combinations are layouts. By default `data`, `tensor`, `pipeline` and `context` divide the devices, `expert`
        divides `data` or is all of a stage, activations are cut along `sequence` or not, and `zero_stage` is any; other
        fields are as in the workload. ``parallel.micro_batches`` follows from the global batch, unless it is stated.
    replay
        Number of layouts that are replayed: the fastest by the estimate.
    """

    key: ClassVar[str] = "layout"

    devices: Ranks
    global_batch: Count | None = None
    over: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    replay: Count = 8


def _rounded(low: int | float, high: int | float, digits: int) -> list[int | float]:
    """List the numbers from `low` to `high` with so many significant digits: whole numbers if both ends are."""
    values, is_whole = {low, high}, isinstance(low, int) and isinstance(high, int)
    for power in range(math.floor(math.log10(low)) - digits + 1, math.ceil(math.log10(high)) - digits + 2):
        for digit in range(10 ** (digits - 1), 10**digits):
            value = digit * 10**power if power >= 0 else float(f"{digit}e{power}")
            if low < value < high and (not is_whole or value == int(value)):
                values.add(int(value) if is_whole else float(value))
    return sorted(values)
