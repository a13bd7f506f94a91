"""What no plan can fit, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.bounds.levers import levers as other_levers
from simulator.bounds.levers import rooms as least_rooms
from simulator.bounds.room import Fit, Need
from simulator.errors import Shortfall, full_from
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import launched


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
        None if nothing speaks against it. Plans do not cross a fused group, so that for levers and room all that its
        ops use counts together; the demand is that of the machine, which runs a group op by op.
    """
    fit = Fit(graph, hardware, homes, budget_bytes, may_repeat=may_repeat)
    short = fit.short()
    if not short:
        return None
    worst = max(short, key=lambda need: need.gap_bytes)
    at = "the homes at time 0" if worst.at is None else f"op {graph.ops[worst.at].name!r}"
    tier = hardware.tier_names[worst.tier]
    demand, capacity = worst.demand_bytes, int(worst.capacity_bytes)
    issued = Fit(launched(graph), hardware, homes, budget_bytes, may_repeat=may_repeat)
    lacking = issued.short()
    levers, rooms = other_levers(issued, lacking), least_rooms(issued, lacking)
    return Shortfall(tier, demand, capacity, at, fit.largest(worst), levers, rooms, _full(fit, worst))


def _full(fit: Fit, worst: Need) -> str:
    """From which op on what is needed has no room, and what was made last of all that stays; empty if nothing was."""
    if worst.at is None:
        return ""
    found, ops = fit.idle.lifetimes, fit.graph.ops
    first = int((fit.by_op(counts_idle=worst.counts_idle) > worst.capacity_bytes).argmax())
    made = ((born, t) for t, born in enumerate(found.born) if 0 < born <= first and found.dies[t] >= worst.at)
    last = max(made, default=None)
    if last is None:
        return ""
    return full_from(f"op {ops[first].name!r}", f"op {ops[worst.at].name!r}", fit.graph.tensors[last[1]].name)
