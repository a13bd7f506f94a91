"""Why a stream waits (rule 11): one root cause at every instant."""

from __future__ import annotations

from typing import NamedTuple

from oracle.order import Action
from oracle.ranks import Rank
from simulator.plan import COMPUTE, COPY


class Reason(NamedTuple):
    """The end of a walk: its cause, what the op lacks, on what it waits, and whose transfer or collective it is."""

    cause: str
    tensor: int = -1
    on: int = -1
    blocker: int = -1


class Wait(NamedTuple):
    """A stretch in which a stream waited to run a compute."""

    rank: int
    stream: int
    op: int
    issue: int
    start_ns: int
    end_ns: int
    reason: Reason


class Ledger:
    """The waits of one stream of a rank."""

    def __init__(self, rank: Rank, stream: int) -> None:
        self.rank, self.stream = rank, stream
        self.parts: list[tuple[int, int, Reason]] = []
        self.told: Action | None = None
        self.rows: list[Wait] = []
        self.looked: dict[int, list[int]] = {}

    def look(self, then: int) -> None:
        """Write down why the stream waits from now on, until something happens."""
        rank, now = self.rank, self.rank.now
        running = rank.runs(self.stream)
        if running is None:
            reason = self._reason()
        elif running.meeting is not None and running.meeting.peer >= 0:
            reason = Reason("peer", on=running.meeting.peer)
        else:
            reason = None
        if reason is not None and then > now:
            last = self.parts.pop() if self.parts and self.parts[-1][1:] == (now, reason) else (now, now, reason)
            self.parts.append((last[0], then, reason))

    def close(self) -> None:
        """Write the waits before a compute that has started since, and those of a collective that has begun since."""
        running = self.rank.runs(self.stream)
        if running is not None and (running is not self.told or running.begin_ns is not None):
            self.told = running
            self.rows += [Wait(self.rank.number, self.stream, running.a, running.issue, *part) for part in self.parts]
            self.parts.clear()

    def _reason(self) -> Reason | None:
        """Walk from the stream's head to what it waits for; None if nothing is left to run."""
        rank, stream = self.rank, self.stream
        head = self._head(stream)
        is_compacted = rank.addresses is not None and rank.addresses.compaction is not None
        if is_compacted and (head is not None or rank.awaited is not None):
            return Reason("compaction", on=rank.tier)
        return self._reason_of_host() if head is None else self._walk(head)

    def _walk(self, head: Action) -> Reason:
        """Walk on from the head of a stream."""
        rank = self.rank
        while True:
            computes = rank.awaited_computes(head)
            lacked = [] if computes else self._in_order(head)
            if not computes and not lacked and (ahead := rank.ahead_in_line(head)):
                first = min((self._first_waiting(action) for action in ahead), key=lambda action: action.issue)
                if first.kind == COPY:
                    return self._reason_of_tensor(first.a, head.issue)
                computes = [first]
            if computes:
                stream = min(compute.b for compute in computes)
                running = rank.runs(stream)
                if running is not None:
                    return self._reason_of_running(running)
                before, head = head, self._head(stream)
                assert head is not None
                assert head.issue < before.issue
            elif lacked:
                return self._reason_of_tensor(lacked[0], head.issue)
            else:
                return Reason("capacity", on=rank.tier_of(head))

    def _first_waiting(self, action: Action) -> Action:
        """The head of the queue that an action waits in."""
        queue = (
            self.rank.queue(action) if action.kind == COPY else [a for a in self.rank.of(COMPUTE) if a.b == action.b]
        )
        return next(a for a in queue if not a.has_started)

    def _head(self, stream: int) -> Action | None:
        return next((a for a in self.rank.heads() if (a.kind, a.b) == (COMPUTE, stream)), None)

    def _in_order(self, head: Action) -> list[int]:
        """What a head lacks, in the order of the last copies that had not ended as its turn came."""
        lacked = self.rank.lacked(head)
        if head.issue not in self.looked:
            copies = [a for a in self.rank.of(COPY) if a.issue < head.issue and not a.has_ended]
            last = {a.a: a.issue for a in copies}
            self.looked[head.issue] = sorted(lacked, key=lambda t: (t not in last, last.get(t, 0), t))
        return [t for t in self.looked[head.issue] if t in lacked]

    def _reason_of_stream(self, stream: int) -> Reason:
        """What a stream runs, or what its head waits for."""
        running, head = self.rank.runs(stream), self._head(stream)
        if running is not None:
            return self._reason_of_running(running)
        assert head is not None
        return self._walk(head)

    def _reason_of_running(self, running: Action) -> Reason:
        """Another stream runs something: a collective, perhaps not yet, or a compute."""
        if self.rank.given.graph.ops[running.a].device == "host":
            return Reason("host_compute", blocker=running.a)
        if running.meeting is None:
            return Reason("order")
        peer = running.meeting.peer
        return Reason("peer", on=peer) if peer >= 0 else Reason("collective", blocker=running.a)

    def _reason_of_host(self) -> Reason | None:
        rank = self.rank
        if rank.has_issued_all:
            return None
        if rank.awaited is not None:
            return self._reason_of_tensor(rank.awaited, len(rank.actions))
        return Reason("host") if rank.host_ns > rank.now else Reason("order")

    def _reason_of_tensor(self, lacked: int, before: int) -> Reason:
        """Follow the first copy of a tensor that has not ended, and what that waits for."""
        rank, tensor = self.rank, lacked
        index = list(rank.hardware.links).index
        while True:
            copies = [a for a in rank.of(COPY) if a.a == tensor and a.issue < before]
            copy = next((a for a in copies if not a.has_ended), None)
            if copy is None:
                return Reason("order", lacked)
            if copy.has_started:
                return Reason("transfer", lacked, index(rank.link(copy)), tensor)
            queue = rank.queue(copy)
            if not rank.free_channels(copy):
                first = min((a for a in queue if a.is_under_way), key=lambda a: (a.start_ns, a.issue))
                return Reason("transfer", lacked, index(rank.link(first)), first.a)
            head = self._first_waiting(copy)
            if not rank.is_eligible(head):
                return Reason("order", lacked)
            if rank.has_source(head):
                return Reason("capacity", lacked, head.c, head.a)
            makers = [a.b for a in head.after if a.kind == COMPUTE and not a.has_ended and rank.tier_of(a) != rank.tier]
            if makers:
                return self._reason_of_stream(min(makers))
            tensor, before = head.a, head.issue
