"""The collectives of a row for readers: who met whom, and what a shared link or port carried over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost import phases
from simulator.graph import Collective, CollectiveKind
from simulator.plan import COMPUTE, COPY
from simulator.report.rows import Row
from simulator.trace import Block

Ints = NDArray[np.int64]


class Met(NamedTuple):
    """A collective that a rank took part in.

    Attributes
    ----------
    what
        Kind, group, size and algorithm.
    members
        Ranks that met.
    number
        Which one of this group and these members, from 1.
    span
        Row of its span in the rank's trace.
    """

    what: Collective
    members: tuple[int, ...]
    number: int
    span: int


def of_rank(view: Row) -> list[Met]:
    """List the collectives that a rank took part in, in the order of issue.

    Parameters
    ----------
    view
        What the rank did.
    """
    if view.trace is None or not view.graph.meets:
        return []
    spans = view.trace.spans.whole()
    order = np.argsort(spans["issue"], kind="stable")
    order = order[spans["kind"][order] == COMPUTE]
    groups = {group.name: group for group in view.graph.groups}
    members: dict[tuple[str, CollectiveKind], tuple[int, ...] | None] = {}
    count: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = []
    for row, op in zip(order.tolist(), spans["item"][order].tolist(), strict=True):
        what = view.graph.ops[op].collective
        if what is None:
            continue
        key = what.group, what.kind
        if key not in members:
            members[key] = groups[what.group].of(view.rank, what.kind)
        whom = members[key] or (view.rank,)
        count[what.group, whom] += 1
        found.append(Met(what, whom, count[what.group, whom], row))
    return found


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
            rate = _last_of_instant(rates, (rates["bus"] == position) & (rates["instance"] == number))
            yield Load(name, bus.scope, number, bus.bandwidth_bytes_per_s, *under_way, *rate)


def _flows(view: Row) -> Iterator[tuple[str, Ints]]:
    """Rank, start and end of what went over each link, and in collectives through each port, one column a flow."""
    if view.trace is None:
        return
    spans = view.trace.spans.whole()
    used: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(view.hardware.link_names):
        used[name] += np.flatnonzero((spans["kind"] == COPY) & (spans["track"] == number)).tolist()
    known: dict[tuple[Collective, tuple[int, ...]], list[str]] = {}
    for one in of_rank(view):
        key = one.what, one.members
        if key not in known:
            known[key] = _ports(one, view)
        for port in known[key]:
            used[port].append(one.span)
    for name, rows in used.items():
        yield name, np.stack([np.full(len(rows), view.rank), spans["start_ns"][rows], spans["end_ns"][rows]])


def _ports(one: Met, view: Row) -> list[str]:
    """Through which ports a member's part of a collective goes."""
    ways = {CollectiveKind.SEND: ("out",), CollectiveKind.RECV: ("in",)}.get(one.what.kind, ("out", "in"))
    fabrics = dict.fromkeys(phase.fabric for phase in phases(one.what, one.members, view.hardware))
    return [f"{fabric}.{way}" for fabric in fabrics for way in ways]


def _under_way(flows: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Instants of change, and how many flows there are from then on; one of a rank counts so many times."""
    rank, start, end = flows
    time_ns, at = np.unique(np.concatenate((start, end)), return_inverse=True)
    change = np.zeros(len(time_ns), np.int64)
    np.add.at(change, at, np.concatenate((counts[rank], -counts[rank])))
    return time_ns, np.cumsum(change)


def _last_of_instant(rates: Block, mine: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Instants, each once, and the last rate written at each."""
    time_ns, rate = rates["time_ns"][mine], rates["bytes_per_s"][mine]
    last = np.append(time_ns[1:] != time_ns[:-1], [True] * bool(len(time_ns)))
    return time_ns[last], rate[last]
