"""Steps as the host issues them: with the counts of what must have happened before each may take effect.

See `simulator.engine.book`, which finds these counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from simulator.engine.places import Computes, Detaching, wait_for
from simulator.plan import COMPUTE, COPY, DETACH, SYNC

if TYPE_CHECKING:
    from simulator.engine.host import Host
    from simulator.engine.link import LinkQueue
    from simulator.engine.stream import Stream


class ComputeStep:
    """A compute.

    Attributes
    ----------
    op, stream
        What runs where.
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
    """

    __slots__ = ("after", "is_free", "line", "op", "reads", "stream", "turns", "writes")
    kind: ClassVar[int] = COMPUTE

    def __init__(self, op: int, stream: Stream) -> None:
        self.op, self.stream = op, stream
        self.after: Computes = ()
        self.line: Computes = ()
        self.turns: tuple[tuple[int, int], ...] = ()
        self.reads: tuple[int, ...] = ()
        self.writes: tuple[int, ...] = ()
        self.is_free = False

    def issue(self, host: Host) -> bool:
        """Issue it, unless the queue is full."""
        if not host.credit and not host.has_credit():
            return False
        host.credit -= 1
        stream = self.stream
        stream.queue.append((host.key, self, host.now, host.lap))
        if stream.running is None and len(stream.queue) == 1:
            host.rounds.consider(stream, host.key)
        return True


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

    __slots__ = ("alone_ns", "gate", "gate_number", "line", "link", "moves", "tensor", "writers")
    kind: ClassVar[int] = COPY

    def __init__(
        self, link: LinkQueue, tensor: int, gate: Stream, gate_number: int, moves: int, writers: Computes
    ) -> None:
        self.link, self.tensor, self.moves, self.writers = link, tensor, moves, writers
        self.gate, self.gate_number = gate, gate_number
        self.line: Computes = ()
        self.alone_ns = link.alone_ns[tensor]

    def issue(self, host: Host) -> bool:
        """Issue it."""
        self.link.append((host.key, self, host.lap, host.now))
        return True


class DetachStep:
    """A detach.

    Attributes
    ----------
    tensor, tier
        The place.
    moves
        Moves of the tensor that must have ended.
    users
        Computes issued before that use the tensor; all, where an output's only valid copy is given up.
    """

    __slots__ = ("moves", "tensor", "tier", "users")
    kind: ClassVar[int] = DETACH

    def __init__(self, tensor: int, tier: int, moves: int, users: Computes) -> None:
        self.tensor, self.tier, self.moves, self.users = tensor, tier, moves, users

    def issue(self, host: Host) -> bool:
        """Issue it."""
        Detaching(host.places, self, host.key, host.lap, host.now).look_again()
        return True


class SyncStep:
    """A sync; attributes as those of a detach."""

    __slots__ = ("moves", "tensor", "users")
    kind: ClassVar[int] = SYNC

    def __init__(self, tensor: int, moves: int, users: Computes) -> None:
        self.tensor, self.moves, self.users = tensor, moves, users

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
