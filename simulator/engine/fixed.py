"""A compute tier in which each place has had its range since before the run."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from simulator.engine.addressed import AddressedTier, Plain
from simulator.engine.rounds import Taker
from simulator.engine.spaces import Reserved
from simulator.errors import CapacityError, Shortfall
from simulator.graph import Graph
from simulator.offsets import Offsets, without_stream
from simulator.units import human

if TYPE_CHECKING:
    from simulator.engine.recorder import Recorder

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
