"""The machine that ranks share: instances of tiers, buses, ports and memories, and communicators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial

from simulator.cost import UNITS
from simulator.cost.service import FULL_RATE
from simulator.engine.program import Program
from simulator.engine.reference.actions import RankLink
from simulator.engine.reference.addresses import AddressedRoom, space_for
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.collectives import MEMORY, Communicator
from simulator.engine.reference.network import Network, Path, Resource, Uses
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.rooms import Room
from simulator.graph import Call, Members
from simulator.hardware import Hardware
from simulator.lifetime import duplicates
from simulator.scenario import Switches
from simulator.trace import RATES, Recorder, instances, packer

_rate_row = packer(RATES)


class Machine:
    """All that ranks share: instances of tiers, buses, ports and links, and the paths of flows through them.

    Parameters
    ----------
    programs, hardware, budget_bytes, switches
        See `run`.
    stands_in
        For each rank the rank that is simulated in its place.

    Attributes
    ----------
    contended
        Ranks whose kernels share the device.
    stored
        (rank, tier, tensor) of the shared tensors that another rank already stores in that tier.
    stored_once
        (rank, tier, tensor) -> by how much the rank's rows exceed what is stored: see `Trace.stored_once` [B].
    """

    def __init__(
        self,
        programs: Sequence[Program],
        hardware: Hardware,
        budget_bytes: int | float | None,
        switches: Switches,
        stands_in: tuple[int, ...],
    ) -> None:
        self.hardware, self.switches = hardware, switches
        self.clock = Clock()
        self.network = Network(self.clock)
        self.stands_in, self.has_ranks = stands_in, len(stands_in) > 1
        self.contended: set[int] = set()
        self._sharing = hardware.topology.sharing
        self._counts = {scope: instances(many, stands_in)[1].tolist() for scope, many in self._sharing.items()}
        self.recorder = Recorder(len(stands_in))
        self._budget = hardware.tiers[hardware.compute_tier].usable_bytes if budget_bytes is None else budget_bytes
        self._resources: dict[tuple[str, str, int], Resource] = {}
        self._rooms: dict[tuple[int, int], Room] = {}
        self._communicators: dict[tuple[str, Members], Communicator] = {}
        self.path = cache(partial(Path, even=False))
        self.stored: set[tuple[int, int, int]] = set()
        self.stored_once: Counter[tuple[int, int, int]] = Counter()
        scopes = [tier.scope for tier in hardware.tiers.values()]
        folded: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
        for rank, tier, tensors, _ in duplicates([(p.graph, p.plan.home) for p in programs], hardware):
            by = stands_in[rank]
            if rank == by:  # who stands for folded ranks stores it for all
                self.stored.update((rank, tier, tensor) for tensor in tensors)
            if rank // self._sharing[scopes[tier]] == by // self._sharing[scopes[tier]]:
                folded[by, tier, tensors] += 1
        for (by, tier, tensors), ranks in folded.items():
            for tensor in tensors:
                self.stored_once[by, tier, tensor] += ranks * programs[by].graph.tensors[tensor].size_bytes

    def _resource(self, kind: str, name: str, scope: str, rank: int, bandwidth: int | float) -> tuple[Resource, int]:
        """Return the rank's instance of a resource, and for how many flows each flow of the rank counts there."""
        instance = rank // self._sharing[scope]
        if (resource := self._resources.get((kind, name, instance))) is None:
            resource = self._resources[kind, name, instance] = Resource(bandwidth)
            if kind == "bus" and scope != "device" and self.has_ranks:
                resource.watch = partial(self._record_rate, [*self.hardware.buses].index(name), instance)
        return resource, self._counts[scope][rank]

    def _record_rate(self, bus: int, instance: int, time_ns: int, bytes_per_s: int) -> None:
        self.recorder.rates += _rate_row(time_ns, bus, instance, bytes_per_s)

    def room(self, index: int, rank: int, program: Program) -> Room:
        """Return the rank's instance of a tier; a compute tier with addresses is the rank's own."""
        name = self.hardware.tier_names[index]
        tier, is_compute = self.hardware.tiers[name], name == self.hardware.compute_tier
        capacity = self._budget if is_compute else tier.usable_bytes
        if is_compute and program.allocator != "ideal":
            addressed = AddressedRoom(self.clock, name, index, capacity, rank, self.recorder)
            addressed.space = space_for(program, addressed, self.hardware.allocator)
            addressed.has_line = program.allocator != "fixed"
            return addressed
        place = index, rank // self._sharing[tier.scope]
        if place not in self._rooms:
            self._rooms[place] = Room(self.clock, name, index, capacity)
        return self._rooms[place]

    def add_links(self, rank: Rank) -> None:
        """Make a rank's links, some of which share a queue of copies."""
        names = self.hardware.link_names
        links = {
            name: RankLink(i, self.hardware.links[name], self.hardware.tier_names, self.clock)
            for i, name in enumerate(names)
        }
        for name, link in links.items():
            link.path = self._link_path(name, rank.id)
        for first, *others in self.hardware.queues:
            for other in others:
                links[other].share_queue(links[first])
        rank.links = list(links.values())

    def _link_path(self, name: str, rank: int) -> Path | None:
        """Return the path of a rank's copies over a link, beside what shares buses and the compute tier with them.

        Copies of a staged link also share the links that they go via, and their buses. None if nothing is shared.
        """
        hardware, link, counts = self.hardware, self.hardware.links[name], Counter[Resource]()
        uses = [*self._buses(name, rank)]
        for wire in link.via or (name,):
            passed = hardware.links[wire]
            if link.via or len(hardware.passing((wire,))) > 1:
                uses.append(self._resource("link", wire, "device", rank, passed.bandwidth_bytes_per_s))
            uses += self._buses(wire, rank) if link.via else ()
            if rank in self.contended and hardware.compute_tier in (passed.source, passed.target):
                uses.append(self.compute_bandwidth(rank))
        for resource, count in uses:
            counts[resource] += count
        if not counts and (link.channels == 1 or link.sharing == "servers"):
            return None
        unit = link.bandwidth_bytes_per_s
        channels: Uses = ((Resource(unit), 1),) if link.sharing == "fair" and link.channels > 1 else ()
        if unit == math.inf:
            unit = min((resource.bandwidth for resource in counts), default=unit)
        is_even = link.sharing == "fifo" and link.channels > 1 and unit == link.bandwidth_bytes_per_s
        shared = (*channels, *counts.items())
        return Path(unit, shared, even=True) if is_even else self.path(unit, shared)

    def _buses(self, capped: str, rank: int) -> Uses:
        """Return the rank's instances of the buses that cap a link or a port."""
        capping = ((name, bus) for name, bus in self.hardware.buses.items() if capped in bus.links)
        return tuple(self._resource("bus", name, bus.scope, rank, bus.bandwidth_bytes_per_s) for name, bus in capping)

    def compute_bandwidth(self, rank: int) -> tuple[Resource, int]:
        """Return the bandwidth of the rank's compute tier, for kernels and copies together."""
        tier = self.hardware.tiers[self.hardware.compute_tier]
        bandwidth = math.inf if tier.bandwidth_bytes_per_s is None else tier.bandwidth_bytes_per_s
        return self._resource("bandwidth", "", tier.scope, rank, bandwidth)

    def kernel_paths(self, rank: int) -> dict[str, Path]:
        """Return the paths of a rank's kernels through its units and its memory, if they share these."""
        if rank not in self.contended:
            return {}
        uses = {unit: self._resource("unit", unit, "device", rank, FULL_RATE) for unit in UNITS}
        uses[MEMORY] = self.compute_bandwidth(rank)
        return {name: self.path(resource.bandwidth, ((resource, count),)) for name, (resource, count) in uses.items()}

    def communicator(self, call: Call, ranks: Members) -> Communicator:
        """Return the communicator of the ranks that meet at a call."""
        members = tuple(dict.fromkeys([self.stands_in[member] for member in ranks]))

        def path(fabric: str, rank: int) -> Path | None:
            """Return the path through a member's ports; of a message, the sender alone has one, to its receiver."""
            if not call.role:
                return self._ports_path(fabric, rank, rank)
            return self._ports_path(fabric, *members) if rank == members[0] else None

        if (call.group, members) not in self._communicators:
            communicator = Communicator(members, ranks, self.hardware, path, self.network)
            self._communicators[call.group, members] = communicator
        return self._communicators[call.group, members]

    def _ports_path(self, fabric: str, source: int, target: int) -> Path:
        """Return the path from one rank's port out of a fabric to another's port into it, and over their buses.

        It also goes through the memories that are read and written, where kernels share them.
        """
        ports = self.hardware.fabrics[fabric]
        bandwidth = ports.planes * ports.bandwidth_bytes_per_s
        counts = Counter[Resource]()  # a bus over both ports carries each byte twice
        for name, rank in ((f"{fabric}.out", source), (f"{fabric}.in", target)):
            uses = [self._resource("port", name, "device", rank, bandwidth), *self._buses(name, rank)]
            uses += [self.compute_bandwidth(rank)] if rank in self.contended else []
            for resource, count in uses:
                counts[resource] += count
        return self.path(bandwidth, tuple(counts.items()))
