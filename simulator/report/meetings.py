"""The collectives of a row for readers: who met whom, and what a shared link or port carried over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost import phases
from simulator.graph import PAIRED, Collective, CollectiveKind
from simulator.plan import COMPUTE, COPY
from simulator.report.ranks import OfRank
from simulator.report.rows import Row

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


def of_rank(view: OfRank) -> list[Met]:
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
    time_ns
        Instants of change, ascending, each once [ns].
    flows
        Transfers and collectives under way from then on.
    mean_bytes_per_s
        What they take if each goes evenly from its start to its end [B/s]. The integral is exact; at an instant the
        true rate may differ, and is never above the cap.
    """

    bus: str
    scope: str
    instance: int
    bandwidth_bytes_per_s: int | float
    time_ns: Ints
    flows: Ints
    mean_bytes_per_s: Ints


class _Flows(NamedTuple):
    """What went over something, one row a flow: whose, from when to when, how much, counted how often."""

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    size_bytes: Ints


def loads(row: Row, views: Sequence[OfRank]) -> Iterator[Load]:
    """Fold a trace into the use of each bus that ranks share.

    Parameters
    ----------
    row
        A row with a trace.
    views
        All ranks that were simulated.
    """
    shared = {name: bus for name, bus in row.hardware.buses.items() if bus.scope != "device"}
    if row.trace is None or not shared:
        return
    over: dict[str, list[_Flows]] = {}
    for view in views:
        _add_copies(view, over)
        _add_collectives(view, over)
    each, stands_in = row.hardware.topology.devices_per_node, row.trace.stands_in
    for name, bus in shared.items():
        parts = [flows for capped in bus.links for flows in over.get(capped, [])]
        if not parts:
            continue
        whole = _Flows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        size = each if bus.scope == "node" else len(stands_in)
        counts = Counter((by, by // size) for rank, by in enumerate(stands_in) if rank // size == by // size)
        times = np.array([counts[rank, rank // size] for rank in range(len(stands_in))], np.int64)
        instance = whole.rank // size
        for number in np.unique(instance).tolist():
            mine = instance == number
            flows = _Flows(*(column[mine] for column in whole))
            yield Load(name, bus.scope, number, bus.bandwidth_bytes_per_s, *_over_time(flows, times[flows.rank]))


def _add_copies(view: OfRank, over: dict[str, list[_Flows]]) -> None:
    if view.trace is None:
        return
    spans = view.trace.spans.whole()
    size = np.array([tensor.size_bytes for tensor in view.graph.tensors] or [0], np.int64)
    for number, name in enumerate(view.hardware.link_names):
        mine = np.flatnonzero((spans["kind"] == COPY) & (spans["track"] == number))
        if len(mine):
            rank = np.full(len(mine), view.rank)
            flows = _Flows(rank, spans["start_ns"][mine], spans["end_ns"][mine], size[spans["item"][mine]])
            over.setdefault(name, []).append(flows)


def _add_collectives(view: OfRank, over: dict[str, list[_Flows]]) -> None:
    met = of_rank(view)
    if view.trace is None or not met:
        return
    spans = view.trace.spans.whole()
    ports: dict[str, list[tuple[int, int]]] = {}
    known: dict[tuple[Collective, tuple[int, ...]], list[tuple[str, int]]] = {}
    for one in met:
        key = one.what, one.members
        if key not in known:
            known[key] = _ports(one, view)
        for port, size in known[key]:
            ports.setdefault(port, []).append((one.span, size))
    for port, found in ports.items():
        at, sizes = (np.array(column, np.int64) for column in zip(*found, strict=True))
        flows = _Flows(np.full(len(at), view.rank), spans["start_ns"][at], spans["end_ns"][at], sizes)
        over.setdefault(port, []).append(flows)


def _ports(one: Met, view: OfRank) -> list[tuple[str, int]]:
    """What a member's part of a collective takes through which port, by phase."""
    ways = {CollectiveKind.SEND: ("out",), CollectiveKind.RECV: ("in",)}.get(one.what.kind, ("out", "in"))
    return [(f"{p.fabric}.{way}", p.port_bytes) for p in phases(one.what, one.members, view.hardware) for way in ways]


def _over_time(flows: _Flows, times: Ints) -> tuple[Ints, Ints, Ints]:
    """Instants of change, and from then on how many flows there are and how much they take [B/s]."""
    took = np.maximum(flows.end_ns - flows.start_ns, 1)
    rate = np.round(flows.size_bytes * times * (1e9 / took)).astype(np.int64)
    moment = np.concatenate((flows.start_ns, flows.end_ns))
    time_ns, at = np.unique(moment, return_inverse=True)
    change = np.zeros((2, len(time_ns)), np.int64)
    for sign, part in ((1, at[: len(rate)]), (-1, at[len(rate) :])):
        np.add.at(change[0], part, sign * times)
        np.add.at(change[1], part, sign * rate)
    flow, mean = np.cumsum(change, axis=1)
    return time_ns, flow, mean


def is_message(what: Collective) -> bool:
    """Whether it goes from one rank to another."""
    return what.kind in PAIRED
