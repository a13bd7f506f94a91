"""Rule 11: why streams wait. One root cause for every nanosecond, found anew whenever something has happened."""

from __future__ import annotations

from typing import Any

from simulator.engine.reference.actions import ComputeAction, CopyAction, Queue
from simulator.engine.reference.clock import ISSUE_MASK, LOOK
from simulator.engine.reference.host import HostThread
from simulator.engine.reference.rank import Rank
from simulator.trace import CAUSES, WAITS, packer

CAPACITY, TRANSFER, HOST, COMPACTION, PEER, ORDER, COLLECTIVE, HOST_COMPUTE = range(len(CAUSES))

_row = packer(WAITS)

Reason = tuple[int, int, int, int]
"""The end of a walk: columns ``cause``, ``tensor``, ``on`` and ``blocker`` of `WAITS`."""


class Ledger:
    """The waits of one rank's streams, each in parts with one cause.

    Parameters
    ----------
    rank, host
        The rank, and its host.
    rows
        Takes the rows of the trace.
    """

    def __init__(self, rank: Rank, host: HostThread, rows: bytearray) -> None:
        self._rank, self._host, self._rows = rank, host, rows
        self._reasons: list[Reason | None] = [None] * len(rank.streams)
        self._since = [0] * len(rank.streams)
        self._parts: list[list[tuple[int, int, Reason]]] = [[] for _ in rank.streams]
        self._looks = False

    def look_later(self) -> None:
        """Look once this instant is settled, as something has happened to the rank; but not if no stream waits."""
        if not self._looks and self._rank.idle:
            self._looks = True
            self._rank.clock.turn(LOOK, self._rank.id).callbacks.append(self._look)

    def _look(self, event: Any) -> None:
        """Find the causes of the present waits; begin a new part where one has changed."""
        self._looks = False
        for stream, queue in enumerate(self._rank.streams):
            if not queue.running:
                reason = self._reason(stream)
                if reason != self._reasons[stream]:
                    self._close_part(stream)
                    self._reasons[stream] = reason

    def _close_part(self, stream: int) -> None:
        """Close the part of the wait that has the last cause."""
        now, reason = self._rank.clock.now, self._reasons[stream]
        if reason is not None and now > self._since[stream]:
            self._parts[stream].append((self._since[stream], now, reason))
        self._since[stream] = now

    def end(self, compute: ComputeAction) -> None:
        """Write the parts of the wait, which ends as its stream starts this compute."""
        stream = compute.stream
        self._close_part(stream)
        for start, end, reason in self._parts[stream]:
            self.write(compute, start, end, reason)
        self._parts[stream].clear()
        self._reasons[stream] = None

    def write(self, compute: ComputeAction, start_ns: int, end_ns: int, reason: Reason) -> None:
        """Write a part of the wait for a compute: before it started, or for its peers."""
        row = (compute.op, compute.key & ISSUE_MASK, start_ns, end_ns, *reason)
        self._rows += _row(self._rank.id, compute.stream, *row)

    def _reason(self, stream: int) -> Reason | None:
        """Walk from a stream's head to what it waits for; None if it has nothing left to run."""
        rank, host, waiting = self._rank, self._host, self._rank.streams[stream].waiting
        if not waiting and host.finished:
            return None
        gate = rank.gate_of(waiting[0]) if waiting else rank.gate
        if gate.opens is not None and (waiting or host.awaited >= 0):
            return COMPACTION, -1, rank.tier, -1
        return self._walk(rank.streams[stream])

    def _walk(self, queue: Queue) -> Reason:
        """Follow what the head of a stream waits for, from stream to stream."""
        rank, passed = self._rank, list[Queue]()
        while queue not in passed:
            if passed and queue.running:
                return self._reason_of_running(queue.running[0])
            if not queue.waiting:
                return self._reason_of_host()
            passed.append(queue)
            head: ComputeAction = queue.waiting[0]
            streams = [other.stream for other in head.after if not other.has_ended]
            if streams:
                queue = rank.streams[min(streams)]
                continue
            lacked = rank.lacked_tensor(head)
            if lacked is not None:
                return self._reason_of_tensor(lacked, head.key)
            if ahead := rank.ahead_in_line(head):
                first = min((other.queue for other in ahead), key=lambda queue: queue.waiting[0].key).waiting[0]
                if isinstance(first, CopyAction):
                    return self._reason_of_tensor(first.tensor, head.key)
                queue = first.queue
        return CAPACITY, -1, head.tier, -1

    def _reason_of_running(self, compute: ComputeAction) -> Reason:
        """Return the cause of a wait for a compute that another stream runs."""
        if compute.meeting is None:
            if compute.tier != self._rank.tier:
                return HOST_COMPUTE, -1, -1, compute.op
            is_collective = self._rank.columns.is_collective[compute.op]
            return (COLLECTIVE, -1, -1, compute.op) if is_collective else (ORDER, -1, -1, -1)
        peer = compute.meeting.peer
        return (PEER, -1, peer, -1) if peer >= 0 else (COLLECTIVE, -1, -1, compute.op)

    def _reason_of_host(self) -> Reason:
        """Return the cause of a wait for a compute that the host has not issued."""
        host = self._host
        if host.awaited >= 0:
            return self._reason_of_tensor(host.awaited, None)
        return HOST if host.pays else ORDER, -1, -1, -1

    def _reason_of_tensor(self, lacked: int, before: int | None) -> Reason:
        """Return the cause of a wait for a tensor: follow its first copy under way or in line."""
        rank, tensor = self._rank, lacked
        while copy := next((c for c in rank.transfers.get(tensor, ()) if before is None or c.key < before), None):
            if copy.has_started:
                return TRANSFER, lacked, copy.link.index, tensor
            if not copy.queue.free:
                first = copy.queue.running[0]
                return TRANSFER, lacked, first.link.index, first.tensor
            head: CopyAction = copy.queue.waiting[0]
            before, tensor = head.key, head.tensor
            if rank.ahead_of(head):
                break
            if not rank.lacks_source(head):
                return CAPACITY, lacked, head.link.target, tensor
            computes = [action for action in head.after if isinstance(action, ComputeAction)]
            makers = [maker.queue for maker in computes if not maker.has_ended and maker.tier != rank.tier]
            if makers:
                return self._reason_of_running(makers[0].running[0]) if makers[0].running else self._walk(makers[0])
        return ORDER, lacked, -1, -1
