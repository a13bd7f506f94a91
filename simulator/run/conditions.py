"""Conditions other than the documents': drawn figures, jittered times of ops and links, and plans made beforehand.

`drawn` draws uncertain figures, and `jittered` other times; `Once` makes plans for the documents as they are, and
replays them unchanged on other machines and workloads.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from simulator import catalog
from simulator.catalog import Axis, Loaded
from simulator.catalog.settings import amounts
from simulator.catalog.text import errors_at
from simulator.cost import durations_ns
from simulator.document import Document, amount
from simulator.errors import CapacityError, PlanError, import_extra, insist
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import Plan
from simulator.policies.decide import Policy
from simulator.policies.problem import Problem
from simulator.run.case import Case, Policies, prepare
from simulator.run.row import relate, row_of
from simulator.run.sweep import Rows, silent
from simulator.scenario.study import Distribution, Sample
from simulator.units import exact, parse, unit_of


def drawn(sample: Sample, where: str) -> tuple[tuple[Axis, ...], list[tuple[Any, ...]]]:
    """Draw figures from their distributions, by inverting each cumulative distribution function.

    Parameters
    ----------
    sample
        Figures with distributions, method, and number of draws.
    where
        Place of the sample, for errors.

    Returns
    -------
    tuple
        An axis for each figure, and one for the number of the draw; and their values, draw by draw. Sizes, rates and
        times are rounded to whole bytes, bytes per second and nanoseconds.

    Raises
    ------
    ConfigError
        If SciPy is not installed, or the numbers of a distribution are invalid or differ in unit.
    """
    _, stats = import_extra(where, "draws need SciPy", "pip install 'hosim[study]'", "scipy", "scipy.stats")
    axes, columns, size, wide = list[Axis](), list[Any](), sample.size, len(sample.of)
    if sample.method == "sobol" and wide:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the documents say that a power of two is best
            shares = stats.qmc.Sobol(wide, seed=np.random.default_rng(sample.seed)).random(size)
    else:
        shares = np.random.default_rng(sample.seed).random((size, wide))
    for column, (key, stated) in zip(shares.T, sample.of.items(), strict=True):
        place = f"{where}, of, {key}"
        unit, loc, scale = _scaled(stated, place)
        shape = () if stated.shape is None else (stated.shape,)
        values = getattr(stats, stated.distribution)(*shape, loc=loc, scale=scale).ppf(column).tolist()
        columns.append(values if unit is None else list(map(round, values)))
        axes.append(Axis(key, (key,), place, unit))
    return (*axes, Axis(_DRAW, (), where)), list(zip(*columns, range(size), strict=True))


_OF_TIME = re.compile(
    r"(compute\.(peak|achieved|launch)|host\.|tiers\..*\.bandwidth|links\..*\.(bandwidth|latency|efficiency)"
    r"|(buses|fabrics)\..*\.(bandwidth|latency|achieved_bandwidth)).*"
)
"""Figures of a machine on which times depend; the others are its size and its costs."""
_OF_SOFTWARE = re.compile(r"(copies|host|kernels)\..*")
_WIDE = 0.54
"""Spread of the logarithm of an assumed figure without a range: 80 % of draws lie between half of it and twice."""


def uncertain(loaded: Loaded, size: int) -> Sample:
    """Make a sample of what is uncertain: of a machine and its software, figures with a range, and those assumed.

    A cited figure is uniform from the least to the largest value that its sources print. One that was assumed has no
    range: it is log-normal about its value, four of five draws between half of it and twice; a share is uniform there,
    up to 1.

    Parameters
    ----------
    loaded
        The scenario with its machine, and its software.
    size
        Number of draws.

    Raises
    ------
    ConfigError
        If there are too many draws, or nothing that sets times is uncertain.
    """
    most, of = 100_000, dict[str, Distribution]()
    insist(0 < size <= most, "uncertainty", f"there are 1 to {most:,} draws", f"{size:,}", "ask for fewer")
    stated: list[tuple[str, Document, re.Pattern[str]]] = [("", loaded.stated, _OF_TIME)]
    stated += [("software.", loaded.software, _OF_SOFTWARE)] if loaded.software else []
    for prefix, document, sets_times in stated:
        for path, value in amounts(document).items():
            if sets_times.fullmatch(path) and (drawn_from := _spread(document, path, value)):
                of[prefix + path] = drawn_from
    rule, do = "a machine that is drawn has figures that are assumed, or cited with a range", "say `range` of a source"
    insist(of, loaded.place("hardware"), rule, "neither", do)
    return Sample(size=size, of=of)


def _spread(document: Document, path: str, value: Any) -> Distribution | None:
    """Return the distribution of a figure; None if it is certain."""
    if ends := [amount(end) for cited in document.sources.get(path, ()) for end in cited.range or ()]:
        (unit, low), (_, high) = min(ends), max(ends)
        loc, scale = (span if unit is None else exact(span, unit) for span in (low, high - low))
        return Distribution(distribution="uniform", loc=loc, scale=scale)
    if document.origin_of(path) != "assumed":
        return None
    if isinstance(value, str):
        return Distribution(distribution="lognorm", scale=value, s=_WIDE)
    return Distribution(distribution="uniform", loc=value / 2, scale=min(2 * value, 1) - value / 2)


_DRAW = "draw"
"""Column with the number of a draw."""


def _scaled(stated: Distribution, where: str) -> tuple[str | None, float, float]:
    """Return the unit of a distribution, and its `loc` and `scale` in this unit."""
    unit, ends = unit_of(stated.scale), (stated.loc, stated.scale)
    with errors_at(where):
        loc, scale = (value if value == 0 or unit is None else parse(value, unit) for value in ends)
    is_number = all(isinstance(value, int | float) and math.isfinite(value) for value in (loc, scale))
    rule, do = "loc and scale are numbers of one unit, and scale is above 0", "write it like loc: 1 us, scale: 2 us"
    insist(is_number and float(scale) > 0, where, rule, f"{stated.loc!r} and {stated.scale!r}", do)
    return unit, float(loc), float(scale)


def jittered(case: Case, level: float, draw: int, seed: int) -> Case:
    """Multiply the times of a case's ops and links by random factors.

    Each op has a factor of its own. Each link has one factor per draw, because what slows a link down (other traffic, a
    clock) lasts longer than a step.

    Factors are log-normal with mean 1 and the level as coefficient of variation ``c``: ``exp(s z - s^2 / 2)`` with
    ``s^2 = ln(1 + c^2)`` and ``z`` normal. Times are whole nanoseconds, at least 1 unless they were 0. A draw has the
    same ``z`` at all levels, so levels can be compared. Such a factor is skewed: its median is ``1 / sqrt(1 + c^2)``,
    0.98 at 20 % and 0.71 at 100 %. So if a step depends on one link, its median under large jitter lies below its mean,
    and may lie below the nominal step.

    Parameters
    ----------
    case
        The nominal case, of one rank.
    level, draw, seed
        Coefficient of variation, number of the draw, and seed of the draws.
    """
    rule, do = "jitter is of one rank", "run one rank's slice of the workload"
    insist(case.job.ranks == 1, case.job.name, rule, f"{case.job.ranks} ranks", do)
    stretched = _with_other_times(case, level, draw, seed)
    for row in case.loaded.scenario.policies:
        case.for_row(row.row)  # builds the case of a row that changes the machine
    stretched.changed.update({key: _with_other_times(other, level, draw, seed) for key, other in case.changed.items()})
    return stretched


def _with_other_times(case: Case, level: float, draw: int, seed: int) -> Case:
    """Multiply the times of ops and links of a case on one machine."""
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
    return replace(case, job=replace(case.job, graphs=(graph,)), tasks=(replace(task, problem=problem),))


def _stretched(hardware: Hardware, factors: Sequence[float]) -> Hardware:
    """Multiply the times of links by these factors; a staged link follows those that it goes via."""
    links = dict(hardware.links)
    for (name, link), factor in zip(hardware.links.items(), factors, strict=True):
        if link.via:
            continue
        bandwidth = link.bandwidth_bytes_per_s
        slower = bandwidth if bandwidth == math.inf else max(1, round(bandwidth / factor))
        changes = {"bandwidth_bytes_per_s": slower, "latency_ns": round(link.latency_ns * factor)}
        links[name] = link.model_copy(update=changes)
    return hardware.with_links(links)


@dataclass(frozen=True, eq=False)
class Once:
    """Plans rows once and replays the plans elsewhere; each process plans anew, as reactive plans cannot be pickled.

    Attributes
    ----------
    loaded, policies
        The nominal documents, for which plans are made, and the rows, as in `simulator.run`.
    headroom
        Share of the budget that plans leave free.
    """

    loaded: Loaded
    policies: Policies | None
    headroom: float = 0.0

    def __reduce__(self) -> tuple[object, ...]:
        return Once, (self.loaded, self.policies, self.headroom)

    @cached_property
    def case(self) -> Case:
        """The nominal case, for which plans are made.

        Raises
        ------
        ConfigError
            If it has several ranks.
        """
        case = prepare(self.loaded)
        rule, do = "a case that is planned once has one rank", "run one rank's slice of the workload"
        insist(case.job.ranks == 1, case.job.name, rule, f"{case.job.ranks}", do)
        return case

    @cached_property
    def plans(self) -> dict[str, Plan | CapacityError]:
        """The plan of each row, or the error that says why there is none."""
        plans, headroom = dict[str, Plan | CapacityError](), self.headroom
        for label, decide in self.case.rows(self.policies).items():
            case, levers = self.case.for_row(label), tuple[str, ...]()
            if headroom and case.problem.budget_bytes != math.inf:
                less = Axis("headroom", ("scenario.budget",), "headroom", "B")
                case = prepare(catalog.at(case.loaded, {less: int(case.problem.budget_bytes * (1 - headroom))}))
                levers = (f"leave less headroom than {100 * headroom:g} %",)
            try:
                plans[label] = decide(case.problem)
            except CapacityError as error:
                plans[label] = CapacityError(replace(error.report, levers=levers)) if levers else error
        return plans

    def rows(self, case: Case) -> Rows:
        """Replay the plans in a case; a row whose plan cannot be carried over is ``failed``."""
        decided = {label: partial(self._carry_over, label, of) for label, of in case.rows(self.policies).items()}
        rows = [row_of(case, label, decide, silent, advice=False) for label, decide in decided.items()]
        relate(rows)
        return [row.summary for row in rows]

    def _carry_over(self, label: str, decide: Policy, problem: Problem) -> Plan:
        """Return the plan of a row; a reactive policy decides anew, for the case in which it runs."""
        plan, nominal = self.plans[label], self.case.graph
        if isinstance(plan, CapacityError):
            raise plan
        if plan.fixed is None:
            return decide(problem)
        rule, do = "a plan is carried over to a graph with the same ops and tensors", "leave longer sequences out"
        if _names(problem.graph) != _names(nominal):
            raise PlanError(f"plan {plan.name!r}", rule, "others", do)
        return plan


def _names(graph: Graph) -> Sequence[Sequence[str]]:
    return [op.name for op in graph.ops], [tensor.name for tensor in graph.tensors]
