"""Inverse questions: `hosim frontier` and `hosim crossover`.

*Frontier*: the last value of a field before a row violates a condition, and before every plan must. *Crossover*: the
value at which two rows swap order. Both bisect between two values whose rows differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from simulator import catalog, metrics
from simulator.catalog import Loaded, Named
from simulator.catalog.text import errors_at
from simulator.errors import insist
from simulator.hardware import without_effect
from simulator.lifetime import live_bytes
from simulator.metrics import figure_of
from simulator.metrics.statistics import grouped
from simulator.report.answers import FREE, PRICES, crossover_view, frontier_view, pareto_view
from simulator.report.expectations import named
from simulator.run.bisection import Search
from simulator.run.case import Case, Policies
from simulator.run.studies import limits_at
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario.question import COMPUTE
from simulator.units import exact

_ROOMS, _BETWEEN, _STEEP = 12, 8, 1.25
"""Capacities from the least that any plan needs to what everything needs at once; candidates between two of them, and
the ratio of their steps above which these are tried: a hundredth of the range shows where a front bends."""
_SCANNED = 9
"""Values scanned for a crossover, in even ratios: with the default ends each is 1.7 times the one before."""
_NEAR = 8
"""Factor above and below the documents' value within which a crossover is searched: three doublings."""


def frontier(
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    workers: int = 1,
    **asked: str | int | Sequence[str] | None,
) -> Sweep:
    """Search the last value of a field before each row violates a condition, and before every plan must.

    The search starts at the documents' value and doubles or halves it until the answer is bracketed, then bisects. This
    assumes that what holds with a value holds with every easier one. A few values beside the answer test that; where it
    does not hold, the result says so.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or a `Loaded` one.
    set, policies
        As in `simulator.run`.
    progress
        Called after each value that is tried.
    workers
        Processes that find what limits each answer when the result is written.
    asked
        ``of``: a field path, ``links.*.bandwidth``, ``workload.sequence``, or ``peak.hbm``; ``such_that``: conditions,
        as ``["stall <= 0.1 %"]``, or ``slowdown``: limits on the step, as ``["1.01x", "inf"]``, each with its own
        answer; ``at_most``, ``at_least``, ``multiple_of``, ``over``, ``resolution``: see the key ``frontier`` of a
        scenario, which provides the defaults.

    Returns
    -------
    Sweep
        One row per policy, and one for each bound: on plans that run each op once (``bound``), and on plans that may
        recompute (``bound with recompute``). The columns are those of `simulator.run`'s summary at the answer, and

        ``within``
            The longest step allowed, as a multiple of the step of the row ``over``; ``inf`` if any step is.
        ``least_<field>``, ``largest_<field>``
            The answer; None if no value that may be tried is one.
        ``slowdown``
            The step at the answer over that of the row ``over``, if ratios are asked for.
        ``tried``
            Number of values that were tried.
        ``next``, ``next_slowdown``
            The next value, which fails, and its slowdown if it is only too slow; absent if the search ended first.
        ``holes``
            Easier values than the answer that fail nevertheless.
        ``limit``, ``limit_at``, ``limit_demand_bytes``, ``limit_capacity_bytes``
            Why the next value fails: the tier and the moment, the demand at that moment, and the capacity; or the
            figure that violates a condition, and its value. If the plan blocks itself, only ``limit`` is given.
        ``limit_only``
            What the row waits for, if a condition on its stall fails only for waits that it has if nothing moves, too.

    Raises
    ------
    ConfigError
        If a document or a condition is invalid, or no field is given.
    """
    loaded = catalog.resolve(scenario, set)
    search, hardware = Search(loaded, asked, policies), loaded.hardware
    question = search.question
    tried = sweep([search.edge(who) for who in search.rows], progress=progress)
    by_row = grouped(tried, itemgetter("policy"))
    answers = [search.answer(rows, limit) for rows in by_row.values() for limit in question.limits]
    capped = list[str]()
    if question.sign < 0 and any(row[question.column] is None for row in answers):
        capped += without_effect(search.built(question.values[-1]).hardware, None, question.paths)
    budget = loaded.scenario.budget_bytes
    if budget is not None and search.base.scenario.budget_bytes is None and not question.of.startswith("peak."):
        capped.append(f"All this is without the budget of the scenario, {exact(budget, 'B')}.")
    view = frontier_view(answers, tried, question, hardware.compute_tier, capped, loaded.scenario.heading)
    also = _limiting(search, {row["policy"]: row for row in answers}, workers, progress)
    return Sweep("frontier", [loaded], answers, view, {"points": tried}, also=also)


def pareto(  # noqa: PLR0913 - what is asked, and by name what is seldom said
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    workers: int = 1,
    of: str = "",
    rooms: int = _ROOMS,
    sparse: bool = False,
) -> Sweep:
    """Trade the peak of the compute tier, or a cost, against the step, row by row.

    The capacity of the tier varies from the least that any plan needs to one that holds everything at once; more
    capacities are tried where the step changes by more than a quarter from one to the next.

    Parameters
    ----------
    scenario, set, policies, progress, workers
        As for `frontier`.
    of
        Amount to trade against the step: ``peak.hbm``, the peak of the compute tier, which also has a bound; or a cost
        that the machine states, by its heading or column (``cost``, ``energy/token``); default: the peak.
    rooms
        Number of capacities to try first.
    sparse
        Whether to try only those of them between which a row comes within one of the limits on its step, or is free,
        so that no capacity is tried in between where the front is flat.

    Returns
    -------
    Sweep
        The Pareto front of each policy and bound, with the columns of `frontier`; the table ``points`` has all rows
        tried.

    Raises
    ------
    ConfigError
        If a document is invalid, or the machine states no such cost.
    """
    loaded = catalog.resolve(scenario, set)
    machine, tier = loaded.hardware, loaded.hardware.compute_tier
    peak = f"peak_{tier}_bytes"
    paid = [column for column in metrics.columns(machine, ("cost",)) if figure_of(column).worse != "less"]
    with errors_at("--of"):
        rule = "--pareto trades the step for a peak, or for a cost that the machine states"
        column = named(of, (peak, *paid), rule, "; or leave --pareto out") if of else peak
    asked = {"of": f"peak.{tier}", "over": COMPUTE}
    search = Search(loaded.without_questions(), asked, policies, is_bounded=column == peak)
    case = search.built(None)
    low = max(task.limits(may_repeat=True).peak_bytes(1 << 62) for task in case.tasks)
    high = max(int(live_bytes(task.graph).max()) for task in case.tasks)
    steps = _BETWEEN * (rooms - 1)
    usable = dict.fromkeys(low + (high - low) * index // steps for index in range(steps + 1))
    fine = [case.hardware.tiers[tier].capacity_for(usable_bytes) for usable_bytes in usable]
    first = [(capacity,) for capacity in dict.fromkeys([*fine[::_BETWEEN], fine[-1]])]
    studies = [search.study(who, first, candidates=fine, differ=_bends) for who in search.rows]
    if sparse:
        rooms_bytes, limits = [*usable][::_BETWEEN], [int(price * case.compute_ns) for price in (FREE, *PRICES)]
        for index, (who, study) in enumerate(zip(search.rows, studies, strict=True)):
            kind = search.bounds.get(who, {"may_repeat": case.may_repeat(who), "in_turn": case.choice(who).staggered})
            step_ns = partial(_bound_ns, case.for_row(who), kind)
            begins = {limit: bisect_left(rooms_bytes, -limit, key=lambda room: -step_ns(room)) for limit in limits}
            more = partial(_crossing, replace(study, points=()), first, begins)
            studies[index] = replace(study, points=[first[0], first[-1]], candidates=(), more=more)
    tried = sweep(studies, progress=progress)
    fronts = {who: undominated(rows, column) for who, rows in grouped(tried, itemgetter("policy")).items()}
    front = [row for rows in fronts.values() for row in rows]
    slowest = {price: int(price * case.compute_ns) for price in PRICES}
    floors = {
        who: {price: case.least_peak_bytes(ns, **kind) for price, ns in slowest.items()}
        for who, kind in search.bounds.items()
    }
    view = pareto_view(front, floors, column, tier, loaded.scenario.heading)
    least = {who: rows[0] for who, rows in fronts.items() if rows}
    return Sweep("frontier", [loaded], front, view, {"points": tried}, also=_limiting(search, least, workers, progress))


def _bound_ns(case: Case, kind: Mapping[str, bool], budget_bytes: int) -> int:
    return case.bound(budget_bytes, **kind).ns


def _step_ns(rows: Rows) -> int | float:
    return rows[0]["step_ns"] if rows[0]["status"] == "ok" else math.inf


def _bends(less: Rows, more: Rows) -> bool:
    """Tell whether the step changes so much between two capacities that one in between is tried."""
    steps = _step_ns(less), _step_ns(more)
    return max(steps) > _STEEP * min(steps)


def _crossing(
    study: Study, points: Sequence[Point], limits: Mapping[int, int], measured: Mapping[Point, Rows]
) -> list[Point]:
    """Choose the next capacity to try: between two of which only one has a step within a limit; else where it bends.

    Each limit [ns] comes with the first point at which its bound is within: there it is tried first.
    """
    for limit_ns, first in limits.items():
        tried = [index for index in range(first, len(points)) if points[index] in measured]
        within = next((index for index in tried if _step_ns(measured[points[index]]) <= limit_ns), 0)
        beyond = max((index for index in tried if index < within), default=first - 1)
        if within - beyond > 1:
            return [points[first if beyond < first else (beyond + within) // 2]]
    return study.next_points(measured)


def _limiting(
    search: Search, answers: Mapping[str, Row], workers: int, progress: Progress | None
) -> Callable[[], list[Sweep]]:
    """Return a function that finds what limits each row, on the machine of its answer."""

    def limits() -> list[Sweep]:
        question, field = search.question, search.question.of
        title = f"What limits each row with its {question.direction} {field}"
        ran = {who: row[field] for who, row in answers.items() if who in search.named and row["status"] == "ok"}
        places = [(catalog.at(search.base, {search.axis: value}), [who]) for who, value in ran.items()]
        return [limits_at(search.base, places, workers, progress, title)] if places else []

    return limits


def undominated(rows: Rows, column: str) -> Rows:
    """Return the Pareto front of a column and the step, over the rows that ran."""
    front = Rows()
    ran = (row for row in rows if row["status"] == "ok" and row.get(column) is not None)
    for row in sorted(ran, key=lambda row: (row[column], row["step_ns"])):
        if not front or row["step_ns"] < front[-1]["step_ns"]:
            front.append(row)
    return front


def crossover(
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    **asked: str | int | None,
) -> Sweep:
    """Search where two rows swap order: scan some values, then bisect between neighbours with different answers.

    Parameters
    ----------
    scenario, set, progress
        As for `frontier`.
    policies
        The two rows.
    asked
        As for `frontier`: ``of``, ``at_most``, ``at_least``, ``multiple_of``, ``resolution``. The ends
        default to eight times and an eighth of the documents' value.

    Returns
    -------
    Sweep
        A row for each range in which the same policy is faster: ``faster`` (``tie``, or ``neither`` if none runs), the
        ends ``from`` and ``to``, the step of each policy at both, and ``notes``, why a document cannot have the first
        value; ``points`` has all rows tried.

    Raises
    ------
    ConfigError
        If a document or the question is invalid, or there are not exactly two rows.
    """
    loaded = catalog.resolve(scenario, set)
    search = Search(loaded.without_questions(), asked, policies, is_bounded=False)
    question, names = search.question, [*search.rows]
    rule = "a crossover is of two rows"
    insist(len(names) == 2, "--policy", rule, f"{len(names)}: {', '.join(names)}", "name two: --policy A --policy B")
    values, start = question.values, search.first
    low = values[0] if question.at_least is not None else max(values[0], start / _NEAR)
    high = values[-1] if question.at_most is not None else min(values[-1], start * _NEAR)
    scanned = (search.next_value(low * (high / low) ** (index / (_SCANNED - 1))) for index in range(_SCANNED))

    def both(loaded: Loaded, point: Point) -> Rows:
        return [row for decide in search.rows.values() for row in decide(loaded, point)]

    points = [(value,) for value in sorted({*scanned})]
    study = Study(search.base, both, (search.axis,), points, values, lambda a, b: _faster(a) != _faster(b))
    tried = sweep([study], progress=progress)
    ranges, by_value = [], grouped(tried, itemgetter(question.of)).items()
    for faster, group in groupby(by_value, key=lambda pair: _faster(pair[1])):
        (first, begun), (last, ended) = itemgetter(0, -1)([*group])
        ends = {"faster": faster, "from": first, "to": last}
        for end, rows in (("from", begun), ("to", ended)):
            ends |= {f"{end}_{row['policy']}_ns": row.get("step_ns") for row in rows if "policy" in row}
        ranges.append(ends if "policy" in begun[0] else {**ends, "notes": begun[0]["notes"]})
    view = crossover_view(ranges, tried, names, question, loaded.scenario.heading)
    return Sweep("crossover", [loaded], ranges, view, {"points": tried})


def _faster(rows: Rows) -> str:
    """Name the one of two rows that has the shorter step; a value that cannot be has neither."""
    ran = sorted((row["step_ns"], row["policy"]) for row in rows if row["status"] == "ok")
    is_tied = len({step_ns for step_ns, _ in ran}) < len(ran)
    return "tie" if is_tied else str(ran[0][1]) if ran else "neither"
