"""What asks back: `hosim frontier`, with its presets `hosim largest` and `hosim least`, and `hosim crossover`.

*Frontier*: how far a field of the documents may go while a row still meets what is asked of it, and while any plan may.
*Largest* and *least* ask that it fits, and for its step. *Crossover*: where two rows swap. All are one search, in which
candidates are halved between two that differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from simulator import catalog, metrics
from simulator.catalog import Loaded, Named
from simulator.catalog.shelf import told_at
from simulator.errors import insist
from simulator.hardware import without_effect
from simulator.lifetime import live_bytes
from simulator.metrics import figure_of
from simulator.report.answers import PRICES, crossover_view, frontier_view, pareto_view
from simulator.report.expectations import named
from simulator.run.bisection import Search
from simulator.run.case import Policies
from simulator.run.studies import limits_at
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import Frontier, Largest, Least, Question
from simulator.scenario.question import COMPUTE
from simulator.units import exact

_ROOMS, _BETWEEN, _STEEP = 12, 8, 1.25
"""Rooms from the least that any plan needs to what all needs at once, rooms to try between two of them, and how much
longer a step is in the one that calls for that: a hundredth of the way tells where a front bends."""
_SCANNED = 9
"""Values that are scanned for a crossover."""
_NEAR = 8
"""A crossover is looked for so many times above and below what the documents say."""


def frontier(
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    kind: type[Question] = Frontier,
    workers: int = 1,
    **asked: str | int | Sequence[str] | None,
) -> Sweep:
    """Search how far a field may go while each row still meets conditions, and while any plan may.

    Values are halved between one that does and one that does not. The search begins with what the documents say and
    doubles or halves it until the answer lies between. That what holds with a value holds with all that are easier is
    tried at a few values beside the answer; where it does not, that is told.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, the document itself, or what was read of it.
    set, policies
        As in `simulator.run`.
    progress
        Called when a value was tried.
    kind
        The question; see `largest` and `least`.
    workers
        Processes for what limits the answers, which is found when they are written.
    asked
        ``field`` (or ``of``): a field path, ``links.*.bandwidth``, ``workload.sequence``, or ``peak.hbm``;
        ``such_that``: conditions, as ``["stall <= 0.1 %"]``; ``at_most``, ``at_least``, ``multiple_of``, ``over``,
        ``resolution``: see the question's class.

    Returns
    -------
    Sweep
        One row per policy, and one each, ``bound``, for what no plan beats that runs each op once, or that may run it
        again: the columns of `simulator.run`'s summary with the answer, and

        ``within``
            How many times as long as that of the row ``over`` a step may be; ``inf`` if it may be any.
        ``least_<field>``, ``largest_<field>``
            The answer; None if there is none among what may be tried.
        ``slowdown``
            How many times as long a step is with it, if ratios are asked for.
        ``tried``
            With how many values it was tried.
        ``next``, ``next_slowdown``
            The value beyond with which it was found not to hold, and how slow it is if it only is too slow; None if it
            holds with the last one that may be tried.
        ``holes``
            Values before that with which it was found not to hold.
        ``limit``, ``limit_at``, ``limit_demand_bytes``, ``limit_capacity_bytes``
            What is in the way of that: the tier and the moment, what must be there at once, and what there is room for;
            or the figure that is not met, and what it is. If the plan blocks itself, only ``limit`` says so.

    Raises
    ------
    ConfigError
        If a document is wrong, nothing says what is searched, or a condition is none.
    """
    loaded = catalog.resolve(scenario, set)
    asked = {"field" if key == "of" else key: value for key, value in asked.items()}
    question = catalog.question(loaded, kind, asked)
    search, hardware = Search(loaded, question, policies, asked), loaded.hardware
    tried = sweep([search.edge(who) for who in search.rows], progress=progress)
    own = {label: [row for row in tried if row["policy"] == label] for label in search.rows}
    found = [search.answer(own[label], limit) for label in search.rows for limit in question.limits]
    at_most = search.built(question.values[-1]) if question.sign < 0 else None
    is_lacking = any(row[question.column] is None for row in found)
    capped = without_effect(at_most.hardware, None, [question.path]) if at_most is not None and is_lacking else []
    budget = loaded.scenario.budget_bytes
    if budget is not None and search.base.scenario.budget_bytes is None and not question.field.startswith("peak."):
        capped = [*capped, f"All this is without the budget of the scenario, {exact(budget, 'B')}."]
    title = loaded.scenario.title or loaded.scenario.name
    view = frontier_view(found, tried if search.grows else [], question, hardware.compute_tier, capped, title)
    best = {row["policy"]: row for row in found}
    also = _limiting(search, best, workers, progress)
    return Sweep(question.key, [loaded], found, view, {"points": tried} if search.grows else {}, also=also)


def largest(scenario: Named, **asked: Any) -> Sweep:
    """Search the largest value of a field of the workload with which each row still fits: see `frontier`.

    Parameters
    ----------
    scenario, asked
        As for `frontier`; of ``slowdown`` (how many times as long as that of ``over`` a step may be) each has an
        answer. What is not given is as the scenario says under ``largest``.
    """
    return frontier(scenario, kind=Largest, **asked)


def least(scenario: Named, **asked: Any) -> Sweep:
    """Search the least value of a figure of the machine with which each row still fits: see `frontier`.

    What rows set for themselves of it does not count.

    Parameters
    ----------
    scenario, asked
        As for `largest`; in a scenario the question stands under ``least``.
    """
    return frontier(scenario, kind=Least, **asked)


def pareto(  # noqa: PLR0913 - what is asked, and by name what is seldom said
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    workers: int = 1,
    of: str = "",
    rooms: int = _ROOMS,
) -> Sweep:
    """Hold the peak of the compute tier, or a cost, against the step, row by row.

    The capacity of the tier goes from the least that any plan needs to what all needs at once; where steps differ by
    more than a quarter between two capacities, the distance is halved.

    Parameters
    ----------
    scenario, set, policies, progress, workers
        As for `frontier`.
    of
        What is held against the step: ``peak.hbm``, of the compute tier, with what no plan beats as its edge, or a cost
        that the machine states, by its heading or its column (``cost``, ``energy/token``); default: the peak.
    rooms
        How many capacities are tried first.

    Returns
    -------
    Sweep
        One row per policy (and bound) and amount, of which none has a shorter step with a lower one: as of `frontier`;
        the table ``points`` has all that were tried.

    Raises
    ------
    ConfigError
        If a document is wrong, or the machine states no such cost.
    """
    loaded = catalog.resolve(scenario, set)
    machine, tier = loaded.hardware, loaded.hardware.compute_tier
    peak = f"peak_{tier}_bytes"
    paid = [column for column in metrics.columns(machine, ("cost",)) if figure_of(column).worse != "less"]
    with told_at("--of"):
        column = named(of, (peak, *paid)) if of else peak
    question = catalog.question(loaded, Frontier, {"field": f"peak.{tier}", "over": COMPUTE})
    search = Search(loaded, question, policies, {}, is_bounded=column == peak)
    case = search.built(None)
    low = max(task.limits(may_repeat=True).peak_bytes(1 << 62) for task in case.tasks)
    high = max(int(live_bytes(task.graph).max()) for task in case.tasks)
    steps = _BETWEEN * (rooms - 1)
    usable = dict.fromkeys(low + (high - low) * number // steps for number in range(steps + 1))
    fine = [case.hardware.tiers[tier].capacity_for(one) for one in usable]
    first = [(one,) for one in dict.fromkeys([*fine[::_BETWEEN], fine[-1]])]
    studies = [search.study(who, first, candidates=fine, differ=_bends) for who in search.rows]
    tried = sweep(studies, progress=progress)
    own = {who: [row for row in tried if row["policy"] == who] for who in search.rows}
    found = [row for rows in own.values() for row in undominated(rows, column)]
    slowest = {price: int(price * case.compute_ns) for price in PRICES}
    floors = {
        who: {price: case.least_peak_bytes(ns, **kind) for price, ns in slowest.items()}
        for who, kind in search.bounds.items()
    }
    view = pareto_view(found, floors, column, tier, loaded.scenario.title or loaded.scenario.name)
    least = {who: row for who in own for row in found[::-1] if row["policy"] == who}
    return Sweep("frontier", [loaded], found, view, {"points": tried}, also=_limiting(search, least, workers, progress))


def _bends(less: Rows, more: Rows) -> bool:
    """Whether what lies between two capacities is worth a try."""
    steps = [row["step_ns"] if row["status"] == "ok" else math.inf for row in (*less, *more)]
    return max(steps) > _STEEP * min(steps)


def _limiting(
    search: Search, answers: Mapping[str, Row], workers: int, progress: Progress | None
) -> Callable[[], list[Sweep]]:
    """What finds what limits each row, on the machine of its answer."""

    def found() -> list[Sweep]:
        question, field = search.question, search.question.field
        title = f"What limits each row with its {question.direction} {field}"
        at = {who: row[field] for who, row in answers.items() if who in search.named and row["status"] == "ok"}
        places = [(catalog.at(search.base, {search.axis: value}), [who]) for who, value in at.items()]
        return [limits_at(search.base, places, workers, progress, title)] if places else []

    return found


def undominated(rows: Rows, column: str) -> Rows:
    """Return rows that ran, by a peak or a cost, of which none has a shorter step with as low a one."""
    found = Rows()
    ran = (row for row in rows if row["status"] == "ok" and row.get(column) is not None)
    for row in sorted(ran, key=lambda row: (row[column], row["step_ns"])):
        if not found or row["step_ns"] < found[-1]["step_ns"]:
            found.append(row)
    return found


def crossover(
    scenario: Named,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    **asked: str | int | None,
) -> Sweep:
    """Search where two rows swap: between values that are scanned, until who is faster is known to the resolution.

    Parameters
    ----------
    scenario, set, progress
        As for `frontier`.
    policies
        The two rows.
    asked
        As for `frontier`: ``field`` (or ``of``), ``at_most``, ``at_least``, ``multiple_of``, ``resolution``. Default of
        the ends: eight times what the documents say, and an eighth of it.

    Returns
    -------
    Sweep
        A row for each range in which the same row is faster: ``faster`` (``tie``, or ``neither`` if none runs), its
        ends ``from`` and ``to``, and there the step of each row; ``points`` has all that was tried.

    Raises
    ------
    ConfigError
        If a document is wrong, there are not two rows, or the question is none.
    """
    loaded = catalog.resolve(scenario, set)
    given = {"field" if key == "of" else key: value for key, value in asked.items()}
    question = catalog.question(loaded, Frontier, given)
    search = Search(loaded, question, policies, given, is_bounded=False)
    names = [*search.rows]
    rule = "a crossover is of two rows"
    insist(len(names) == 2, "--policy", rule, f"{len(names)}: {', '.join(names)}", "name two: --policy A --policy B")
    values, start = question.values, search.first
    low = values[0] if question.at_least is not None else max(values[0], start / _NEAR)
    high = values[-1] if question.at_most is not None else min(values[-1], start * _NEAR)
    scanned = (search.near(low * (high / low) ** (number / (_SCANNED - 1))) for number in range(_SCANNED))

    def both(loaded: Loaded, point: Point) -> Rows:
        return [row for decide in search.rows.values() for row in decide(loaded, point)]

    points = [(value,) for value in sorted({*scanned})]
    study = Study(search.base, both, (search.axis,), points, values, lambda a, b: _faster(a) != _faster(b))
    tried = sweep([study], progress=progress)
    pairs = list(zip(tried[::2], tried[1::2], strict=True))
    found = []
    for faster, own in groupby(pairs, key=_faster):
        ends = [*own]
        steps = {
            f"{at}_{row['policy']}_ns": row.get("step_ns")
            for at, pair in (("from", ends[0]), ("to", ends[-1]))
            for row in pair
        }
        found.append({"faster": faster, "from": ends[0][0][question.field], "to": ends[-1][0][question.field], **steps})
    view = crossover_view(found, tried, names, question, loaded.scenario.title or loaded.scenario.name)
    return Sweep("crossover", [loaded], found, view, {"points": tried})


def _faster(pair: Sequence[Row]) -> str:
    """Which of two rows has the shorter step."""
    steps = [row["step_ns"] if row["status"] == "ok" else math.inf for row in pair]
    if steps[0] == steps[1]:
        return "tie" if steps[0] < math.inf else "neither"
    return str(pair[0 if steps[0] < steps[1] else 1]["policy"])
