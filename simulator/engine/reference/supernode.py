"""The machine that ranks share as SimPy objects: rooms, links, paths of flows, and who meets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from simulator.cost import UNITS
from simulator.engine.program import Columns, Program
from simulator.engine.reference.actions import RankLink
from simulator.engine.reference.addresses import AddressedRoom, space_for
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.compaction import Compactor
from simulator.engine.reference.kernels import MEMORY, Communicator, Kernels
from simulator.engine.reference.ledger import Ledger
from simulator.engine.reference.network import Network, Path, SharedResource
from simulator.engine.reference.rank import Rank
from simulator.engine.reference.rooms import Room
from simulator.engine.shared import ENDLESS, NOTHING, Meets, Shared
from simulator.graph import DEVICES, HOST, Collective, Op
from simulator.trace import RATES, Recorder, packer

_rate_row = packer(RATES)


class Machine:
    """All that simulated ranks share.

    Parameters
    ----------
    shared
        What ranks share there.
    of_ranks
        The compiled program of each simulated rank.

    Attributes
    ----------
    hardware, clock, network, recorder
        The machine; the clock; where flows share bandwidth; what takes rows of the trace.
    path
        Returns a path by its position in `shared`.
    """

    def __init__(self, shared: Shared, of_ranks: Mapping[int, Columns]) -> None:
        self.hardware, self._shared, self._of_ranks = shared.hardware, shared, of_ranks
        meets, self._meeting_of = shared.meetings(of_ranks)
        self.clock, self.recorder = Clock(), Recorder(len(shared.stands_in))
        self.network = Network(self.clock)
        self.path = cache(self._path)
        self._resource = cache(lambda position: self._recorded(*shared.resources[position]))
        self._rooms: dict[int, Room] = {}
        self._position = {rank: position for position, rank in enumerate(shared.ranks)}
        self._communicators = [self._communicator(of) for of in meets]

    def _recorded(self, bandwidth: int | float, bus: int, instance: int) -> SharedResource:
        """Make a resource; the rate of one that is of a bus is recorded."""

        def watch(time_ns: int, bytes_per_s: int) -> None:
            self.recorder.rates += _rate_row(time_ns, bus, instance, bytes_per_s)

        return SharedResource(bandwidth, None if bus == NOTHING else watch)

    def _path(self, position: int) -> Path:
        unit, is_even, uses = self._shared.paths[position]
        return Path(unit, tuple((self._resource(resource), count) for resource, count in uses), even=is_even)

    def rank(self, rank_id: int, program: Program) -> Rank:
        """Make a rank with its rooms, its links, some of which share a queue of copies, and what compacts its tier."""
        hardware, columns = self.hardware, self._of_ranks[rank_id]
        rooms = self._rooms_of(rank_id, program)
        names, of_rank = hardware.tier_names, self._shared.link_paths[self._position[rank_id]]
        links = {name: RankLink(i, link, names) for i, (name, link) in enumerate(hardware.links.items())}
        for link, path in zip(links.values(), of_rank, strict=True):
            link.path = None if path == NOTHING else self.path(path)
        for first, *others in hardware.queues:
            for other in others:
                links[other].queue = links[first].queue
        rank = Rank(self.network, self.recorder, rank_id, columns, rooms, list(links.values()))
        if columns.in_place:
            loads = hardware.loads.items()
            rank.loads = {t: (rank.links[i], self.path(self._shared.load_path(i, rank_id))) for t, i in loads}
        room, is_remapped = rooms[rank.tier], hardware.allocator.compaction is not None
        if isinstance(room, AddressedRoom) and program.allocator in ("caching", *["best_fit"] * is_remapped):
            Compactor(rank, room, hardware.allocator)
        return rank

    def _rooms_of(self, rank: int, program: Program) -> list[Room]:
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

    def add_kernels(self, rank: Rank, ledger: Ledger, ops: tuple[Op, ...]) -> None:
        """Set up kernels whose time depends on what shares the device with them, or on ranks that they meet."""
        columns, names, meets = rank.columns, (*UNITS, MEMORY), dict[int, tuple[Communicator, Collective]]()
        for op, call in columns.roles.calls.items():
            if (collective := ops[op].collective) is not None:
                meets[op] = self._communicators[self._meeting_of[rank.id, call]], collective
        of_device = self._shared.columns["kernel_paths"][self._position[rank.id]].tolist()
        devices = zip((DEVICES[0], HOST), (of_device, self._shared.host_paths(rank.id)), strict=True)
        named = {(device, name): path for device, of in devices for name, path in zip(names, of, strict=True)}
        paths = {name: self.path(path) for name, path in named.items() if path != NOTHING}
        if meets or paths or columns.in_place:
            kernels = Kernels(rank, ledger, ops, columns.device, meets, paths)
            rank.kernel, kernels.loads = kernels.run, self.recorder.loads

    def _communicator(self, meets: Meets) -> Communicator:
        fabrics = [*self.hardware.fabrics]

        def path(fabric: str, rank: int) -> Path | None:
            """Return the path through a member's ports; of a message, the sender alone has one, to its receiver."""
            if meets.sender == NOTHING:
                return self.path(self._shared.ports_path(fabric, rank, rank))
            return self.path(meets.paths[fabrics.index(fabric)]) if rank == meets.sender else None

        return Communicator(meets.members, meets.ranks, self.hardware, path, self.network)
