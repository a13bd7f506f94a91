"""The scheduler, which is fixed: who runs in the next iteration, and what came of it.

Iterations follow one another. In each, every sequence whose prompt is read adds a token. Prompts fill the rest of
``max_tokens``, first come, first served, a long one in parts. A request is admitted, in the order of arrival, while
fewer than ``max_sequences`` run, tokens are left for it, and the blocks of its whole length fit beside those of the
others in the compute tier; they are its own until it ends, so that nobody is interrupted. When it is admitted, the
blocks of its prefix are looked up tier by tier up to one that is nowhere, at least its last token left out; what lies
below is copied in by the iteration that reads the first part of what is left. A block of a prefix is found by others
once the iteration that computes its last token has ended. Where blocks lie: `simulator.serving.blocks`.

*Windows.* In layers with a window a sequence holds no more than the blocks that its next tokens see, and those that the
part of its prompt that is read at a time needs; it leaves the others as it goes on, as in vLLM's hybrid KV cache
manager. A prefix is found up to where all that the next token sees is there: of such layers the last blocks alone.

*States.* A layer of linear attention has a state of each sequence, which is that of all its tokens and of no fewer. So
of a model with such layers nothing is kept for others, and nothing is found.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from simulator.builders import CachedLayers, Iteration
from simulator.reach import Reach, TokenSpan
from simulator.serving.blocks import Block, Tiers, held_numbers, seen_numbers
from simulator.workload import Request, Requests

Way = TypeVar("Way", str, tuple[str, str])
"""From which tier blocks are copied in; or from which to which they are stored."""


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
        What it holds of each group of layers: number -> block, in order.
    shared
        Of each group the blocks of its prefix, whoever computes them.
    """

    number: int
    request: Request
    admitted_ns: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    hit: list[int] = field(default_factory=list)
    cached: int = 0
    made: int = 0
    blocks: list[dict[int, Block]] = field(default_factory=list)
    shared: list[list[Block]] = field(default_factory=list)

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
        How many blocks of a group of layers are copied in from each tier, and from each one to another.
    """

    decoding: Sequence[Served] = ()
    parts: Sequence[tuple[Served, int]] = ()
    loads: Mapping[tuple[str, int], int] = {}
    stores: Mapping[tuple[tuple[str, str], int], int] = {}

    def iteration(self, block: int, groups: int = 1, further: Sequence[Reach] = ()) -> Iteration:
        """What that is to a builder, for blocks of so many tokens, groups of layers, and reaches."""
        ends = sum(one.cached + new == one.request.prompt for one, new in self.parts)
        return Iteration(
            decoding=len(self.decoding),
            context=sum(one.cached for one in self.decoding),
            reading=sum(new for _, new in self.parts),
            cached=sum(one.cached for one, _ in self.parts),
            pairs=sum(new * one.cached + new * (new + 1) // 2 for one, new in self.parts),
            answers=len(self.decoding) + ends,
            near=tuple(map(self._near, further)),
            loads=_tokens(self.loads, groups, block),
            stores=_tokens(self.stores, groups, block),
        )

    def _near(self, reach: Reach) -> tuple[int, int, int]:
        """What `Iteration.near` says of a reach."""
        context = len(self.parts) if reach.block else sum(reach.cached(one.cached) for one in self.decoding)
        cached = sum(reach.cached(one.cached) for one, _ in self.parts)
        return context, cached, sum(reach.pairs(TokenSpan(one.cached, new)) for one, new in self.parts)


def _tokens(moved: Mapping[tuple[Way, int], int], groups: int, block: int) -> tuple[tuple[Way, tuple[int, ...]], ...]:
    """By way, how many tokens of each group of layers take it, from blocks of so many tokens."""
    ways = sorted({way for way, _ in moved})
    return tuple((way, tuple(block * moved.get((way, group), 0) for group in range(groups))) for way in ways)


class Scheduler:
    """Who waits, and who runs.

    Parameters
    ----------
    tiers
        Which blocks are where.
    asked
        How large these are, and the most that run in an iteration.
    groups
        What layers keep of a sequence.
    """

    def __init__(
        self, tiers: Tiers, asked: Requests, groups: Sequence[CachedLayers] = (CachedLayers(Reach(), 1),)
    ) -> None:
        self.tiers, self._asked = tiers, asked
        self._groups = [(number, group.reach) for number, group in enumerate(groups)]
        self._windows = [one for one in self._groups if one[1].window is not None]
        self._shares = not any(reach.block for _, reach in self._groups)
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []

    def next(self, now_ns: int) -> list[Work]:
        """Admit who can be, and say who runs next: mostly one iteration, none if there is nothing to do.

        What leaves the compute tier goes in an iteration before, if there is no room for it beside what is copied in.
        """
        decoding = [one for one in self.running if not one.is_reading]
        left, loads = self._asked.max_tokens - len(decoding), Counter[tuple[str, int]]()
        parts: list[tuple[Served, int]] = []
        waiting = (one for one in self.running if one.is_reading)
        while left and (one := next(waiting, None) or self._admitted(loads, now_ns)):
            new = min(left, one.request.prompt - one.cached)
            parts.append((one, new))
            left -= new
        stores, self.tiers.stores = self.tiers.stores, Counter()
        sizes, here = self.tiers.sizes, self.tiers.names[0]
        leaving = sum(sizes[group] * number for ((source, _), group), number in stores.items() if source == here)
        if leaving + sum(sizes[group] * number for (_, group), number in loads.items()) > self.tiers.rooms[0]:
            return [Work(stores=stores), Work(decoding, parts, loads)]
        return [Work(decoding, parts, loads, stores)] if decoding or parts or stores else []

    def _admitted(self, loads: Counter[tuple[str, int]], now_ns: int) -> Served | None:
        """Look up the prefix of who is next, and let it hold its blocks, if they fit; note what is copied in."""
        if not self.waiting or len(self.running) >= self._asked.max_sequences:
            return None
        one, size, tiers = self.waiting[0], self._asked.block, self.tiers
        if not one.shared and self._shares:
            names = list(enumerate(one.request.prefixes(size)))
            one.shared = [[Block(True, prefix, n, group) for n, prefix in names] for group, _ in self._groups]
        first = self._found(one)
        hit = [
            [one.shared[group][n] for n in seen_numbers(reach, first * size, size)] if first else []
            for group, reach in self._groups
        ]
        held = [held_numbers(reach, first * size, one.request, self._asked) for _, reach in self._groups]
        new_bytes = sum(
            each * (len(some) - len(there)) for each, some, there in zip(tiers.sizes, held, hit, strict=True)
        )
        every = [block for blocks in hit for block in blocks]
        if not tiers.fits(every, new_bytes):
            return None
        deepest = [0] * first
        for block in every:
            tier = tiers.where(block)
            deepest[block.number] = max(deepest[block.number], tier)
            if tier:
                loads[tiers.names[tier], block.group] += 1
        one.blocks = [{block.number: block for block in blocks} for blocks in hit]
        self._hold(one, held, every)
        one.cached, one.admitted_ns = size * first, now_ns
        one.hit = [size * deepest.count(tier) for tier in range(len(tiers.names))]
        self.running.append(self.waiting.popleft())
        return one

    def _found(self, one: Served) -> int:
        """How many first blocks need not be computed: all that the token behind them sees is somewhere."""
        size, tiers = self._asked.block, self.tiers
        first, before = one.request.shared // size if self._shares else 0, -1
        while first != before:
            before = first
            for group, reach in self._groups:
                numbers: Sequence[int] = range(first)  # of all tokens the first one that is nowhere ends what is found
                if reach.window is not None:  # else the last one
                    numbers = sorted(seen_numbers(reach, first * size, size), reverse=True)
                first = next((n for n in numbers if tiers.where(one.shared[group][n]) < 0), first)
        return first

    def _hold(self, one: Served, numbers: Sequence[Sequence[int]], hit: Sequence[Block] = ()) -> None:
        """Let a sequence hold blocks of these numbers: those that it has, what it hits, and new ones."""
        new = list[Block]()
        for (group, _), there, some in zip(self._groups, one.blocks, numbers, strict=True):
            own = {n: Block(False, one.number, n, group) for n in some if n not in there}
            new += own.values()
            there.update(own)
        self.tiers.admit(hit, new)

    def _leave(self, one: Served, kept: Sequence[Sequence[int]]) -> None:
        """Let a sequence give up all blocks but those of these numbers: the end of the sequence is the first to go."""
        full = one.cached // self._asked.block if self._shares else 0
        gone = [(n, group) for group, _ in self._groups for n in one.blocks[group].keys() - {*kept[group]}]
        for number, group in sorted(gone, key=lambda one: (-one[0], one[1])):
            block = one.blocks[group].pop(number)
            is_double = not block.is_shared and bool(one.shared) and number < len(one.shared[group])
            self.tiers.release(block, is_kept=number < full and not is_double)

    def _go_on(self, one: Served) -> None:
        """Let a sequence leave what its windows have passed, and hold what they come to."""
        numbers: list[Sequence[int]] = [list(there) for there in one.blocks]
        for group, reach in self._windows:
            numbers[group] = held_numbers(reach, one.cached, one.request, self._asked)
        self._leave(one, numbers)
        self._hold(one, numbers)

    def ended(self, work: Work, now_ns: int) -> list[Served]:
        """Note that an iteration has ended; return who left.

        Blocks of a prefix that were filled can be found from now on.
        """
        size = self._asked.block
        for one, new in work.parts:
            before, one.cached = one.cached // size, one.cached + new
            for shared, own in zip(one.shared, one.blocks, strict=False):
                for block in shared[before : one.cached // size]:
                    if self.tiers.computed(own[block.number], block):
                        own[block.number] = block
            if not one.is_reading:
                one.first_ns, one.made = now_ns, 1
        for one in work.decoding:
            one.cached += 1
            one.made += 1
        if self._windows:
            nears = ((one, reach.near(one.cached)[1]) for one in work.decoding for _, reach in self._windows)
            passed = dict.fromkeys(one for one, near in nears if near and near % size == 0)
            for one in (*(one for one, _ in work.parts), *passed):
                self._go_on(one)
        left = [one for one in self.running if one.made == one.request.output]
        for one in left:
            one.end_ns = now_ns
            self._leave(one, [()] * len(self._groups))
            one.blocks, one.shared = [], []
        if left:
            self.running = [one for one in self.running if one.made < one.request.output]
        return left
