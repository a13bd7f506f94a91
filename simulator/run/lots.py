"""What late reads choose in a run: drawn once for each rank, or read for all, and drawn apart for trying plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator import formats
from simulator.catalog import Loaded
from simulator.cost import chosen_op, duration_ns, durations_ns
from simulator.draws import Draws, Origin, Routing, drawn, popularity
from simulator.errors import ConfigError
from simulator.graph import Graph, Job
from simulator.hardware import Hardware


@dataclass(frozen=True, eq=False)
class Lots:
    """The draws of a run; each is made when it is first asked for.

    Attributes
    ----------
    origin, seed
        Where draws come from, and what they begin with.
    hardware
        Where ops run.
    """

    origin: Origin
    seed: int
    hardware: Hardware
    _known: dict[tuple[int, int], Draws] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, loaded: Loaded, job: Job) -> Lots:
        """Read where draws come from.

        Raises
        ------
        ConfigError
            If a file of draws is wrong, or says what ops choose that nobody in the job has; or if draws are given for
            a job in which nothing is drawn.
        """
        scenario = loaded.scenario
        origin: Origin = scenario.draws
        if "draws" in scenario.model_fields_set and not any(graph.has_late for graph in job.graphs):
            must, do = "draws are for ops with late reads", "remove them, or say experts: each in the workload"
            raise ConfigError(loaded.place("draws"), must, "none in what runs", do)
        if scenario.draws.file is not None:
            origin = formats.read_routing(loaded.paths["draws"])
        if isinstance(origin, Routing):
            _check_ops(origin, job)
        return cls(origin, scenario.seed, loaded.hardware)

    @property
    def are_alike(self) -> bool:
        """Whether all ranks that run the same choose the same: what a file says was chosen."""
        return isinstance(self.origin, Routing)

    def draws(self, graph: Graph, rank: int) -> Draws | None:
        """What late reads of a rank choose; None if its graph has none."""
        if not graph.has_late:
            return None
        rank = 0 if self.are_alike else rank
        key = id(graph), rank
        if key not in self._known:
            self._known[key] = drawn(graph, self.hardware, self.origin, self.seed, rank=rank)
        return self._known[key]

    def rehearsal(self, graph: Graph) -> Draws | None:
        """Draws with the same shares that are not those of the run: what a runtime is tried with."""
        if not graph.has_late:
            return None
        key = id(graph), -1
        if key not in self._known:
            self._known[key] = drawn(graph, self.hardware, self.origin, self.seed, rehearsal=True)
        return self._known[key]

    def popularity(self, graph: Graph) -> dict[int, tuple[float, ...]]:
        """For each op with late reads, the share of each candidate in what is chosen."""
        return popularity(graph, self.origin, self.seed) if graph.has_late else {}

    def measured_ns(self, graph: Graph, times_ns: Sequence[int], ranks: Sequence[int]) -> Sequence[int]:
        """Time of each op in the step that is measured [ns], from what it takes as planned.

        Of several ranks that draw for themselves, that is what ops take at least.
        """
        if not graph.has_late:
            return times_ns
        draws = self.draws(graph, ranks[0])
        if draws is None or (len(ranks) > 1 and not self.are_alike):
            return durations_ns(graph.certain, self.hardware)
        return draws.step_durations_ns(times_ns, graph.steps - 1)

    def shorter_ns(self, graph: Graph, op: int, ranks: Sequence[int]) -> int:
        """How much less an op may take in the step that is measured than in the one before [ns]."""
        late = graph.ops[op].late if op >= 0 else None
        draws = self.draws(graph, ranks[0])
        if graph.steps == 1 or late is None or draws is None:
            return 0
        if len(ranks) == 1 or self.are_alike:
            before, last = draws.durations_ns(op)[-2:]
            return max(0, before - last)
        every, least = sum(graph.tensors[t].size_bytes for t in late.candidates), graph.certain.ops[op]
        return duration_ns(chosen_op(least, every), self.hardware) - duration_ns(least, self.hardware)


def _check_ops(origin: Routing, job: Job) -> None:
    """Refuse choices of ops that no graph of the job has, or that read nothing late: they are of another model."""
    choosing = {op.name for graph in job.graphs for op in graph.ops if op.late is not None}
    strange = sorted({name for _, name in origin.by_step} - choosing)
    if strange:
        more = f" and {len(strange) - 1:,} more" if len(strange) > 1 else ""
        must = "each op in the file is one with late reads of what runs"
        raise ConfigError(origin.source, must, f"{strange[0]!r}{more}", "take the file of this model")
