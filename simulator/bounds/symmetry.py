"""Ranks that are alike, and how what happens before what goes from rank to rank.

Ranks are *alike* if they run the same graph, have as many of each kind beside them on their node, and meet as many of
each kind in each of their groups, spread over nodes in the same way. These kinds are found by refinement: ranks start
as alike if their graphs are the same, and are told apart until nothing tells those of a kind apart any more. So what is
true of one of a kind is true of each of them (`critical_path`). They also run the same plan, as a policy decides once
for each graph, and share bandwidth max-min: so they do the same at the same times, as long as they begin together and
no shared tier can run out of room, which is given in turn. Ranks that never meet may begin in turn, which lasts
(docs/explanation/many-ranks.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.bounds.critical_path import Network, Part, Timing
from simulator.bounds.precedence import Precedence
from simulator.cost import durations_ns
from simulator.graph import Job, Roles
from simulator.hardware import Hardware
from simulator.trace import instances


@dataclass(frozen=True)
class Team:
    """All ranks of a job on a machine, by kind.

    Attributes
    ----------
    job, hardware
        What runs, where.
    times_ns
        For each graph the time of each op alone, on the first rank that runs it [ns].
    streams
        For each graph the stream of each op.
    """

    job: Job
    hardware: Hardware
    times_ns: tuple[Sequence[int], ...]
    streams: tuple[tuple[int, ...], ...]

    @cached_property
    def first_alike(self) -> tuple[int, ...]:
        """For each rank the lowest one that it is alike to."""
        found = self.job.graph_of
        while True:
            finer = self._told_apart(found)
            if len(set(finer)) == len(set(found)):
                return finer
            found = finer

    def _told_apart(self, kind: Sequence[int]) -> tuple[int, ...]:
        """For each rank the first that nothing tells from it, if these are the kinds so far."""
        on_node = self.hardware.topology.devices_per_node
        beside: dict[int, Counter[int]] = {}
        for rank, one in enumerate(kind):
            beside.setdefault(rank // on_node, Counter())[one] += 1
        company = {node: tuple(sorted(count.items())) for node, count in beside.items()}
        known: dict[int, tuple[object, ...]] = {}

        def who(members: tuple[int, ...], paired: bool) -> tuple[object, ...]:
            if id(members) not in known:
                kinds = [kind[rank] for rank in members]
                nodes = sorted(Counter(rank // on_node for rank in members).values())
                known[id(members)] = (tuple(kinds if paired else sorted(kinds)), tuple(nodes))
            return known[id(members)]

        first: dict[tuple[object, ...], int] = {}
        found = []
        for rank, one in enumerate(kind):
            met = tuple(who(there[rank], bool(call.role)) for call, there in self._roles_of(rank).members.items())
            found.append(first.setdefault((one, company[rank // on_node], met), rank))
        return tuple(found)

    @cached_property
    def _roles(self) -> list[Roles]:
        return [Roles(graph) for graph in self.job.graphs]

    def _roles_of(self, rank: int) -> Roles:
        return self._roles[self.job.graph_of[rank]]

    def timings(self, *, may_repeat: bool = False) -> tuple[Timing, ...]:
        """For each graph, what holds of all ranks that run it; the path is the longest of them.

        Parameters
        ----------
        may_repeat
            Whether ops may run again.
        """
        if may_repeat not in self._timings:
            self._timings[may_repeat] = self._timed(may_repeat=may_repeat)
        return self._timings[may_repeat]

    @cached_property
    def _timings(self) -> dict[bool, tuple[Timing, ...]]:
        return {}

    @cached_property
    def _precedences(self) -> list[Precedence]:
        return [Precedence(graph, streams) for graph, streams in zip(self.job.graphs, self.streams, strict=True)]

    def _timed(self, *, may_repeat: bool) -> tuple[Timing, ...]:
        graph_of = self.job.graph_of
        leads = sorted(set(self.first_alike))
        kinds = [(self._precedences[graph_of[lead]], self._times_ns(lead)) for lead in leads]
        found: dict[int, Timing] = {}
        for lead, timing in zip(
            leads, Network(kinds, self._meetings(leads), may_repeat=may_repeat).timings(), strict=True
        ):
            other = found.get(graph_of[lead])
            found[graph_of[lead]] = timing if other is None else _either(other, timing)
        return tuple(found[graph] for graph in range(len(self.job.graphs)))

    def _times_ns(self, rank: int) -> Sequence[int]:
        number = self.job.graph_of[rank]
        if rank == self.job.graph_of.index(number):
            return self.times_ns[number]
        return durations_ns(self.job.graphs[number], self.hardware, rank)

    def _meetings(self, leads: Sequence[int]) -> Mapping[Part, Sequence[Part]]:
        """The parts of each collective, op by op of the first ranks of all kinds."""
        number = {lead: kind for kind, lead in enumerate(leads)}
        found: dict[Part, Sequence[Part]] = {}
        for kind, lead in enumerate(leads):
            for call, ops in self._roles_of(lead).ops.items():
                members = self._roles_of(lead).members[call][lead]
                parts = ((number[self.first_alike[rank]], call if rank == lead else call.answer) for rank in members)
                at = [(other, self._roles_of(leads[other]).ops.get(part, [])) for other, part in sorted(set(parts))]
                for turn, op in enumerate(ops):
                    found[kind, op] = [(other, line[turn]) for other, line in at if turn < len(line)]
        return found

    def sharers(self, graph: int) -> dict[str, int]:
        """For each bus that ranks share, how many do there at the same time what a rank of the graph does.

        Parameters
        ----------
        graph
            Which one.
        """
        on_node, first_alike = self.hardware.topology.devices_per_node, self.first_alike
        leads = sorted({first_alike[rank] for rank in self.job.ranks_of(graph)})
        may_differ = self.job.graphs[graph].steps > 1 and not self.job.graphs[graph].meets
        buses = self.hardware.buses.items() if self._is_ample and not may_differ else ()
        shared = {name: bus.scope for name, bus in buses if bus.scope != "device"}
        return {name: int(instances(scope, on_node, first_alike)[1][leads].min()) for name, scope in shared.items()}

    @cached_property
    def _is_ample(self) -> bool:
        """Whether each tier that ranks share holds all that they could bring there."""
        sizes = [sum(tensor.size_bytes for tensor in graph.tensors) for graph in self.job.graphs]
        most = sum(sizes[graph] for graph in self.job.graph_of)
        return all(tier.scope == "device" or tier.usable_bytes >= most for tier in self.hardware.tiers.values())


def _either(one: Timing, other: Timing) -> Timing:
    """What holds of the ranks of both; the path is the longer one."""
    heads, tails = (
        [min(pair) for pair in zip(*both, strict=True)]
        for both in ((one.heads_ns, other.heads_ns), (one.tails_ns, other.tails_ns))
    )
    durations = [min(pair) for pair in zip(one.durations_ns, other.durations_ns, strict=True)]
    return Timing(one.precedence, durations, heads, tails, max(one.path_ns, other.path_ns))
