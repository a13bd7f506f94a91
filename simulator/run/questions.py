"""What asks back: `hosim frontier`, with its presets `hosim largest` and `hosim least`, and `hosim crossover`.

*Frontier*: how far a field of the documents may go while a row still meets what is asked of it, and while any plan may.
*Largest* and *least* ask that it fits, and for its step. *Crossover*: where two rows swap. All are one search, in which
candidates are halved between two that differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from simulator import catalog
from simulator.catalog import Loaded
from simulator.errors import insist
from simulator.hardware import without_effect
from simulator.lifetime import live_bytes
from simulator.report.question_views import PRICES, crossover_view, free_told, frontier_view, pareto_view
from simulator.run.bisection import Given, Search
from simulator.run.case import Policies
from simulator.run.sweep import Point, Progress, Row, Rows, Study, Sweep, sweep
from simulator.scenario import Frontier, Largest, Least, Scenario
from simulator.scenario.question import COMPUTE

_NONE: Given = {}
_ROOMS, _SCANNED = 12, 9
"""Rooms between the least that any plan needs and what all needs at once; values that are scanned for a crossover."""
_FREE = "stall + recompute <= 0.1 %"
"""Of a step. To run ops again is no way to be free: a row that may do so stalls with hardly any bandwidth no more."""
_NEAR = 8
"""A crossover is looked for so many times above and below what the documents say."""


def frontier(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    kind: type[Largest] = Frontier,
    **asked: str | int | Sequence[str] | None,
) -> Sweep:
    """Search how far a field may go while each row still meets conditions, and while any plan may.

    Values are halved between one that does and one that does not. The search begins with what the documents say and
    doubles or halves it until the answer lies between. That what holds with a value holds with all that are easier is
    tried at a few values beside the answer; where it does not, that is told.

    Parameters
    ----------
    scenario
        A name in the catalogue, a path that ends in ``.yaml``, or the document itself.
    set, policies
        As in `simulator.run`.
    progress
        Called when a value was tried.
    kind
        The question; see `largest` and `least`.
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
    return searched(loaded, catalog.question(loaded, kind, asked), policies, progress, asked)


def largest(scenario: str | Path | Scenario, **asked: Any) -> Sweep:
    """Search the largest value of a field of the workload with which each row still fits: see `frontier`.

    Parameters
    ----------
    scenario, asked
        As for `frontier`; of ``slowdown`` (how many times as long as that of ``over`` a step may be) each has an
        answer. What is not given is as the scenario says under ``largest``.
    """
    return frontier(scenario, kind=Largest, **asked)


def least(scenario: str | Path | Scenario, **asked: Any) -> Sweep:
    """Search the least value of a figure of the machine with which each row still fits: see `frontier`.

    What rows set for themselves of it does not count.

    Parameters
    ----------
    scenario, asked
        As for `largest`; in a scenario the question stands under ``least``.
    """
    return frontier(scenario, kind=Least, **asked)


def searched(
    loaded: Loaded, question: Largest, policies: Policies | None, progress: Progress | None, given: Given = _NONE
) -> Sweep:
    """Answer a question about a scenario.

    Parameters
    ----------
    loaded, question
        The scenario, and what is searched.
    policies, progress
        As for `frontier`.
    given
        What of the question is not the scenario's: a message about it names the option.

    Raises
    ------
    ConfigError
        If the question names no field, or no row.
    """
    search, hardware = Search(loaded, question, policies, given), loaded.hardware
    first = [(search.first,)] if search.grows else [(question.values[-1],), (question.values[0],)]
    studies = [search.study(who, first, is_searched=True) for who in search.rows]
    tried = sweep(studies, progress=progress)
    own = {label: [row for row in tried if row["policy"] == label] for label in search.rows}
    found = [search.answer(own[label], limit) for label in search.rows for limit in question.limits]
    at_most = search.built(question.values[-1]) if question.sign < 0 else None
    is_lacking = any(row[question.column] is None for row in found)
    capped = without_effect(at_most.hardware, None, [question.path]) if at_most is not None and is_lacking else []
    title = loaded.scenario.title or loaded.scenario.name
    return Sweep(question.key, [loaded], found, frontier_view(found, question, hardware.compute_tier, capped, title))


def free(loaded: Loaded, row: str, policies: Policies | None, progress: Progress | None = None) -> list[str]:
    """Say with which bandwidth, and with which capacity, a row takes no longer than compute: each amount was tried.

    Parameters
    ----------
    loaded, row
        The scenario, and the row.
    policies, progress
        As for `frontier`.

    Raises
    ------
    ConfigError
        If a document is wrong.
    """
    machine, told = loaded.hardware, []
    wires = " + ".join(f"{kind}.*.bandwidth" for kind in ("links", "buses") if getattr(machine, kind))
    for what, field in (("bandwidth", wires), ("capacity", f"peak.{machine.compute_tier}")):
        if field:
            asked = {"field": field, "such_that": (_FREE,), "resolution": 2}
            question = catalog.question(loaded, Frontier, asked)
            search = Search(loaded, question, policies, asked, is_bounded=False)
            answer = search.answer(
                sweep([search.study(row, [(search.first,)], is_searched=True)], progress=progress), math.inf
            )
            told.append(free_told(answer, question, what))
    return told


def pareto(
    scenario: str | Path | Scenario,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the key of the document
    policies: Policies | None = None,
    progress: Progress | None = None,
    rooms: int = _ROOMS,
) -> Sweep:
    """Hold the peak of the compute tier against the step, row by row, with what no plan beats as their edge.

    The capacity of the tier goes from the least that any plan needs to what all needs at once.

    Parameters
    ----------
    scenario, set, policies, progress
        As for `frontier`.
    rooms
        How many capacities are tried.

    Returns
    -------
    Sweep
        One row per policy (and bound) and peak, of which none has a shorter step with a lower peak: as of `frontier`;
        the table ``points`` has all that were tried.

    Raises
    ------
    ConfigError
        If a document is wrong.
    """
    loaded = catalog.resolve(scenario, set)
    tier = loaded.hardware.compute_tier
    question = catalog.question(loaded, Frontier, {"field": f"peak.{tier}", "over": COMPUTE})
    search = Search(loaded, question, policies, {})
    case = search.built(None)
    low = max(task.limits(may_repeat=True).peak_bytes(1 << 62) for task in case.tasks)
    high = max(int(live_bytes(task.graph).max()) for task in case.tasks)
    usable = [low + (high - low) * number // (rooms - 1) for number in range(rooms)]
    at = [(case.hardware.tiers[tier].capacity_for(one),) for one in dict.fromkeys(usable)]
    tried = sweep([search.study(who, at) for who in search.rows], progress=progress)
    front = [
        row for label in search.rows for row in undominated([row for row in tried if row["policy"] == label], tier)
    ]
    slowest = {price: int(price * case.compute_ns) for price in PRICES}
    floors = {
        who: {price: case.least_peak_bytes(ns, **kind) for price, ns in slowest.items()}
        for who, kind in search.bounds.items()
    }
    view = pareto_view(front, floors, tier, loaded.scenario.title or loaded.scenario.name)
    return Sweep("frontier", [loaded], front, view, {"points": tried})


def undominated(rows: Rows, tier: str) -> Rows:
    """Return rows that ran, by their peak in a tier, of which none has a shorter step with as low a peak."""
    peak, found = f"peak_{tier}_bytes", Rows()
    ran = (row for row in rows if row["status"] == "ok")
    for row in sorted(ran, key=lambda row: (row[peak], row["step_ns"])):
        if not found or row["step_ns"] < found[-1]["step_ns"]:
            found.append(row)
    return found


def crossover(
    scenario: str | Path | Scenario,
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
