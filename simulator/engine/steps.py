"""Steps as the host issues them: with the counts of what must have happened before each may take effect.

See `simulator.engine.book`, which finds these counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from simulator.engine.places import Computes, Places, wait_for
from simulator.plan import COMPUTE, COPY, DETACH, SYNC

if TYPE_CHECKING:
    from simulator.engine.host import Host
    from simulator.engine.link import LinkQueue
    from simulator.engine.stream import Stream


class ComputeStep:
    """A compute.

    Attributes
    ----------
    kind
        ``COMPUTE``.
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
    duration_ns
        What this issue takes, if its op does not take the same each time [ns]; else negative.
    """

    duration_ns = -1
    __slots__ = ("after", "is_free", "kind", "line", "op", "queue", "reads", "stream", "turns", "writes")

    def __init__(
        self,
        op: int,
        stream: Stream,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        turns: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.kind, self.op, self.stream, self.queue = COMPUTE, op, stream, stream.queue
        self.reads, self.writes, self.turns = reads, writes, turns
        self.after = self.line = ()  # type: Computes
        self.is_free = False

    def issue(self, host: Host) -> bool:
        """Issue it, unless the queue is full."""
        if not host.credit and not host.has_credit():
            return False
        host.credit -= 1
        key, queue = host.key, self.queue
        queue.append((key, self.op, self, host.now, host.lap))
        if len(queue) == 1 and self.stream.running is None:
            host.rounds.consider(self.stream, key)
        return True


class LateStep(ComputeStep):
    """A compute of an op with late reads: it takes as long as what it reads this time.

    Parameters
    ----------
    step
        What it is otherwise.
    duration_ns, chosen_bytes
        Its time alone [ns]; what it reads beside what it reads each time [B].
    """

    __slots__ = ("chosen_bytes", "duration_ns")

    def __init__(self, step: ComputeStep, duration_ns: int, chosen_bytes: int) -> None:
        super().__init__(step.op, step.stream, step.reads, step.writes, step.turns)
        self.after, self.line = step.after, step.line
        self.duration_ns, self.chosen_bytes = duration_ns, chosen_bytes


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

    __slots__ = ("alone_ns", "gate", "gate_number", "kind", "line", "link", "moves", "tensor", "writers")

    def __init__(
        self, link: LinkQueue, tensor: int, gate: Stream, gate_number: int, moves: int, writers: Computes
    ) -> None:
        self.kind, self.link, self.tensor, self.moves, self.writers = COPY, link, tensor, moves, writers
        self.gate, self.gate_number = gate, gate_number
        self.line: Computes = ()
        self.alone_ns = link.alone_ns[tensor]

    def issue(self, host: Host) -> bool:
        """Issue it."""
        self.link.append((host.key, self, host.lap, host.now))
        return True


class DetachStep:
    """A detach; once issued, it acts when all earlier steps that name the tensor have ended.

    As an event it is its time of issue, if it could act before that.

    Attributes
    ----------
    tensor, tier
        The place.
    moves
        Moves of the tensor that must have ended.
    users
        Computes issued before that use the tensor; all, where an output's only valid copy is given up.
    """

    callbacks: ClassVar[tuple[Callable[[DetachStep], None], ...]]
    _places: Places
    _key: int
    _lap: int
    _issued_ns: int
    _left: Iterator[tuple[Stream, int]]
    __slots__ = ("_issued_ns", "_key", "_lap", "_left", "_places", "kind", "moves", "tensor", "tier", "users")

    def __init__(self, tensor: int, tier: int, moves: int, users: Computes) -> None:
        self.kind, self.tensor, self.tier, self.moves, self.users = DETACH, tensor, tier, moves, users

    def issue(self, host: Host) -> bool:
        """Issue it; in a plan of several laps a detach of its own, as that of the lap before may not have acted."""
        issued = DetachStep(self.tensor, self.tier, self.moves, self.users) if host.has_laps else self
        issued._key, issued._lap, issued._issued_ns, issued._places = host.key, host.lap, host.now, host.places
        issued._left = iter(self.users)
        issued.look_again()
        return True

    def look_again(self) -> None:
        """Wait for the next user that has not ended, then for earlier moves, or act in the present round."""
        lap = self._lap
        for stream, number in self._left:
            due = number + lap * stream.per_lap
            if stream.ended < due:
                stream.wait_for_end(due, self)
                return
        places, tensor = self._places, self.tensor
        moves = self.moves + lap * places.moves_per_lap[tensor]
        if places.moves_ended[tensor] < moves:
            places.wait_for_moves(tensor, moves, self._key, self)
        elif self._issued_ns > places.rounds.clock.now:
            places.rounds.clock.at(self._issued_ns, self)
        else:
            places.rounds.frees.append(self)

    def join_round(self) -> None:
        """Act in the present round: the time of issue has come."""
        rounds = self._places.rounds
        rounds.frees.append(self)
        rounds.close()

    def act(self) -> None:
        """Free the place."""
        self._places.free(self.tensor, self.tier)
        self._places.end_move(self.tensor)


DetachStep.callbacks = (DetachStep.join_round,)


class SyncStep:
    """A sync; attributes as those of a detach."""

    __slots__ = ("kind", "moves", "tensor", "users")

    def __init__(self, tensor: int, moves: int, users: Computes) -> None:
        self.kind, self.tensor, self.moves, self.users = SYNC, tensor, moves, users

    def issue(self, host: Host) -> bool:
        """Go past it, or let the host look again when the next step that names the tensor ends."""
        if host.is_ahead:
            host.wait_for_clock()
            return False
        places, tensor = host.places, self.tensor
        if wait_for(self.users, host.lap, host):
            host.awaited = tensor
            return False
        moves = self.moves + host.lap * places.moves_per_lap[tensor]
        if places.moves_ended[tensor] < moves:
            host.awaited = tensor
            places.wait_for_moves(tensor, moves, host.key, host)
            return False
        return True


Step = ComputeStep | CopyStep | DetachStep | SyncStep
