"""The operator graph of one rank: tensors, and ops in program order, with what they do together with other ranks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import translate
from functools import cache, cached_property
from typing import Any, Self

from simulator.errors import ConfigError, insist
from simulator.units import counted

LARGEST_RUN = 4_000_000
"""Most ops that a run computes, all steps together: about 10 GB of memory with every table written."""

LARGEST = 2**62
"""No number of a graph, and no sum of sizes or of durations, is larger: they fit 64-bit columns."""


class TensorKind(StrEnum):
    """Purpose of a tensor."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    EXPERT = "expert"
    WORKSPACE = "workspace"
    INPUT = "input"


PHASES = ("", "forward", "backward", "update", "prefill", "decode")
"""Parts of a step that an op may be of; policies tell by it what is saved for backward."""


class OpKind(StrEnum):
    """Kind of an op: what runs it."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"


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
    """Return how many different candidates are expected to be chosen where all are equally likely, rounded up.

    Each of n samples leaves a candidate out with probability 1 - k / E, so that E * (1 - (1 - k / E)^n) are chosen.

    Parameters
    ----------
    candidates, samples, each
        The E there are, the n that choose, and the k different ones that each of these chooses.
    """
    if samples * each > candidates * (math.log(candidates) + 1):
        return candidates  # less than one is left out, and the powers below have samples times as many digits
    left: int = candidates * (candidates - each) ** samples // candidates**samples
    return candidates - left


@dataclass(frozen=True, slots=True)
class DynamicReads:
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
        """Number of candidates that are expected to be chosen where all are equally likely, rounded up."""
        return chosen_number(len(self.candidates), self.samples, self.each)


class CollectiveKind(StrEnum):
    """Kind of a collective."""

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
"""Algorithms of a collective."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: what an op does together with the other ranks of a group.

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

    def by_rank(self, kind: str) -> dict[int, tuple[int, ...]]:
        """Return for each rank that may issue a collective of this kind the ranks that meet then."""
        if kind == CollectiveKind.SEND:
            return {members[0]: members for members in self.members}
        if kind == CollectiveKind.RECV:
            return {members[-1]: members for members in self.members}
        return {rank: members for members in self.members for rank in members}


AGAIN = "/again/"
"""Part of the names of ops that a program itself runs a second time, as between checkpoints."""

OP_CLASSES = ("matmul", "attention", "vector")
"""Classes that every machine knows: what it does not list reaches its default fraction."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operator, at the granularity of a kernel.

    Attributes
    ----------
    name
        Unique path name, such as ``L03/fwd/attn.qkv``.
    reads, writes
        Tensor ids; an op that updates a tensor in place both reads and writes it. Candidates of dynamic reads are among
        `reads`, so that whoever knows nothing of dynamic reads brings all of them.
    read_bytes, write_bytes
        Traffic in the compute tier [B]; what is chosen of dynamic reads adds its size.
    flops
        Arithmetic work [FLOP].
    workspace_bytes
        Room it needs in the compute tier while it runs [B].
    duration_ns
        Measured time [ns]; the cost model is used if None.
    op_class, dtype
        Keys of the hardware's achieved fractions and peaks; of `OP_CLASSES` the machine need not list all.
    phase
        ``forward``, ``backward``, ``update``, ``prefill``, ``decode`` or empty.
    barrier
        No copy into the compute tier may be moved across it.
    repeatable
        Running it again on the same values makes the same values again, and does nothing else.
    collective
        What it does together with other ranks, if `kind` is ``collective``; None for other ops.
    dynamic
        Which of its reads are known only at run time; None if all are known from the start.
    stream
        The compute stream of its rank that it runs on; what says what it does with other ranks runs on its group's.
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
    dynamic: DynamicReads | None = None
    stream: int = 0


@dataclass(frozen=True)
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
    known
        What was derived from this graph alone, by what it is: a sweep runs one graph on many machines.

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
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Ids of what exists before the first op: the persistent tensors, and those read before written."""
        written, inputs = set[int](), {i for i, t in enumerate(self.tensors) if t.persistent}
        for op in self.ops:
            inputs.update(t for t in op.reads if t not in written)
            written.update(op.writes)
        return tuple(sorted(inputs))

    @cached_property
    def arithmetic(self) -> dict[str, int]:
        """Data type -> what a step computes of the model, however it is run [FLOP].

        Every op counts once but elementwise ones (class ``vector``), those of the update, and those that a checkpoint
        runs again (`AGAIN` in their names): matrices and attention, as PaLM counts (arXiv 2204.02311, appendix B), but
        for what kernels of attention skip, as causal ones do, or compute again in backward.
        """
        flops: dict[str, int] = {}
        for op in self.ops:
            if op.flops and op.op_class != "vector" and op.phase != "update" and AGAIN not in op.name:
                flops[op.dtype] = flops.get(op.dtype, 0) + op.flops
        return flops

    @cached_property
    def meets(self) -> bool:
        """Whether its ranks meet others in collectives."""
        return any(op.collective for op in self.ops)

    @cached_property
    def dynamic_reads(self) -> dict[int, DynamicReads]:
        """Op, in program order -> its reads that are known only at run time."""
        return {index: op.dynamic for index, op in enumerate(self.ops) if op.dynamic}

    @property
    def certain(self) -> Self:
        """The graph with nothing but what ops read for certain, without what dynamic reads choose."""
        if not self.dynamic_reads:
            return self
        ops = list(self.ops)
        for op, reads in self.dynamic_reads.items():
            candidates = frozenset(reads.candidates)
            ops[op] = replace(ops[op], reads=tuple([t for t in ops[op].reads if t not in candidates]), dynamic=None)
        return replace(self, ops=tuple(ops))

    @cached_property
    def cacheable(self) -> frozenset[int]:
        """Candidates of dynamic reads that persist and that no op writes: copies of them may outlast a step."""
        persistent = {t for t in self.candidates if self.tensors[t].persistent}
        return frozenset(persistent.difference(*(op.writes for op in self.ops)) if persistent else ())

    @property
    def candidates(self) -> frozenset[int]:
        """All tensors that some op may read dynamically."""
        return frozenset().union(*(reads.candidates for reads in self.dynamic_reads.values()))

    def matching(self, pattern: str) -> list[int]:
        """List the tensors of a kind, or with a name that matches a shell pattern.

        Parameters
        ----------
        pattern
            A `TensorKind`, or a pattern such as ``L*/norm?.weight``.
        """
        if pattern in set(TensorKind):
            return [i for i, t in enumerate(self.tensors) if t.kind == pattern]
        is_meant = re.compile(translate(pattern)).match
        return [i for i, t in enumerate(self.tensors) if is_meant(t.name)]

    def repeated(self, steps: int, where: str = "") -> Self:
        """Return the graph run `steps` times.

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
        where = where or self.name
        is_right, must = type(steps) is int and steps > 0, "a graph runs a whole number of steps, at least 1"
        insist(is_right, where, must, repr(steps), "correct steps")
        check_run(len(self.ops), steps, where)
        new = [self.tensors[t].name for t in self.inputs if not self.tensors[t].persistent]
        if steps > 1 and new:
            must = "what exists before the first op of a graph of several steps is persistent"
            raise ConfigError(where, must, repr(new[0]), "mark it persistent, or set steps to 1")
        return replace(self, steps=steps)


def check_run(ops: int, steps: int, where: str, tensors: int = 0) -> None:
    """Refuse a run that memory may not hold, best before anything is built.

    Parameters
    ----------
    ops, steps
        How many ops a step has, and how many steps are run.
    where
        What a message calls the origin of the graph.
    tensors
        At least how many tensors it has.

    Raises
    ------
    ConfigError
        If there were more than `LARGEST_RUN` ops to compute, or tensors.
    """
    must, do = f"a graph has at most {LARGEST_RUN:,} tensors", "lower the number of layers or of experts"
    insist(tensors <= LARGEST_RUN, where, must, f"about {tensors:,}", do)
    must = f"a run computes at most {LARGEST_RUN:,} ops, all steps together"
    found = f"{counted(ops, 'op')} in each of {counted(steps, 'step')}"
    insist(ops * steps <= LARGEST_RUN, where, must, found, "lower the number of layers or of steps")
