"""Any graph over replicas: its gradients are added up in buckets, and ZeRO shares what the graph marks.

Each rank runs the graph on samples of its own. What joins the ranks follows from what the graph says of its tensors
(kinds ``gradient``, ``weight``, ``expert`` and ``optimizer_state``) and of its ops (``phase``).

*Buckets* are those of PyTorch's DistributedDataParallel: gradients join in the order in which the ops before the update
write them for the last time; a bucket that has reached its size is full, and is reduced once its last gradient is
there, beside the rest of backward. If no size is stated, it is 25 MiB, and 1 MiB for the first (PyTorch 2.13,
``_BucketCapacityConfig`` in torch/nn/parallel/distributed.py; ``compute_bucket_assignment_by_size`` and
``rebuild_buckets`` in torch/csrc/distributed/c10d/reducer.cpp). Megatron-LM fills them up to
max(40 million, 1 million * ranks) parameters (megatron/core/distributed/distributed_data_parallel.py).

*ZeRO*, as in `stage`: stage 1 reduces in place and scatters; stage 2 reduces into shards, which the update reads.
Ops of the update take the n-th part of their time, traffic and room; states and what the update alone uses, the n-th
part of their size, all rounded up. Then updated weights are gathered, in buckets in the order of their last update.
Stage 3 keeps shards of weights. They join units as gradients join buckets, in the order of first use. Each pass (a run
of ops of forward, or of backward) gathers a unit before its first use, `gathers_ahead` units ahead. The unit that a
pass uses last and the next one first stays between, as in torchtitan (torchtitan/models/llama3/infra/parallelize.py).
Weights that ops before the update write, that a node shares, or that are read dynamically stay whole.

Not modelled: buckets for each data type, copies into buckets, the sum of norms over shards where gradients are clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import chain, repeat
from typing import Any, NamedTuple

from simulator.errors import ConfigError, insist
from simulator.graph import Collective, CollectiveKind, Graph, Job, Op, OpKind, TensorKind
from simulator.graph_builder import GraphBuilder
from simulator.workload import Parallel

_FIRST_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
_UPDATE = -1
"""The pass of ops of the update; those of forward are even, those of backward odd."""
_WEIGHTS = (TensorKind.WEIGHT, TensorKind.EXPERT)
_PLAIN = [field.name for field in fields(Op)[3:] if field.name not in ("kind", "collective", "dynamic")]
_CUT = ("read_bytes", "write_bytes", "flops", "workspace_bytes")


class _Meeting(NamedTuple):
    """A collective to be added."""

    kind: CollectiveKind
    name: str
    phase: str
    size_bytes: int
    reads: list[str]
    writes: list[str]


def spread(graph: Graph, parallel: Parallel, where: str) -> Job:
    """Let replicas run a graph, and add what they do together.

    Parameters
    ----------
    graph
        The step of one rank that meets no other.
    parallel
        How many replicas there are (`data`), and what they share.
    where
        Origin of the workload, for messages.

    Raises
    ------
    ConfigError
        If ops of the graph communicate already, it marks no gradients, or ZeRO cannot cut its update.
    """
    met = next((op.name for op in graph.ops if op.kind is OpKind.COLLECTIVE), None)
    must, do = "ranks stand in the graph, or in the workload", "remove parallel, or the collectives of the graph"
    insist(met is None and not graph.groups, f"{where}, parallel", must, f"in both: op {met!r}", do)
    if parallel.data == 1:
        return Job.of(graph)
    replicas = _Replicas(graph, parallel, f"{where}, parallel")
    replicas.add_up()
    if parallel.zero_stage:
        replicas.cut_update()
    if parallel.zero_stage == 3:
        replicas.shard_weights()
    return Job.of(replicas.build(), parallel.data)


class _Replicas:
    """The graph of each replica while it is made."""

    def __init__(self, graph: Graph, parallel: Parallel, where: str) -> None:
        self.graph, self.parallel, self.where = graph, parallel, where
        self.stage, self.ranks = parallel.zero_stage, parallel.data
        self.sizes = [tensor.size_bytes for tensor in graph.tensors]
        self.made: dict[str, tuple[int, str]] = {}  # tensors that replicas add -> size, kind
        self.held: dict[tuple[int, int], str] = {}  # pass, tensor -> what ops of that pass use for it
        self.before: dict[int, list[_Meeting]] = {}  # op, or the end -> what replicas do before it
        self.passes, now = list[int](), 0
        for op in graph.ops:
            now += bool(op.phase) and op.phase != "update" and (op.phase == "backward") != now % 2
            self.passes.append(_UPDATE if op.phase == "update" else now)

    @property
    def ops(self) -> Iterator[tuple[int, int, Op]]:
        """Each op with its index, behind its pass."""
        return ((now, index, op) for index, (now, op) in enumerate(zip(self.passes, self.graph.ops, strict=True)))

    def part(self, size: int) -> int:
        """Return the part of a rank, rounded up."""
        return -(-size // self.ranks)

    def name(self, tensor: int, now: int = 0) -> str:
        """Return what ops of a pass use for a tensor."""
        return self.held.get((now, tensor), self.graph.tensors[tensor].name)

    def add(self, tensor: int, end: str, size_bytes: int) -> str:
        """Add a tensor of the same kind, of which a new one is made in each step; return its name."""
        like = self.graph.tensors[tensor]
        self.made[f"{like.name}.{end}"] = size_bytes, str(like.kind)
        return f"{like.name}.{end}"

    def buckets(self, tensors: Iterable[int]) -> Iterator[list[int]]:
        """Divide tensors into buckets, in their order."""
        first_bytes = self.parallel.bucket_bytes or _FIRST_BYTES
        limits = chain([first_bytes], repeat(self.parallel.bucket_bytes or _BUCKET_BYTES))
        bucket, limit = list[int](), next(limits)
        for tensor in tensors:
            bucket.append(tensor)
            if self.whole_bytes(bucket) >= limit:
                yield bucket
                bucket, limit = [], next(limits)
        if bucket:
            yield bucket

    def whole_bytes(self, tensors: Iterable[int]) -> int:
        """Return the size of tensors together, as the graph states it [B]."""
        return sum(self.graph.tensors[t].size_bytes for t in tensors)

    def meet(self, at: int, near: int, kind: CollectiveKind, tensors: list[int], ways: tuple[list[str], ...]) -> None:
        """Add a collective over tensors before an op (or at the end), in the layer and phase of the op `near`."""
        op, (reads, writes) = self.graph.ops[near], ways
        layer, slash, _ = op.name.rpartition("/")
        what = "weights" if kind is CollectiveKind.ALL_GATHER else "grads"
        name = f"{layer}{slash}{what}.{kind}.{sum(map(len, self.before.values()))}"
        meeting = _Meeting(kind, name, op.phase, self.whole_bytes(tensors), reads, writes)
        self.before.setdefault(at, []).append(meeting)

    def add_up(self) -> None:
        """Add up gradients, each bucket once the last op before the update has written its last one."""
        last, read = dict[int, int](), set[int]()
        for now, index, op in self.ops:
            read.update(op.reads if now == _UPDATE else ())
            for t in op.writes if now != _UPDATE else ():
                if self.graph.tensors[t].kind is TensorKind.GRADIENT:
                    last.pop(t, None)
                    last[t] = index
        due = [t for t in last if t in read or not read]
        must = "gradients that replicas add up are marked, and an op before the update writes them"
        do = 'give them "kind": "gradient" in the graph, and ops of the optimizer "phase": "update"'
        insist(bool(due), self.where, must, "none", do)
        kind = CollectiveKind.REDUCE_SCATTER if self.stage else CollectiveKind.ALL_REDUCE
        for bucket in self.buckets(due):
            reads, index = [*map(self.name, bucket)], last[bucket[-1]]
            for t in bucket if self.stage > 1 else ():
                must, do = "a gradient in shards is new in each step", "set zero_stage to 0 or 1"
                insist(not self.graph.tensors[t].persistent, self.where, must, repr(self.name(t)), do)
                self.held[_UPDATE, t] = self.add(t, "shard", self.part(self.sizes[t]))
            self.meet(index + 1, index, kind, bucket, (reads, [self.name(t, _UPDATE) for t in bucket]))

    def cut_update(self) -> None:
        """Give each rank its part of the update; gather the weights then, unless they stay in shards."""
        last, alone, others = dict[int, int](), set[int](), set[int]()
        for now, index, op in self.ops:
            (alone if now == _UPDATE else others).update(op.reads, op.writes)
            if now == _UPDATE:
                self._check_update(op)
                last |= {t: index for t in op.writes if self.graph.tensors[t].kind in _WEIGHTS}
        must, do = "ZeRO cuts the ops of the update", 'give ops of the optimizer "phase": "update", or set zero_stage to 0'
        insist(bool(alone), self.where, must, "none", do)
        for t in alone:
            tensor = self.graph.tensors[t]
            is_state = tensor.kind is TensorKind.OPTIMIZER_STATE
            must, do = "the update alone uses states", 'give its op "phase": "update", or the tensor another kind'
            insist(not is_state or t not in others, self.where, must, f"{tensor.name!r} used before", do)
            if is_state or not (tensor.persistent or t in others):
                self.sizes[t] = self.part(tensor.size_bytes)
        for bucket in self.buckets(sorted(last, key=lambda t: last[t])) if self.stage < 3 else ():
            names, index = [*map(self.name, bucket)], last[bucket[-1]]
            self.meet(index + 1, index, CollectiveKind.ALL_GATHER, bucket, (names, names))

    def _check_update(self, op: Op) -> None:
        """Refuse an op of the update that no n-th part is known of."""
        must = "an update that ranks share is elementwise, and its time is modelled"
        found = f"op {op.name!r} {'with a measured time' if op.duration_ns else f'of class {op.op_class}'}"
        is_plain = op.duration_ns is None and op.op_class == "vector"
        insist(is_plain, self.where, must, found, "set zero_stage to 0")
        known = (*_WEIGHTS, TensorKind.OPTIMIZER_STATE, TensorKind.GRADIENT)
        for tensor in (self.graph.tensors[t] for t in op.writes):
            must, found = "what the update writes is marked", f"{tensor.name!r} of kind {tensor.kind}"
            do = 'give it "kind": "weight" or "optimizer_state" in the graph'
            insist(not tensor.persistent or tensor.kind in known, self.where, must, found, do)

    def shard_weights(self) -> None:
        """Keep weights in shards, and gather them for each pass."""
        written = {t for now, _, op in self.ops if now != _UPDATE for t in op.writes}
        whole = written | self.graph.candidates
        shards = {
            t for t, tensor in enumerate(self.graph.tensors)
            if tensor.persistent and tensor.kind in _WEIGHTS and not tensor.shared and t not in whole
        }  # fmt: skip
        first, final = dict[int, dict[int, int]](), dict[int, int]()  # pass -> weight -> its first use; its last weight
        for now, index, op in self.ops:
            for t in op.reads if now != _UPDATE else ():
                if t in shards:
                    first.setdefault(now, {}).setdefault(t, index)
                    final[now] = t
        for t in shards:
            self.sizes[t] = self.part(self.sizes[t])
        units = [*self.buckets(dict.fromkeys(chain.from_iterable(first.values())))]
        unit_of = {t: number for number, unit in enumerate(units) for t in unit}
        for now, uses in first.items():
            due = dict[int, int]()
            for t, index in uses.items():
                due.setdefault(unit_of[t], index)
            if now - 1 in final and (kept := unit_of[final[now - 1]]) == next(iter(due)):
                self.held |= {(now, t): self.name(t, now - 1) for t in units[kept]}
                del due[kept]
            self._gather(now, [(index, units[number]) for number, index in due.items()])

    def _gather(self, now: int, due: list[tuple[int, list[int]]]) -> None:
        """Gather units in a pass, some ahead; all but the first when what is computed then is there."""
        end = ("gathered", "gathered.bwd")[now] if now < 2 else f"gathered.{now}"
        for order, (_, unit) in enumerate(due):
            at = due[max(0, order - self.parallel.gathers_ahead)][0]
            op = self.graph.ops[at]
            waits_for = [self.name(t, now) for t in op.reads if order and not self.graph.tensors[t].persistent]
            reads = [self.graph.tensors[t].name for t in unit]
            for t in unit:
                self.held[now, t] = self.add(t, end, self.graph.tensors[t].size_bytes)
            writes = [self.held[now, t] for t in unit]
            self.meet(at, at, CollectiveKind.ALL_GATHER, unit, ([*reads, *waits_for], writes))

    def build(self) -> Graph:
        """Build the graph, whose rules are checked as those of a file are."""
        graph, builder = self.graph, GraphBuilder(self.graph.name, self.where)
        for tensor, size_bytes in zip(graph.tensors, self.sizes, strict=True):
            builder.tensor(
                tensor.name, size_bytes, str(tensor.kind), persistent=tensor.persistent, shared=tensor.shared
            )
        for name, (size_bytes, kind) in self.made.items():
            builder.tensor(name, size_bytes, kind)
        builder.group("data", [range(self.ranks)])
        for now, index, op in self.ops:
            self._meet_before(builder, index)
            more: dict[str, Any] = {key: getattr(op, key) for key in _PLAIN}
            if now == _UPDATE and self.stage:
                more |= {key: self.part(more[key]) for key in _CUT}
            if op.dynamic is not None:
                names, reads = [graph.tensors[t].name for t in op.dynamic.candidates], op.dynamic
                revealing = graph.ops[reads.revealed_by].name
                more["dynamic"] = builder.dynamic_reads(
                    op.name, revealing, names, samples=reads.samples, each=reads.each
                )
            used, made = ([self.name(t, now) for t in ids] for ids in (op.reads, op.writes))
            builder.op(op.name, used, made, **more)
        self._meet_before(builder, len(graph.ops))
        return builder.build([self.name(t, _UPDATE) for t in graph.outputs], graph.steps)

    def _meet_before(self, builder: GraphBuilder, index: int) -> None:
        for kind, name, phase, size_bytes, reads, writes in self.before.get(index, ()):
            collective = Collective(kind, "data", size_bytes)
            builder.op(name, reads, writes, "collective", phase=phase, collective=collective)
