"""What no plan can fit, and what would make it fit: each lever alone, and only those that can.

A lever is tried before it is named: with it, nothing must speak against a plan any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simulator.bounds.capacity import Fit, Need, full
from simulator.columns import Ints
from simulator.errors import Shortfall
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import NEVER, Lifetimes
from simulator.plan import FREE
from simulator.units import counted, human

_FINEST = 64
"""An op, or a batch, is not cut into more parts than this."""


def infeasible(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float, *, may_repeat: bool = False
) -> Shortfall | None:
    """Say what no plan can do, if there is such a thing.

    Parameters
    ----------
    graph, hardware
        What runs, where.
    homes
        As for `simulator.bounds.Limits`.
    budget_bytes
        What may be used of the compute tier [B].
    may_repeat
        Whether plans that run ops again count too; values that can be made again are then not needed at once.

    Returns
    -------
    Shortfall or None
        The largest gap between demand and capacity, the largest residents, the levers and the room that is needed;
        None if nothing speaks against it.
    """
    fit = Fit(graph, hardware, homes, budget_bytes, may_repeat=may_repeat)
    short = fit.short()
    if not short:
        return None
    worst = max(short, key=lambda need: need.gap_bytes)
    at = "the homes at time 0" if worst.at is None else f"op {graph.ops[worst.at].name!r}"
    tier = hardware.tier_names[worst.tier]
    demand, capacity = worst.demand_bytes, int(worst.capacity_bytes)
    helps, least = levers(fit, short), rooms(fit, short)
    return Shortfall(tier, demand, capacity, at, fit.largest(worst), helps, least, _full(fit, worst))


def _full(fit: Fit, worst: Need) -> str:
    """When the tier is full: of what is needed at an op, as it comes; of homes, if they filled as they are used."""
    found = fit.demand.lifetimes
    if worst.at is not None:
        needed = fit.by_op(counts_idle=worst.counts_idle)
        stay = [t for t, dies in enumerate(found.dies) if dies >= worst.at]
        return full(fit.graph, found, needed, worst.capacity_bytes, worst.at, {t: found.born[t] for t in stay})
    came = {t: _filled_with(found, t) for t in fit.at_home[worst.tier]}
    said = full(fit.graph, found, _come_by(fit.graph, came), worst.capacity_bytes, 0, came)
    return f"{said}, if homes filled as they are used" if said else ""


def _filled_with(found: Lifetimes, tensor: int) -> int:
    """The op that first fills the home of a tensor; 0 if it is full from the start, or never used."""
    first = found.first_use[tensor]
    return 0 if first == NEVER or found.is_read(tensor, first) else first


def _come_by(graph: Graph, came: Mapping[int, int]) -> Ints:
    """By op, what has come with it and before [B]."""
    change = np.zeros(len(graph.ops), np.int64)
    for tensor, op in came.items():
        change[op] += graph.tensors[tensor].size_bytes
    return np.cumsum(change)


def levers(fit: Fit, short: Sequence[Need]) -> tuple[str, ...]:
    """Say what would make it fit, other than more room.

    Parameters
    ----------
    fit
        What any plan needs.
    short
        What of it is not met.
    """
    found = list(_freed(fit, short))
    if not fit.below and all(need.counts_idle for need in short):
        found.append(f"add a tier that {fit.hardware.compute_tier} has a link to")
    if all(need.at is not None for need in short):
        found += _cut(fit)
    return tuple(found)


def rooms(fit: Fit, short: Sequence[Need]) -> tuple[dict[str, int], ...]:
    """Say how much room would make it fit: the least in the tiers that are short, or more for what could be elsewhere.

    Parameters
    ----------
    fit, short
        As for `levers`.

    Returns
    -------
    tuple of dict
        Each alone: tier -> what must be usable of it [B].
    """
    names = fit.hardware.tier_names
    least: dict[str, int] = {}
    for need in sorted(short, key=lambda need: need.tier):
        least[names[need.tier]] = max(need.demand_bytes, least.get(names[need.tier], 0))
    if not fit.below or not all(need.counts_idle for need in short):
        return (least,)
    gap = max(need.gap_bytes for need in short)
    return least, {names[fit.below[0]]: int(fit.usable_bytes(fit.below[0]) + gap)}


def raised(hardware: Hardware, budget_bytes: int | None, room: Mapping[str, int]) -> str:
    """Say how to get so much room, to the byte.

    Parameters
    ----------
    hardware, budget_bytes
        The machine, and the budget in its compute tier if one is set [B].
    room
        Tier -> what must be usable of it [B].
    """
    return " and ".join(_raised(hardware, budget_bytes, room))


def _raised(hardware: Hardware, budget_bytes: int | None, room: Mapping[str, int]) -> Iterator[str]:
    for name, wanted in room.items():
        tier = hardware.tiers[name]
        if wanted > tier.usable_bytes:
            to = _exactly(tier.capacity_for(wanted))
            yield f"raise the capacity of {name} by {human(wanted - tier.usable_bytes, 'B')} to {to}"
        if name == hardware.compute_tier and budget_bytes is not None:
            yield f"raise the budget in {name} by {human(wanted - budget_bytes, 'B')} to {_exactly(wanted)}"


def staged(hardware: Hardware, tier: str) -> str:
    """Say what staged links keep of a tier; empty if that is nothing.

    Parameters
    ----------
    hardware, tier
        The machine, and the name of the tier.
    """
    links, kept = hardware.staging(tier), hardware.tiers[tier].staging_bytes
    verb = "keeps" if len(links) == 1 else "keep"
    return f"where {' and '.join(links)} {verb} {human(kept, 'B')} for chunks under way" if links else ""


def _exactly(number: int) -> str:
    return human(number, "B") + (f" ({number:,} B)" if number >= 1000 else "")


def _freed(fit: Fit, short: Sequence[Need]) -> Iterator[str]:
    """The fewest kinds of tensors, largest first, whose homes in the tiers that are short must not stay there."""
    tensors, by_kind = fit.graph.tensors, dict[str, int]()
    tiers = {need.tier for need in short}
    there = [t for tier in tiers for t in fit.at_home[tier]]
    for t in there:
        by_kind[tensors[t].kind] = by_kind.get(tensors[t].kind, 0) + tensors[t].size_bytes
    kinds = sorted(by_kind, key=lambda kind: -by_kind[kind])
    if not kinds or not _fits_without(fit, there):
        return
    for number in range(1, len(kinds) + 1):
        if _fits_without(fit, [t for t in there if tensors[t].kind in kinds[:number]]):
            size = human(sum(by_kind[kind] for kind in kinds[:number]), "B")
            names = " and of ".join(map(str, kinds[:number]))
            yield f"leave the homes of {names} tensors free: {size} of them stay in {_names(fit, tiers)}"
            return


def _names(fit: Fit, tiers: set[int]) -> str:
    return " and ".join(fit.hardware.tier_names[tier] for tier in sorted(tiers))


def _fits_without(fit: Fit, tensors: Sequence[int]) -> bool:
    """Whether all fits if these tensors may be anywhere."""
    free = set(tensors)
    homes = [FREE if t in free else home for t, home in enumerate(fit.homes)]
    return not Fit(fit.graph, fit.hardware, homes, fit.budget_bytes, may_repeat=fit.may_repeat).short()


def _cut(fit: Fit) -> Iterator[str]:
    """Smaller ops, or a smaller batch; the needs beyond the budget are those of ops."""
    alone, needed = fit.by_op(counts_idle=False), fit.by_op(counts_idle=True)
    demand = np.maximum(alone, needed)
    over = demand > fit.budget_bytes
    if _parts(demand, demand - fit.demand.work, fit.budget_bytes):
        largest = int(np.where(over, fit.demand.work, 0).argmax())
        name, size = f"op {fit.graph.ops[largest].name!r}", human(int(fit.demand.work[largest]), "B")
        if over.sum() == 1:
            yield f"split {name}: what it alone uses is {size}"
        else:
            ops = counted(int(over.sum()), "op")
            yield f"split the {ops} that need more than the budget; {name} alone uses {size}"
    if _parts(demand, _lasting(fit), fit.budget_bytes):
        yield "make the batch smaller, or the sequence shorter"


def _lasting(fit: Fit) -> Ints:
    """What of the demand at each op is there at any size of the batch: of persistent tensors [B]."""
    sizes = [tensor.size_bytes if tensor.persistent else 0 for tensor in fit.graph.tensors]
    used = np.array([sum(sizes[t] for t in {*op.reads, *op.writes}) for op in fit.graph.ops], np.int64)
    all_of_them = sum(sizes) - min(fit.elsewhere_bytes, sum(sizes))
    found: Ints = np.maximum(used + fit.demand.stays, int(all_of_them))
    return found


def _parts(demand: Ints, fixed: Ints, budget_bytes: int | float) -> bool:
    """Whether a few parts are enough to meet the budget, if all but what is fixed is cut."""
    left = budget_bytes - fixed
    over = demand > budget_bytes
    return bool((left[over] > 0).all() and (demand - fixed <= _FINEST * left)[over].all())
