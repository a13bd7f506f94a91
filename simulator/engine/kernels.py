"""How long a kernel takes that depends on others: on the ranks that it meets, or on copies that take its bandwidth.

A collective starts when its last member has come, and ends for all at the same instant. A member *arrives* when a
compute could start: it is its turn, what it reads is valid, and its room and places are taken. Until the collective
starts it waits for a ``peer``. Each phase of the collective is one flow for each member, through its port out of and
its port into the phase's fabric; a send and its receive are one flow. Phases run one after another, or, in a stage of
several, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import simpy

from simulator.cost import (
    Phase,
    arithmetic_ns,
    chosen_op,
    expected_op,
    fabric_rate_cap,
    memory_rate_cap,
    memory_work,
    phase_work,
    phases,
    stages,
)
from simulator.engine.rounds import Recurring, Watchers
from simulator.engine.sharing import Network, Path
from simulator.engine.stream import Compute, Stream
from simulator.graph import Collective, Graph
from simulator.hardware import Hardware
from simulator.trace import CAUSES

PEER = CAUSES.index("peer")

Stage = tuple[Phase, ...]
"""Phases whose bytes flow at the same time, after the hops of the first."""


class Meeting:
    """One collective, from its first arrival on.

    Parameters
    ----------
    communicator
        Whose meeting it is.
    collective
        What is met for.

    Attributes
    ----------
    peer
        The lowest rank that has not arrived; -1 once the collective runs.
    watchers
        Waits that depend on it.
    """

    def __init__(self, communicator: Communicator, collective: Collective) -> None:
        self._communicator, self._stages = communicator, iter(communicator.stages(collective))
        self._stage: Stage = ()
        self._after_hops = Recurring(communicator.rounds.clock, self._flow_late)
        self._arrived: dict[int, tuple[Stream, int]] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._members = iter(communicator.in_order)
        self._missing = next(self._members)
        self._flowing = self._since_ns = 0
        self.peer = -1
        self.watchers: Watchers = []

    def arrive(self, stream: Stream) -> None:
        """Take in a member; the last one starts the collective."""
        now = self._communicator.rounds.clock.now
        self._arrived[stream.rank] = stream, now
        stream.meeting = self
        while self._missing in self._arrived:
            self._missing = next(self._members, -1)
        peer = self._missing
        if peer != self.peer:
            if self.peer >= 0 and now > self._since_ns:
                self._parts.append((self._since_ns, now, self.peer))
            self.peer, self._since_ns = peer, now
            self._communicator.rounds.wake(self.watchers)
        if peer < 0:
            self._start(now)

    def _start(self, now: int) -> None:
        for stream, arrived_ns in self._arrived.values():
            stream.start_ns = now
            for start, end, peer in self._parts:
                if end > arrived_ns:
                    stream.waiting.add(max(start, arrived_ns), end, (PEER, -1, peer, -1))
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next stage: its hops, then its bytes; or end the collective for all."""
        communicator, clock = self._communicator, self._communicator.rounds.clock
        self._stage = next(self._stages, ())
        if not self._stage:
            communicator.meeting = None
            communicator.rounds.wake(self.watchers)
            for stream, _ in self._arrived.values():
                stream.meeting = None
                stream.end_after(0)
        elif hops_ns := self._stage[0].hops * communicator.hardware.fabrics[self._stage[0].fabric].latency_ns:
            clock.at(clock.now + hops_ns, self._after_hops)
        else:
            self._flow()

    def _flow(self) -> None:
        streams = [stream for stream, _ in self._arrived.values()]
        self._flowing = sum([self._communicator.join(phase, self._end, streams) for phase in self._stage])

    def _flow_late(self, event: simpy.Event) -> None:
        self._flow()
        self._communicator.rounds.close()

    def _end(self) -> None:
        """One member's bytes are across; when all are, the stage is over."""
        self._flowing -= 1
        if not self._flowing:
            self._go_on()


class Communicator:
    """Some ranks that meet again and again, always in the same order.

    Parameters
    ----------
    members
        Those that are simulated.
    ranks
        All that meet, in order; more than the members if some of these stand for others.
    hardware
        Its fabrics.
    path
        From a fabric's name and a member to what that member's flow goes through; None if it sends nothing.
    network
        Where flows share bandwidth.

    Attributes
    ----------
    in_order
        The members, the lowest rank first.
    meeting
        The present one, if some member has arrived.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        ranks: tuple[int, ...],
        hardware: Hardware,
        path: Callable[[str, int], Path | None],
        network: Network,
    ) -> None:
        self.in_order, self.rounds = sorted(members), network.rounds
        self.hardware, self._path, self._network = hardware, path, network
        self.meeting: Meeting | None = None
        self.stages = cache(lambda collective: stages(phases(collective, ranks, hardware)))

    def arrive(self, stream: Stream, collective: Collective) -> None:
        """Let a member come to the present meeting."""
        if self.meeting is None:
            self.meeting = Meeting(self, collective)
        self.meeting.arrive(stream)

    def join(self, phase: Phase, end: Callable[[], None], streams: list[Stream]) -> int:
        """Let the bytes of a phase flow, each flow until it calls back; return how many flows they are."""
        fabric = self.hardware.fabrics[phase.fabric]
        cap, work = fabric_rate_cap(fabric), phase_work(phase, fabric)
        flows = 0
        for stream in streams:
            path = self._path(phase.fabric, stream.rank)
            if path is not None and stream.running is not None:
                self._network.join(path, cap, work, stream.running[0], end)
                flows += 1
        return flows


Kernel = Callable[[Stream, Compute], None]
"""Begins a kernel now, and sooner or later the stream's span."""


def with_meetings(meets: Mapping[int, tuple[Communicator, Collective]], other: Kernel | None) -> Kernel:
    """Let ops come to meetings.

    Parameters
    ----------
    meets
        By op, with whom it meets for what.
    other
        What begins the other kernels; None: they take their time alone.
    """

    def begin(stream: Stream, compute: Compute) -> None:
        if compute.op in meets:
            communicator, collective = meets[compute.op]
            communicator.arrive(stream, collective)
        elif other is not None:
            other(stream, compute)
        else:
            stream.end_after(stream.columns.duration_ns[compute.op])

    return begin


class ContendedKernels:
    """Each kernel is arithmetic and a flow of memory traffic side by side, after its launch.

    Parameters
    ----------
    graph, hardware
        For traffic and arithmetic of each op; a measured duration counts as arithmetic.
    path, network
        Where the traffic flows.
    """

    def __init__(self, graph: Graph, hardware: Hardware, path: Path, network: Network) -> None:
        self._graph, self._hardware, self._path, self._network = graph, hardware, path, network
        self._launch_ns, self._cap = hardware.compute.launch_ns, memory_rate_cap(hardware)
        sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._least_ns = [
            self._launch_ns + arithmetic_ns(op, hardware) if op.duration_ns is None else op.duration_ns
            for op in graph.ops
        ]
        self._work = [
            memory_work(expected_op(op, sizes), hardware) if op.duration_ns is None else 0 for op in graph.ops
        ]

    def begin(self, stream: Stream, compute: Compute) -> None:
        """Begin a kernel now; its launch takes no bandwidth."""
        work, least_ns, rounds = self._work[compute.op], self._least_ns[compute.op], stream.places.rounds
        if work and compute.duration_ns >= 0:
            work = memory_work(chosen_op(self._graph.ops[compute.op], compute.chosen_bytes), self._hardware)
        if not work:
            stream.end_after(least_ns)
            return
        until_ns = rounds.clock.now + least_ns
        key = stream.running[0] if stream.running else 0

        def end() -> None:
            stream.end_after(max(0, until_ns - rounds.clock.now))

        flow = partial(self._network.join, self._path, self._cap, work, key, end)
        if not self._launch_ns:
            flow()
            return

        def launched(event: simpy.Event) -> None:
            flow()
            rounds.close()

        rounds.clock.at(rounds.clock.now + self._launch_ns, Recurring(rounds.clock, launched))
