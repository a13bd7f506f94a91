"""One rank's places (tensor x tier), the moves of each tensor that have ended, and who waits for more of them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from simulator.engine.program import Columns
from simulator.engine.rounds import Rounds
from simulator.engine.tier import TierInstance
from simulator.engine.waits import Counter, Waiter
from simulator.trace import RESIDENCIES, packer

_row = packer(RESIDENCIES)

NO_COPY = 1 << 62
"""In place of the key of a transfer: behind all there are."""

Transfer = tuple[int, Any, int, int]
"""A copy that was issued: key, step, lap, time of issue [ns]."""


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
        Takes the rows of the trace.

    Attributes
    ----------
    held, valid
        Per tier, per tensor: whether there is a place, and whether its content is valid.
    moves_ended, moves_per_lap
        Per tensor: copies and detaches that have ended; those in one lap of a plan that runs many.
    transfers
        Tensor -> its transfers that have not ended, in issue order; nothing of those that have none.
    """

    __slots__ = (
        "_clock",
        "_residencies",
        "_waiters",
        "held",
        "moves_ended",
        "moves_per_lap",
        "rank",
        "rounds",
        "size_bytes",
        "streams",
        "tiers",
        "transfers",
        "valid",
    )

    def __init__(
        self, rank: int, columns: Columns, tiers: list[TierInstance], rounds: Rounds, residencies: bytearray
    ) -> None:
        size_bytes = columns.size_bytes
        tensors = len(size_bytes)
        self.rank, self.size_bytes, self.tiers, self.rounds = rank, size_bytes, tiers, rounds
        self._clock = rounds.clock
        self.streams: list[Counter] = []
        self.held = [[False] * tensors for _ in tiers]
        self.valid = [[False] * tensors for _ in tiers]
        self.moves_ended = [0] * tensors
        self.moves_per_lap = [0] * tensors
        self._waiters: dict[int, list[tuple[int, int, Waiter]]] = {}
        self.transfers: dict[int, list[Transfer]] = {}
        self._residencies = residencies

    def hold(self, tensor: int, tier: int) -> None:
        """Mark a place as taken; its room was granted before."""
        self.held[tier][tensor] = True
        size = self.size_bytes[tensor]
        if size:
            self._residencies += _row(self._clock.now, self.rank, tier, tensor, size)

    def free(self, tensor: int, tier: int) -> None:
        """Free a place, if there is one, at the end of a detach."""
        held = self.held[tier]
        if held[tensor]:
            held[tensor] = self.valid[tier][tensor] = False
            size = self.size_bytes[tensor]
            if size:
                self._residencies += _row(self._clock.now, self.rank, tier, tensor, -size)
                self.tiers[tier].release(size, tensor)
        self.end_move(tensor)

    def note(self, tier: int, tensor: int, delta_bytes: int) -> None:
        """Write a row of the residencies."""
        self._residencies += _row(self._clock.now, self.rank, tier, tensor, delta_bytes)

    def end_move(self, tensor: int) -> None:
        """Count it, and let those look again who waited for that many."""
        self.moves_ended[tensor] = ended = self.moves_ended[tensor] + 1
        waiters = self._waiters.get(tensor)
        if waiters is not None:
            while waiters and waiters[0][0] <= ended:
                heappop(waiters)[2].look_again()
            if not waiters:
                del self._waiters[tensor]

    def first_transfer(self, tensor: int, before: int | None = None) -> Transfer | None:
        """The earliest transfer of the tensor that has not ended, among those issued before a step."""
        transfers = self.transfers.get(tensor)
        if transfers is not None and (before is None or transfers[0][0] < before):
            return transfers[0]
        return None

    def last_transfer(self, tensor: int, before: int) -> int:
        """Key of the last transfer of the tensor that has not ended, among those issued before a step, if any."""
        return next((one[0] for one in reversed(self.transfers.get(tensor, ())) if one[0] < before), NO_COPY)

    def wait_for_moves(self, tensor: int, count: int, key: int, waiter: Waiter) -> None:
        """Call `waiter` when so many moves of the tensor have ended; at the next end if they have already."""
        least = self.moves_ended[tensor] + 1
        heappush(self._waiters.setdefault(tensor, []), (count if count > least else least, key, waiter))

    def is_awaited(self, tensor: int) -> bool:
        """Whether someone waits for moves of the tensor."""
        return tensor in self._waiters
