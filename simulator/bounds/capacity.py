"""Room that every plan needs of each tier, whatever it decides; and levers that would make it fit, each tried alone.

No plan can give an op less room than what it uses, its workspace, and what stays in the compute tier because that is
its home; begin a step with more at home in a tier than fits there; or hold, in all tiers that a tensor can get to
together, less than the values that are needed.

A lever is tried before it is named: with it, all needs must be met.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.bounds.idle import Demand
from simulator.bounds.precedence import Precedence
from simulator.errors import Shortfall, filling
from simulator.graph import Graph
from simulator.hardware import Hardware, reachable
from simulator.lifetime import live_bytes
from simulator.plan import FREE
from simulator.trace import Ints
from simulator.units import counted, human

_LARGEST = 5
"""Most residents that a message names."""

_FINEST = 64
"""Most parts into which an op, or a batch, is cut: beyond these, splitting is no advice."""


class Need(NamedTuple):
    """Room in a tier that every plan needs at once.

    Attributes
    ----------
    demand_bytes, capacity_bytes
        Bytes that must be there, and the room for them [B].
    at
        The op at which they are needed; None at the start of the step.
    counts_idle
        Whether values count as well that are needed later and could be elsewhere.
    """

    tier: int
    demand_bytes: int
    capacity_bytes: int | float
    at: int | None = None
    counts_idle: bool = False

    @property
    def short_bytes(self) -> int | float:
        """Demand beyond the capacity [B]."""
        return self.demand_bytes - self.capacity_bytes


def infeasible(
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float, *, may_repeat: bool = False
) -> Shortfall | None:
    """Say what makes every plan infeasible, if anything does.

    Parameters
    ----------
    graph, hardware
        Graph that runs; machine that it runs on.
    homes
        As for `simulator.bounds.Limits`.
    budget_bytes
        Budget of the compute tier [B].
    may_repeat
        Whether plans may run ops again; then values that can be made again need not be held.

    Returns
    -------
    Shortfall or None
        The largest gap between demand and capacity, the largest residents, the levers and the room that is needed;
        None if all needs are met.
    """
    rooms, at_home = [tier.usable_bytes for tier in hardware.tiers.values()], Counter[int]()
    rooms[hardware.compute_tier_id] = budget_bytes
    for tensor, home in zip(graph.tensors, homes, strict=True):
        at_home[home] += tensor.size_bytes
    # no need is larger than what is live at a time
    if all(at_home[tier] <= room for tier, room in enumerate(rooms)) and live_bytes(graph).max() <= budget_bytes:
        return None
    fit = GraphNeeds(graph, hardware, homes, budget_bytes, may_repeat=may_repeat)
    if not fit.short:
        return None
    worst = max(fit.short, key=lambda need: need.short_bytes)
    moment, full = "the homes at time 0", ""
    if worst.at is not None:
        moment, full = f"op {graph.ops[worst.at].name}", fit.full(worst, worst.at)
    demand, capacity = worst.demand_bytes, int(worst.capacity_bytes)
    tier, levers = hardware.tier_names[worst.tier], (*fit.free_advice(), *fit.cut_advice())
    return Shortfall(tier, demand, capacity, moment, fit.largest(worst), levers, fit.rooms(), full)


@dataclass(eq=False)
class GraphNeeds:
    """Needs of one graph on one machine.

    Parameters
    ----------
    graph, hardware, homes, budget_bytes, may_repeat
        See `infeasible`.

    Attributes
    ----------
    demand
        Bytes that must be held while each op runs.
    below
        Tiers (ids) that tensors can get to from the compute tier.
    at_home
        By tier: tensors that are there at time 0 because it is their home.
    elsewhere_bytes
        Most bytes of needed values that other tiers can hold [B].
    by_op
        By op: bytes that the compute tier must hold; and all that is needed, less what other tiers may hold [B].
    short
        The needs that are not met.
    """

    graph: Graph
    hardware: Hardware
    homes: Sequence[int]
    budget_bytes: int | float
    may_repeat: bool = False

    def __post_init__(self) -> None:
        hardware, homes, names = self.hardware, self.homes, self.hardware.tier_names
        self.sizes = [tensor.size_bytes for tensor in self.graph.tensors]
        precedence = Precedence.of(self.graph)
        self.demand = Demand(precedence, hardware, homes, may_repeat=self.may_repeat)
        self.tier = hardware.compute_tier_id
        self.usable = [tier.usable_bytes for tier in hardware.tiers.values()]
        self.usable[self.tier] = self.budget_bytes
        self.at_home = [[tensor for tensor, home in enumerate(homes) if home == tier] for tier in range(len(names))]
        home_bytes = [sum(self.sizes[tensor] for tensor in tensors) for tensors in self.at_home]
        self.below = sorted(reachable(self.tier, hardware.hops) - {self.tier})
        rooms = [self.usable[tier] if tier in self.below else home_bytes[tier] for tier in range(len(names))]
        self.elsewhere_bytes = sum(rooms) - rooms[self.tier]
        held = self.demand.held
        idle = held if self.elsewhere_bytes == math.inf else self.demand.work + self.demand.idle - self.elsewhere_bytes
        self.by_op = held, np.asarray(idle)
        needs = [Need(tier, size, self.usable[tier]) for tier, size in enumerate(home_bytes)]
        for counts_idle in (False, True):
            needed = self.by_op[counts_idle]
            needs.append(Need(self.tier, int(needed.max()), self.budget_bytes, int(needed.argmax()), counts_idle))
        self.short = [need for need in needs if need.short_bytes > 0]

    def largest(self, need: Need) -> tuple[tuple[str, int], ...]:
        """Name the largest residents where something is needed, each with its size [B], largest first."""
        tensors, workspace, resident = self.graph.tensors, list[tuple[str, int]](), set(self.at_home[need.tier])
        if need.at is not None:
            op, idle = self.graph.ops[need.at], self.demand.stretches
            needed = set(idle.tensor[(idle.first <= need.at) & (need.at <= idle.last)].tolist())
            resident = {*op.reads, *op.writes, *(needed if need.counts_idle else needed & resident)}
            workspace = [(f"workspace of {op.name}", op.workspace_bytes)] * bool(op.workspace_bytes)
        sizes = [(tensors[t].name, tensors[t].size_bytes) for t in sorted(resident)]
        return tuple(sorted([*sizes, *workspace], key=lambda item: -item[1])[:_LARGEST])

    def full(self, need: Need, worst: int) -> str:
        """Say at which op the tier fills up, and after which allocation that lasts until the peak."""
        lifetimes, ops = self.demand.lifetimes, self.graph.ops
        first = int((self.by_op[need.counts_idle] > need.capacity_bytes).argmax())
        stay = [t for t, dies in enumerate(lifetimes.dies) if dies >= worst and 0 < lifetimes.born[t] <= first]
        last = max(stay, key=lambda t: (lifetimes.born[t], lifetimes.dies[t], t), default=None)
        name = "" if last is None else self.graph.tensors[last].name
        return filling(f"op {ops[first].name}", f"op {ops[worst].name}", name)

    def rooms(self) -> tuple[dict[str, int], ...]:
        """Return the room that would make it fit: in the tiers that are short, or below for what could be elsewhere.

        Returns
        -------
        tuple of dict
            Each alone: tier -> what must be usable of it [B].
        """
        names, least = self.hardware.tier_names, dict[str, int]()
        for need in sorted(self.short, key=lambda need: need.tier):
            least[names[need.tier]] = max(need.demand_bytes, least.get(names[need.tier], 0))
        if not self.below or not all(need.counts_idle for need in self.short):
            return (least,)
        short_bytes = max(need.short_bytes for need in self.short)
        return least, {names[self.below[0]]: int(self.usable[self.below[0]] + short_bytes)}

    def free_advice(self) -> Iterator[str]:
        """Advise to free the homes of the fewest kinds of tensors, largest first, in the tiers that are short."""
        names, tensors, by_kind = self.hardware.tier_names, self.graph.tensors, Counter[str]()
        tiers = sorted({need.tier for need in self.short})
        at_home = [t for tier in tiers for t in self.at_home[tier]]
        for t in at_home:
            by_kind[tensors[t].kind] += self.sizes[t]
        kinds, freed = by_kind.most_common(), dict[str, int]()
        for kind, size_bytes in kinds:
            freed[kind] = size_bytes
            free = {t for t in at_home if tensors[t].kind in freed}
            homes = [FREE if t in free else home for t, home in enumerate(self.homes)]
            if not replace(self, homes=homes).short:
                named, where = " and of ".join(map(str, freed)), " and ".join(names[tier] for tier in tiers)
                size = human(sum(freed.values()), "B")
                option = " ".join(f"--home {kind}=free" for kind in freed)
                yield f"leave the homes of {named} tensors free ({option}): they hold {size} of {where}"
                break
        if not self.below and all(need.counts_idle for need in self.short):
            yield f"add a tier with a link from {self.hardware.compute_tier}"

    def cut_advice(self) -> Iterator[str]:
        """Advise smaller ops, or a smaller batch, if only ops need more than the budget."""
        if any(need.at is None for need in self.short):
            return
        work, demand = self.demand.work, np.maximum(*self.by_op)
        over = demand > self.budget_bytes
        if self._is_enough(demand, demand - work):
            largest = int(np.where(over, work, 0).argmax())
            ops, name = counted(int(over.sum()), "op"), self.graph.ops[largest].name
            yield f"split the {ops} over the budget; op {name} alone uses {human(int(work[largest]), 'B')}"
        lasting = [tensor.size_bytes if tensor.persistent else 0 for tensor in self.graph.tensors]
        used = np.array([sum(lasting[t] for t in {*op.reads, *op.writes}) for op in self.graph.ops], np.int64)
        everywhere = sum(lasting) - int(min(self.elsewhere_bytes, sum(lasting)))
        if self._is_enough(demand, np.maximum(used + self.demand.stays, everywhere)):
            yield "make the batch smaller, or the sequence shorter"

    def _is_enough(self, demand: Ints, fixed: Ints) -> bool:
        """Return whether the budget is met with all that is not fixed cut into at most `_FINEST` parts."""
        left, over = self.budget_bytes - fixed, demand > self.budget_bytes
        return bool((left[over] > 0).all() and (demand - fixed <= _FINEST * left)[over].all())


def raise_advice(hardware: Hardware, budget_bytes: int | None, room: Mapping[str, int]) -> str:
    """Advise how to get so much room, to the byte.

    Parameters
    ----------
    hardware, budget_bytes
        The machine, and the budget in its compute tier if one is set [B].
    room
        Tier -> what must be usable of it [B].
    """
    raised = list[tuple[str, int | float, int]]()
    for name, wanted in room.items():
        tier = hardware.tiers[name]
        if wanted > tier.usable_bytes:
            raised.append((f"the capacity of {name}", wanted - tier.usable_bytes, tier.capacity_for(wanted)))
        if name == hardware.compute_tier and budget_bytes is not None:
            raised.append((f"the budget in {name}", wanted - budget_bytes, wanted))
    return " and ".join(
        f"raise {limit} by {human(by, 'B')} to {human(to, 'B')}" + f" ({to:,} B)" * (to >= 1000)
        for limit, by, to in raised
    )


def staging_text(hardware: Hardware, tier: str) -> str:
    """Say how much of a tier staged links keep; empty if nothing.

    Parameters
    ----------
    hardware, tier
        The machine, and the name of the tier.
    """
    kept = hardware.tiers[tier].staging_bytes
    links = [name for name, link in hardware.links.items() if tier in (stage.source for stage in link.stages[1:])]
    verb = "keeps" if len(links) == 1 else "keep"
    return f"{' and '.join(links)} {verb} {human(kept, 'B')} of {tier} for chunks under way" if links else ""
