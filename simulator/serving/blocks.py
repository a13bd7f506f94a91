"""KV blocks and the tiers where they lie: held, cached after that, stored one tier down, dropped at last.

A block is named by what its tokens are: the i-th of a shared prefix (of a tree of prefixes, that in which it ends), or
the i-th of a request; and by the layers that it is of, which keep the same tokens of a sequence. The compute tier holds
the blocks of all sequences that run. What they leave is cached there, if that tier keeps blocks, the least recently
used first to go when room is needed; then it is stored in the next tier down, unless that has it already, where it may
make the least recently used one go further down. From the last tier blocks are dropped. A block that is copied in stays
where it was as well, so that it need not be stored again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """The name of a block.

    Attributes
    ----------
    is_shared
        Whether it is one of a prefix, which other prompts may begin with.
    owner, number
        Of which prefix, or of which request; and which of its blocks.
    group
        Of which layers.
    """

    is_shared: bool
    owner: int
    number: int
    group: int = 0


class Tiers:
    """Which blocks are where.

    Parameters
    ----------
    names
        The compute tier, and those below that keep blocks, in order.
    rooms
        What each has room for [B]; ``inf`` for all.
    sizes
        What a block takes, of each group of layers [B].
    keeps
        Whether the compute tier keeps what sequences leave.

    Attributes
    ----------
    held_bytes
        What the sequences that run have [B].
    stores
        (source, target, group) -> how many blocks were stored since this was last cleared.
    """

    def __init__(
        self, names: Sequence[str], rooms: Sequence[float], sizes: Sequence[int], *, keeps: bool = True
    ) -> None:
        self.names, self.rooms, self.sizes, self._keeps = tuple(names), tuple(rooms), tuple(sizes), keeps
        self._held: dict[Block, int] = {}
        self._cached: list[OrderedDict[Block, None]] = [OrderedDict() for _ in names]
        self.held_bytes, self._cached_bytes = 0, [0 for _ in names]
        self.stores: Counter[tuple[str, str, int]] = Counter()

    def used(self, tier: int) -> int:
        """How many blocks lie in a tier."""
        return len(self._cached[tier]) + (0 if tier else len(self._held))

    @property
    def held(self) -> int:
        """How many blocks the sequences that run have."""
        return len(self._held)

    def where(self, block: Block) -> int:
        """In which tier a block is found; -1 if it is nowhere."""
        return 0 if block in self._held else next((t for t, one in enumerate(self._cached) if block in one), -1)

    def fits(self, hit: Sequence[Block], new_bytes: int) -> bool:
        """Whether there is room for a sequence beside those that run, that hits these blocks and has new ones [B]."""
        more = sum(self.sizes[block.group] for block in hit if block not in self._held)
        return self.held_bytes + new_bytes + more <= self.rooms[0]

    def admit(self, hit: Sequence[Block], new: Sequence[Block]) -> None:
        """Let a sequence hold blocks that are somewhere, and new ones; what has to leave for them is stored.

        Parameters
        ----------
        hit
            As they were found; what is below is copied in.
        new
            Blocks that are nowhere.
        """
        for block in hit:
            self._hold(block)
            self._drop(block, 0)
            for below in self._cached[1:]:
                if block in below:
                    below.move_to_end(block)
        self._make_room(0, sum(self.sizes[block.group] for block in new))
        for block in new:
            self._hold(block)

    def computed(self, own: Block, shared: Block) -> bool:
        """Let others find a block of a prefix once it is computed; false if the compute tier has the same already."""
        if shared in self._held or shared in self._cached[0]:
            return False
        self._held[shared] = self._held.pop(own)
        return True

    def release(self, block: Block, *, is_kept: bool) -> None:
        """Give up a block that a sequence held; the last one to do so leaves it cached, if it is to be kept."""
        self._held[block] -= 1
        if self._held[block]:
            return
        del self._held[block]
        self.held_bytes -= self.sizes[block.group]
        if is_kept and self._keeps:
            self._cache(block, 0)
        elif is_kept:
            self._push(block, 0)

    def _hold(self, block: Block) -> None:
        self.held_bytes += 0 if block in self._held else self.sizes[block.group]
        self._held[block] = self._held.get(block, 0) + 1

    def _cache(self, block: Block, tier: int) -> None:
        self._cached[tier][block] = None
        self._cached_bytes[tier] += self.sizes[block.group]

    def _drop(self, block: Block, tier: int) -> None:
        if self._cached[tier].pop(block, block) is None:
            self._cached_bytes[tier] -= self.sizes[block.group]

    def _make_room(self, tier: int, more_bytes: int) -> None:
        held_bytes = 0 if tier else self.held_bytes
        while self._cached[tier] and held_bytes + self._cached_bytes[tier] + more_bytes > self.rooms[tier]:
            block = next(iter(self._cached[tier]))
            self._drop(block, tier)
            self._push(block, tier)

    def _push(self, block: Block, source: int) -> None:
        """Store a block in the next tier, unless it is there or there is none, or it is too large for it."""
        target = source + 1
        if target == len(self.names) or self.sizes[block.group] > self.rooms[target]:
            return
        if block in self._cached[target]:
            self._cached[target].move_to_end(block)
            return
        self._make_room(target, self.sizes[block.group])
        self._cache(block, target)
        self.stores[self.names[source], self.names[target], block.group] += 1
