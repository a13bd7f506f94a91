"""The operator graph: what runs, in which order, on which tensors; it knows no machine.

A *job* is what all ranks run together: one graph for all of them, or several. Ranks meet in *collectives*: ops on a
named group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from simulator.errors import ConfigError, insist
from simulator.graph.graph import LARGEST_RUN as LARGEST_RUN
from simulator.graph.graph import Graph as Graph
from simulator.graph.graph import check_run as check_run
from simulator.graph.graph import check_sums as check_sums
from simulator.graph.graph_columns import GraphColumns as GraphColumns
from simulator.graph.ops import ALGORITHMS as ALGORITHMS
from simulator.graph.ops import DEVICES as DEVICES
from simulator.graph.ops import HOST as HOST
from simulator.graph.ops import LARGEST as LARGEST
from simulator.graph.ops import OP_CLASSES as OP_CLASSES
from simulator.graph.ops import PAIRED as PAIRED
from simulator.graph.ops import PHASES as PHASES
from simulator.graph.ops import Collective as Collective
from simulator.graph.ops import CollectiveKind as CollectiveKind
from simulator.graph.ops import DelaySpread as DelaySpread
from simulator.graph.ops import DynamicReads as DynamicReads
from simulator.graph.ops import Group as Group
from simulator.graph.ops import Op as Op
from simulator.graph.ops import OpKind as OpKind
from simulator.graph.ops import Tensor as Tensor
from simulator.graph.ops import TensorKind as TensorKind
from simulator.graph.ops import chosen_number as chosen_number
from simulator.graph.ops import lesser_shares as lesser_shares
from simulator.graph.ops import share_of as share_of
from simulator.units import counted


@dataclass(frozen=True, slots=True)
class Job:
    """Graphs that all ranks run together.

    Attributes
    ----------
    graph_of
        For each rank, which of them it runs.
    labels
        For each graph, what its ranks are called (``stage 0``); the job's name if there is only one.
    lag
        By how many steps what programs hand to one another, once around, is older at most than what reads it: where
        this is more than one, steps may overlap, and alternate.

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
    lag: int = 0

    def __post_init__(self) -> None:
        where, graphs = f"job {self.name!r}", len(self.graphs) if isinstance(self.graphs, (tuple, list)) else 0
        of_fields = {"graphs": (self.graphs, Graph), "graph_of": (self.graph_of, int), "labels": (self.labels, str)}
        for field, (values, kind) in of_fields.items():
            odd = [x for x in values if type(x) is not kind] if isinstance(values, (tuple, list)) else [values]
            if odd:
                must, found = f"a list of entries of type {kind.__name__} is needed", f"one {type(odd[0]).__name__}"
                raise ConfigError(f"{where}, {field}", must, found, "correct it")
        if not graphs or set(self.graph_of) != set(range(graphs)):
            must = f"ranks run the {counted(graphs, 'graph')} of a job, numbered from 0, and each is run by some"
            found = ", ".join(map(str, sorted(set(self.graph_of)))) or "no rank"
            raise ConfigError(f"{where}, graph_of", must, found, "say for each rank which graph it runs")
        must, found = "each graph has a label", f"{counted(len(self.labels), 'label')} for {counted(graphs, 'graph')}"
        insist(len(self.labels) == graphs, f"{where}, labels", must, found, "give its ranks a label")

    @classmethod
    def of(cls, graph: Graph, ranks: int = 1) -> Self:
        """Make the job in which so many ranks run the same graph."""
        return cls(graph.name, (graph,), (0,) * ranks, (graph.name,))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.graph_of)

    def graph(self, rank: int) -> Graph:
        """Return the graph that a rank runs."""
        return self.graphs[self.graph_of[rank]]

    def ranks_of(self, graph: int) -> tuple[int, ...]:
        """List the ranks that run this graph."""
        return tuple(rank for rank, of_rank in enumerate(self.graph_of) if of_rank == graph)


Members = tuple[int, ...]


class Call(NamedTuple):
    """A rank's part in the collectives of a group.

    Attributes
    ----------
    role
        ``send`` or ``recv``, or empty where all members do the same.
    """

    group: str
    role: str

    @property
    def answer(self) -> Call:
        """The call by which the other members come there."""
        return Call(self.group, {"send": "recv", "recv": "send", "": ""}[self.role])


class Roles:
    """The collectives of a graph by call, and with whom each rank meets there.

    Parameters
    ----------
    graph
        What ranks run.

    Attributes
    ----------
    ops
        Call -> op ids, in program order.
    calls
        Op id of a collective -> its call.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: dict[Call, list[int]] = {}
        self.calls: dict[int, Call] = {}
        for index, op in enumerate(graph.ops):
            if op.collective is not None:
                kind = op.collective.kind
                call = self.calls[index] = Call(op.collective.group, str(kind) if kind in PAIRED else "")
                self.ops.setdefault(call, []).append(index)

    @cached_property
    def members(self) -> dict[Call, dict[int, Members]]:
        """Call -> rank -> who meets there, in order."""
        groups = {group.name: group for group in self.graph.groups}
        return {call: groups[call.group].by_rank(call.role) if call.group in groups else {} for call in self.ops}

    def others(self, call: Call, rank: int) -> list[int]:
        """List the ranks to compare a rank with at a call of its own: they answer it.

        The first member is compared with all others, each of these with the first, so that the work is linear.
        """
        members = self.members[call][rank]
        return [*(members[1:] if rank == members[0] else members[:1])]
