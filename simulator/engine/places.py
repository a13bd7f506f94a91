"""One rank's places (tensor x tier) and the order in which steps that name the same tensor take effect.

Each step that names a tensor is shared (a compute that reads it, a copy of it) or exclusive (a compute that writes
it, a detach). Shared steps overlap; an exclusive one waits for all earlier steps that name the tensor, and all later
ones wait for it. Computes of one stream are in order anyway, so that two kinds of counters keep this order:

- of each stream, how many computes have ended; per tensor and stream, the number of the last compute issued that
  uses it, and of the last one that writes it;
- per tensor, how many of its *moves* (copies and detaches) have ended. An exclusive step with `n` moves issued before
  it waits until `n` have ended, a shared one until those up to the last detach (the *fence*) have. As nothing behind
  an exclusive step can begin before that has ended, a count is enough.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from simulator.engine.program import Columns
from simulator.engine.rounds import Rounds
from simulator.engine.tier import TierInstance

if TYPE_CHECKING:
    from simulator.engine.link import Transfer
    from simulator.engine.stream import Stream


Computes = tuple[tuple["Stream", int], ...]
"""Computes of some streams, each by its stream and its number there."""


class Waiter(Protocol):
    """Someone who waits for moves of a tensor, or for computes, to end."""

    def look_again(self) -> None:
        """What was waited for has happened."""


class Places:
    """Places, and the moves of each tensor, of one rank.

    Parameters
    ----------
    rank
        Its number.
    columns
        Its compiled graph.
    tiers
        The rank's tier instances, by tier id.
    rounds
        The agenda of the instant.
    residencies
        Flat list that takes the rows of the trace.

    Attributes
    ----------
    held, valid
        Per tier, per tensor: whether there is a place, and whether its content is valid.
    moves_issued, moves_ended, fence
        Per tensor: copies and detaches issued, and ended; issued up to and with the last detach.
    transfers
        Per tensor: its transfers that have not ended, in issue order.
    written
        Tensors that some compute writes.
    """

    __slots__ = (
        "_residencies",
        "_waiters",
        "fence",
        "held",
        "moves_ended",
        "moves_issued",
        "rank",
        "rounds",
        "size_bytes",
        "streams",
        "tiers",
        "transfers",
        "valid",
        "written",
    )

    def __init__(
        self, rank: int, columns: Columns, tiers: list[TierInstance], rounds: Rounds, residencies: list[int]
    ) -> None:
        size_bytes = columns.size_bytes
        tensors = len(size_bytes)
        self.written = columns.written
        self.rank, self.size_bytes, self.tiers, self.rounds = rank, size_bytes, tiers, rounds
        self.streams: list[Stream] = []
        self.held = [bytearray(tensors) for _ in tiers]
        self.valid = [bytearray(tensors) for _ in tiers]
        self.moves_issued = [0] * tensors
        self.moves_ended = [0] * tensors
        self.fence = [0] * tensors
        self._waiters: list[list[tuple[int, int, Waiter]]] = [[] for _ in size_bytes]
        self.transfers: list[deque[Transfer]] = [deque() for _ in size_bytes]
        self._residencies = residencies

    def hold(self, tensor: int, tier: int) -> None:
        """Mark a place as taken; its room was granted before."""
        self.held[tier][tensor] = 1
        size = self.size_bytes[tensor]
        if size:
            self._residencies += (self.rounds.env.now, self.rank, tier, tensor, size)

    def note(self, tier: int, tensor: int, delta_bytes: int) -> None:
        """Write a row of the residencies."""
        self._residencies += (self.rounds.env.now, self.rank, tier, tensor, delta_bytes)

    def end_move(self, tensor: int) -> None:
        """Count it, and let those look again who waited for that many."""
        ended = self.moves_ended[tensor] = self.moves_ended[tensor] + 1
        waiters = self._waiters[tensor]
        while waiters and waiters[0][0] <= ended:
            heappop(waiters)[2].look_again()

    def first_transfer(self, tensor: int, before: int | None = None) -> Transfer | None:
        """The earliest transfer of the tensor that has not ended, among those issued before a step."""
        transfers = self.transfers[tensor]
        if transfers and (before is None or transfers[0].key < before):
            return transfers[0]
        return None

    def wait_for_moves(self, tensor: int, count: int, key: int, waiter: Waiter) -> None:
        """Call `waiter` when so many moves of the tensor have ended; at the next end if they have already."""
        least = self.moves_ended[tensor] + 1
        heappush(self._waiters[tensor], (count if count > least else least, key, waiter))

    def users(self, tensor: int) -> Computes:
        """For each stream the last compute issued that uses the tensor, if it has not ended."""
        found: Computes = ()
        for stream in self.streams:
            last = stream.last_use[tensor]
            if stream.ended < last:
                found += ((stream, last),)
        return found

    def writers(self, tensor: int) -> Computes:
        """For each stream the last compute issued that writes the tensor, if it has not ended."""
        found: Computes = ()
        for stream in self.streams:
            last = stream.last_write[tensor]
            if stream.ended < last:
                found += ((stream, last),)
        return found

    def settled(self, tensor: int) -> bool:
        """Whether all issued steps that name the tensor have ended."""
        return self.moves_ended[tensor] == self.moves_issued[tensor] and not self.users(tensor)


def wait_for(computes: Computes, waiter: Waiter) -> bool:
    """Whether some of the computes have not ended; if so, call `waiter` when the first of those has."""
    for stream, number in computes:
        if stream.ended < number:
            stream.wait_for_end(number, waiter)
            return True
    return False


class Detaching:
    """A detach that was issued: it acts once all earlier steps that name the tensor have ended."""

    __slots__ = ("_before", "_places", "_users", "key", "tensor", "tier")

    def __init__(self, places: Places, key: int, tensor: int, tier: int) -> None:
        self._places, self.key, self.tensor, self.tier = places, key, tensor, tier
        self._before = before = places.moves_issued[tensor]
        self._users = places.users(tensor)
        places.moves_issued[tensor] = places.fence[tensor] = before + 1
        self.look_again()

    def look_again(self) -> None:
        """Act in the present round, or wait."""
        places, tensor = self._places, self.tensor
        if self._users:
            if wait_for(self._users, self):
                return
            self._users = ()
        if places.moves_ended[tensor] < self._before:
            places.wait_for_moves(tensor, self._before, self.key, self)
        else:
            places.rounds.frees.append(self)

    def act(self) -> None:
        """Free the place."""
        places, tensor, tier = self._places, self.tensor, self.tier
        size = places.size_bytes[tensor] if places.held[tier][tensor] else 0
        places.held[tier][tensor] = places.valid[tier][tensor] = 0
        if size:
            places.note(tier, tensor, -size)
            places.tiers[tier].release(size)
        places.end_move(tensor)
