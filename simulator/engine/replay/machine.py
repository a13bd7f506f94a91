"""The machine that ranks share, in tables: resources and the paths of flows through them, rooms, and meetings.

Nothing of it changes in a run, so any engine may build its own objects from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulator.cost import UNITS
from simulator.cost.collectives import phases
from simulator.cost.service import FULL_RATE, Phase, stages
from simulator.engine.program import Program
from simulator.graph import Call, Collective, Members, Roles
from simulator.hardware import Hardware
from simulator.lifetime import duplicates
from simulator.trace import instances

Uses = tuple[tuple[int, int], ...]
"""Resources, each with the number of flows that a flow counts for there."""

Stages = tuple[tuple[Phase, ...], ...]
"""What a collective sends, stage after stage."""

NOTHING = -1


@dataclass(slots=True)
class Meets:
    """Ranks that run collectives together.

    Attributes
    ----------
    members, ranks
        Those that are simulated; all that meet.
    sender
        Of a message: who sends it, and its paths by fabric; else `NOTHING`.
    """

    members: Members
    ranks: Members
    sender: int = NOTHING
    paths: list[int] = field(default_factory=list)


class Shared:
    """What simulated ranks share.

    Parameters
    ----------
    programs, hardware, budget_bytes, stands_in
        See `simulator.engine.run`.
    contended
        Ranks whose kernels share the device.

    Attributes
    ----------
    ranks
        Those that are simulated.
    resources, paths
        Bandwidth, and bus and instance where its rate is recorded; unit, whether it is even, and its uses.
    capacities, tiers
        Of instances of tiers [B]; by simulated rank and tier, its instance.
    link_paths
        By simulated rank and link, the path of its copies, or `NOTHING` if nothing else slows them down.
    stored, stored_once
        By simulated rank, the tensors that another rank stores; and what `Trace.stored_once` says of it.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        hardware: Hardware,
        budget_bytes: int | float | None,
        stands_in: Sequence[int],
        contended: set[int],
    ) -> None:
        self.hardware, self.stands_in, self.contended = hardware, stands_in, contended
        self._programs = programs
        self.ranks = [rank for rank, by in enumerate(stands_in) if rank == by]
        self._sharing = hardware.topology.sharing
        self._counts = {scope: instances(many, stands_in)[1].tolist() for scope, many in self._sharing.items()}
        self.resources: list[tuple[int | float, int, int]] = []
        self.paths: list[tuple[int | float, bool, Uses]] = []
        self._resource_ids: dict[tuple[str, str, int], int] = {}
        self._path_ids: dict[tuple[int | float, Uses], int] = {}
        self.link_paths = [[self._link_path(name, rank) for name in hardware.links] for rank in self.ranks]
        self.capacities: list[int | float] = []
        self._tier_ids: dict[tuple[int, int], int] = {}
        usable = hardware.tiers[hardware.compute_tier].usable_bytes
        self._budget = usable if budget_bytes is None else budget_bytes
        self.tiers = [[self._tier(index, rank) for index in range(len(hardware.tiers))] for rank in self.ranks]
        self.stored: dict[int, set[int]] = {rank: set() for rank in self.ranks}
        self.stored_once: Counter[tuple[int, int, int]] = Counter()
        self._find_stored()

    def _find_stored(self) -> None:
        """Find shared tensors that another rank stores."""
        scopes = [tier.scope for tier in self.hardware.tiers.values()]
        folded: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
        for rank, tier, tensors, _ in duplicates([(p.graph, p.plan.home) for p in self._programs], self.hardware):
            by, sharing = self.stands_in[rank], self._sharing[scopes[tier]]
            if rank == by:  # who stands for folded ranks stores it for all
                self.stored[rank].update(tensors)
            if rank // sharing == by // sharing:
                folded[by, tier, tensors] += 1
        for (by, tier, tensors), ranks in folded.items():
            for tensor in tensors:
                self.stored_once[by, tier, tensor] += ranks * self._programs[by].graph.tensors[tensor].size_bytes

    def _resource(self, kind: str, name: str, scope: str, rank: int, bandwidth: int | float) -> tuple[int, int]:
        """Return the rank's instance of a resource, and for how many flows each flow of the rank counts there."""
        instance = rank // self._sharing[scope]
        key, count = (kind, name, instance), self._counts[scope][rank]
        if key not in self._resource_ids:
            self._resource_ids[key] = len(self.resources)
            is_watched = kind == "bus" and scope != "device" and len(self.stands_in) > 1
            bus = [*self.hardware.buses].index(name) if is_watched else NOTHING
            self.resources.append((bandwidth, bus, instance))
        return self._resource_ids[key], count

    def _path(self, unit: int | float, uses: Uses) -> int:
        """Return the path of this unit through these resources: flows of all ranks that have the same share it."""
        if (unit, uses) not in self._path_ids:
            self._path_ids[unit, uses] = len(self.paths)
            self.paths.append((unit, False, uses))
        return self._path_ids[unit, uses]

    def _tier(self, index: int, rank: int) -> int:
        """Return the rank's instance of a tier."""
        name = self.hardware.tier_names[index]
        tier = self.hardware.tiers[name]
        place = index, rank // self._sharing[tier.scope]
        if place not in self._tier_ids:
            self._tier_ids[place] = len(self.capacities)
            self.capacities.append(self._budget if name == self.hardware.compute_tier else tier.usable_bytes)
        return self._tier_ids[place]

    def _link_path(self, name: str, rank: int) -> int:
        """Return the path of a rank's copies over a link, whose bandwidth buses and the compute tier may cap.

        Copies of a staged link also share the links that they go via, and their buses.
        """
        hardware, link = self.hardware, self.hardware.links[name]
        uses = [*self._buses(name, rank)]
        for wire in link.via or (name,):
            passed = hardware.links[wire]
            if link.via or len(hardware.passing((wire,))) > 1:
                uses.append(self._resource("link", wire, "device", rank, passed.bandwidth_bytes_per_s))
            uses += self._buses(wire, rank) if link.via else ()
            if rank in self.contended and hardware.compute_tier in (passed.source, passed.target):
                uses.append(self._memory(rank))
        counts = Counter[int]()
        for resource, count in uses:
            counts[resource] += count
        if not counts and (link.channels == 1 or link.sharing == "servers"):
            return NOTHING
        unit, channels = link.bandwidth_bytes_per_s, list[tuple[int, int]]()
        if link.sharing == "fair" and link.channels > 1:
            channels = [(len(self.resources), 1)]
            self.resources.append((unit, NOTHING, NOTHING))
        if unit == math.inf:
            unit = min((self.resources[resource][0] for resource in counts), default=unit)
        shared = (*channels, *counts.items())
        if link.sharing == "fifo" and link.channels > 1 and unit == link.bandwidth_bytes_per_s:
            self.paths.append((unit, True, shared))
            return len(self.paths) - 1
        return self._path(unit, shared)

    def _buses(self, capped: str, rank: int) -> Uses:
        """Return the rank's instances of the buses that cap a link or a port."""
        capping = ((name, bus) for name, bus in self.hardware.buses.items() if capped in bus.links)
        return tuple(self._resource("bus", name, bus.scope, rank, bus.bandwidth_bytes_per_s) for name, bus in capping)

    def _memory(self, rank: int) -> tuple[int, int]:
        """Return the bandwidth of the rank's compute tier, for kernels and copies together."""
        tier = self.hardware.tiers[self.hardware.compute_tier]
        bandwidth = math.inf if tier.bandwidth_bytes_per_s is None else tier.bandwidth_bytes_per_s
        return self._resource("bandwidth", "", tier.scope, rank, bandwidth)

    def kernel_paths(self, rank: int) -> list[int]:
        """Return the paths of a rank's kernels through its units, and through its memory, if they share these."""
        if rank not in self.contended:
            return [NOTHING] * (len(UNITS) + 1)
        uses = [*(self._resource("unit", unit, "device", rank, FULL_RATE) for unit in UNITS), self._memory(rank)]
        return [self._path(self.resources[resource][0], ((resource, count),)) for resource, count in uses]

    def ports_path(self, fabric: str, source: int, target: int) -> int:
        """Return the path from one rank's port out of a fabric to another's port into it, and over their buses.

        It also goes through the memories that are read and written, where kernels share them.
        """
        ports = self.hardware.fabrics[fabric]
        bandwidth = ports.planes * ports.bandwidth_bytes_per_s
        counts = Counter[int]()  # a bus over both ports carries each byte twice
        for name, rank in ((f"{fabric}.out", source), (f"{fabric}.in", target)):
            uses = [self._resource("port", name, "device", rank, bandwidth), *self._buses(name, rank)]
            uses += [self._memory(rank)] if rank in self.contended else []
            for resource, count in uses:
                counts[resource] += count
        return self._path(bandwidth, tuple(counts.items()))

    def meetings(self, roles: dict[int, Roles]) -> tuple[list[Meets], dict[tuple[int, Call], int]]:
        """Return who meets, and by simulated rank and call which of them that is.

        Parameters
        ----------
        roles
            By simulated rank, the collectives that it runs.
        """
        found, ids, of_call = list[Meets](), dict[tuple[str, Members], int](), dict[tuple[int, Call], int]()
        for rank in self.ranks:
            for call in roles[rank].ops:
                ranks = roles[rank].members[call][rank]
                members = tuple(dict.fromkeys([self.stands_in[member] for member in ranks]))
                if (call.group, members) not in ids:
                    ids[call.group, members] = len(found)
                    meets = Meets(tuple(sorted(members)), ranks)
                    if call.role:
                        meets.sender = members[0]
                        meets.paths = [self.ports_path(fabric, *members) for fabric in self.hardware.fabrics]
                    found.append(meets)
                of_call[rank, call] = ids[call.group, members]
        return found, of_call

    def stages(self, collectives: Mapping[tuple[int, Collective], Members]) -> dict[tuple[int, Collective], Stages]:
        """Return the stages of collectives; ranks that are spread alike over nodes do the same.

        Parameters
        ----------
        collectives
            For each meeting and collective, the ranks that meet.
        """
        on_node, known = self.hardware.topology.devices_per_node, dict[tuple[Collective, tuple[int, ...]], Stages]()
        found = dict[tuple[int, Collective], Stages]()
        for (meeting, collective), ranks in collectives.items():
            spread = tuple(sorted(Counter(rank // on_node for rank in ranks).values()))
            if (collective, spread) not in known:
                known[collective, spread] = stages(phases(collective, ranks, self.hardware))
            found[meeting, collective] = known[collective, spread]
        return found
