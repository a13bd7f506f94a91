"""One rank's link: transfers in issue order on its channels."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

import simpy
from simpy.events import Timeout

from simulator.cost import rate_cap, transfer_ns, work
from simulator.engine.places import Places, wait_for
from simulator.engine.rounds import ISSUE_MASK, RANK_SHIFT, Clock
from simulator.engine.sharing import Domain, Path
from simulator.hardware import Link
from simulator.plan import COPY, Code

if TYPE_CHECKING:
    from simulator.engine.stream import Stream


class Transfer:
    """A copy that was issued.

    Attributes
    ----------
    gate, gate_number
        The stream of the last compute issued before it, and that compute's number there.
    moves
        How many moves of the tensor must have ended before.
    writers
        Computes issued before that write the tensor and had not ended.
    """

    __slots__ = (
        "channel",
        "gate",
        "gate_number",
        "issued_ns",
        "key",
        "link",
        "moves",
        "source",
        "start_ns",
        "target",
        "tensor",
        "writers",
    )

    def __init__(self, link: LinkQueue, key: int, code: Code, gate: Stream) -> None:
        _, tensor, self.source, self.target = code
        places = link.places
        self.link, self.key, self.tensor, self.gate, self.gate_number = link, key, tensor, gate, gate.issued
        self.moves = places.fence[tensor]
        self.writers = places.writers(tensor) if tensor in places.written else ()
        self.issued_ns = places.rounds.env.now
        self.channel = self.start_ns = -1
        places.moves_issued[tensor] += 1
        places.transfers[tensor].append(self)

    def is_behind_write(self) -> bool:
        """Whether a write issued before the copy has not ended."""
        return any(stream.ended < number for stream, number in self.writers)

    def end(self) -> None:
        """Its bytes are across."""
        self.link.end(self)
        if self.link.queue:
            self.link.offer(self.link.queue[0])


class Service(Protocol):
    """How a transfer that has a channel gets its bytes across."""

    def begin(self, transfer: Transfer) -> None:
        """Begin now; the link's `end` is called when it is over."""


class Alone:
    """Service on a channel whose rate nobody else changes: one event."""

    def __init__(self, env: Clock, link: Link, size_bytes: list[int]) -> None:
        self._env, self._link, self._size_bytes = env, link, size_bytes
        self._times: dict[int, int] = {}  # by size

    def begin(self, transfer: Transfer) -> None:
        """Begin now."""
        size = self._size_bytes[transfer.tensor]
        time = self._times.get(size)
        if time is None:
            time = self._times[size] = transfer_ns(size, self._link)
        Timeout(self._env, time, transfer).callbacks.append(_end)


class Shared:
    """Service in a domain: latency first, then a flow whose rate depends on the others."""

    def __init__(self, env: Clock, link: Link, size_bytes: list[int], path: Path) -> None:
        self._env, self._link, self._size_bytes = env, link, size_bytes
        self.path = path
        self.domain: Domain | None = None

    def begin(self, transfer: Transfer) -> None:
        """Begin now."""
        if self._link.latency_ns:
            timer = self._env.timeout(self._link.latency_ns, value=transfer)
            timer.callbacks.append(lambda event: self._join(event.value, close=True))
        else:
            self._join(transfer, close=False)

    def _join(self, transfer: Transfer, *, close: bool) -> None:
        size = self._size_bytes[transfer.tensor]
        units = work(size, self.path.unit)
        if self.domain is not None:
            self.domain.join(self.path, rate_cap(size, self._link), units, transfer.key, transfer)
        if close:
            transfer.link.places.rounds.close()


class LinkQueue:
    """Transfers of one rank on one link, started strictly in issue order; each takes the lowest free channel.

    Parameters
    ----------
    number
        Id of the link.
    channels
        Transfers that can be under way at once.
    places
        The rank's places.
    spans
        Flat list that takes the rows of the trace.
    wait_for_end
        Whether a copy waits for the end, not the start, of the last compute issued before it.
    """

    __slots__ = (
        "_free",
        "_spans",
        "_wait_for_end",
        "considered",
        "number",
        "places",
        "queue",
        "running",
        "service",
        "watchers",
    )

    def __init__(self, number: int, channels: int, places: Places, spans: list[int], *, wait_for_end: bool) -> None:
        self.number, self.places = number, places
        self.queue: deque[Transfer] = deque()
        self.service: Service
        self.considered = False
        self.watchers: list[Stream] = []
        self.running: list[Transfer] = []
        self._free = list(range(channels))
        self._spans = spans
        self._wait_for_end = wait_for_end

    def append(self, transfer: Transfer) -> None:
        """Take an issued transfer into the queue."""
        self.queue.append(transfer)
        if self._free and len(self.queue) == 1:
            self.offer(transfer)

    def offer(self, head: Transfer) -> None:
        """Try the head in the present round; if it is not eligible yet, when it is."""
        if not self._waits_at_gate(head):
            self.places.rounds.consider(self, head.key)

    def _waits_at_gate(self, head: Transfer) -> bool:
        gate, number = head.gate, head.gate_number
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
        self.places.rounds.consider(self, self.queue[0].key)

    @property
    def has_free_channel(self) -> bool:
        """Whether a channel is idle."""
        return bool(self._free)

    def is_gated(self, head: Transfer) -> bool:
        """Whether the last compute issued before the copy has not started (or ended) yet."""
        return (head.gate.ended if self._wait_for_end else head.gate.started) < head.gate_number

    def lacks_tensor(self, head: Transfer) -> bool:
        """Whether an earlier detach or write of the tensor has not ended, or the source is not valid."""
        places, tensor = self.places, head.tensor
        if places.moves_ended[tensor] < head.moves or not places.valid[head.source][tensor]:
            return True
        return bool(head.writers) and head.is_behind_write()

    def try_start(self) -> None:
        """Start the first transfer, which is eligible, or register with what it waits for."""
        if not self.queue or not self._free:
            return
        head, places = self.queue[0], self.places
        tensor, target = head.tensor, head.target
        if self.lacks_tensor(head):
            if not wait_for(head.writers, self):
                places.wait_for_moves(tensor, head.moves, head.key, self)
            return
        if not places.held[target][tensor]:
            size = places.size_bytes[tensor]
            if size and not places.tiers[target].admit_copy(self, head.key, size):
                return
            places.hold(tensor, target)
        self.queue.popleft()
        head.channel = heappop(self._free)
        head.start_ns = places.rounds.env.now
        self.running.append(head)
        if self.watchers:
            self._wake_watchers()
        self.service.begin(head)
        if self._free and self.queue:
            self.offer(self.queue[0])

    def close(self) -> None:
        """Close the round in which a transfer has ended: the next one may start."""
        rounds = self.places.rounds
        if self.queue and not self._waits_at_gate(self.queue[0]):
            rounds.close_with(self, self.queue[0].key)
        else:
            rounds.close()

    def _wake_watchers(self) -> None:
        """Let the streams whose wait depends on this link account for it anew."""
        self.places.rounds.restless += self.watchers
        self.watchers.clear()

    def end(self, transfer: Transfer) -> None:
        """The transfer is over: its target is valid, its channel free."""
        places, key = self.places, transfer.key
        self.running.remove(transfer)
        heappush(self._free, transfer.channel)
        self._spans += (
            key >> RANK_SHIFT,
            COPY,
            transfer.tensor,
            self.number,
            transfer.channel,
            key & ISSUE_MASK,
            transfer.issued_ns,
            transfer.start_ns,
            places.rounds.env.now,
        )
        places.valid[transfer.target][transfer.tensor] = 1
        transfers = places.transfers[transfer.tensor]
        if transfers[0] is transfer:
            transfers.popleft()
        else:
            transfers.remove(transfer)
        places.end_move(transfer.tensor)
        if self.watchers:
            self._wake_watchers()


def _end(event: simpy.Event) -> None:
    """End the transfer that the event carries, and close the round."""
    transfer: Transfer = event._value
    transfer.link.end(transfer)
    transfer.link.close()
