"""What no plan can beat, and what no plan can fit.

Premises of every bound here: each op runs once in each step (no recompute), in program order, on one compute stream,
in its own time (no contention for the compute tier), and steps begin and end with the persistent tensors at home.

The step time is the distance of the ends of the last compute in the last two steps; in a run of one step it is the
makespan. Let ``S`` be the start of the last op of a step. *All copies into the compute tier that a step forces lie
between two such starts*: they are issued after the step before, so that none starts before that step's last compute
has started; and each brings data that some op of the step reads, so that all have ended when the last op starts. The
same holds for copies out that make room for an op, and for what no op of the run's only step waits for, because the
makespan counts it. As the last op takes equally long in both steps, the distance of the ends is the distance of the
starts, and a link that must carry ``b`` bytes in it at a bandwidth ``w`` needs at least ``b / w``.

What is forced:

- *in*: a persistent tensor whose home is not the compute tier, if the first op of the step that uses it reads it;
- *back*: such a tensor once it was written. In a run of several steps the copy back may end in the next step or
  after the last compute, so it counts in runs of one step only;
- *by the budget*: while op ``k`` runs, what it uses and its workspace are in the compute tier. Of the other values
  that are needed later, those beyond the budget are not. Such a value, if an earlier op of the step made or used it,
  was in the compute tier and has been copied *out* since (in a run of one step, also if it has its home there; in a
  later step it may not yet have come home from the step before). If a later op of the step reads it, it is copied *in*
  after ``k``. Tensors that are forced in above are left out here, so that nothing counts twice. The largest excess
  over all ops is forced.

A copy that is forced between a home and the compute tier passes every link (or bus) without which no path is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost import ceil_div, transfer_ns
from simulator.errors import Shortfall
from simulator.graph import Graph
from simulator.hardware import Hardware, Link
from simulator.lifetime import Lifetimes, lifetimes, working_set_bytes
from simulator.plan import NOWHERE
from simulator.units import human

FREE = NOWHERE - 1
"""Home of a tensor whose home the policy chooses."""

_NS_PER_S = 10**9
_LARGEST = 5


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the step time.

    Attributes
    ----------
    ns
        The bound [ns].
    kind
        What sets it: ``compute``, ``link NAME``, ``bus NAME``, ``links into TIER`` or ``links out of TIER``.
    terms
        Kind -> what it alone would take [ns].
    """

    ns: int
    kind: str
    terms: dict[str, int] = field(default_factory=dict)


def bound(
    graph: Graph, hardware: Hardware, durations_ns: Sequence[int], homes: Sequence[int], budget_bytes: int | float
) -> Bound:
    """Find the largest of the lower bounds on the step time.

    Parameters
    ----------
    graph, hardware
        What runs, where.
    durations_ns
        Time of each op alone [ns].
    homes
        Tier id of each tensor at time 0, or `FREE`; of no account for what does not exist then.
    budget_bytes
        What may be used of the compute tier [B].

    Returns
    -------
    Bound
        ``max(compute, forced bytes / bandwidth of each link and bus)``; see the module's proof and premises.
    """
    forced = _forced(graph, hardware, homes, budget_bytes)
    terms = {"compute": sum(durations_ns)}
    for name, bus in hardware.buses.items():
        terms[f"bus {name}"] = _time_ns(forced.over(bus.links), bus.bandwidth_bytes_per_s)
    for name, link in hardware.links.items():
        bytes_ns = _time_ns(forced.over((name,)), link.bandwidth_bytes_per_s)
        terms[f"link {name}"] = max(bytes_ns, forced.channels_ns(name, link))
    for what, names in (("into", forced.into), ("out of", forced.out_of)):
        total = sum(hardware.links[name].bandwidth_bytes_per_s for name in names)
        if len(names) > 1:
            terms[f"links {what} {hardware.compute_tier}"] = _time_ns(forced.over(names), total)
    kind = max(terms, key=lambda term: terms[term])
    return Bound(terms[kind], kind, terms)


def _time_ns(size_bytes: int, bandwidth_bytes_per_s: int | float) -> int:
    if bandwidth_bytes_per_s == math.inf:
        return 0
    return ceil_div(size_bytes * _NS_PER_S, int(bandwidth_bytes_per_s))


@dataclass(frozen=True, slots=True)
class _Forced:
    """What must be copied in each step.

    Attributes
    ----------
    edges
        Link name -> (source, target), as tier ids.
    compute_tier
        Its id.
    moves
        ``(from, to, sizes)``: whole tensors that must get from one tier to another.
    excess_in, excess_out
        Bytes that the budget forces out of the compute tier, and in again.
    """

    edges: dict[str, tuple[int, int]]
    compute_tier: int
    moves: tuple[tuple[int, int, tuple[int, ...]], ...]
    excess_in: int
    excess_out: int

    @property
    def into(self) -> tuple[str, ...]:
        """Links into the compute tier."""
        return tuple(name for name, (_, target) in self.edges.items() if target == self.compute_tier)

    @property
    def out_of(self) -> tuple[str, ...]:
        """Links out of the compute tier."""
        return tuple(name for name, (source, _) in self.edges.items() if source == self.compute_tier)

    def over(self, names: Iterable[str]) -> int:
        """Bytes that must pass these links."""
        cut = set(names)
        found = sum(sum(sizes) for _, _, sizes in self._over(cut))
        return found + self.excess_in * cut.issuperset(self.into) + self.excess_out * cut.issuperset(self.out_of)

    def _over(self, cut: set[str]) -> list[tuple[int, int, tuple[int, ...]]]:
        rest = [ends for name, ends in self.edges.items() if name not in cut]
        return [move for move in self.moves if move[1] not in _reached(move[0], rest)]

    def channels_ns(self, name: str, link: Link) -> int:
        """Time that the link's channels need for the whole tensors that must pass it [ns]."""
        sizes = [size for _, _, sizes in self._over({name}) for size in sizes]
        alone = {size: transfer_ns(size, link) for size in set(sizes)}
        return ceil_div(sum(alone[size] for size in sizes), link.channels)


def _reached(start: int, edges: Sequence[tuple[int, int]]) -> set[int]:
    reached, last = {start}, 0
    while len(reached) > last:
        last = len(reached)
        reached.update(target for source, target in edges if source in reached)
    return reached


def _forced(graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float) -> _Forced:
    number = {name: i for i, name in enumerate(hardware.tier_names)}
    here = number[hardware.compute_tier]
    found, inputs = lifetimes(graph), set(graph.inputs)
    idle = _Idle(graph, found, inputs, homes, here)
    inward: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for t in range(len(graph.tensors)):
        size, home = graph.tensors[t].size_bytes, homes[t]
        if t not in inputs or home in {NOWHERE, FREE, here} or not found.uses[t]:
            continue
        if t in graph.ops[found.first_use[t]].reads:
            inward.setdefault(home, []).append(size)
        if found.writes[t] and graph.tensors[t].persistent and graph.steps == 1:
            back.setdefault(home, []).append(size)
    work = working_set_bytes(graph)
    return _Forced(
        edges={name: (number[link.source], number[link.target]) for name, link in hardware.links.items()},
        compute_tier=here,
        moves=(
            *((home, here, tuple(sizes)) for home, sizes in inward.items()),
            *((here, home, tuple(sizes)) for home, sizes in back.items()),
        ),
        excess_in=_excess(work + idle.read_later, budget_bytes),
        excess_out=_excess(work + idle.made_here, budget_bytes),
    )


def _excess(demand: NDArray[np.int64], budget_bytes: int | float) -> int:
    largest = int(demand.max())
    return int(largest - budget_bytes) if largest > budget_bytes else 0


class _Idle:
    """Bytes of the values that are needed later, but not by the op that runs; by op.

    Attributes
    ----------
    made_here
        Of tensors that were in the compute tier before, in the same step: an op made or used them there, or it is a
        run's only step and they have their home there.
    read_later
        Of tensors that no op has to fetch from another home, if an op of the step reads them later.
    all
        Of all tensors.
    """

    def __init__(
        self, graph: Graph, found: Lifetimes, inputs: set[int], homes: Sequence[int], compute_tier: int
    ) -> None:
        change = np.zeros((3, len(graph.ops) + 1), np.int64)
        made_here, read_later, everything = range(3)
        for t, first, last, is_read, from_start in _idle_stretches(graph, found, inputs):
            size, home = graph.tensors[t].size_bytes, homes[t] if t in inputs else NOWHERE
            kinds = [everything]
            if home in {NOWHERE, compute_tier} and (graph.steps == 1 or not from_start):
                kinds.append(made_here)
            if is_read and home in {NOWHERE, FREE, compute_tier}:
                kinds.append(read_later)
            for kind in kinds:
                change[kind, first] += size
                change[kind, last + 1] -= size
        self.made_here, self.read_later, self.all = np.cumsum(change, axis=1)[:, :-1]


class _Stretch(NamedTuple):
    """Ops from `first` to `last` that do not use a tensor whose value is needed.

    Attributes
    ----------
    tensor, first, last
        Which tensor, which ops.
    is_read
        Whether an op of the step reads it next.
    from_start
        Whether no op of the step used it before.
    """

    tensor: int
    first: int
    last: int
    is_read: bool
    from_start: bool


def _idle_stretches(graph: Graph, found: Lifetimes, inputs: set[int]) -> Iterable[_Stretch]:
    n, outputs = len(graph.ops), set(graph.outputs)
    for t, tensor in enumerate(graph.tensors):
        uses = found.uses[t]
        if t in inputs and uses and t in graph.ops[uses[0]].reads:
            uses = (-1, *uses)
        for after, before in pairwise(uses):
            if before > after + 1 and t in graph.ops[before].reads:
                yield _Stretch(t, after + 1, before - 1, is_read=True, from_start=after < 0)
        last = uses[-1] if uses else -1
        if last < n - 1 and (tensor.persistent or (t in outputs and uses)):
            yield _Stretch(t, last + 1, n - 1, is_read=False, from_start=last < 0)


def infeasible(graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float) -> Shortfall | None:
    """Say what no plan can do, if there is such a thing.

    No plan can give an op less room than what it uses and its workspace; begin a step with more at home in a tier
    than fits there; or hold, in all tiers that a tensor can get to together, less than the values that are needed.

    Parameters
    ----------
    graph, hardware
        What runs, where.
    homes
        As for `bound`.
    budget_bytes
        What may be used of the compute tier [B].

    Returns
    -------
    Shortfall or None
        Demand, capacity, the largest residents and the levers; None if nothing speaks against it.
    """
    return (
        _working_set_shortfall(graph, hardware, budget_bytes)
        or _homes_shortfall(graph, hardware, homes, budget_bytes)
        or _total_shortfall(graph, hardware, homes, budget_bytes)
    )


def _working_set_shortfall(graph: Graph, hardware: Hardware, budget_bytes: int | float) -> Shortfall | None:
    work = working_set_bytes(graph)
    k = int(work.argmax())
    demand = int(work[k])
    if demand <= budget_bytes:
        return None
    op, tier = graph.ops[k], hardware.compute_tier
    sizes = [(graph.tensors[t].name, graph.tensors[t].size_bytes) for t in dict.fromkeys((*op.reads, *op.writes))]
    sizes += [(f"workspace of {op.name}", op.workspace_bytes)] * bool(op.workspace_bytes)
    levers = (
        _raise_budget(tier, demand, int(budget_bytes)),
        f"split op {op.name!r}, or give it a smaller batch: what it alone uses is {human(demand, 'B')}",
    )
    return Shortfall(tier, demand, int(budget_bytes), op.name, _largest(sizes), levers)


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
    graph: Graph, hardware: Hardware, homes: Sequence[int], budget_bytes: int | float
) -> Shortfall | None:
    number = {name: i for i, name in enumerate(hardware.tier_names)}
    here = number[hardware.compute_tier]
    reached = _reached(here, [(number[k.source], number[k.target]) for k in hardware.links.values()])
    elsewhere: int | float = 0
    for name, i in number.items():
        if i in reached and i != here:
            elsewhere += hardware.tiers[name].usable_bytes
        elif i != here:
            elsewhere += sum(t.size_bytes for t, home in zip(graph.tensors, homes, strict=True) if home == i)
    if (
        sum(t.size_bytes for t in graph.tensors) + max(op.workspace_bytes for op in graph.ops)
        <= budget_bytes + elsewhere
    ):
        return None
    found, inputs = lifetimes(graph), set(graph.inputs)
    needed = working_set_bytes(graph) + _Idle(graph, found, inputs, homes, here).all
    k = int(needed.argmax())
    demand = int(needed[k])
    if demand <= budget_bytes + elsewhere:
        return None
    tier, room = hardware.compute_tier, int(budget_bytes + elsewhere)
    sizes = [(graph.tensors[t].name, graph.tensors[t].size_bytes) for t in _needed_at(graph, k)]
    levers = [_raise_budget(tier, int(demand - elsewhere), int(budget_bytes))]
    below = [name for name, i in number.items() if i in reached and i != here]
    if below:
        levers.append(f"raise the capacity of {below[0]} by {human(demand - room, 'B')}")
    else:
        levers.append(f"add a tier that {tier} has a link to")
    return Shortfall(
        tier, int(demand - elsewhere), int(budget_bytes), graph.ops[k].name, _largest(sizes), tuple(levers)
    )


def _needed_at(graph: Graph, k: int) -> list[int]:
    stretches = _idle_stretches(graph, lifetimes(graph), set(graph.inputs))
    idle = {s.tensor for s in stretches if s.first <= k <= s.last}
    return sorted(idle | {*graph.ops[k].reads, *graph.ops[k].writes})
