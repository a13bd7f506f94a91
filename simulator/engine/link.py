"""One rank's link: transfers in issue order on its channels."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

import simpy
from simpy.events import Timeout

from simulator.cost import rate_cap, transfer_ns, work
from simulator.engine.places import Places, wait_for
from simulator.engine.rounds import RANK_SHIFT, Clock
from simulator.engine.sharing import Domain, Path
from simulator.hardware import Link
from simulator.plan import COPY, Code

if TYPE_CHECKING:
    from simulator.engine.stream import Stream


Gate = tuple["Stream", int]
"""The last compute issued before a copy: its stream, and how many computes of that stream it completes."""


class Transfer:
    """A copy that was issued."""

    __slots__ = (
        "channel",
        "ended",
        "gate",
        "issue",
        "issued_ns",
        "link",
        "moves",
        "source",
        "start_ns",
        "target",
        "tensor",
        "writers",
    )

    def __init__(self, link: LinkQueue, issue: int, code: Code, gate: Gate | None) -> None:
        self.link, self.issue, self.gate = link, issue, gate
        _, self.tensor, self.source, self.target = code
        self.moves = link.places.fence[self.tensor]
        self.writers = link.places.writers(self.tensor)
        self.issued_ns = link.places.rounds.env.now
        self.ended = False
        self.channel = self.start_ns = -1

    def is_behind_write(self) -> bool:
        """Whether a write issued before the copy has not ended."""
        return any(stream.ended < number for stream, number in self.writers)

    def end(self) -> None:
        """Its bytes are across."""
        self.link.end(self)


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
        key = transfer.link.rank << RANK_SHIFT | transfer.issue
        units = work(size, self._link.bandwidth_bytes_per_s)
        if self.domain is not None:
            self.domain.join(self.path, rate_cap(size, self._link), units, key, transfer)
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

    def __init__(self, number: int, channels: int, places: Places, spans: list[int], *, wait_for_end: bool) -> None:
        self.number, self.places, self.rank = number, places, places.rank
        self.queue: deque[Transfer] = deque()
        self.service: Service | None = None
        self.considered = False
        self.watchers: list[Stream] = []
        self.running: list[Transfer] = []
        self._free = list(range(channels))
        heapify(self._free)
        self._spans = spans
        self._wait_for_end = wait_for_end

    def key(self) -> int:
        """Key of the first transfer."""
        return self.rank << RANK_SHIFT | self.queue[0].issue

    def append(self, transfer: Transfer) -> None:
        """Take an issued transfer into the queue."""
        self.queue.append(transfer)
        if len(self.queue) == 1 and self._free:
            self.places.rounds.consider(self)

    def look_again(self) -> None:
        """Try the head again."""
        self.places.rounds.consider(self)

    @property
    def has_free_channel(self) -> bool:
        """Whether a channel is idle."""
        return bool(self._free)

    def is_gated(self, head: Transfer) -> bool:
        """Whether the last compute issued before the copy has not started (or ended) yet."""
        if head.gate is None:
            return False
        stream, count = head.gate
        return (stream.ended if self._wait_for_end else stream.started) < count

    def lacks_tensor(self, head: Transfer) -> bool:
        """Whether an earlier detach or write of the tensor has not ended, or the source is not valid."""
        places, tensor = self.places, head.tensor
        return bool(
            places.moves_ended[tensor] < head.moves or not places.valid[head.source][tensor] or head.is_behind_write()
        )

    def try_start(self) -> None:
        """Start the first transfer, or register with what it waits for."""
        if not self.queue or not self._free:
            return
        head = self.queue[0]
        if self.is_gated(head):
            self._wait_at_gate(head)
        elif self.lacks_tensor(head):
            self._wait_for_tensor(head)
        elif self._takes_room(head):
            self._start(head)

    def _wait_at_gate(self, head: Transfer) -> None:
        if head.gate is not None:
            stream, count = head.gate
            wait = stream.wait_for_end if self._wait_for_end else stream.wait_for_start
            wait(count, self)

    def _wait_for_tensor(self, head: Transfer) -> None:
        if not wait_for(head.writers, self):
            self.places.wait_for_moves(head.tensor, head.moves, head.issue, self)

    def _takes_room(self, head: Transfer) -> bool:
        places = self.places
        if places.held[head.target][head.tensor]:
            return True
        size = places.size_bytes[head.tensor]
        if size and not places.tiers[head.target].admit_copy(self, self.key(), size):
            return False
        places.hold(head.tensor, head.target)
        return True

    def _start(self, head: Transfer) -> None:
        self.queue.popleft()
        head.channel = heappop(self._free)
        head.start_ns = self.places.rounds.env.now
        self.running.append(head)
        self.wake_watchers()
        if self.service is not None:
            self.service.begin(head)
        if self.queue and self._free:
            self.places.rounds.consider(self)

    def wake_watchers(self) -> None:
        """Let the streams whose wait depends on this link account for it anew."""
        if self.watchers:
            self.places.rounds.restless += self.watchers
            self.watchers.clear()

    def end(self, transfer: Transfer) -> None:
        """The transfer is over: its target is valid, its channel free."""
        places, now = self.places, self.places.rounds.env.now
        self.running.remove(transfer)
        heappush(self._free, transfer.channel)
        self._spans += (
            self.rank, COPY, transfer.tensor, self.number, transfer.channel,
            transfer.issue, transfer.issued_ns, transfer.start_ns, now,
        )  # fmt: skip
        places.valid[transfer.target][transfer.tensor] = 1
        places.end_move(transfer)
        self.wake_watchers()
        if self.queue:
            places.rounds.consider(self)


def _end(event: simpy.Event) -> None:
    """End the transfer that the event carries, and close the round."""
    transfer: Transfer = event.value  # type: ignore[assignment]
    transfer.link.end(transfer)
    transfer.link.places.rounds.close()
