"""What one rank runs, compiled once into flat columns that ranks with the same program share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from simulator.draws import Draws
from simulator.graph import Graph, OpKind, Roles
from simulator.plan import COMPUTE, Plan
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
        What its dynamic reads choose; None: its ops read all candidates, and take what `durations_ns` says.
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

    Attributes
    ----------
    reads, writes
        Per op: tensors that it reads, and writes.
    duration_ns, workspace_bytes, is_collective
        Per op; a collective without members takes its time alone, as if the others always came in time. Of an op with
        dynamic reads the duration is set when it starts.
    size_bytes, home
        Per tensor.
    written
        Tensors that some op writes.
    streams
        How many compute streams the plan uses.
    compute_tier
        Id of the tier that kernels work in.
    outputs
        What a step puts out, beside what is persistent.
    roles
        Its collectives.
    """

    def __init__(self, program: Program, compute_tier: int) -> None:
        graph, plan = program.graph, program.plan
        self.compute_tier, self.streams = compute_tier, _streams(graph, plan)
        self.reads = [op.reads for op in graph.ops]
        self.writes = [op.writes for op in graph.ops]
        self.workspace_bytes = [op.workspace_bytes for op in graph.ops]
        self.duration_ns = list(program.durations_ns)
        self.is_collective = [op.kind is OpKind.COLLECTIVE for op in graph.ops]
        self.written = frozenset(chain.from_iterable(op.writes for op in graph.ops))
        self.size_bytes = [tensor.size_bytes for tensor in graph.tensors]
        self.home = plan.home
        self.roles = Roles(graph)
        self.outputs = frozenset(t for t in graph.outputs if not graph.tensors[t].persistent)


def _streams(graph: Graph, plan: Plan) -> int:
    """How many streams a fixed plan uses; a reactive one may give each group its own."""
    steps = plan.fixed
    if steps is None:
        return 1 + max((op.stream for op in graph.ops), default=0) + len(graph.groups)
    return 1 + max((b for kind, b in zip(steps.kind, steps.b, strict=True) if kind == COMPUTE), default=0)
