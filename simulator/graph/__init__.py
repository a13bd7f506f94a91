"""The operator graph: what runs, in which order, on which tensors; it knows no machine.

A *job* is what all ranks run together: one graph for all of them, or several. Ranks meet in *collectives*: ops on a
named group.
"""

from simulator.graph.collective import ALGORITHMS, PAIRED, Collective, CollectiveKind, Group
from simulator.graph.job import Job
from simulator.graph.ops import (
    LARGEST,
    LARGEST_RUN,
    OP_CLASSES,
    PHASES,
    Graph,
    Late,
    Op,
    OpKind,
    Tensor,
    TensorKind,
    check_run,
    chosen_number,
)
from simulator.graph.roles import Call, Members, Roles

__all__ = [
    "ALGORITHMS",
    "LARGEST",
    "LARGEST_RUN",
    "OP_CLASSES",
    "PAIRED",
    "PHASES",
    "Call",
    "Collective",
    "CollectiveKind",
    "Graph",
    "Group",
    "Job",
    "Late",
    "Members",
    "Op",
    "OpKind",
    "Roles",
    "Tensor",
    "TensorKind",
    "check_run",
    "chosen_number",
]
