"""The operator graph: what runs, in which order, on which tensors; it knows no machine.

A *job* is what all ranks run together: one graph for all of them, or several. Ranks meet in *collectives*: ops on a
named group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Self

from simulator.errors import ConfigError
from simulator.units import counted

LARGEST_RUN = 4_000_000
"""Most ops that a run computes, all steps together: about 10 GB of memory with every table written."""

LARGEST = 2**62
"""No number of a graph, and no sum of sizes or of durations, is larger: they fit 64-bit columns."""


class TensorKind(StrEnum):
    """What a tensor is for."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    EXPERT = "expert"
    WORKSPACE = "workspace"
    INPUT = "input"


PHASES = ("", "forward", "backward", "update", "prefill", "decode")
"""What an op may be part of; policies tell by it what is saved for backward."""


class OpKind(StrEnum):
    """Where an op runs."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    HOST = "host"


class CollectiveKind(StrEnum):
    """What a collective does."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND = "send"
    RECV = "recv"


PAIRED = frozenset((CollectiveKind.SEND, CollectiveKind.RECV))
"""Kinds that meet in pairs."""

ALGORITHMS = ("auto", "ring", "tree", "direct", "hierarchical")
"""How members may go about a collective."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What an op does together with the other ranks of a group.

    The k-th collective that a rank issues on some members of a group meets the k-th that each other member issues on
    the same members there; they are of one kind (a send meets a receive), of one size and of one algorithm.

    Attributes
    ----------
    kind
        What it does.
    group
        Name of a group of the graph. A send is to the second of two members, a receive from the first.
    size_bytes
        What it is about [B]: the tensor that each member holds before (all_reduce, reduce_scatter, all_to_all), that
        each holds after (all_gather, broadcast), or the message (send, recv).
    algorithm
        ``ring``, ``tree``, ``direct``, ``hierarchical``, or ``auto``: the one that alone is the fastest here.
    """

    kind: CollectiveKind
    group: str
    size_bytes: int
    algorithm: str = "auto"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that meet under one name: a partition of some ranks for collectives, pairs for send and receive.

    Attributes
    ----------
    name
        Such as ``tensor`` or ``pipeline.next``.
    members
        Ranks that meet, each in order. For collectives no rank is in two of them. For sends and receives each is a
        pair (from, to); a rank is the first of at most one pair and the second of at most one.
    """

    name: str
    members: tuple[tuple[int, ...], ...]

    def by_rank(self, kind: CollectiveKind) -> dict[int, tuple[int, ...]]:
        """For each rank that may issue a collective of this kind, who meets then."""
        if kind is CollectiveKind.SEND:
            return {members[0]: members for members in self.members}
        if kind is CollectiveKind.RECV:
            return {members[-1]: members for members in self.members}
        return {rank: members for members in self.members for rank in members}

    def of(self, rank: int, kind: CollectiveKind) -> tuple[int, ...] | None:
        """Who meets when this rank issues a collective of this kind; None if it is in no members."""
        return self.by_rank(kind).get(rank)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named storage; views are folded into it.

    Attributes
    ----------
    name
        Unique path name, such as ``L03/attn.qkv.out``.
    size_bytes
        Size [B].
    kind
        What it is for.
    persistent
        It exists before the first op and after the last one of every step (weights, optimizer state).
    shared
        ``node`` or ``supernode`` if it is read-only, so that a tier that ranks share stores it once for all of them
        there, if it is persistent and has its home in that tier.
    """

    name: str
    size_bytes: int
    kind: TensorKind = TensorKind.ACTIVATION
    persistent: bool = False
    shared: str | None = None


@cache
def chosen_number(candidates: int, samples: int, each: int) -> int:
    """How many different candidates are chosen, as expected where all are equally likely, rounded up.

    Each of n samples leaves a candidate out with probability 1 - k / E, so that E * (1 - (1 - k / E)^n) are chosen.

    Parameters
    ----------
    candidates, samples, each
        The E there are, the n that choose, and the k different ones that each of these chooses.
    """
    left: int = candidates * (candidates - each) ** samples // candidates**samples
    return candidates - left


@dataclass(frozen=True, slots=True)
class Late:
    """Reads of an op that are known only at run time: some of its candidates.

    Each of some samples (tokens, sequences) chooses so many different candidates; the op reads the union. Such an op is
    not repeatable.

    Attributes
    ----------
    revealed_by
        Id of an earlier op; what is chosen is known once it has ended.
    candidates
        Tensors (ids) that may be chosen; all are among the op's reads.
    samples
        How many choose.
    each
        How many different candidates each of them chooses.
    """

    revealed_by: int
    candidates: tuple[int, ...]
    samples: int = 1
    each: int = 1

    @property
    def expected(self) -> int:
        """How many candidates are chosen, as expected where all are equally likely, rounded up."""
        return chosen_number(len(self.candidates), self.samples, self.each)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator, at the granularity of a kernel.

    Attributes
    ----------
    name
        Unique path name, such as ``L03/fwd/attn.qkv``.
    reads, writes
        Tensor ids; an op that updates a tensor in place both reads and writes it. Candidates of late reads are among
        `reads`, so that whoever knows nothing of late reads brings all of them.
    read_bytes, write_bytes
        Traffic in the compute tier [B]; what is chosen of late reads adds its size.
    flops
        Arithmetic work [FLOP].
    workspace_bytes
        Room it needs in the compute tier while it runs [B].
    duration_ns
        Measured time [ns]; the cost model is used if None.
    op_class, dtype
        Keys of the hardware's achieved fractions and peaks.
    phase
        ``forward``, ``backward``, ``update``, ``prefill``, ``decode`` or empty.
    barrier
        No cache operator may be moved across it; no op of a fused group is one.
    repeatable
        Running it again on the same values makes the same values again, and does nothing else.
    collective
        What it does together with other ranks, if `kind` is ``collective``; None for other ops.
    fused
        Name of its fused group, or empty. Ops in a row with the same name are one: the runtime issues them as one
        sequence of launches, with no other step between them.
    late
        Which of its reads are known only at run time; None if all are known from the start.
    """

    name: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    read_bytes: int = 0
    write_bytes: int = 0
    flops: int = 0
    workspace_bytes: int = 0
    duration_ns: int | None = None
    kind: OpKind = OpKind.COMPUTE
    op_class: str = "vector"
    dtype: str = "bf16"
    phase: str = ""
    barrier: bool = False
    repeatable: bool = True
    collective: Collective | None = None
    fused: str = ""
    late: Late | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in program order over tensors, run `steps` times.

    Attributes
    ----------
    name
        For people.
    tensors, ops
        Their position is their id. The ops are those of one step.
    outputs
        Tensors (ids) that must still be valid in some tier when a step ends; persistent ones always must.
    steps
        How many times the ops run, one after another. Tensors that are not persistent are new in each step.
    groups
        Groups that its collectives name, for all ranks of the job.

    Notes
    -----
    What exists before the first op is what is persistent, plus, in a graph of one step, what is read before
    it is written.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...] = ()
    steps: int = 1
    groups: tuple[Group, ...] = ()

    @property
    def inputs(self) -> tuple[int, ...]:
        """Ids of what exists before the first op: the persistent tensors, and those read before written."""
        written: set[int] = set()
        found = {i for i, t in enumerate(self.tensors) if t.persistent}
        for op in self.ops:
            found.update(t for t in op.reads if t not in written)
            written.update(op.writes)
        return tuple(sorted(found))

    @property
    def meets(self) -> bool:
        """Whether its ranks meet others in collectives."""
        return any(op.collective for op in self.ops)

    @property
    def has_late(self) -> bool:
        """Whether some op has reads that are known only at run time."""
        return any(op.late for op in self.ops)

    @property
    def certain(self) -> Self:
        """The same graph with nothing but what ops read for certain; what late reads choose is left out."""
        if not self.has_late:
            return self
        ops = [
            replace(op, reads=tuple([t for t in op.reads if t not in late]), late=None)
            for op in self.ops
            for late in [frozenset(op.late.candidates if op.late else ())]
        ]
        return replace(self, ops=tuple(ops))

    @property
    def cacheable(self) -> frozenset[int]:
        """Candidates of late reads that persist and that no op writes: copies of them may outlast a step."""
        found = {t for t in self.candidates if self.tensors[t].persistent}
        return frozenset(found.difference(*(op.writes for op in self.ops)) if found else ())

    @property
    def candidates(self) -> frozenset[int]:
        """All tensors that some op may read late."""
        return frozenset(t for op in self.ops if op.late for t in op.late.candidates)

    @property
    def launches(self) -> tuple[range, ...]:
        """The ops by what is issued together: each fused group, and every other op alone; in program order."""
        found: list[range] = []
        before = ""
        for i, op in enumerate(self.ops):
            if op.fused and op.fused == before:
                found[-1] = range(found[-1].start, i + 1)
            else:
                found.append(range(i, i + 1))
            before = op.fused
        return tuple(found)

    def repeated(self, steps: int, where: str = "") -> Self:
        """Return the same graph run `steps` times.

        Parameters
        ----------
        steps
            How many times, at least 1.
        where
            What a message calls the origin of the graph; default: its name.

        Raises
        ------
        ConfigError
            If `steps` is below 1; or so many that there were more than `LARGEST_RUN` ops to compute; or above 1 while a
            tensor that is not persistent is read before it is written: the second step would not find it.
        """
        if type(steps) is not int or steps < 1:
            raise ConfigError(
                where or self.name,
                "a graph runs a whole number of steps, at least 1",
                repr(steps),
                "correct steps",
            )
        check_run(len(self.ops), steps, where or self.name)
        if steps > 1:
            for t in self.inputs:
                if not self.tensors[t].persistent:
                    raise ConfigError(
                        where or self.name,
                        "what exists before the first op of a graph of several steps is persistent",
                        repr(self.tensors[t].name),
                        "mark it persistent, or set steps to 1",
                    )
        return replace(self, steps=steps)


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks run together.

    Attributes
    ----------
    name
        For people.
    graphs
        The different graphs.
    graph_of
        For each rank, which of them it runs.
    labels
        For each graph, what its ranks are called (``stage 0``); the job's name if there is only one.

    Raises
    ------
    ConfigError
        If there are no ranks; a rank runs a graph that there is not; no rank runs some graph; or labels are too few or
        too many.
    """

    name: str
    graphs: tuple[Graph, ...]
    graph_of: tuple[int, ...]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_list(self, "graphs", Graph, "a graph")
        _check_list(self, "graph_of", int, "a whole number")
        _check_list(self, "labels", str, "a text")
        where, graphs = f"job {self.name!r}, graph_of", len(self.graphs)
        if not self.graph_of:
            raise ConfigError(where, "a job has at least one rank", "none", "say for each rank which graph it runs")
        for rank, number in enumerate(self.graph_of):
            if not 0 <= number < graphs:
                must = f"each rank runs one of the graphs (0 to {graphs - 1:,})" if graphs else "a job has graphs"
                raise ConfigError(where, must, f"{number:,} for rank {rank:,}", "correct the number, or add the graph")
        unused = set(range(graphs)).difference(self.graph_of)
        if unused:
            found = f"none for graph {min(unused):,}"
            raise ConfigError(where, "each graph is run by some rank", found, "name it for a rank, or leave it out")
        if len(self.labels) != graphs:
            found = f"{counted(len(self.labels), 'label')} for {counted(graphs, 'graph')}"
            do = "say what the ranks of each graph are called"
            raise ConfigError(f"job {self.name!r}, labels", "each graph has a label", found, do)

    @classmethod
    def of(cls, graph: Graph, ranks: int = 1) -> Self:
        """Make the job in which so many ranks run the same graph."""
        return cls(graph.name, (graph,), (0,) * ranks, (graph.name,))

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.graph_of)

    def graph(self, rank: int) -> Graph:
        """What a rank runs."""
        return self.graphs[self.graph_of[rank]]

    def ranks_of(self, graph: int) -> tuple[int, ...]:
        """Ranks that run this graph."""
        return tuple(rank for rank, found in enumerate(self.graph_of) if found == graph)


def _check_list(job: Job, field: str, kind: type, said: str) -> None:
    """Refuse a field of a job that is no list, or has an entry of another kind."""
    values = getattr(job, field)
    where, do = f"job {job.name!r}, {field}", "correct it"
    if not isinstance(values, (tuple, list)):
        raise ConfigError(where, "a list is needed", f"one {type(values).__name__}", do)
    for number, value in enumerate(values):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(where, f"each entry is {said}", f"one {type(value).__name__} at {number:,}", do)


def check_run(ops: int, steps: int, where: str) -> None:
    """Refuse a run that memory may not hold, best before anything is built.

    Parameters
    ----------
    ops, steps
        How many ops a step has, and how many steps are run.
    where
        What a message calls the origin of the graph.

    Raises
    ------
    ConfigError
        If there were more than `LARGEST_RUN` ops to compute.
    """
    if ops * steps > LARGEST_RUN:
        must = f"a run computes at most {LARGEST_RUN:,} ops, all steps together"
        found = f"{counted(ops, 'op')} in each of {counted(steps, 'step')}"
        raise ConfigError(where, must, found, "lower the number of layers or of steps")
