"""A compute tier whose places have addresses, so that room may be there and yet in no piece that is large enough."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from simulator.engine.recorder import Recorder
from simulator.engine.rounds import Rounds
from simulator.engine.spaces import Reserved, Space
from simulator.engine.tier import TierInstance
from simulator.engine.waits import Taker, Wanted
from simulator.errors import CapacityError, Shortfall
from simulator.graph import Graph
from simulator.offsets import Offsets, without_stream
from simulator.trace import ADDRESSES, RESERVED, packer
from simulator.units import human

_address_row, _reserved_row = packer(ADDRESSES), packer(RESERVED)

Plain = tuple[str, int, int | float, Rounds]
"""Name, number and capacity [B] of a tier, and its agenda."""


class Compacts(Protocol):
    """Makes one hole of many."""

    def ask(self, wanted: Wanted) -> None:
        """Begin: these places fit, and find no hole."""


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
        self.compactor: Compacts | None = None

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


_LARGEST = 3


class FixedTier(AddressedTier):
    """A place waits until whoever had its range before, in issue order, has left; nothing else stands in its way.

    Who had it before is issued before, and so is the detach that frees it: no two can wait for one another, and nobody
    stands in line.

    Parameters
    ----------
    plain, rank, recorder
        See `AddressedTier`.
    layout
        Where places lie.
    """

    __slots__ = ("_freed", "_layout", "_taken", "_tenancy", "_waiters")

    def __init__(self, plain: Plain, rank: int, layout: Offsets, recorder: Recorder) -> None:
        self._layout = layout
        self._tenancy: dict[int, int] = {}
        self._taken: defaultdict[int, int] = defaultdict(int)
        self._freed: defaultdict[int, int] = defaultdict(int)
        self._waiters: defaultdict[int, list[tuple[int, Taker]]] = defaultdict(list)
        super().__init__(plain, rank, Reserved(layout.span_bytes), recorder)

    @property
    def in_pieces(self) -> str:
        """That a place waits for its own range."""
        return " (each place waits for the range that was chosen for it)"

    def settle(self, item: int, size: int) -> None:
        """Take room at time 0."""
        self.used += size
        if size:
            self._occupy(item, self._layout.at_home[item])
            self.note_reserved()

    def admit_compute(self, head: Taker, key: int, size: int) -> bool:
        """Take the ranges for a compute, or wait for the first that is not free."""
        return self._admit_when_free(head, key, size)

    def admit_copy(self, head: Taker, key: int, size: int) -> bool:
        """Take the range for a copy, or wait until it is free."""
        return self._admit_when_free(head, key, size)

    def _admit_when_free(self, head: Taker, key: int, size: int) -> bool:
        wanted = [(item, self._next(item)) for item, _ in head.wanted()]
        for item, tenancy in wanted:
            lap = self._taken[item] // len(self._layout.of_item[item])
            for other, more in self._layout.before[tenancy]:
                if self._freed[other] < lap + more:
                    self._waiters[other].append((key, head))
                    return False
        for item, tenancy in wanted:
            self._taken[item] += 1
            self._occupy(item, tenancy)
        self.used += size
        return True

    def _next(self, item: int) -> int:
        """The tenancy with which a place is taken next."""
        tenancies = self._layout.of_item[item]
        return tenancies[self._taken[item] % len(tenancies)]

    def _occupy(self, item: int, tenancy: int) -> None:
        offset, size = self._layout.offsets[tenancy], self._layout.tenancies[tenancy].size_bytes
        self.space.places[item] = (offset, size)
        self._tenancy[item] = tenancy
        self.note(item, offset, size)

    def release(self, size: int, item: int) -> None:
        """Free a range, and let those try again that wait for it."""
        tenancy = self._tenancy.pop(item)
        self._freed[tenancy] += 1
        super().release(size, item)
        for key, head in self._waiters.pop(tenancy, ()):
            self._rounds.consider(head, key)


def check_span(graph: Graph, layout: Offsets, tier: str, capacity: int | float) -> None:
    """Check that a layout fits.

    Raises
    ------
    CapacityError
        With what it spans, what is live at once, and what would help.
    """
    if layout.span_bytes <= capacity:
        return
    sizes = sorted(((-one.size_bytes, number) for number, one in enumerate(layout.tenancies)))[:_LARGEST]
    items = [without_stream(layout.tenancies[number].item) for _, number in sizes]
    names = [graph.tensors[i].name if i >= 0 else f"workspace of {graph.ops[-1 - i].name}" for i in items]
    at = (
        f"fixed offsets span {human(layout.span_bytes, 'B')}, of which {human(layout.live_bytes, 'B')} are live at once"
    )
    levers = (
        f"plan with at most {human(int(capacity) - (layout.span_bytes - layout.live_bytes), 'B')} live at once",
        "let the row name another allocator",
    )
    largest = tuple((name, -size) for name, (size, _) in zip(names, sizes, strict=True))
    raise CapacityError(Shortfall(tier, layout.span_bytes, int(capacity), at, largest, levers))
