"""A compute tier whose places have addresses, so that room may be there and yet in no piece that is large enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.engine.rounds import Rounds, Taker
from simulator.engine.spaces import Space
from simulator.engine.tier import TierInstance
from simulator.errors import CapacityError, Shortfall
from simulator.offsets import without_stream
from simulator.trace import ADDRESSES, RESERVED, packer
from simulator.units import human

if TYPE_CHECKING:
    from simulator.engine.compaction import Compactor
    from simulator.engine.recorder import Recorder

_address_row, _reserved_row = packer(ADDRESSES), packer(RESERVED)

Plain = tuple[str, int, int | float, Rounds]
"""Name, number and capacity [B] of a tier, and its agenda."""


class AddressedTier(TierInstance):
    """A rank's compute tier, with an address for each place.

    Parameters
    ----------
    plain
        Name, number, capacity and agenda; see `TierInstance`.
    rank
        Whose it is.
    space
        Gives places their addresses.
    recorder
        Takes the rows of the trace.

    Attributes
    ----------
    compactor
        Makes one hole of many; None if the framework cannot.
    """

    __slots__ = ("_addresses", "_reserved", "compactor", "rank", "space")

    def __init__(self, plain: Plain, rank: int, space: Space, recorder: Recorder) -> None:
        super().__init__(*plain)
        self.rank, self.space = rank, space
        self._addresses, self._reserved = recorder.addresses, recorder.reserved
        self.compactor: Compactor | None = None

    def settle(self, item: int, size: int) -> None:
        """Take room at time 0."""
        super().settle(item, size)
        if size and self.used <= self.capacity:
            self._settle(item, size)

    def _settle(self, item: int, size: int) -> None:
        if not self.space.take([(item, size)]):
            room, at = int(self.capacity), f"homes in {self.name}, by the rules of the row's allocator"
            demand = max(self.space.reserved_bytes + size, room + 1)
            raise CapacityError(Shortfall(self.name, demand, room, at, levers=("let the row name another allocator",)))
        self.note(item, *self.space.places[item])
        self.note_reserved()

    def admit_copy(self, head: Taker, key: int, size: int) -> bool:
        """Take room for a copy, or put it in the queue; computes that wait go first."""
        if self._computes:
            self._wait(self._copies, head, key)
            return False
        return self._admit(self._copies, head, key, size)

    def _take(self, head: Taker, size: int) -> bool:
        """Give addresses to what the head takes; if it fits in no hole as they lie, ask for compaction."""
        if self.used + size > self.capacity:
            return False
        wanted, space = head.wanted(), self.space
        if space.take(wanted):
            self.used += size
            for item, _ in wanted:
                self.note(item, *space.places[item])
            self.note_reserved()
            return True
        if self.compactor is not None and space.is_fragmented(wanted):
            self.compactor.ask(wanted)
        return False

    def release(self, size: int, item: int) -> None:
        """Free room and address."""
        offset, taken = self.space.give(item)
        self.note(item, offset, -taken)
        self.note_reserved()
        super().release(size, item)

    @property
    def in_pieces(self) -> str:
        """How much is reserved, and how large the largest piece is that could be given out."""
        kept, hole = human(self.space.reserved_bytes, "B"), human(self.space.largest_hole_bytes, "B")
        return f" (by address {kept} are reserved, and no hole is larger than {hole})"

    def go_on(self) -> None:
        """Let the first in the queue try again."""
        self._consider_next()

    def note(self, item: int, offset: int, delta_bytes: int) -> None:
        """Write that a range is taken or freed."""
        named = without_stream(item)
        self._addresses += _address_row(self._rounds.clock.now, self.rank, self.number, named, offset, delta_bytes)

    def note_reserved(self) -> None:
        """Write what is reserved now."""
        space, now = self.space, self._rounds.clock.now
        self._reserved += _reserved_row(now, self.rank, self.number, space.reserved_bytes, space.largest_hole_bytes)
