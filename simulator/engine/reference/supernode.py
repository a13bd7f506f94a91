"""The machine that ranks share as SimPy objects: rooms, links, paths of flows, and who meets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial

from simulator.cost import UNITS
from simulator.engine.program import Program
from simulator.engine.reference.actions import RankLink
from simulator.engine.reference.addresses import AddressedRoom, space_for
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.kernels import MEMORY, Communicator
from simulator.engine.reference.network import Network, Path, SharedResource
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.rooms import Room
from simulator.engine.shared import ENDLESS, NOTHING, Meets, Shared
from simulator.graph import DEVICES, HOST, Call, Roles
from simulator.hardware import Hardware
from simulator.trace import RATES, Recorder, packer

_rate_row = packer(RATES)


class Machine:
    """All that simulated ranks share.

    Parameters
    ----------
    hardware, shared
        The machine, and what ranks share there.
    roles
        By simulated rank, the collectives that it runs.

    Attributes
    ----------
    clock, network, recorder
        The clock; where flows share bandwidth; what takes rows of the trace.
    path
        Returns a path by its position in `shared`.
    """

    def __init__(self, hardware: Hardware, shared: Shared, roles: Mapping[int, Roles]) -> None:
        self.hardware, self._shared = hardware, shared
        self.clock, self.recorder = Clock(), Recorder(len(shared.stands_in))
        self.network = Network(self.clock)
        self.path = cache(self._path)
        self._resource = cache(self._new_resource)
        self._rooms: dict[int, Room] = {}
        self._position = {rank: position for position, rank in enumerate(shared.ranks)}
        meets, self._meeting_of = shared.meetings(roles)
        self._communicators = [self._communicator(of) for of in meets]

    def _new_resource(self, position: int) -> SharedResource:
        bandwidth, bus, instance = self._shared.resources[position]
        return SharedResource(bandwidth, None if bus == NOTHING else partial(self._record_rate, bus, instance))

    def _record_rate(self, bus: int, instance: int, time_ns: int, bytes_per_s: int) -> None:
        self.recorder.rates += _rate_row(time_ns, bus, instance, bytes_per_s)

    def _path(self, position: int) -> Path:
        unit, is_even, uses = self._shared.paths[position]
        return Path(unit, tuple((self._resource(resource), count) for resource, count in uses), even=is_even)

    def rooms(self, rank: int, program: Program) -> list[Room]:
        """Return the rank's instances of all tiers; a compute tier with addresses is the rank's own."""
        columns, of_rank = self._shared.columns, list[Room]()
        for tier, instance in enumerate(columns["tiers"][self._position[rank]].tolist()):
            name, size = self.hardware.tier_names[tier], int(columns["capacities"][instance])
            most = math.inf if size == ENDLESS else size
            if tier == self.hardware.compute_tier_id and program.allocator != "ideal":
                room = AddressedRoom(self.clock, name, tier, most, rank, self.recorder)
                room.space = space_for(program, room, self.hardware.allocator)
                room.has_line = program.allocator != "fixed"
                of_rank.append(room)
                continue
            if instance not in self._rooms:
                self._rooms[instance] = Room(self.clock, name, tier, most)
            of_rank.append(self._rooms[instance])
        return of_rank

    def add_links(self, rank: Rank) -> None:
        """Make a rank's links, some of which share a queue of copies."""
        names, hardware = self.hardware.tier_names, self.hardware
        links = {name: RankLink(i, link, names, self.clock) for i, (name, link) in enumerate(hardware.links.items())}
        for link, path in zip(links.values(), self._shared.link_paths[self._position[rank.id]], strict=True):
            link.path = None if path == NOTHING else self.path(path)
        for first, *others in hardware.queues:
            for other in others:
                links[other].share_queue(links[first])
        rank.links = list(links.values())
        if rank.columns.in_place:
            of_tier = hardware.loads.items()
            rank.loads = {t: (rank.links[i], self.path(self._shared.load_path(i, rank.id))) for t, i in of_tier}

    def kernel_paths(self, rank: int) -> dict[tuple[str, str], Path]:
        """Return the paths of a rank's kernels through units and memory, by device, where they share these."""
        paths = {
            DEVICES[0]: self._shared.columns["kernel_paths"][self._position[rank]].tolist(),
            HOST: self._shared.host_paths(rank),
        }
        names = *UNITS, MEMORY
        named = {(device, name): path for device, of in paths.items() for name, path in zip(names, of, strict=True)}
        return {name: self.path(path) for name, path in named.items() if path != NOTHING}

    def communicator(self, rank: int, call: Call) -> Communicator:
        """Return the communicator of those that a rank meets at a call."""
        return self._communicators[self._meeting_of[rank, call]]

    def _communicator(self, meets: Meets) -> Communicator:
        fabrics = [*self.hardware.fabrics]

        def path(fabric: str, rank: int) -> Path | None:
            """Return the path through a member's ports; of a message, the sender alone has one, to its receiver."""
            if meets.sender == NOTHING:
                return self.path(self._shared.ports_path(fabric, rank, rank))
            return self.path(meets.paths[fabrics.index(fabric)]) if rank == meets.sender else None

        return Communicator(meets.members, meets.ranks, self.hardware, path, self.network)
