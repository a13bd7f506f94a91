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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from simulator.errors import insist
from simulator.graph import Collective, CollectiveKind, Graph, Group, Job, Op, OpKind, TensorKind, check_sums
from simulator.workload import Parallel

_FIRST_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
_UPDATE = -1
"""The pass of ops of the update; those of forward are even, those of backward odd."""
_BEFORE, _BEHIND = range(2)
"""Where a collective stands beside an op."""
_Ways = tuple[list[int], list[int]]
"""What it reads and writes."""
_WEIGHTS = (TensorKind.WEIGHT, TensorKind.EXPERT)
_MARKED = (*_WEIGHTS, TensorKind.OPTIMIZER_STATE, TensorKind.GRADIENT)


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
    met = next((op.name for op in graph.ops if op.kind is OpKind.COLLECTIVE), "")
    must, do = "ranks stand in the graph, or in the workload", "remove parallel, or the groups of the graph"
    insist(not met and not graph.groups, f"{where}, parallel", must, f"both, as in op {met!r}", do)
    apart = next((op.name for op in graph.ops if op.dynamic and op.dynamic.updates), "")
    must, found = "replicas all update the same tensors", f"op {apart!r}, which updates its draws"
    do = "remove parallel, or update all for certain"
    insist(not apart or parallel.data == 1, f"{where}, parallel", must, found, do)
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
    """The graph of each replica while it is made.

    An update is told from what is before it by a truth value.
    """

    def __init__(self, graph: Graph, parallel: Parallel, where: str) -> None:
        self.graph, self.parallel, self.where = graph, parallel, where
        self.tensors = [*graph.tensors]
        self.held: dict[tuple[int, int], int] = {}  # pass, tensor -> what ops of that pass use for it
        self.beside = defaultdict[tuple[int, int], list[Op]](list)  # op, and where beside it -> collectives
        self.used: tuple[set[int], set[int]] = set(), set()  # tensors that ops before the update, or of it, use
        self.ops, now = list[tuple[int, int, Op]](), 0  # pass, index, op
        for index, op in enumerate(graph.ops):
            now += op.phase not in ("", "update") and (op.phase == "backward") != now % 2
            self.ops.append((_UPDATE if op.phase == "update" else now, index, op))
            self.used[op.phase == "update"].update(op.reads, op.writes)

    def part(self, size: int) -> int:
        """Return the part of a rank, rounded up."""
        return -(-size // self.parallel.data)

    def cut(self, tensors: Iterable[int]) -> None:
        """Leave each rank its part of tensors."""
        for t in tensors:
            self.tensors[t] = replace(self.tensors[t], size_bytes=self.part(self.tensors[t].size_bytes))

    def hold(self, now: int, tensor: int, end: str) -> int:
        """Add a tensor, new in each step, that ops of a pass use for another; return its id."""
        like = self.graph.tensors[tensor]
        self.held[now, tensor] = len(self.tensors)
        self.tensors.append(replace(like, name=f"{like.name}.{end}", persistent=False))
        return self.held[now, tensor]

    def last_writes(self, kinds: Sequence[TensorKind], *, by_update: bool) -> dict[int, int]:
        """Return the last op before the update, or of it, that writes each tensor of some kinds, in this order."""
        last = dict[int, int]()
        for now, index, op in self.ops:
            for t in op.writes if (now == _UPDATE) is by_update else ():
                if self.tensors[t].kind in kinds:
                    last.pop(t, None)
                    last[t] = index
        return last

    def buckets(self, tensors: Iterable[int]) -> Iterator[list[int]]:
        """Divide tensors into buckets, in their order."""
        stated_bytes, bucket = self.parallel.bucket_bytes, list[int]()
        left_bytes = stated_bytes or _FIRST_BYTES
        for tensor in tensors:
            bucket.append(tensor)
            left_bytes -= self.graph.tensors[tensor].size_bytes
            if left_bytes <= 0:
                yield bucket
                bucket, left_bytes = [], stated_bytes or _BUCKET_BYTES
        if bucket:
            yield bucket

    def meet(self, place: tuple[int, int], kind: CollectiveKind, of: list[int], ways: _Ways) -> None:
        """Add a collective about some tensors that reads and writes others, beside an op and in its layer and phase."""
        near, (reads, writes) = self.graph.ops[place[0]], ways
        layer, slash, _ = near.name.rpartition("/")
        shared = "weights" if kind is CollectiveKind.ALL_GATHER else "grads"
        name = f"{layer}{slash}{shared}.{kind}.{sum(map(len, self.beside.values()))}"
        read_bytes, write_bytes = (sum(self.tensors[t].size_bytes for t in ids) for ids in ways)
        size_bytes = sum(self.graph.tensors[t].size_bytes for t in of)
        op = Op(name, tuple(reads), tuple(writes), read_bytes, write_bytes, phase=near.phase, kind=OpKind.COLLECTIVE)
        self.beside[place].append(replace(op, collective=Collective(kind, "data", size_bytes)))

    def refuse(self, rule: str, odd: str | None, do: str) -> None:
        """Refuse what is odd, if something is."""
        insist(odd is None, self.where, rule, str(odd), do)

    def named(self, tensors: Iterable[int]) -> str | None:
        """Return the name and kind of the first of some tensors."""
        return next((f"{self.tensors[t].name!r} of kind {self.tensors[t].kind}" for t in sorted(tensors)), None)

    def add_up(self) -> None:
        """Add up gradients, each bucket once the last op before the update has written its last one."""
        stage, last = self.parallel.zero_stage, self.last_writes([TensorKind.GRADIENT], by_update=False)
        due = [t for t in last if t in self.used[True] or not self.used[True]]
        do = 'give them "kind": "gradient" in the graph, and ops of the optimizer "phase": "update"'
        rule = "gradients that replicas add up are marked, and an op before the update writes them"
        self.refuse(rule, None if due else "none", do)
        lasting = [t for t in due if stage > 1 and self.tensors[t].persistent]
        self.refuse("a gradient in shards is new in each step", self.named(lasting), "set zero_stage to 0 or 1")
        kind = CollectiveKind.REDUCE_SCATTER if stage else CollectiveKind.ALL_REDUCE
        for bucket in self.buckets(due):
            made = [self.hold(_UPDATE, t, "shard") for t in bucket] if stage > 1 else bucket
            self.cut(made if stage > 1 else ())
            self.meet((last[bucket[-1]], _BEHIND), kind, bucket, (bucket, made))

    def cut_update(self) -> None:
        """Give each rank its part of the update; gather the weights then, unless they stay in shards."""
        before, update = self.used
        self.refuse("ZeRO cuts the update", None if update else "no op of that phase", 'give ops "phase": "update"')
        states = {t for t in update if self.tensors[t].kind is TensorKind.OPTIMIZER_STATE}
        self.refuse("the update alone uses states", self.named(states & before), "correct the kind, or the op's phase")
        ops = [op for now, _, op in self.ops if now == _UPDATE]
        lasting = {t for op in ops for t in op.writes if self.tensors[t].persistent}
        odd = {t for t in lasting if self.tensors[t].kind not in _MARKED}
        do = 'give it "kind": "weight" or "optimizer_state" in the graph'
        self.refuse("every output of the update is marked", self.named(odd), do)
        whole = (op.name for op in ops if op.duration_ns or op.dynamic or op.op_class != "vector")
        rule = "an update that ranks share has class vector, no measured time and no dynamic reads"
        self.refuse(rule, next(whole, None), "set zero_stage to 0")
        self.cut(states | {t for t in update - before if not self.tensors[t].persistent})
        last = self.last_writes(_WEIGHTS, by_update=True)
        for bucket in self.buckets(last) if self.parallel.zero_stage < 3 else ():
            self.meet((last[bucket[-1]], _BEHIND), CollectiveKind.ALL_GATHER, bucket, (bucket, bucket))

    def shard_weights(self) -> None:
        """Keep weights in shards, and gather them for each pass, a unit at a time and some ahead."""
        whole = {*self.last_writes(_WEIGHTS, by_update=False), *self.graph.candidates}
        marked = {t for t, tensor in enumerate(self.graph.tensors) if tensor.kind in _WEIGHTS}
        shards = {t for t in marked - whole if self.tensors[t].persistent and not self.tensors[t].shared}
        first, final = defaultdict[int, dict[int, int]](dict), dict[int, int]()  # by pass: first uses; last weight
        for now, index, op in self.ops:
            for t in shards.intersection(op.reads) if now != _UPDATE else ():
                first[now].setdefault(t, index)
                final[now] = t
        self.cut(shards)
        units = [*self.buckets(dict.fromkeys(chain.from_iterable(first.values())))]
        unit_of = {t: unit for unit, tensors in enumerate(units) for t in tensors}
        for now, weights in first.items():
            due = {unit_of[t]: index for t, index in reversed(weights.items())}  # unit -> its first use
            order = sorted(due, key=due.__getitem__)
            if now - 1 in final and unit_of[final[now - 1]] == order[0]:
                self.held |= {(now, t): self.held[now - 1, t] for t in units[order.pop(0)]}
            end = ("gathered", "gathered.bwd")[now] if now < 2 else f"gathered.{now}"
            for turn, unit in enumerate(order):
                near, of = due[order[max(0, turn - self.parallel.gathers_ahead)]], units[unit]
                # all but the first wait until what is computed then has what it reads
                waits_for = [t for t in self.graph.ops[near].reads if turn and not self.graph.tensors[t].persistent]
                made = [self.hold(now, t, end) for t in of]
                self.meet((near, _BEFORE), CollectiveKind.ALL_GATHER, of, ([*of, *waits_for], made))

    def build(self) -> Graph:
        """Build the graph."""
        ops, index_of = list[Op](), list[int]()
        for now, index, op in self.ops:
            ops += self.beside[index, _BEFORE]
            index_of.append(len(ops))
            reads, writes = (tuple([self.held.get((now, t), t) for t in ids]) for ids in (op.reads, op.writes))
            part = self.part if now == _UPDATE and self.parallel.zero_stage else int
            made = replace(op, reads=reads, writes=writes, read_bytes=part(op.read_bytes), flops=part(op.flops))
            made = replace(made, write_bytes=part(op.write_bytes), workspace_bytes=part(op.workspace_bytes))
            if op.dynamic is not None:
                made = replace(made, dynamic=replace(op.dynamic, revealed_by=index_of[op.dynamic.revealed_by]))
            ops += [made, *self.beside[index, _BEHIND]]
        outputs = tuple([self.held.get((_UPDATE, t), t) for t in self.graph.outputs])
        graph = replace(self.graph, tensors=tuple(self.tensors), ops=tuple(ops), outputs=outputs)
        graph = replace(graph, groups=(Group("data", (tuple(range(self.parallel.data)),)),))
        check_sums(graph, self.where)
        return graph.repeated(graph.steps, self.where)
