"""What no plan can fit."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.bounds.idle import Idle, idle_stretches, reached
from simulator.errors import Shortfall
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import lifetimes, working_set_bytes
from simulator.units import human

_LARGEST = 5


def infeasible(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float, *, may_repeat: bool = False
) -> Shortfall | None:
    """Say what no plan can do, if there is such a thing.

    No plan can give an op less room than what it uses, its workspace, and what stays in the compute tier because that
    is its home; begin a step with more at home in a tier
    than fits there; or hold, in all tiers that a tensor can get to together, less than the values that are needed.

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
        Demand, capacity, the largest residents and the levers; None if nothing speaks against it.
    """
    return (
        _homes_shortfall(graph, hardware, homes, budget_bytes)
        or _op_shortfall(graph, hardware, homes, budget_bytes)
        or _total_shortfall(graph, hardware, homes, budget_bytes, may_repeat=may_repeat)
    )


def _op_shortfall(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float
) -> Shortfall | None:
    """Find the op that, with what stays in the compute tier because it is at home there, needs more than the budget."""
    idle = Idle(graph, hardware, homes)
    needed = idle.work + idle.stays
    k = int(needed.argmax())
    demand, used = int(needed[k]), int(idle.work[k])
    if demand <= budget_bytes:
        return None
    op, tier = graph.ops[k], hardware.compute_tier
    here = hardware.tier_names.index(tier)
    uses = dict.fromkeys((*op.reads, *op.writes))
    stay = [t for t in _needed_at(graph, k) if homes[t] == here and t not in uses]
    sizes = [(graph.tensors[t].name, graph.tensors[t].size_bytes) for t in (*uses, *stay)]
    sizes += [(f"workspace of {op.name}", op.workspace_bytes)] * bool(op.workspace_bytes)
    levers = [
        _raise_budget(tier, demand, int(budget_bytes)),
        f"split op {op.name!r}, or give it a smaller batch: what it alone uses is {human(used, 'B')}",
    ]
    if demand > used:
        levers.insert(1, f"leave the home of some of the {human(demand - used, 'B')} that stay in {tier} free")
    return Shortfall(tier, demand, int(budget_bytes), f"op {op.name!r}", _largest(sizes), tuple(levers))


def _raise_budget(tier: str, demand: int, budget: int) -> str:
    return f"raise the budget in {tier} by {human(demand - budget, 'B')} to {human(demand, 'B')}"


def _largest(sizes: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes, key=lambda item: -item[1])[:_LARGEST])


def _homes_shortfall(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float
) -> Shortfall | None:
    for number, (name, tier) in enumerate(hardware.tiers.items()):
        capacity = budget_bytes if name == hardware.compute_tier else tier.usable_bytes
        there = [t for t, home in zip(graph.tensors, homes, strict=True) if home == number]
        demand = sum(t.size_bytes for t in there)
        if demand > capacity:
            by_kind: dict[str, int] = {}
            for t in there:
                by_kind[t.kind] = by_kind.get(t.kind, 0) + t.size_bytes
            kind = max(by_kind, key=lambda k: by_kind[k])
            levers = (
                f"give {kind} tensors ({human(by_kind[kind], 'B')} of the {human(demand, 'B')}) another home",
                _raise_budget(name, demand, int(capacity)),
            )
            sizes = [(t.name, t.size_bytes) for t in there]
            return Shortfall(name, demand, int(capacity), "the homes at time 0", _largest(sizes), levers)
    return None


def _total_shortfall(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float, *, may_repeat: bool
) -> Shortfall | None:
    number = {name: i for i, name in enumerate(hardware.tier_names)}
    here = number[hardware.compute_tier]
    within_reach = reached(here, [(number[k.source], number[k.target]) for k in hardware.links.values()])
    elsewhere: int | float = 0
    for name, i in number.items():
        if i in within_reach and i != here:
            elsewhere += hardware.tiers[name].usable_bytes
        elif i != here:
            elsewhere += sum(t.size_bytes for t, home in zip(graph.tensors, homes, strict=True) if home == i)
    if (
        sum(t.size_bytes for t in graph.tensors) + max(op.workspace_bytes for op in graph.ops)
        <= budget_bytes + elsewhere
    ):
        return None
    needed = working_set_bytes(graph) + Idle(graph, hardware, homes, may_repeat=may_repeat).all
    k = int(needed.argmax())
    demand = int(needed[k])
    if demand <= budget_bytes + elsewhere:
        return None
    tier, room = hardware.compute_tier, int(budget_bytes + elsewhere)
    sizes = [(graph.tensors[t].name, graph.tensors[t].size_bytes) for t in _needed_at(graph, k)]
    levers = [_raise_budget(tier, int(demand - elsewhere), int(budget_bytes))]
    below = [name for name, i in number.items() if i in within_reach and i != here]
    if below:
        levers.insert(0, f"raise the capacity of {below[0]} by {human(demand - room, 'B')}")
    else:
        levers.append(f"add a tier that {tier} has a link to")
    return Shortfall(
        tier, int(demand - elsewhere), int(budget_bytes), f"op {graph.ops[k].name!r}", _largest(sizes), tuple(levers)
    )


def _needed_at(graph: Graph, k: int) -> list[int]:
    stretches = idle_stretches(graph, lifetimes(graph), set(graph.inputs))
    idle = {s.tensor for s in stretches if s.first <= k <= s.last}
    return sorted(idle | {*graph.ops[k].reads, *graph.ops[k].writes})
