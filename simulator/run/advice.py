"""The memory that a row lacks: every amount is tried before a message names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from simulator import bounds
from simulator.errors import CapacityError, ConfigError, Shortfall
from simulator.policies import static
from simulator.policies.decide import Policy, decided
from simulator.policies.weave import woven
from simulator.run.case import Case, execute, prepare
from simulator.scenario import AllocatorKind, PolicyChoice

_TRIES = 6
"""Times that an amount may grow by what it still lacks: each time everything is planned and replayed again."""

Tell = Callable[[int, int], None]
"""Called before each amount is tried, with the number of those tried before, and the most that may be."""


def advised(case: Case, row: str, decide: Policy, report: Shortfall, tell: Tell) -> Shortfall:
    """Add levers that name how much room is enough to the report of a row that does not fit.

    Parameters
    ----------
    case, row, decide
        What runs, the name of the row, and its policy.
    report
        Why it does not fit. If it names rooms, no plan fits; the amounts are then tried with `static`.
    tell
        Called while amounts are tried.

    Returns
    -------
    Shortfall
        The report with rooms in which a plan was made and ran on all ranks; without, if a few tries found none. A
        report about a part of a tier that the policy set aside is returned as it is.
    """
    if report.tier not in case.hardware.tiers:
        return report
    choice, who = case.choice(row), row
    if report.rooms:
        options = case.static_options(row) or static.Options(recompute=case.may_repeat(row))
        manner = choice if choice.policy == "static" else PolicyChoice(policy="static")
        witness = partial(woven, decide=partial(static.witness, options=options))
        decide = partial(decided, manner, witness)
        who = row if manner is choice else f"static{' with recompute' * options.recompute}"
    levers, rooms = list[str](), list[dict[str, int]]()
    for lacking in report.rooms or ({report.tier: _usable_bytes(case, report)},):
        if room := _enough_room(case, decide, lacking, choice.allocator, tell):
            is_least = room == lacking and who == row
            lever = bounds.raise_advice(case.hardware, case.loaded.scenario.budget_bytes, room)
            levers.append(lever if is_least else f"{lever} for {who} to run")
            rooms.append(room)
    staged = bounds.staging_text(case.hardware, report.tier)
    return replace(report, levers=(*levers, *report.levers), rooms=tuple(rooms), staged=staged)


def _usable_bytes(case: Case, report: Shortfall) -> int:
    """Return how much of a tier must be usable for each rank that shares it to get what one rank lacks [B]."""
    tier = case.hardware.tiers[report.tier]
    usable = case.problem.budget_bytes if report.tier == case.hardware.compute_tier else tier.usable_bytes
    sharing = min(case.job.ranks, case.hardware.topology.sharing[tier.scope])
    return int(usable) + sharing * max(1, report.short_bytes)


def _enough_room(
    case: Case, decide: Policy, lacking: Mapping[str, int], allocator: AllocatorKind, tell: Tell
) -> dict[str, int]:
    """Grow the room by what it lacks until a plan is made and runs; return none if that takes too many tries."""
    room, machine, scenario = dict(lacking), case.loaded.hardware, case.loaded.scenario
    tiers = machine.tiers
    for tries in range(_TRIES):
        tell(tries, _TRIES)
        sizes = {name: tiers[name].capacity_for(usable) for name, usable in room.items()}
        grown = {
            name: tiers[name].model_copy(update={"capacity_bytes": size})
            for name, size in sizes.items()
            if size > tiers[name].capacity_bytes
        }
        budget_bytes = scenario.budget_bytes
        if budget_bytes is not None:
            budget_bytes = room.get(machine.compute_tier, budget_bytes)
        hardware = machine.model_copy(update={"tiers": tiers | grown}) if grown else machine
        enough = scenario.model_copy(update={"budget_bytes": budget_bytes})
        larger = prepare(replace(case.loaded, hardware=hardware, scenario=enough), case.job)
        try:
            trace = execute(larger, [decide(task.problem) for task in larger.tasks], allocator=allocator)
        except CapacityError as error:
            if error.report.tier not in tiers:
                return {}
            room[error.report.tier] = _usable_bytes(larger, error.report)
        except ConfigError:
            return {}
        else:
            return room if trace.status == "ok" else {}
    return {}
