"""One rank's link: transfers in issue order on its channels, which several links may share.

A link that nobody else can slow down needs one event for a transfer, at its end. Its channels carry one transfer
after another, so that one object for each channel serves as event, and as flow where bandwidth is shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import simpy

from simulator.cost import lead_ns, rate_cap, transfer_ns, work
from simulator.engine.places import Places
from simulator.engine.recorder import place, span_row
from simulator.engine.rounds import Alarm
from simulator.engine.sharing import Network, Path
from simulator.engine.waits import (
    Accountable,
    Computes,
    Counter,
    Gate,
    Issuer,
    Wanted,
    are_running,
    wait_for,
    wait_for_start,
)
from simulator.hardware import Link
from simulator.plan import COPY


class CopyStep:
    """A copy.

    Attributes
    ----------
    link, tensor, alone_ns
        What moves where; time of the transfer if nobody slows it down [ns].
    gate, gate_number
        The stream of the last compute issued before, and that compute's number there.
    line
        As for a compute.
    moves
        Moves of the tensor that must have ended.
    writers
        Computes issued before that write the tensor.
    """

    link: LinkQueue
    tensor: int
    alone_ns: int
    gate: Counter
    gate_number: int
    line: Computes
    moves: int
    writers: Computes
    __slots__ = ("alone_ns", "gate", "gate_number", "line", "link", "moves", "tensor", "writers")

    def issue(self, host: Issuer) -> bool:
        """Issue it."""
        self.link.append((host.key, self, host.lap, host.now))
        return True


Transfer = tuple[int, CopyStep, int, int]
"""A copy that was issued: key, step, lap, time of issue [ns]."""


class Channel(simpy.Event):
    """One channel of a link; as an event, the end of its transfer (or of the transfer's latency).

    Attributes
    ----------
    link, number, place
        Which channel this is, also in one number for rows of the trace.
    transfer, start_ns
        What is under way, and since when [ns].
    """

    __slots__ = ("link", "number", "place", "start_ns", "transfer")

    def __init__(self, link: LinkQueue, number: int) -> None:
        super().__init__(link.clock)
        self.link, self.number, self.place = link, number, place(COPY, link.number, number)
        self.transfer: Transfer
        self.start_ns = -1
        self.callbacks = [link.finish]
        self._ok, self._value = True, None

    def end(self) -> None:
        """The transfer's bytes are across."""
        self.link.end(self)
        self.link.look_again()


class Shared:
    """Service beside others: latency (and fill) first, then a flow whose rate depends on theirs."""

    __slots__ = ("_caps", "_leads_ns", "_network", "_path", "_queue", "_works")

    def __init__(self, queue: LinkQueue, link: Link, path: Path, network: Network) -> None:
        self._queue, self._path, self._network = queue, path, network
        self._leads_ns = _BySize(partial(lead_ns, link=link))
        self._caps = _BySize(partial(rate_cap, link=link))
        self._works = _BySize(partial(work, bandwidth_bytes_per_s=path.unit))
        for channel in queue.channels:
            channel.callbacks = [self._join_late]

    def begin(self, channel: Channel) -> None:
        """Begin now; the channel's `end` is called when it is over."""
        queue = self._queue
        if lead := self._leads_ns[queue.places.size_bytes[channel.transfer[1].tensor]]:
            queue.clock.at(queue.clock.now + lead, channel)
        else:
            self._join(channel)

    def _join_late(self, channel: Channel) -> None:
        """The latency is over; what has no work left ends now, as every transfer does whose time is over."""
        if not self._works[self._queue.places.size_bytes[channel.transfer[1].tensor]]:
            self._queue.finish(channel)
            return
        self._join(channel)
        self._queue.places.rounds.close()

    def _join(self, channel: Channel) -> None:
        key, step = channel.transfer[:2]
        size = self._queue.places.size_bytes[step.tensor]
        self._network.join(self._path, self._caps[size], self._works[size], key, channel)


class _BySize(dict[int, int]):
    """By size [B], what a transfer of that size takes of something; found when first asked for."""

    def __init__(self, of: Callable[[int], int]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, size: int) -> int:
        self[size] = found = self._of(size)
        return found


class LinkQueue:
    """Transfers of one rank on one link, started strictly in issue order; each takes the lowest free channel.

    Links of one copy queue share it: the head of the queue is started by its own link.

    Parameters
    ----------
    number, link
        The link and its id.
    ends
        Ids of the tiers that it joins: source and target.
    places
        The rank's places.
    spans
        Takes rows of the trace, short.
    wait_for_end
        Whether a copy waits for the end, not the start, of the last compute issued before it.

    Attributes
    ----------
    alone_ns
        By size [B], time of a transfer if nobody slows it down [ns].
    queue, running
        Transfers that have not started; channels in use.
    shared
        How transfers share bandwidth; None if nobody can slow them down.
    gate
        What may stop it, if anything.
    watchers
        Streams whose wait depends on this link.
    """

    __slots__ = (
        "_alarm",
        "_held",
        "_link",
        "_moves_ended",
        "_moves_per_lap",
        "_room",
        "_rounds",
        "_size_bytes",
        "_source_valid",
        "_spans",
        "_transfers",
        "_valid",
        "_wait_for_end",
        "alone_ns",
        "channels",
        "clock",
        "considered",
        "free",
        "gate",
        "number",
        "places",
        "queue",
        "running",
        "shared",
        "source",
        "target",
        "watchers",
    )

    def __init__(
        self, number: int, link: Link, ends: tuple[int, int], places: Places, spans: bytearray, *, wait_for_end: bool
    ) -> None:
        self.number, self.places, self.clock = number, places, places.rounds.clock
        self.source, self.target = ends
        self.queue: deque[Transfer] = deque()
        self.channels = [Channel(self, i) for i in range(link.channels)]
        self.free = list(range(link.channels))
        self.running: list[Channel] = []
        self.shared: Shared | None = None
        self.gate: Gate | None = None
        self.considered = False
        self.watchers: list[Accountable] = []
        self._link, self._spans, self._wait_for_end = link, spans, wait_for_end
        self.alone_ns = _BySize(partial(transfer_ns, link=link))
        self._rounds = places.rounds
        self._alarm = Alarm(self._rounds, self)
        self._source_valid, self._valid = places.valid[self.source], places.valid[self.target]
        self._held, self._room = places.held[self.target], places.tiers[self.target]
        self._size_bytes, self._transfers = places.size_bytes, places.transfers
        self._moves_ended, self._moves_per_lap = places.moves_ended, places.moves_per_lap

    def share(self, other: LinkQueue) -> None:
        """Share the queue and the channels of another link."""
        self.queue, self.free, self.running, self.watchers = other.queue, other.free, other.running, other.watchers

    def append(self, transfer: Transfer) -> None:
        """Take an issued transfer into the queue."""
        queue, tensor = self.queue, transfer[1].tensor
        if tensor in self._transfers:
            self._transfers[tensor].append(transfer)
        else:
            self._transfers[tensor] = [transfer]
        queue.append(transfer)
        if self.free and len(queue) == 1:
            self.look_again()

    def look_again(self) -> None:
        """Have the link of the first transfer try it in the present round; if it is not eligible yet, when it is."""
        if self.queue:
            head = self.queue[0]
            link = head[1].link
            if not link.waits_at_gate(head):
                self._rounds.consider(link, head[0])

    def waits_at_gate(self, head: Transfer) -> bool:
        """Whether the head is not eligible yet; if so, look again when it is."""
        _, step, lap, _ = head
        gate, number = step.gate, step.gate_number
        if lap:
            number += lap * gate.per_lap
        if self._wait_for_end:
            if gate.ended < number:
                gate.wait_for_end(number, self)
                return True
        elif gate.started < number:
            gate.wait_for_start(number, self)
            return True
        if step.line:
            return wait_for_start(step.line, lap, self)
        return False

    def is_gated(self, head: Transfer) -> bool:
        """Whether the last compute issued before the copy, or another that takes room, has not come so far yet."""
        _, step, lap, _ = head
        gate = step.gate
        if (gate.ended if self._wait_for_end else gate.started) < step.gate_number + lap * gate.per_lap:
            return True
        return any(stream.started < number + lap * stream.per_lap for stream, number in step.line)

    def lacks_tensor(self, step: CopyStep, lap: int) -> bool:
        """Whether an earlier detach or write of the tensor has not ended, or the source is not valid."""
        tensor = step.tensor
        if not self._source_valid[tensor]:
            return True
        moves = step.moves
        if lap:
            moves += lap * self._moves_per_lap[tensor]
        if self._moves_ended[tensor] < moves:
            return True
        return bool(step.writers) and are_running(step.writers, lap)

    def wanted(self) -> Wanted:
        """The place that the head takes."""
        tensor = self.queue[0][1].tensor
        return [(tensor, self._size_bytes[tensor])]

    def try_start(self) -> None:
        """Start the first transfer, which is eligible, or register with what it waits for."""
        if not self.queue or not self.free or (self.gate is not None and self.gate.is_open):
            return
        key, step, lap, issued_ns = head = self.queue[0]
        now, tensor = self.clock.now, step.tensor
        if issued_ns > now:
            self._alarm.set(issued_ns)
            return
        if self.lacks_tensor(step, lap):
            self._wait_for_tensor(head)
            return
        if not self._held[tensor]:
            size = self._size_bytes[tensor]
            if size and not self._room.admit_copy(self, key, size):
                return
            self.places.hold(tensor, self.target)
        self.queue.popleft()
        channel = self.channels[heappop(self.free)]
        channel.transfer, channel.start_ns = head, now
        self.running.append(channel)
        if self.watchers:
            self._wake_watchers()
        if self.shared is None:
            self.clock.at(now + step.alone_ns, channel)
        else:
            self.shared.begin(channel)
        if self.free:
            self.look_again()

    def _wait_for_tensor(self, head: Transfer) -> None:
        key, step, lap, _ = head
        if not wait_for(step.writers, lap, self):
            moves = step.moves + lap * self._moves_per_lap[step.tensor]
            self.places.wait_for_moves(step.tensor, moves, key, self)

    def _wake_watchers(self) -> None:
        """Let the streams whose wait depends on this link account for it anew."""
        self._rounds.restless += self.watchers
        self.watchers.clear()

    def end(self, channel: Channel) -> None:
        """The transfer is over: its target is valid, its channel free."""
        key, step, _, issued_ns = transfer = channel.transfer
        tensor, places = step.tensor, self.places
        self.running.remove(channel)
        heappush(self.free, channel.number)
        self._spans += span_row(key, channel.place, tensor, issued_ns, channel.start_ns, self.clock.now)
        self._valid[tensor] = True
        under_way = self._transfers[tensor]
        if len(under_way) == 1:
            del self._transfers[tensor]
        else:
            under_way.remove(transfer)
        places.end_move(tensor)
        if self.watchers:
            self._wake_watchers()
        if self.gate is not None and self.gate.is_open:
            self.gate.look_again()

    def finish(self, event: simpy.Event) -> None:
        """End the transfer of the channel that this event is, and close the round: the next one may start."""
        self.end(event)  # type: ignore[arg-type]
        queue = self.queue
        if queue and not self.waits_at_gate(queue[0]):
            self._rounds.close_with(queue[0][1].link, queue[0][0])
        else:
            self._rounds.close()
