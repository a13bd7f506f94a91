"""One rank: its places, streams, links and host, wired together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import compress, count

from simulator.engine.blocked import Explainer
from simulator.engine.book import Book, Routes
from simulator.engine.compaction import guard
from simulator.engine.host import Host
from simulator.engine.issued import Issued
from simulator.engine.kernels import ContendedKernels
from simulator.engine.late import LateReads
from simulator.engine.ledger import Waiting
from simulator.engine.link import LinkQueue, Shared
from simulator.engine.meeting import Collectives
from simulator.engine.places import Places
from simulator.engine.program import Program
from simulator.engine.shared import Machine, Uses
from simulator.engine.sharing import Resource
from simulator.engine.stream import Stream
from simulator.errors import CapacityError, Shortfall
from simulator.plan import COMPUTE, Plan


class Rank:
    """One program on its device.

    Parameters
    ----------
    machine
        What it shares with the other ranks.
    number
        Its rank.
    program
        What it runs.
    checkpoint
        Called now and then.
    """

    def __init__(self, machine: Machine, number: int, program: Program, checkpoint: Callable[[], None]) -> None:
        hardware, plan = machine.hardware, program.plan
        self._graph, self.machine, self.number = program.graph, machine, number
        self._tiers = [machine.tier(tier, number, program) for tier in range(len(hardware.tiers))]
        self.columns = columns = machine.columns(program)
        recorder = machine.recorder
        self.places = Places(number, columns, self._tiers, machine.rounds, recorder.residencies)
        self.streams = [Stream(i, self.places, columns, recorder.spans) for i in range(columns.streams)]
        self._links = [self._link(i, name) for i, name in enumerate(hardware.links)]
        self._share_queues()
        here = columns.compute_tier
        guard(self._tiers[here], self.streams, [one for one in self._links if here in (one.source, one.target)])
        routes = self._routes()
        if plan.fixed is not None:
            book = Book(self.places, columns, routes)
        else:
            book = Issued(self.places, columns, routes, program, recorder.issued(number))
        if plan.fixed is not None and plan.repeats != program.graph.steps:
            recorder.issued(number).extend(list(plan.fixed.codes()) * plan.repeats)
        if program.draws is not None:
            book.take_late(LateReads(program.graph, program.draws, columns))
        if isinstance(book, Issued):
            book.charge(hardware.host, is_compiled=bool(plan.backbone))
        self._host = Host(self.places, plan, book, hardware.host, checkpoint)
        self._host.now += program.starts_ns
        for stream in self.streams:
            stream.host, stream.waiting = self._host, Waiting(stream, recorder.waits)
        self._contend()
        self._meet(program)
        self._settle_homes(plan)
        self.computes = (
            plan.fixed.kind.count(COMPUTE) * plan.repeats
            if plan.fixed
            else len(program.graph.ops) * program.graph.steps
        )

    def _link(self, number: int, name: str) -> LinkQueue:
        machine, link = self.machine, self.machine.hardware.links[name]
        wait_for_end = machine.switches.copies_wait_for == "end"
        names = machine.hardware.tier_names
        ends = (names.index(link.source), names.index(link.target))
        queue = LinkQueue(number, link, ends, self.places, machine.recorder.spans, wait_for_end=wait_for_end)
        others = machine.resources(name, self.number)
        if not others and (link.channels == 1 or link.sharing == "servers"):
            return queue
        unit = link.bandwidth_bytes_per_s
        own: Uses = ((Resource(unit), 1),) if link.sharing == "fair" and link.channels > 1 else ()
        if unit == math.inf:
            unit = min((other.bandwidth for other, _ in others), default=unit)
        is_even = link.sharing == "fifo" and link.channels > 1 and unit == link.bandwidth_bytes_per_s
        path = machine.path(unit, own + others, even=is_even)
        queue.shared = Shared(queue, link, path, machine.network)
        return queue

    def _share_queues(self) -> None:
        """Let the links of a copy queue wait in one queue for the same channels."""
        links = dict(zip(self.machine.hardware.links, self._links, strict=True))
        for first, *others in self.machine.hardware.queues:
            for other in others:
                links[other].share(links[first])

    def _routes(self) -> Routes:
        """The first link between two tiers."""
        routes: Routes = [[None] * len(self._tiers) for _ in self._tiers]
        for link in reversed(self._links):
            routes[link.source][link.target] = link
        return routes

    def _contend(self) -> None:
        """If copies take bandwidth from kernels, let each kernel's traffic flow."""
        machine = self.machine
        if not machine.switches.hbm_contention:
            return
        bandwidth = machine.compute_bandwidth(self.number)
        path = machine.path(bandwidth[0].bandwidth, (bandwidth,), even=False)
        kernels = ContendedKernels(self._graph, machine.hardware, path, machine.network)
        for stream in self.streams:
            stream.kernels = kernels

    def _meet(self, program: Program) -> None:
        """Let each stream that runs collectives come to meetings."""
        meets = {}
        for op in compress(count(), self.columns.is_collective):
            collective = self._graph.ops[op].collective
            if collective is not None:
                meets[op] = (self.machine.communicator(self._graph, collective, self.number), collective)
        running = _collective_streams(program, meets.keys()) if meets else ()
        for number in running:
            stream = self.streams[number]
            stream.kernels = Collectives(meets, stream.kernels, self.columns.duration_ns)

    def _settle_homes(self, plan: Plan) -> None:
        """Put what exists at time 0 where it is at home."""
        for tensor, home in enumerate(plan.home):
            if home < 0:
                continue
            tier, size = self._tiers[home], self.places.size_bytes[tensor]
            if not self.machine.is_stored(self.number, home, tensor):
                tier.settle(tensor, size)
            self.places.valid[home][tensor] = True
            self.places.hold(tensor, home)
            if tier.used > tier.capacity:
                raise CapacityError(
                    Shortfall(
                        tier.name,
                        tier.used,
                        int(tier.capacity),
                        f"home of {self._graph.tensors[tensor].name!r}",
                    )
                )

    def begin(self) -> None:
        """Let the host issue its first steps."""
        self.machine.rounds.restless += self.streams
        self._host.begin()

    @property
    def ended(self) -> int:
        """Computes that are done."""
        return sum(stream.ended for stream in self.streams)

    def blocked(self) -> tuple[list[str], list[str]]:
        """What this rank lacks, and for which ranks it waits, if anything is not done."""
        told = Explainer(self._graph, self.places, self.streams, self._links).sentences(self._host)
        own, peers = ([f"rank {self.number}: {sentence}" for sentence in part] for part in told)
        return (own, peers) if self.machine.has_ranks else told


def _collective_streams(program: Program, collectives: Collection[int]) -> list[int]:
    """Streams on which the plan runs collectives; a reactive one may do so on any."""
    steps = program.plan.fixed
    if steps is None:
        return list(range(1 + len(program.graph.groups)))
    found = zip(steps.kind, steps.a, steps.b, strict=True)
    return sorted({stream for kind, op, stream in found if kind == COMPUTE and op in collectives})
