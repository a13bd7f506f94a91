"""The sweep of `hosim robust`: a plan made for the nominal machine on others, beside a policy that decides as it runs.

The *tested* policy plans once, for the machine and the workload as their documents say, and its steps are replayed
unchanged under each condition. The *other* one is a runtime that sees what happens. Both run under the same draws.
What blocks or no longer fits is an outcome, counted as slower than anything that runs.

``jitter``
    Other times of ops, and of links or copies: see `jittered`.
``slower links``
    Every link has its bandwidth times ``1 - level``, and its latency over it.
``inspection``
    What a runtime pays to look at the state before each compute, which is measured nowhere: the level is that time.
``longer sequence``
    The workload's model is built again with its sequence times ``1 + level``, rounded; a fixed plan is carried over by
    the names of ops and tensors, a runtime decides anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import numpy as np

from simulator import catalog, metrics, referee
from simulator.catalog import Axis, Loaded
from simulator.cost import durations_ns
from simulator.errors import CapacityError, ConfigError, PlanError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, NOWHERE, Plan, Steps
from simulator.report.views import INSPECTION, NOMINAL, SEQUENCE, quantiles, robust_view
from simulator.run.case import Case, execute, prepare
from simulator.run.sweep import Point, Progress, Rows, Study, Sweep, sweep
from simulator.scenario import Scenario


def jittered(case: Case, level: float, draw: int, seed: int) -> Case:
    """Give the ops of a case, and its links, other times.

    Every op takes its time times a factor of its own; every link's time is multiplied by a factor, one for each link
    and draw, because what slows a link down (other traffic, a clock) lasts longer than a step.

    Factors are log-normal with mean 1 and the level as their coefficient of variation ``c``: ``exp(s z - s^2 / 2)``
    with ``s^2 = ln(1 + c^2)`` and ``z`` normal. Times are whole nanoseconds, at least 1 where they were not 0. A draw
    has the same ``z`` at all levels, so that levels can be compared. Such a factor is skewed: its median is ``1 /
    sqrt(1 + c^2)``, 0.98 at 20 % and 0.71 at 100 %. So where a step hangs on one link, its median under large jitter
    lies below its mean, and may lie below the nominal step.

    Parameters
    ----------
    case
        As it was planned for; of one rank.
    level, draw, seed
        Coefficient of variation, number of the draw, and what draws begin with.
    """
    graph, hardware, (task,) = case.graph, case.hardware, case.tasks
    normal = np.random.default_rng((seed, draw)).standard_normal(len(graph.ops) + len(hardware.links))
    sigma = math.sqrt(math.log1p(level**2))
    factors = np.exp(sigma * normal - sigma**2 / 2).tolist()
    ops = tuple(
        replace(op, duration_ns=max(1, round(ns * factor)) if ns else 0)
        for op, ns, factor in zip(graph.ops, case.problem.durations_ns, factors, strict=False)
    )
    graph, hardware = replace(graph, ops=ops), _stretched(hardware, factors[len(ops) :])
    times = durations_ns(graph, hardware)
    problem = replace(task.problem, graph=graph, hardware=hardware, durations_ns=times)
    return replace(case, tasks=(replace(task, problem=problem),))


def _stretched(hardware: Hardware, factors: Sequence[float]) -> Hardware:
    """The machine with the time of each link multiplied; a staged link is as slow as those that it goes via."""
    links = dict(hardware.links)
    for (name, link), factor in zip(hardware.links.items(), factors, strict=True):
        if link.via:
            continue
        bandwidth = link.bandwidth_bytes_per_s
        slower = bandwidth if bandwidth == math.inf else max(1, round(bandwidth / factor))
        changes = {"bandwidth_bytes_per_s": slower, "latency_ns": round(link.latency_ns * factor)}
        links[name] = link.model_copy(update=changes)
    return hardware.with_links(links)


def carried(plan: Plan, graph: Graph, to: Graph) -> Plan:
    """The decisions of a fixed plan for another graph with the same names.

    Parameters
    ----------
    plan
        A fixed plan.
    graph, to
        What it was made for, and what it shall run.

    Raises
    ------
    PlanError
        If an op or a tensor is missing on one side.
    """
    ops = _renumbered(plan, "op", [op.name for op in graph.ops], [op.name for op in to.ops])
    tensors = _renumbered(plan, "tensor", [t.name for t in graph.tensors], [t.name for t in to.tensors])
    steps = plan.fixed
    if steps is None or (ops == list(range(len(ops))) and tensors == list(range(len(tensors)))):
        return plan
    home = [NOWHERE] * len(tensors)
    for tensor, tier in enumerate(plan.home):
        home[tensors[tensor]] = tier
    a = [ops[a] if kind == COMPUTE else tensors[a] for kind, a in zip(steps.kind, steps.a, strict=True)]
    return replace(plan, home=tuple(home), steps=Steps.from_columns(steps.kind, a, steps.b, steps.c))


def _renumbered(plan: Plan, what: str, names: Sequence[str], others: Sequence[str]) -> list[int]:
    """The id in the other graph of each id in the first."""
    number = {name: i for i, name in enumerate(others)}
    odd = set(names).symmetric_difference(others)
    if odd:
        must = f"a plan is carried over to a graph with the same {what}s"
        raise PlanError(f"plan {plan.name!r}", must, f"{min(odd)!r} on one side only", "make a plan for that graph")
    return [number[name] for name in names]


JITTER, LINKS = "jitter", "slower links"


class Kind(NamedTuple):
    """A kind of perturbation: its key in `Conditions`, levels where none are given, and which there may be."""

    key: str
    levels: tuple[float, ...]
    least: float
    most: float
    range: str


KINDS = {
    JITTER: Kind("jitter", (0.01, 0.02, 0.05, 0.1, 0.2), 1e-9, 1.0, "above 0 % and at most 100 %"),
    LINKS: Kind("slower_links", (0.1, 0.2, 0.3, 0.5), 1e-9, 0.99, "above 0 % and at most 99 %"),
    INSPECTION: Kind("inspect", (100, 500, 1000, 2000, 5000), 1, 1e9, "from 1 ns to 1 s, such as 100ns,5us"),
    SEQUENCE: Kind("longer", (0.01, 0.05, 0.1, 0.25, 0.5), 1e-9, 99.0, "above 0 % and at most 9,900 %"),
}
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
    jitter, slower_links, longer
        Levels, as shares (0.05 is 5 %); an empty list leaves the kind out.
    inspect
        Times of a look at the state [ns].
    draws, seed
        How many draws of jitter there are at each level, and what they begin with.
    headroom
        Share of the budget that the tested plan leaves free, as a reserve; the run may use all of it.
    """

    set: Mapping[str, Any]
    jitter: Sequence[float]
    slower_links: Sequence[float]
    inspect: Sequence[float]
    longer: Sequence[float]
    draws: int
    seed: int
    headroom: float


def robustness(
    scenario: str | Path | Scenario,
    *,
    policy: str = "static",
    against: str = "reactive",
    workers: int = 1,
    progress: Progress | None = None,
    **conditions: Unpack[Conditions],
) -> Sweep:
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
        Called when a replay is done.
    **conditions
        See `Conditions`.

    Returns
    -------
    Sweep
        Its outcomes: per policy, condition and draw ``policy``, ``perturbation``, ``level``, ``draw``, ``status``,
        ``step_ns``, ``slowdown`` (against the same policy under nominal conditions) and ``why`` it did not run. Its
        rows: their quantiles.

    Raises
    ------
    HosimError
        If a document, a policy or a level is wrong.
    CapacityError
        If the tested policy has no plan under nominal conditions.
    """
    loaded = catalog.resolve(scenario, conditions.get("set"))
    case = prepare(loaded)
    if case.job.ranks > 1:
        do = "run one rank's slice of the workload"
        raise ConfigError(case.job.name, "what is tested under other conditions is one rank", f"{case.job.ranks}", do)
    seed = conditions.get("seed", 0)
    nominal = _Nominal(loaded, _labels(case, (policy, against)), conditions.get("headroom", 0.0))
    studies = list(_studies(nominal, conditions))
    nominal.check()
    outcomes = sweep(studies, workers, progress)
    steps = {row["policy"]: row["step_ns"] for row in outcomes if row["perturbation"] == NOMINAL}
    for row in outcomes:
        own = steps[row["policy"]]
        row["slowdown"] = row["step_ns"] / own if own and row["step_ns"] is not None else None
    columns = ("policy", "perturbation", "level", "draw", "status", "step_ns", "slowdown", "why")
    tidy = [{column: row.get(column) for column in columns} for row in outcomes]
    rows = quantiles(tidy)
    return Sweep("robust", [loaded], rows, robust_view(rows, nominal.labels), {"points": tidy}, {"seed": seed})


def _labels(case: Case, policies: Sequence[str]) -> tuple[str, str]:
    first, second = (next(iter(case.rows([name]))) for name in policies)
    if first == second:
        raise ConfigError("policies", "two different ones are compared", repr(first), "choose another one")
    if case.choice(first).set_ != case.choice(second).set_:
        must, do = "rows that are compared set the same of the machine", "name two rows with the same set"
        raise ConfigError("policies", must, f"{first!r} and {second!r}", do)
    return first, second


@dataclass(eq=False)
class _Nominal:
    """What both policies do under nominal conditions; each process plans for itself, as runtimes cannot be sent.

    Attributes
    ----------
    loaded, labels
        What is planned for, and the two rows.
    headroom
        Share of the budget that the tested plan leaves free.
    """

    loaded: Loaded
    labels: tuple[str, str]
    headroom: float

    def __getstate__(self) -> dict[str, Any]:
        return {"loaded": self.loaded, "labels": self.labels, "headroom": self.headroom}

    @cached_property
    def case(self) -> Case:
        """What was planned for."""
        return prepare(self.loaded).of(self.labels[0])

    @cached_property
    def plans(self) -> dict[str, Plan | CapacityError]:
        """The plan of each row, or why there is none."""
        return {label: self._plan(label, self.headroom if label == self.labels[0] else 0) for label in self.labels}

    def _plan(self, label: str, headroom: float) -> Plan | CapacityError:
        case, budget = self.case, self.case.problem.budget_bytes
        if headroom and budget != math.inf:
            less = Axis("headroom", ("scenario.budget",), "headroom", "B")
            case = prepare(catalog.at(case.loaded, {less: int(budget * (1 - headroom))}))
        try:
            plan = case.rows([label])[label](case.problem)
            referee.check_plan(self.case.graph, self.case.hardware, plan, self.case.tasks[0].pinned)
        except CapacityError as error:
            less_headroom = f"leave less headroom than {100 * headroom:g} %"
            return CapacityError(replace(error.report, levers=(less_headroom,))) if headroom else error
        return plan

    def check(self) -> None:
        """Refuse a headroom that is none, and a tested policy without a plan."""
        if not 0 <= self.headroom < 1:
            found = f"{100 * self.headroom:g} %"
            raise ConfigError("headroom", "it is at least 0 % and below 100 %", found, "correct it")
        plan = self.plans[self.labels[0]]
        if isinstance(plan, CapacityError):
            raise plan


def _studies(nominal: _Nominal, conditions: Conditions) -> Iterator[Study]:
    """A study for each kind and level, the nominal one first; its points are draws."""
    draws, seed = conditions.get("draws", DRAWS), conditions.get("seed", 0)
    for name, number, least in (("draws", draws, 1), ("seed", seed, 0)):
        if type(number) is not int or number < least:
            raise ConfigError(name, f"{name} is a whole number, at least {least}", repr(number), "correct it")
    if draws > MOST_DRAWS:
        raise ConfigError("draws", f"there are at most {MOST_DRAWS:,} draws at a level", f"{draws:,}", "draw fewer")
    has_model, given = nominal.loaded.workload.model is not None, cast(Mapping[str, Any], conditions)
    if given.get("longer") and not has_model:
        must = "only the step of a model can be built for a longer sequence"
        raise ConfigError("levels of longer sequence", must, "a graph from a file", "leave them out")
    levels = [(NOMINAL, 0.0)]
    for name, kind in KINDS.items():
        asked = given.get(kind.key)
        asked = (kind.levels if name != SEQUENCE or has_model else ()) if asked is None else asked
        levels += [(name, level) for level in check_levels(name, asked)]
    for name, level in levels:
        varied = _varied(nominal.loaded, name, level)
        axes = (*varied, Axis("draw", (), f"levels of {name}"))
        points = [(*varied.values(), draw) for draw in range(draws if name == JITTER else 1)]
        about = {"perturbation": name, "level": level}
        yield Study(nominal.loaded, partial(_replayed, nominal, name, level, seed), axes, points, about=about)


def check_levels(name: str, levels: Sequence[float]) -> list[float]:
    """Return the levels of a kind of perturbation, ascending.

    Raises
    ------
    ConfigError
        If one is out of range.
    """
    kind = KINDS[name]
    for level in levels:
        if not kind.least <= level <= kind.most:
            found = f"{level:g} ns" if name == INSPECTION else f"{100 * level:g} %"
            raise ConfigError(f"levels of {name}", f"a level is {kind.range}", found, "correct it")
    return sorted(set(levels))


def _varied(loaded: Loaded, name: str, level: float) -> dict[Axis, Any]:
    """What a perturbation changes in the documents: jitter changes nothing there."""
    where, sequence = f"levels of {name}", loaded.workload.sequence or 0
    if name == LINKS:
        speed, latency = (Axis(f"{name}, {key}", (f"links.*.{key}",), where, "x") for key in ("bandwidth", "latency"))
        return {speed: 1 - level, latency: 1 / (1 - level)}
    if name == INSPECTION:
        return {Axis(name, ("host.reactive.inspect",), where, "ns"): round(level)}
    if name == SEQUENCE:
        return {Axis(name, ("workload.sequence",), where): max(1, round(sequence * (1 + level)))}
    return {}


def _replayed(nominal: _Nominal, kind: str, level: float, seed: int, loaded: Loaded, point: Point) -> Rows:
    """Replay both policies under a condition."""
    if kind == JITTER:
        case = jittered(nominal.case, level, point[-1], seed)
    else:
        case = nominal.case if kind == NOMINAL else prepare(loaded).of(nominal.labels[0])
    return [{"policy": label, "step_ns": None, **_outcome(nominal, label, kind, case)} for label in nominal.labels]


def _outcome(nominal: _Nominal, label: str, kind: str, case: Case) -> dict[str, Any]:
    allocator, plan = case.choice(label).allocator, nominal.plans[label]
    try:
        if kind == SEQUENCE and (isinstance(plan, CapacityError) or plan.fixed is None):
            plan = case.rows([label])[label](case.problem)
        if isinstance(plan, CapacityError):
            raise plan
        plan = carried(plan, nominal.case.graph, case.graph)
        trace = execute(case, [plan], allocator=allocator)
    except CapacityError as error:
        return {"status": "infeasible", "why": str(error)}
    drawn = [referee.Drawn(plan, case.tasks[0].draws(0), allocator)]
    budget, switches = case.problem.budget_bytes, case.problem.switches
    referee.check_trace(case.graph, case.hardware, drawn, trace, budget, switches)
    step_ns = metrics.summarise(case.graph, case.hardware, trace)["step_ns"]
    return {"status": trace.status, "step_ns": step_ns, "why": "; ".join(trace.blocked[:1])}
