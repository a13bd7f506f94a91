"""What lies in each tier and what shared buses carry, over time: the data behind the pictures and the counters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simulator.cost import phases
from simulator.graph import CollectiveKind, Graph, TensorKind
from simulator.metrics import Instances
from simulator.plan import COPY
from simulator.report.ranks import collectives, is_job
from simulator.report.rows import Row, grouped, quantity
from simulator.trace import NO_HOLES

Ints = NDArray[np.int64]

KINDS = tuple(kind.value for kind in TensorKind)
"""Tensor kinds in the order in which pictures stack them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in one tier over time.

    Attributes
    ----------
    tier, limit_bytes
        Its name, and what may be used of it [B] (the budget for the compute tier); inf where there is no limit.
    time_ns
        Instants of change [ns], ascending; several changes of one instant follow each other.
    kind_bytes
        Array of shape (kinds, changes): the bytes of each of `KINDS` after each change [B].
    """

    tier: str
    limit_bytes: int | float
    time_ns: NDArray[np.int64]
    kind_bytes: NDArray[np.int64]

    @property
    def total_bytes(self) -> NDArray[np.int64]:
        """All kinds together after each change [B]."""
        total: NDArray[np.int64] = self.kind_bytes.sum(axis=0)
        return total

    @property
    def kinds(self) -> list[int]:
        """Positions in `KINDS` of the kinds that ever lie in the tier."""
        return [k for k in range(len(KINDS)) if self.kind_bytes[k].any()]

    def limit(self, compute_tier: str) -> str:
        """Say what may be used of the tier, such as ``budget 64.0 GB``; empty if there is no limit."""
        if not math.isfinite(self.limit_bytes):
            return ""
        return f"{'budget' if self.tier == compute_tier else 'capacity'} {quantity(self.limit_bytes, 'B')}"


def lasting(time_ns: Ints) -> NDArray[np.bool_]:
    """Whether a change is the last one of its instant."""
    return np.append(time_ns[1:] != time_ns[:-1], [True] * bool(len(time_ns)))


def tensor_kinds(graph: Graph, tensor: Ints) -> Ints:
    """Position in `KINDS` of each tensor id; negative ids are workspaces."""
    known = np.array([KINDS.index(t.kind.value) for t in graph.tensors] or [0], dtype=np.int64)
    return np.where(tensor < 0, KINDS.index(TensorKind.WORKSPACE), known[np.maximum(tensor, 0)])


def usages(row: Row) -> list[Usage]:
    """Fold the trace of one rank into the use of every tier that anything of it ever lies in.

    Parameters
    ----------
    row
        A row of one rank.
    """
    return [usage for _, _, usage in _instances(row, lambda scope: True)]


def shared_usages(row: Row) -> Iterator[tuple[str, int, Usage]]:
    """Fold the traces of all ranks into the use of each tier that they share, node by node.

    Parameters
    ----------
    row
        A row of all ranks.

    Returns
    -------
    iterator of (str, int, Usage)
        The scope, the number of the instance (of a supernode 0), and its use by all ranks there.
    """
    return _instances(row, lambda scope: scope != "device")


def _instances(row: Row, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, int, Usage]]:
    """The instances of tiers of a scope that is wanted."""
    if row.trace is None:
        return
    changes, instances = row.trace.residencies.whole(), Instances(row.hardware, row.trace)
    instance, delta = instances.of(changes), instances.delta_bytes(changes)
    kind = np.zeros(len(delta), np.int64)
    for rank in np.unique(changes["rank"]).tolist():
        mine = changes["rank"] == rank
        graph = row.job.graph(rank) if is_job(row) else row.graph
        kind[mine] = tensor_kinds(graph, changes["tensor"][mine])
    for key in np.unique(instance).tolist():
        name = row.hardware.tier_names[key // instances.ranks]
        tier, mine = row.hardware.tiers[name], instance == key
        if is_wanted(tier.scope):
            by_kind = np.cumsum(np.where(kind[mine] == np.arange(len(KINDS))[:, None], delta[mine], 0), axis=1)
            limit = row.budget_bytes if name == row.hardware.compute_tier else tier.usable_bytes
            yield tier.scope, key % instances.ranks, Usage(name, limit, changes["time_ns"][mine], by_kind)


@dataclass(frozen=True, slots=True)
class Space:
    """What an allocator keeps, and what it could give out, over time.

    Attributes
    ----------
    tier
        Name of the tier.
    time_ns, reserved_bytes, hole_bytes, live_bytes
        The last change of each instant [ns]; what is reserved, the largest hole, and what places take then [B].
    compactions_ns
        From and to of each compaction, asking included [ns].
    """

    tier: str
    time_ns: Ints
    reserved_bytes: Ints
    hole_bytes: Ints
    live_bytes: Ints
    compactions_ns: tuple[tuple[int, int], ...]

    @property
    def has_holes(self) -> bool:
        """Whether holes are looked for: not where each place has had its range since before the run."""
        return NO_HOLES not in self.hole_bytes


def space(row: Row) -> Space | None:
    """Fold the trace of one rank into what its allocator kept; None if places have no addresses.

    Parameters
    ----------
    row
        A row of one rank.
    """
    if row.trace is None or not len(row.trace.reserved):
        return None
    kept, events, places = (
        table.whole() for table in (row.trace.reserved, row.trace.compactions, row.trace.residencies)
    )
    here = places["tier"] == row.hardware.tier_names.index(row.hardware.compute_tier)
    last = lasting(kept["time_ns"])
    time, used = kept["time_ns"][last], np.append(0, np.cumsum(places["delta_bytes"][here]))
    live = used[np.searchsorted(places["time_ns"][here], time, "right")]
    remaps = events["is_remap"] == 1
    ends = zip(events["asked_ns"][remaps].tolist(), events["end_ns"][remaps].tolist(), strict=True)
    kept_bytes, holes = kept["reserved_bytes"][last], kept["largest_hole_bytes"][last]
    return Space(row.hardware.compute_tier, time, kept_bytes, holes, live, tuple(ends))


@dataclass(frozen=True, slots=True)
class Load:
    """What an instance of a shared bus carried over time.

    Attributes
    ----------
    bus
        Its name.
    scope, instance
        Which one: of the ``supernode``, or of the ``node`` with this number.
    bandwidth_bytes_per_s
        Its cap [B/s].
    time_ns, flows
        Instants of change, ascending, each once [ns]; transfers and collectives under way from then on, also those
        that wait out a latency.
    rate_ns, bytes_per_s
        Instants of change, ascending, each once [ns]; what goes over the bus from then on [B/s], rounded down: never
        more than the cap.
    """

    bus: str
    scope: str
    instance: int
    bandwidth_bytes_per_s: int | float
    time_ns: Ints
    flows: Ints
    rate_ns: Ints
    bytes_per_s: Ints


def loads(row: Row, views: Sequence[Row]) -> Iterator[Load]:
    """Fold a trace into the use of each bus that ranks share.

    Parameters
    ----------
    row
        A row with a trace.
    views
        All ranks that were simulated.
    """
    buses = row.hardware.buses
    if row.trace is None or all(bus.scope == "device" for bus in buses.values()):
        return
    over: dict[str, list[Ints]] = defaultdict(list)
    for view in views:
        for capped, flows in _flows(view):
            over[capped].append(flows)
    rates, stands_in = row.trace.rates.whole(), np.array(row.trace.stands_in)
    for position, (name, bus) in enumerate(buses.items()):
        parts = [flows for capped, times in row.hardware.passing(bus.links).items() for flows in times * over[capped]]
        if bus.scope == "device" or not parts:
            continue
        size = row.hardware.topology.devices_per_node if bus.scope == "node" else len(stands_in)
        is_here = stands_in // size == np.arange(len(stands_in)) // size
        counts = np.bincount(stands_in[is_here], minlength=len(stands_in))
        flows = np.concatenate(parts, axis=1)
        instance = flows[0] // size
        for number in np.unique(instance).tolist():
            under_way = _under_way(flows[:, instance == number], counts)
            mine = (rates["bus"] == position) & (rates["instance"] == number)
            time_ns, rate = rates["time_ns"][mine], rates["bytes_per_s"][mine]
            last = lasting(time_ns)
            yield Load(name, bus.scope, number, bus.bandwidth_bytes_per_s, *under_way, time_ns[last], rate[last])


def _flows(view: Row) -> Iterator[tuple[str, Ints]]:
    """Rank, start and end of what went over each link, and in collectives through each port, one column a flow."""
    if view.trace is None:
        return
    spans = view.trace.spans.whole()
    used: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(view.hardware.link_names):
        used[name] += np.flatnonzero((spans["kind"] == COPY) & (spans["track"] == number)).tolist()
    for (what, members), met in grouped(collectives(view), lambda one: (one.what, one.members)).items():
        ways = {CollectiveKind.SEND: ("out",), CollectiveKind.RECV: ("in",)}.get(what.kind, ("out", "in"))
        fabrics = dict.fromkeys(phase.fabric for phase in phases(what, members, view.hardware))
        for fabric, way in product(fabrics, ways):
            used[f"{fabric}.{way}"] += [one.span for one in met]
    for name, rows in used.items():
        yield name, np.stack([np.full(len(rows), view.rank), spans["start_ns"][rows], spans["end_ns"][rows]])


def _under_way(flows: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Instants of change, and how many flows there are from then on; one of a rank counts so many times."""
    rank, start, end = flows
    time_ns, at = np.unique(np.concatenate((start, end)), return_inverse=True)
    change = np.zeros(len(time_ns), np.int64)
    np.add.at(change, at, np.concatenate((counts[rank], -counts[rank])))
    return time_ns, np.cumsum(change)
