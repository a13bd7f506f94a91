"""Where ranks meet: a collective starts when its last member has come, and ends for all at the same instant.

A member *arrives* when a compute could start: it is its turn, what it reads is valid, and its room and places are
taken. Until the collective starts it waits for a ``peer``. Each phase of the collective is one flow for each member,
through its port out of and its port into the phase's fabric; a send and its receive are one flow. Phases run one after
another, or, in a stage of several, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from simulator.cost import Phase, fabric_rate_cap, phase_work, phases, stages
from simulator.engine.ledger import PEER
from simulator.engine.rounds import Rounds
from simulator.engine.sharing import Network, Path
from simulator.engine.stream import Kernels, Met, Stream
from simulator.engine.waits import Accountable
from simulator.graph import Collective
from simulator.hardware import Hardware

Stage = tuple[Phase, ...]
"""Phases whose bytes flow at the same time, after the hops of the first."""


class Meeting:
    """One collective, from its first arrival on; as an event, the end of a stage's hops.

    Attributes
    ----------
    peer
        The lowest rank that has not arrived; -1 once the collective runs.
    op
        Id of the op in the graph of the first member to arrive.
    watchers
        Streams whose wait depends on it.
    """

    callbacks: ClassVar[tuple[Callable[[Meeting], None], ...]]
    __slots__ = (
        "_arrived",
        "_communicator",
        "_flowing",
        "_here",
        "_lowest",
        "_parts",
        "_since_ns",
        "_stage",
        "_stages",
        "op",
        "peer",
        "watchers",
    )

    def __init__(self, communicator: Communicator, collective: Collective, op: int) -> None:
        self._communicator, self.op = communicator, op
        self._stages = iter(communicator.stages(collective))
        self._stage: Stage
        self._here: set[int] = set()
        self._lowest = 0
        self._arrived: list[tuple[Stream, int]] = []
        self._parts: list[tuple[int, int, int]] = []
        self._flowing = self._since_ns = 0
        self.peer = -1
        self.watchers: list[Accountable] = []

    def arrive(self, stream: Stream) -> None:
        """Take in a member; the last one starts the collective."""
        now = self._communicator.rounds.clock.now
        self._arrived.append((stream, now))
        self._here.add(stream.rank)
        peer = self._first_missing()
        if peer != self.peer:
            if self.peer >= 0 and now > self._since_ns:
                self._parts.append((self._since_ns, now, self.peer))
            self.peer, self._since_ns = peer, now
            self._wake_watchers()
        if peer < 0:
            self._start(now)

    def _first_missing(self) -> int:
        """The lowest rank that has not arrived, or -1."""
        members = self._communicator.in_order
        while self._lowest < len(members) and members[self._lowest] in self._here:
            self._lowest += 1
        return members[self._lowest] if self._lowest < len(members) else -1

    def _start(self, now: int) -> None:
        for stream, arrived_ns in self._arrived:
            stream.start_ns = now
            for start, end, peer in self._parts:
                if end > arrived_ns:
                    stream.waiting.add(max(start, arrived_ns), end, (PEER, -1, peer, -1))
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next stage: its hops, then its bytes; or end the collective for all."""
        stage = next(self._stages, None)
        if stage is None:
            self._communicator.meeting = None
            self._wake_watchers()
            for stream, _ in self._arrived:
                stream.span.begin(0)
            return
        self._stage, hops_ns, clock = stage, self._communicator.hops_ns(stage[0]), self._communicator.rounds.clock
        if hops_ns:
            clock.at(clock.now + hops_ns, self)
        else:
            self._flow()

    def _flow(self) -> None:
        self._flowing = sum([self._communicator.join(phase, self, self._arrived) for phase in self._stage])

    def _flow_late(self) -> None:
        self._flow()
        self._communicator.rounds.close()

    def end(self) -> None:
        """One member's bytes are across; when all are, the stage is over."""
        self._flowing -= 1
        if not self._flowing:
            self._go_on()

    def _wake_watchers(self) -> None:
        if self.watchers:
            self._communicator.rounds.restless += self.watchers
            self.watchers.clear()


Meeting.callbacks = (Meeting._flow_late,)


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
    rounds, network
        The agenda, and where flows share bandwidth.

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
        rounds: Rounds,
        network: Network,
    ) -> None:
        self.in_order, self.rounds = sorted(members), rounds
        self._ranks, self._hardware, self._path, self._network = ranks, hardware, path, network
        self.meeting: Meeting | None = None
        self._known: dict[Collective, tuple[Stage, ...]] = {}

    def stages(self, collective: Collective) -> tuple[Stage, ...]:
        """Stages of a collective of these ranks."""
        found = self._known.get(collective)
        if found is None:
            found = self._known[collective] = stages(phases(collective, self._ranks, self._hardware))
        return found

    def arrive(self, stream: Stream, op: int, collective: Collective) -> None:
        """Let a member come to the present meeting."""
        if self.meeting is None:
            self.meeting = Meeting(self, collective, op)
        self.meeting.arrive(stream)

    def hops_ns(self, phase: Phase) -> int:
        """How long a phase takes before its bytes flow [ns]."""
        return phase.hops * self._hardware.fabrics[phase.fabric].latency_ns

    def join(self, phase: Phase, meeting: Meeting, arrived: list[tuple[Stream, int]]) -> int:
        """Let the bytes of a phase flow; return how many flows they are."""
        fabric = self._hardware.fabrics[phase.fabric]
        cap, work = fabric_rate_cap(fabric), phase_work(phase, fabric)
        flows = 0
        for stream, _ in arrived:
            path = self._path(phase.fabric, stream.rank)
            if path is not None and stream.running is not None:
                self._network.join(path, cap, work, stream.running[0], meeting)
                flows += 1
        return flows


class Collectives:
    """Kernels of one rank of which some are collectives.

    Parameters
    ----------
    meets
        By op, with whom it meets for what.
    others
        What begins the other kernels; None: they take their time alone.
    durations_ns
        Times alone [ns].
    """

    def __init__(
        self,
        meets: Mapping[int, tuple[Communicator, Collective]],
        others: Kernels | None,
        durations_ns: Sequence[int],
    ) -> None:
        self._meets, self._others, self._durations_ns = meets, others, durations_ns

    def begin(self, stream: Stream, op: int) -> None:
        """Begin a kernel, or come to a meeting."""
        if op in self._meets:
            communicator, collective = self._meets[op]
            communicator.arrive(stream, op, collective)
        elif self._others is not None:
            self._others.begin(stream, op)
        else:
            stream.span.begin(self._durations_ns[op])

    def meeting(self, op: int) -> Met | None:
        """The meeting that a running op has come to; None if it is no collective."""
        return self._meets[op][0].meeting if op in self._meets else None
