"""How a plan that was made for the nominal machine does on others, beside a policy that decides while it runs.

The *tested* policy plans once, for the machine and the workload as their documents say, and its steps are replayed
unchanged under each condition. The *other* one is a runtime that sees what happens. Both run under the same draws.
What blocks or no longer fits is an outcome, counted as slower than anything that runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from simulator import catalog, metrics, referee
from simulator.catalog import Loaded
from simulator.errors import CapacityError, ConfigError
from simulator.plan import Plan
from simulator.report import spread as report
from simulator.run.case import Case, Policy, prepare
from simulator.run.execute import execute
from simulator.run.perturb import (
    COPIES,
    INSPECTION,
    JITTER,
    LINKS,
    NOMINAL,
    SEQUENCE,
    Condition,
    carried,
    check_levels,
    perturbed,
)
from simulator.run.workers import spread
from simulator.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from simulator.report.drawing import Picture

LEVELS: dict[str, tuple[float, ...]] = {
    JITTER: (0.01, 0.02, 0.05, 0.1, 0.2),
    COPIES: (),
    LINKS: (0.1, 0.2, 0.3, 0.5),
    INSPECTION: (100, 500, 1000, 2000, 5000),
    SEQUENCE: (0.01, 0.05, 0.1, 0.25, 0.5),
}
"""Levels that are tried where none are given."""
MOST_DRAWS = 10_000
"""Draws at a level."""

DRAWS = 20
"""Draws of jitter at each level where no number is given."""


class Conditions(TypedDict, total=False):
    """What `robustness` tries.

    Attributes
    ----------
    set
        Changes to the nominal machine, as in `simulator.run`.
    jitter, copy_jitter, slower_links, longer
        Levels, as shares (0.05 is 5 %); an empty list leaves the kind out. See `simulator.run.perturb`.
    inspect
        Times of a look at the state [ns].
    draws, seed
        How many draws of jitter there are at each level, and what they begin with.
    headroom
        Share of the budget that the tested plan leaves free, as a reserve; the run may use all of it.
    """

    set: Mapping[str, Any]
    jitter: Sequence[float]
    copy_jitter: Sequence[float]
    slower_links: Sequence[float]
    inspect: Sequence[float]
    longer: Sequence[float]
    draws: int
    seed: int
    headroom: float


@dataclass(frozen=True, eq=False)
class Robustness:
    """What came of it.

    Attributes
    ----------
    loaded
        The scenario, its machine and its workload.
    policies
        Labels of the tested policy and of the other one.
    rows
        One outcome per policy, condition and draw: ``policy``, ``perturbation``, ``level``, ``draw``, ``status``,
        ``step_ns``, ``slowdown`` (against the same policy under nominal conditions) and ``why`` it did not run.
    seed
        Of the draws.
    """

    loaded: Loaded
    policies: tuple[str, str]
    rows: Sequence[dict[str, Any]] = field(repr=False)
    seed: int = 0

    @cached_property
    def table(self) -> pd.DataFrame:
        """The outcomes, one a line; step times are whole nanoseconds."""
        import pandas as pd  # noqa: PLC0415 - slow to import, and the text needs none

        return pd.DataFrame(list(self.rows)).astype({"step_ns": "Int64", "slowdown": "Float64"})

    @cached_property
    def quantiles(self) -> list[dict[str, Any]]:
        """One line per policy and level: how many ran, and quantiles of step time and slowdown."""
        return report.quantiles(self.rows)

    @cached_property
    def sentences(self) -> list[str]:
        """From which perturbation on the other policy wins, for each kind."""
        return report.crossovers(self.quantiles, *self.policies)

    def figure(self) -> Picture:
        """Draw step times over the level of each perturbation: median and the middle 90 % of both policies."""
        from simulator.report.spread_figure import spread_picture  # noqa: PLC0415 - drawing takes time to import

        return spread_picture(self.quantiles, self.policies)

    def __str__(self) -> str:
        parts = (report.table(self.quantiles, self.policies), "\n".join(self.sentences))
        return "\n\n".join(filter(None, parts))

    def write(self, out: str | Path) -> None:
        """Write the outcomes, their quantiles, the picture and the documents into a folder.

        Parameters
        ----------
        out
            The folder; filled beside its place and renamed. An earlier run's is replaced.
        """
        from simulator.run.folder import filled  # noqa: PLC0415

        more = {"sentences": self.sentences, "seed": self.seed}
        with filled(out, self.loaded, self.quantiles, more) as folder:
            self.table.to_csv(folder / "draws.csv", index=False, lineterminator="\n")
            self.figure().write(str(folder / "robustness.png"))


def robustness(
    scenario: str | Path | Scenario,
    *,
    policy: str = "static",
    against: str = "reactive",
    workers: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
    **conditions: Unpack[Conditions],
) -> Robustness:
    """Replay a plan that was made for nominal conditions under others, beside a policy that decides while it runs.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    policy, against
        Rows of the scenario or names of policies: the one whose plan is tested, and the one it is compared with.
    workers
        Processes; more than one needs ``if __name__ == "__main__":`` around the call in a script. The result does not
        depend on it.
    progress
        Called now and then.
    **conditions
        See `Conditions`.

    Raises
    ------
    HosimError
        If a document, a policy or a level is wrong.
    CapacityError
        If the tested policy has no plan under nominal conditions.
    """
    loaded = catalog.resolve(scenario, conditions.get("set"))
    case, seed = prepare(loaded), conditions.get("seed", 0)
    if case.job.ranks > 1:
        do = "run one rank's slice of the workload"
        raise ConfigError(case.job.name, "what is tested under other conditions is one rank", f"{case.job.ranks}", do)
    tried = list(_conditions(case, conditions))
    labels = _labels(case, policy, against)
    runner = partial(_Runner, loaded, labels, seed, _headroom(conditions))
    silent = progress or (lambda label, done, total: None)
    label = f"{labels[0]} against {labels[1]}"
    outcomes = spread(runner, tried, workers, _lost, lambda done: silent(label, done, len(tried)))
    rows = [row for found in outcomes for row in found]
    nominal = {row["policy"]: row["step_ns"] for row in rows if row["perturbation"] == NOMINAL}
    for row in rows:
        row["policy"] = labels[row["policy"]]
    for row, number in zip(rows, [0, 1] * len(tried), strict=True):
        own = nominal[number]
        row["slowdown"] = row["step_ns"] / own if own and row["step_ns"] is not None else None
    return Robustness(loaded, labels, rows, seed)


def _labels(case: Case, policy: str, against: str) -> tuple[str, str]:
    first, second = (next(iter(case.rows([name]))) for name in (policy, against))
    if first == second:
        raise ConfigError("policies", "two different ones are compared", repr(first), "choose another one")
    if case.choice(first).set_ != case.choice(second).set_:
        must, do = "rows that are compared set the same of the machine", "name two rows with the same set"
        raise ConfigError("policies", must, f"{first!r} and {second!r}", do)
    return first, second


def _headroom(given: Conditions) -> float:
    headroom = given.get("headroom", 0.0)
    if not 0 <= headroom < 1:
        raise ConfigError("headroom", "it is at least 0 % and below 100 %", f"{100 * headroom:g} %", "correct it")
    return headroom


def _conditions(case: Case, given: Conditions) -> Iterator[Condition]:
    """All conditions, the nominal one first."""
    draws, seed = given.get("draws", DRAWS), given.get("seed", 0)
    for name, number, least in (("draws", draws, 1), ("seed", seed, 0)):
        if type(number) is not int or number < least:
            raise ConfigError(name, f"{name} is a whole number, at least {least}", repr(number), "correct it")
    if draws > MOST_DRAWS:
        raise ConfigError("draws", f"there are at most {MOST_DRAWS:,} draws at a level", f"{draws:,}", "draw fewer")
    yield Condition()
    asked = {
        JITTER: given.get("jitter"),
        COPIES: given.get("copy_jitter"),
        LINKS: given.get("slower_links"),
        INSPECTION: given.get("inspect"),
        SEQUENCE: given.get("longer"),
    }
    if case.loaded.workload.model is None and asked[SEQUENCE] is None:
        asked[SEQUENCE] = ()
    for kind, given_levels in asked.items():
        levels = LEVELS[kind] if given_levels is None else given_levels
        check_levels(case, kind, levels)
        for level in sorted(set(levels)):
            yield from (Condition(kind, level, draw) for draw in range(draws if kind in (JITTER, COPIES) else 1))


def _lost(condition: Condition) -> list[dict[str, Any]]:
    """The outcomes of a condition whose process died."""
    return [_outcome(number, condition, "lost", None, "its process died") for number in (0, 1)]


def _outcome(number: int, condition: Condition, status: str, step_ns: int | None, why: str = "") -> dict[str, Any]:
    about = {"perturbation": condition.kind, "level": condition.level, "draw": condition.draw}
    return {"policy": number, **about, "status": status, "step_ns": step_ns, "slowdown": None, "why": why}


class _Runner:
    """Runs both policies under one condition after another.

    Parameters
    ----------
    loaded, labels, seed
        See `Robustness`.
    headroom
        See `Conditions`.
    """

    def __init__(self, loaded: Loaded, labels: tuple[str, str], seed: int, headroom: float) -> None:
        self._case, self._seed = prepare(loaded).of(labels[0]), seed
        self._allocators = [self._case.choice(label).allocator for label in labels]
        self._decide: list[Policy] = [self._case.rows([label])[label] for label in labels]
        self._plans: list[Plan | CapacityError] = [self._decided(n, share) for n, share in enumerate((headroom, 0.0))]
        if isinstance(self._plans[0], CapacityError):
            raise self._plans[0]

    def _decided(self, number: int, headroom: float) -> Plan | CapacityError:
        """Plan for nominal conditions, with less than the budget."""
        case = self._case
        if headroom and case.problem.budget_bytes != math.inf:
            less = {"budget_bytes": int(case.problem.budget_bytes * (1 - headroom))}
            case = prepare(replace(case.loaded, scenario=case.loaded.scenario.model_copy(update=less)))
        try:
            plan = self._decide[number](case.problem)
            referee.check_plan(self._case.graph, self._case.hardware, plan, self._case.tasks[0].pinned)
        except CapacityError as error:
            less_headroom = f"leave less headroom than {100 * headroom:g} %"
            return CapacityError(replace(error.report, levers=(less_headroom,))) if headroom else error
        return plan

    def __call__(self, condition: Condition) -> list[dict[str, Any]]:
        """Outcomes of both policies."""
        case = perturbed(self._case, condition, self._seed)
        return [self._run(number, case, condition) for number in (0, 1)]

    def _run(self, number: int, case: Case, condition: Condition) -> dict[str, Any]:
        try:
            plan = self._plan(number, case, condition)
            trace = execute(case, [plan], allocator=self._allocators[number])
        except CapacityError as error:
            return _outcome(number, condition, "infeasible", None, str(error))
        switches = case.problem.switches
        ran = [referee.Drawn(plan, case.tasks[0].draws(0), self._allocators[number])]
        referee.check_trace(case.graph, case.hardware, ran, trace, case.problem.budget_bytes, switches)
        row = metrics.summarise(case.graph, case.hardware, trace)
        return _outcome(number, condition, trace.status, row["step_ns"], "; ".join(trace.blocked[:1]))

    def _plan(self, number: int, case: Case, condition: Condition) -> Plan:
        """The plan as it was made; what is not fixed decides anew for another graph."""
        plan = self._plans[number]
        if condition.kind == SEQUENCE and (isinstance(plan, CapacityError) or plan.fixed is None):
            return self._decide[number](case.problem)
        if isinstance(plan, CapacityError):
            raise plan
        return carried(plan, self._case.graph, case.graph)
