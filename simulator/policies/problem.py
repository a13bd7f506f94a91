"""The problem a policy solves: a graph, a machine, homes, a budget, and a way to try a plan.

A *pinned* tensor has its home in the compute tier and never leaves it. A tensor may *move* if its home is left free
or lies in another tier. *Away* is where a tensor that may move goes: its own home if that is another tier, else
every tier that links join to the compute tier both ways, directly or via others, the fastest round trip first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise

from simulator.bounds import Limits, Precedence, Timing, streams_of
from simulator.cost.service import transfer_ns
from simulator.errors import ConfigError, Shortfall
from simulator.graph import Graph, TensorKind
from simulator.hardware import Hardware, Link
from simulator.lifetime import Lifetimes
from simulator.plan import FREE, NOWHERE, Plan
from simulator.scenario import AllocatorKind, Switches
from simulator.trace import Trace
from simulator.units import human

REHEARSED = 16
"""Most steps in which policies try their plans.

All steps of a graph are alike, so a plan is judged once it has settled. A fixed plan settles soon, as what a step
leaves under way is shorter than a step: persistent tensors are at home in between. A runtime also leaves a cache; one
that holds more than this many steps choose is judged while it still fills. The chosen plan runs, and is checked, over
all steps.
"""

_OF_MODEL = {TensorKind.WEIGHT, TensorKind.EXPERT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE}
"""Kinds of tensors whose sizes no batch changes."""
Hop = tuple[int, int]
"""Two tiers that a link joins, the source first."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Outcome of a plan that was tried.

    Attributes
    ----------
    makespan_ns, step_ns
        Length of the run, and of its last training step [ns].
    wait_ns
        Cause -> how long the compute stream waited for it [ns].
    trace
        The trace, if it was kept: of the whole run, or of the last training step alone.
    begun_ns
        Sum of the starts of all computes [ns].
    demand
        For each bus that ranks share, the most bandwidth asked of it at once, as a multiple of its own.
    """

    status: str
    makespan_ns: int
    step_ns: int
    peak_bytes: Mapping[str, int]
    wait_ns: Mapping[str, int]
    trace: Trace | None = field(default=None, repr=False)
    begun_ns: int = 0
    demand: Mapping[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Problem:
    """Everything a policy may know: read-only data, and `trial`.

    Attributes
    ----------
    graph, hardware
        Graph that runs; machine that it runs on.
    homes
        For each tensor a tier id, or `FREE`.
    budget_bytes
        Room of the compute tier that may be used [B].
    trial
        Tries a plan for a problem: this one, or one that was made of it by `dataclasses.replace`.
    switches
        Modelling choices about the machine.
    sharers
        For each bus that ranks share, how many of them use one instance of it.
    room_bytes
        What may be used of each tier where other ranks use it, too [B]; None: all that is usable. In the compute tier
        the budget counts instead.
    ranks
        Number of ranks on which a plan is tried; all do the same.
    turns
        Numbers of groups, to begin one after another, into which ranks may be divided; none where that cannot help.
    popularity
        For each op with dynamic reads, the share of each candidate in its choices; policies never know the choices.
    allocator
        How places of the compute tier get addresses when a plan is tried.
    tiers, compute_tier, capacities
        Names of the tiers, by id; the id of the compute tier; what may be used of each [B]: of the compute tier, the
        budget.
    sizes, lifetimes
        Size of each tensor [B]; when it is used and live.
    streams, precedence
        For each op, the stream that it runs on; what happens before what.
    known_homes
        Where each tensor is at time 0, `FREE`, or `NOWHERE` if an op makes it: what a bound may rely on.
    gives_homes, visitors
        Whether any tensor that ops use has a given home rather than a free one; those tensors whose given home is not
        the compute tier.
    links, link_names, queues
        For each ordered pair of tiers, or *hop*, that a link joins, the first such link, its name, and the number of
        its copy queue. Hops of one queue share its channels.
    neighbours
        Tiers that links reach from the compute tier and back, the fastest round trip of the largest tensor first.
    """

    graph: Graph
    hardware: Hardware
    homes: tuple[int, ...]
    budget_bytes: int | float
    durations_ns: list[int]
    trial: Callable[[Problem, Plan], Replay]
    switches: Switches = field(default_factory=Switches)
    sharers: Mapping[str, int] = field(default_factory=dict)
    room_bytes: tuple[int | float, ...] | None = None
    ranks: int = 1
    turns: tuple[int, ...] = ()
    popularity: Mapping[int, tuple[float, ...]] = field(default_factory=dict, repr=False)
    allocator: AllocatorKind = "ideal"

    def __post_init__(self) -> None:
        hardware, graph = self.hardware, self.graph
        self.tiers, self.compute_tier = hardware.tier_names, hardware.compute_tier_id
        self.lifetimes = Lifetimes.of(graph)
        capacities = list(self.room_bytes or (tier.usable_bytes for tier in hardware.tiers.values()))
        capacities[self.compute_tier] = self.budget_bytes
        self.capacities = tuple(capacities)
        self.sizes = tuple(tensor.size_bytes for tensor in graph.tensors)
        self.streams = streams_of(graph, self.switches.collectives)
        self.precedence = Precedence.of(graph, self.streams, shares_memory=hardware.shares_memory)
        inputs = {*graph.inputs}
        self.known_homes = [home if t in inputs else NOWHERE for t, home in enumerate(self.homes)]
        used = zip(self.lifetimes.uses, self.known_homes, strict=True)
        placed = [t for t, (uses, home) in enumerate(used) if uses and home not in {FREE, NOWHERE}]
        self.gives_homes = bool(placed)
        self.visitors = tuple(t for t in placed if self.homes[t] != self.compute_tier)
        queue_of = {name: i for i, queue in enumerate(hardware.queues) for name in queue}
        self.links, self.link_names, self.queues = dict[Hop, Link](), dict[Hop, str](), dict[Hop, int]()
        for (name, link), hop in zip(hardware.links.items(), hardware.hops, strict=True):
            if hop not in self.links:
                self.links[hop], self.link_names[hop], self.queues[hop] = link, name, queue_of[name]
        ways: dict[Hop, tuple[float, tuple[int, ...]]] = {(tier, tier): (0, (tier,)) for tier in range(len(self.tiers))}
        hops_ns = {hop: transfer_ns(max(self.sizes, default=0), link) for hop, link in self.links.items()}
        for _ in self.tiers:  # no path has more links than there are tiers
            for (start, end), takes_ns in hops_ns.items():
                for source, (before_ns, path) in [(a, way) for (a, b), way in ways.items() if b == start]:
                    way = before_ns + takes_ns, (*path, end)
                    ways[source, end] = min(ways.get((source, end), way), way)
        both_ways = [tier for source, tier in ways if source == self.compute_tier != tier and (tier, source) in ways]
        trips_ns = {tier: ways[self.compute_tier, tier][0] + ways[tier, self.compute_tier][0] for tier in both_ways}
        self.neighbours = tuple(sorted(both_ways, key=lambda tier: (trips_ns[tier], tier)))
        self._paths = {hop: path for hop, (_, path) in ways.items()}

    def replay(self, plan: Plan) -> Replay:
        """Try a plan, and return what happened."""
        return self.trial(self, plan)

    @cached_property
    def rehearsal(self) -> Problem:
        """The same problem over at most `REHEARSED` steps: what policies get."""
        if self.graph.steps <= REHEARSED:
            return self
        return replace(self, graph=self.graph.over(REHEARSED))

    @cached_property
    def on_accelerator(self) -> Problem:
        """The same problem as its accelerator has it, which policies solve: see `Graph.on_accelerator`."""
        view, tier, homes = self.graph.on_accelerator, self.hardware.host_tier_id, list(self.homes)
        if view is self.graph:
            return self
        for tensor, uses in enumerate(self.lifetimes.uses):
            if tensor in self.graph.made_on_host or (homes[tensor] == FREE and not uses):
                homes[tensor] = tier
        return replace(self, graph=view, homes=tuple(homes), trial=self.trial)

    @cached_property
    def alone(self) -> Problem:
        """The same problem as if this rank had shared buses and tiers for itself."""
        return replace(self, sharers={}, room_bytes=None, ranks=1, turns=())

    @cached_property
    def clock(self) -> tuple[int, ...]:
        """Start of each op, and then the end of the last, if nothing but other ops keeps them waiting [ns].

        On one stream they run back to back. An op on another stream counts as starting no sooner than the ops before
        it, so that the times ascend.
        """
        if not any(self.streams):
            return tuple(accumulate(self.durations_ns, initial=0))
        starts, ends = list[int](), list[int]()
        for took, earlier in zip(self.durations_ns, self.precedence.within, strict=True):
            starts.append(max((ends[op] for op in earlier), default=0))
            ends.append(starts[-1] + took)
        return (*accumulate(starts, max), max(ends))

    @cached_property
    def bound_ns(self) -> int:
        """Lower bound of the step for plans that run each op once, if other ranks come to collectives in time [ns]."""
        timing = Timing.alone(self.precedence, self.durations_ns)
        limits = Limits(timing, self.hardware, self.known_homes, sharers=self.sharers)
        return limits.step(self.budget_bytes).ns

    @cached_property
    def fences(self) -> tuple[int, ...]:
        """For each op, the earliest op before which its copies in may be issued without crossing a barrier."""
        after_barrier = (i + 1 if op.barrier else 0 for i, op in enumerate(self.graph.ops))
        return tuple(accumulate(after_barrier, max, initial=0))

    @cached_property
    def arrivals(self) -> Mapping[int, Sequence[int]]:
        """Op -> tensors that come in before it from a home elsewhere, to stay: at the start or behind a barrier."""
        arrivals: dict[int, list[int]] = {}
        for tensor in filter(self.comes_in, self.visitors):
            arrivals.setdefault(self.fences[self.lifetimes.first_use[tensor]], []).append(tensor)
        return arrivals

    def comes_in(self, tensor: int) -> bool:
        """Return whether some op reads the value with which a step begins, rather than overwriting it first."""
        return self.lifetimes.is_read(tensor, self.lifetimes.first_use[tensor])

    def away(self, tensor: int) -> tuple[int, ...]:
        """Return the tiers that the tensor may go to, the best first; none for a pinned tensor."""
        home = self.homes[tensor]
        if home == FREE:
            return self.neighbours
        return () if home == self.compute_tier else (home,)

    def pinned(self, tensor: int) -> bool:
        """Return whether the tensor stays in the compute tier for as long as it is live."""
        return not self.away(tensor)

    @cached_property
    def left_away(self) -> dict[int, int | float]:
        """Room that each neighbour has left beside the tensors at home there [B], the nearest first."""
        left = {tier: self.capacities[tier] for tier in self.neighbours}
        for home, size in zip(self.known_homes, self.sizes, strict=True):
            if home in left:
                left[home] -= size
        return left

    @property
    def ways(self) -> Hashable:
        """What decisions depend on that know no time, beside the graph: the same on machines with other bandwidths."""
        return self.homes, self.capacities, self.streams, self.neighbours, *sorted(self._paths.items()), *self.links

    def resolved_homes(self, chosen: Mapping[int, int] | None = None) -> tuple[int, ...]:
        """Return where each tensor is at time 0: its home, or `NOWHERE` if an op makes it.

        Parameters
        ----------
        chosen
            Tensor -> tier for tensors whose home is free; they live in the compute tier unless named here.
        """
        free = (chosen or {}).get
        return tuple([free(t, self.compute_tier) if home == FREE else home for t, home in enumerate(self.known_homes)])

    def shortfall(
        self,
        tier: int,
        demand_bytes: int,
        moment: str,
        held: Collection[int],
        levers: Sequence[str] = (),
        full: str = "",
    ) -> Shortfall:
        """Report that a tier is too small for the bytes that a policy needs there at once.

        Parameters
        ----------
        tier, demand_bytes, moment
            The tier, what it would hold [B], and when, as a phrase.
        held
            The tensors that it would hold.
        levers, full
            As for `Shortfall`; a smaller batch is among the levers where it would leave enough room.
        """
        order = sorted(held, key=lambda t: (-self.sizes[t], t))
        largest = tuple((self.graph.tensors[t].name, self.sizes[t]) for t in order[:5])
        kept = sum(self.sizes[t] for t in held if self.graph.tensors[t].kind in _OF_MODEL)
        alone = f"use more ranks, or a smaller format: the model takes {human(kept, 'B')} at any batch"
        fits = kept <= self.capacities[tier]
        levers = (*levers, "make the batch smaller, or the sequence shorter" if fits else alone)
        return Shortfall(self.tiers[tier], demand_bytes, int(self.capacities[tier]), moment, largest, levers, full=full)

    def copy_ns(self, tensor: int, source: int, target: int) -> int:
        """Return the time of a copy that has all links of its path for itself [ns]."""
        return self._path_ns(self.sizes[tensor], source, target)

    @cached_property
    def _path_ns(self) -> Callable[[int, int, int], int]:
        """Size [B], source and target -> the time of a copy; many tensors are of one size."""

        def path_ns(size_bytes: int, source: int, target: int) -> int:
            return sum(transfer_ns(size_bytes, self.links[hop]) for hop in pairwise(self.path(source, target)))

        return cache(path_ns)

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the tiers of the fastest way from one tier to another, both ends included.

        Raises
        ------
        ConfigError
            If no links lead there.
        """
        if (source, target) not in self._paths:
            must = f"a path of links leads from {self.tiers[source]!r} to {self.tiers[target]!r}"
            do = "add the link, or choose another home"
            raise ConfigError(f"hardware {self.hardware.name!r}, links", must, "none", do)
        return self._paths[source, target]
