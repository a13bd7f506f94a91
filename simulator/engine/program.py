"""What one rank runs, compiled once into flat columns that ranks with the same program share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.graph import Graph
from simulator.plan import Plan


@dataclass(frozen=True, slots=True)
class Program:
    """A graph with its plan.

    Attributes
    ----------
    graph, plan
        What runs, and what was decided.
    durations_ns
        Time of each op alone [ns].
    """

    graph: Graph
    plan: Plan
    durations_ns: Sequence[int]


class Columns:
    """A graph as the engine loops over it: by op id or tensor id.

    Attributes
    ----------
    reads
        Per op: tensors that must be valid in the compute tier.
    shared, exclusive
        Per op: tensors it only reads, and tensors it writes.
    duration_ns, workspace_bytes
        Per op.
    size_bytes
        Per tensor.
    """

    __slots__ = ("duration_ns", "exclusive", "reads", "shared", "size_bytes", "workspace_bytes")

    def __init__(self, graph: Graph, durations_ns: Sequence[int]) -> None:
        self.reads = [op.reads for op in graph.ops]
        self.exclusive = [op.writes for op in graph.ops]
        self.shared = [tuple(t for t in op.reads if t not in op.writes) for op in graph.ops]
        self.duration_ns = list(durations_ns)
        self.workspace_bytes = [op.workspace_bytes for op in graph.ops]
        self.size_bytes = [tensor.size_bytes for tensor in graph.tensors]
