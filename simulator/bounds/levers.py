"""What would make fit what does not: each lever alone, and only those that can.

A lever is tried before it is named: with it, nothing must speak against a plan any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.room import Fit, Need
from simulator.graph import Graph
from simulator.plan import FREE
from simulator.units import counted, human

_FINEST = 64
"""An op, or a batch, is not cut into more parts than this."""


def levers(fit: Fit, short: Sequence[Need]) -> tuple[str, ...]:
    """Say what would make it fit: first the least room that does, then what else can.

    Parameters
    ----------
    fit
        What any plan needs.
    short
        What of it is not met.
    """
    found = [" and ".join(_raised(fit, short)), *_freed(fit, short)]
    if all(need.counts_idle for need in short):
        found += _room_below(fit, short)
    if all(need.at is not None for need in short):
        found += _cut(fit)
    return tuple(found)


def _raised(fit: Fit, short: Sequence[Need]) -> Iterator[str]:
    """The least room in each tier that is short."""
    demand: dict[int, int] = {}
    for need in short:
        demand[need.tier] = max(need.demand_bytes, demand.get(need.tier, 0))
    for tier, demand_bytes in sorted(demand.items()):
        name = fit.hardware.tier_names[tier]
        usable = fit.hardware.tiers[name].usable_bytes
        if demand_bytes > usable:
            yield f"raise the capacity of {name} by {human(demand_bytes - usable, 'B')}"
        if tier == fit.here and fit.budget_bytes != usable:
            by = human(demand_bytes - fit.budget_bytes, "B")
            yield f"raise the budget in {name} by {by} to {_exactly(demand_bytes)}"


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


def _room_below(fit: Fit, short: Sequence[Need]) -> Iterator[str]:
    """More room for what could be elsewhere."""
    if fit.below:
        gap = human(max(need.gap_bytes for need in short), "B")
        yield f"raise the capacity of {fit.hardware.tier_names[fit.below[0]]} by {gap}"
    else:
        yield f"add a tier that {fit.hardware.compute_tier} has a link to"


def _cut(fit: Fit) -> Iterator[str]:
    """Smaller ops, or a smaller batch; the needs beyond the budget are those of ops."""
    alone, needed = fit.by_op(counts_idle=False), fit.by_op(counts_idle=True)
    demand = np.maximum(alone, needed)
    over = demand > fit.budget_bytes
    if _parts(demand, demand - fit.idle.work, fit.budget_bytes):
        largest = int(np.where(over, fit.idle.work, 0).argmax())
        name, size = fit.graph.ops[largest].name, human(int(fit.idle.work[largest]), "B")
        if over.sum() == 1:
            yield f"split op {name!r}: what it alone uses is {size}"
        else:
            ops = counted(int(over.sum()), "op")
            yield f"split the {ops} that need more than the budget; {name!r} alone uses {size}"
    if _parts(demand, _lasting(fit), fit.budget_bytes):
        yield "make the batch smaller, or the sequence shorter"


def _lasting(fit: Fit) -> NDArray[np.int64]:
    """What of the demand at each op is there at any size of the batch: of persistent tensors [B]."""
    sizes = _persistent_bytes(fit.graph)
    used = np.array([sum(sizes[t] for t in {*op.reads, *op.writes}) for op in fit.graph.ops], np.int64)
    all_of_them = sum(sizes) - min(fit.elsewhere_bytes, sum(sizes))
    found: NDArray[np.int64] = np.maximum(used + fit.idle.stays, int(all_of_them))
    return found


def _persistent_bytes(graph: Graph) -> list[int]:
    return [tensor.size_bytes if tensor.persistent else 0 for tensor in graph.tensors]


def _parts(demand: NDArray[np.int64], fixed: NDArray[np.int64], budget_bytes: int | float) -> bool:
    """Whether a few parts are enough to meet the budget, if all but what is fixed is cut."""
    left = budget_bytes - fixed
    over = demand > budget_bytes
    return bool((left[over] > 0).all() and (demand - fixed <= _FINEST * left)[over].all())
