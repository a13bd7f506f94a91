"""Causes of waits: one root cause for every nanosecond of a stream (the ledger); and why a run is blocked for good.

The ledger starts at the blocked op and follows what each thing waits for. If it passes a wait for room, the cause is
``capacity``; otherwise it is the first thing that is running: a ``transfer``, the ``host``, a ``collective``, or the
``peer`` that has not come to one; or ``order`` if the blocker is not yet eligible (it waits for a compute of another
stream). To stand in line for room behind a compute of another stream that has not started is no wait for room: there
may be plenty. The ledger goes on to what that compute waits for. It looks again when the thing at which it ended
changes, because nothing before that can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
"""A blocked wait for room names so many of the tensors that hold it."""

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

    def __init__(self, stream: Stream, host: HostThread, rows: bytearray) -> None:
        self._stream, self._host, self._rows = stream, host, rows
        self.is_open, self._since = False, 0
        self._reason: Reason | None = None
        self._parts: list[tuple[int, int, Reason]] = []

    def look(self) -> None:
        """Find the cause of the present wait, if there is one; split the wait where the cause has changed."""
        if self._stream.running is None:
            reason = self._find_reason()
            if reason != self._reason:
                self._close_part()
                self._reason, self.is_open = reason, True

    def _close_part(self) -> None:
        """Close the part of the wait that the last cause explains."""
        now = self._stream.places.rounds.clock.now
        if self._reason is not None and now > self._since:
            self._parts.append((self._since, now, self._reason))
        self._since = now

    def end(self, issue: int, op: int) -> None:
        """Write the wait: the stream starts this op."""
        self._close_part()
        for start, end, reason in self._parts:
            self._rows += _row(self._stream.rank, self._stream.index, op, issue, start, end, *reason)
        self._parts.clear()
        self._reason, self.is_open = None, False

    def add(self, start_ns: int, end_ns: int, reason: Reason) -> None:
        """Write a wait of the running op, which had come to a meeting before it began."""
        if self._stream.running is not None:
            key, op, _, _, _ = self._stream.running
            row = (op, key & ISSUE_MASK, start_ns, end_ns, *reason)
            self._rows += _row(self._stream.rank, self._stream.index, *row)

    def _look_again_with(self, watchers: Watchers) -> None:
        """Look again when what has these watchers changes; once is enough."""
        if self not in watchers:
            watchers.append(self)

    def _find_reason(self) -> Reason | None:
        """Find the root cause of the stream's wait; None if it has nothing left to run."""
        stream, host = self._stream, self._host
        if stream.gate.is_open and (stream.is_issued if stream.queue else host.awaited >= 0 and not host.finished):
            return COMPACTION, -1, stream.columns.compute_tier, -1
        passed: list[Stream] = []
        while stream not in passed:
            if passed:
                self._look_again_with(stream.watchers)
                if stream.running is not None:
                    return self._reason_of_running(stream, stream.running[1])
            if not stream.is_issued:
                return self._reason_of_host()
            passed.append(stream)
            if before := stream.behind():
                stream = before
            elif lacked := stream.lacks():
                return self._reason_of_tensor(lacked[0], stream.queue[0][0])
        return CAPACITY, -1, stream.columns.compute_tier, -1

    def _reason_of_running(self, stream: Stream, op: int) -> Reason:
        """Return the cause where another stream must first end what it runs."""
        meeting = stream.meeting
        if meeting is None:
            return (COLLECTIVE, -1, -1, op) if stream.columns.is_collective[op] else (ORDER, -1, -1, -1)
        self._look_again_with(meeting.watchers)
        return (PEER, -1, meeting.peer, -1) if meeting.peer >= 0 else (COLLECTIVE, -1, -1, op)

    def _reason_of_host(self) -> Reason | None:
        """Return the cause where the host has not issued what would run next."""
        host = self._host
        if not self._stream.queue and host.finished:
            return None
        self._look_again_with(host.watchers)
        if host.awaited >= 0:
            return self._reason_of_tensor(host.awaited, None)
        return HOST if host.is_ahead else ORDER, -1, -1, -1

    def _reason_of_tensor(self, lacked: int, before: int | None) -> Reason:
        """Return the cause where a tensor is lacking: follow its earliest transfer under way, issued before."""
        tensor, places = lacked, self._stream.places
        while transfer := places.first_transfer(tensor, before):
            link: LinkQueue = transfer[1].link
            self._look_again_with(link.watchers)
            if any(channel.transfer is transfer for channel in link.running):
                return TRANSFER, lacked, link.index, tensor
            if not link.free:
                under_way = link.running[0]
                return TRANSFER, lacked, under_way.link.index, under_way.transfer[1].tensor
            before, head, _, lap = link.queue[0]
            tensor = head.tensor
            if head.link.is_gated(head, lap):
                break
            if not head.link.lacks_tensor(head, lap):
                return CAPACITY, lacked, head.link.target, tensor
        return ORDER, lacked, -1, -1


class Explainer:
    """Explains the waits of one rank: first what it lacks itself, then for whom it waits.

    Parameters
    ----------
    graph
        For names.
    places, streams, links
        The rank's state when nothing could move.
    """

    def __init__(self, graph: Graph, places: Places, streams: list[Stream], links: list[LinkQueue]) -> None:
        self._graph, self._places, self._streams, self._links = graph, places, streams, links
        self._yielded: set[str] = set()

    def sentences(self, host: HostThread) -> tuple[list[str], list[str]]:
        """Explain the chain of waits: what the rank lacks itself, and for which ranks it waits.

        Nothing if the host has issued everything and all of it has ended.
        """
        peers = list[str]()
        for stream in self._streams:
            if stream.running is not None and (meeting := stream.meeting):
                group = stream.columns.roles.calls[stream.running[1]].group
                come = f"waits for rank {meeting.peer} to come to the collective of group {group!r}"
                peers.append(f"{self._op_name(stream.running)} {come}")
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
        return sentences, peers

    def _once(self, sentence: str, rest: Iterable[str] = ()) -> Iterator[str]:
        """Yield a sentence, and the rest, unless it came before: a chain that comes back to one is a cycle."""
        if sentence not in self._yielded:
            self._yielded.add(sentence)
            yield sentence
            yield from rest

    def _name(self, tensor: int) -> str:
        return repr(self._graph.tensors[tensor].name)

    def _op_name(self, queued: Queued) -> str:
        return f"op {self._graph.ops[queued[1]].name!r} (action {queued[0] & ISSUE_MASK})"

    def _about_compute(self, stream: Stream) -> Iterator[str]:
        """Explain why the head cannot start; nothing if it waits for another stream, which has its own sentences."""
        name, lacked = self._op_name(stream.queue[0]), stream.lacks()
        if stream.behind():
            return
        if lacked is None:
            yield self._about_room(name, stream.columns.compute_tier, stream.room_bytes())
        else:
            rest = self._about_tensor(lacked[0], stream.queue[0][0])
            yield from self._once(f"{name} waits for tensor {self._name(lacked[0])}", rest)

    def _about_tensor(self, tensor: int, before: int | None) -> Iterator[str]:
        transfer = self._places.first_transfer(tensor, before)
        if transfer is None:
            yield f"no action that was issued brings tensor {self._name(tensor)}"
            return
        head = transfer[1].link.queue[0]
        if head is transfer:
            yield from self._about_copy(head)
        else:
            copy = f"the copy of {self._name(tensor)} (action {transfer[0] & ISSUE_MASK})"
            behind = f"{copy} is behind action {head[0] & ISSUE_MASK} in its channel"
            yield from self._once(behind, self._about_copy(head))

    def _about_copy(self, head: Transfer) -> Iterator[str]:
        """Explain why the first copy of a link cannot start."""
        link, tensor, tiers = head[1].link, head[1].tensor, self._places.tiers
        way = f"from {tiers[link.source].name} to {tiers[link.target].name}"
        copy = f"the copy of {self._name(tensor)} {way} (action {head[0] & ISSUE_MASK})"
        if link.is_gated(head[1], head[3]):
            yield from self._once(f"{copy} waits for the compute issued before it")
        elif link.lacks_tensor(head[1], head[3]):
            yield from self._once(f"{copy} waits for its source", self._about_tensor(tensor, head[0]))
        else:
            yield from self._once(self._about_room(copy, link.target, self._places.size_bytes[tensor]))

    def _about_room(self, action: str, tier: int, size: int) -> str:
        instance = self._places.tiers[tier]
        held = [t for t, flag in enumerate(self._places.held[tier]) if flag]
        held.sort(key=lambda t: (-self._places.size_bytes[t], t))
        largest = ", ".join(f"{self._name(t)} {human(self._places.size_bytes[t], 'B')}" for t in held[:_LARGEST])
        used, capacity = human(instance.used, "B"), human(instance.capacity, "B")
        return (
            f"{action} waits for {human(size, 'B')} of room in {instance.name}: {used} of {capacity} are held"
            f"{instance.in_pieces}, largest {largest or 'nothing'}; no issued detach will free more, so detach "
            "something before it, or give more room"
        )
