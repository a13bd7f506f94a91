"""The story of `hosim largest`: up to which value of a field of the workload each row still fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.errors import CapacityError, ScopeError, Shortfall
from simulator.report import largest as report
from simulator.run.case import Case, Policies, Policy, prepare
from simulator.run.execute import execute
from simulator.run.one import Progress, plans_of, row_of, silent
from simulator.scenario import Largest as Question
from simulator.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

_KEPT = 4
"""Workloads that are kept built: rows are tried with the same values first."""


@dataclass(frozen=True, eq=False)
class Largest:
    """What came of it.

    Attributes
    ----------
    loaded
        The scenario, its machine and its workload.
    question
        What was searched.
    rows
        One per policy: the columns of `simulator.run`'s summary with the largest value, and

        ``largest_<field>``
            That value; None if the row fits with none of those that may be tried.
        ``bound_<field>``
            No plan of the row's kind fits with more; None if nothing is known to be in the way of what may be tried.
        ``tried``
            With how many values it was tried.
        ``next``
            The least value with which it was found not to fit; None if it fits with the largest one that may be tried.
        ``limit``, ``limit_at``, ``limit_demand_bytes``, ``limit_capacity_bytes``
            What is in the way of that: the tier and the moment, what must be there at once, and what there is room for.
            If the plan blocks itself, only ``limit`` says so.
    """

    loaded: Loaded
    question: Question
    rows: Sequence[dict[str, Any]] = field(repr=False)

    @property
    def column(self) -> str:
        """The column with the answer."""
        return self.question.column

    def of(self, row: str) -> int | None:
        """The largest value with which a row fits, if there is one."""
        return next((found[self.column] for found in self.rows if found["policy"] == row), None)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows, one a line; counts, times [ns] and sizes [B] are whole numbers even where a row has none."""
        import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

        frame = pd.DataFrame(list(self.rows))
        ends = ("_ns", "_bytes", self.column, "tried", "next")
        return frame.astype(dict.fromkeys([column for column in map(str, frame) if column.endswith(ends)], "Int64"))

    @cached_property
    def sentences(self) -> list[str]:
        """What limits each row, and what the search takes for granted."""
        return report.sentences(self.rows, self.question)

    @property
    def text(self) -> str:
        """The rows as a table for people, one a line."""
        return report.table(self.rows, self.question, self.loaded.hardware.compute_tier)

    def __str__(self) -> str:
        return "\n\n".join((self.text, "\n".join(self.sentences)))


def largest(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    **asked: str | int | None,
) -> Largest:
    """Search the largest value of a field of the workload with which each row still fits.

    Values are halved between one that fits and one that does not, so it is taken for granted that what fits also fits
    with less.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    progress
        Called now and then with the row and the value at work, how many values were tried, and how many are at most.
    asked
        What is searched, how far, and in which multiples: ``field``, ``at_most``, ``at_least``, ``multiple_of``, as in
        a scenario under ``largest``; default: as this one says.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing says what is searched, or the workload is not valid with a value.
    HosimError
        If an option or a plan is wrong. What cannot fit and what blocks itself is what is searched.
    """
    loaded = catalog.resolve(scenario, set)
    return searched(loaded, catalog.question(loaded, asked), policies, progress or silent)


def searched(loaded: Loaded, question: Question, policies: Policies | None, progress: Progress) -> Largest:
    """Answer a question about a scenario.

    Parameters
    ----------
    loaded, question
        The scenario, and what is searched.
    policies, progress
        As for `largest`.
    """
    built = lru_cache(_KEPT)(lambda value: prepare(catalog.at(loaded, question, value)))
    rows = built(question.values[-1]).rows(policies)
    found = [_Search(label, decide, question, built, progress).row() for label, decide in rows.items()]
    return Largest(loaded, question, found)


@dataclass
class _Search:
    """The search for one row.

    Attributes
    ----------
    label, decide
        The row, and what decides.
    question
        What is searched.
    built
        Builds what runs with a value.
    progress
        Called before each try.
    tried
        How many values were.
    """

    label: str
    decide: Policy
    question: Question
    built: Callable[[int], Case]
    progress: Progress
    tried: int = 0

    def row(self) -> dict[str, Any]:
        """What came of it, as a row."""
        if self.built(self.question.values[-1]).choice(self.label).is_file:
            return self._refused("a plan from a file is of one graph; name a policy")
        try:
            value, limit = self._halved(self._obstacle)
        except ScopeError as error:
            return self._refused(error.reason)
        tried, bound = self.tried, self._bound(value, limit)
        ran = {"policy": self.label, "status": "infeasible"}
        if value is not None:
            ran = row_of(self.built(value), self.label, self.decide, self.progress).summary
        return {**ran, self.question.column: value, self.question.bound: bound, "tried": tried, **limit}

    def _bound(self, value: int | None, limit: Mapping[str, Any]) -> int | None:
        """The largest value that is not known to be beyond any plan, if some that may be tried is."""
        if not limit:
            return None
        bound = value if self._proof(limit["next"]) else self._halved(self._proof, value)[0]
        return None if bound == self.question.values[-1] else bound

    def _refused(self, why: str) -> dict[str, Any]:
        return {"policy": self.label, "status": "refused", self.question.column: None, "notes": why}

    def _halved(
        self, obstacle: Callable[[int], dict[str, Any]], fit: int | None = None
    ) -> tuple[int | None, dict[str, Any]]:
        """The largest value without an obstacle, if one is known to be without from there on; and that of the next."""
        values = self.question.values
        limit = obstacle(values[-1])
        if not limit:
            return values[-1], {}
        fits, fails = -1 if fit is None else values.index(fit), len(values) - 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if found := obstacle(values[middle]):
                fails, limit = middle, found
            else:
                fits = middle
        return (None if fits < 0 else values[fits]), {"next": values[fails], **limit}

    def _obstacle(self, value: int) -> dict[str, Any]:
        """What is in the way of a value; empty if nothing is."""
        most = 1 + len(self.question.values).bit_length()
        at, before = f"{self.label}, {self.question.field} {value:,}", self.tried
        self.progress(at, before, most)
        self.tried += 1
        if found := self._proof(value):
            return found
        case = self.built(value).of(self.label)
        try:
            plans = plans_of(case, at, self.decide, lambda said, *_: self.progress(said, before, most))
            trace = execute(case, plans, allocator=case.choice(self.label).allocator)
        except CapacityError as error:
            return _told(error.report)
        return {} if trace.status == "ok" else {"limit": trace.status}

    def _proof(self, value: int) -> dict[str, Any]:
        """What is in the way of any plan of the row's kind; empty if nothing is known to be."""
        case = self.built(value).of(self.label)
        unfit = case.unfit(may_repeat=case.may_repeat(self.label))
        return {} if unfit is None else _told(unfit)


def _told(short: Shortfall) -> dict[str, Any]:
    sizes = {"limit_demand_bytes": short.demand_bytes, "limit_capacity_bytes": short.capacity_bytes}
    return {"limit": short.tier, "limit_at": short.at, **sizes}
