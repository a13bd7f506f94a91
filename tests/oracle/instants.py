"""A run, instant after instant (rule 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from oracle.causes import Ledger, Wait
from oracle.flows import Flow, Wires, set_rates
from oracle.meetings import Forms, Meeting, members_of
from oracle.order import Action, Given
from oracle.ranks import Rank, Residency, Room, usable
from simulator.hardware import Hardware
from simulator.plan import COMPUTE, COPY, DETACH


@dataclass(frozen=True)
class Told:
    """What happened.

    Spans are (rank, issue, issued, start, end, channel); peaks are by (tier, instance) the most that it held [B];
    compactions are (rank, asked, start, end, pages); addresses are (rank, time, item, offset, delta).
    """

    status: str
    spans: list[tuple[int, ...]]
    waits: list[Wait]
    residencies: list[Residency]
    peaks: dict[tuple[int, int], int]
    makespan_ns: int
    step_ns: int | None = None
    compactions: list[tuple[int, ...]] = field(default_factory=list)
    addresses: list[tuple[int, ...]] = field(default_factory=list)


class Oracle:
    """One run of ranks on a machine."""

    def __init__(
        self, givens: Sequence[Given], hardware: Hardware, budget: int | float | None, *, wait_for_end: bool = False
    ) -> None:
        self.hardware, self.now = hardware, 0
        self.wires = Wires(hardware)
        self.forms = Forms(hardware, self.wires)
        self.rooms: dict[tuple[int, int], Room] = {}
        self.ranks: list[Rank] = []
        for number, given in enumerate(givens):
            rooms = [self._room(tier, name, number, budget) for tier, name in enumerate(hardware.tiers)]
            self.ranks.append(Rank(number, given, hardware, rooms, wait_for_end=wait_for_end))
        self.ledgers = [Ledger(rank, stream) for rank in self.ranks for stream in rank.streams]
        self.flows: list[Flow] = []
        self.active: list[Flow] = []
        self.meetings: dict[tuple[str, tuple[int, ...], int], Meeting] = {}

    def _room(self, tier: int, name: str, rank: int, budget: int | float | None) -> Room:
        capacity = usable(self.hardware.devices(rank + 1)[rank], name)
        if name == self.hardware.compute_tier and budget is not None:
            capacity = budget
        instance = rank // self.hardware.topology.sharing[self.hardware.tiers[name].scope]
        return self.rooms.setdefault((tier, instance), Room(capacity))

    def run(self) -> Told:
        """Go from instant to instant until nothing more can happen."""
        while True:
            self._settle()
            then = self._next_ns()
            for ledger in self.ledgers:
                ledger.look(self.now if then is None else then)
            if then is None:
                return self._tell()
            for flow in self.active:
                flow.left -= flow.rate * (then - self.now)
            self.now = then
            for rank in self.ranks:
                rank.now = then

    def _settle(self) -> None:
        """Ends, frees, and grants and starts, round after round."""
        did = True
        while did:
            self._set_rates()
            did = self._end()
            did |= self._issue()
            did |= self._free_and_start()
            for ledger in self.ledgers:
                ledger.close()

    def _set_rates(self) -> None:
        active = [flow for flow in self.flows if flow.joins_ns <= self.now]
        if active != self.active:
            self.active = active
            set_rates(active, self.wires.limits)

    def _issue(self) -> bool:
        return any([rank.issue() for rank in self.ranks])  # noqa: C419  all of them go on

    def _next_ns(self) -> int | None:
        found = [rank.host_ns for rank in self.ranks if rank.pending is not None]
        found += [meeting.begins_ns for meeting in self.meetings.values()]
        found += [
            rank.addresses.compaction.end_ns for rank in self.ranks if rank.addresses and rank.addresses.compaction
        ]
        for flow in self.flows:
            found.append(flow.joins_ns if flow not in self.active else self.now - (-max(flow.left, 0) // flow.rate))
        for rank in self.ranks:
            found += [a.start_ns + rank.duration_ns(a) for a in self._running(rank) if a.start_ns is not None]
        return min((ns for ns in found if ns > self.now), default=None)

    @staticmethod
    def _running(rank: Rank) -> list[Action]:
        """The computes under way that meet nobody."""
        return [a for a in rank.of(COMPUTE) if a.is_under_way and a.meeting is None]

    def _end(self) -> bool:
        ended = False
        for flow in [flow for flow in self.active if flow.left <= 0]:
            self.flows.remove(flow)
            flow.end()
            ended = True
        for rank in self.ranks:
            for compute in self._running(rank):
                if (compute.start_ns or 0) + rank.duration_ns(compute) <= self.now and not compute.flows:
                    rank.end_compute(compute)
                    ended = True
        for meeting in self.meetings.values():
            ended |= self._go_on_with(meeting)
        for rank in self.ranks:
            compaction = rank.addresses.compaction if rank.addresses else None
            if rank.addresses and compaction is not None and compaction.start_ns >= 0 and compaction.end_ns <= self.now:
                rank.addresses.finish(self.now)
                ended = True
        return ended

    def _go_on_with(self, meeting: Meeting) -> bool:
        """Begin the flows of a stage whose hops are over; the next stage; or end the collective for all."""
        did = False
        if meeting.begins_ns == self.now:
            self.flows += meeting.begin_flows(self.now)
            did = True
        elif meeting.stage and not meeting.flowing and meeting.begins_ns < 0 and not meeting.is_over:
            self.flows += meeting.begin_stage(self.now)
            did = True
        if meeting.is_over:
            for number, action in meeting.arrived.items():
                if not action.has_ended:
                    self.ranks[number].end_compute(action)
                    did = True
        return did

    def _free_and_start(self) -> bool:
        did = False
        while True:
            acted = False
            while any([rank.free() for rank in self.ranks]):  # noqa: C419  all of them free
                acted = True
                self._issue()
            while self._start_first():
                acted = True
                self._issue()
            did |= acted
            if not acted:
                return did

    def _start_first(self) -> bool:
        """Begin the compactions for which nothing runs any more; start the first head that can start."""
        for rank in self.ranks:
            self._begin_compaction(rank)
        heads = sorted((head for rank in self.ranks for head in rank.heads()), key=lambda a: (a.rank, a.issue))
        for head in heads:
            if self.ranks[head.rank].start(head):
                self._begin(head)
                return True
            self._begin_compaction(self.ranks[head.rank])
        return False

    def _begin_compaction(self, rank: Rank) -> None:
        addresses = rank.addresses
        if addresses is None or addresses.compaction is None or addresses.compaction.start_ns >= 0:
            return
        copies = (a for a in rank.of(COPY) if a.is_under_way and rank.tier in {a.b, a.c})
        if not self._running(rank) and not any(copies):
            addresses.start(self.now)

    def _begin(self, action: Action) -> None:
        """Let the bytes of a copy flow; or let a member arrive, and the collective begin with the last one."""
        rank = self.ranks[action.rank]
        if action.kind == COPY:
            end = partial(rank.end_copy, action)
            self.flows.append(self.wires.copy(rank.link(action), action.rank, rank.sizes[action.a], self.now, end))
            return
        op = rank.given.graph.ops[action.a]
        if op.collective is None:
            action.begin_ns = self.now
            if op.device == "host" and op.duration_ns is None:
                flows = self.wires.of_host(op, action.rank, self.now, partial(self._end_flow, action))
                self.flows, action.flows = self.flows + flows, len(flows)
            if action.sources:
                sizes = dict[int, int]()
                for t, tier in action.sources.items():
                    sizes[tier] = sizes.get(tier, 0) + rank.sizes[t]
                flows = self.wires.of_loads(sizes, op, action.rank, self.now, partial(self._end_flow, action))
                self.flows, action.flows = self.flows + flows, len(flows)
            return
        members = members_of(rank.given.graph, action.a, action.rank)
        key = (op.collective.group, members, self._times(rank, action, members))
        meeting = action.meeting = self.meetings.setdefault(key, Meeting(members, self.forms, op.collective))
        meeting.arrived[action.rank] = action
        if meeting.peer < 0:
            for member in meeting.arrived.values():
                member.begin_ns = self.now
            self.flows += meeting.begin_stage(self.now)

    @staticmethod
    def _end_flow(action: Action) -> None:
        action.flows -= 1

    @staticmethod
    def _times(rank: Rank, action: Action, members: tuple[int, ...]) -> int:
        """How many collectives a rank issued before on the same members of the group."""
        ops, graph = rank.given.graph.ops, rank.given.graph
        group = ops[action.a].collective.group  # type: ignore[union-attr]
        before = [a for a in rank.of(COMPUTE) if a.issue < action.issue and ops[a.a].collective is not None]
        same = [a for a in before if ops[a.a].collective.group == group]  # type: ignore[union-attr]
        return sum(members_of(graph, a.a, rank.number) == members for a in same)

    def _tell(self) -> Told:
        actions = [action for rank in self.ranks for action in rank.actions]
        is_done = all(a.has_ended for a in actions if a.kind in {COMPUTE, COPY, DETACH})
        is_done &= all(rank.has_issued_all for rank in self.ranks)
        spans = [
            (a.rank, a.issue, a.issued_ns or 0, self._began_ns(a), a.end_ns, a.channel)
            for a in actions
            if a.kind in {COMPUTE, COPY} and a.end_ns is not None
        ]
        makespan = max((span[4] for span in spans), default=0)
        spaces = [(rank.number, rank.addresses) for rank in self.ranks if rank.addresses is not None]
        return Told(
            status="ok" if is_done else "blocked",
            spans=spans,
            waits=sorted(row for ledger in self.ledgers for row in ledger.rows),
            residencies=sorted(row for rank in self.ranks for row in rank.rows),
            peaks={place: room.peak for place, room in self.rooms.items()},
            makespan_ns=makespan,
            step_ns=self._step_ns(makespan) if is_done else None,
            compactions=[
                (rank, c.asked_ns, c.start_ns, c.end_ns, c.pages) for rank, space in spaces for c in space.done
            ],
            addresses=sorted((rank, *row) for rank, space in spaces for row in space.rows),
        )

    @staticmethod
    def _began_ns(action: Action) -> int:
        """When its span begins: of a collective, with the last arrival [ns]."""
        return (action.start_ns if action.begin_ns is None else action.begin_ns) or 0

    def _step_ns(self, makespan: int) -> int | None:
        """Of one rank with a fixed plan, the distance of its last two ends of steps, or the makespan of one step.

        Where ops name streams, the first of these counts.
        """
        if len(self.ranks) > 1 or self.ranks[0].given.plan.fixed is None:
            return None
        computes = [a for rank in self.ranks for a in rank.of(COMPUTE)]
        if any(op.stream for op in self.ranks[0].given.graph.ops):
            computes = [a for a in computes if a.b == min(a.b for a in computes)]
        last = max((a.lap for a in computes), default=0)
        ends = [max((a.end_ns or 0 for a in computes if a.lap == lap), default=0) for lap in range(last + 1)]
        return ends[-1] - ends[-2] if last else makespan
