"""What all ranks run together: one graph for all of them, or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from simulator.errors import ConfigError
from simulator.graph.ops import Graph
from simulator.units import counted


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
