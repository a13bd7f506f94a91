"""Rule 14: ranks that meet; rule 10: kernels that share a device. Each is what a compute does while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import simpy

from simulator.cost import chosen_op, device_of, expected_op, loaded_bytes, memory_rate_cap, roofline, unit_work
from simulator.cost.collectives import phases
from simulator.cost.service import FULL_RATE, Phase, fabric_rate_cap, phase_work, stages, work
from simulator.engine.reference.actions import ComputeAction
from simulator.engine.reference.clock import ISSUE_MASK
from simulator.engine.reference.ledger import PEER, Ledger
from simulator.engine.reference.network import Network, Path
from simulator.engine.reference.rank import Rank, Steps
from simulator.graph import Collective, Op
from simulator.hardware import Hardware
from simulator.trace import LOADS, packer

_load_row = packer(LOADS)


class Communicator:
    """Ranks that run collectives together; it holds their current *meeting*, one at a time.

    Parameters
    ----------
    members
        Those that are simulated.
    ranks
        All that meet, in order; more than the members if some of these stand for others.
    hardware
        Has the fabrics.
    path
        Returns the path of a member's flow on a fabric (by name); None if the member sends nothing.
    network
        Where flows share bandwidth.

    Attributes
    ----------
    peer
        The lowest rank that has not arrived; -1 once the collective runs.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        ranks: tuple[int, ...],
        hardware: Hardware,
        path: Callable[[str, int], Path | None],
        network: Network,
    ) -> None:
        self._in_order, self._fabrics, self._path, self._network = sorted(members), hardware.fabrics, path, network
        self._clock = network.clock
        self._stages_of = cache(lambda collective: stages(phases(collective, ranks, hardware)))
        self._arrived: dict[int, tuple[Rank, Ledger, ComputeAction, simpy.Event]] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._others: Iterator[int] = iter(())
        self._since_ns = 0
        self.peer = -1

    def arrive(self, rank: Rank, ledger: Ledger, compute: ComputeAction, collective: Collective) -> Steps:
        """Arrive at the current meeting, wait for the others, and run the collective with them."""
        now = self._clock.now
        if not self._arrived:
            self._others, self._since_ns, self._parts = iter(self._in_order), now, []
            self.peer = next(self._others)
        self._arrived[rank.id], compute.meeting = (rank, ledger, compute, self._clock.event()), self
        awaited = self.peer
        while self.peer in self._arrived:
            self.peer = next(self._others, -1)
        if self.peer != awaited:
            if now > self._since_ns:
                self._parts.append((self._since_ns, now, awaited))
            self._since_ns = now
            for member, *_ in self._arrived.values():
                member.on_change()
        if self.peer < 0:
            self._clock.process(self._meet(self._stages_of(collective)))
        yield self._arrived[rank.id][-1]
        compute.meeting = None

    def _meet(self, collective_stages: tuple[tuple[Phase, ...], ...]) -> Steps:
        """Run the collective, stage after stage, as everybody is there."""
        for _, ledger, compute, _ in self._arrived.values():
            for start, end, peer in self._parts:
                if end > compute.start_ns:
                    ledger.write(compute, max(start, compute.start_ns), end, (PEER, -1, peer, -1))
            compute.start_ns = self._clock.now
        for stage in collective_stages:
            first = stage[0]
            if hops_ns := first.hops * self._fabrics[first.fabric].latency_ns:
                yield self._clock.end_after(hops_ns)
            yield self._clock.all_of(list(self._flows(stage)))
        yield self._clock.end_after(0)
        for *_, over in self._arrived.values():
            over.succeed()
        self._arrived.clear()

    def _flows(self, stage: tuple[Phase, ...]) -> Iterator[simpy.Event]:
        """Begin a flow for each member that sends something."""
        for phase in stage:
            fabric = self._fabrics[phase.fabric]
            cap, needed = fabric_rate_cap(fabric), phase_work(phase, fabric)
            for member, _, compute, _ in self._arrived.values():
                if (path := self._path(phase.fabric, member.id)) is not None:
                    yield self._network.flow(path, cap, needed, compute.key)


MEMORY = "memory"
"""Names the path of traffic, beside those of units."""

Paths = Mapping[tuple[str, str], Path]
"""Paths by device, and by the name of a unit or `MEMORY`."""

Flow = tuple[Path, int, int]
"""A flow of a kernel: its path, the most that it gets there, and its work."""


class Kernels:
    """The kernels of a rank whose time depends on others.

    A collective goes to its meeting. Where kernels share their device, or its memory, each other one whose time is
    modelled is a flow of arithmetic through its unit and a flow of traffic through the memory, side by side, after its
    launch.

    Parameters
    ----------
    rank, ledger
        The rank, and its waits.
    graph, hardware
        Give the traffic and arithmetic of each op.
    meets
        Op -> its communicator and its collective.
    paths
        Paths of devices whose kernels share something; all other kernels but collectives take their time alone.

    Attributes
    ----------
    loads
        Takes the rows of what is read in place.
    """

    loads: bytearray

    def __init__(
        self,
        rank: Rank,
        ledger: Ledger,
        ops: tuple[Op, ...],
        hardware: Hardware,
        meets: Mapping[int, tuple[Communicator, Collective]],
        paths: Paths,
    ) -> None:
        self.rank, self._ledger, self._ops, self._hardware, self._meets = rank, ledger, ops, hardware, meets
        self._paths, sizes = paths, rank.columns.size_bytes
        self._flows = [self._flows_of(expected_op(op, sizes)) if paths else [] for op in ops]

    def _flows_of(self, op: Op) -> list[Flow]:
        """Return what an op does in its device, but for its launch; nothing if its time is given."""
        if op.duration_ns is not None or op.collective is not None or (op.device, MEMORY) not in self._paths:
            return []
        unit, share, arithmetic = unit_work(op, self._hardware)
        (_, traffic), reach = roofline(op, self._hardware), memory_rate_cap(op, self._hardware)
        flows = ((op.device, unit), share, arithmetic), ((op.device, MEMORY), reach, traffic)
        return [(self._paths[name], cap, needed) for name, cap, needed in flows if needed]

    def run(self, compute: ComputeAction) -> Steps:
        """Run a kernel: it ends with the last of its flows and loads, and not before its time alone is over."""
        rank, op, node = self.rank, compute.op, self._ops[compute.op]
        if op in self._meets:
            communicator, collective = self._meets[op]
            yield from communicator.arrive(rank, self._ledger, compute, collective)
            return
        flows, clock = self._flows[op], rank.clock
        if flows and compute.chosen_bytes >= 0:
            flows = self._flows_of(chosen_op(node, compute.chosen_bytes))
        elif flows and compute.sources:
            away = sum(rank.columns.size_bytes[tensor] for tensor in compute.sources)
            flows = self._flows_of(replace(node, read_bytes=max(0, node.read_bytes - away)))
        until_ns = clock.now + compute.duration_ns
        if flows or compute.sources:
            launch_ns = device_of(node, self._hardware).rates.launch_ns
            if launch_ns and node.duration_ns is None:  # it takes no bandwidth
                yield clock.timeout(launch_ns)
            loading = [clock.process(self._load(compute, tier)) for tier in dict.fromkeys(compute.sources.values())]
            yield clock.all_of([*(rank.network.flow(*flow, compute.key) for flow in flows), *loading])
        yield clock.end_after(max(0, until_ns - clock.now))

    def _load(self, compute: ComputeAction, tier: int) -> Steps:
        """Load what a compute reads in another tier, after the latency of the link."""
        rank, clock = self.rank, self.rank.clock
        sizes = (rank.columns.size_bytes[tensor] for tensor, source in compute.sources.items() if source == tier)
        size, (link, path), start_ns = loaded_bytes(self._ops[compute.op], sum(sizes)), rank.loads[tier], clock.now
        if link.latency_ns:
            yield clock.timeout(link.latency_ns)
        if needed := work(size, path.unit):
            yield rank.network.flow(path, FULL_RATE, needed, compute.key)
        row = (compute.key & ISSUE_MASK, compute.op, link.index, size, start_ns, clock.now)
        self.loads += _load_row(rank.id, *row)
