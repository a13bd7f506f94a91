"""The scheduler, which is fixed: who runs in the next iteration, and what came of it.

Iterations follow one another. In each, every sequence whose prompt is read adds a token. Prompts fill the rest of
``max_tokens``, first come, first served, a long one in parts. A request is admitted, in the order of arrival, while
fewer than ``max_sequences`` run, tokens are left for it, and the blocks of its whole length fit beside those of the
others in the compute tier; they are its own until it ends, so that nobody is interrupted. When it is admitted, the
blocks of its prefix are looked up tier by tier up to one that is nowhere, at least its last token left out; what lies
below is copied in by the iteration that reads the first part of what is left. A block of a prefix is found by others
once the iteration that computes its last token has ended.

KV blocks lie in tiers: held by sequences that run, cached after they have left, stored one tier down, dropped at last.
A block is named by what its tokens are: the i-th of a shared prefix (of a tree of prefixes, that in which it ends), or
the i-th of a request. The compute tier holds
the blocks of all sequences that run. What they leave is cached there, if that tier keeps blocks, the least recently
used first to go when room is needed; then it is stored in the next tier down, unless that has it already, where it may
make the least recently used one go further down. From the last tier blocks are dropped. A block that is copied in stays
where it was as well, so that it need not be stored again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.builders import Iteration
from simulator.workload import Request, Requests


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
            if number >= full or (number < doubles and not block.is_shared):
                continue
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


@dataclass(slots=True, eq=False)
class Served:
    """A request, and what became of it.

    Attributes
    ----------
    number, request
        Which one.
    admitted_ns, first_ns, end_ns
        When it was admitted, when it had its first token and its last one [ns]; None if that was never.
    hit
        For each tier how many tokens of its prompt were found there.
    cached, made
        How many of its tokens are cached, and how many it has added.
    blocks
        What it holds.
    shared
        The blocks of its prefix, whoever computes them.
    """

    number: int
    request: Request
    admitted_ns: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    hit: list[int] = field(default_factory=list)
    cached: int = 0
    made: int = 0
    blocks: list[Block] = field(default_factory=list)
    shared: list[Block] = field(default_factory=list)

    @property
    def is_reading(self) -> bool:
        """Whether some of its prompt is left."""
        return self.cached < self.request.prompt


class Work(NamedTuple):
    """Who runs in an iteration.

    Attributes
    ----------
    decoding
        Sequences that add a token.
    parts
        Sequences that read, and how many tokens of the prompt.
    loads, stores
        How many blocks are copied in from each tier, and from each one to another.
    """

    decoding: Sequence[Served] = ()
    parts: Sequence[tuple[Served, int]] = ()
    loads: Mapping[str, int] = {}
    stores: Mapping[tuple[str, str], int] = {}

    def iteration(self, block: int) -> Iteration:
        """What that is to a builder, for blocks of so many tokens."""
        ends = sum(one.cached + new == one.request.prompt for one, new in self.parts)
        return Iteration(
            decoding=len(self.decoding),
            context=sum(one.cached for one in self.decoding),
            reading=sum(new for _, new in self.parts),
            cached=sum(one.cached for one, _ in self.parts),
            pairs=sum(new * one.cached + new * (new + 1) // 2 for one, new in self.parts),
            answers=len(self.decoding) + ends,
            loads=tuple(sorted((tier, number * block) for tier, number in self.loads.items())),
            stores=tuple(sorted((way, number * block) for way, number in self.stores.items())),
        )


class Scheduler:
    """Who waits, and who runs.

    Parameters
    ----------
    tiers
        Which blocks are where.
    asked
        How large these are, and the most that run in an iteration.
    """

    def __init__(self, tiers: Tiers, asked: Requests) -> None:
        self.tiers, self._block = tiers, asked.block
        self._max_sequences, self._max_tokens = asked.max_sequences, asked.max_tokens
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []

    def next(self, now_ns: int) -> list[Work]:
        """Admit who can be, and say who runs next: mostly one iteration, none if there is nothing to do.

        What leaves the compute tier goes in an iteration before, if there is no room for it beside what is copied in.
        """
        decoding = [one for one in self.running if not one.is_reading]
        left, loads = self._max_tokens - len(decoding), Counter[str]()
        parts: list[tuple[Served, int]] = []
        waiting = (one for one in self.running if one.is_reading)
        while left and (one := next(waiting, None) or self._admitted(loads, now_ns)):
            new = min(left, one.request.prompt - one.cached)
            parts.append((one, new))
            left -= new
        stores, self.tiers.stores = self.tiers.stores, Counter()
        leaving = sum(number for (source, _), number in stores.items() if source == self.tiers.names[0])
        if leaving + loads.total() > self.tiers.rooms[0]:
            return [Work(stores=stores), Work(decoding, parts, loads)]
        return [Work(decoding, parts, loads, stores)] if decoding or parts or stores else []

    def _admitted(self, loads: Counter[str], now_ns: int) -> Served | None:
        """Look up the prefix of who is next, and let it hold its blocks, if they fit; note what is copied in."""
        if not self.waiting or len(self.running) >= self._max_sequences:
            return None
        one, size = self.waiting[0], self._block
        request = one.request
        if not one.shared:
            one.shared = [Block(True, prefix, number) for number, prefix in enumerate(request.prefixes(size))]
        found = self.tiers.find(one.shared[: request.shared // size])
        hit = one.shared[: len(found)]
        total = -(-(request.prompt + request.output) // size)
        if not self.tiers.fits(hit, total - len(hit)):
            return None
        new = [Block(False, one.number, number) for number in range(len(hit), total)]
        self.tiers.admit(hit, new)
        one.blocks, one.cached, one.admitted_ns = [*hit, *new], size * len(hit), now_ns
        one.hit = [size * found.count(tier) for tier in range(len(self.tiers.names))]
        loads.update(self.tiers.names[tier] for tier in found if tier)
        self.running.append(self.waiting.popleft())
        return one

    def ended(self, work: Work, now_ns: int) -> list[Served]:
        """Note that an iteration has ended; return who left.

        Blocks of a prefix that were filled can be found from now on.
        """
        for one, new in work.parts:
            before, one.cached = one.cached // self._block, one.cached + new
            for number, block in enumerate(one.shared[before : one.cached // self._block], before):
                if self.tiers.computed(one.blocks[number], block):
                    one.blocks[number] = block
            if not one.is_reading:
                one.first_ns, one.made = now_ns, 1
        for one in work.decoding:
            one.cached += 1
            one.made += 1
        left = [one for one in self.running if one.made == one.request.output]
        for one in left:
            one.end_ns = now_ns
            self.tiers.release(one.blocks, full=one.cached // self._block, doubles=len(one.shared))
            one.blocks, one.shared = [], []
        if left:
            self.running = [one for one in self.running if one.made < one.request.output]
        return left
