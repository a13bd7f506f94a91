"""One rank's link: transfers in issue order on its channels."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

import simpy

from simulator.cost import rate_cap, transfer_ns, work
from simulator.engine.places import Places, are_running, wait_for
from simulator.engine.rounds import ISSUE_MASK
from simulator.engine.sharing import Domain, Path
from simulator.hardware import Link
from simulator.plan import COPY

if TYPE_CHECKING:
    from simulator.engine.book import CopyStep
    from simulator.engine.stream import Stream


class Transfer(simpy.Event):
    """A copy that was issued; as an event, its end (or that of its latency).

    Attributes
    ----------
    step, key, lap, issued_ns
        What was issued, and when [ns].
    channel, start_ns
        Where and when it was started [ns].
    """

    __slots__ = ("channel", "issued_ns", "key", "lap", "start_ns", "step")

    def __init__(self, step: CopyStep, key: int, lap: int, issued_ns: int) -> None:
        self.step, self.key, self.lap, self.issued_ns = step, key, lap, issued_ns
        self.channel: int
        self.start_ns: int
        self._ok = True

    def end(self) -> None:
        """Its bytes are across."""
        link = self.step.link
        link.end(self)
        if link.queue:
            link.offer(link.queue[0])


class Service(Protocol):
    """How a transfer that has a channel gets its bytes across."""

    def begin(self, transfer: Transfer) -> None:
        """Begin now; the link's `end` is called when it is over."""


class Alone:
    """Service on a channel whose rate nobody else changes: one event."""

    def __init__(self, queue: LinkQueue, link: Link, size_bytes: list[int]) -> None:
        self._clock, self._link, self._size_bytes = queue.clock, link, size_bytes
        self._times: dict[int, int] = {}  # by size
        self._callbacks = [queue.finish]

    def begin(self, transfer: Transfer) -> None:
        """Begin now."""
        size = self._size_bytes[transfer.step.tensor]
        time = self._times.get(size)
        if time is None:
            time = self._times[size] = transfer_ns(size, self._link)
        transfer.callbacks = self._callbacks  # type: ignore[assignment]
        self._clock.at(self._clock.now + time, transfer)


class Shared:
    """Service in a domain: latency first, then a flow whose rate depends on the others."""

    def __init__(self, queue: LinkQueue, link: Link, size_bytes: list[int], path: Path) -> None:
        self._queue, self._link, self._size_bytes = queue, link, size_bytes
        self._callbacks = [self._join_late]
        self.path = path
        self.domain: Domain | None = None

    def begin(self, transfer: Transfer) -> None:
        """Begin now."""
        if self._link.latency_ns:
            transfer.callbacks = self._callbacks  # type: ignore[assignment]
            self._queue.clock.at(self._queue.clock.now + self._link.latency_ns, transfer)
        else:
            self._join(transfer)

    def _join_late(self, event: simpy.Event) -> None:
        self._join(event)  # type: ignore[arg-type]
        self._queue.places.rounds.close()

    def _join(self, transfer: Transfer) -> None:
        size = self._size_bytes[transfer.step.tensor]
        units = work(size, self.path.unit)
        if self.domain is not None:
            self.domain.join(self.path, rate_cap(size, self._link), units, transfer.key, transfer)


class LinkQueue:
    """Transfers of one rank on one link, started strictly in issue order; each takes the lowest free channel.

    Parameters
    ----------
    number
        Id of the link.
    ends
        Ids of the tiers that it joins: source and target.
    channels
        Transfers that can be under way at once.
    places
        The rank's places.
    spans
        Flat list that takes the rows of the trace.
    wait_for_end
        Whether a copy waits for the end, not the start, of the last compute issued before it.
    """

    def __init__(
        self, number: int, ends: tuple[int, int], channels: int, places: Places, spans: list[int], *, wait_for_end: bool
    ) -> None:
        self.number, self.places, self.clock = number, places, places.rounds.clock
        self.source, self.target = ends
        self.queue: deque[Transfer] = deque()
        self.service: Service
        self.considered = False
        self.watchers: list[Stream] = []
        self.running: list[Transfer] = []
        self._rounds = places.rounds
        self._free = list(range(channels))
        self._spans = spans
        self._wait_for_end = wait_for_end
        self._source_valid, self._valid = places.valid[self.source], places.valid[self.target]
        self._held, self._room = places.held[self.target], places.tiers[self.target]
        self._size_bytes, self._moves_ended, self._transfers = places.size_bytes, places.moves_ended, places.transfers

    def issue(self, step: CopyStep, key: int, lap: int) -> None:
        """Take a copy into the queue."""
        transfer = Transfer(step, key, lap, self.clock.now)
        self._transfers[step.tensor].append(transfer)
        queue = self.queue
        queue.append(transfer)
        if len(queue) == 1 and self._free:
            self.offer(transfer)

    def offer(self, head: Transfer) -> None:
        """Try the head in the present round; if it is not eligible yet, when it is."""
        if not self._waits_at_gate(head):
            self._rounds.consider(self, head.key)

    def _waits_at_gate(self, head: Transfer) -> bool:
        gate = head.step.gate
        number = head.step.gate_number + head.lap * gate.per_lap
        if self._wait_for_end:
            if gate.ended < number:
                gate.wait_for_end(number, self)
                return True
        elif gate.started < number:
            gate.wait_for_start(number, self)
            return True
        return False

    def look_again(self) -> None:
        """Try the head again."""
        self._rounds.consider(self, self.queue[0].key)

    @property
    def has_free_channel(self) -> bool:
        """Whether a channel is idle."""
        return bool(self._free)

    def is_gated(self, head: Transfer) -> bool:
        """Whether the last compute issued before the copy has not started (or ended) yet."""
        gate = head.step.gate
        return (gate.ended if self._wait_for_end else gate.started) < head.step.gate_number + head.lap * gate.per_lap

    def lacks_tensor(self, head: Transfer) -> bool:
        """Whether an earlier detach or write of the tensor has not ended, or the source is not valid."""
        step, lap = head.step, head.lap
        tensor = step.tensor
        if not self._source_valid[tensor]:
            return True
        if self._moves_ended[tensor] < step.moves + lap * self.places.moves_per_lap[tensor]:
            return True
        return bool(step.writers) and are_running(step.writers, lap)

    def try_start(self) -> None:
        """Start the first transfer, which is eligible, or register with what it waits for."""
        if not self.queue or not self._free:
            return
        head = self.queue[0]
        if self.lacks_tensor(head):
            self._wait_for_tensor(head)
            return
        tensor = head.step.tensor
        if not self._held[tensor]:
            size = self._size_bytes[tensor]
            if size and not self._room.admit_copy(self, head.key, size):
                return
            self.places.hold(tensor, self.target)
        self.queue.popleft()
        head.channel, head.start_ns = heappop(self._free), self.clock.now
        self.running.append(head)
        if self.watchers:
            self._wake_watchers()
        self.service.begin(head)
        if self._free and self.queue:
            self.offer(self.queue[0])

    def _wait_for_tensor(self, head: Transfer) -> None:
        step, places = head.step, self.places
        if not wait_for(step.writers, head.lap, self):
            moves = step.moves + head.lap * places.moves_per_lap[step.tensor]
            places.wait_for_moves(step.tensor, moves, head.key, self)

    def _wake_watchers(self) -> None:
        """Let the streams whose wait depends on this link account for it anew."""
        self._rounds.restless += self.watchers
        self.watchers.clear()

    def end(self, transfer: Transfer) -> None:
        """The transfer is over: its target is valid, its channel free."""
        tensor, channel, places = transfer.step.tensor, transfer.channel, self.places
        self.running.remove(transfer)
        heappush(self._free, channel)
        issue, now = transfer.key & ISSUE_MASK, self.clock.now
        row = (places.rank, COPY, tensor, self.number, channel, issue, transfer.issued_ns, transfer.start_ns, now)
        self._spans += row
        self._valid[tensor] = 1
        transfers = self._transfers[tensor]
        if transfers[0] is transfer:
            transfers.popleft()
        else:
            transfers.remove(transfer)
        places.end_move(tensor)
        if self.watchers:
            self._wake_watchers()

    def finish(self, event: simpy.Event) -> None:
        """End the transfer whose event this is, and close the round: the next one may start."""
        self.end(event)  # type: ignore[arg-type]
        queue = self.queue
        if queue and not self._waits_at_gate(queue[0]):
            self._rounds.close_with(self, queue[0].key)
        else:
            self._rounds.close()
