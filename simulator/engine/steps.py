"""Steps as the host issues them: with the counts of what must have happened before each may take effect.

See `simulator.engine.book`, which finds these counts and fills the steps in: a constructor would cost as much as that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from simulator.engine.places import Places
from simulator.engine.waits import Computes, Counter, Issuer, wait_for


class ComputeStep:
    """A compute.

    Attributes
    ----------
    op, stream, queue
        What runs where (of a step that ops share, no op); computes that were issued there and have not started.
    after
        Computes of other streams that must have ended.
    turns
        (tensor, moves that must have ended) pairs.
    reads, writes
        What it must find valid; what it must have a place for, and makes valid. Less what earlier computes see to.
    line
        The last compute before it that takes room, if that is one of another stream: room is given in issue order.
    is_free
        Whether there is nothing to wait for, to take or to make valid.
    duration_ns, chosen_bytes
        What this issue takes alone [ns], and what it reads beside what it reads each time [B], if its op has late
        reads; else the first is negative.
    """

    op: int
    stream: Counter
    queue: deque[Any]
    after: Computes
    turns: Sequence[tuple[int, int]]
    reads: Sequence[int]
    writes: Sequence[int]
    line: Computes
    is_free: bool
    duration_ns: int
    chosen_bytes: int
    __slots__ = (
        "after",
        "chosen_bytes",
        "duration_ns",
        "is_free",
        "line",
        "op",
        "queue",
        "reads",
        "stream",
        "turns",
        "writes",
    )

    def issue(self, host: Issuer) -> bool:
        """Issue it, unless the queue is full."""
        if not host.credit and not host.has_credit():
            return False
        host.credit -= 1
        key, queue = host.key, self.queue
        queue.append((key, self.op, self, host.now, host.lap))
        if len(queue) == 1 and self.stream.running is None:
            self.stream.look_again()
        return True

    def reading(self, reads: Sequence[int], turns: Sequence[tuple[int, int]]) -> ComputeStep:
        """Return a step like this one that reads more, each once so many moves of it have ended."""
        step = ComputeStep()
        step.op, step.stream, step.queue = self.op, self.stream, self.queue
        step.after, step.line, step.writes, step.duration_ns = self.after, self.line, self.writes, self.duration_ns
        step.turns, step.reads = [*self.turns, *turns], (*self.reads, *reads)
        step.is_free = self.is_free and not reads
        return step


def free_compute() -> ComputeStep:
    """Make the step that all computes share which have nothing to see to; what waits in a queue names its op."""
    step = ComputeStep()
    step.after = step.line = step.reads = step.writes = step.turns = ()
    step.is_free, step.duration_ns = True, -1
    return step


class DetachStep:
    """A detach; once issued, it acts when all earlier steps that name the tensor have ended.

    As an event it is its time of issue, if it could act before that.

    Attributes
    ----------
    tensor, tier, places
        The place, and the places of the rank.
    moves
        Moves of the tensor that must have ended.
    users
        Computes issued before that use the tensor; all, where an output's only valid copy is given up.
    issued_ns
        Its time of issue [ns].
    """

    callbacks: ClassVar[tuple[Callable[[DetachStep], None], ...]]
    tensor: int
    tier: int
    moves: int
    users: Computes
    places: Places
    _key: int
    _lap: int
    issued_ns: int
    __slots__ = ("_key", "_lap", "issued_ns", "moves", "places", "tensor", "tier", "users")

    def issue(self, host: Issuer) -> bool:
        """Issue it; in a plan of several laps a detach of its own, as that of the lap before may not have acted."""
        issued = self._again() if host.has_laps else self
        issued._key, issued._lap, issued.issued_ns = host.key, host.lap, host.now
        issued.look_again()
        return True

    def _again(self) -> DetachStep:
        other = DetachStep()
        other.tensor, other.tier, other.places = self.tensor, self.tier, self.places
        other.moves, other.users = self.moves, self.users
        return other

    def look_again(self) -> None:
        """Wait for the first user that has not ended, then for earlier moves, or act in the present round."""
        lap = self._lap
        for stream, number in self.users:
            due = number + lap * stream.per_lap
            if stream.ended < due:
                stream.wait_for_end(due, self)
                return
        places, tensor = self.places, self.tensor
        moves = self.moves
        if lap:
            moves += lap * places.moves_per_lap[tensor]
        if places.moves_ended[tensor] < moves:
            places.wait_for_moves(tensor, moves, self._key, self)
        elif self.issued_ns > places.rounds.clock.now:
            places.rounds.clock.at(self.issued_ns, self)
        else:
            self.join()

    def act(self) -> None:
        """Free the place."""
        self.places.free(self.tensor, self.tier)

    def join(self) -> None:
        """Act in the present round."""
        self.places.rounds.frees.append(self.act)

    def join_round(self) -> None:
        """Act in the present round, and close it: the time of issue has come."""
        self.join()
        self.places.rounds.close()


DetachStep.callbacks = (DetachStep.join_round,)


class SyncStep:
    """A sync; attributes as those of a detach."""

    tensor: int
    places: Places
    moves: int
    users: Computes
    __slots__ = ("moves", "places", "tensor", "users")

    def issue(self, host: Issuer) -> bool:
        """Go past it, or let the host look again when the next step that names the tensor ends."""
        if host.is_ahead:
            host.wait_for_clock()
            return False
        places, tensor = self.places, self.tensor
        if wait_for(self.users, host.lap, host):
            host.awaited = tensor
            return False
        moves = self.moves + host.lap * places.moves_per_lap[tensor]
        if places.moves_ended[tensor] < moves:
            host.awaited = tensor
            places.wait_for_moves(tensor, moves, host.key, host)
            return False
        return True
