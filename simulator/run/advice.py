"""How much room would make a row run: every amount is tried before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from simulator import bounds, catalog
from simulator.catalog import Axis
from simulator.errors import CapacityError, ConfigError, Shortfall
from simulator.policies import static
from simulator.policies.decide import Policy, decided
from simulator.run.case import Case, execute, prepare
from simulator.run.placement import together
from simulator.scenario import AllocatorKind, PolicyChoice

_TRIES = 6
"""So often an amount may grow by what it still lacks."""

_EFFORT = 100_000
"""Ops of all the graphs for which plans are made to try the amounts of one room; beyond that, it may grow once."""


Tell = Callable[[int, int], None]
"""Called before each amount that is tried, with how many were, and how many may be."""


def advised(case: Case, row: str, decide: Policy, report: Shortfall, tell: Tell) -> Shortfall:
    """Add levers that name how much room is enough, for a row that does not fit.

    Parameters
    ----------
    case, row, decide
        What runs, the name of the row, and how it decides.
    report
        Why it does not fit. If it names rooms, no plan fits; `static` then tells what is enough.
    tell
        Called while amounts are tried.

    Returns
    -------
    Shortfall
        With rooms in which a plan was made and ran; none if none was found in a few tries. Other ranks count, too. What
        lacks room in a part of a tier that the policy set aside is as it was.
    """
    who, allocator = "", case.choice(row).allocator
    if report.tier not in case.hardware.tiers:
        return report
    if report.rooms:
        found, who = _witnessed(case, row, report, tell)
    else:
        found = [_enough(case, decide, {report.tier: _wanted(case, report)}, allocator, tell)]
    found = [room for room in found if room]
    if not report.rooms and found and found != [{report.tier: _wanted(case, report)}]:
        who = ", as with what it lacks here its plan would be another one, which needs more"
    said = [bounds.raised(case.hardware, case.loaded.scenario.budget_bytes, room) + who for room in found]
    levers = (*said, *_smaller_chunks(case, decide, report, allocator), *report.levers)
    return replace(report, levers=levers, rooms=tuple(found), staged=bounds.staged(case.hardware, report.tier))


def _smaller_chunks(case: Case, decide: Policy, report: Shortfall, allocator: AllocatorKind) -> Iterator[str]:
    """The sizes of chunks that leave enough room in the tier, if the row runs with them."""
    chunks = bounds.smaller_chunks(case.hardware, report.tier, _lacking(case, report))
    if not chunks:
        return
    given = _given(case, {f"links.{name}.chunk": size for name, size in chunks.items()})
    try:
        trace = execute(given, [decide(task.problem) for task in given.tasks], allocator=allocator)
    except (CapacityError, ConfigError):
        return
    if trace.status == "ok":
        yield bounds.lowered(chunks)


def _witnessed(case: Case, row: str, report: Shortfall, tell: Tell) -> tuple[list[dict[str, int]], str]:
    """For each room that is needed, what is enough for a plan of `static`, and the words for whose plan it is.

    Rows for which the same plan would be made have it made once.
    """
    own, again, choice = case.static_options(row), case.may_repeat(row), case.choice(row)
    options = own or static.Options(recompute=again)
    manner = choice if own else PolicyChoice(policy="static")
    witness = partial(decided, manner, partial(static.witness, options=options))
    found = []
    for room in report.rooms:
        key = repr((options, manner.alone, manner.staggered, manner.allocator, choice.allocator, room))
        if key not in case.enough:
            case.enough[key] = _enough(case, witness, room, choice.allocator, tell)
        found.append(case.enough[key])
    if own:
        return found, f", with which {row} runs" if any(
            a != b for a, b in zip(found, report.rooms, strict=True)
        ) else ""
    return found, f", with which static{' with recompute' * again} runs"


def _enough(
    case: Case, decide: Policy, room: Mapping[str, int], allocator: AllocatorKind, tell: Tell
) -> dict[str, int]:
    """The room, grown by what it lacks until a plan is made and runs; empty if that takes too long."""
    wanted = dict(room)
    ops = sum(len(task.problem.graph.ops) for task in case.tasks)
    tries = max(2, min(_TRIES, _EFFORT // max(1, ops)))
    for number in range(tries):
        tell(number, tries)
        given = _with_room(case, wanted)
        try:
            trace = execute(given, [decide(task.problem) for task in given.tasks], allocator=allocator)
        except CapacityError as error:
            if error.report.tier not in case.hardware.tiers:
                return {}
            wanted[error.report.tier] = _wanted(given, error.report)
        except ConfigError:
            return {}
        else:
            return wanted if trace.status == "ok" else {}
    return {}


def _wanted(case: Case, report: Shortfall) -> int:
    """What must be usable of a tier if each rank that shares it gets what one lacks [B]."""
    is_budget = report.tier == case.hardware.compute_tier
    usable = case.problem.budget_bytes if is_budget else case.hardware.tiers[report.tier].usable_bytes
    return int(usable) + _lacking(case, report)


def _lacking(case: Case, report: Shortfall) -> int:
    """What all ranks that share a tier lack there if each lacks as much as one [B]."""
    scope = case.hardware.tiers[report.tier].scope
    return together(case.job.ranks, case.hardware)[scope] * max(1, report.gap_bytes)


def _with_room(case: Case, room: Mapping[str, int]) -> Case:
    """The same case with at least so much room; of the compute tier, exactly so much of a budget that is set."""
    tiers = case.hardware.tiers
    least = {name: tiers[name].capacity_for(usable) for name, usable in room.items()}
    sizes = {f"tiers.{name}.capacity": size for name, size in least.items() if size > tiers[name].capacity_bytes}
    budget = room.get(case.hardware.compute_tier)
    if budget is not None and case.loaded.scenario.budget_bytes is not None:
        sizes["scenario.budget"] = budget
    return _given(case, sizes)


def _given(case: Case, sizes: Mapping[str, int]) -> Case:
    """The same case with other sizes [B] in its documents."""
    point = {Axis(path, (path,), "advice", "B"): size for path, size in sizes.items()}
    return prepare(catalog.at(case.loaded, point), case.job)
