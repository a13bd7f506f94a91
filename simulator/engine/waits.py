"""Finds why streams wait: one root cause for every nanosecond (the ledger), and sentences if the run is blocked.

The ledger walks from the waiting op along what each thing waits for. If it comes to a wait for room, the cause is
``capacity``. Else it is the first thing under way: a ``transfer``, the ``host``, a ``collective``, or the wait for a
``peer`` that has not arrived at one; or ``order``, if the last thing waits for a compute of another stream. Standing in
line for room behind another stream's compute, or a copy that it needs, is no wait for room, as there may be plenty: the
walk goes on to what that waits for. A walk is repeated when something that it passed starts, ends, or was tried and
could not start, because nothing else can change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from simulator.engine.event_loop import ISSUE_MASK, Watchers
from simulator.engine.host import HostThread
from simulator.engine.link import LinkQueue
from simulator.engine.places import Places, Transfer
from simulator.engine.stream import Queued, Stream
from simulator.graph import Graph
from simulator.trace import CAUSES, WAITS, packer
from simulator.units import human

_NAMES = ("capacity", "transfer", "host", "order", "peer", "collective", "compaction")
CAPACITY, TRANSFER, HOST, ORDER, PEER, COLLECTIVE, COMPACTION = (CAUSES.index(name) for name in _NAMES)

_row = packer(WAITS)

_LARGEST = 3
"""A sentence about a wait for room names this many of the tensors that hold it: the largest."""

Reason = tuple[int, int, int, int]
"""The end of a walk: columns ``cause``, ``tensor``, ``on`` and ``blocker`` of `WAITS`."""


class Ledger:
    """The account of one stream's waits: it holds the current wait, in parts with one cause each.

    Parameters
    ----------
    stream, host
        The stream, and the host that issues its computes.
    rows
        Takes the rows of the trace.

    Attributes
    ----------
    is_open
        Whether the stream waits.
    """

    def __init__(self, stream: Stream, host: HostThread, rows: bytearray) -> None:
        self._stream, self._host, self._rows = stream, host, rows
        self.is_open, self._since = False, 0
        self._reason: Reason | None = None
        self._parts: list[tuple[int, int, Reason]] = []

    def look(self) -> None:
        """Find the cause of the current wait, if there is one; begin a new part if the cause has changed."""
        if self._stream.running is None:
            reason = self._find_reason()
            if reason != self._reason:
                self._close_part()
                self._reason, self.is_open = reason, True

    def _close_part(self) -> None:
        """Close the part of the wait that has the last cause."""
        now = self._stream.places.rounds.clock.now
        if self._reason is not None and now > self._since:
            self._parts.append((self._since, now, self._reason))
        self._since = now

    def end(self, issue: int, op: int) -> None:
        """Write the parts of the wait, which ends as the stream starts this op."""
        self._close_part()
        for start, end, reason in self._parts:
            self._rows += _row(self._stream.rank, self._stream.index, op, issue, start, end, *reason)
        self._parts.clear()
        self._reason, self.is_open = None, False

    def add(self, start_ns: int, end_ns: int, reason: Reason) -> None:
        """Write a wait of the running collective for a peer, after it arrived and before it started."""
        if self._stream.running is not None:
            key, op, _, _, _ = self._stream.running
            row = (op, key & ISSUE_MASK, start_ns, end_ns, *reason)
            self._rows += _row(self._stream.rank, self._stream.index, *row)

    def _watch(self, watchers: Watchers) -> None:
        """Look again when the thing that these watchers watch changes."""
        if self not in watchers:
            watchers.append(self)

    def _find_reason(self) -> Reason | None:
        """Find the root cause of the stream's wait; None if it has nothing left to run."""
        stream, host = self._stream, self._host
        if stream.gate.is_closed and (stream.is_issued if stream.queue else host.awaited >= 0 and not host.finished):
            return COMPACTION, -1, stream.columns.compute_tier, -1
        passed: list[Stream] = []
        while stream not in passed:
            if passed:
                self._watch(stream.watchers)
                if stream.running is not None:
                    return self._reason_of_running(stream, stream.running[1])
            if not stream.is_issued:
                return self._reason_of_host()
            passed.append(stream)
            ahead = stream.awaited()
            if isinstance(ahead, LinkQueue):
                return self._reason_of_tensor(ahead.queue[0][1].tensor, stream.queue[0][0])
            if isinstance(ahead, Stream):
                stream = ahead
            elif lacked := stream.lacked_tensor():
                return self._reason_of_tensor(lacked[0], stream.queue[0][0])
        return CAPACITY, -1, stream.columns.compute_tier, -1

    def _reason_of_running(self, stream: Stream, op: int) -> Reason:
        """Return the cause of a wait for an op that another stream runs."""
        meeting = stream.meeting
        if meeting is None:
            return (COLLECTIVE, -1, -1, op) if stream.columns.is_collective[op] else (ORDER, -1, -1, -1)
        self._watch(meeting.watchers)
        return (PEER, -1, meeting.peer, -1) if meeting.peer >= 0 else (COLLECTIVE, -1, -1, op)

    def _reason_of_host(self) -> Reason | None:
        """Return the cause of a wait for an op that the host has not issued; None if it has issued all."""
        host = self._host
        if not self._stream.queue and host.finished:
            return None
        self._watch(host.watchers)
        if host.awaited >= 0:
            return self._reason_of_tensor(host.awaited, None)
        return HOST if host.is_ahead else ORDER, -1, -1, -1

    def _reason_of_tensor(self, lacked: int, before: int | None) -> Reason:
        """Return the cause of a wait for a tensor: follow its first transfer, and what that waits for."""
        tensor, places = lacked, self._stream.places
        while transfer := places.first_transfer(tensor, before):
            link: LinkQueue = transfer[1].link
            self._watch(link.watchers)
            if any(channel.transfer is transfer for channel in link.running):
                return TRANSFER, lacked, link.index, tensor
            if not link.free:
                under_way = link.running[0]
                return TRANSFER, lacked, under_way.link.index, under_way.transfer[1].tensor
            before, head, _, lap = link.queue[0]
            tensor = head.tensor
            if head.link.is_early(head, lap):
                break
            if not head.link.lacks_tensor(head, lap):
                return CAPACITY, lacked, head.link.target, tensor
        return ORDER, lacked, -1, -1


class Explainer:
    """Explains why one rank is blocked.

    Parameters
    ----------
    graph
        For names.
    places, streams, links
        The rank's state once nothing could move.
    """

    def __init__(self, graph: Graph, places: Places, streams: list[Stream], links: list[LinkQueue]) -> None:
        self._graph, self._places, self._streams, self._links = graph, places, streams, links

    def sentences(self, host: HostThread) -> tuple[list[str], list[str]]:
        """Return sentences on what the rank lacks itself, and on which ranks it waits for.

        Both are empty if the host has issued all actions and all of them have ended.
        """
        peers = list[str]()
        for stream in self._streams:
            if stream.running is not None and (meeting := stream.meeting):
                group = stream.columns.roles.calls[stream.running[1]].group
                name = self._op_name(stream.running)
                peers.append(f"{name} waits for rank {meeting.peer} to come to the collective of group {group!r}")
        stuck = [stream for stream in self._streams if stream.running is None and stream.queue]
        stuck.sort(key=lambda stream: stream.queue[0][0])
        sentences = [*chain.from_iterable(map(self._about_compute, stuck))]
        if host.awaited >= 0:
            sentences.append(f"the host waits at a sync for {self._name(host.awaited)}")
            sentences += self._about_tensor(host.awaited, None)
        sentences += chain.from_iterable(self._about_copy(link.queue[0]) for link in self._links if link.queue)
        if not sentences and not peers:
            unsettled = sorted(self._places.waiters)
            sentences = [f"an action that names {self._name(t)} waits for its earlier users" for t in unsettled]
        if not sentences and not peers and not host.finished:
            sentences = ["the host could not issue its next action"]
        return [*dict.fromkeys(sentences)], peers  # chains of several heads may join

    def _name(self, tensor: int) -> str:
        return repr(self._graph.tensors[tensor].name)

    def _op_name(self, queued: Queued) -> str:
        return f"op {self._graph.ops[queued[1]].name!r} (action {queued[0] & ISSUE_MASK})"

    def _about_compute(self, stream: Stream) -> Iterator[str]:
        """Explain why a stream's head cannot start; not if it waits for another stream or a link, explained itself."""
        name, lacked = self._op_name(stream.queue[0]), stream.lacked_tensor()
        if stream.awaited():
            return
        if lacked is None:
            yield self._about_room(name, stream.columns.compute_tier, stream.room_bytes())
        else:
            yield f"{name} waits for tensor {self._name(lacked[0])}"
            yield from self._about_tensor(lacked[0], stream.queue[0][0])

    def _about_tensor(self, tensor: int, before: int | None) -> Iterator[str]:
        transfer = self._places.first_transfer(tensor, before)
        if transfer is None:
            yield f"no action that was issued brings tensor {self._name(tensor)}"
            return
        head = transfer[1].link.queue[0]
        if head is not transfer:
            copy = f"the copy of {self._name(tensor)} (action {transfer[0] & ISSUE_MASK})"
            yield f"{copy} is behind action {head[0] & ISSUE_MASK} in its channel"
        yield from self._about_copy(head)

    def _about_copy(self, head: Transfer) -> Iterator[str]:
        """Explain why a link's head cannot start."""
        link, tensor, tiers = head[1].link, head[1].tensor, self._places.tiers
        way = f"from {tiers[link.source].name} to {tiers[link.target].name}"
        copy = f"the copy of {self._name(tensor)} {way} (action {head[0] & ISSUE_MASK})"
        if link.is_early(head[1], head[3]):
            yield f"{copy} waits for what was issued before it"
        elif link.lacks_tensor(head[1], head[3]):
            yield f"{copy} waits for its source"
            yield from self._about_tensor(tensor, head[0])
        else:
            yield self._about_room(copy, link.target, self._places.size_bytes[tensor])

    def _about_room(self, action: str, tier: int, size: int) -> str:
        instance = self._places.tiers[tier]
        held = [t for t, flag in enumerate(self._places.held[tier]) if flag]
        held.sort(key=lambda t: (-self._places.size_bytes[t], t))
        largest = ", ".join(f"{self._name(t)} {human(self._places.size_bytes[t], 'B')}" for t in held[:_LARGEST])
        used, capacity = human(instance.used, "B"), human(instance.capacity, "B")
        return (
            f"{action} waits for {human(size, 'B')} of room in {instance.name}: {used} of {capacity} are held"
            f"{instance.address_text}, largest {largest or 'nothing'}; no issued detach will free more, so detach "
            "something before it, or give more room"
        )
