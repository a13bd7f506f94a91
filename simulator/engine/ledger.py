"""Why a compute stream waits: one root cause for every nanosecond, exact.

From the blocked op the walk goes to what it waits for, and from there on. If it passes a wait for room, the cause is
``capacity``; otherwise it is the first thing actually running: a ``transfer`` or the ``host``; or ``order`` if the
blocker is not yet eligible (it waits for a compute of another stream). The walk is repeated when the thing it ended
at changes, because nothing before that can change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulator.trace import CAUSES

if TYPE_CHECKING:
    from simulator.engine.host import Host
    from simulator.engine.link import LinkQueue, Transfer
    from simulator.engine.places import Detaching, Places
    from simulator.engine.stream import Stream

CAPACITY, TRANSFER, HOST, ORDER = (CAUSES.index(name) for name in ("capacity", "transfer", "host", "order"))


class Reason(NamedTuple):
    """Where a walk ended: the cause, the tensor that the op lacks, the link or tier, the tensor under way."""

    cause: int
    tensor: int = -1
    on: int = -1
    blocker: int = -1


class Waiting:
    """The present wait of one stream.

    Parameters
    ----------
    stream
        Whose waits these are.
    rows
        Flat list that takes the rows of the trace.
    """

    def __init__(self, stream: Stream, rows: list[int]) -> None:
        self._stream, self._rows = stream, rows
        self.is_open = False
        self._since = 0
        self._reason: Reason | None = None
        self._parts: list[tuple[int, int, Reason]] = []

    def look(self) -> None:
        """Walk to the cause of the present wait, and split the wait if the cause has changed."""
        reason = _walk(self._stream)
        if reason == self._reason:
            return
        self._close_part()
        self._reason, self.is_open = reason, reason is not None
        self._since = self._stream.places.rounds.env.now

    def _close_part(self) -> None:
        now = self._stream.places.rounds.env.now
        if self._reason is not None and now > self._since:
            self._parts.append((self._since, now, self._reason))

    def end(self, issue: int, op: int) -> None:
        """The stream starts this op: write its wait, if there was one."""
        self._close_part()
        self._reason, self.is_open = None, False
        if self._parts:
            stream = self._stream
            for start, end, (cause, tensor, on, blocker) in self._parts:
                self._rows += (stream.rank, stream.number, op, issue, start, end, cause, tensor, on, blocker)
            self._parts.clear()


def _walk(stream: Stream) -> Reason | None:
    """The root cause of the stream's wait; None if it has nothing left to run."""
    if not stream.queue:
        return _walk_host(stream)
    tensor = stream.lacks()
    if tensor < 0:
        return Reason(CAPACITY, on=stream.columns.compute_tier)
    return _walk_tensor(stream, stream.places, tensor, stream.queue[0][0])._replace(tensor=tensor)


def _walk_host(stream: Stream) -> Reason | None:
    host: Host = stream.host
    if host.finished:
        return None
    host.watchers.append(stream)
    if host.awaited >= 0:
        return _walk_tensor(stream, stream.places, host.awaited, None)._replace(tensor=host.awaited)
    return Reason(HOST if host.is_busy else ORDER)


def _walk_tensor(stream: Stream, places: Places, tensor: int, before: int | None) -> Reason:
    """Go on to the earliest copy or detach of the tensor, among those issued before, that has not ended."""
    step = places.pending(tensor, before)
    return Reason(ORDER) if step is None else _walk_step(stream, places, step)


def _walk_step(stream: Stream, places: Places, step: Transfer | Detaching) -> Reason:
    link: LinkQueue | None = getattr(step, "link", None)
    if link is None:
        return Reason(ORDER)
    if step in link.running:
        return _under_way(stream, link, step.tensor)
    if link.has_free_channel:
        return _walk_head(stream, places, link)
    return _under_way(stream, link, link.running[0].tensor)


def _under_way(stream: Stream, link: LinkQueue, blocker: int) -> Reason:
    link.watchers.append(stream)
    return Reason(TRANSFER, on=link.number, blocker=blocker)


def _walk_head(stream: Stream, places: Places, link: LinkQueue) -> Reason:
    """The first transfer of a link cannot start although a channel is free."""
    head = link.queue[0]
    link.watchers.append(stream)
    if link.is_gated(head):
        return Reason(ORDER)
    if link.lacks_tensor(head):
        return _walk_tensor(stream, places, head.tensor, head.key)
    return Reason(CAPACITY, on=head.target, blocker=head.tensor)
