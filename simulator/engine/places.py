"""The places of tensors in tiers: room and addresses, what is valid, and which moves have ended.

Who takes room stands in line, computes first, strictly in (rank, issue) order. Where every place has had its range
since before the run, nobody stands in line: a place waits for its own range alone, whose last owner was issued before,
and so was the detach that frees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from simulator.engine.allocators import AddressSpace
from simulator.engine.event_loop import Rounds, Taker, Wanted
from simulator.errors import CapacityError, Shortfall
from simulator.offsets import without_stream
from simulator.trace import ADDRESSES, COMPACTIONS, RESERVED, RESIDENCIES, Recorder, packer
from simulator.units import human

_address_row, _reserved_row, _compaction_row = packer(ADDRESSES), packer(RESERVED), packer(COMPACTIONS)

COPIES = 1 << 62
"""Who is first in line has the least turn: the key of its action, of a copy and this, so that computes go first."""


class TierInstance:
    """Room that is taken and freed.

    Parameters
    ----------
    name, index
        Its tier's name and id.
    capacity
        What fits [B], or ``inf``.
    rounds
        Where a waiting head is put on the agenda when room is freed.

    Attributes
    ----------
    used
        How much is taken [B].
    has_line
        Whether a place waits for those that were issued before; if not, it waits for its own range alone.
    """

    has_line = True

    def __init__(self, name: str, index: int, capacity: int | float, rounds: Rounds) -> None:
        self.name, self.index, self.capacity, self.used = name, index, capacity, 0
        self._line: list[tuple[int, Taker]] = []
        self.rounds = rounds

    def admit(self, head: Taker, turn: int, size: int) -> bool:
        """Take room for the first action of a head, or put it in line."""
        line = self._line
        if (line and turn > line[0][0] and self.has_line) or not self._take(head, size):
            if not any(turn == waiting for waiting, _ in line):
                heappush(line, (turn, head))
            return False
        if line and turn == line[0][0]:
            heappop(line)
            self.retry_line()
        return True

    def _take(self, head: Taker, size: int) -> bool:
        """Take room, if so much is left."""
        fits = self.used + size <= self.capacity
        self.used += size if fits else 0
        return fits

    def settle(self, item: int, size: int, tensor: str) -> None:
        """Take room at time 0.

        Raises
        ------
        CapacityError
            If the homes are too large.
        """
        self.used += size
        if self.used > self.capacity:
            raise CapacityError(Shortfall(self.name, self.used, int(self.capacity), f"home of {tensor!r}"))

    def release(self, size: int, item: int) -> None:
        """Free the room of a tensor, or a workspace (`simulator.offsets`); whoever waits for it tries again."""
        self.used -= size
        if self._line:
            self.retry_line()

    def retry_line(self) -> None:
        """Ask for another try of the first in line; or of all, where each waits for its own range."""
        for turn, head in self._line[:1] if self.has_line else self._line:
            self.rounds.consider(head, turn & ~COPIES)
        if not self.has_line:
            self._line.clear()

    @property
    def in_pieces(self) -> str:
        """Words that a message about a wait for room adds about addresses."""
        return ""


class AddressedTier(TierInstance):
    """Room in which each place has an address; it writes the rows of the trace about them.

    Parameters
    ----------
    name, index, capacity, rounds
        As for `TierInstance`.
    rank, recorder
        Whose tier this is, and what takes the rows.

    Attributes
    ----------
    space
        Gives places their addresses.
    ask
        Begins a compaction for places that fit and find no hole; None if the framework cannot.
    """

    space: AddressSpace
    ask: Callable[[Wanted], None] | None = None

    def __init__(
        self, name: str, index: int, capacity: int | float, rounds: Rounds, rank: int, recorder: Recorder
    ) -> None:
        super().__init__(name, index, capacity, rounds)
        self._rank, self._clock, self._recorder = rank, rounds.clock, recorder

    def _take(self, head: Taker, size: int) -> bool:
        """Take room, if so much is left in one piece; ask for a compaction where that would help."""
        if self.used + size > self.capacity:
            return False
        wanted, space = head.wanted(), self.space
        if not space.take(wanted):
            if self.ask is not None and space.is_fragmented(wanted):
                self.ask(wanted)
            return False
        self.used += size
        for item, _ in wanted:
            self._record_range(item, *space.places[item])
        if self.has_line:
            self._record_reserved()
        return True

    def settle(self, item: int, size: int, tensor: str) -> None:
        """Take room at time 0.

        Raises
        ------
        CapacityError
            If the homes are too large, or find no hole.
        """
        super().settle(item, size, tensor)
        if not size:
            return
        if not self.space.settle(item, size):
            room, homes = int(self.capacity), f"homes in {self.name}, by the rules of the row's allocator"
            demand, levers = max(self.space.reserved_bytes + size, room + 1), ("let the row name another allocator",)
            raise CapacityError(Shortfall(self.name, demand, room, homes, levers=levers))
        self._record_range(item, *self.space.places[item])
        self._record_reserved()

    def release(self, size: int, item: int) -> None:
        """Free the room and the address of a tensor, or a workspace (`simulator.offsets`)."""
        offset, taken = self.space.give(item)
        self._record_range(item, offset, -taken)
        self._record_reserved()
        super().release(size, item)

    def compact(self, since_ns: tuple[int, int], pages: int, *, is_remap: bool) -> None:
        """Go on after a compaction; if it was a remap, all places move at once.

        Parameters
        ----------
        since_ns
            When it was asked for, and when it started [ns].
        pages, is_remap
            How many pages it counts, and whether it made one hole of all.
        """
        times = (*since_ns, self._clock.now)
        self._recorder.compactions += _compaction_row(self._rank, self.index, *times, pages, int(is_remap))
        before = self.space.in_order() if is_remap else []
        if is_remap:
            self.space.compact()
        moved = [(item, *old) for item, old in before if old != self.space.places[item]]
        for item, offset, size in moved:
            self._record_range(item, offset, -size)
        for item, *_ in moved:
            self._record_range(item, *self.space.places[item])
        self._record_reserved()
        self.retry_line()

    def _record_range(self, item: int, offset: int, delta_bytes: int) -> None:
        """Write that a range is taken or freed."""
        row = (without_stream(item), offset, delta_bytes)
        self._recorder.addresses += _address_row(self._clock.now, self._rank, self.index, *row)

    def _record_reserved(self) -> None:
        """Write what is reserved now."""
        reserved, hole = self.space.reserved_bytes, self.space.largest_hole_bytes
        self._recorder.reserved += _reserved_row(self._clock.now, self._rank, self.index, reserved, hole)

    @property
    def in_pieces(self) -> str:
        """Words of a message: what is reserved, and how large the largest hole is."""
        if not self.has_line:
            return " (each place waits for the range that was chosen for it)"
        kept, hole = human(self.space.reserved_bytes, "B"), human(self.space.largest_hole_bytes, "B")
        return f" (by address {kept} are reserved, and no hole is larger than {hole})"


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

    def hold(self, tensors: Iterable[int], tier: int) -> None:
        """Mark the places of these tensors as taken, if they are not yet; their room was granted before."""
        held = self.held[tier]
        for tensor in tensors:
            if not held[tensor]:
                held[tensor] = True
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

    def record(self, tier: int, tensor: int, delta_bytes: int) -> None:
        """Write a row of the residencies."""
        self._residencies += _row(self._clock.now, self.rank, tier, tensor, delta_bytes)

    def end_move(self, tensor: int) -> None:
        """Count a move that has ended, and call back those who waited for that many."""
        self.moves_ended[tensor] = ended = self.moves_ended[tensor] + 1
        if tensor in self.waiters:
            waiters = self.waiters[tensor]
            while waiters and waiters[0][0] <= ended:
                heappop(waiters)[-1]()
            if not waiters:
                del self.waiters[tensor]

    def first_transfer(self, tensor: int, before: int | None = None) -> Transfer | None:
        """Return the earliest transfer of the tensor that has not ended, among those issued before an action."""
        transfers = self.transfers.get(tensor)
        if transfers is not None and (before is None or transfers[0][0] < before):
            return transfers[0]
        return None

    def last_transfer(self, tensor: int, before: int) -> int:
        """Return the key of the last transfer of the tensor under way that was issued before an action, if any."""
        transfers = reversed(self.transfers.get(tensor, ()))
        return next((transfer[0] for transfer in transfers if transfer[0] < before), NO_COPY)

    def wait_for_moves(self, tensor: int, moves: int, key: int, look_again: Callable[[], None]) -> None:
        """Call back when so many moves of the tensor have ended, or at the next end if so many have already."""
        moves = max(moves, self.moves_ended[tensor] + 1)
        heappush(self.waiters.setdefault(tensor, []), (moves, key, look_again))
