"""One rank's link: transfers in issue order on its channels, which several links may share.

A link that nothing else can slow down needs one event for each transfer, at its end. A channel carries one transfer
after another, so one object for each channel serves as that event, and as the flow where bandwidth is shared.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache, partial
from heapq import heappop, heappush

from simulator.cost.service import lead_ns, rate_cap, transfer_ns, work
from simulator.engine.event_loop import ISSUE_MASK, Gate, Recurring, Wanted, Watchers
from simulator.engine.places import COPIES, Places, Transfer
from simulator.engine.sharing import Network, Path
from simulator.engine.stream import Count, Waits, must_wait, unmet
from simulator.hardware import Link
from simulator.plan import COPY
from simulator.trace import Recorder, span_row


@dataclass(slots=True)
class QueuedCopy:
    """A copy, and the counts that must be reached before it starts.

    Attributes
    ----------
    link, tensor
        What moves where.
    moves
        Number of moves of the tensor that must have ended.
    after
        The start (or the end, by a switch) of the last compute issued before it; if it takes room of the compute tier,
        its line, as for a compute.
    writers
        Ends of computes issued before that write the tensor.
    """

    link: LinkQueue
    tensor: int
    moves: int
    after: Waits
    writers: Waits


class Channel(Recurring):
    """One channel of a link; as an event, the end of its transfer (or of the transfer's latency).

    Attributes
    ----------
    link, index
        Which channel this is.
    transfer, start_ns
        What is under way, and since when [ns].
    end
        To be called when its bytes are across.
    """

    transfer: Transfer

    def __init__(self, link: LinkQueue, index: int) -> None:
        super().__init__(link.clock, link.end)  # type: ignore[arg-type]
        self.link, self.index, self.start_ns = link, index, -1
        self.end = partial(link.end, self)

    @property
    def size_bytes(self) -> int:
        """Size of the transfer under way [B]."""
        copy: QueuedCopy = self.transfer[1]
        return self.link.places.size_bytes[copy.tensor]


class LinkQueue:
    """Transfers of one rank on one link, started strictly in issue order; each takes the lowest free channel.

    Links of one copy queue share `queue` and channels. The *head* is the first transfer; its own link starts it.

    Parameters
    ----------
    index, link
        The id of the link, and the link.
    places
        The rank's places.
    recorder
        Takes rows of the trace.

    Attributes
    ----------
    source, target
        Ids of the tiers that it joins.
    queue, free, running
        Transfers that have not started; channels that are free, and in use.
    started
        Counts the transfers of the queue that have started.
    gate
        Stops it while closed.
    watchers
        Accounts of waits that depend on this link.
    """

    def __init__(self, index: int, link: Link, places: Places, recorder: Recorder) -> None:
        names = [tier.name for tier in places.tiers]
        self.index, self.places, self.clock = index, places, places.rounds.clock
        self.source, self.target = names.index(link.source), names.index(link.target)
        self.queue: deque[Transfer] = deque()
        self.free, self.running = list(range(link.channels)), list[Channel]()
        self.channels = [Channel(self, i) for i in self.free]
        self.started = Count(self)
        self._path: Path | None = None
        self.gate = Gate()
        self.considered = False
        self.watchers: Watchers = []
        self._spans = recorder.spans
        self._alone_ns = cache(partial(transfer_ns, link=link))
        self._rounds, self._at_issue = places.rounds, Recurring(self.clock, lambda _: self.look_again())

    def share_bandwidth(self, link: Link, path: Path, network: Network) -> None:
        """Let the bytes of a transfer flow through a path, beside others, once its latency (and fill) is over."""
        self._path, self._network = path, network
        self._lead_ns = cache(partial(lead_ns, link=link))
        self._cap = cache(partial(rate_cap, link=link))
        self._work = cache(partial(work, bandwidth_bytes_per_s=path.unit))
        for channel in self.channels:
            channel.callbacks = [self._join_late]

    def share_queue(self, other: LinkQueue) -> None:
        """Share the queue and the channels of another link."""
        self.queue, self.free, self.running, self.watchers = other.queue, other.free, other.running, other.watchers
        self.started = other.started

    def append(self, transfer: Transfer) -> None:
        """Take an issued copy into the queue."""
        self.places.transfers.setdefault(transfer[1].tensor, []).append(transfer)
        self.queue.append(transfer)
        if self.free and len(self.queue) == 1:
            self.look_again()

    def look_again(self) -> None:
        """Ask for a try of the head by its link: in this round, or once its compute has started or ended."""
        if not self.queue:
            return
        key, copy, _, lap = self.queue[0]
        if not must_wait(copy.after, lap, self.look_again):
            self._rounds.consider(copy.link, key)

    def is_early(self, copy: QueuedCopy, lap: int) -> bool:
        """Return whether the copy waits for the last compute before it, or for what is ahead of it in line."""
        return unmet(copy.after, lap) is not None

    def lacks_tensor(self, copy: QueuedCopy, lap: int) -> bool:
        """Return whether the source is not valid yet, or an earlier detach or write of the tensor has not ended."""
        places, tensor = self.places, copy.tensor
        if not places.valid[self.source][tensor]:
            return True
        if places.moves_ended[tensor] < copy.moves + lap * places.moves_per_lap[tensor]:
            return True
        return unmet(copy.writers, lap) is not None

    def wanted(self) -> Wanted:
        """Return the place that the head takes."""
        tensor = self.queue[0][1].tensor
        return [(tensor, self.places.size_bytes[tensor])]

    def try_start(self) -> None:
        """Start the head, which waits for no compute, or register with what it waits for."""
        if not self.queue or not self.free or self.gate.is_closed:
            return
        key, copy, issued_ns, lap = self.queue[0]
        places, tensor, target = self.places, copy.tensor, self.target
        if issued_ns > self.clock.now:
            self.clock.at(issued_ns, self._at_issue)
        elif self.lacks_tensor(copy, lap):
            self._rounds.wake(self.watchers)
            if not must_wait(copy.writers, lap, self.look_again):
                moves = copy.moves + lap * places.moves_per_lap[tensor]
                places.wait_for_moves(tensor, moves, key, self.look_again)
        elif places.held[target][tensor]:
            self._start()
        else:
            size = places.size_bytes[tensor]
            if not size or places.tiers[target].admit(self, key | COPIES, size):
                places.hold((tensor,), target)
                self._start()
            else:
                self._rounds.wake(self.watchers)

    def _start(self) -> None:
        channel = self.channels[heappop(self.free)]
        channel.transfer, channel.start_ns = self.queue.popleft(), self.clock.now
        self.running.append(channel)
        started = self.started
        started.reached += 1
        if started.reached in started.waiters:
            started.call()
        if self.watchers:
            self._rounds.wake(self.watchers)
        size = self.places.size_bytes[channel.transfer[1].tensor]
        if self._path is None:
            self.clock.at(channel.start_ns + self._alone_ns(size), channel)
        elif lead := self._lead_ns(size):
            self.clock.at(channel.start_ns + lead, channel)
        else:
            self._join(self._path, channel)
        if self.free:
            self.look_again()

    def _join_late(self, channel: Channel) -> None:
        """Begin the flow once the latency is over; a transfer without any work left ends now."""
        if self._path is not None and self._work(channel.size_bytes):
            self._join(self._path, channel)
        else:
            self.end(channel)

    def _join(self, path: Path, channel: Channel) -> None:
        size = channel.size_bytes
        self._network.join(path, self._cap(size), self._work(size), channel.transfer[0], channel.end)

    def end(self, channel: Channel) -> None:
        """End a transfer: make its target valid, free its channel, and let the next one start."""
        key, copy, issued_ns, _ = channel.transfer
        tensor, places = copy.tensor, self.places
        self.running.remove(channel)
        heappush(self.free, channel.index)
        issue, start, end = key & ISSUE_MASK, channel.start_ns, self.clock.now
        self._spans += span_row(places.rank, COPY, tensor, self.index, channel.index, issue, issued_ns, start, end)
        places.valid[self.target][tensor] = True
        under_way = places.transfers[tensor]
        under_way.remove(channel.transfer)
        if not under_way:
            del places.transfers[tensor]
        places.end_move(tensor)
        if self.watchers:
            self._rounds.wake(self.watchers)
        if self.gate.is_closed:
            self.gate.look_again()
        self.look_again()
