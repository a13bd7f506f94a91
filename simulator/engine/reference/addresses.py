"""Rule 17, addresses: where places lie in a compute tier that does not only count bytes."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from simulator.engine.allocators import AddressSpace, BestFit, CachedSegments, Ranges, Wanted
from simulator.engine.program import Program
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.rooms import HOME, Room, RoomClaim
from simulator.errors import CapacityError, ScopeError, Shortfall
from simulator.graph import Graph
from simulator.hardware.device import Allocator
from simulator.offsets import Offsets, offsets, without_stream
from simulator.trace import ADDRESSES, COMPACTIONS, RESERVED, Recorder, packer
from simulator.units import human

_address_row, _reserved_row, _compaction_row = packer(ADDRESSES), packer(RESERVED), packer(COMPACTIONS)

_LARGEST = 3
"""An error about offsets that span too much names this many of the largest places."""
_ENDLESS = 1 << 62
"""Size of an address space without a limit [B]."""


class AddressedRoom(Room):
    """The room of a rank's compute tier whose places have addresses; it records these.

    Parameters
    ----------
    clock, name, index, size
        As for `Room`.
    rank, recorder
        The rank whose tier it is, and what takes the rows.

    Attributes
    ----------
    compact
        Asks for a compaction for places that fit and find no hole; None if the framework has none.
    """

    space: AddressSpace
    compact: Callable[[Wanted], None] | None = None

    def __init__(self, clock: Clock, name: str, index: int, size: int | float, rank: int, recorder: Recorder) -> None:
        super().__init__(clock, name, index, size)
        self._rank, self._recorder = rank, recorder

    def _finds_place(self, claim: RoomClaim) -> bool:
        """Return whether there is a hole for each place; ask for a compaction where that would help."""
        wanted = claim.wanted
        if claim.key == HOME:
            return True
        if not self.space.take(wanted):
            if self.compact is not None and self.space.is_fragmented(wanted):
                self.compact(wanted)
            return False
        for item, _ in wanted:
            self._record_range(item, *self.space.places[item])
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
            room, homes = int(self.size), "the homes, laid out by the row's allocator"
            demand, levers = max(self.space.reserved_bytes + size, room + 1), ("let the row name another allocator",)
            raise CapacityError(Shortfall(self.name, demand, room, homes, levers=levers))
        self._record_range(item, *self.space.places[item])
        self._record_reserved()

    def release(self, size: int, item: int) -> None:
        """Free the room and the address of a tensor, or of a workspace."""
        offset, taken = self.space.give(item)
        self._record_range(item, offset, -taken)
        self._record_reserved()
        super().release(size, item)

    def end_compaction(self, since_ns: tuple[int, int], pages: int, *, is_remap: bool) -> None:
        """Record a compaction that ends now, and move all places if it was a remap.

        Parameters
        ----------
        since_ns
            When it was asked for, and when it started [ns].
        pages, is_remap
            Number of pages it counts, and whether it merges all holes into one.
        """
        times = (*since_ns, self.clock.now)
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

    def _record_range(self, item: int, offset: int, delta_bytes: int) -> None:
        """Record that a range is taken or freed."""
        row = (without_stream(item), offset, delta_bytes)
        self._recorder.addresses += _address_row(self.clock.now, self._rank, self.index, *row)

    def _record_reserved(self) -> None:
        """Record what is reserved now."""
        reserved, hole = self.space.reserved_bytes, self.space.largest_hole_bytes
        self._recorder.reserved += _reserved_row(self.clock.now, self._rank, self.index, reserved, hole)

    @property
    def address_text(self) -> str:
        """What a message adds: how much is reserved, and the size of the largest hole."""
        if not self.has_line:
            return " (each place has its own fixed range)"
        kept, hole = human(self.space.reserved_bytes, "B"), human(self.space.largest_hole_bytes, "B")
        return f" ({kept} are reserved, and the largest hole has {hole})"


def space_for(program: Program, room: Room, figures: Allocator) -> AddressSpace:
    """Make the address space of a rank's compute tier for the allocator of its program.

    Raises
    ------
    ScopeError
        If offsets are to be fixed for a plan that decides while it runs.
    CapacityError
        If fixed offsets do not fit.
    """
    if program.allocator != "fixed":
        capacity = int(min(room.size, _ENDLESS))
        return CachedSegments(capacity, figures) if program.allocator == "caching" else BestFit(capacity)
    if program.plan.fixed is None:
        must, do = "only a plan made before the run has fixed offsets", "let the row name another allocator"
        raise ScopeError(f"plan {program.plan.name!r}", must, "a plan that decides while it runs", do)
    most = int(room.size) if isfinite(room.size) else None
    layout = offsets(program.graph, program.plan, room.index, most)
    if layout.span_bytes > room.size:
        raise _too_wide(program.graph, layout, room)
    return Ranges(layout)


def _too_wide(graph: Graph, layout: Offsets, room: Room) -> CapacityError:
    """Return the error of offsets that span more than a tier has."""
    items = map(without_stream, layout.tenancies.item.tolist())
    names = [graph.tensors[i].name if i >= 0 else f"workspace of {graph.ops[-1 - i].name}" for i in items]
    sizes = zip(names, [size for _, size in layout.ranges], strict=True)
    largest = sorted(sizes, key=lambda named: -named[1])[:_LARGEST]
    span, live = human(layout.span_bytes, "B"), human(layout.live_bytes, "B")
    less = human(int(room.size) - (layout.span_bytes - layout.live_bytes), "B")
    levers = (f"plan with at most {less} live at once", "let the row name another allocator")
    spans = f"the fixed offsets, which span {span} for {live} live at once"
    return CapacityError(Shortfall(room.name, layout.span_bytes, int(room.size), spans, tuple(largest), levers))
