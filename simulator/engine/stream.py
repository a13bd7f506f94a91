"""A compute stream: it runs computes one after another, in issue order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import simpy

from simulator.engine.event_loop import ISSUE_MASK, Account, Gate, Recurring, Taker, Wanted, Watchers
from simulator.engine.places import Places
from simulator.engine.program import Columns
from simulator.offsets import workspace
from simulator.plan import COMPUTE
from simulator.trace import Recorder, span_row

NEVER = -(1 << 60)
"""The count of a compute, or of moves, that does not exist: too low to be waited for in any lap."""


class Count:
    """Counts the actions of a queue that have started (or ended), and calls back those who wait for a count.

    Parameters
    ----------
    queue
        The stream, or a link of the queue of copies.

    Attributes
    ----------
    reached, per_lap
        The count so far; how much one lap of a plan that repeats adds to it.
    waiters
        By count, what to call once it is reached.
    """

    __slots__ = ("per_lap", "queue", "reached", "waiters")

    def __init__(self, queue: Taker) -> None:
        self.queue, self.reached, self.per_lap = queue, 0, 0
        self.waiters: dict[int, list[Callable[[], None]]] = {}

    def wait(self, goal: int, look_again: Callable[[], None]) -> None:
        """Call back once the count reaches `goal`."""
        self.waiters.setdefault(goal, []).append(look_again)

    def call(self) -> None:
        """Call back those who wait for the count just reached."""
        for look_again in self.waiters.pop(self.reached):
            look_again()


Waits = tuple[tuple[Count, int], ...]
"""Counts that an action waits for, each with the value that it must reach, counted from the start of the lap."""


def unmet(waits: Waits, lap: int) -> tuple[Count, int] | None:
    """Return the first count that is too low, and the value that it must reach; None if none is."""
    for count, goal in waits:
        if count.reached < (due := goal + lap * count.per_lap):
            return count, due
    return None


def must_wait(waits: Waits, lap: int, look_again: Callable[[], None]) -> bool:
    """Return whether some count is too low; if so, call back once the first of those is high enough."""
    if awaited := unmet(waits, lap):
        awaited[0].wait(awaited[1], look_again)
    return awaited is not None


@dataclass(slots=True)
class QueuedCompute:
    """A compute, and the counts that must be reached before it starts.

    Attributes
    ----------
    stream
        Where it runs.
    moves
        (tensor, moves that must have ended) pairs.
    reads, writes
        Tensors that it needs valid; tensors that it needs a place for, and makes valid. Both leave out tensors that
        earlier computes make needless to check, as `dependencies` says.
    after
        Ends of computes of other streams.
    line
        Room is given in issue order: the start of the last compute before it that takes some, and those of copies that
        other streams' computes before it need.
    is_free
        Whether there is nothing to wait for, to take or to make valid.
    duration_ns, chosen_bytes
        If its op has dynamic reads: what this issue takes alone [ns], and the size of what it chooses [B]; else the
        first is negative.
    """

    stream: Stream
    moves: Sequence[tuple[int, int]] = ()
    reads: Sequence[int] = ()
    writes: Sequence[int] = ()
    after: Waits = ()
    line: Waits = ()
    is_free: bool = False
    duration_ns: int = -1
    chosen_bytes: int = 0


Queued = tuple[int, int, QueuedCompute, int, int]
"""An issued compute: key, op, what it waits for, time of issue [ns], lap."""


class Meeting(Protocol):
    """A meeting of ranks for a collective, as seen by a stream that has arrived there.

    Attributes
    ----------
    peer
        The lowest rank that has not arrived; -1 once the collective runs.
    watchers
        Accounts of waits that depend on it.
    """

    peer: int
    watchers: Watchers


class Stream:
    """A stream of one rank; the *head* is the first compute in its queue.

    Parameters
    ----------
    index
        Which stream of the rank this is.
    places, columns
        The rank's places and its compiled graph.
    recorder
        Takes rows of the trace.

    Attributes
    ----------
    queue, running
        Computes that were issued and have not started; the one that runs.
    started, ended
        Counts of the computes that have started, and that have ended.
    pace
        The one of these two counts that copies wait for: see `Switches.copies_wait_for`.
    watchers
        Accounts of waits that depend on this stream.
    ledger
        The account of its waits.
    kernel
        Begins a kernel whose time depends on others, and calls `end_after`; None if all take their time alone.
    meeting
        Where the running op has arrived, if it is a collective.
    gate
        Stops it while closed.
    """

    ledger: Account
    pace: Count

    def __init__(self, index: int, places: Places, columns: Columns, recorder: Recorder) -> None:
        self.index, self.places, self.columns, self.rank = index, places, columns, places.rank
        self.kernel: Callable[[Stream, int, QueuedCompute], None] | None = None
        self.meeting: Meeting | None = None
        self.gate = Gate()
        self.queue: deque[Queued] = deque()
        self.running: Queued | None = None
        self.started, self.ended, self.start_ns = Count(self), Count(self), 0
        self.considered = False
        self.watchers: Watchers = []
        self._rounds, self._clock = places.rounds, places.rounds.clock
        self._span = Recurring(self._clock, self._finish)
        self._at_issue = Recurring(self._clock, lambda _: self.look_again())
        self._spans, self._workspaces = recorder.spans, workspace(0, index)
        self._tier = places.tiers[columns.compute_tier]
        self._valid, self._held = places.valid[columns.compute_tier], places.held[columns.compute_tier]
        self._lacked: list[tuple[int, int, int, bool]] | None = None  # key of a copy, tensor, moves, whether it is read

    def look_again(self) -> None:
        """Ask for a try of the head in this round."""
        if self.queue:
            self._rounds.consider(self, self.queue[0][0])

    def append(self, queued: Queued) -> None:
        """Take an issued compute into the queue."""
        self.queue.append(queued)
        if len(self.queue) == 1 and self.running is None:
            self.look_again()

    @property
    def is_issued(self) -> bool:
        """Whether the head has been issued by now: a host that is ahead of the clock queues computes early."""
        return bool(self.queue) and self.queue[0][3] <= self._clock.now

    def end_after(self, delay_ns: int) -> None:
        """End the running compute after this delay."""
        self._clock.at(self._clock.now + delay_ns, self._span)

    def _finish(self, event: simpy.Event) -> None:
        """End the running compute, and let the next one start."""
        key, op, compute, issued_ns, _ = self.running  # type: ignore[misc]
        rounds, queue, issue, start, end = self._rounds, self.queue, key & ISSUE_MASK, self.start_ns, self._clock.now
        self.running = None
        self._spans += span_row(self.rank, COMPUTE, op, self.index, 0, issue, issued_ns, start, end)
        if not compute.is_free:
            if workspace_bytes := self.columns.workspace_bytes[op]:
                self.places.record(self.columns.compute_tier, -1 - op, -workspace_bytes)
                self._tier.release(workspace_bytes, self._workspaces - op)
            for valid in self.places.valid:  # what it wrote is valid in its tier, and stale elsewhere
                is_of_tier = valid is self._valid
                for tensor in compute.writes:
                    valid[tensor] = is_of_tier
        ended = self.ended
        ended.reached += 1
        if ended.reached in ended.waiters:
            ended.call()
        if self.watchers:
            rounds.wake(self.watchers)
        if not queue:
            rounds.accounts.append(self.ledger)
            return
        is_alone = self.kernel is None and not self.gate.is_closed
        if is_alone and queue[0][2].is_free and not (rounds.heads or rounds.frees or rounds.accounts or rounds.resets):
            self._run_undisturbed()
        if queue:
            rounds.consider(self, queue[0][0])
        else:
            rounds.accounts.append(self.ledger)

    def _run_undisturbed(self) -> None:
        """Run computes from the queue while each only takes time and nothing else happens before it ends.

        An event for each would take 1.4 times as long where a step is all computes (`tests/bench`, case ``compute``).
        """
        clock, queue, rank, index, spans = self._clock, self.queue, self.rank, self.index, self._spans
        durations_ns, at_start, at_end = self.columns.duration_ns, self.started.waiters, self.ended.waiters
        start, count, until = clock.now, self.started.reached, clock.events[0][0] if clock.events else math.inf
        while queue:
            key, op, compute, issued_ns, _ = queue[0]
            end = start + durations_ns[op]
            count += 1
            if not compute.is_free or end >= until or issued_ns > start or count in at_start or count in at_end:
                break
            queue.popleft()
            self.started.reached = count
            spans += span_row(rank, COMPUTE, op, index, 0, key & ISSUE_MASK, issued_ns, start, end)
            start = end
        self.ended.reached = self.started.reached
        clock.now = start

    def lacked_tensor(self) -> tuple[int, int] | None:
        """Return the first tensor that the head lacks, and how many of its moves must have ended; None if none.

        The head lacks a tensor whose earlier moves have not ended, or that it reads and that is not valid. The first is
        the one whose copy was issued first, whatever the order of the reads. A tensor that is there stays until the
        head runs, and is not checked again.
        """
        places, moves_ended, valid = self.places, self.places.moves_ended, self._valid
        if self._lacked is None:
            due: dict[int, int] = {}
            key, _, compute, _, lap = self.queue[0]
            for tensor, count in compute.moves:
                moves = count + lap * places.moves_per_lap[tensor]
                if moves_ended[tensor] < moves:
                    due[tensor] = moves
            for tensor in compute.reads:
                if not valid[tensor]:
                    due.setdefault(tensor, NEVER)
            self._lacked = []
            for tensor, moves in due.items():
                self._lacked.append((places.last_transfer(tensor, key), tensor, moves, tensor in compute.reads))
            self._lacked.sort(reverse=True)
        while self._lacked:
            _, tensor, moves, is_read = self._lacked[-1]
            if moves_ended[tensor] < moves or (is_read and not valid[tensor]):
                return tensor, moves
            self._lacked.pop()
        return None

    def awaited(self) -> Taker | None:
        """Return the stream whose compute must end first, or the stream or link that is ahead of the head in line.

        Of several that are ahead it is the one whose own head was issued first.
        """
        _, _, compute, _, lap = self.queue[0]
        if awaited := unmet(compute.after, lap):
            return awaited[0].queue
        if not compute.line or self.lacked_tensor() or not self.room_bytes():
            return None
        ahead = [wait[0].queue for wait in compute.line if unmet((wait,), lap)]
        return min(ahead, key=lambda queue: queue.queue[0][0], default=None)

    def room_bytes(self) -> int:
        """Return the room that the head takes: new places for what it writes, and its workspace [B]."""
        (_, op, compute, _, _), held, sizes = self.queue[0], self._held, self.columns.size_bytes
        return self.columns.workspace_bytes[op] + sum([sizes[t] for t in compute.writes if not held[t]])

    def wanted(self) -> Wanted:
        """Return the places that the head takes in the compute tier, the workspace last."""
        (_, op, compute, _, _), held, sizes = self.queue[0], self._held, self.columns.size_bytes
        wanted = [(tensor, sizes[tensor]) for tensor in compute.writes if not held[tensor] and sizes[tensor]]
        if workspace_bytes := self.columns.workspace_bytes[op]:
            wanted.append((self._workspaces - op, workspace_bytes))
        return wanted

    def try_start(self) -> None:
        """Start the first compute, or register with what it waits for."""
        if self.running is not None or not self.queue:
            return
        (key, op, compute, issued_ns, lap), now = self.queue[0], self._clock.now
        if issued_ns > now:
            self._clock.at(issued_ns, self._at_issue)
        if self.gate.is_closed or issued_ns > now or not (compute.is_free or self._may_start(key, op, compute, lap)):
            self._rounds.accounts.append(self.ledger)
            self._rounds.wake(self.watchers)
            return
        self.running, self.start_ns = self.queue.popleft(), now
        if self.ledger.is_open:
            self.ledger.end(key & ISSUE_MASK, op)
        if self.watchers:
            self._rounds.wake(self.watchers)
        if self.kernel is not None:
            self.kernel(self, op, compute)
        else:
            self._clock.at(now + self.columns.duration_ns[op], self._span)
        started = self.started
        started.reached += 1
        if started.reached in started.waiters:
            started.call()

    def _may_start(self, key: int, op: int, compute: QueuedCompute, lap: int) -> bool:
        """Take room and places for the head if nothing else is lacking; register with what it waits for."""
        if compute.after and must_wait(compute.after, lap, self.look_again):
            return False
        if (compute.moves or compute.reads) and (lacked := self.lacked_tensor()):
            self.places.wait_for_moves(*lacked, key, self.look_again)
            return False
        if compute.writes or self.columns.workspace_bytes[op]:
            room = self.room_bytes()
            if room and compute.line and must_wait(compute.line, lap, self.look_again):
                return False
            if room and not self._tier.admit(self, key, room):
                return False
            self.places.hold(compute.writes, self.columns.compute_tier)
            if workspace_bytes := self.columns.workspace_bytes[op]:
                self.places.record(self.columns.compute_tier, -1 - op, workspace_bytes)
        self._lacked = None
        if compute.duration_ns >= 0:
            self.columns.duration_ns[op] = compute.duration_ns
        return True
