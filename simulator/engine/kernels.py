"""Kernels whose time depends on others: on the ranks that they meet, or on what shares the device with them.

A collective starts when its last member has arrived, and ends for all at the same instant. A member *arrives* when a
compute could start: it is its turn, what it reads is valid, and its room and places are taken. Until the collective
starts it waits for a ``peer``. Each phase of the collective is one flow for each member, through its port out of and
its port into the phase's fabric; a send and its receive are one flow. Phases run one after another, or, in a stage of
several, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from simulator.cost import chosen_op, expected_op, memory_rate_cap, roofline, unit_work
from simulator.cost.collectives import phases
from simulator.cost.service import Phase, fabric_rate_cap, phase_work, stages
from simulator.engine.event_loop import Clock, Recurring, Watchers
from simulator.engine.sharing import Network, Path
from simulator.engine.stream import QueuedCompute, Stream
from simulator.graph import Collective, Graph, Op
from simulator.hardware import Hardware
from simulator.trace import CAUSES

PEER = CAUSES.index("peer")


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
    watchers
        Accounts of waits that depend on the current meeting.
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
        self._rounds = network.rounds
        self._stages_of = cache(lambda collective: stages(phases(collective, ranks, hardware)))
        self._stages: Iterator[tuple[Phase, ...]] = iter(())
        self._stage: tuple[Phase, ...] = ()
        self._arrived: dict[int, tuple[Stream, int]] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._others: Iterator[int] = iter(())
        self._flowing = self._since_ns = 0
        self.peer = -1
        self.watchers: Watchers = []

    def arrive(self, stream: Stream, collective: Collective) -> None:
        """Let a member arrive at the current meeting; the last to arrive starts the collective."""
        now = self._rounds.clock.now
        if not self._arrived:
            self._stages, self._others, self._since_ns = iter(self._stages_of(collective)), iter(self._in_order), now
            self._parts.clear()
            self.peer = next(self._others)
        self._arrived[stream.rank] = stream, now
        stream.meeting = self
        awaited = self.peer
        while self.peer in self._arrived:
            self.peer = next(self._others, -1)
        if self.peer != awaited:
            if now > self._since_ns:
                self._parts.append((self._since_ns, now, awaited))
            self._since_ns = now
            self._rounds.wake(self.watchers)
        if self.peer >= 0:
            return
        for member, arrived_ns in self._arrived.values():
            member.start_ns = now
            for start, end, peer in self._parts:
                if end > arrived_ns:
                    member.ledger.add(max(start, arrived_ns), end, (PEER, -1, peer, -1))
        self._begin_stage()

    def _begin_stage(self) -> None:
        """Begin the next stage: its hops, then the bytes of all its phases; or end the collective for all."""
        self._stage = next(self._stages, ())
        if not self._stage:
            self._rounds.wake(self.watchers)
            for stream, _ in self._arrived.values():
                stream.meeting = None
                stream.end_after(0)
            self._arrived.clear()
        else:
            first = self._stage[0]
            _delay(first.hops * self._fabrics[first.fabric].latency_ns, self._begin_flows, self._rounds.clock)

    def _begin_flows(self) -> None:
        """Start a flow for each member that sends something."""
        self._flowing = 0
        for phase in self._stage:
            fabric = self._fabrics[phase.fabric]
            cap, work = fabric_rate_cap(fabric), phase_work(phase, fabric)
            for stream, _ in self._arrived.values():
                path = self._path(phase.fabric, stream.rank)
                if path is not None and stream.running is not None:
                    self._network.join(path, cap, work, stream.running[0], self._end_flow)
                    self._flowing += 1

    def _end_flow(self) -> None:
        """End one member's flow; when all have ended, the stage is over."""
        self._flowing -= 1
        if not self._flowing:
            self._begin_stage()


MEMORY = "memory"
"""Names the path of traffic, beside those of units."""

Flow = tuple[Path, int, int]
"""A flow of a kernel: its path, the most that it gets there, and its work."""


class Kernels:
    """Begins kernels whose time depends on others.

    A collective goes to its meeting. Where kernels share the device, each other one whose time is modelled is a flow
    of arithmetic through its unit and a flow of traffic through the memory, side by side, after its launch.

    Parameters
    ----------
    graph, hardware
        Give the traffic and arithmetic of each op.
    network
        Where flows share bandwidth.
    meets
        Op -> its communicator and its collective.
    paths
        Paths through the units, by their names, and through the memory (`MEMORY`); if empty, all kernels but
        collectives take their time alone.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        network: Network,
        meets: Mapping[int, tuple[Communicator, Collective]],
        paths: Mapping[str, Path],
    ) -> None:
        self._graph, self._hardware, self._network, self._meets, self._paths = graph, hardware, network, meets, paths
        sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._flows = [self._flows_of(expected_op(op, sizes)) if paths else [] for op in graph.ops]

    def _flows_of(self, op: Op) -> list[Flow]:
        """Return what an op does in the device, but for its launch; nothing if its time is given."""
        if op.duration_ns is not None or op.collective is not None:
            return []
        unit, share, arithmetic = unit_work(op, self._hardware)
        _, traffic = roofline(op, self._hardware)
        flows = (self._paths[unit], share, arithmetic), (self._paths[MEMORY], memory_rate_cap(self._hardware), traffic)
        return [flow for flow in flows if flow[2]]

    def begin(self, stream: Stream, op: int, compute: QueuedCompute) -> None:
        """Begin a kernel now; its launch takes no bandwidth.

        It ends with the last of its flows, and not before its time alone is over, which is rounded up.
        """
        if op in self._meets:
            communicator, collective = self._meets[op]
            communicator.arrive(stream, collective)
            return
        flows = self._flows[op]
        if flows and compute.duration_ns >= 0:
            flows = self._flows_of(chosen_op(self._graph.ops[op], compute.chosen_bytes))
        if not flows or stream.running is None:
            stream.end_after(stream.columns.duration_ns[op])
            return
        left, key, clock = len(flows), stream.running[0], stream.places.rounds.clock
        until_ns = clock.now + stream.columns.duration_ns[op]

        def end() -> None:
            nonlocal left
            left -= 1
            if not left:
                stream.end_after(max(0, until_ns - clock.now))

        def flow() -> None:
            for path, cap, work in flows:
                self._network.join(path, cap, work, key, end)

        _delay(self._hardware.compute.launch_ns, flow, clock)


def _delay(delay_ns: int, flow: Callable[[], None], clock: Clock) -> None:
    """Start a flow after a delay."""
    if delay_ns:
        clock.at(clock.now + delay_ns, Recurring(clock, lambda event: flow()))
    else:
        flow()
