"""The longest path through a step: when an op starts at the earliest, and how much comes after it at least.

*Happens before.* An op starts after the end of the one before it on its stream, and of those that write what it reads
or use what it writes (`precedence`). A collective starts when all its members have reached it, and takes at least its
time alone: so for each member all that comes before its own part comes before the whole, and the whole before what
comes after it. Each op takes at least its time alone. So whatever a plan decides, no op starts sooner after another
than the longest path between them.

*The window of a step.* Let ``E_s`` be the end of the last op of the *line* (stream 0) in step ``s``. In a run of
several steps the step time is ``E_n - E_(n-1)`` of the slowest rank. The window of a rank begins with that op of the
step before, whose duration does not count, and ends with that op of the step. Later ops of the line are on a path from
the first, as is all that follows from it, what is left of the step before included. An op on no such path may have run
earlier, so that its *lead* is not known, and an op that leads to no end may run later, so that its *tail* is not known.
In a run of one step the window is the whole run: it begins with time 0 and ends with the last end of all.

*Ranks that are alike* count as one. A path from one of them may come back to another one. But all of them meet equally
many, so that such paths, counted with their multiplicity, leave and reach every rank equally often, and some of them
leave and reach each exactly once (a regular bipartite graph has a perfect matching). Along these, ``E_n`` of the one
less ``E_(n-1)`` of the other is at least the path. In their sum over all ranks that are alike each step is counted
once: its mean, and so its largest, is at least the path. The same holds for a path through an op and for what else that
op's rank adds before or after it.

Where streams share a device, an op may be stretched, by any time. It is only known that later ones start after its end
(`Precedence.no_earlier`); and a bound on the distance of the starts of the last op of the line is none on that of its
ends (`Timing.shorter_ns`).

If ops run again, the last to end in the line may be one that runs again. Then what is left of the step before leads to
nothing: only later ops of the line surely come after ``E_(n-1)``. Everything else stands for the first runs.

The network of ops is swept in topological order, once for each kind of rank.

*Which ranks are alike.* Ranks are *alike* if they run the same graph, have as many of each kind beside them on their
node, and meet as many of each kind in each of their groups, spread over nodes in the same way. These kinds are found by
refinement: ranks with the same graph start as alike, and kinds are split until nothing tells ranks of a kind apart.
They also run the same plan, as a policy decides once for each graph, and share bandwidth max-min: so they do the same
at the same times, as long as they begin together and no shared tier can run out of room, which is granted in turn.
Ranks of unlike devices start as unlike, each kind with times of its own. Of delays that each rank draws, the shortest
counts for all: by how much those of the last op of the line differ is a part of `Timing.shorter_ns`.
Ranks that never meet may begin one after another, which lasts (docs/explanation/many-ranks.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

from simulator.bounds.precedence import Precedence
from simulator.cost import durations_ns
from simulator.graph import Job, Op, Roles
from simulator.hardware import Hardware
from simulator.trace import instances

_UNKNOWN = -(1 << 60)
"""Stands for an unknown time [ns], as does any number that is not much larger."""

_STRETCHED = 1 << 50
"""More than any op is stretched by what runs beside it [ns]."""

Part = tuple[int, int]
"""A kind of rank, and one of its ops."""

Edge = tuple[int, int]
"""Another node, and the least time from the start of the earlier to the start of the later one [ns]."""


@dataclass(frozen=True)
class Timing:
    """Earliest and latest times of the ops of a graph, whatever the plan.

    Attributes
    ----------
    precedence
        Order of the ops.
    durations_ns
        Time of each op alone [ns].
    leads_ns
        By op, least time from the start of the window to its start [ns]; about `_UNKNOWN` if it may be any time.
    tails_ns
        By op, least time from its end to the end of the window [ns]; about `_UNKNOWN` if it may be any time.
    path_ns
        Longest path of a step [ns].
    shorter_ns
        How much shorter the last op of the line may be than in the step before [ns]: by dynamic reads, see the package,
        or because it shared the device there.
    outlasting
        Tensors whose copies may outlast a step because dynamic reads may choose them, where the graph does not say so.
    hosted
        Ops of the host, of all ranks that share its cores, in the same window: each with the number of ranks that run
        it there at the same time, its lead and its tail [ns]. Where no ranks meet, those of this graph stand for them.
    """

    precedence: Precedence
    durations_ns: Sequence[int]
    leads_ns: Sequence[int]
    tails_ns: Sequence[int]
    path_ns: int
    shorter_ns: int = 0
    outlasting: frozenset[int] = frozenset()
    hosted: tuple[tuple[Op, int, int, int], ...] = ()

    @cached_property
    def staying(self) -> frozenset[int]:
        """Tensors of which a copy may be there from the step before."""
        graph = self.precedence.graph
        return self.outlasting | graph.cacheable if graph.steps > 1 else frozenset()

    @property
    def last_ns(self) -> int:
        """Time of the last op of the line [ns]."""
        return self.durations_ns[self.precedence.last] if self.precedence.last >= 0 else 0

    @classmethod
    def alone(cls, precedence: Precedence, durations_ns: Sequence[int], *, may_repeat: bool = False) -> Timing:
        """Return the timing of one rank whose collectives never wait for others.

        Parameters
        ----------
        precedence, durations_ns
            Order of the ops; time of each op alone [ns].
        may_repeat
            Whether ops may run again.
        """
        if precedence.in_line:
            ends = list(accumulate(durations_ns))
            total = ends[-1] if ends else 0
            leads = [end - took for end, took in zip(ends, durations_ns, strict=True)]
            shorter_ns = _STRETCHED if precedence.is_stretched and precedence.graph.steps > 1 else 0
            return cls(precedence, durations_ns, leads, [total - end for end in ends], total, shorter_ns)
        return RankNetwork([(precedence, durations_ns)], {}, may_repeat=may_repeat).timing(0, {})


class RankNetwork:
    """Network of the ops of all kinds of ranks that meet, in the measured step and the one before.

    Parameters
    ----------
    kinds
        For each kind of rank what happens before what, and the time of each op alone [ns].
    meetings
        Op by op of each kind: all parts of the collective that it is a part of. A collective without an entry meets
        nobody else.
    may_repeat
        Whether ops may run again.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Precedence, Sequence[int]]],
        meetings: Mapping[Part, Sequence[Part]],
        *,
        may_repeat: bool = False,
    ) -> None:
        self._kinds, self._may_repeat = kinds, may_repeat
        steps = [1 + (precedence.graph.steps > 1) for precedence, _ in kinds]
        ops = [len(took_ns) * times for (_, took_ns), times in zip(kinds, steps, strict=True)]
        self._first = list(accumulate(ops, initial=0))
        self._node = node = list(range(self._first[-1]))
        for part, parts in meetings.items():
            for step in (0, -1):
                node[self._at(*part, step)] = min(self._at(*p, step) for p in parts)
        self._took_ns = [ns for (_, took_ns), times in zip(kinds, steps, strict=True) for ns in [*took_ns] * times]
        self._before, self._behind = ([list[Edge]() for _ in node] for _ in range(2))
        for (precedence, _), base, count in zip(kinds, self._first, ops, strict=False):
            for op in range(count):
                for earlier in precedence.after[op]:
                    self._add(node[base + earlier], node[base + op], self._took_ns[node[base + earlier]])
                if op in precedence.no_earlier:
                    self._add(node[base + precedence.no_earlier[op]], node[base + op], 0)
        self._sorted: Sequence[int] = range(len(node)) if node == [*range(len(node))] else self._topological_order()

    def _add(self, earlier: int, later: int, lag_ns: int) -> None:
        self._behind[earlier].append((later, lag_ns))
        self._before[later].append((earlier, lag_ns))

    def _at(self, kind: int, op: int, step: int = -1) -> int:
        """Return the node of an op in the measured step (-1), or in the one before if there is one (0)."""
        return range(self._first[kind] + op, self._first[kind + 1], len(self._kinds[kind][1]))[step]

    def _topological_order(self) -> list[int]:
        """Sort the nodes, each behind its predecessors; leave out those on a cycle, and all behind them."""
        missing = [len(edges) for edges in self._before]
        in_order = [node for node, count in enumerate(missing) if not count]
        for node in in_order:  # it grows meanwhile
            for later, _ in self._behind[node]:
                missing[later] -= 1
                if not missing[later]:
                    in_order.append(later)
        return in_order

    def timing(self, kind: int, beside: Mapping[int, int]) -> Timing:
        """Return the timing of a kind of rank, beside which so many of each kind share the cores of the host."""
        precedence, durations_ns = self._kinds[kind]
        starts, rests = self._window(kind) if precedence.graph.steps > 1 else self._whole
        nodes = [self._node[self._at(kind, op)] for op in range(len(durations_ns))]
        tails = [rests[node] - self._took_ns[node] for node in nodes]
        path = max(rests, default=0) if precedence.graph.steps == 1 else 0
        if precedence.graph.steps > 1 and precedence.last >= 0:
            last = nodes[precedence.last]
            path = max(0, starts[last] + self._took_ns[last])
        shorter_ns = _STRETCHED if precedence.is_stretched else 0
        hosted = tuple(
            (self._kinds[other][0].whole.ops[op], ranks, starts[node], rests[node] - self._took_ns[node])
            for other, ranks in (beside if precedence.graph.meets else {}).items()
            for op in self._kinds[other][0].whole.on_host
            for node in range(self._first[other] + op, self._first[other + 1], len(self._kinds[other][1]))
        )
        leads = [starts[node] for node in nodes]
        return Timing(precedence, durations_ns, leads, tails, path, shorter_ns, hosted=hosted)

    @cached_property
    def _whole(self) -> tuple[list[int], list[int]]:
        """Longest paths from time 0 to each start, and from there to any end."""
        return self._longest([0] * len(self._node), self._took_ns.copy())

    def _window(self, kind: int) -> tuple[list[int], list[int]]:
        """Find the longest paths in the window of a kind of rank: to the start of each op, and from there on."""
        precedence, durations_ns = self._kinds[kind]
        starts, rests = ([_UNKNOWN] * len(self._node) for _ in range(2))
        if precedence.last >= 0:
            last_ns = durations_ns[precedence.last]
            if self._may_repeat:
                starts[self._node[self._at(kind, precedence.streams.index(0))]] = 0
            else:
                starts[self._node[self._at(kind, precedence.last, 0)]] = -last_ns
            rests[self._node[self._at(kind, precedence.last)]] = last_ns
        return self._longest(starts, rests)

    def _longest(self, starts: list[int], rests: list[int]) -> tuple[list[int], list[int]]:
        """Lengthen paths to the start of each node, and from there on, from the given beginnings and ends."""
        for lengths, order, edges in ((starts, self._sorted, self._behind), (rests, self._sorted[::-1], self._before)):
            for node in order:
                for other, lag_ns in edges[node]:
                    lengths[other] = max(lengths[other], lengths[node] + lag_ns)
        return starts, rests


@dataclass(frozen=True)
class Team:
    """All ranks of a job on a machine, by kind.

    Attributes
    ----------
    job, hardware
        Job that runs; machine that it runs on.
    times_ns
        For each graph the time of each op alone, on the first rank that runs it [ns].
    streams
        For each graph the stream of each op.
    draws
        Whether each rank draws for itself what its dynamic reads choose.
    """

    job: Job
    hardware: Hardware
    times_ns: tuple[Sequence[int], ...]
    streams: tuple[tuple[int, ...], ...]
    draws: bool = False

    @cached_property
    def devices(self) -> Sequence[Hardware]:
        """The machine as each rank sees it."""
        return self.hardware.devices(self.job.ranks)

    @cached_property
    def first_alike(self) -> tuple[int, ...]:
        """Rank -> lowest rank that is like it."""
        kinds: Sequence[int] = self.job.graph_of
        if self.hardware.ranks:
            firsts, of_ranks = dict[tuple[int, int], int](), zip(self.job.graph_of, map(id, self.devices), strict=True)
            kinds = [firsts.setdefault(kind, rank) for rank, kind in enumerate(of_ranks)]
        while True:
            finer = self._refined(kinds)
            if len(set(finer)) == len(set(kinds)):
                return finer
            kinds = finer

    def _refined(self, kind: Sequence[int]) -> tuple[int, ...]:
        """Find, for each rank, the first that the kinds so far do not tell from it."""
        on_node = self.hardware.topology.devices_per_node
        beside = [tuple(sorted(kind[node : node + on_node])) for node in range(0, len(kind), on_node)]

        @cache
        def company(members: tuple[int, ...], paired: bool) -> tuple[object, ...]:
            kinds = [kind[rank] for rank in members]
            nodes = sorted(Counter(rank // on_node for rank in members).values())
            return tuple(kinds if paired else sorted(kinds)), tuple(nodes)

        first, refined = dict[tuple[object, ...], int](), list[int]()
        for rank in range(len(kind)):
            meets = self._roles[rank].members.items()
            met = tuple(company(members_of[rank], bool(call.role)) for call, members_of in meets)
            refined.append(first.setdefault((kind[rank], beside[rank // on_node], met), rank))
        return tuple(refined)

    @cached_property
    def _roles(self) -> list[Roles]:
        roles = [Roles(graph) for graph in self.job.graphs]
        return [roles[graph] for graph in self.job.graph_of]

    @cached_property
    def precedences(self) -> list[Precedence]:
        """Graph -> order of its ops."""
        pairs, shares = zip(self.job.graphs, self.streams, strict=True), self.hardware.shares_memory
        return [Precedence.of(graph, streams, shares_memory=shares) for graph, streams in pairs]

    @cached_property
    def timings(self) -> Callable[..., tuple[Timing, ...]]:
        """Function of `may_repeat` that returns, for each graph, the timing that holds for all ranks that run it."""
        return cache(self._timed)

    def _timed(self, *, may_repeat: bool = False) -> tuple[Timing, ...]:
        graph_of, leads, timings = self.job.graph_of, sorted(set(self.first_alike)), dict[int, Timing]()
        kinds = [(self.precedences[graph_of[lead]], self._times_ns(lead)) for lead in leads]
        meets = any(graph.meets for graph in self.job.graphs)
        network = RankNetwork(kinds, self._meetings(leads), may_repeat=may_repeat) if meets else None
        for position, (kind, lead) in enumerate(zip(kinds, leads, strict=True)):
            beside = self._beside(lead, leads) if network else {}
            timing = network.timing(position, beside) if network else Timing.alone(*kind, may_repeat=may_repeat)
            timings[graph_of[lead]] = _merged(timings.get(graph_of[lead], timing), timing)
        return tuple(timings[graph] for graph in range(len(self.job.graphs)))

    def _beside(self, lead: int, leads: Sequence[int]) -> dict[int, int]:
        """Count the ranks of each kind, of the first ranks of all, that share the cores of the host with one.

        None in runs of several steps of which it is not known that ranks that are alike do the same at the same times.
        """
        host, is_whole = self.hardware.host_compute, all(graph.steps == 1 for graph in self.job.graphs)
        if host is None or not (is_whole or self._is_ample):
            return {}
        sharing = self.hardware.topology.sharing[self.hardware.tiers[host.tier].scope]
        first = lead // sharing * sharing
        return {leads.index(rank): n for rank, n in Counter(self.first_alike[first : first + sharing]).items()}

    def _times_ns(self, rank: int) -> Sequence[int]:
        graph = self.job.graph_of[rank]
        if rank == self.job.graph_of.index(graph):
            return self.times_ns[graph]
        return durations_ns(self.job.graphs[graph], self.devices[rank], rank)

    def _meetings(self, leads: Sequence[int]) -> Mapping[Part, Sequence[Part]]:
        """Find the parts of each collective, op by op of the first ranks of all kinds."""
        kind_of = {lead: kind for kind, lead in enumerate(leads)}
        parts_of: dict[Part, Sequence[Part]] = {}
        for kind, lead in enumerate(leads):
            for call, ops in self._roles[lead].ops.items():
                members = self._roles[lead].members[call][lead]
                parts = ((kind_of[self.first_alike[rank]], call if rank == lead else call.answer) for rank in members)
                lines = [(other, self._roles[leads[other]].ops.get(part, [])) for other, part in sorted(set(parts))]
                for turn, op in enumerate(ops):
                    parts_of[kind, op] = [(other, line[turn]) for other, line in lines if turn < len(line)]
        return parts_of

    def sharers(self, graph: int) -> dict[str, int]:
        """Count, for each bus that ranks share, how many do there at the same time what a rank of the graph does.

        Parameters
        ----------
        graph
            Index of the graph.
        """
        sharing, first_alike = self.hardware.topology.sharing, self.first_alike
        leads = sorted({first_alike[rank] for rank in self.job.ranks_of(graph)})
        may_differ = self.job.graphs[graph].steps > 1 and not self.job.graphs[graph].meets
        buses = self.hardware.caps.items() if self._is_ample and not may_differ else ()
        shared = {name: sharing[bus.scope] for name, bus in buses if bus.scope != "device"}
        return {name: int(instances(many, first_alike)[1][leads].min()) for name, many in shared.items()}

    @cached_property
    def _is_ample(self) -> bool:
        """Whether each tier that ranks share holds all that they could bring there, and none draws for itself."""
        if self.draws or any(graph.spreads for graph in self.job.graphs):
            return False
        sizes = [sum(tensor.size_bytes for tensor in graph.tensors) for graph in self.job.graphs]
        most = sum(sizes[graph] for graph in self.job.graph_of)
        return all(tier.scope == "device" or tier.usable_bytes >= most for tier in self.hardware.tiers.values())


def _merged(first: Timing, second: Timing) -> Timing:
    """Return the timing that holds for the ranks of both; the path is the longer one."""
    times = ((timing.durations_ns, timing.leads_ns, timing.tails_ns) for timing in (first, second))
    durations, leads, tails = ([*map(min, *both)] for both in zip(*times, strict=True))
    path_ns = max(first.path_ns, second.path_ns)
    return replace(first, durations_ns=durations, leads_ns=leads, tails_ns=tails, path_ns=path_ns)
