"""One rank's places (tensor x tier), the moves of each tensor that have ended, and who waits for more of them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simulator.engine.rounds import Rounds
from simulator.engine.tier import TierInstance
from simulator.trace import RESIDENCIES, packer

_row = packer(RESIDENCIES)

NO_COPY = 1 << 62
"""In place of the key of a transfer: behind all there are."""

Transfer = tuple[int, Any, int, int]
"""A copy that was issued: key, copy, time of issue [ns], lap."""


class Places:
    """Places, and the moves of each tensor, of one rank.

    Parameters
    ----------
    rank
        Its number.
    size_bytes
        Of each tensor [B].
    tiers
        The rank's tier instances, by tier id.
    rounds
        The agenda of the instant.
    residencies
        Takes the rows of the trace.

    Attributes
    ----------
    held, valid
        Per tier, per tensor: whether there is a place, and whether its content is valid.
    moves_ended, moves_per_lap
        Per tensor: copies and detaches that have ended; those in one lap of a plan that is run many times.
    transfers
        Tensor -> its transfers that have not ended, in issue order; nothing of those that have none.
    waiters
        Tensor -> those who wait for moves of it, as a heap: how many, their keys, and what to call.
    """

    def __init__(
        self, rank: int, size_bytes: list[int], tiers: list[TierInstance], rounds: Rounds, residencies: bytearray
    ) -> None:
        self.rank, self.size_bytes, self.tiers, self.rounds = rank, size_bytes, tiers, rounds
        self._clock, self._residencies = rounds.clock, residencies
        self.held = [[False] * len(size_bytes) for _ in tiers]
        self.valid = [[False] * len(size_bytes) for _ in tiers]
        self.moves_ended = [0] * len(size_bytes)
        self.moves_per_lap = [0] * len(size_bytes)
        self.waiters: dict[int, list[tuple[int, int, Callable[[], None]]]] = {}
        self.transfers: dict[int, list[Transfer]] = {}

    def hold(self, tensor: int, tier: int) -> None:
        """Mark a place as taken; its room was granted before."""
        self.held[tier][tensor] = True
        if size := self.size_bytes[tensor]:
            self._residencies += _row(self._clock.now, self.rank, tier, tensor, size)

    def free(self, tensor: int, tier: int) -> None:
        """Free a place, if there is one, at the end of a detach."""
        held = self.held[tier]
        if held[tensor]:
            held[tensor] = self.valid[tier][tensor] = False
            if size := self.size_bytes[tensor]:
                self._residencies += _row(self._clock.now, self.rank, tier, tensor, -size)
                self.tiers[tier].release(size, tensor)
        self.end_move(tensor)

    def note(self, tier: int, tensor: int, delta_bytes: int) -> None:
        """Write a row of the residencies."""
        self._residencies += _row(self._clock.now, self.rank, tier, tensor, delta_bytes)

    def end_move(self, tensor: int) -> None:
        """Count it, and let those look again who waited for that many."""
        self.moves_ended[tensor] = ended = self.moves_ended[tensor] + 1
        waiters = self.waiters.get(tensor)
        if waiters is not None:
            while waiters and waiters[0][0] <= ended:
                heappop(waiters)[-1]()
            if not waiters:
                del self.waiters[tensor]

    def first_transfer(self, tensor: int, before: int | None = None) -> Transfer | None:
        """The earliest transfer of the tensor that has not ended, among those issued before an action."""
        transfers = self.transfers.get(tensor)
        if transfers is not None and (before is None or transfers[0][0] < before):
            return transfers[0]
        return None

    def last_transfer(self, tensor: int, before: int) -> int:
        """Key of the last transfer of the tensor that has not ended, among those issued before an action, if any."""
        return next((one[0] for one in reversed(self.transfers.get(tensor, ())) if one[0] < before), NO_COPY)

    def wait_for_moves(self, tensor: int, moves: int, key: int, look_again: Callable[[], None]) -> None:
        """Call back when so many moves of the tensor have ended; at the next end if they have already."""
        moves = max(moves, self.moves_ended[tensor] + 1)
        heappush(self.waiters.setdefault(tensor, []), (moves, key, look_again))
