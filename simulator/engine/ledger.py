"""Why a compute stream waits: one root cause for every nanosecond, exact.

From the blocked op the walk goes to what it waits for, and from there on. If it passes a wait for room, the cause is
``capacity``; otherwise it is the first thing actually running: a ``transfer`` or the ``host``; or ``order`` if the
blocker is not yet eligible (it waits for a compute of another stream). The walk is repeated when the thing it ended
at changes, because nothing before that can change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.trace import CAUSES, WAITS, packer

if TYPE_CHECKING:
    from simulator.engine.host import Host
    from simulator.engine.link import Transfer
    from simulator.engine.stream import Stream

CAPACITY, TRANSFER, HOST, ORDER = (CAUSES.index(name) for name in ("capacity", "transfer", "host", "order"))

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
        reason = _walk(self._stream)
        if reason != self._reason:
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


def _walk(stream: Stream) -> Reason | None:
    """The root cause of the stream's wait; None if it has nothing left to run."""
    if not stream.queue or not stream.is_issued:
        return _walk_host(stream)
    tensor = stream.lacking
    if tensor < 0:
        return CAPACITY, -1, stream.columns.compute_tier, -1
    cause, on, blocker = _walk_tensor(stream, tensor, stream.queue[0][0])
    return cause, tensor, on, blocker


def _watch(watchers: list[Stream], stream: Stream) -> None:
    """Have the stream account anew when the watched thing changes; once is enough."""
    if stream not in watchers:
        watchers.append(stream)


def _walk_host(stream: Stream) -> Reason | None:
    host: Host = stream.host
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
    if link.lacks_tensor(head):
        return _walk_tensor(stream, head[1].tensor, head[0])
    return CAPACITY, link.target, head[1].tensor
