"""What the edges of a job hand over: which tensors, from whom to whom, how many bytes, and in which groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, groupby
from typing import NamedTuple

from simulator.builders.slices import Held, messages
from simulator.errors import insist
from simulator.graph import Graph, Group, Job, Tensor, TensorKind
from simulator.layout import Weight
from simulator.units import nearest
from simulator.workload import Workload
from simulator.workload.job import Edge, JobDocument

_MOST_GROUPS = 24
"""Most groups of messages that an edge may have: each is a stream of its ranks."""
Sizes = dict[tuple[int, int], int]
"""(from, to) -> bytes."""


class Uses(NamedTuple):
    """Where the tensors of a graph are used.

    Attributes
    ----------
    ids
        Name -> id.
    first
        Tensor -> the first op that names it.
    written
        Tensor -> the last op that writes it.
    inputs
        What exists before the first op.
    """

    ids: dict[str, int]
    first: dict[int, int]
    written: dict[int, int]
    inputs: frozenset[int]

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """Return the uses of a graph, found once."""
        if cls not in graph.known:
            uses = cls({tensor.name: i for i, tensor in enumerate(graph.tensors)}, {}, {}, frozenset(graph.inputs))
            for index, op in enumerate(graph.ops):
                for tensor in (*op.reads, *op.writes):
                    uses.first.setdefault(tensor, index)
                uses.written.update(dict.fromkeys(op.writes, index))
            graph.known[cls] = uses
        known: Uses = graph.known[cls]
        return known


class Placed(NamedTuple):
    """A program, built, on its ranks.

    Attributes
    ----------
    name, ranks, runs
        As in the document.
    job
        What one copy of it runs.
    work
        Its workload; None for a delay.
    weights
        How the weights of its model lie on the ranks of a copy.
    """

    name: str
    ranks: tuple[int, ...]
    runs: int
    job: Job
    work: Workload | None
    weights: dict[str, Weight]

    @property
    def graph_of(self) -> dict[int, int]:
        """Rank -> which of the graphs it runs."""
        return {rank: self.job.graph_of[i % self.job.ranks] for i, rank in enumerate(self.ranks)}

    @property
    def names(self) -> dict[str, None]:
        """The tensors of all graphs by name."""
        return dict.fromkeys(tensor.name for graph in self.job.graphs for tensor in graph.tensors)

    def holders(self, name: str) -> list[int]:
        """List the ranks whose graph has a tensor."""
        has = [name in Uses.of(graph).ids for graph in self.job.graphs]
        return [rank for rank, graph in self.graph_of.items() if has[graph]]

    def held(self, name: str, zero_stage: int = 0) -> dict[int, Held]:
        """Return what each rank that has a weight holds of it."""
        weight, size = self.weights[name], self.job.ranks
        holders, ranks = {*self.holders(name)}, weight.layout.mesh.ranks
        slices = [Held.of(weight, rank, zero_stage) for rank in range(ranks)]
        return {rank: slices[i % size % ranks] for i, rank in enumerate(self.ranks) if rank in holders}

    def size_bytes(self, name: str) -> int:
        """Return the size of a tensor [B]."""
        return next(g.tensors[Uses.of(g).ids[name]].size_bytes for g in self.job.graphs if name in Uses.of(g).ids)

    def written(self, name: str) -> int:
        """Return the last op that writes a tensor; -1 if none does."""
        uses = [Uses.of(graph) for graph in self.job.graphs]
        return max(of.written.get(of.ids.get(name, -1), -1) for of in uses)

    def is_input(self, name: str) -> bool:
        """Return whether a tensor exists before the first op."""
        return any(of.ids.get(name, -1) in of.inputs for of in map(Uses.of, self.job.graphs))

    def group(self, group: Group) -> Group:
        """Return a group of one copy as that of all copies."""
        copies = range(0, len(self.ranks), self.job.ranks)
        members = (tuple(self.ranks[at + rank] for rank in ranks) for at in copies for ranks in group.members)
        return Group(f"{self.name}.{group.name}", tuple(members))


class Handed(NamedTuple):
    """What is handed over at once: some tensors of one program to some of another.

    Attributes
    ----------
    edge, name
        Name of the edge, and of what it hands over.
    ends
        The programs.
    reads, writes
        Names of tensors in the graphs of the one and the other program.
    sizes
        What goes from whom to whom; on one rank it is a copy.
    lag
        By how many rounds it is older than what reads it.
    lasts
        Whether the other program keeps it from round to round.
    shared
        Ranks on which both programs have it as one tensor.
    """

    edge: str
    name: str
    ends: tuple[Placed, Placed]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sizes: Sizes
    lag: int
    lasts: bool
    shared: frozenset[int]


def hand_over(document: JobDocument, placed: dict[str, Placed]) -> list[Handed]:
    """Return what the edges of a job hand over, those of an edge in the order in which it is written.

    Raises
    ------
    ConfigError
        If what an edge names is not there, is written by no op, or is of unlike shapes; or ranks do not correspond.
    """
    handed, names = list[Handed](), Counter[str]()
    for edge in document.edges:
        pair = f"{edge.from_}.to.{edge.to}"
        names[pair] += 1
        name = pair if names[pair] == 1 else f"{pair}.{names[pair]}"
        ends, lag, where = (
            (placed[edge.from_], placed[edge.to]),
            document.lag(edge),
            f"job {document.name}, edge {name}",
        )
        if edge.weights:
            parts = _weights(ends, edge.stale, where)
        else:
            named = [*_matched(ends, edge.tensors, where)] if edge.tensors else _declared(placed, edge, name, where)
            named = [(source, _taken_up(placed, edge, (source, target), name)) for source, target in named]
            ends = placed[edge.from_], placed[edge.to]
            parts = [_tensor(ends, source, target, lag, where) for source, target in named]
        parts = [p._replace(edge=name, name="bytes" if edge.bytes_ else p.name, ends=ends, lag=lag) for p in parts]
        handed += sorted(parts, key=lambda part: max(ends[0].written(read) for read in part.reads))
    return handed


def _weights(ends: tuple[Placed, Placed], stale: int, where: str) -> list[Handed]:
    """Return the messages that bring what is trained to those who read it, a layer in one message."""
    sender, receiver = ends
    must, do = "a program gets weights from one that has the same model", "name such programs"
    odd = next((name for name in receiver.weights or [receiver.name] if name not in sender.weights), None)
    insist(odd is None, where, must, f"{odd!r}, which {sender.name} does not have", do)
    zero_stage, trains = (sender.work.parallel.zero_stage, sender.work.phase == "train") if sender.work else (0, False)
    must, do = "who gets weights holds them whole", "set its zero_stage below 3"
    insist(not receiver.work or receiver.work.parallel.zero_stage < 3, where, must, f"shards in {receiver.name}", do)
    blocks: dict[tuple[str, frozenset[int]], dict[str, Sizes]] = {}
    for name, weight in receiver.weights.items():
        other = sender.weights[name]
        if trains and not other.is_trained:
            continue
        (shape, size), own = ((w.whole_shape, Fraction(w.size_bytes, w.parameters)) for w in (weight, other))
        must, found = "a weight has one shape and one format on both sides", f"{name!r} of {shape} and {own[0]}"
        insist((shape, size) == own, where, must, f"{found}, {size} and {own[1]} B an element", "give both like dtypes")
        held, wanted = sender.held(name, zero_stage), receiver.held(name)
        shared = frozenset(rank for rank, box in wanted.items() if held.get(rank) == box and not stale)
        sent = messages(held, {rank: box for rank, box in wanted.items() if rank not in shared})
        sizes = {pair: int(elements * size) for pair, elements in sent.items()}
        blocks.setdefault((name.partition("/")[0], shared), {})[name] = sizes
    must, do = (
        "weights that are sent are trained",
        f"train what {receiver.name} has: adapters stay where they are trained",
    )
    is_moved = any(chain.from_iterable(sizes.values() for sizes in blocks.values()))
    insist(blocks and (trains or not is_moved), where, must, f"weights that {sender.name} only reads", do)
    parts = list[Handed]()
    for (block, shared), weights in blocks.items():
        together = sum(map(Counter[tuple[int, int]], weights.values()), Counter[tuple[int, int]]())
        tensors, name = tuple(weights), f"{block}.shared" if shared else block
        parts.append(Handed("", name, ends, tensors, tensors, dict(together), 0, True, shared))
    return parts


def _matched(ends: tuple[Placed, Placed], tensors: dict[str, str], where: str) -> Iterator[tuple[str, str]]:
    """Yield the tensors of both programs that patterns name."""
    sender, receiver = ends
    for pattern, other in tensors.items():
        fits, names = re.compile(re.escape(pattern).replace(r"\*", "(.*)")), sender.names
        found = {
            other.replace("*", "{}").format(*match.groups()): name for name in names if (match := fits.fullmatch(name))
        }
        must = f"a tensor that is handed over is one of {sender.name}"
        insist(found, where, must, repr(pattern), nearest(pattern, tuple(names)))
        wanted = [name for name in receiver.names if re.fullmatch(re.escape(other).replace(r"\*", "(.*)"), name)]
        must, do = (
            f"a tensor of {receiver.name} that is handed over has a producer in {sender.name}",
            "correct the patterns",
        )
        odd = next((name for name in [*wanted, *found] if name not in found or name not in wanted), None)
        insist(odd is None, where, must, f"{odd!r} without one, or not there", do)
        yield from ((source, target) for target, source in found.items())


def _declared(placed: dict[str, Placed], edge: Edge, name: str, where: str) -> list[tuple[str, str]]:
    """Declare what an edge of bytes hands over, from the last op of one program to the first of the other."""
    ends = placed[edge.from_], placed[edge.to]
    ranks = [len(end.ranks) for end in ends]
    each_bytes = -(-(edge.bytes_ or 0) // max(ranks))
    for end, count, at in zip(ends, ranks, (-1, 0), strict=True):
        size_bytes, graphs = each_bytes * max(ranks) // count, list[Graph]()
        for graph in end.job.graphs:
            ops, new = list(graph.ops), (len(graph.tensors),)
            reads, writes = ((), new) if at else (new, ())
            ops[at] = replace(ops[at], reads=ops[at].reads + reads, writes=ops[at].writes + writes)
            tensor = Tensor(name, size_bytes, TensorKind.ACTIVATION if at else TensorKind.INPUT)
            graphs.append(replace(graph, tensors=(*graph.tensors, tensor), ops=tuple(ops)))
        placed[end.name] = end._replace(job=replace(end.job, graphs=tuple(graphs)))
    return [(name, name)]


def _taken_up(placed: dict[str, Placed], edge: Edge, tensors: tuple[str, str], name: str) -> str:
    """Return the tensor that a message goes to: the one that is named, if it exists before the first op.

    Else the op that first writes it takes the message up: it reads a tensor of the message's own, as where an embedding
    puts the features of images among those of words.
    """
    sender, receiver = placed[edge.from_], placed[edge.to]
    source, target = tensors
    if receiver.is_input(target) or not sender.holders(source):
        return target
    own, (one, other) = f"{name}.{target}", (len(sender.holders(source)), len(receiver.holders(target)))
    size_bytes = max(1, -(-sender.size_bytes(source) * one // other))
    graphs = list[Graph]()
    for graph in receiver.job.graphs:
        uses, ops, tensor = Uses.of(graph), list(graph.ops), Tensor(own, size_bytes, TensorKind.INPUT)
        if target not in uses.ids:
            graphs.append(graph)
            continue
        first = uses.first[uses.ids[target]]
        ops[first] = replace(ops[first], reads=(*ops[first].reads, len(graph.tensors)))
        graphs.append(replace(graph, tensors=(*graph.tensors, tensor), ops=tuple(ops)))
    placed[edge.to] = receiver._replace(job=replace(receiver.job, graphs=tuple(graphs)))
    return own


def _tensor(ends: tuple[Placed, Placed], source: str, target: str, lag: int, where: str) -> Handed:
    """Return how a tensor is handed over: ranks correspond in order, as one, or in equal parts."""
    (sender, receiver), names = ends, (source, target)
    insist(
        sender.written(source) >= 0,
        where,
        "what is handed over is written",
        f"{source!r}, which no op of {sender.name} writes",
    )
    must, found = "what is handed over is read before it is written", f"{target!r}, which is not in {receiver.name}"
    insist(receiver.is_input(target), where, must, found, "hand it to a tensor that exists before it is read")
    ranks = [end.holders(name) for end, name in zip(ends, names, strict=True)]
    sizes = [end.size_bytes(name) for end, name in zip(ends, names, strict=True)]
    (few, many), counts = sorted(map(len, ranks)), [len(of_end) for of_end in ranks]
    must = "ranks that hand a tensor over correspond: one number is a multiple of the other"
    insist(
        many % few == 0, where, must, f"{counts[0]} with {source!r} and {counts[1]} with {target!r}", "correct ranks"
    )
    times, (one, other) = many // few, sizes if counts[0] >= counts[1] else reversed(sizes)
    must = "what is handed over has one size on both sides, or equal parts of it on more ranks"
    found = f"{source!r} of {sizes[0]:,} B on {counts[0]} and {target!r} of {sizes[1]:,} B on {counts[1]} ranks"
    insist(other in (one, one * times), where, must, found, "hand over like tensors")
    is_whole = other == one and counts[0] > counts[1]  # one of those who hold the same sends it
    pairs = [(ranks[0][i * counts[0] // many], ranks[1][i * counts[1] // many]) for i in range(many)]
    pairs = pairs[::times] if is_whole else pairs
    sent = dict.fromkeys(pairs, min(sizes))
    shared = frozenset(rank for rank in ranks[1] if (rank, rank) in sent and not lag and sizes[0] == sizes[1])
    sent = {pair: size for pair, size in sent.items() if pair[1] not in shared}
    return Handed("", target, ends, (source,), (target,), sent, lag, lag > 0, shared)


def groups(handed: Sequence[Handed]) -> dict[str, dict[tuple[int, int], Group]]:
    """Return, for each edge, the group in which each pair of ranks meets.

    Raises
    ------
    ConfigError
        If there are more groups of an edge than a rank has streams for.
    """
    by_edge: dict[str, dict[tuple[int, int], Group]] = {}
    for edge, parts in groupby(handed, lambda part: part.edge):
        pairs = dict.fromkeys(pair for part in parts for pair in part.sizes if pair[0] != pair[1])
        meeting = list[tuple[set[int], list[tuple[int, int]]]]()
        for pair in pairs:
            fit = next((members for busy, members in meeting if busy.isdisjoint(pair)), None)
            if fit is None:
                fit = list[tuple[int, int]]()
                meeting.append((set(), fit))
            fit.append(pair)
            next(busy for busy, members in meeting if members is fit).update(pair)
        must, do = f"the messages of an edge fit into {_MOST_GROUPS} groups", "choose layouts that are more alike"
        insist(len(meeting) <= _MOST_GROUPS, f"edge {edge}", must, f"{len(meeting)}", do)
        named = [(Group(f"{edge}.{i}", tuple(members)), members) for i, (_, members) in enumerate(meeting)]
        by_edge[edge] = {pair: group for group, members in named for pair in members}
    return by_edge
