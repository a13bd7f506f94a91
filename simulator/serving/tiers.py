"""KV blocks in tiers: held by sequences that run, cached after they have left, stored one tier down, dropped at last.

A block is named by what its tokens are: the i-th of a shared prefix, or the i-th of a request. The compute tier holds
the blocks of all sequences that run. What they leave is cached there, if that tier keeps blocks, the least recently
used first to go when room is needed; then it is stored in the next tier down, unless that has it already, where it may
make the least recently used one go further down. From the last tier blocks are dropped. A block that is copied in stays
where it was as well, so that it need not be stored again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """The name of a block.

    Attributes
    ----------
    is_shared
        Whether it is one of a prefix, which other prompts may begin with.
    owner, number
        Of which prefix, or of which request; and which of its blocks.
    """

    is_shared: bool
    owner: int
    number: int


class Tiers:
    """Which blocks are where.

    Parameters
    ----------
    names
        The compute tier, and those below that keep blocks, in order.
    rooms
        How many blocks each has room for; ``inf`` for all.
    keeps
        Whether the compute tier keeps what sequences leave.

    Attributes
    ----------
    stores
        (source, target) -> how many blocks were stored since this was last cleared.
    """

    def __init__(self, names: Sequence[str], rooms: Sequence[float], *, keeps: bool = True) -> None:
        self.names, self.rooms, self._keeps = tuple(names), tuple(rooms), keeps
        self._held: dict[Block, int] = {}
        self._cached: list[OrderedDict[Block, None]] = [OrderedDict() for _ in names]
        self.stores: Counter[tuple[str, str]] = Counter()

    def used(self, tier: int) -> int:
        """How many blocks lie in a tier."""
        return len(self._cached[tier]) + (0 if tier else len(self._held))

    @property
    def held(self) -> int:
        """How many blocks the sequences that run have."""
        return len(self._held)

    def needs(self, leaving: Mapping[tuple[str, str], int], read: Iterable[str]) -> bool:
        """Whether stores must have ended before others go on: their room is taken, or what they store may be read.

        Parameters
        ----------
        leaving
            How many blocks are on their way, from each tier to another.
        read
            Tiers from which blocks are copied in now.
        """
        known = {target for (_, target), number in leaving.items() if number}
        held = Counter[str]()
        for (source, _), number in leaving.items():
            held[source] += number
        full = (self.used(tier) + held[name] > self.rooms[tier] for tier, name in enumerate(self.names))
        return not known.isdisjoint(read) or (bool(known) and any(full))

    def find(self, blocks: Iterable[Block]) -> list[int]:
        """In which tier each of the first blocks is, up to one that is nowhere."""
        found = []
        for block in blocks:
            tier = 0 if block in self._held else next((t for t, one in enumerate(self._cached) if block in one), -1)
            if tier < 0:
                break
            found.append(tier)
        return found

    def fits(self, hit: Sequence[Block], new: int) -> bool:
        """Whether there is room for a sequence beside those that run, that hits these blocks and has some new ones."""
        return len(self._held) + new + sum(block not in self._held for block in hit) <= self.rooms[0]

    def admit(self, hit: Sequence[Block], new: Sequence[Block]) -> None:
        """Let a sequence hold blocks that are somewhere, and new ones; what has to leave for them is stored.

        Parameters
        ----------
        hit
            As `find` found them; what is below is copied in.
        new
            Blocks that are nowhere.
        """
        for block in hit:
            self._held[block] = self._held.get(block, 0) + 1
            self._cached[0].pop(block, None)
            for below in self._cached[1:]:
                if block in below:
                    below.move_to_end(block)
        self._make_room(0, len(new))
        self._held.update(dict.fromkeys(new, 1))

    def computed(self, own: Block, shared: Block) -> bool:
        """Let others find a block of a prefix once it is computed; false if the compute tier has the same already."""
        if shared in self._held or shared in self._cached[0]:
            return False
        self._held[shared] = self._held.pop(own)
        return True

    def release(self, blocks: Sequence[Block], *, full: int, doubles: int) -> None:
        """Give up what a sequence held: its full blocks are kept, the end of the sequence the first to go.

        Parameters
        ----------
        blocks
            All that it held.
        full
            How many of them are full.
        doubles
            How many of the first ones are of a prefix: those of its own among them are there twice.
        """
        for number, block in reversed(list(enumerate(blocks))):
            self._held[block] -= 1
            if self._held[block]:
                continue
            del self._held[block]
            if number < full and (block.is_shared or number >= doubles):
                self._keep(block)

    def _keep(self, block: Block) -> None:
        if self._keeps:
            self._cached[0][block] = None
        else:
            self._push(block, 0)

    def _make_room(self, tier: int, number: int) -> None:
        while self._cached[tier] and self.used(tier) + number > self.rooms[tier]:
            block, _ = self._cached[tier].popitem(last=False)
            self._push(block, tier)

    def _push(self, block: Block, source: int) -> None:
        """Store a block in the next tier, unless it is there or there is none."""
        target = source + 1
        if target == len(self.names) or not self.rooms[target]:
            return
        if block in self._cached[target]:
            self._cached[target].move_to_end(block)
            return
        self._make_room(target, 1)
        self._cached[target][block] = None
        self.stores[self.names[source], self.names[target]] += 1
