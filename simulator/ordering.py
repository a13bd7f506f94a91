"""Orders in which a rank may issue its ops, and list scheduling, which finds a short one.

*What every order keeps.* An op comes behind those that wrote what it reads or writes, behind those that read what it
writes, behind what reveals its dynamic reads, and on its own side of each barrier. So all values are those of program
order, updates in place included. Those who meet come to their meetings in the same order, as they run the same graph or
are ordered together. Stages are woven each for itself: of two turns, the first in program order goes first where both
could, so that none overtakes another of its kind, and messages are sent in the order in which they are received.

*List scheduling* (Graham 1969; HEFT, Topcuoglu et al. 2002): time goes on from end to end, and whenever a stream is
free, the first ready op of a list starts on it. Each op takes its time alone, a meeting when all its members are there;
ops are issued in the order of their starts. So no order waits for itself, whatever ranks meet, and an op never stands
before one that takes room earlier. An op that takes more room than there is waits (`OpRooms`).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate, chain
from operator import itemgetter

from simulator.graph import Graph, Job, Roles
from simulator.lifetime import Lifetimes, live_bytes

Node = int
"""An op of some graph of a job, or a meeting of several."""

Part = tuple[int, int]
"""A graph of a job, and one of its ops."""


def dependences(graph: Graph) -> list[set[int]]:
    """Return, for each op, earlier ones that every order has before it."""
    after, writer, readers, barrier = list[set[int]](), dict[int, int](), dict[int, list[int]](), 0
    for index, op in enumerate(graph.ops):
        before = {writer[t] for t in (*op.reads, *op.writes) if t in writer}
        before.update(chain.from_iterable(readers.get(t, ()) for t in op.writes))
        before.update(range(barrier, index) if op.barrier else [barrier] if graph.ops[barrier].barrier else ())
        before.update([op.dynamic.revealed_by] if op.dynamic else ())
        barrier = index if op.barrier else barrier
        for t in op.reads:
            readers.setdefault(t, []).append(index)
        for t in op.writes:
            writer[t], readers[t] = index, []
        after.append(before - {index})
    return after


def in_order(graph: Graph, order: Sequence[int]) -> Graph:
    """Return the graph with its ops in another order (ids), unchecked."""
    place, ops = {op: position for position, op in enumerate(order)}, [graph.ops[op] for op in order]
    for position, op in enumerate(ops):
        if op.dynamic:
            revealed = replace(op.dynamic, revealed_by=place[op.dynamic.revealed_by])
            ops[position] = replace(op, dynamic=revealed)
    return replace(graph, ops=tuple(ops))


_EXCHANGE = 1 << 30
"""For `woven`: an exchange takes longer than all that runs beside it, and other ops take equally long."""


def woven(graph: Graph, parts: Sequence[tuple[int, int]]) -> Graph:
    """Weave turns of a rank: while one waits for a collective, another computes, until it waits as well.

    Parameters
    ----------
    graph
        The graph.
    parts
        Where turns that are woven together begin and end; no op moves into or out of such a part.
    """
    after, order = dependences(graph), [*range(len(graph.ops))]
    groups = {group.name: -position for position, group in enumerate(graph.groups, 1)}
    for start, stop in parts:
        ops = graph.ops[start:stop]
        work = OpWork(
            [{op - start for op in before if op >= start} for before in after[start:stop]],
            [_EXCHANGE if op.collective else 1 for op in ops],
            [((0, groups[op.collective.group] if op.collective else op.stream),) for op in ops],
            range(stop - start),
        )
        order[start:stop] = [start + op for op in work.listed()[0]]
    return in_order(graph, order)


@dataclass
class OpWork:
    """What a list schedule orders.

    Attributes
    ----------
    after
        For each node, those that come before it.
    streams
        The streams that each node occupies, each by its graph and its number there.
    places
        Places of the nodes in program order.
    """

    after: Sequence[set[Node]]
    times_ns: Sequence[int]
    streams: Sequence[tuple[tuple[int, int], ...]]
    places: Sequence[int]

    @cached_property
    def behind(self) -> list[list[Node]]:
        """Nodes that come after each."""
        behind = [list[Node]() for _ in self.after]
        for node, before in enumerate(self.after):
            for earlier in before:
                behind[earlier].append(node)
        return behind

    @cached_property
    def rests_ns(self) -> list[int]:
        """Longest path from the start of each node to an end (its upward rank) [ns]."""
        left, rests = [*map(len, self.behind)], [*self.times_ns]
        done = [node for node, count in enumerate(left) if not count]
        for node in done:  # it grows meanwhile
            for earlier in self.after[node]:
                rests[earlier] = max(rests[earlier], self.times_ns[earlier] + rests[node])
                left[earlier] -= 1
                if not left[earlier]:
                    done.append(earlier)
        return rests

    def bound_ns(self, *, over_steps: bool) -> int:
        """Return what no order makes shorter [ns]: the work of each stream, and the longest path.

        Over several steps of a plan only the work of its main stream is certain: of all else, a step may do a part
        beside the next one.
        """
        busy = Counter[tuple[int, int]]()
        for ns, streams in zip(self.times_ns, self.streams, strict=True):
            busy.update(dict.fromkeys(streams, ns))
        if over_steps:
            return max((ns for (_, stream), ns in busy.items() if not stream), default=0)
        return max(*self.rests_ns, *busy.values())

    def listed(self, *, by_rest: bool = False, rooms: OpRooms | None = None) -> tuple[list[Node], int]:
        """Schedule the nodes; return them in the order of their starts, and when the last one ends [ns].

        Nodes that wait for one another are left out.

        Parameters
        ----------
        by_rest
            Whether the node with the longest path to an end goes first, and not the first in program order.
        rooms
            What limits how many may be under way.
        """
        ranks = [-rest for rest in self.rests_ns] if by_rest else [0] * len(self.after)
        keys, missing = [*zip(ranks, self.places, range(len(ranks)), strict=True)], [*map(len, self.after)]
        schedule = _Started(self, rooms)
        ready = {streams[0]: list[tuple[int, int, Node]]() for streams in self.streams}
        due = [node for node, count in enumerate(missing) if not count]
        while due or schedule.ends or any(ready.values()):
            for node in due:
                insort(ready[self.streams[node][0]], keys[node])
            for stream, waiting in ready.items():
                if stream not in schedule.busy and (key := next(filter(schedule.starts, waiting), None)):
                    waiting.remove(key)
            if not schedule.ends:
                key = min(chain.from_iterable(ready.values()), key=itemgetter(1))
                schedule.starts(key, is_forced=True)
                ready[self.streams[key[-1]][0]].remove(key)
            due = list[Node]()
            for node in schedule.ended():
                for later in self.behind[node]:
                    missing[later] -= 1
                    if not missing[later]:
                        due.append(later)
        return schedule.order, schedule.now_ns


class _Started:
    """Which nodes of some work have started, and when the running ones end."""

    def __init__(self, work: OpWork, rooms: OpRooms | None) -> None:
        self._work, self._rooms = work, rooms
        self.busy, self.order = set[tuple[int, int]](), list[Node]()
        self.ends, self.now_ns = list[tuple[int, Node]](), 0

    def starts(self, key: tuple[int, int, Node], *, is_forced: bool = False) -> bool:
        """Start a node if its streams are free and there is room for it, or without room; return whether it starts."""
        node, streams = key[-1], self._work.streams[key[-1]]
        if not self.busy.isdisjoint(streams):
            return False
        if self._rooms and not self._rooms.take(node, is_forced=is_forced):
            return False
        self.busy.update(streams)
        self.order.append(node)
        heappush(self.ends, (self.now_ns + self._work.times_ns[node], node))
        return True

    def ended(self) -> list[Node]:
        """Go on to the next end, and return all nodes that end then."""
        self.now_ns, nodes = self.ends[0][0], list[Node]()
        while self.ends and self.ends[0][0] == self.now_ns:
            nodes.append(heappop(self.ends)[1])
            self.busy.difference_update(self._work.streams[nodes[-1]])
            if self._rooms:
                self._rooms.leave(nodes[-1])
        return nodes


class OpRooms:
    """Room of the compute tier that the ops of graphs take and leave if nothing moves.

    An op may go before others only if these still fit in program order afterwards. So the first op in program order
    fits as soon as nothing else runs, and no order of one graph takes more room than there is.

    Parameters
    ----------
    graphs
        The graphs.
    parts
        For each node its ops.
    rooms
        Room of each graph [B]; what the program itself takes is there in any case.
    """

    def __init__(self, graphs: Sequence[Graph], parts: Sequence[Sequence[Part]], rooms: Sequence[float]) -> None:
        self._parts, self._rooms = parts, [*map(_Room, graphs, rooms)]

    def take(self, node: Node, *, is_forced: bool) -> bool:
        """Take the room of a node, if it is there; else take it if that `is_forced`."""
        fits = is_forced or all(self._rooms[graph].fits(op) for graph, op in self._parts[node])
        for graph, op in self._parts[node] if fits else ():
            self._rooms[graph].take(op)
        return fits

    def leave(self, node: Node) -> None:
        """Leave what a node no longer needs."""
        for graph, op in self._parts[node]:
            self._rooms[graph].leave(op)


class _Room:
    """Room of one graph: what is live now, and would be at each op if all that is left ran in program order [B]."""

    def __init__(self, graph: Graph, budget_bytes: float) -> None:
        self._ops, self._sizes = graph.ops, [tensor.size_bytes for tensor in graph.tensors]
        lifetimes = Lifetimes.of(graph)
        self._last, self._left = lifetimes.last_use, [len(uses) for uses in lifetimes.uses]
        for tensor in lifetimes.stays:
            self._left[tensor] += 1  # nobody leaves it
        self._then = live_bytes(graph).copy()
        self._limit = max(budget_bytes, int(self._then.max()))
        self._there = set(lifetimes.inputs)
        self._now = sum(self._sizes[tensor] for tensor in self._there)
        self._first, self._is_taken = 0, [False] * (len(graph.ops) + 1)

    def _need(self, op: int) -> int:
        return sum(self._sizes[tensor] for tensor in {*self._ops[op].writes} - self._there)

    def fits(self, op: int) -> bool:
        need = self._need(op)
        then = int(self._then[self._first : op].max()) if op > self._first else 0
        return max(self._now + self._ops[op].workspace_bytes, then) + need <= self._limit

    def take(self, op: int) -> None:
        need, workspace = self._need(op), self._ops[op].workspace_bytes
        self._there.update(self._ops[op].writes)
        self._then[self._first : op] += need
        self._then[op] -= workspace
        self._now += need + workspace
        self._is_taken[op] = True
        while self._is_taken[self._first]:
            self._first += 1

    def leave(self, op: int) -> None:
        self._now -= self._ops[op].workspace_bytes
        for tensor in {*self._ops[op].reads, *self._ops[op].writes}:
            self._left[tensor] -= 1
            if not self._left[tensor]:
                self._now -= self._sizes[tensor]
                self._then[self._first : self._last[tensor] + 1] -= self._sizes[tensor]


def mpmd(
    job: Job, times_ns: Sequence[Sequence[int]], streams: Sequence[Sequence[int]], rooms: Sequence[float]
) -> tuple[Job, int]:
    """Order the ops of all graphs of a job together, so that streams are busy.

    Ops that meet start together. Lists by program order and by the longest path to an end are tried beside the program
    itself; what ends first is taken.

    Parameters
    ----------
    job
        What all ranks run, which `simulator.referee.check_job` has passed.
    times_ns, streams
        For each graph, the time of each op alone [ns], and its stream.
    rooms
        For each graph, the room that its ops may take if nothing moves [B]; at least what they take in program order.

    Returns
    -------
    tuple
        The job, and what none of its orders ends before: the longest path, or the work of the busiest stream [ns].
    """
    first = [*accumulate((len(graph.ops) for graph in job.graphs), initial=0)]
    node_of = _nodes(job, first)
    parts, after, in_line = [list[Part]() for _ in {*node_of}], *([set[Node]() for _ in {*node_of}] for _ in range(2))
    for graph, start in enumerate(first[:-1]):
        before, last = dependences(job.graphs[graph]), dict[int, Node]()
        for op, stream in enumerate(streams[graph]):
            node = node_of[start + op]
            parts[node].append((graph, op))
            after[node].update(node_of[start + earlier] for earlier in before[op])
            in_line[node].update([last[stream]] if stream in last else [])
            last[stream] = node
    of_nodes = (
        [max(times_ns[graph][op] for graph, op in ops) for ops in parts],
        [tuple((graph, streams[graph][op]) for graph, op in ops) for ops in parts],
        [max(op for _, op in ops) for ops in parts],
    )
    work, program = OpWork(after, *of_nodes), OpWork([a | b for a, b in zip(after, in_line, strict=True)], *of_nodes)
    tried = [program.listed()]
    tried += [work.listed(by_rest=by_rest, rooms=OpRooms(job.graphs, parts, rooms)) for by_rest in (False, True)]
    nodes, _ = min(tried, key=lambda schedule: (-len(schedule[0]), schedule[1]))
    by_graph = [list[int]() for _ in job.graphs]
    for graph, op in chain.from_iterable(map(parts.__getitem__, nodes)):
        by_graph[graph].append(op)
    is_program = nodes is tried[0][0]  # so it is if ops wait for one another, which the referee tells
    graphs = job.graphs if is_program else tuple(map(in_order, job.graphs, by_graph))
    return replace(job, graphs=graphs), work.bound_ns(over_steps=job.graphs[0].steps > 1)


def _nodes(job: Job, first: Sequence[int]) -> list[Node]:
    """Return the node of each op of all graphs, one behind another: those that meet have the same."""
    lead, roles = [*range(first[-1])], [*map(Roles, job.graphs)]

    def leading(node: Node) -> Node:
        while lead[node] != node:
            node = lead[node]
        return node

    for graph, of_graph in enumerate(roles if len(roles) > 1 else ()):
        for call, ops in of_graph.ops.items():
            meetings = {of_graph.members[call][rank] for rank in job.ranks_of(graph)}
            for other in sorted({job.graph_of[rank] for members in meetings for rank in members} - {graph}):
                for op, peer in zip(ops, roles[other].ops[call.answer], strict=True):
                    low, high = sorted((leading(first[graph] + op), leading(first[other] + peer)))
                    lead[high] = low
    numbers = dict[Node, Node]()
    return [numbers.setdefault(leading(node), len(numbers)) for node in lead]
