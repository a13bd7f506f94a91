"""What no plan can fit, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.full import full
from simulator.bounds.levers import levers as other_levers
from simulator.bounds.levers import rooms as least_rooms
from simulator.bounds.room import Fit, Need
from simulator.errors import Shortfall
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import NEVER, Lifetimes


def infeasible(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float, *, may_repeat: bool = False
) -> Shortfall | None:
    """Say what no plan can do, if there is such a thing.

    Parameters
    ----------
    graph, hardware
        What runs, where.
    homes
        As for `bound`.
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
    levers, rooms = other_levers(fit, short), least_rooms(fit, short)
    return Shortfall(tier, demand, capacity, at, fit.largest(worst), levers, rooms, _full(fit, worst))


def _full(fit: Fit, worst: Need) -> str:
    """When the tier is full: of what is needed at an op, as it comes; of homes, if they filled as they are used."""
    found = fit.idle.lifetimes
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


def _come_by(graph: Graph, came: Mapping[int, int]) -> NDArray[np.int64]:
    """By op, what has come with it and before [B]."""
    change = np.zeros(len(graph.ops), np.int64)
    for tensor, op in came.items():
        change[op] += graph.tensors[tensor].size_bytes
    return np.cumsum(change)
