"""The KV cache as inference on one rank sees it: which tokens a token sees, and which tensors hold them.

Seen tokens are counted exactly: over all before it, a window, compressed or selected blocks.

Token t (from 1) of a sequence has t - 1 before it. It sees

- of all tokens: t; within a `reach` of r tokens (a window and its sinks): min(t, r);
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
from simulator.workload import Compress, KvBlocks, Linear, Select


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
    """What is cached of a layer, and what these tokens add to it.

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
    seen
        How many these are.
    held, held_bytes
        Tensors with them, and what an op reads that attends to them [B].
    added, added_bytes
        Tensors that the new tokens join, and what an op writes that caches them [B].
    state
        Where linear attention keeps what is left of all tokens.
    tokens, pairs
        How many new tokens all sequences have, and how often one of those of a sequence attends to a token.
    """

    def __init__(self, tape: Tape, stores: tuple[Store, Store], batch: int, span: Span) -> None:
        (self.store, self.compressed), self.batch, self.span = stores, batch, span
        part, token_bytes, cached, most = tape.attention, tape.token_bytes, span.cached, None
        self.near, self.seen = (cached, cached), cached
        if part.window is not None:
            most = part.window + part.sinks
            self.near, self.seen = (min(part.sinks, cached), max(0, cached + 1 - part.window)), min(cached, most - 1)
        sinks, near = self.near
        self.held = list(dict.fromkeys([*self.store.of(0, sinks), *self.store.of(near, cached)]))
        self.added = self.store.of(cached, span.length)
        self.state = f"{tape.block}/state"
        self.tokens, self.pairs = batch * span.new, pairs(span, most)
        self.held_bytes, self.added_bytes = batch * self.seen * token_bytes, self.tokens * part.views * token_bytes

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

    def cache(self, span: Span, layer: str) -> Cache:
        """What the tokens of a span find of a layer, which becomes the current one."""
        self.tape.block = layer
        block = self.work.kv.block if self.work.kv else None
        stores = self.stores.setdefault(layer, (Store(block), Store()))
        return Cache(self.tape, stores, self.work.batch, span)

    def read(self, span: Span, layer: str) -> Cache:
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
            tokens = work.batch * (cache.seen if span.length <= there else span.new)
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
