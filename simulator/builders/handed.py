"""What the edges of a job hand over: which tensors, from whom to whom, how many bytes, and in which groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, groupby
from typing import Any, NamedTuple, cast

from simulator.builders.slices import HeldSlice, messages
from simulator.errors import insist
from simulator.graph import Graph, Group, Job, Tensor, TensorKind
from simulator.layout import Weight
from simulator.units import nearest
from simulator.workload import Workload
from simulator.workload.job import JobDocument, JobEdge

_MOST_GROUPS = 24
"""Most groups of messages that an edge may have: each is a stream of its ranks."""
Sizes = dict[tuple[int, ...], int]
"""(from, to) -> bytes; of a broadcast (from, to, to, ...)."""


class TensorUses(NamedTuple):
    """Where the tensors of a graph are used.

    Attributes
    ----------
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
    inputs: set[int]

    @classmethod
    def of(cls, graph: Graph) -> TensorUses:
        """Return the uses of a graph, found once."""
        if cls not in graph.known:
            graph.known[cls] = made = cls({t.name: i for i, t in enumerate(graph.tensors)}, {}, {}, {*graph.inputs})
            for index, op in enumerate(graph.ops):
                for tensor in (*op.reads, *op.writes):
                    made.first.setdefault(tensor, index)
                made.written.update(dict.fromkeys(op.writes, index))
        return cast(TensorUses, graph.known[cls])


class Placed(NamedTuple):
    """A program, built, on its ranks.

    Attributes
    ----------
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
        has = [name in TensorUses.of(graph).ids for graph in self.job.graphs]
        return [rank for rank, graph in self.graph_of.items() if has[graph]]

    def held(self, name: str, zero_stage: int = 0) -> dict[int, HeldSlice]:
        """Return what each rank that has a weight holds of it."""
        weight, size = self.weights[name], self.job.ranks
        holders, ranks = {*self.holders(name)}, weight.layout.mesh.ranks
        slices = [HeldSlice.of(weight, rank, zero_stage) for rank in range(ranks)]
        return {rank: slices[i % size % ranks] for i, rank in enumerate(self.ranks) if rank in holders}

    def size_bytes(self, name: str) -> int:
        """Return the size of a tensor [B]."""
        tensors = ((graph.tensors, TensorUses.of(graph).ids.get(name)) for graph in self.job.graphs)
        return next(of[index].size_bytes for of, index in tensors if index is not None)

    def written(self, name: str) -> int:
        """Return the last op that writes a tensor; -1 if none does."""
        uses = [TensorUses.of(graph) for graph in self.job.graphs]
        return max(of.written.get(of.ids.get(name, -1), -1) for of in uses)

    def is_input(self, name: str) -> bool:
        """Return whether a tensor exists before the first op."""
        return any(of.ids.get(name, -1) in of.inputs for of in map(TensorUses.of, self.job.graphs))

    def with_tensor(self, tensor: Tensor, beside: str | None = None) -> Placed:
        """Return it with an input of the first op (that names `beside`, if given), or what the last op writes."""
        graphs = [*self.job.graphs]
        for index, graph in enumerate(graphs):
            uses, is_read = TensorUses.of(graph), tensor.kind is TensorKind.INPUT
            op = (0 if is_read else -1) if beside is None else uses.first.get(uses.ids.get(beside, -1))
            if op is not None:
                ops, new = [*graph.ops], (len(graph.tensors),)
                reads, writes = (new, ()) if is_read else ((), new)
                ops[op] = replace(ops[op], reads=(*ops[op].reads, *reads), writes=(*ops[op].writes, *writes))
                graphs[index] = replace(graph, tensors=(*graph.tensors, tensor), ops=tuple(ops))
        return self._replace(job=replace(self.job, graphs=tuple(graphs)))

    def group(self, group: Group) -> Group:
        """Return a group of one copy as that of all copies."""
        copies = range(0, len(self.ranks), self.job.ranks)
        members = (tuple(self.ranks[first + rank] for rank in ranks) for first in copies for ranks in group.members)
        return Group(f"{self.name}.{group.name}", tuple(members))


class Handed(NamedTuple):
    """What is handed over at once: some tensors of one program to some of another.

    Attributes
    ----------
    edge, name
        Name of the edge, and of what it hands over.
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
    run
        Which run of the one program made it, -1 the last.
    waits
        Whether that run, on just the ranks that need what it makes, waits until they do.
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
    run: int = -1
    waits: bool = False


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
        lag, where = document.lag(edge), f"job {document.name}, edge {name}"
        ends = placed[edge.from_], placed[edge.to]
        if edge.weights:
            parts = _weights(ends, edge.stale, where)
        elif edge.bytes_:
            parts = [_bytes(placed, edge, name, lag)._replace(name="bytes")]
        else:
            pairs = [*(_of_runs if edge.each_run else _matched)(ends, edge.tensors, where)]
            named = [(of, _taken_up(placed, edge, of, target, name)) for of, target in pairs]
            ends = placed[edge.from_], placed[edge.to]
            parts = [_tensor(ends, of, target, lag, where, is_part=edge.part) for of, target in named]
        is_alone = [other.from_ for other in document.edges].count(edge.from_) == 1
        parts = [part._replace(edge=name, lag=lag, waits=part.waits and is_alone) for part in parts]
        handed += sorted(parts, key=lambda part: max(part.ends[0].written(read) for read in part.reads))
    return handed


def _weights(ends: tuple[Placed, Placed], stale: int, where: str) -> list[Handed]:
    """Return the messages that bring what is trained to those who read it, a layer in one message."""
    sender, receiver = ends
    must, do = "a program gets weights from one that has the same model", "name such programs"
    odd = next((name for name in receiver.weights or [receiver.name] if name not in sender.weights), None)
    insist(odd is None, where, must, f"{odd!r}, which {sender.name} does not have", do)
    trains, learns = (end.work is not None and end.work.phase == "train" for end in ends)
    must, do = "a receiver of weights holds them whole", "set its zero_stage below 3"
    insist(not receiver.work or receiver.work.parallel.zero_stage < 3, where, must, f"shards in {receiver.name}", do)
    blocks: dict[tuple[str, frozenset[int]], dict[str, dict[tuple[int, ...], tuple[HeldSlice, int]]]] = {}
    for name, weight in receiver.weights.items():
        other = sender.weights[name]
        if trains and not other.is_trained:
            continue
        (shape, size), other_is = ((w.whole_shape, Fraction(w.size_bytes, w.parameters)) for w in (weight, other))
        must, do = "a weight has one shape and one format on both sides", "give both like dtypes"
        found = f"{name!r} of {shape} and {other_is[0]}, {size} and {other_is[1]} B an element"
        insist((shape, size) == other_is, where, must, found, do)
        held, wanted = sender.held(name, sender.work.parallel.zero_stage if sender.work else 0), receiver.held(name)
        shared = frozenset(rank for rank, box in wanted.items() if held.get(rank) == box and not stale)
        sent = messages(held, {rank: box for rank, box in wanted.items() if rank not in shared})
        got = {pair: (wanted[pair[1]], int(elements * size)) for pair, elements in sent.items()}
        blocks.setdefault((name.partition("/")[0], shared), {})[name] = got
    is_moved = any(chain.from_iterable(weights.values() for weights in blocks.values()))
    must, found = "weights sent are trained", f"weights that {sender.name} only reads"
    do = "send them from who trains them; adapters stay there, and readers share what lies alike on their ranks"
    insist(blocks and (trains or not (learns or is_moved)), where, must, found, do)
    parts = list[Handed]()
    for (block, shared), weights in blocks.items():
        alike, tensors = dict[tuple[Any, ...], list[int]](), tuple(weights)
        for pair in dict.fromkeys(chain.from_iterable(weights.values())):  # who get the same of one rank meet at once
            of = ((name, *got[pair]) for name, got in weights.items() if pair in got)
            alike.setdefault((pair[0], pair[0] == pair[1], *of), [pair[0]]).append(pair[1])
        sizes = {tuple(ranks): sum(size for _, _, size in of) for (_, _, *of), ranks in alike.items()}
        parts.append(Handed("", f"{block}.shared" if shared else block, ends, tensors, tensors, sizes, 0, True, shared))
    return parts


class Given(NamedTuple):
    """A tensor that a program gives: which of its runs, and the ranks of which copies.

    Attributes
    ----------
    holders
        Those of the ranks that have it.
    takers
        Ranks of the other program that get it.
    """

    name: str
    run: int
    ranks: Sequence[int]
    holders: Sequence[int]
    takers: Sequence[int]


def _of_runs(ends: tuple[Placed, Placed], tensors: dict[str, str], where: str) -> Iterator[tuple[Given, str]]:
    """Yield the tensor that each run of each copy gives, and the one that it goes to; or that each copy gets."""
    (sender, receiver), does = ends, "each run of each copy hands a tensor to one, or each copy gets one in one run"
    for source, target in tensors.items():
        of, pattern, is_given = (sender, target, True) if "*" in target else (receiver, source, False)
        other, held, size = ends[is_given], {*of.holders(source if is_given else target)}, of.job.ranks
        meshes = [mesh for weight in of.weights.values() if "data" in (mesh := weight.layout.mesh).axis_names]
        data = meshes[0].positions(["data"]) if meshes and meshes[0].ranks == size else [0] * size
        by_copy = dict[tuple[int, int], list[int]]()  # data ranks have micro-batches of their own, as copies have
        for index, rank in enumerate(of.ranks):
            by_copy.setdefault((index // size, data[index % size]), []).append(rank)
        copies = [by_copy[key] for key in sorted(by_copy)]
        named = [*filter(re.compile(re.escape(pattern).replace(r"\*", ".*")).fullmatch, other.names)]
        found = (
            f"{of.runs} runs of {len(copies)} copies of {of.name}, and {len(named)} tensors {pattern!r} of {other.name}"
        )
        fits = len(named) == of.runs * len(copies) and (is_given or of.runs == 1)
        insist(fits, where, does, found, "correct runs, ranks, or the pattern")
        for index, name in enumerate(named):
            run, copy = divmod(index, len(copies))
            ranks, others = [rank for rank in copies[copy] if rank in held], other.holders(name)
            given = Given(source, run, copies[copy], ranks, others), name
            yield given if is_given else (Given(name, -1, sender.ranks, others, ranks), target)


def _matched(ends: tuple[Placed, Placed], tensors: dict[str, str], where: str) -> Iterator[tuple[Given, str]]:
    """Yield the tensors of both programs that patterns name."""
    sender, receiver = ends
    for pattern, other in tensors.items():
        fits, wants = (re.compile(re.escape(text).replace(r"\*", "(.*)")).fullmatch for text in (pattern, other))
        parts = {name: match.groups() for name in sender.names if (match := fits(name))}
        sources = {other.replace("*", "{}").format(*stars): name for name, stars in parts.items()}
        must = f"a tensor that is handed over is one of {sender.name}"
        insist(sources, where, must, repr(pattern), nearest(pattern, tuple(sender.names)))
        wanted = {*filter(wants, receiver.names)}
        must = f"a tensor of {receiver.name} that is handed over has a producer in {sender.name}"
        taken = [name for name in receiver.names if name in wanted and receiver.is_input(name)]  # it makes the others
        odd = next((name for name in [*taken, *sources] if name not in sources or name not in wanted), None)
        insist(odd is None, where, must, f"{odd!r} without one, or not there", "correct the patterns")
        for target, source in sources.items():
            yield Given(source, -1, sender.ranks, sender.holders(source), receiver.holders(target)), target


def _taken_up(placed: dict[str, Placed], edge: JobEdge, source: Given, target: str, name: str) -> str:
    """Return the tensor that a message goes to: the one that is named, if it exists before the first op.

    Else the op that first writes it takes the message up: it reads a tensor of the message's own, as where an embedding
    puts the features of images among those of words.
    """
    sender, receiver = placed[edge.from_], placed[edge.to]
    if receiver.is_input(target) or not (source.holders and source.takers):
        return target
    size_bytes = max(1, -(-sender.size_bytes(source.name) * len(source.holders) // len(source.takers)))
    message = Tensor(f"{name}.{target}", size_bytes, TensorKind.INPUT)
    placed[edge.to] = receiver.with_tensor(message, target)
    return message.name


def _tensor(ends: tuple[Placed, Placed], given: Given, target: str, lag: int, where: str, *, is_part: bool) -> Handed:
    """Return how a tensor is handed over: ranks correspond in order, as one, or in equal parts."""
    (sender, receiver), source, written = ends, given.name, ends[0].written(given.name)
    insist(written >= 0, where, "a tensor handed over is written", f"{source!r}, which no op of {sender.name} writes")
    must, found = "a receiver reads the tensor before writing it", f"{target!r}, which is not in {receiver.name}"
    insist(receiver.is_input(target), where, must, found, "hand it to a tensor that exists before it is read")
    froms, to = given.holders, given.takers
    few, many = sorted((len(froms), len(to)))
    must = "ranks that hand a tensor over correspond: one number is a multiple of the other"
    insist(many % few == 0, where, must, f"{len(froms)} with {source!r} and {len(to)} with {target!r}", "correct ranks")
    sizes = sender.size_bytes(source), receiver.size_bytes(target)
    of_many, of_few = sizes if len(froms) >= len(to) else sizes[::-1]
    must = "a tensor handed over has one size on both sides, or equal parts of it on more ranks"
    found = f"{source!r} of {sizes[0]:,} B on {len(froms)} and {target!r} of {sizes[1]:,} B on {len(to)} ranks"
    fits = sizes[0] > sizes[1] and few == many if is_part else of_few in (of_many, of_many * many // few)
    of_part, do = "a part of a tensor is smaller, and on as many ranks", "hand over like tensors, or say part: true"
    insist(fits, where, of_part if is_part else must, found, "remove part" if is_part else do)
    each = many // few if of_few == of_many and len(froms) > len(to) else 1  # one of those who hold the same sends it
    sent = dict.fromkeys(_pairs(froms, to)[::each], min(sizes))
    waits = given.run >= 0 and {*given.ranks} == {rank for _, rank in sent}
    handed = _between(ends, (source, target), sent, lag, is_alike=sizes[0] == sizes[1])
    return handed._replace(run=given.run, waits=waits)


def _bytes(placed: dict[str, Placed], edge: JobEdge, name: str, lag: int) -> Handed:
    """Declare what an edge of bytes hands over, from the last op of one program to the first of the other."""
    ends = placed[edge.from_], placed[edge.to]
    many = max(len(end.ranks) for end in ends)
    each_bytes = -(-(edge.bytes_ or 0) // many)
    for end, kind in zip(ends, (TensorKind.ACTIVATION, TensorKind.INPUT), strict=True):
        tensor = Tensor(name, each_bytes * -(-many // len(end.ranks)), kind)
        placed[end.name] = end.with_tensor(tensor)
    sent = dict.fromkeys(_pairs(*(end.ranks for end in ends)), each_bytes)
    return _between((placed[edge.from_], placed[edge.to]), (name, name), sent, lag, is_alike=True)


def _pairs(froms: Sequence[int], to: Sequence[int]) -> list[tuple[int, ...]]:
    """Pair ranks in order, each of the more with one of the fewer."""
    many = max(len(froms), len(to))
    return [(froms[i * len(froms) // many], to[i * len(to) // many]) for i in range(many)]


def _between(ends: tuple[Placed, Placed], names: tuple[str, str], sent: Sizes, lag: int, *, is_alike: bool) -> Handed:
    """Return what is sent of a tensor; on one rank, and in one round, it is one tensor if both are alike."""
    shared = frozenset(to for of, to in sent if of == to and not lag and is_alike)
    sizes = {pair: size for pair, size in sent.items() if pair[1] not in shared}
    return Handed("", names[1], ends, names[:1], names[1:], sizes, lag, lag > 0, shared)


def groups(handed: Sequence[Handed]) -> dict[str, dict[tuple[int, ...], Group]]:
    """Return, for each edge, the group in which each pair of ranks meets, or those of a broadcast.

    Raises
    ------
    ConfigError
        If there are more groups of an edge than a rank has streams for.
    """
    by_edge: dict[str, dict[tuple[int, ...], Group]] = {}
    for edge, parts in groupby(handed, lambda part: part.edge):
        pairs = dict.fromkeys(pair for part in parts for pair in part.sizes if pair[0] != pair[1])
        turns = list[list[tuple[int, ...]]]()
        for pair in pairs:  # a group has messages alone, or broadcasts to as many
            turn = next((of for of in turns if len(of[0]) == len(pair) and {*chain(*of)}.isdisjoint(pair)), [])
            turn.append(pair)
            turns += [turn] * (len(turn) == 1)
        must, do = f"the messages of an edge fit into {_MOST_GROUPS} groups", "choose layouts that are more alike"
        insist(len(turns) <= _MOST_GROUPS, f"edge {edge}", must, f"{len(turns)}", do)
        named = [(Group(f"{edge}.{i}", tuple(members)), members) for i, members in enumerate(turns)]
        by_edge[edge] = {pair: group for group, members in named for pair in members}
    return by_edge
