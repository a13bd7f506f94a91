"""What ranks share: instances of tiers, buses, ports and memories, and who meets whom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from simulator.engine.compaction import space_for
from simulator.engine.event_loop import Clock, Rounds
from simulator.engine.kernels import Communicator
from simulator.engine.places import AddressedTier, TierInstance
from simulator.engine.program import Columns, Program
from simulator.engine.sharing import Network, Path, Resource, Uses
from simulator.graph import Call, Members
from simulator.hardware import Hardware
from simulator.lifetime import repeated
from simulator.scenario import Switches
from simulator.trace import RATES, Happened, Recorder, instances, packer


class Machine:
    """What ranks share: instances of tiers, buses, ports and links, and the paths of flows through them.

    Parameters
    ----------
    hardware, budget_bytes, switches
        See `run`.
    stands_in
        For each rank the one that is simulated in its place.
    forward
        Of one rank, takes what happens, which is then not kept.

    Attributes
    ----------
    stored
        By rank, tier and tensor, what another rank has stored there for the rank, too.
    stored_once
        By rank, tier and tensor, what its rows count for others as well [B].
    """

    def __init__(
        self,
        hardware: Hardware,
        budget_bytes: int | float | None,
        switches: Switches,
        stands_in: tuple[int, ...],
        forward: Callable[[Happened], None] | None = None,
    ) -> None:
        self.hardware, self.switches = hardware, switches
        self.rounds = Rounds(Clock())
        self.network = Network(self.rounds)
        self.stands_in, self.has_ranks = stands_in, len(stands_in) > 1
        self._sharing = hardware.topology.sharing
        self._counts = {scope: instances(many, stands_in)[1].tolist() for scope, many in self._sharing.items()}
        self.recorder = Recorder(len(stands_in), forward)
        self._budget = hardware.tiers[hardware.compute_tier].usable_bytes if budget_bytes is None else budget_bytes
        self._made: dict[Hashable, Any] = {}
        self.stored: set[tuple[int, int, int]] = set()
        self.stored_once: Counter[tuple[int, int, int]] = Counter()

    def store_once(self, programs: Sequence[Program]) -> None:
        """Find what is stored once for several ranks; a rank that stands for folded ones stores it for all."""
        scopes = [tier.scope for tier in self.hardware.tiers.values()]
        folded: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
        for rank, tier, tensors, _ in repeated([(p.graph, p.plan.home) for p in programs], self.hardware):
            by = self.stands_in[rank]
            if rank == by:
                self.stored.update((rank, tier, tensor) for tensor in tensors)
            if rank // self._sharing[scopes[tier]] == by // self._sharing[scopes[tier]]:
                folded[by, tier, tensors] += 1
        for (by, tier, tensors), ranks in folded.items():
            for tensor in tensors:
                self.stored_once[by, tier, tensor] += ranks * programs[by].graph.tensors[tensor].size_bytes

    def columns(self, program: Program) -> Columns:
        """The compiled graph of a program: one for all ranks that run it."""
        columns: Columns = self._once(id(program), lambda: Columns(program, self.hardware.compute_tier_id))
        return columns

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Something that ranks share; made when the first of them asks for it."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _use(self, kind: str, name: str, scope: str, rank: int, bandwidth: int | float) -> tuple[Resource, int]:
        """The rank's instance of a resource, and for how many flows one of the rank counts there."""
        watch = self._watch(name, scope, rank) if kind == "bus" else None
        resource: Resource = self._once((kind, name, rank // self._sharing[scope]), lambda: Resource(bandwidth, watch))
        return resource, self._counts[scope][rank]

    def _watch(self, bus: str, scope: str, rank: int) -> Callable[[int, int], None] | None:
        """What records the rate of the rank's instance of a bus, if ranks share it."""
        if scope == "device" or not self.has_ranks:
            return None
        number, instance = [*self.hardware.buses].index(bus), rank // self._sharing[scope]
        rows, pack = self.recorder.rates, packer(RATES)

        def write(time_ns: int, bytes_per_s: int) -> None:
            rows.extend(pack(time_ns, number, instance, bytes_per_s))

        return write

    def tier(self, number: int, rank: int, program: Program) -> TierInstance:
        """The rank's instance of a tier; a compute tier whose places have addresses is its own."""
        name = self.hardware.tier_names[number]
        tier, is_compute = self.hardware.tiers[name], name == self.hardware.compute_tier
        plain = (name, number, self._budget if is_compute else tier.usable_bytes, self.rounds)
        if not is_compute or program.allocator == "ideal":
            key = "tier", name, rank // self._sharing[tier.scope]
            shared: TierInstance = self._once(key, lambda: TierInstance(*plain))
            return shared
        addressed = AddressedTier(*plain, rank, self.recorder)
        addressed.space = space_for(program, addressed, self.hardware.allocator)
        addressed.has_line = program.allocator != "fixed"
        return addressed

    def resources(self, link: str, rank: int) -> Uses:
        """What a link's copies share with others: staged ones and the wires on their way, buses, the compute tier."""
        hardware, staged_over = self.hardware, self.hardware.links[link].via
        uses = [*self._buses(link, rank)]
        for wire in staged_over or (link,):
            passed = hardware.links[wire]
            if staged_over or len(hardware.passing((wire,))) > 1:
                uses.append(self._use("link", wire, "device", rank, passed.bandwidth_bytes_per_s))
            uses += self._buses(wire, rank) if staged_over else ()
            if self.switches.hbm_contention and hardware.compute_tier in (passed.source, passed.target):
                uses.append(self.compute_bandwidth(rank))
        counts: Counter[Resource] = Counter()
        for resource, count in uses:
            counts[resource] += count
        return tuple(counts.items())

    def _buses(self, capped: str, rank: int) -> Uses:
        """The rank's instances of the buses that cap a link or a port."""
        capping = ((name, bus) for name, bus in self.hardware.buses.items() if capped in bus.links)
        return tuple(self._use("bus", name, bus.scope, rank, bus.bandwidth_bytes_per_s) for name, bus in capping)

    def compute_bandwidth(self, rank: int) -> tuple[Resource, int]:
        """The bandwidth of the rank's compute tier, for kernels and copies together."""
        tier = self.hardware.tiers[self.hardware.compute_tier]
        bandwidth = math.inf if tier.bandwidth_bytes_per_s is None else tier.bandwidth_bytes_per_s
        return self._use("bandwidth", "", tier.scope, rank, bandwidth)

    def communicator(self, call: Call, ranks: Members) -> Communicator:
        """The communicator of the ranks that meet at a call."""
        members = tuple(dict.fromkeys([self.stands_in[member] for member in ranks]))

        def path(fabric: str, rank: int) -> Path | None:
            """A member sends and receives; of a message the sender brings all, the receiver nothing."""
            if not call.role:
                return self._ports_path(fabric, rank, rank)
            return self._ports_path(fabric, *members) if rank == members[0] else None

        make = partial(Communicator, members, ranks, self.hardware, path, self.network)
        communicator: Communicator = self._once((call.group, members), make)
        return communicator

    def _ports_path(self, fabric: str, source: int, target: int) -> Path:
        """From a rank's port out of a fabric to a rank's port in, and the buses that cap them.

        By switch also the memory that what is sent is read from, and what is received is written to.
        """
        ports = self.hardware.fabrics[fabric]
        bandwidth = ports.planes * ports.bandwidth_bytes_per_s
        uses: list[tuple[Resource, int]] = []
        for name, rank in ((f"{fabric}.out", source), (f"{fabric}.in", target)):
            uses += (self._use("port", name, "device", rank, bandwidth), *self._buses(name, rank))
        memory: Counter[Resource] = Counter()
        for rank in (source, target) if self.switches.hbm_contention else ():
            resource, count = self.compute_bandwidth(rank)
            memory[resource] += count
        return self.path(bandwidth, (*dict.fromkeys(uses), *memory.items()), even=False)

    def path(self, unit: int | float, uses: Uses, *, even: bool) -> Path:
        """The path of flows through these resources; the same one for all ranks, unless flows share it evenly."""
        make = partial(Path, unit, uses, even=even)
        path: Path = make() if even else self._once((unit, uses), make)
        return path
