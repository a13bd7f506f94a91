"""The machine that ranks share, in tables: resources and the paths of flows through them, rooms, and meetings.

Nothing of it changes in a run. What follows from the machine alone is kept for the next run: planners try hundreds of
plans on one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from simulator.cost import UNITS
from simulator.cost.collectives import phases
from simulator.cost.service import FULL_RATE, Phase, lead_ns, rate_cap, stages, transfer_ns
from simulator.engine.program import Program
from simulator.graph import Call, Collective, Members, Roles
from simulator.hardware import Hardware
from simulator.lifetime import duplicates
from simulator.trace import Ints, instances
from simulator.units import decimal

Columns = dict[str, Any]
"""Numbers, and arrays of numbers, by name."""

Uses = tuple[tuple[int, int], ...]
"""Resources, each with the number of flows that a flow counts for there."""

Stages = tuple[tuple[Phase, ...], ...]
"""What a collective sends, stage after stage."""

NOTHING = -1

ENDLESS = 2**63 - 1
"""Stands for a bandwidth, a capacity or a time without a limit."""

_MOST_KEPT = 16
_kept: dict[tuple[object, ...], tuple[Hardware, Shared]] = {}


def whole(value: int | float) -> int:
    """Return a bandwidth or a capacity as a whole number; `ENDLESS` if it has no limit."""
    return ENDLESS if value == math.inf else int(value)


def ints(values: Iterable[int]) -> Ints:
    """Make a column of numbers."""
    return np.fromiter(values, np.int64)


def ids(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Make a column of positions in other columns."""
    return np.fromiter(values, np.int32)


@dataclass(slots=True)
class Meets:
    """Ranks that run collectives together.

    Attributes
    ----------
    members, ranks
        Those that are simulated; all that meet.
    sender, paths
        Of a message: who sends it, and its paths by fabric.
    """

    members: Members
    ranks: Members
    sender: int = NOTHING
    paths: list[int] = field(default_factory=list)


class OfRank(Protocol):
    """A compiled program, of which each engine has its own kind: what tells what its rank shares."""

    device: Hardware
    is_contended: bool
    in_place: frozenset[int]
    roles: Roles


Budget = int | float | tuple[int | float, ...] | None
"""What may be used of the compute tier, by all ranks alike or by each [B]; None: all that there is."""


class Shared:
    """What simulated ranks share.

    Parameters
    ----------
    hardware, budget_bytes, stands_in
        See `simulator.engine.run`.
    contended
        Rank whose kernels share its device -> bandwidth of its compute tier [B/s].
    reads_in_place
        Whether kernels may load over links, which their copies then share with that.

    Attributes
    ----------
    ranks
        Those that are simulated.
    resources, paths
        Bandwidth, and bus and instance where its rate is recorded; unit, whether it is even, and its uses.
    link_paths
        By simulated rank and link, the path of its copies, or `NOTHING` if nothing else slows them down.
    columns
        What of it follows from the machine, the ranks and the budget alone.
    """

    def __init__(
        self,
        hardware: Hardware,
        budget_bytes: Budget,
        stands_in: Sequence[int],
        contended: Mapping[int, int | float],
        *,
        reads_in_place: bool = False,
    ) -> None:
        self.hardware, self.stands_in, self._contended = hardware, stands_in, contended
        self.ranks = [rank for rank, by in enumerate(stands_in) if rank == by]
        self._sharing = hardware.topology.sharing
        self._counts = {scope: instances(many, stands_in)[1].tolist() for scope, many in self._sharing.items()}
        self._caps = hardware.caps
        ports = [f"{fabric}.{way}" for fabric in hardware.fabrics for way in ("out", "in")]
        self._capping = {
            name: [cap for cap, of in self._caps.items() for capped in of.links if capped == name]
            for name in (*hardware.links, *ports)
        }
        self._is_passed = {name for name in hardware.links if len(hardware.passing((name,))) > 1}
        if reads_in_place:
            self._is_passed.update(hardware.link_names[link] for link in hardware.loads.values())
        self.resources: list[tuple[int | float, int, int]] = []
        self.paths: list[tuple[int | float, bool, Uses]] = []
        self._resource_ids: dict[tuple[str, str, int], int] = {}
        self._path_ids: dict[tuple[int | float, Uses], int] = {}
        self._timings: dict[tuple[int, int, bool], tuple[int, int]] = {}
        self.link_paths = [[self._link_path(name, rank) for name in hardware.links] for rank in self.ranks]
        budget_bytes = hardware.rooms(len(stands_in)) if budget_bytes is None else budget_bytes
        given = budget_bytes if isinstance(budget_bytes, tuple) else (budget_bytes,) * len(stands_in)
        self.columns = {
            **_link_columns(hardware),
            **self._tier_columns(given),
            "ranks": ids(self.ranks), "link_paths": np.array(self.link_paths, np.int32),
            "kernel_paths": np.array([self._kernel_paths(rank) for rank in self.ranks], np.int32),
            "queue_depth": hardware.host.queue_depth, "launch_ns": hardware.compute.launch_ns,
        }  # fmt: skip

    @classmethod
    def of(
        cls,
        hardware: Hardware,
        budget_bytes: Budget,
        stands_in: Sequence[int],
        of_ranks: Mapping[int, OfRank],
    ) -> Shared:
        """Return what ranks share, by their compiled programs; made anew unless a run before had the same."""
        tiers = {rank: of.device.tiers[of.device.compute_tier] for rank, of in of_ranks.items() if of.is_contended}
        contended = {rank: tier.bandwidth_bytes_per_s or math.inf for rank, tier in tiers.items()}
        reads_in_place = any(of.in_place for of in of_ranks.values())
        key = id(hardware), budget_bytes, tuple(stands_in), tuple(contended.items()), reads_in_place
        if key not in _kept:
            if len(_kept) == _MOST_KEPT:
                _kept.clear()
            _kept[key] = hardware, cls(hardware, budget_bytes, stands_in, contended, reads_in_place=reads_in_place)
        return _kept[key][1]

    def network_columns(self) -> Columns:
        """Return the resources and paths that are there by now."""
        paths = enumerate(self.paths)
        return {
            "resources": ints(whole(value) for resource in self.resources for value in resource),
            "paths": ints(value for unit, is_even, _ in self.paths for value in (whole(unit), is_even)),
            "uses": ints(value for path, (*_, uses) in paths for use in uses for value in (path, *use)),
        }

    def timing(self, link: int, size: int, *, is_shared: bool) -> tuple[int, int]:
        """Return the time before the bytes of a copy flow, and its cap; of one that nothing slows down its whole time.

        Parameters
        ----------
        link, size
            The link, and the size of the copy [B].
        is_shared
            Whether other flows can slow it down.
        """
        if (link, size, is_shared) not in self._timings:
            over = self.hardware.links[self.hardware.link_names[link]]
            self._timings[link, size, is_shared] = (
                (lead_ns(size, over), rate_cap(size, over)) if is_shared else (transfer_ns(size, over), 0)
            )
        return self._timings[link, size, is_shared]

    def _resource(self, kind: str, name: str, scope: str, rank: int, bandwidth: int | float) -> tuple[int, int]:
        """Return the rank's instance of a resource, and for how many flows each flow of the rank counts there."""
        instance = rank // self._sharing[scope]
        key, count = (kind, name, instance), self._counts[scope][rank]
        if key not in self._resource_ids:
            self._resource_ids[key] = len(self.resources)
            is_watched = kind == "bus" and scope != "device" and len(self.stands_in) > 1
            bus = [*self._caps].index(name) if is_watched else NOTHING
            self.resources.append((bandwidth, bus, instance))
        return self._resource_ids[key], count

    def _path(self, unit: int | float, uses: Uses) -> int:
        """Return the path of this unit through these resources: flows of all ranks that have the same share it."""
        if (unit, uses) not in self._path_ids:
            self._path_ids[unit, uses] = len(self.paths)
            self.paths.append((unit, False, uses))
        return self._path_ids[unit, uses]

    def _tier_columns(self, rooms: Sequence[int | float]) -> Columns:
        """Return the capacities of instances of tiers, and for each rank and tier its instance."""
        capacities, instance_at, of_ranks = list[int](), dict[tuple[int, int], int](), list[list[int]]()
        tiers = list(self.hardware.tiers.items())
        for rank in self.ranks:
            places = [(index, rank // self._sharing[tier.scope]) for index, (_, tier) in enumerate(tiers)]
            for (index, instance), (name, tier) in zip(places, tiers, strict=True):
                if (index, instance) not in instance_at:
                    instance_at[index, instance] = len(capacities)
                    capacities.append(whole(rooms[rank] if name == self.hardware.compute_tier else tier.usable_bytes))
            of_ranks.append([instance_at[place] for place in places])
        return {"tiers": np.array(of_ranks, np.int32), "capacities": ints(capacities)}

    def _link_path(self, name: str, rank: int) -> int:
        """Return the path of a rank's copies over a link, whose bandwidth buses and the compute tier may cap.

        Copies of a staged link also share the links that they go via, and their buses.
        """
        hardware, link = self.hardware, self.hardware.links[name]
        uses = [*self._buses(name, rank)]
        for wire in link.via or (name,):
            passed = hardware.links[wire]
            if link.via or wire in self._is_passed:
                uses.append(self._resource("link", wire, "device", rank, passed.bandwidth_bytes_per_s))
            uses += self._buses(wire, rank) if link.via else ()
            if rank in self._contended and hardware.compute_tier in (passed.source, passed.target):
                uses.append(self._memory(rank))
        counts = _added_up(uses)
        if not counts and (link.channels == 1 or link.sharing == "servers"):
            return NOTHING
        unit, channels = link.bandwidth_bytes_per_s, list[tuple[int, int]]()
        if link.sharing == "fair" and link.channels > 1:
            channels = [(len(self.resources), 1)]
            self.resources.append((unit, NOTHING, NOTHING))
        if unit == math.inf:
            unit = min((self.resources[resource][0] for resource, _ in counts), default=unit)
        if link.sharing == "fifo" and link.channels > 1 and unit == link.bandwidth_bytes_per_s:
            self.paths.append((unit, True, counts))
            return len(self.paths) - 1
        return self._path(unit, (*channels, *counts))

    def load_path(self, link: int, rank: int) -> int:
        """Return the path of what a rank's kernels load over a link: past the memory of the compute tier."""
        name = self.hardware.link_names[link]
        over = self.hardware.links[name]
        wire = self._resource("link", name, "device", rank, over.bandwidth_bytes_per_s)
        uses = tuple(dict.fromkeys((wire, *self._buses(name, rank))))
        rates = (self.resources[resource][0] for resource, _ in uses)
        return self._path(min(over.loads_bytes_per_s or 0, *rates), uses)

    def _buses(self, capped: str, rank: int) -> Uses:
        """Return the rank's instances of the buses that cap a link or a port."""
        capping = ((name, self._caps[name]) for name in self._capping[capped])
        return tuple(self._resource("bus", name, bus.scope, rank, bus.bandwidth_bytes_per_s) for name, bus in capping)

    def _memory(self, rank: int) -> tuple[int, int]:
        """Return the bandwidth of the rank's compute tier, for kernels and copies together."""
        return self._resource("bandwidth", "", "device", rank, self._contended[rank])

    def _kernel_paths(self, rank: int) -> list[int]:
        """Return the paths of a rank's kernels through its units, and through its memory, if they share these."""
        if rank not in self._contended:
            return [NOTHING] * (len(UNITS) + 1)
        uses = [*(self._resource("unit", unit, "device", rank, FULL_RATE) for unit in UNITS), self._memory(rank)]
        return [self._path(self.resources[resource][0], ((resource, count),)) for resource, count in uses]

    def host_paths(self, rank: int) -> list[int]:
        """Return the paths of a rank's ops of the host through its units, and through the memory that these work in."""
        if (cores := self.hardware.host_compute) is None:
            return [NOTHING] * (len(UNITS) + 1)
        tier = self.hardware.tiers[cores.tier]
        rate, share = tier.bandwidth_bytes_per_s or 0, decimal(cores.largest_share)
        units = [self._resource("host unit", unit, tier.scope, rank, FULL_RATE) for unit in UNITS]
        memory = [self._resource("bus", f"memory.{cores.tier}", tier.scope, rank, rate)]
        if rate != math.inf and share < 1:
            together = math.ceil(rate * share)
            memory.append(self._resource("cores", cores.tier, tier.scope, rank, together))
        return [*(self._path(FULL_RATE, (use,)) for use in units), self._path(rate, tuple(memory))]

    def ports_path(self, fabric: str, source: int, target: int) -> int:
        """Return the path from one rank's port out of a fabric to another's port into it, and over their buses.

        It also goes through the memories that are read and written, where kernels share them.
        """
        ports = self.hardware.fabrics[fabric]
        bandwidth, uses = ports.planes * ports.bandwidth_bytes_per_s, list[tuple[int, int]]()
        for name, rank in ((f"{fabric}.out", source), (f"{fabric}.in", target)):
            uses += [self._resource("port", name, "device", rank, bandwidth), *self._buses(name, rank)]
            uses += [self._memory(rank)] if rank in self._contended else []
        return self._path(bandwidth, _added_up(uses))

    def meetings(self, of_ranks: Mapping[int, OfRank]) -> tuple[list[Meets], dict[tuple[int, Call], int]]:
        """Return who meets, and by simulated rank and call which of them that is."""
        meets, position, of_call = list[Meets](), dict[tuple[str, Members], int](), dict[tuple[int, Call], int]()
        for rank in self.ranks:
            roles = of_ranks[rank].roles
            for call in roles.ops:
                ranks = roles.members[call][rank]
                members = tuple(dict.fromkeys([self.stands_in[member] for member in ranks]))
                if (call.group, members) not in position:
                    position[call.group, members] = len(meets)
                    meets.append(Meets(tuple(sorted(members)), ranks))
                    if call.role:
                        paths = [self.ports_path(fabric, *members) for fabric in self.hardware.fabrics]
                        meets[-1].sender, meets[-1].paths = members[0], paths
                of_call[rank, call] = position[call.group, members]
        return meets, of_call

    def stages(self, collectives: Mapping[tuple[int, Collective], Members]) -> dict[tuple[int, Collective], Stages]:
        """Return the stages of collectives; ranks that are spread alike over nodes do the same.

        Parameters
        ----------
        collectives
            For each meeting and collective, the ranks that meet.
        """
        on_node, of_spread = self.hardware.topology.devices_per_node, dict[tuple[Collective, tuple[int, ...]], Stages]()
        of_meeting = dict[tuple[int, Collective], Stages]()
        for (meeting, collective), ranks in collectives.items():
            spread = tuple(sorted(Counter(rank // on_node for rank in ranks).values()))
            if (collective, spread) not in of_spread:
                of_spread[collective, spread] = stages(phases(collective, ranks, self.hardware))
            of_meeting[meeting, collective] = of_spread[collective, spread]
        return of_meeting


def _added_up(uses: Iterable[tuple[int, int]]) -> Uses:
    """Return each resource once: one that is met twice carries each byte twice."""
    counts = Counter[int]()
    for resource, count in uses:
        counts[resource] += count
    return tuple(counts.items())


def _link_columns(hardware: Hardware) -> Columns:
    """Return the links, with which of them joins which tiers."""
    route = np.full((len(hardware.tiers), len(hardware.tiers)), NOTHING, np.int32)
    for link, (source, target) in reversed([*enumerate(hardware.hops)]):
        route[source, target] = link
    queue_of = {name: queue for queue, names in enumerate(hardware.queues) for name in names}
    sources, targets = zip(*hardware.hops, strict=True) if hardware.hops else ((), ())
    return {
        "links": len(hardware.links), "queues": len(hardware.queues), "route": route,
        "queue_of": ids(queue_of[name] for name in hardware.links), "source": ids(sources), "target": ids(targets),
        "channels": ids(link.channels for link in hardware.links.values()),
    }  # fmt: skip


@dataclass(slots=True)
class Stored:
    """Shared tensors that are stored once for several ranks.

    Attributes
    ----------
    elsewhere
        By simulated rank, those that another rank stores.
    once
        See `Trace.stored_once`.
    """

    elsewhere: list[list[int]]
    once: tuple[tuple[int, int, int, int], ...] = ()

    @classmethod
    def of(cls, programs: Sequence[Program], hardware: Hardware, stands_in: Sequence[int]) -> Stored:
        """Find them."""
        if len(programs) == 1:
            return cls([[]])
        scopes, sharing = [tier.scope for tier in hardware.tiers.values()], hardware.topology.sharing
        folded: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
        elsewhere: dict[int, set[int]] = {rank: set() for rank, by in enumerate(stands_in) if rank == by}
        for rank, tier, tensors, _ in duplicates([(p.graph, p.plan.home) for p in programs], hardware):
            by, many = stands_in[rank], sharing[scopes[tier]]
            if rank == by:  # who stands for folded ranks stores it for all
                elsewhere[rank].update(tensors)
            if rank // many == by // many:
                folded[by, tier, tensors] += 1
        once: Counter[tuple[int, int, int]] = Counter()
        for (by, tier, tensors), ranks in folded.items():
            for tensor in tensors:
                once[by, tier, tensor] += ranks * programs[by].graph.tensors[tensor].size_bytes
        rows = tuple((*place, size) for place, size in once.items())
        return cls([sorted(tensors) for tensors in elsewhere.values()], rows)
