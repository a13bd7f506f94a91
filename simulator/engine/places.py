"""The places of tensors in tiers: room and addresses, what is valid, and which moves have ended.

Heads that take room stand in line: computes before copies, each strictly in (rank, issue) order. Where every place got
its range before the run, there is no line: a place waits for its own range alone, whose last owner was issued before,
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
"""Added to the key of a copy to make its turn in the line, so that computes come first; their turns are their keys."""


class TierInstance:
    """The room of one instance of a tier.

    Parameters
    ----------
    name, index
        Name and id of the tier.
    capacity
        What fits [B], or ``inf``.
    rounds
        Where waiting heads are put on the agenda when room is freed.

    Attributes
    ----------
    used
        How much is taken [B].
    has_line
        Whether heads stand in line for room; if not, each place waits for its own range alone.
    """

    has_line = True

    def __init__(self, name: str, index: int, capacity: int | float, rounds: Rounds) -> None:
        self.name, self.index, self.capacity, self.used = name, index, capacity, 0
        self._line: list[tuple[int, Taker]] = []
        self.rounds = rounds

    def admit(self, head: Taker, turn: int, size: int) -> bool:
        """Return whether the first action of a head gets its room now; if not, put the head in line."""
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
        """Take room if enough is left; return whether it is."""
        fits = self.used + size <= self.capacity
        self.used += size if fits else 0
        return fits

    def take_home(self, item: int, size: int, tensor: str) -> None:
        """Take the room of a home, at time 0.

        Raises
        ------
        CapacityError
            If the homes are too large.
        """
        self.used += size
        if self.used > self.capacity:
            raise CapacityError(Shortfall(self.name, self.used, int(self.capacity), f"home of {tensor!r}"))

    def release(self, size: int, item: int) -> None:
        """Free the room of a tensor, or a workspace (`simulator.offsets`), and try those that wait for room."""
        self.used -= size
        if self._line:
            self.retry_line()

    def retry_line(self) -> None:
        """Put the first in line on the agenda; or all, where each waits for its own range."""
        for turn, head in self._line[:1] if self.has_line else self._line:
            self.rounds.consider(head, turn & ~COPIES)
        if not self.has_line:
            self._line.clear()

    @property
    def address_text(self) -> str:
        """What a message about a wait for room adds about addresses."""
        return ""


class AddressedTier(TierInstance):
    """The room of a tier whose places have addresses; it records these.

    Parameters
    ----------
    name, index, capacity, rounds
        As for `TierInstance`.
    rank, recorder
        The rank whose tier it is, and what takes the rows.

    Attributes
    ----------
    space
        Gives places their addresses.
    ask
        Asks for a compaction for places that fit and find no hole; None if the framework has none.
    """

    space: AddressSpace
    ask: Callable[[Wanted], None] | None = None

    def __init__(
        self, name: str, index: int, capacity: int | float, rounds: Rounds, rank: int, recorder: Recorder
    ) -> None:
        super().__init__(name, index, capacity, rounds)
        self._rank, self._clock, self._recorder = rank, rounds.clock, recorder

    def _take(self, head: Taker, size: int) -> bool:
        """Take room if enough is left in one piece; ask for a compaction where that would help."""
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

    def take_home(self, item: int, size: int, tensor: str) -> None:
        """Take the room of a home, at time 0.

        Raises
        ------
        CapacityError
            If the homes are too large, or find no hole.
        """
        super().take_home(item, size, tensor)
        if not size:
            return
        if not self.space.take_home(item, size):
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
        """Record a compaction that ends now, move all places if it was a remap, and try those that wait for room.

        Parameters
        ----------
        since_ns
            When it was asked for, and when it started [ns].
        pages, is_remap
            Number of pages it counts, and whether it merges all holes into one.
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
        """Record that a range is taken or freed."""
        row = (without_stream(item), offset, delta_bytes)
        self._recorder.addresses += _address_row(self._clock.now, self._rank, self.index, *row)

    def _record_reserved(self) -> None:
        """Record what is reserved now."""
        reserved, hole = self.space.reserved_bytes, self.space.largest_hole_bytes
        self._recorder.reserved += _reserved_row(self._clock.now, self._rank, self.index, reserved, hole)

    @property
    def address_text(self) -> str:
        """What a message adds: how much is reserved, and the size of the largest hole."""
        if not self.has_line:
            return " (each place waits for the range that was chosen for it)"
        kept, hole = human(self.space.reserved_bytes, "B"), human(self.space.largest_hole_bytes, "B")
        return f" (by address {kept} are reserved, and no hole is larger than {hole})"


_row = packer(RESIDENCIES)

NO_COPY = 1 << 62
"""Stands for the key of no transfer: above all keys."""

Transfer = tuple[int, Any, int, int]
"""A copy that was issued: key, copy, time of issue [ns], lap."""


class Places:
    """The places of one rank, and the moves (copies and detaches) of each tensor.

    Parameters
    ----------
    rank
        Its number.
    size_bytes
        Size of each tensor [B].
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
        Per tensor: how many moves have ended; how many one lap of a plan that repeats has.
    transfers
        Tensor -> its transfers that have not ended, in issue order; only of tensors that have some.
    waiters
        Tensor -> those who wait for its moves, as a heap: how many must have ended, their keys, and what to call.
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
        """Mark the places of these tensors as held, unless they are; their room was granted before."""
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
        """Record a row of the residencies."""
        self._residencies += _row(self._clock.now, self.rank, tier, tensor, delta_bytes)

    def end_move(self, tensor: int) -> None:
        """Count a move that has ended, and call back those who wait for that many."""
        self.moves_ended[tensor] = ended = self.moves_ended[tensor] + 1
        if tensor in self.waiters:
            waiters = self.waiters[tensor]
            while waiters and waiters[0][0] <= ended:
                heappop(waiters)[-1]()
            if not waiters:
                del self.waiters[tensor]

    def first_transfer(self, tensor: int, before: int | None = None) -> Transfer | None:
        """Return the first transfer of the tensor that has not ended, among those issued before an action."""
        transfers = self.transfers.get(tensor)
        if transfers is not None and (before is None or transfers[0][0] < before):
            return transfers[0]
        return None

    def last_transfer(self, tensor: int, before: int) -> int:
        """Return the key of the last transfer of the tensor that precedes an action and has not ended, or `NO_COPY`."""
        transfers = reversed(self.transfers.get(tensor, ()))
        return next((transfer[0] for transfer in transfers if transfer[0] < before), NO_COPY)

    def wait_for_moves(self, tensor: int, moves: int, key: int, look_again: Callable[[], None]) -> None:
        """Call back once so many moves of the tensor have ended; if they have already, at the end of the next."""
        moves = max(moves, self.moves_ended[tensor] + 1)
        heappush(self.waiters.setdefault(tensor, []), (moves, key, look_again))
