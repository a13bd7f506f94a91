"""The scheduler, which is fixed: who runs in the next iteration, and what came of it.

Iterations follow one another. In each, every sequence whose prompt is read adds a token. Prompts fill the rest of
``max_tokens``, first come, first served, a long one in parts. A request is admitted, in the order of arrival, while
fewer than ``max_sequences`` run, tokens are left for it, and the blocks of its whole length fit beside those of the
others in the compute tier; they are its own until it ends, so that nobody is interrupted. When it is admitted, the
blocks of its prefix are looked up tier by tier up to one that is nowhere, at least its last token left out; what lies
below is copied in by the iteration that reads the first part of what is left. A block of a prefix is found by others
once the iteration that computes its last token has ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simulator.builders import Iteration
from simulator.serving.tiers import Block, Tiers
from simulator.workload import Request


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

    @property
    def is_reading(self) -> bool:
        """Whether some of its prompt is left."""
        return self.cached < self.request.prompt


@dataclass(frozen=True, slots=True)
class Work:
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

    decoding: tuple[Served, ...]
    parts: tuple[tuple[Served, int], ...]
    loads: tuple[tuple[str, int], ...]
    stores: tuple[tuple[tuple[str, str], int], ...]

    def in_room(self, here: str, room: float, left: Counter[tuple[str, str]]) -> tuple[Work, ...]:
        """What leaves the compute tier goes before, if there is no room for it beside what is copied in.

        Parameters
        ----------
        here, room
            The compute tier, and how many blocks it has room for.
        left
            How many blocks earlier iterations have left to store, from each tier to another.
        """
        leaving = sum(number for (source, _), number in (*self.stores, *left.items()) if source == here)
        if leaving + sum(number for _, number in self.loads) <= room:
            return (self,)
        return Work((), (), (), self.stores), replace(self, stores=())

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
            loads=tuple((tier, number * block) for tier, number in self.loads),
            stores=tuple((way, number * block) for way, number in self.stores),
        )


class Scheduler:
    """Who waits, and who runs.

    Parameters
    ----------
    tiers
        Which blocks are where.
    block
        Tokens of a block.
    max_sequences, max_tokens
        The most that run in an iteration.
    """

    def __init__(self, tiers: Tiers, block: int, max_sequences: int, max_tokens: int) -> None:
        self.tiers, self._block = tiers, block
        self._max_sequences, self._max_tokens = max_sequences, max_tokens
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []

    def add(self, one: Served) -> None:
        """Let a request wait."""
        self.waiting.append(one)

    def next(self, now_ns: int) -> Work:
        """Admit who can be, and say who runs next."""
        decoding = tuple(one for one in self.running if not one.is_reading)
        left, loads = self._max_tokens - len(decoding), Counter[str]()
        parts: list[tuple[Served, int]] = []
        for one in self.running:
            if one.is_reading and left:
                left -= self._part(one, left, parts)
        while left and self.waiting and len(self.running) < self._max_sequences:
            if not self._admit(self.waiting[0], loads):
                break
            one = self.waiting.popleft()
            one.admitted_ns = now_ns
            self.running.append(one)
            left -= self._part(one, left, parts)
        stores, self.tiers.stores = self.tiers.stores, Counter()
        return Work(decoding, tuple(parts), tuple(sorted(loads.items())), tuple(sorted(stores.items())))

    def _part(self, one: Served, left: int, parts: list[tuple[Served, int]]) -> int:
        new = min(left, one.request.prompt - one.cached)
        parts.append((one, new))
        return new

    def _admit(self, one: Served, loads: Counter[str]) -> bool:
        """Look its prefix up, and hold its blocks, if they fit."""
        request, size = one.request, self._block
        shared = request.shared // size
        found = self.tiers.find(Block(True, request.prefix, number) for number in range(shared))
        hit = [Block(True, request.prefix, number) for number in range(len(found))]
        total = -(-(request.prompt + request.output) // size)
        if not self.tiers.fits(hit, total - len(hit)):
            return False
        new = [Block(False, one.number, number) for number in range(len(hit), total)]
        self.tiers.admit(hit, new)
        one.blocks = [*hit, *new]
        one.cached = size * len(hit)
        one.hit = [size * found.count(tier) for tier in range(len(self.tiers.names))]
        loads.update(self.tiers.names[tier] for tier in found if tier)
        return True

    def ended(self, work: Work, now_ns: int) -> list[Served]:
        """Note that an iteration has ended; return who left."""
        for one, new in work.parts:
            self._read(one, new)
            if not one.is_reading:
                one.first_ns, one.made = now_ns, 1
        for one in work.decoding:
            one.cached += 1
            one.made += 1
        left = [one for one in self.running if one.made == one.request.output]
        for one in left:
            one.end_ns = now_ns
            shared = one.request.prefix_tokens // self._block
            self.tiers.release(one.blocks, full=one.cached // self._block, doubles=shared)
        if left:
            self.running = [one for one in self.running if one.made < one.request.output]
        return left

    def _read(self, one: Served, new: int) -> None:
        """Cache a part of a prompt; blocks of a prefix that it fills can be found from now on."""
        before, one.cached = one.cached // self._block, one.cached + new
        shared = one.request.prefix_tokens // self._block
        for number in range(before, min(one.cached // self._block, shared)):
            block = Block(True, one.request.prefix, number)
            if self.tiers.computed(one.blocks[number], block):
                one.blocks[number] = block


def longest(requests: Sequence[Request]) -> int:
    """Which of the requests has most tokens in all."""
    return max(range(len(requests)), key=lambda number: requests[number].prompt + requests[number].output)
