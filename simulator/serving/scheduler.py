"""The scheduler, which is fixed: it chooses the sequences of the next iteration, and tracks their progress.

In each iteration every sequence whose prompt has been read adds a token. Prompts fill the rest of ``max_tokens``, first
come, first served; a long one is read in parts. Requests are admitted in order of arrival, while fewer than
``max_sequences`` run, tokens are left, and the blocks for the request's whole length fit in the compute tier beside
those of the others; they are reserved until it ends, so no sequence is preempted, unless the engine has it so. On
admission the blocks of its prefix are looked up, up to the first that is in no tier, and never as far as its last
token; blocks in lower tiers are copied in by the iteration that reads the first part of the rest. Others find a block
of a prefix once the iteration that computes its last token has ended. For the tiers of blocks see
`simulator.serving.blocks`.

*Loads before admission.* If the engine has it so, blocks in lower tiers are copied in while their request waits, one
request after another, as fast as without an iteration beside it; their places are taken meanwhile, others are admitted
past it, and who needs the same blocks waits for them, too.

*Preemption.* If the engine has it so, a request is admitted once the blocks for all that it reads fit, and gets one at
a time for its answer. Where none is left, the request that was admitted last is interrupted, which may be the one that
needs it. It waits before all others, so that nobody is admitted before there is room for it again. Then it reads its
prompt and what it had added, as far as that is not found: its blocks stay cached as those of sequences that leave; or
all that are complete are stored one tier down at once (``swap``). So does vLLM (V1, v1/core/sched/scheduler.py,
`schedule`, which interrupts the last of `running`, and puts it first in `waiting`); SGLang interrupts who has added
fewest tokens (managers/schedule_batch.py, `retract_decode`). vLLM swapped before V1 (core/scheduler.py,
`_preempt_by_swap`).

*Windows.* In layers with a window a sequence holds only the blocks that its next tokens see, and those for the part of
its prompt that is read at a time; it releases the others as it proceeds, as in vLLM's hybrid KV cache manager. A prefix
is found as far as everything that the next token sees is cached: of layers with a window, only the last blocks.

*States.* A layer with linear attention keeps one state per sequence, which covers all its tokens and no prefix of them.
So a model with such layers keeps nothing for other sequences, and has no hits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeVar

from simulator.builders import CachedLayers, Iteration
from simulator.reach import Reach, TokenSpan
from simulator.serving.blocks import Block, Tiers, blocks_to_hold, seen_blocks
from simulator.workload import Request, Requests

Loads = Counter[tuple[str, int]]
"""(tier, group of layers) -> blocks copied in."""
LoadNs = Callable[[Loads], int]
"""Returns how long they take [ns]."""
Way = TypeVar("Way", str, tuple[str, str])
"""The tier from which blocks are copied in; or source and target of stores."""


@dataclass(slots=True, eq=False)
class Served:
    """A request, its progress, and the blocks that it holds.

    Attributes
    ----------
    number, request
        Position in the order of arrival, and the request.
    admitted_ns, first_ns, end_ns
        Times of its admission, first token and last token [ns]; None if it never got there.
    loaded_ns
        When the blocks that it waits for before it is admitted are in the compute tier [ns].
    hit
        Tokens of its prompt that were found in each tier.
    cached, made
        Number of its tokens that are cached, and of tokens that it has added.
    blocks
        The blocks that it holds in each group of layers: number -> block of a prefix, or None for a private one.
    shared
        The blocks of its prefix in each group, whoever computes them; if it may be preempted, all that it fills.
    again
        Tokens that it has added and reads behind its prompt, since it was interrupted.
    preemptions, left_ns, preempted_ns
        How often it was interrupted, when it was last [ns], and for how long it did not run, in all [ns].
    recomputed, reloaded
        Tokens that it had cached before an interruption and computed again; those of answers and of prompts that were
        read before it which were copied in again.
    """

    number: int
    request: Request
    admitted_ns: int | None = None
    first_ns: int | None = None
    end_ns: int | None = None
    loaded_ns: int = 0
    hit: list[int] = field(default_factory=list)
    cached: int = 0
    made: int = 0
    blocks: list[dict[int, Block | None]] = field(default_factory=list)
    shared: list[list[Block]] = field(default_factory=list)
    again: int = 0
    preemptions: int = 0
    left_ns: int = 0
    preempted_ns: int = 0
    recomputed: int = 0
    reloaded: int = 0

    @property
    def text(self) -> int:
        """Tokens that it reads before it adds one: its prompt, and what it had added when it was interrupted."""
        return self.request.prompt + self.again

    @property
    def whole(self) -> Request:
        """The request as if all that it reads were its prompt."""
        output = self.request.output - self.again
        return self.request._replace(prompt=self.text, output=output) if self.again else self.request

    @property
    def is_reading(self) -> bool:
        """Whether part of its text is still to be read."""
        return self.cached < self.text


class Work(NamedTuple):
    """The sequences of an iteration, and the blocks copied with it.

    Attributes
    ----------
    decoding
        Sequences that add a token.
    parts
        Sequences that read, each with its number of prompt tokens in this iteration.
    loads, stores
        (tier, group of layers) -> blocks copied in; ((source, target), group) -> blocks stored.
    """

    decoding: Sequence[Served] = ()
    parts: Sequence[tuple[Served, int]] = ()
    loads: Mapping[tuple[str, int], int] = {}
    stores: Mapping[tuple[tuple[str, str], int], int] = {}

    def iteration(self, block: int, groups: int = 1, reaches: Sequence[Reach] = ()) -> Iteration:
        """Return its numbers for a builder, given tokens per block, groups of layers, and the limited reaches."""
        ends = sum(served.cached + new == served.text for served, new in self.parts)
        return Iteration(
            decoding=len(self.decoding),
            context=sum(served.cached for served in self.decoding),
            reading=sum(new for _, new in self.parts),
            cached=sum(served.cached for served, _ in self.parts),
            pairs=sum(new * served.cached + new * (new + 1) // 2 for served, new in self.parts),
            answers=len(self.decoding) + ends,
            near=tuple(map(self._within, reaches)),
            loads=_tokens(self.loads, groups, block),
            stores=_tokens(self.stores, groups, block),
        )

    def _within(self, reach: Reach) -> tuple[int, int, int]:
        """Count what lies within a reach, as in `Iteration.near`."""
        context = len(self.parts) if reach.block else sum(reach.cached(served.cached) for served in self.decoding)
        cached = sum(reach.cached(served.cached) for served, _ in self.parts)
        return context, cached, sum(reach.pairs(TokenSpan(served.cached, new)) for served, new in self.parts)


def _tokens(moved: Mapping[tuple[Way, int], int], groups: int, block: int) -> tuple[tuple[Way, tuple[int, ...]], ...]:
    """Count, for each way, the tokens that each group of layers moves, at `block` tokens per block."""
    ways = sorted({way for way, _ in moved})
    return tuple((way, tuple(block * moved.get((way, group), 0) for group in range(groups))) for way in ways)


class Scheduler:
    """Admits requests, and chooses the sequences of each iteration.

    Parameters
    ----------
    tiers
        The blocks in each tier.
    asked
        Tokens per block, and the limits of an iteration.
    groups
        Groups of layers that keep the same tokens of a sequence.
    load_ns
        Tells how long blocks take to come in before their request is admitted.
    """

    def __init__(self, tiers: Tiers, asked: Requests, groups: Sequence[CachedLayers], load_ns: LoadNs) -> None:
        self.tiers, self._asked, self._load_ns = tiers, asked, load_ns
        self._coming = dict[Block, int]()  # blocks on their way -> when they are there
        self._groups = [(group, layers.reach) for group, layers in enumerate(groups)]
        self._windows = [(group, reach) for group, reach in self._groups if reach.window is not None]
        self._shares = not any(reach.block for _, reach in self._groups)
        self._may_preempt = asked.preemption != "never"
        self._is_before, self._loads_end_ns = asked.loads == "before_admission", 0
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []

    def next(self, now_ns: int) -> list[Work]:
        """Admit what fits, and return what runs next: usually one iteration, none if there is nothing to do.

        If blocks that leave the compute tier have no room beside those that are copied in, they leave in an iteration
        of their own before.
        """
        if self._may_preempt:
            self._make_room_for_answers(now_ns)
        decoding = [served for served in self.running if not served.is_reading]
        left, loads = self._asked.max_tokens - len(decoding), Counter[tuple[str, int]]()
        parts: list[tuple[Served, int]] = []
        waiting = (served for served in self.running if served.is_reading)
        while left and (served := next(waiting, None) or self._admit(loads, now_ns)):
            if served.loaded_ns > now_ns:
                continue
            new = min(left, served.text - served.cached)
            parts.append((served, new))
            left -= new
        stores, self.tiers.stores = self.tiers.stores, Counter()
        sizes, compute_tier = self.tiers.sizes, self.tiers.names[0]
        leaving = sum(sizes[group] * count for ((source, _), group), count in stores.items() if source == compute_tier)
        if leaving + sum(sizes[group] * count for (_, group), count in loads.items()) > self.tiers.rooms[0]:
            return [Work(stores=stores), Work(decoding, parts, loads)]
        return [Work(decoding, parts, loads, stores)] if decoding or parts or stores else []

    def _admit(self, loads: Counter[tuple[str, int]], now_ns: int) -> Served | None:
        """Admit the next request if its blocks fit: look up its prefix, hold its blocks, count what is copied in."""
        if not self.waiting or len(self.running) >= self._asked.max_sequences:
            return None
        served, size, tiers = self.waiting[0], self._asked.block, self.tiers
        if not served.shared and self._shares:
            served.shared = self._names(served)
        first = self._found_blocks(served)
        hit = [
            [served.shared[group][n] for n in seen_blocks(reach, first * size, size)] if first else []
            for group, reach in self._groups
        ]
        held = self._to_hold(served, first * size, served.text)
        counts = zip(tiers.sizes, map(len, held), map(len, hit), strict=True)
        new_bytes = sum(size_bytes * (in_all - from_cache) for size_bytes, in_all, from_cache in counts)
        every = [block for blocks in hit for block in blocks]
        if not tiers.fits(every, new_bytes):
            return None
        loads, deepest, coming = Counter() if self._is_before else loads, [0] * first, list[Block]()
        for block in every:
            tier = tiers.where(block)
            deepest[block.number] = max(deepest[block.number], tier)
            if tier:
                loads[tiers.names[tier], block.group] += 1
                coming.append(block)
        served.blocks = [{block.number: block for block in blocks} for blocks in hit]
        self._hold(served, held, every)
        served.loaded_ns = self._load(every, coming, loads, now_ns) if self._is_before else now_ns
        self._count_found(served, deepest)
        self.running.append(self.waiting.popleft())
        return served

    def _count_found(self, served: Served, found: Sequence[int]) -> None:
        """Count what was found on admission, given the tier of each block: those that it had itself, and others."""
        size, held = self._asked.block, served.cached // self._asked.block
        hit = [size * found[held:].count(tier) for tier in range(len(self.tiers.names))]
        served.hit = [before + new for before, new in zip(served.hit or [0] * len(hit), hit, strict=True)]
        served.reloaded += size * sum(map(bool, found[:held]))
        served.recomputed += served.cached - size * min(held, len(found))
        served.cached = size * len(found)
        if served.admitted_ns is None:
            served.admitted_ns = served.loaded_ns
        else:
            served.preempted_ns += served.loaded_ns - served.left_ns

    def _names(self, served: Served) -> list[list[Block]]:
        """Name the full blocks of a request, in each group: of its prefix; and all others, if it may be preempted."""
        owners = [*served.request.prefixes(self._asked.block)]
        if self._may_preempt:
            owners += [-1 - served.number] * (sum(served.request[1:3]) // self._asked.block - len(owners))
        return [[Block(True, owner, n, group) for n, owner in enumerate(owners)] for group, _ in self._groups]

    def _to_hold(self, served: Served, cached: int, until: int) -> list[Sequence[int]]:
        """List the blocks that a sequence holds in each group: for all that it may add, or for `until` tokens."""
        asked, request = self._asked, served.whole
        near = request._replace(prompt=until, output=0) if self._may_preempt else request
        holds = ((reach, near if reach == Reach() else request) for _, reach in self._groups)
        return [blocks_to_hold(reach, cached, ends, asked) for reach, ends in holds]

    def _make_room_for_answers(self, now_ns: int) -> None:
        """Give blocks to sequences that add a token; interrupt the last admitted where there is no room."""
        for served in [*self.running]:
            if served.is_reading or not served.blocks:
                continue
            wanted = self._to_hold(served, served.cached, served.cached + 1)
            missing = (len({*of}.difference(has)) for of, has in zip(wanted, served.blocks, strict=True))
            new_bytes = sum(size * count for size, count in zip(self.tiers.sizes, missing, strict=True))
            while served.blocks and not self.tiers.fits((), new_bytes):
                self._preempt(next(last for last in reversed(self.running) if last.loaded_ns <= now_ns), now_ns)
            if served.blocks and new_bytes:
                self._hold(served, wanted)

    def _preempt(self, served: Served, now_ns: int) -> None:
        """Release what a sequence holds, copied down if it is to be swapped, and let it wait before all others."""
        self._release(served, [()] * len(self._groups), is_swapped=self._asked.preemption == "swap")
        served.blocks, served.again, served.left_ns = [], served.made, now_ns
        served.preemptions += 1
        self.running.remove(served)
        self.waiting.appendleft(served)

    def _load(self, hit: Sequence[Block], coming: Sequence[Block], loads: Loads, now_ns: int) -> int:
        """Begin to copy in the blocks of a request that are below, and return when all that it needs are there [ns]."""
        if self._loads_end_ns <= now_ns:
            self._loads_end_ns, self._coming = now_ns, {}
        self._loads_end_ns += self._load_ns(loads) if coming else 0
        self._coming |= dict.fromkeys(coming, self._loads_end_ns)
        return max((self._coming.get(block, now_ns) for block in hit), default=now_ns)

    def loading(self, now_ns: int) -> list[int]:
        """Return when the requests that wait for blocks on their way will have them [ns]."""
        return [served.loaded_ns for served in self.running if served.loaded_ns > now_ns] if self._is_before else []

    def _found_blocks(self, served: Served) -> int:
        """Count the leading blocks that need not be computed: all that the next token sees are in some tier."""
        size, tiers = self._asked.block, self.tiers
        first = min(size * len(served.shared[0]), served.text - 1) // size if self._shares else 0
        before = -1
        while first != before:
            before = first
            for group, reach in self._groups:
                numbers: Sequence[int] = range(first)  # with full attention the first missing block ends the prefix
                if reach.window is not None:  # with a window the last one does
                    numbers = sorted(seen_blocks(reach, first * size, size), reverse=True)
                first = next((n for n in numbers if tiers.where(served.shared[group][n]) < 0), first)
        return first

    def _hold(self, served: Served, numbers: Sequence[Sequence[int]], hit: Sequence[Block] = ()) -> None:
        """Make a sequence hold the blocks of these numbers: those that it has, its hits, and new ones."""
        counts = list[int]()
        for blocks, needed in zip(served.blocks, numbers, strict=True):
            missing = [n for n in needed if n not in blocks]
            blocks.update(dict.fromkeys(missing))
            counts.append(len(missing))
        self.tiers.admit(hit, counts)

    def _release(self, served: Served, kept: Sequence[Sequence[int]], *, is_swapped: bool = False) -> None:
        """Release all blocks of a sequence except those of the numbers in `kept`, the last tokens first."""
        full = served.cached // self._asked.block if self._shares else 0
        alike = [*map(len, served.shared)] or [0] * len(self._groups)
        gone = ((-n, group) for group, _ in self._groups for n in served.blocks[group].keys() - {*kept[group]})

        def run(place: tuple[int, tuple[int, int]]) -> tuple[Block | None, int, bool, int]:
            """Return the same for private blocks of a run, which have a number less each, and the same fate."""
            index, (before, group) = place
            block = served.blocks[group].pop(-before)
            is_kept = -before < full and (block is not None or -before >= alike[group])
            return block, group, is_kept, index - before

        for (block, group, is_kept, _), places in groupby(enumerate(sorted(gone)), run):
            (_, (before, _)), *others = places
            first = block or Block(False, served.number, -before, group)
            self.tiers.release(first, 1 + len(others), is_kept=is_kept, is_swapped=is_swapped)

    def _slide_windows(self, served: Served) -> None:
        """Release the blocks that the windows of a sequence have passed, and hold those that they reach."""
        numbers: list[Sequence[int]] = [list(blocks) for blocks in served.blocks]
        for group, reach in self._windows:
            numbers[group] = blocks_to_hold(reach, served.cached, served.whole, self._asked)
        self._release(served, numbers)
        self._hold(served, numbers)

    def _fill(self, served: Served, before: int) -> None:
        """Share the blocks of a sequence that were filled after the first `before`, and store them ahead."""
        full = served.cached // self._asked.block
        for group, (shared, blocks) in enumerate(zip(served.shared, served.blocks, strict=False)):
            for block in shared[before:full]:
                if self.tiers.share_computed(block):
                    blocks[block.number] = block
            for place in range(before, full) if self.tiers.through else ():
                if place in blocks and (blocks[place] or place >= len(shared)):
                    self.tiers.use(blocks[place] or Block(False, served.number, place, group))

    def ended(self, work: Work, now_ns: int) -> list[Served]:
        """Account for the end of an iteration, and return the sequences that finished.

        Filled blocks of a prefix can be found from now on.
        """
        size = self._asked.block
        for served, new in work.parts:
            before, served.cached = served.cached // size, served.cached + new
            self._fill(served, before)
            if not served.is_reading:
                served.first_ns = now_ns if served.first_ns is None else served.first_ns
                served.made += 1
        for served in work.decoding:
            served.cached += 1
            served.made += 1
            if served.cached % size == 0:
                self._fill(served, served.cached // size - 1)
        if self._windows:
            nears = ((served, reach.near(served.cached)[1]) for served in work.decoding for _, reach in self._windows)
            passed = dict.fromkeys(served for served, near in nears if near and near % size == 0)
            for served in (*(served for served, _ in work.parts), *passed):
                self._slide_windows(served)
        left = [served for served in self.running if served.made == served.request.output]
        for served in left:
            served.end_ns = now_ns
            self._release(served, [()] * len(self._groups))
            served.blocks, served.shared = [], []
        if left:
            self.running = [served for served in self.running if served.made < served.request.output]
        return left
