"""The KV cache as inference on one rank sees it: which tokens a token sees, and which tensors hold them.

Seen tokens are counted exactly: over all before it, a window, compressed or selected blocks.

Token t (from 1) of a sequence has t - 1 before it. It sees

- of all tokens: t; within a `Reach` of r tokens (a window and its sinks, or those that were chosen): min(t, r);
- of those of its own block of so many new ones (linear attention, which keeps a state of all before);
- of compressed ones: those that are complete, (t - l) // d + 1 of l tokens each, d apart, if t >= l (NSA, arXiv
  2502.11089, equation 7);
- of selected ones: its own block up to itself, and n - 1 others of b tokens: (n - 1) * b + (t - 1) % b + 1, or t as
  long as there are no more than n blocks.

Sums over a span of tokens are differences of sums from the first token on, each a closed form.

*Tensors.* Without ``kv`` a layer has one for what is cached before a step (``L03/kv``, persistent), and one for what
decode adds (``L03/kv.tail``); in prefill, one for each chunk (``c0/L03/kv``). With ``kv`` a layer has one for each
block of each sequence, or of several together (``L03/kv/s0/b0012``). Those of decode are persistent, and there from the
start: the block that a new token joins is written in place, so that it must be brought home again if that is another
tier. If new blocks come as needed, those behind the one that the first new token joins are tensors of the step, born
with their first token and put out, as blocks of prompts are. What compresses tokens has one tensor in place of each
that is not cut (``L03/kv.compressed``).

A block has *left* when a window has passed it, so that no token of its sequence sees it any more. Those that left
before the step are not there, and what the step begins and leaves behind dies with its last reader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from simulator.builders.tape import Tape
from simulator.builders.weights import numbered
from simulator.workload import Attention, Compress, KvBlocks, Linear, Mla, Select


class Span(NamedTuple):
    """The tokens of each sequence that run together.

    Attributes
    ----------
    cached
        How many were there before.
    new
        How many run now; the last of `length` ones.
    """

    cached: int
    new: int

    @property
    def length(self) -> int:
        """How many tokens a sequence has afterwards."""
        return self.cached + self.new

    def sum(self, until: Callable[[int], int]) -> int:
        """Sum over the new tokens, of which `until` says the sum from the first token of the sequence on."""
        return until(self.length) - until(self.cached)


def pairs(span: Span, most: int | None = None) -> int:
    """How often one of the new tokens sees a token, of which each sees at most so many: those before it, and itself."""

    def until(tokens: int) -> int:
        near = tokens if most is None else min(tokens, most)
        return near * (near + 1) // 2 + (tokens - near) * near

    return span.sum(until)


class Reach(NamedTuple):
    """Which tokens of its sequence a token sees; what a layer keeps of a sequence is what the next one will see.

    Attributes
    ----------
    window, sinks
        So many before, itself among them, and so many of the first ones; default: all.
    block
        Of linear attention: tokens that see one another pair by pair. What it keeps is a state, whatever the length.
    """

    window: int | None = None
    sinks: int = 0
    block: int = 0

    @classmethod
    def of(cls, part: Attention) -> Reach:
        """What tokens see of the cache of a layer."""
        return cls(block=part.block) if isinstance(part, Linear) else cls(part.window, part.sinks)

    @classmethod
    def all_of(cls, part: Attention) -> tuple[Reach, ...]:
        """That, and in what reach tokens are chosen from what is cached."""
        indexer = part.indexer if isinstance(part, Mla) else None
        return (cls.of(part), cls(indexer.top)) if indexer else (cls.of(part),)

    def cached(self, cached: int) -> int:
        """How many of so many cached tokens some new one sees; 1 if a state of them is read."""
        if self.block:
            return min(1, cached)
        return cached if self.window is None else min(cached, self.window + self.sinks - 1)

    def pairs(self, span: Span) -> int:
        """How often one of the new tokens sees a token."""
        if not self.block:
            return pairs(span, None if self.window is None else self.window + self.sinks)
        whole, left = divmod(span.new, self.block)
        return whole * pairs(Span(0, self.block)) + pairs(Span(0, left))

    def near(self, cached: int) -> tuple[int, int]:
        """Some new token sees the cached ones before the first of these numbers, and from the second on."""
        if self.window is None:
            return cached, cached
        return min(self.sinks, cached), max(0, cached + 1 - self.window)


def compressed(length: int, about: Compress) -> int:
    """How many compressed tokens a sequence of so many tokens has."""
    return max(0, (length - about.block) // about.stride + 1)


def compressed_pairs(span: Span, about: Compress) -> int:
    """How often one of the new tokens sees a compressed one."""

    def until(tokens: int) -> int:
        whole, left = divmod(max(0, tokens - about.block + 1), about.stride)
        return about.stride * whole * (whole + 1) // 2 + left * (whole + 1)

    return span.sum(until)


def selected_pairs(span: Span, about: Select) -> int:
    """How often one of the new tokens sees one of its selected blocks."""
    most = about.top * about.block

    def until(tokens: int) -> int:
        full = min(tokens, most)
        whole, left = divmod(tokens - full, about.block)
        own = whole * (about.block * (about.block + 1) // 2) + left * (left + 1) // 2
        return full * (full + 1) // 2 + (tokens - full) * (most - about.block) + own

    return span.sum(until)


class Store:
    """Tensors in a row that hold the tokens of all sequences, from the first token on.

    One segment of the row follows the other; a segment is a tensor, or one for each group of sequences.

    Parameters
    ----------
    block
        Tokens of a segment, where all but the last one have as many.
    """

    def __init__(self, block: int | None = None) -> None:
        self.block = block
        self._stops: list[int] = []
        self._names: list[list[str]] = []

    def add(self, stop: int, names: list[str]) -> None:
        """Add the segment that ends before token `stop`; without names, nothing there is ever read."""
        self._stops.append(stop)
        self._names.append(names)

    def of(self, start: int, stop: int, group: int | None = None) -> list[str]:
        """Names of the tensors with tokens from `start` to before `stop`, of one group of sequences or of all."""
        if start >= stop:
            return []
        found = self._names[bisect_right(self._stops, start) : bisect_right(self._stops, stop - 1) + 1]
        return [name for names in found for name in (names if group is None else names[group : group + 1])]


class Cache:
    """What is cached of a layer, and what these tokens add to it: what attention takes, of any sequences together.

    Parameters
    ----------
    tape
        What it is of: the current layer.
    sequences, tokens
        How many sequences there are, and how many new tokens all of them have.
    seen
        From a reach to how many cached tokens of all sequences are seen within it, and how often a new one sees one.

    Attributes
    ----------
    sequences, tokens
        As above.
    within, seen, pairs
        The function `seen`, and what it says of the reach of the layer.
    held, held_bytes
        Tensors with cached tokens that are seen, and what an op reads that attends to them [B].
    added, added_bytes
        Tensors that the new tokens join, and what an op writes that caches them [B].
    state, before
        Where linear attention keeps what is left of all tokens; and the same if there were some.
    out, after
        Where what comes out goes, if it is not a tensor of its own; and the same if others are in it already.
    longest
        How many tokens the longest sequence has in the end; 0 if that is not known.
    at_once
        Of so many cached latents keys and values are there at a time.
    """

    def __init__(self, tape: Tape, sequences: int, tokens: int, seen: Callable[[Reach], tuple[int, int]]) -> None:
        part = tape.attention
        self.sequences, self.tokens, self.within = sequences, tokens, seen
        self.seen, self.pairs = seen(Reach.of(part))
        self.held_bytes, self.added_bytes = self.seen * tape.token_bytes, tokens * part.views * tape.token_bytes
        self.held, self.added, self.before, self.after = list[str](), list[str](), list[str](), list[str]()
        self.state, self.out = f"{tape.block}/state", ""
        self.at_once, self.longest = self.seen, 0


class Spanned(Cache):
    """The same of sequences that are alike, whose tokens lie in stores.

    Parameters
    ----------
    tape
        What it is of: the current layer.
    stores
        Where the tokens of all sequences are, those that run now included; and the compressed ones.
    batch
        How many sequences there are.
    span
        Their tokens.

    Attributes
    ----------
    near
        Cached tokens that some new token attends to: those before the first number, and those from the second on.
    """

    def __init__(self, tape: Tape, stores: tuple[Store, Store], batch: int, span: Span) -> None:
        (self.store, self.compressed), self.batch, self.span = stores, batch, span
        super().__init__(
            tape, batch, batch * span.new, lambda reach: (batch * reach.cached(span.cached), batch * reach.pairs(span))
        )
        sinks, near = self.near = Reach.of(tape.attention).near(span.cached)
        self.held = list(dict.fromkeys([*self.store.of(0, sinks), *self.store.of(near, span.cached)]))
        self.added, self.before = self.store.of(span.cached, span.length), [self.state] if span.cached else []
        self.longest = span.length

    def sees(self, start: int, stop: int) -> bool:
        """Whether the new tokens attend to one of those from `start` to before `stop`, or are among them."""
        return start < self.near[0] or stop > self.near[1]


class Room:
    """The KV cache of all layers.

    Parameters
    ----------
    tape
        What its tensors are declared on.

    Attributes
    ----------
    come
        Blocks that come as needed, and that the step puts out.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape, self.work = tape, tape.workload
        self.stores: dict[str, tuple[Store, Store]] = {}
        self.come: list[str] = []

    def cache(self, span: Span, layer: str) -> Spanned:
        """What the tokens of a span find of a layer, which becomes the current one."""
        self.tape.block = layer
        block = self.work.kv.block if self.work.kv else None
        stores = self.stores.setdefault(layer, (Store(block), Store()))
        return Spanned(self.tape, stores, self.work.batch, span)

    def read(self, span: Span, layer: str) -> Spanned:
        """Add what a chunk of the prompts caches."""
        self._add(layer, [(f"{self.tape.micro}{layer}/kv", span)], there=0)
        return self.cache(span, layer)

    def decode(self, layer: str) -> None:
        """Add what is cached before a step, and what the step caches."""
        there = self.work.sequence
        spans = [(f"{layer}/kv", Span(0, there)), (f"{layer}/kv.tail", Span(there, self.work.new_tokens))]
        self._add(layer, spans, there)

    def kept(self, layer: str) -> list[str]:
        """What the next token after the prompts needs of a layer."""
        cache = self.cache(Span(self.work.sequence, 1), layer)
        state = [cache.state] if isinstance(self.tape.attention, Linear) else []
        return [*cache.held, *cache.compressed.of(0, self.work.sequence), *state]

    def _add(self, layer: str, spans: list[tuple[str, Span]], there: int) -> None:
        """Add the tensors of spans of tokens, of which so many are there before the step; without blocks, one each."""
        cache, work, about = self.cache(Span(there, 1), layer), self.work, self.tape.attention.sparse
        for name, span in spans:
            before, after = ((compressed(n, about.compress) if about else 0) for n in (span.cached, span.length))
            if after > before:
                sizes = {f"{name}.compressed": work.batch * (after - before)}
                self._put(cache.compressed, after, sizes, lasts=span.length <= there)
        if work.kv is not None:
            self._cut(layer, range(spans[0][1].cached, spans[-1][1].length), work.kv, there)
            return
        for name, span in spans:
            tokens = cache.seen if span.length <= there else work.batch * span.new
            sizes = {name: tokens * self.tape.attention.views} if self.tape.token_bytes else {}
            self._put(cache.store, span.length, sizes, lasts=span.length <= there)

    def _cut(self, layer: str, tokens: range, kv: KvBlocks, there: int) -> None:
        """Add the blocks of these tokens; those that no token sees are left out."""
        work, together = self.work, kv.together(self.work.batch)
        end = work.sequence + work.new_tokens if there else work.sequence
        first, after = self.cache(Span(there, 1), layer), self.cache(Span(end, 1), layer)
        numbers, starts = numbered("b", -(-end // kv.block), 4), range(0, work.batch, together)
        of_each = (min(together, work.batch - start) * kv.block * self.tape.attention.views for start in starts)
        groups = dict(zip(numbered("s", len(starts)), of_each, strict=True))
        for number in range(tokens.start // kv.block, -(-tokens.stop // kv.block)):
            start, stop = number * kv.block, (number + 1) * kv.block
            is_begun, is_new = start >= there, kv.new == "as_needed" and start > there
            is_seen = not is_begun or after.sees(start, stop)
            sizes = {f"{layer}/kv/{group}/{numbers[number]}": size for group, size in groups.items()}
            if not self.tape.token_bytes or not (is_begun or first.sees(start, stop)):
                sizes = {}
            self._put(first.store, stop, sizes, lasts=there > 0 and is_seen and not is_new)
            self.come += sizes if is_new and is_seen else []

    def _put(self, store: Store, stop: int, sizes: dict[str, int], *, lasts: bool) -> None:
        """Add tensors of so many tokens, which hold those up to before `stop`."""
        for name, tokens in sizes.items():
            self.tape.graph.tensor(name, tokens * self.tape.token_bytes, "kv_cache", persistent=lasts)
        store.add(stop, list(sizes))
