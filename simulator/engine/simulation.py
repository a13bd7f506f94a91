"""Builds the machine for a list of programs, runs it to the end, and checks that everything completed."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simulator.engine.meeting import Communicator
from simulator.engine.program import Program
from simulator.engine.rank import Machine, Rank, SwitchesLike
from simulator.engine.recorder import Recorder
from simulator.engine.rounds import Clock, Rounds
from simulator.engine.sharing import Network, Path, Resource
from simulator.engine.tier import TierInstance
from simulator.errors import InvariantError
from simulator.graph import PAIRED, Collective, Graph
from simulator.hardware import Hardware
from simulator.trace import Trace

Progress = Callable[[int, int], None]
"""Called now and then with the computes that are done, and those that there are in all."""


class _Defaults:
    copies_wait_for = "start"
    hbm_contention = False


def run(
    programs: Sequence[Program],
    hardware: Hardware,
    *,
    budget_bytes: int | float | None = None,
    switches: SwitchesLike | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Replay one program per rank.

    Parameters
    ----------
    programs
        A graph with its plan for each rank.
    hardware
        The machine.
    budget_bytes
        What may be used of the compute tier [B]; default: its capacity less what is reserved.
    switches
        Readings of the machine that are a choice.
    progress
        Called now and then.

    Returns
    -------
    Trace
        What happened; its status is ``blocked`` if some step could not move.

    Raises
    ------
    PlanError
        If a reactive plan issues a step that cannot act, or a copy has no link.
    CapacityError
        If the homes alone exceed a tier.
    """
    simulation = Simulation(hardware, budget_bytes, switches or _Defaults(), len(programs))
    for program in programs:
        simulation.add(program)
    return simulation.run(progress)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the search for reference cycles: a run makes many objects and no cycles, the search takes a tenth of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Simulation(Machine):
    """The machine with its ranks.

    Parameters
    ----------
    hardware, budget_bytes, switches
        See `run`.
    ranks
        How many programs will be added.
    """

    def __init__(
        self, hardware: Hardware, budget_bytes: int | float | None, switches: SwitchesLike, ranks: int
    ) -> None:
        self.hardware, self.switches = hardware, switches
        self._clock = Clock()
        self.rounds = Rounds(self._clock)
        self.network = Network(self.rounds)
        self._paths: dict[tuple[int | float, tuple[Resource, ...]], Path] = {}
        self.recorder, self.has_ranks = Recorder(ranks), ranks > 1
        self._budget = hardware.tiers[hardware.compute_tier].usable_bytes if budget_bytes is None else budget_bytes
        self._communicators: dict[tuple[str, tuple[int, ...]], Communicator] = {}
        self._instances: dict[tuple[str, str, int], Any] = {}
        self._ranks: list[Rank] = []
        self._progress: Progress | None = None

    def add(self, program: Program) -> None:
        """Add the next rank."""
        self._ranks.append(Rank(self, len(self._ranks), program))

    def instance(self, kind: str, name: str, scope: str, rank: int, make: Callable[[], Any]) -> Any:
        """The instance of a tier or bus that this rank uses; made at its first use."""
        node = rank // self.hardware.topology.devices_per_node
        key = (kind, name, {"device": rank, "node": node}.get(scope, -1))
        if key not in self._instances:
            self._instances[key] = make()
        return self._instances[key]

    def tier(self, number: int, rank: int) -> TierInstance:
        """The rank's instance of a tier."""
        name = self.hardware.tier_names[number]
        tier = self.hardware.tiers[name]
        capacity = self._budget if name == self.hardware.compute_tier else tier.usable_bytes
        make = lambda: TierInstance(name, number, capacity, self.rounds)  # noqa: E731
        instance: TierInstance = self.instance("tier", name, tier.scope, rank, make)
        return instance

    def resources(self, link: str, rank: int) -> tuple[Resource, ...]:
        """The buses that a link of this rank is on, and the compute tier if copies take bandwidth there."""
        found = self._buses(link, rank)
        ends = (self.hardware.links[link].source, self.hardware.links[link].target)
        if self.switches.hbm_contention and self.hardware.compute_tier in ends:
            found.append(self.compute_bandwidth(rank))
        return tuple(found)

    def _buses(self, capped: str, rank: int) -> list[Resource]:
        """The rank's instances of the buses that cap a link or a port."""
        found: list[Resource] = []
        for name, bus in self.hardware.buses.items():
            if capped in bus.links:
                make = lambda bus=bus: Resource(bus.bandwidth_bytes_per_s)  # noqa: E731
                found.append(self.instance("bus", name, bus.scope, rank, make))
        return found

    def compute_bandwidth(self, rank: int) -> Resource:
        """The bandwidth of the rank's compute tier, for kernels and copies together."""
        tier = self.hardware.tiers[self.hardware.compute_tier]
        bandwidth = math.inf if tier.bandwidth_bytes_per_s is None else tier.bandwidth_bytes_per_s
        resource: Resource = self.instance("bandwidth", "", tier.scope, rank, lambda: Resource(bandwidth))
        return resource

    def port(self, fabric: str, way: str, rank: int) -> tuple[Resource, ...]:
        """A rank's port of a fabric, ``out`` or ``in``, and the buses that cap it."""
        name = f"{fabric}.{way}"
        found = self.hardware.fabrics[fabric]
        bandwidth = found.planes * found.bandwidth_bytes_per_s
        port = self.instance("port", name, "device", rank, lambda: Resource(bandwidth))
        return (port, *self._buses(name, rank))

    def communicator(self, graph: Graph, collective: Collective, rank: int) -> Communicator:
        """The ranks with which a rank meets for a collective of its graph."""
        group = next(group for group in graph.groups if group.name == collective.group)
        ranks = group.of(rank, collective.kind)
        if ranks is None:
            raise InvariantError(
                "engine", "a rank is a member of the groups of its collectives", str(rank), "report this"
            )
        key = (group.name, ranks)
        if key not in self._communicators:
            path = self._pair_path(ranks) if collective.kind in PAIRED else self._member_path
            self._communicators[key] = Communicator(ranks, ranks, self.hardware, path, self.rounds, self.network)
        return self._communicators[key]

    def _member_path(self, fabric: str, rank: int) -> Path:
        """What a member of a collective sends and receives through."""
        return self._ports_path(fabric, rank, rank)

    def _pair_path(self, ranks: tuple[int, ...]) -> Callable[[str, int], Path | None]:
        """What a message goes through: the sender brings it, the receiver nothing."""
        source, target = ranks
        return lambda fabric, rank: self._ports_path(fabric, source, target) if rank == source else None

    def _ports_path(self, fabric: str, source: int, target: int) -> Path:
        found = self.hardware.fabrics[fabric]
        ports = (*self.port(fabric, "out", source), *self.port(fabric, "in", target))
        return self.path(found.planes * found.bandwidth_bytes_per_s, tuple(dict.fromkeys(ports)), even=False)

    def path(self, unit: int | float, shared: tuple[Resource, ...], *, even: bool) -> Path:
        """The path of flows through these resources; the same one for all ranks, unless flows share it evenly."""
        if even:
            return Path(unit, shared, even=True)
        return self._paths.setdefault((unit, shared), Path(unit, shared, even=False))

    def run(self, progress: Progress | None) -> Trace:
        """Run until nothing moves, and tell what is stuck."""
        self._progress = progress
        for rank in self._ranks:
            rank.begin()
        with _no_collection():
            self.rounds.settle()
            self._clock.run()
        self.checkpoint()
        return self.recorder.trace(tuple(s for rank in self._ranks for s in rank.blocked()))

    def checkpoint(self) -> None:
        """Write full blocks and report progress."""
        self.recorder.flush()
        if self._progress is not None:
            self._progress(sum(rank.ended for rank in self._ranks), sum(rank.computes for rank in self._ranks))
