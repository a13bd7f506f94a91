"""Why a compute stream waits: one root cause for every nanosecond, exact.

From the blocked op the walk goes to what it waits for, and from there on. If it passes a wait for room, the cause is
``capacity``; otherwise it is the first thing actually running: a ``transfer``, the ``host``, a ``collective``, or the
``peer`` that has not come to one; or ``order`` if the blocker is not yet eligible (it waits for a compute of another
stream). To stand in line for room behind a compute of another stream that has not started is no wait for room: there
may be plenty. The walk goes on to what that compute waits for. It is repeated when the thing it ended at changes,
because nothing before that can change.
"""

from __future__ import annotations

from simulator.engine.host import Host
from simulator.engine.link import LinkQueue
from simulator.engine.rounds import ISSUE_MASK, Watchers
from simulator.engine.stream import Stream
from simulator.trace import CAUSES, WAITS, packer

_NAMES = ("capacity", "transfer", "host", "order", "peer", "collective", "compaction")
CAPACITY, TRANSFER, HOST, ORDER, PEER, COLLECTIVE, COMPACTION = (CAUSES.index(name) for name in _NAMES)

_row = packer(WAITS)

Reason = tuple[int, int, int, int]
"""Where a walk ended: the cause, the tensor that the op lacks (or -1), the link or tier, the tensor under way."""


class Waiting:
    """The present wait of one stream.

    Parameters
    ----------
    stream, host
        Whose waits these are, and who issues there.
    rows
        Takes the rows of the trace.

    Attributes
    ----------
    is_open
        Whether the stream waits.
    """

    def __init__(self, stream: Stream, host: Host, rows: bytearray) -> None:
        self._stream, self._host, self._rows = stream, host, rows
        self.is_open, self._since = False, 0
        self._reason: Reason | None = None
        self._parts: list[tuple[int, int, Reason]] = []

    def look(self) -> None:
        """Walk to the cause of the present wait, if there is one, and split the wait if the cause has changed."""
        if self._stream.running is None:
            reason = self._walk()
            if reason != self._reason:
                self._split()
                self._reason, self.is_open = reason, True

    def _split(self) -> None:
        """From now on there is another cause."""
        now = self._stream.places.rounds.clock.now
        if self._reason is not None and now > self._since:
            self._parts.append((self._since, now, self._reason))
        self._since = now

    def end(self, issue: int, op: int) -> None:
        """Write the wait: the stream starts this op."""
        self._split()
        for start, end, reason in self._parts:
            self._rows += _row(self._stream.rank, self._stream.number, op, issue, start, end, *reason)
        self._parts.clear()
        self._reason, self.is_open = None, False

    def add(self, start_ns: int, end_ns: int, reason: Reason) -> None:
        """Write a wait of the running op: it has come to a meeting that had not begun."""
        if self._stream.running is not None:
            key, op, _, _, _ = self._stream.running
            row = (op, key & ISSUE_MASK, start_ns, end_ns, *reason)
            self._rows += _row(self._stream.rank, self._stream.number, *row)

    def _watch(self, watchers: Watchers) -> None:
        """Look again when the watched thing changes; once is enough."""
        if self not in watchers:
            watchers.append(self)

    def _walk(self) -> Reason | None:
        """Walk to the root cause of the stream's wait; None if it has nothing left to run."""
        stream, host = self._stream, self._host
        if stream.is_stopped and (stream.is_issued if stream.queue else host.awaited >= 0 and not host.finished):
            return COMPACTION, -1, stream.columns.compute_tier, -1
        passed: list[Stream] = []
        while stream not in passed:
            if passed:
                self._watch(stream.watchers)
                if stream.running is not None:
                    return self._walk_running(stream, stream.running[1])
            if not stream.is_issued:
                return self._walk_host()
            passed.append(stream)
            if before := stream.behind():
                stream = before
            elif lacked := stream.lacks():
                return self._walk_tensor(lacked[0], stream.queue[0][0])
        return CAPACITY, -1, stream.columns.compute_tier, -1

    def _walk_running(self, stream: Stream, op: int) -> Reason:
        """Another stream must end first what it runs."""
        meeting = stream.meeting
        if meeting is None:
            return (COLLECTIVE, -1, -1, op) if stream.columns.is_collective[op] else (ORDER, -1, -1, -1)
        self._watch(meeting.watchers)
        return (PEER, -1, meeting.peer, -1) if meeting.peer >= 0 else (COLLECTIVE, -1, -1, op)

    def _walk_host(self) -> Reason | None:
        """The host has not issued what would run next."""
        host = self._host
        if not self._stream.queue and host.finished:
            return None
        self._watch(host.watchers)
        if host.awaited >= 0:
            return self._walk_tensor(host.awaited, None)
        return HOST if host.is_ahead else ORDER, -1, -1, -1

    def _walk_tensor(self, lacked: int, before: int | None) -> Reason:
        """Go on to the earliest transfer of a tensor, among those issued before, that has not ended."""
        tensor, places = lacked, self._stream.places
        while transfer := places.first_transfer(tensor, before):
            link: LinkQueue = transfer[1].link
            self._watch(link.watchers)
            if any(channel.transfer is transfer for channel in link.running):
                return TRANSFER, lacked, link.number, tensor
            if not link.free:
                under_way = link.running[0]
                return TRANSFER, lacked, under_way.link.number, under_way.transfer[1].tensor
            before, head, _, lap = link.queue[0]
            tensor = head.tensor
            if head.link.is_gated(head, lap):
                break
            if not head.link.lacks_tensor(head, lap):
                return CAPACITY, lacked, head.link.target, tensor
        return ORDER, lacked, -1, -1
