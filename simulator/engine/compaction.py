"""Compaction: what fits in bytes and in no hole waits until nothing runs, and until all holes are one.

From when it is asked for, no copy from or to the tier starts, and no compute; those under way end, detaches act. Then
it takes its time, all places move at once at its end, and whoever waited tries again. All waits of the rank's streams
in that time are for it. A collective that has been come to is not waited for (its peers may be late), and may begin:
what it sends lies in memory that is registered for that, and stays where it is.

It is the gate of the streams and links that it stops; those of other ranks have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import simpy

from simulator.engine.addressed import AddressedTier, FixedTier, Plain, check_span
from simulator.engine.link import LinkQueue
from simulator.engine.pools import Pools
from simulator.engine.program import Program
from simulator.engine.recorder import Recorder
from simulator.engine.rounds import Rounds, recurring
from simulator.engine.spaces import BestFit, Space
from simulator.engine.stream import Stream
from simulator.engine.tier import TierInstance
from simulator.engine.waits import Wanted
from simulator.errors import ScopeError
from simulator.hardware.device import Allocator
from simulator.offsets import offsets
from simulator.trace import COMPACTIONS, packer

_row = packer(COMPACTIONS)


_ENDLESS = 1 << 62
"""Size of an address space without a limit [B]."""


def addressed(plain: Plain, rank: int, program: Program, figures: Allocator, recorder: Recorder) -> AddressedTier:
    """Make the compute tier of a rank whose places have addresses.

    Parameters
    ----------
    plain
        Name, number, capacity and agenda; see `TierInstance`.
    rank, program
        Whose it is, and what runs there.
    figures, recorder
        Of the allocator; what takes the rows of the trace.
    """
    if program.allocator == "fixed":
        return _fixed(plain, rank, program, recorder)
    capacity, is_caching = int(min(plain[2], _ENDLESS)), program.allocator == "caching"
    space: Space = Pools(capacity, figures) if is_caching else BestFit(capacity)
    tier = AddressedTier(plain, rank, space, recorder)
    if is_caching or figures.compaction is not None:
        tier.compactor = Compactor(tier, figures, plain[3], recorder)
    return tier


def _fixed(plain: Plain, rank: int, program: Program, recorder: Recorder) -> AddressedTier:
    """Make one whose offsets are chosen before the run."""
    if program.plan.fixed is None:
        must, do = "offsets are fixed for a plan that is made before the run", "let the row name another allocator"
        raise ScopeError(f"plan {program.plan.name!r}", must, "one that decides while it runs", do)
    room = int(plain[2]) if isfinite(plain[2]) else None
    layout = offsets(program.graph, program.plan, plain[1], room)
    check_span(program.graph, layout, plain[0], plain[2])
    return FixedTier(plain, rank, layout, recorder)


def guard(tier: TierInstance, streams: Sequence[Stream], links: Sequence[LinkQueue]) -> None:
    """Make the compaction of a tier, if it has any, the gate of all that works there."""
    compactor = tier.compactor if isinstance(tier, AddressedTier) else None
    if isinstance(compactor, Compactor):
        compactor.streams, compactor.links = streams, links
        for stream in streams:
            stream.gate = compactor
        for link in links:
            link.gate = compactor


class Compactor:
    """Compacts one tier instance.

    Parameters
    ----------
    tier
        Whose holes are made one.
    allocator
        What that costs.
    rounds, recorder
        The agenda; what takes the rows of the trace.

    Attributes
    ----------
    streams, links
        Those that work in the tier (see `guard`).
    is_open
        Whether one is asked for, or under way.
    considered
        As a head of the agenda: whether it is there.
    """

    __slots__ = (
        "_asked_ns",
        "_done",
        "_figures",
        "_is_remap",
        "_pages",
        "_rank",
        "_rounds",
        "_rows",
        "_start_ns",
        "_tier",
        "_wanted",
        "considered",
        "is_open",
        "links",
        "streams",
    )

    def __init__(self, tier: AddressedTier, allocator: Allocator, rounds: Rounds, recorder: Recorder) -> None:
        self._tier, self._figures, self._rounds, self._rows = tier, allocator, rounds, recorder.compactions
        self.streams: Sequence[Stream] = ()
        self.links: Sequence[LinkQueue] = ()
        self.considered = self.is_open = self._is_remap = False
        self._wanted: Wanted = []
        self._rank, self._asked_ns, self._pages = tier.rank, 0, 0
        self._start_ns = -1
        self._done = recurring(rounds.clock, self._finish)

    def ask(self, wanted: Wanted) -> None:
        """Begin: these places fit, and find no hole."""
        if self.is_open:
            return
        self.is_open, self._wanted = True, wanted
        self._asked_ns, self._start_ns = self._rounds.clock.now, -1
        for stream in self.streams:
            if _computes(stream):
                stream.wait_for_end(stream.ended + 1, self)
        self._rounds.restless += self.streams
        self.look_again()

    def look_again(self) -> None:
        """In the present round, see whether something still runs."""
        self._rounds.consider(self, -1 - self._rank)

    def try_start(self) -> None:
        """Start once nothing runs any more."""
        if not self.is_open or self._start_ns >= 0 or any(map(_computes, self.streams)):
            return
        if any(link.running for link in self.links):
            return
        now = self._start_ns = self._rounds.clock.now
        cost, compaction = 0, self._figures.compaction
        self._is_remap = not self._tier.space.gives_back(self._wanted) and compaction is not None
        self._pages = 0
        if self._is_remap and compaction is not None:
            self._pages = pages(self._tier, self._figures)
            cost = compaction.cost_ns(self._pages)
        self._rounds.clock.at(now + cost, self._done)

    def _finish(self, event: simpy.Event) -> None:
        """Move the places, and let everything go on that was stopped."""
        tier, now = self._tier, self._rounds.clock.now
        moves = list(tier.space.compact()) if self._is_remap else []
        for item, (offset, size), _ in moves:
            tier.note(item, offset, -size)
        for item, _, (offset, size) in moves:
            tier.note(item, offset, size)
        tier.note_reserved()
        times = (self._asked_ns, self._start_ns, now)
        self._rows += _row(self._rank, tier.number, *times, self._pages, int(self._is_remap))
        self.is_open = False
        tier.go_on()
        for stream in self.streams:
            if stream.queue:
                stream.look_again()
        for link in self.links:
            link.look_again()
        self._rounds.restless += self.streams
        self._rounds.close()


def _computes(stream: Stream) -> bool:
    """Whether a compute runs that is no collective."""
    return stream.running is not None and not stream.columns.is_collective[stream.running[1]]


def pages(tier: AddressedTier, allocator: Allocator) -> int:
    """How many pages a compaction counts: of all places, or of those that would move."""
    space, page = tier.space, allocator.page_bytes
    moves = allocator.compaction is not None and allocator.compaction.pages == "moved"
    size = space.movable_bytes if moves else sum(size for _, size in space.places.values())
    return -(-size // page)
