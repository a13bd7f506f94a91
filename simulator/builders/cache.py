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

A block has *left* when a window has passed it, so that no token of its sequence sees it any more. If such blocks are
dropped, those that left before the step are not there, and what the step begins and leaves behind dies with its last
reader. If they are stored, all are there, and those that the step leaves behind are persistent: they are written in it,
so that they must be at home when it ends; or put out, if they come as needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from simulator.builders.tape import Tape, numbered
from simulator.workload import Compress, Gqa, KvBlocks, Mla, Select, Workload


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


def reach(part: Gqa | Mla) -> int | None:
    """How many tokens one sees at most; None: all."""
    return None if part.window is None else part.window + part.sinks


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


class Cache(NamedTuple):
    """What is cached of a layer, and what these tokens add to it.

    Attributes
    ----------
    part
        How tokens attend.
    store
        Where the tokens of all sequences are, those that run now included.
    batch
        How many sequences there are.
    span
        Their tokens.
    token_bytes
        What a token takes [B].
    compressed
        Where the compressed tokens are, if there are some.
    """

    part: Gqa | Mla
    store: Store
    batch: int
    span: Span
    token_bytes: int
    compressed: Store

    @property
    def tokens(self) -> int:
        """How many new tokens all sequences have."""
        return self.batch * self.span.new

    @property
    def pairs(self) -> int:
        """How often one of the new tokens of a sequence attends to a token."""
        return pairs(self.span, reach(self.part))

    @property
    def seen(self) -> int:
        """How many cached tokens of a sequence some new token attends to."""
        most = reach(self.part)
        return self.span.cached if most is None else min(self.span.cached, most - 1)

    @property
    def near(self) -> tuple[int, int]:
        """Cached tokens that some new token attends to: those before the first number, and those from the second on."""
        cached, window = self.span.cached, self.part.window
        return (cached, cached) if window is None else (min(self.part.sinks, cached), max(0, cached + 1 - window))

    @property
    def held(self) -> list[str]:
        """Tensors with the tokens that were there before and that some new token attends to."""
        sinks, near = self.near
        found = [*self.store.of(0, sinks), *self.store.of(near, self.span.cached)]
        return list(dict.fromkeys(found))

    def sees(self, start: int, stop: int) -> bool:
        """Whether the new tokens attend to one of those from `start` to before `stop`, or are among them."""
        sinks, near = self.near
        return start < sinks or stop > near

    @property
    def added(self) -> list[str]:
        """The tensors that the new ones join."""
        return self.store.of(self.span.cached, self.span.length)

    @property
    def held_bytes(self) -> int:
        """What an op reads that attends to what was there before [B]."""
        return self.batch * self.seen * self.token_bytes

    @property
    def added_bytes(self) -> int:
        """What an op writes that caches the new tokens [B]."""
        return self.tokens * self.token_bytes


class Room:
    """The KV cache of all layers.

    Parameters
    ----------
    tape
        What its tensors are declared on.
    workload
        With the number of sequences and of their tokens.
    part
        How tokens attend.
    layers
        Names of the layers.

    Attributes
    ----------
    come
        Blocks that come as needed, and that the step puts out.
    """

    def __init__(self, tape: Tape, workload: Workload, part: Gqa | Mla, layers: list[str]) -> None:
        self.tape, self.work, self.part = tape, workload, part
        self.token_bytes = part.kv_elements * workload.dtypes.kv_bytes
        size = workload.kv.block if workload.kv else None
        self.stores = {layer: (Store(size), Store()) for layer in layers}
        self.come: list[str] = []

    def cache(self, layer: str, span: Span) -> Cache:
        """What the tokens of a span find of a layer."""
        store, compact = self.stores[layer]
        return Cache(self.part, store, self.work.batch, span, self.token_bytes, compact)

    def read(self, layer: str, span: Span) -> Cache:
        """Add what a chunk of the prompts caches."""
        name = f"{self.tape.micro}{layer}/kv"
        self._compress(layer, span, name, is_there=False)
        if self.work.kv is None:
            self._whole(layer, span, name, is_there=False)
        else:
            self._cut(layer, span, self.work.kv, is_there=False)
        return self.cache(layer, span)

    def decode(self, layer: str) -> None:
        """Add what is cached before a step, and what the step caches."""
        there, new = Span(0, self.work.sequence), Span(self.work.sequence, self.work.new_tokens)
        self._compress(layer, there, f"{layer}/kv", is_there=True)
        self._compress(layer, new, f"{layer}/kv.tail", is_there=False)
        if self.work.kv is None:
            self._whole(layer, there, f"{layer}/kv", is_there=True)
            self._whole(layer, new, f"{layer}/kv.tail", is_there=False)
        else:
            self._cut(layer, Span(0, new.length), self.work.kv, is_there=True)

    def kept(self, layer: str) -> list[str]:
        """What the next token after the prompts needs of a layer."""
        cache = self.cache(layer, Span(self.work.sequence, 1))
        return [*cache.held, *cache.compressed.of(0, self.work.sequence)]

    def _whole(self, layer: str, span: Span, name: str, *, is_there: bool) -> None:
        tokens = self.cache(layer, Span(span.new, 1)).seen if is_there else span.new
        self._tensor(name, self.work.batch * tokens, is_there=is_there)
        self.stores[layer][0].add(span.length, [name])

    def _cut(self, layer: str, span: Span, kv: KvBlocks, *, is_there: bool) -> None:
        work, store, together = self.work, self.stores[layer][0], kv.together(self.work.batch)
        groups = numbered("s", -(-work.batch // together))
        there, end = (work.sequence, work.sequence + work.new_tokens) if is_there else (0, work.sequence)
        numbers = numbered("b", -(-end // kv.block), 4)
        first, after = self.cache(layer, Span(there, 1)), self.cache(layer, Span(end, 1))
        for number in range(span.cached // kv.block, -(-span.length // kv.block)):
            start, stop = number * kv.block, (number + 1) * kv.block
            is_begun, is_stored = start >= there, kv.left == "stored"
            is_used = is_begun or first.sees(start, stop)
            is_seen = not is_begun or after.sees(start, stop)
            is_new = kv.new == "as_needed" and start > there
            lasts = not is_new and (is_there if is_seen else is_stored)
            names = [f"{layer}/kv/{group}/{numbers[number]}" for group in groups]
            self.come += names if is_new and (is_seen or is_stored) else []
            if is_used or is_stored:
                for place, name in enumerate(names):
                    sequences = min(together, work.batch - place * together)
                    self._tensor(name, sequences * kv.block, is_there=lasts)
            store.add(stop, names if is_used else [])

    def _compress(self, layer: str, span: Span, name: str, *, is_there: bool) -> None:
        if self.part.sparse is None:
            return
        before, after = (compressed(length, self.part.sparse.compress) for length in (span.cached, span.length))
        if after > before:
            self._tensor(f"{name}.compressed", self.work.batch * (after - before), is_there=is_there)
            self.stores[layer][1].add(after, [f"{name}.compressed"])

    def _tensor(self, name: str, tokens: int, *, is_there: bool) -> None:
        self.tape.graph.tensor(name, tokens * self.token_bytes, "kv_cache", persistent=is_there)
