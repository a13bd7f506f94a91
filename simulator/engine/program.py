"""What one rank runs, compiled once into flat columns that ranks with the same program share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from simulator.draws import Draws
from simulator.graph import Graph, OpKind
from simulator.plan import COMPUTE, COPY, DETACH, NOWHERE, Plan, Steps
from simulator.scenario import AllocatorKind


@dataclass(frozen=True, slots=True)
class Program:
    """A graph with its plan.

    Attributes
    ----------
    graph, plan
        What runs, and what was decided.
    durations_ns
        Time of each op alone [ns].
    starts_ns
        When the host begins to issue [ns].
    draws
        What its late reads choose; None: its ops read all candidates, and take what `durations_ns` says.
    allocator
        How places of its compute tier get addresses.
    """

    graph: Graph
    plan: Plan
    durations_ns: Sequence[int]
    starts_ns: int = 0
    draws: Draws | None = None
    allocator: AllocatorKind = "ideal"


class Columns:
    """A graph as the engine loops over it: by op id or tensor id.

    A tensor that no copy, detach or sync names stays where it is; with one compute stream its steps are in order by
    themselves, so that nothing needs to be checked for it. Only the others are *tracked*.

    Attributes
    ----------
    tracked
        Per tensor: whether it is.
    reads, writes
        Per op: tracked tensors that it reads, and writes.
    light
        Per op: the same as `reads` if that is all it names and it takes no workspace; else None.
    duration_ns, workspace_bytes, is_collective
        Per op; a collective without members takes its time alone, as if the others always came in time. Of an op with
        late reads the duration is set when it starts.
    size_bytes
        Per tensor.
    written
        Per tensor: whether some op writes it.
    streams
        How many compute streams the plan uses.
    compute_tier
        Id of the tier that kernels work in.
    starts_here
        Per tensor: whether it is in the compute tier at time 0.
    outputs
        What a step puts out, beside what is persistent.
    parting
        Positions, in a fixed plan or a backbone, of the detaches that give up the only valid copy of an output.
    """

    __slots__ = (
        "compute_tier",
        "duration_ns",
        "is_collective",
        "light",
        "outputs",
        "parting",
        "reads",
        "size_bytes",
        "starts_here",
        "streams",
        "tracked",
        "workspace_bytes",
        "writes",
        "written",
    )

    def __init__(self, program: Program, compute_tier: int) -> None:
        graph, plan = program.graph, program.plan
        self.compute_tier, self.streams = compute_tier, _streams(graph, plan)
        self.tracked = tracked = _tracked(plan, compute_tier, self.streams)
        writes = [op.writes for op in graph.ops]
        self.reads, self.writes = _those([op.reads for op in graph.ops], tracked), _those(writes, tracked)
        self.workspace_bytes = [op.workspace_bytes for op in graph.ops]
        once: dict[int, int] = {}
        self.duration_ns = list(map(once.setdefault, program.durations_ns, program.durations_ns))
        about = zip(self.reads, self.writes, self.workspace_bytes, strict=True)
        self.light = [None if writes or workspace else reads for reads, writes, workspace in about]
        collective = OpKind.COLLECTIVE
        self.is_collective = [op.kind is collective for op in graph.ops]
        written = frozenset(chain.from_iterable(writes))
        self.written = [tensor in written for tensor in range(len(graph.tensors))]
        self.size_bytes = [tensor.size_bytes for tensor in graph.tensors]
        self.starts_here = [home == compute_tier for home in plan.home]
        self.outputs = outputs(graph)
        self.parting = _parting(graph, plan, compute_tier)


def _those(tensors_by_op: list[tuple[int, ...]], tracked: list[bool]) -> list[tuple[int, ...]]:
    """Return those that are tracked; the very same tuple if all are, so that what the engine walks over stays small."""
    is_tracked = tracked.__getitem__
    return [those if len(found := tuple(filter(is_tracked, those))) == len(those) else found for those in tensors_by_op]


def _streams(graph: Graph, plan: Plan) -> int:
    """How many a fixed plan uses; a reactive one may give each group a stream of its own."""
    steps = plan.fixed
    if steps is None:
        return 1 + len(graph.groups)
    return 1 + max((b for kind, b in zip(steps.kind, steps.b, strict=True) if kind == COMPUTE), default=0)


def _tracked(plan: Plan, compute_tier: int, streams: int) -> list[bool]:
    """Flag the tensors whose place or order has to be watched."""
    steps = plan.fixed
    if streams > 1:
        return [True] * len(plan.home)
    if steps is None:
        return [home != compute_tier or tensor not in plan.untouched for tensor, home in enumerate(plan.home)]
    flags = [home != compute_tier for home in plan.home]
    for kind, tensor in zip(steps.kind, steps.a, strict=True):
        if kind != COMPUTE:
            flags[tensor] = True
    return flags


def _parting(graph: Graph, plan: Plan, compute_tier: int) -> frozenset[int]:
    """Find the detaches that give up the only valid copy of an output."""
    valid = {t: {plan.home[t]} - {NOWHERE} for t in outputs(graph)}
    if not valid:
        return frozenset()
    found, parts = [], plan.backbone if plan.fixed is None else (plan.fixed,)
    for at, (kind, a, b, c) in enumerate(chain.from_iterable(map(Steps.codes, parts))):
        if kind == COMPUTE:
            for tensor in valid.keys() & graph.ops[a].writes:
                valid[tensor] = {compute_tier}
        elif a in valid and kind == COPY:
            valid[a].add(c)
        elif a in valid and kind == DETACH and b in valid[a]:
            valid[a].remove(b)
            if not valid[a]:
                found.append(at)
    return frozenset(found)


def outputs(graph: Graph) -> frozenset[int]:
    """What a step puts out, beside what is persistent."""
    return frozenset(t for t in graph.outputs if not graph.tensors[t].persistent)
