"""What an operator graph is made of: tensors, and ops with what they do together with other ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

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
    DELAY = "delay"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named storage; views are folded into it.

    Attributes
    ----------
    name
        Unique path name, such as ``L03/attn.qkv.out``.
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
    not repeatable. Whoever knows nothing of dynamic reads takes all candidates as read, and as written if one is.

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
    updates
        Whether the op writes what it has chosen, in place; all candidates are among its writes, too. It chooses what
        the op before it has chosen that reads the same candidates, by the same number of samples, of the same reveal.
    """

    revealed_by: int
    candidates: tuple[int, ...]
    samples: int = 1
    each: int = 1
    updates: bool = False

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


DISTRIBUTIONS = ("uniform", "exponential", "lognormal")
"""Distributions of delays."""


@dataclass(frozen=True, slots=True)
class DelaySpread:
    """How a delay varies about its mean, which is its duration: each rank draws for itself, before the run.

    Attributes
    ----------
    deviation_ns
        Standard deviation [ns]: of ``uniform`` such that no delay is below 0, of ``lognormal`` at most 10 times the
        mean; of ``exponential`` it is the mean, and not stated.
    """

    distribution: str
    deviation_ns: int = 0

    def fault(self, mean_ns: int) -> str:
        """Say how a delay of this mean may vary, if not so."""
        if self.distribution not in DISTRIBUTIONS:
            return f"a delay varies by a distribution of {', '.join(DISTRIBUTIONS)}"
        most = {"uniform": int(mean_ns / 3**0.5), "lognormal": 10 * mean_ns}.get(self.distribution, 0)
        if type(self.deviation_ns) is int and min(most, 1) <= self.deviation_ns <= most:
            return ""
        such = f"from 1 to {most:,}" if most else "not stated"
        return f"the deviation_ns of a delay that is {self.distribution}, of {mean_ns:,} ns, is {such}"


AGAIN = "/again/"
"""Part of the names of ops that a program itself runs a second time, as between checkpoints."""

OP_CLASSES = ("matmul", "matmul_w8", "matmul_w4", "attention", "attention_backward", "vector", "dequantize")
"""Classes that every machine knows, though it need not list them all.

Kernels of ``matmul_w8`` and ``matmul_w4`` convert weights of 8 and 4 bits while they multiply (W8A16, W4A16); those of
``dequantize`` write such weights out as others multiply them.
"""


def share_of(op_class: str, fractions: Mapping[str, float]) -> str:
    """Return the class that says which share kernels of another one reach; ``default`` where none does.

    A class that is not listed is as the one whose name its own goes on from: ``matmul_w4`` as ``matmul``.
    """
    return next((name for name in (op_class, op_class.rpartition("_")[0]) if name in fractions), "default")


def lesser_shares(
    stated: Mapping[str, float], others: Mapping[str, float], most: tuple[float, float]
) -> dict[str, float]:
    """Return for each class that either states the lesser of both shares; nothing if no stated one is larger.

    Parameters
    ----------
    stated, others
        Class -> share; that of one that is not listed is that of another one (see `share_of`).
    most
        The share of either where none says so.
    """
    lesser, is_less = dict[str, float](), False
    for name in {**stated, **others}:
        share, other = stated.get(share_of(name, stated), most[0]), others.get(share_of(name, others), most[1])
        lesser[name], is_less = min(share, other), is_less or other < share
    return lesser if is_less else {}


HOST = "host"
DEVICES = ("accelerator", HOST)
"""What runs an op: the accelerator of its rank, or the cores of its host."""


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
        Traffic in the tier of its device [B]; what is chosen of dynamic reads adds its size.
    workspace_bytes
        Room it needs in that tier while it runs [B].
    duration_ns
        Measured time [ns]; the cost model is used if None.
    kind
        ``compute``; ``collective``; or ``delay``, which holds its stream for its `duration_ns` and computes nothing, as
        a tool or an environment does that is waited for.
    op_class, dtype
        Keys of its device's achieved fractions and peaks; of `OP_CLASSES` the machine need not list all.
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
    device
        ``accelerator``, whose ops work in the compute tier; or ``host``, whose ops work in the tier of the machine's
        `host_compute`, on streams of their own: those that name none, one after another on one.
    spread
        How a delay varies from rank to rank; None: not at all. Plans are made for its mean.
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
    device: str = "accelerator"
    spread: DelaySpread | None = None
