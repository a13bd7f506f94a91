"""What any plan needs of each tier, whatever it decides, and when it is full.

No plan can give an op less room than what it uses, its workspace, and what stays in the compute tier because that is
its home; begin a step with more at home in a tier than fits there; or hold, in all tiers that a tensor can get to
together, less than the values that are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulator.bounds.cuts import reached
from simulator.bounds.idle import Demand
from simulator.bounds.precedence import Precedence
from simulator.columns import Ints
from simulator.errors import full_from
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.lifetime import Lifetimes

_LARGEST = 5


class Need(NamedTuple):
    """What any plan needs of a tier at once.

    Attributes
    ----------
    tier
        Which one (id).
    demand_bytes, capacity_bytes
        What must be there, and what there is room for [B].
    at
        The op (id) at which this is; None if it is where the step begins.
    counts_idle
        Whether what is needed later, and could be elsewhere, counts as well.
    """

    tier: int
    demand_bytes: int
    capacity_bytes: int | float
    at: int | None
    counts_idle: bool = False

    @property
    def gap_bytes(self) -> int | float:
        """By how much the demand exceeds the capacity."""
        return self.demand_bytes - self.capacity_bytes


class Fit:
    """The needs of one graph on one machine.

    Parameters
    ----------
    graph, hardware, homes, budget_bytes, may_repeat
        See `infeasible`.

    Attributes
    ----------
    demand
        What must be held while each op runs.
    here
        The compute tier (id).
    below
        Tiers (ids) that tensors can get to from the compute tier.
    at_home
        By tier: tensors that are there at time 0 because it is their home.
    elsewhere_bytes
        What other tiers can hold of what is needed at most [B].
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        homes: Sequence[int],
        budget_bytes: int | float,
        *,
        may_repeat: bool = False,
    ) -> None:
        self.graph, self.hardware, self.homes, self.budget_bytes = graph, hardware, homes, budget_bytes
        self.may_repeat = may_repeat
        self.demand = Demand(Precedence.of(graph), hardware, homes, may_repeat=may_repeat)
        names = hardware.tier_names
        self.here = names.index(hardware.compute_tier)
        self.at_home: list[list[int]] = [[] for _ in names]
        for tensor, home in enumerate(homes):
            if home >= 0:
                self.at_home[home].append(tensor)
        links = [(names.index(k.source), names.index(k.target)) for k in hardware.links.values()]
        self.below = sorted(reached(self.here, links) - {self.here})
        self.elsewhere_bytes = sum(
            self.usable_bytes(tier) if tier in self.below else self._home_bytes(tier)
            for tier in range(len(names))
            if tier != self.here
        )

    def usable_bytes(self, tier: int) -> int | float:
        """What there is room for in a tier [B]."""
        if tier == self.here:
            return self.budget_bytes
        return self.hardware.tiers[self.hardware.tier_names[tier]].usable_bytes

    def _home_bytes(self, tier: int) -> int:
        return sum(self.graph.tensors[t].size_bytes for t in self.at_home[tier])

    def needs(self) -> list[Need]:
        """What each tier must hold where a step begins, and the compute tier at its worst op, alone and with others."""
        found = [Need(tier, self._home_bytes(tier), self.usable_bytes(tier), None) for tier in range(len(self.at_home))]
        for counts_idle in (False, True):
            needed = self.by_op(counts_idle=counts_idle)
            op = int(needed.argmax())
            found.append(Need(self.here, int(needed[op]), self.budget_bytes, op, counts_idle))
        return found

    def by_op(self, *, counts_idle: bool) -> Ints:
        """What the compute tier must hold at each op; or all that is needed there, less what other tiers may hold."""
        others = counts_idle and self.elsewhere_bytes != math.inf
        idle = self.demand.idle - int(self.elsewhere_bytes) if others else self.demand.stays
        found: Ints = self.demand.work + idle
        return found

    def short(self) -> list[Need]:
        """The needs that are not met."""
        return [need for need in self.needs() if need.gap_bytes > 0]

    def largest(self, need: Need) -> tuple[tuple[str, int], ...]:
        """The largest residents where something is needed: name and size [B], largest first."""
        tensors = self.graph.tensors
        if need.at is None:
            sizes = [(tensors[t].name, tensors[t].size_bytes) for t in self.at_home[need.tier]]
        else:
            op = self.graph.ops[need.at]
            there = sorted({*op.reads, *op.writes, *self._idle_at(need.at, everything=need.counts_idle)})
            sizes = [(tensors[t].name, tensors[t].size_bytes) for t in there]
            sizes += [(f"workspace of {op.name}", op.workspace_bytes)] * bool(op.workspace_bytes)
        return tuple(sorted(sizes, key=lambda item: -item[1])[:_LARGEST])

    def _idle_at(self, op: int, *, everything: bool) -> set[int]:
        """Tensors that are needed later; or of these, only those that stay in the compute tier."""
        stretches = self.demand.stretches
        needed = set(stretches.tensor[(stretches.first <= op) & (op <= stretches.last)].tolist())
        return needed if everything else needed.intersection(self.at_home[self.here])


def full(
    graph: Graph,
    found: Lifetimes,
    needed: Ints | Sequence[int],
    capacity_bytes: int | float,
    worst: int,
    came: Mapping[int, int],
) -> str:
    """Say from which op on there is no room, and what came last of all that stays; with one op, what stays longest.

    Parameters
    ----------
    graph, found
        What runs, and its lifetimes.
    needed, capacity_bytes
        What a tier must hold at each op, and what there is room for [B]; somewhere it is too much.
    worst
        The op at which most is needed; 0 if that is where the step begins.
    came
        For each tensor that stays until then, the op that it comes with; 0 for what is there from the start.

    Returns
    -------
    str
        As a phrase (see `full_from`); empty if that is there already where most is needed, and nothing came until then.
    """
    first = int((np.asarray(needed) > capacity_bytes).argmax())
    until = ((op, found.dies[tensor], tensor) for tensor, op in came.items() if 0 < op <= first)
    *_, last = max(until, default=(None,))
    at, most = (f"op {graph.ops[op].name!r}" for op in (first, worst))
    return full_from(at, most, "" if last is None else graph.tensors[last].name)
