"""Rule 17: places that fit in bytes but in no hole wait until nothing runs, and until all holes are one."""

from __future__ import annotations

from simulator.engine.allocators import AddressSpace, Wanted
from simulator.engine.reference.actions import Action
from simulator.engine.reference.addresses import AddressedRoom
from simulator.engine.reference.clock import START
from simulator.engine.reference.rank import Rank, Steps
from simulator.engine.reference.rooms import Gate
from simulator.hardware.device import Allocator


class Compactor:
    """Compacts a rank's compute tier, and stops the rank's computes and the copies from and to the tier meanwhile.

    Those under way end, and detaches act. It does not wait for a collective at which the rank has arrived (its peers
    may be late), which may also start: what it sends lies in memory that is registered for that, and stays where it is.

    Parameters
    ----------
    rank, room
        The rank, and its compute tier.
    allocator
        Figures of its cost.
    """

    def __init__(self, rank: Rank, room: AddressedRoom, allocator: Allocator) -> None:
        self._rank, self._room, self._figures = rank, room, allocator
        self._links = [link for link in rank.links if room.index in (link.source, link.target)]
        self._gates: list[Gate] = [rank.gate, *(link.gate for link in self._links)]
        room.compact = self.ask

    def ask(self, wanted: Wanted) -> None:
        """Ask for a compaction: these places fit in bytes but find no hole."""
        if self._rank.gate.opens is None:
            for gate in self._gates:
                gate.opens = self._rank.clock.event()
            self._rank.on_change()
            self._rank.clock.process(self._compact(wanted))

    def _compact(self, wanted: Wanted) -> Steps:
        clock, space, asked_ns = self._rank.clock, self._room.space, self._rank.clock.now
        yield clock.turn(START, -1 - self._rank.id)
        while running := self._running():
            yield clock.any_of([action.ended(clock) for action in running])
            yield clock.turn(START, -1 - self._rank.id)
        compaction, start_ns = self._figures.compaction, clock.now
        is_remap = not space.release_cached(wanted) and compaction is not None
        counted = cost_ns = 0
        if is_remap and compaction is not None:
            counted = pages(space, self._figures)
            cost_ns = compaction.cost_ns(counted)
        yield clock.end_after(cost_ns)
        for gate in self._gates:
            opens, gate.opens = gate.opens, None
            if opens is not None:
                opens.succeed()
        self._room.end_compaction((asked_ns, start_ns), counted, is_remap=is_remap)
        for room in self._rank.rooms:  # who was first in line while the gate was closed tries again
            room.let_next_try()
        self._rank.on_change()

    def _running(self) -> list[Action]:
        """Return what has to end first."""
        rank = self._rank
        computes = [c for queue in rank.streams for c in queue.running if not rank.columns.is_collective[c.op]]
        return [*computes, *(copy for link in self._links for copy in link.queue.running if copy.link is link)]


def pages(space: AddressSpace, allocator: Allocator) -> int:
    """Count the pages of a compaction: those of all places, or of those that would move."""
    moves = allocator.compaction is not None and allocator.compaction.pages == "moved"
    size = space.movable_bytes if moves else sum(size for _, size in space.places.values())
    return -(-size // allocator.page_bytes)
