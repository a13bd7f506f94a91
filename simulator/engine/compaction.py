"""Compaction: places that fit in bytes but in no hole wait until nothing runs, and until all holes are one.

Once it is asked for, no compute starts, and no copy from or to the tier; those under way end, and detaches act. Then it
takes its time, all places move at once at its end, and the heads that waited are tried again. Meanwhile all waits of
the rank's streams are for it. It does not wait for a collective at which the rank has arrived (its peers may be late),
which may also start: what it sends lies in memory that is registered for that, and stays where it is.

A compactor is the gate of the streams and links that it stops; other gates never close.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import simpy

from simulator.engine.allocators import AddressSpace, BestFit, CachedSegments, Ranges
from simulator.engine.event_loop import Gate, Recurring, Wanted
from simulator.engine.link import LinkQueue
from simulator.engine.places import AddressedTier, TierInstance
from simulator.engine.program import Program
from simulator.engine.stream import Stream
from simulator.errors import CapacityError, ScopeError, Shortfall
from simulator.graph import Graph
from simulator.hardware.device import Allocator
from simulator.offsets import Offsets, offsets, without_stream
from simulator.units import human

_LARGEST = 3
"""An error about offsets that span too much names this many of the largest places."""
_ENDLESS = 1 << 62
"""Size of an address space without a limit [B]."""


def space_for(program: Program, tier: TierInstance, figures: Allocator) -> AddressSpace:
    """Make the address space of a rank's compute tier for the allocator of its program.

    Raises
    ------
    ScopeError
        If offsets are to be fixed for a plan that decides while it runs.
    CapacityError
        If fixed offsets do not fit.
    """
    if program.allocator != "fixed":
        capacity = int(min(tier.capacity, _ENDLESS))
        return CachedSegments(capacity, figures) if program.allocator == "caching" else BestFit(capacity)
    if program.plan.fixed is None:
        must, do = "offsets are fixed for a plan that is made before the run", "let the row name another allocator"
        raise ScopeError(f"plan {program.plan.name!r}", must, "one that decides while it runs", do)
    room = int(tier.capacity) if isfinite(tier.capacity) else None
    layout = offsets(program.graph, program.plan, tier.index, room)
    if layout.span_bytes > tier.capacity:
        raise _too_wide(program.graph, layout, tier)
    return Ranges(layout)


def _too_wide(graph: Graph, layout: Offsets, tier: TierInstance) -> CapacityError:
    """Return the error of offsets that span more than a tier has."""
    items = map(without_stream, layout.tenancies.item.tolist())
    names = [graph.tensors[i].name if i >= 0 else f"workspace of {graph.ops[-1 - i].name}" for i in items]
    sizes = zip(names, [size for _, size in layout.ranges], strict=True)
    largest = sorted(sizes, key=lambda named: -named[1])[:_LARGEST]
    span, live = human(layout.span_bytes, "B"), human(layout.live_bytes, "B")
    less = human(int(tier.capacity) - (layout.span_bytes - layout.live_bytes), "B")
    levers = (f"plan with at most {less} live at once", "let the row name another allocator")
    spans = f"fixed offsets span {span}, of which {live} are live at once"
    return CapacityError(Shortfall(tier.name, layout.span_bytes, int(tier.capacity), spans, tuple(largest), levers))


class Compactor(Gate):
    """Compacts one tier instance; as a head of the agenda, it starts once nothing runs there any more.

    Parameters
    ----------
    tier
        The tier instance.
    allocator
        Figures of its cost.
    streams, links
        Those that work in the tier.

    Attributes
    ----------
    is_closed
        Whether a compaction is asked for, or under way.
    considered
        Whether it is on the agenda.
    """

    def __init__(
        self, tier: AddressedTier, allocator: Allocator, streams: Sequence[Stream], links: Sequence[LinkQueue]
    ) -> None:
        self._tier, self._figures = tier, allocator
        self._streams, self._links, self._rounds = streams, links, streams[0].places.rounds
        self.considered = self.is_closed = self._is_remap = False
        self._wanted: Wanted = []
        self._asked_ns, self._start_ns, self._pages = 0, -1, 0
        self._done = Recurring(self._rounds.clock, self._finish)
        tier.ask = self.ask
        self._heads: tuple[Stream | LinkQueue, ...] = (*streams, *links)
        for head in self._heads:
            head.gate = self

    def ask(self, wanted: Wanted) -> None:
        """Ask for a compaction: these places fit in bytes but find no hole."""
        if self.is_closed:
            return
        self.is_closed, self._wanted = True, wanted
        self._asked_ns, self._start_ns = self._rounds.clock.now, -1
        for stream in self._streams:
            if _is_busy(stream):
                stream.ended.wait(stream.ended.reached + 1, self.look_again)
        self._rounds.accounts += [stream.ledger for stream in self._streams]
        self.look_again()

    def look_again(self) -> None:
        """Ask for a check in this round whether anything still runs."""
        self._rounds.consider(self, -1 - self._streams[0].rank)

    def try_start(self) -> None:
        """Start once nothing runs any more."""
        if not self.is_closed or self._start_ns >= 0 or any(map(_is_busy, self._streams)):
            return
        if any(channel.link is link for link in self._links for channel in link.running):  # a queue may serve others
            return
        now = self._start_ns = self._rounds.clock.now
        compaction, space = self._figures.compaction, self._tier.space
        self._is_remap = not space.release_cached(self._wanted) and compaction is not None
        self._pages = cost = 0
        if self._is_remap and compaction is not None:
            self._pages = pages(space, self._figures)
            cost = compaction.cost_ns(self._pages)
        self._rounds.clock.at(now + cost, self._done)

    def _finish(self, event: simpy.Event) -> None:
        """Move the places, and let everything that was stopped go on."""
        self.is_closed = False
        self._tier.compact((self._asked_ns, self._start_ns), self._pages, is_remap=self._is_remap)
        for head in self._heads:
            head.look_again()
        self._rounds.accounts += [stream.ledger for stream in self._streams]


def _is_busy(stream: Stream) -> bool:
    """Return whether the stream runs a compute other than a collective."""
    return stream.running is not None and not stream.columns.is_collective[stream.running[1]]


def pages(space: AddressSpace, allocator: Allocator) -> int:
    """Count the pages of a compaction: those of all places, or of those that would move."""
    moves = allocator.compaction is not None and allocator.compaction.pages == "moved"
    size = space.movable_bytes if moves else sum(size for _, size in space.places.values())
    return -(-size // allocator.page_bytes)
