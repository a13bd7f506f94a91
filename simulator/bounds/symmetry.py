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
from simulator.graph import PAIRED, CollectiveKind, Graph, Job
from simulator.hardware import Hardware

Call = tuple[str, CollectiveKind | None]
"""A group, and whether a rank sends or receives there; None if all members do the same."""

_ANSWER = {CollectiveKind.SEND: CollectiveKind.RECV, CollectiveKind.RECV: CollectiveKind.SEND, None: None}


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
            calls = self._calls[self.job.graph_of[rank]]
            met = tuple(who(self._members[call][rank], call[1] is not None) for call in calls)
            found.append(first.setdefault((one, company[rank // on_node], met), rank))
        return tuple(found)

    @cached_property
    def _calls(self) -> list[dict[Call, list[int]]]:
        """By graph, its calls with their ops in program order."""
        return [_calls_of(graph) for graph in self.job.graphs]

    @cached_property
    def _members(self) -> dict[Call, dict[int, tuple[int, ...]]]:
        """By call and rank, who meets then; ranks that meet name the same group in the same way."""
        found: dict[Call, dict[int, tuple[int, ...]]] = {}
        for graph, calls in zip(self.job.graphs, self._calls, strict=True):
            groups = {group.name: group for group in graph.groups}
            for name, kind in calls:
                known = found.setdefault((name, kind), {})
                for rank, members in groups[name].by_rank(kind or CollectiveKind.ALL_REDUCE).items():
                    known.setdefault(rank, members)
        return found

    def timings(self, *, may_repeat: bool = False) -> tuple[Timing, ...]:
        """For each graph, what holds of all ranks that run it; the path is the longest of them.

        Parameters
        ----------
        may_repeat
            Whether ops may run again.
        """
        known = self._timings.get(may_repeat)
        if known is None:
            known = self._timings[may_repeat] = self._timed(may_repeat=may_repeat)
        return known

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
            for call, ops in self._calls[self.job.graph_of[lead]].items():
                members = self._members[call][lead]
                lines = sorted({(number[self.first_alike[rank]], self._part(call, lead, rank)) for rank in members})
                at = [(other, self._calls[self.job.graph_of[leads[other]]].get(answer, [])) for other, answer in lines]
                for turn, op in enumerate(ops):
                    found[kind, op] = [(other, line[turn]) for other, line in at if turn < len(line)]
        return found

    @staticmethod
    def _part(call: Call, rank: int, other: int) -> Call:
        """The call by which another member comes to where a rank makes this one."""
        return call if other == rank else (call[0], _ANSWER[call[1]])

    def sharers(self, graph: int) -> dict[str, int]:
        """For each bus that ranks share, how many do there at the same time what a rank of the graph does.

        Parameters
        ----------
        graph
            Which one.
        """
        on_node, first_alike = self.hardware.topology.devices_per_node, self.first_alike
        leads = {first_alike[rank] for rank in self.job.ranks_of(graph)}
        on = {
            "node": Counter(first for rank, first in enumerate(first_alike) if rank // on_node == first // on_node),
            "supernode": Counter(first_alike),
        }
        may_differ = self.job.graphs[graph].steps > 1 and not self.job.graphs[graph].meets
        buses = self.hardware.buses.items() if self._is_ample and not may_differ else ()
        return {name: min(on[bus.scope][lead] for lead in leads) for name, bus in buses if bus.scope in on}

    @cached_property
    def _is_ample(self) -> bool:
        """Whether each tier that ranks share holds all that they could bring there."""
        sizes = [sum(tensor.size_bytes for tensor in graph.tensors) for graph in self.job.graphs]
        most = sum(sizes[graph] for graph in self.job.graph_of)
        return all(tier.scope == "device" or tier.usable_bytes >= most for tier in self.hardware.tiers.values())


def _calls_of(graph: Graph) -> dict[Call, list[int]]:
    found: dict[Call, list[int]] = {}
    for op, what in enumerate(graph.ops):
        if what.collective is not None:
            kind = what.collective.kind
            found.setdefault((what.collective.group, kind if kind in PAIRED else None), []).append(op)
    return found


def _either(one: Timing, other: Timing) -> Timing:
    """What holds of the ranks of both; the path is the longer one."""
    heads, tails = (
        [min(pair) for pair in zip(*both, strict=True)]
        for both in ((one.heads_ns, other.heads_ns), (one.tails_ns, other.tails_ns))
    )
    durations = [min(pair) for pair in zip(one.durations_ns, other.durations_ns, strict=True)]
    return Timing(one.precedence, durations, heads, tails, max(one.path_ns, other.path_ns))
