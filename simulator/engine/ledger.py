"""Why a compute stream waits: one root cause for every nanosecond, exact.

From the blocked op the walk goes to what it waits for, and from there on. If it passes a wait for room, the cause is
``capacity``; otherwise it is the first thing actually running: a ``transfer``, the ``host``, a ``collective``, or the
``peer`` that has not come to one; or ``order`` if the blocker is not yet eligible (it waits for a compute of another
stream). To stand in line for room behind a compute of another stream that has not started is no wait for room: there
may be plenty. The walk goes on to what that compute waits for. It is repeated when the thing it ended at changes,
because nothing before that can change.
"""

from __future__ import annotations

from typing import cast

from simulator.engine.link import Transfer
from simulator.engine.stream import Stream
from simulator.engine.waits import ISSUE_MASK, Accountable
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
    stream
        Whose waits these are.
    rows
        Takes the rows of the trace.
    """

    __slots__ = (
        "_parts",
        "_reason",
        "_rows",
        "_since",
        "_stream",
        "is_open",
    )

    def __init__(self, stream: Stream, rows: bytearray) -> None:
        self._stream, self._rows = stream, rows
        self.is_open = False
        self._since = 0
        self._reason: Reason | None = None
        self._parts: list[tuple[int, int, Reason]] = []

    def look(self) -> None:
        """Walk to the cause of the present wait, and split the wait if the cause has changed."""
        reason = walk(self._stream)
        if reason != self._reason:
            self._split(reason)

    def _split(self, reason: Reason | None) -> None:
        """From now on there is another cause."""
        now = self._stream.places.rounds.clock.now
        if self._reason is not None and now > self._since:
            self._parts.append((self._since, now, self._reason))
        self._reason, self._since, self.is_open = reason, now, True

    def end(self, issue: int, op: int) -> None:
        """The stream starts this op: write its wait, if there was one."""
        stream, now, rows = self._stream, self._stream.places.rounds.clock.now, self._rows
        for start, end, reason in self._parts:
            rows += _row(stream.rank, stream.number, op, issue, start, end, *reason)
        self._parts.clear()
        if self._reason is not None and now > self._since:
            rows += _row(stream.rank, stream.number, op, issue, self._since, now, *self._reason)
        self._reason, self.is_open = None, False

    def add(self, start_ns: int, end_ns: int, reason: Reason) -> None:
        """Write a wait of the running op: it has come to a meeting that had not begun."""
        if self._stream.running is not None:
            key, op, _, _, _ = self._stream.running
            issue = key & ISSUE_MASK
            self._rows += _row(self._stream.rank, self._stream.number, op, issue, start_ns, end_ns, *reason)


def walk(stream: Stream) -> Reason | None:
    """Walk to the root cause of the stream's wait; None if it has nothing left to run."""
    if stream.is_stopped and _is_ready(stream):
        return COMPACTION, -1, stream.columns.compute_tier, -1
    if not stream.queue or not stream.is_issued:
        return _walk_host(stream)
    if stream.behind is not None:
        return _walk_stream(stream, stream.behind)
    tensor = stream.lacking
    if tensor < 0:
        ahead = ahead_in_line(stream)
        return (CAPACITY, -1, stream.columns.compute_tier, -1) if ahead is None else _walk_stream(stream, ahead)
    cause, on, blocker = _walk_tensor(stream, tensor, stream.queue[0][0])
    return cause, tensor, on, blocker


def _is_ready(stream: Stream) -> bool:
    """Whether the stream's head is issued, or the host waits for the device."""
    return stream.is_issued if stream.queue else stream.host.awaited >= 0 and not stream.host.finished


def ahead_in_line(stream: Stream) -> Stream | None:
    """The stream of a compute that takes room before the head and has not started; None if the head lacks room."""
    _, _, step, _, lap = stream.queue[0]
    if step.line and stream.room_bytes():
        for other, number in step.line:
            if other.started < number + lap * other.per_lap:
                return cast(Stream, other)
    return None


def _walk_stream(stream: Stream, other: Stream) -> Reason:
    """Go on to a compute of another stream that must end first: what it does now, or what it waits for."""
    seen = [stream]
    while other not in seen:
        seen.append(other)
        _watch(other.watchers, stream)
        if other.running is not None:
            meeting, op = other.meeting, other.running[1]
            if meeting is None:
                return (COLLECTIVE, -1, -1, op) if other.columns.is_collective[op] else (ORDER, -1, -1, -1)
            _watch(meeting.watchers, stream)
            return (PEER, -1, meeting.peer, -1) if meeting.peer >= 0 else (COLLECTIVE, -1, -1, op)
        following = _follow(other)
        if following is None:
            break
        other = following
    if not other.queue or other.lacking < 0 or not other.is_issued:
        return _walk_idle(stream, other)
    cause, on, blocker = _walk_tensor(stream, other.lacking, other.queue[0][0])
    return cause, other.lacking, on, blocker


def _follow(stream: Stream) -> Stream | None:
    """The stream that the head waits for, if it is a compute of another stream that must end, or start, first."""
    if not stream.queue or not stream.is_issued or stream.behind is not None:
        return stream.behind if stream.queue else None
    return ahead_in_line(stream) if stream.lacking < 0 else None


def _walk_idle(stream: Stream, other: Stream) -> Reason:
    """The other stream's head waits for room, or has not been issued."""
    if other.queue and other.is_issued:
        return CAPACITY, -1, other.columns.compute_tier, -1
    return _walk_host(stream) or (ORDER, -1, -1, -1)


def _watch(watchers: list[Accountable], stream: Stream) -> None:
    """Have the stream account anew when the watched thing changes; once is enough."""
    if stream not in watchers:
        watchers.append(stream)


def _walk_host(stream: Stream) -> Reason | None:
    host = stream.host
    if not stream.queue and host.finished:
        return None
    _watch(host.watchers, stream)
    if host.awaited < 0:
        return HOST if host.is_ahead else ORDER, -1, -1, -1
    cause, on, blocker = _walk_tensor(stream, host.awaited, None)
    return cause, host.awaited, on, blocker


Ending = tuple[int, int, int]
"""The cause, the link or tier (or -1), and the tensor under way (or -1)."""


def _walk_tensor(stream: Stream, tensor: int, before: int | None) -> Ending:
    """Go on to the earliest transfer of the tensor, among those issued before, that has not ended."""
    transfer = stream.places.first_transfer(tensor, before)
    if transfer is None:
        return ORDER, -1, -1
    link = transfer[1].link
    _watch(link.watchers, stream)
    for channel in link.running:
        if channel.transfer is transfer:
            return TRANSFER, link.number, tensor
    if link.free:
        return _walk_head(stream, link.queue[0])
    under_way = link.running[0]
    return TRANSFER, under_way.link.number, under_way.transfer[1].tensor


def _walk_head(stream: Stream, head: Transfer) -> Ending:
    """The first transfer of a queue cannot start although a channel is free."""
    link = head[1].link
    if link.is_gated(head):
        return ORDER, -1, -1
    if link.lacks_tensor(head[1], head[2]):
        return _walk_tensor(stream, head[1].tensor, head[0])
    return CAPACITY, link.target, head[1].tensor
