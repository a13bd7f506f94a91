"""Variations of a scenario: a grid, a list, and random draws of uncertain figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from simulator.document import Document, Few, Part
from simulator.units import require

Values = str | Annotated[tuple[Any, ...], Field(min_length=1)]
"""Values of an axis: a list, or a text such as ``16..200 GB/s:8``."""
_Spread = Annotated[float, Field(ge=0, le=1)]
"""A coefficient of variation."""
_SHAPES = {"c": "triang", "s": "lognorm"}
"""Shape parameter -> the distribution that has it."""


class Distribution(Part):
    """Distribution of an uncertain figure, with the names and parameters of ``scipy.stats``.

    Attributes
    ----------
    distribution
        ``uniform``: from `loc` to `loc` + `scale`. ``norm``: mean `loc`, standard deviation `scale`. ``triang``: from
        `loc` to `loc` + `scale`, with the mode at `loc` + `c` times `scale`. ``lognorm``: `loc` plus a log-normal
        value with the median `scale`, whose logarithm has the standard deviation `s`.
    loc, scale
        Quantities like the figure itself, with its unit (``1.5 us``).
    c, s
        Shape parameters, see `distribution`; the others have none.
    """

    distribution: Literal["uniform", "norm", "triang", "lognorm"]
    loc: str | float = 0
    scale: str | float
    c: Annotated[float, Field(ge=0, le=1)] | None = None
    s: Annotated[float, Field(gt=0, le=10)] | None = None

    @property
    def shape(self) -> float | None:
        """The shape parameter, if there is one."""
        return self.c if self.c is not None else self.s

    def _check(self) -> None:
        for key, distribution in _SHAPES.items():
            is_there, is_of_it = getattr(self, key) is not None, self.distribution == distribution
            must = f"{key} is of {distribution}, and needed there"
            require(is_there == is_of_it, must, f"{self.distribution} {'with' if is_there else 'without'} it", key)


class Sample(Part):
    """Random draws of uncertain figures; in each draw all policies meet the same values.

    Attributes
    ----------
    size
        Number of draws.
    method
        ``random``: independent draws. ``sobol``: a scrambled Sobol sequence, which fills the space more evenly; use a
        power of two as its size. Reported intervals hold for independent draws; for a Sobol sequence they are too wide.
    seed
        Seed of the draws.
    of
        Field path -> distribution of its values, independent of the others.
    jitter
        The time of each op and each link is multiplied by a factor with mean 1 and this coefficient of variation; of
        several, each runs.
    """

    size: Few
    method: Literal["random", "sobol"] = "random"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    of: dict[str, Distribution] = {}
    jitter: _Spread | Annotated[tuple[_Spread, ...], Field(min_length=1)] = 0.0

    def _check(self) -> None:
        require(self.of or self.jitter, "a sample draws something", "neither", "of", do="add of, or jitter")


class StudyDocument(Document):
    """Variations of a scenario: its points combine each cell of a grid with each entry of a list and each draw.

    Attributes
    ----------
    scenario
        The scenario: a name in the catalogue, or a path that ends in ``.yaml``, relative to this document.
    policies
        Rows of the scenario, or names of policies; default: all its rows.
    set_
        Changes for all points, as with ``--set``: also of homes and the budget.
    grid
        Field path -> its values; every combination runs. Fields of the machine (``links.*.bandwidth: 16..200
        GB/s:8``), of the workload (``workload.batch: [1, 2, 4]``) or of the scenario (``scenario.budget``).
    list_
        Field path -> its values; the n-th values of all fields run together, so that all have equally many.
    sample
        Random draws of uncertain figures.
    plans
        ``anew``: plans are made anew at each point. ``once``: fixed plans are made for the documents as they are, and
        replayed unchanged at each point, on a longer sequence by the names of ops and tensors; reactive ones still
        decide as they run.
    headroom
        Share of the budget that plans which are made ``once`` leave free, in reserve; a run may use the whole budget.
    """

    schema_: Literal["hosim/study/1"] = Field("hosim/study/1", alias="schema")
    scenario: str
    policies: tuple[str, ...] = ()
    set_: dict[str, Any] = Field({}, alias="set")
    grid: dict[str, Values] = {}
    list_: dict[str, Values] = Field({}, alias="list")
    sample: Sample | None = None
    plans: Literal["anew", "once"] = "anew"
    headroom: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def figures(self) -> Iterator[str]:
        """Iterate over the field paths that need an origin: distributions and jitter. The others are questions."""
        return (path for path in super().figures() if path.startswith(("sample.of.", "sample.jitter")))

    def _check(self) -> None:
        varied = [*self.grid, *self.list_, *(self.sample.of if self.sample else ())]
        twice = next((key for key in varied if varied.count(key) > 1), None)
        require(twice is None, "a field varies in one way", repr(twice), do="leave all but one out")
        is_of_plans, do = self.plans == "once" or not self.headroom, "write plans: once, or drop headroom"
        require(is_of_plans, "headroom is of plans that are made once", "plans: anew", "headroom", do=do)
        require(varied or self.sample, "a study varies something", "nothing", do="add grid, list or sample")
