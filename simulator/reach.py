"""Which tokens of its sequence a token sees, and how many that are, counted exactly.

Token t (from 1) of a sequence has t - 1 before it. It sees

- of all tokens: t; within a `Reach` of r tokens (a window and its sinks, or those that were chosen): min(t, r);
- of those of its own block of so many new ones (linear attention, which keeps a state of all before);
- of compressed ones: those that are complete, (t - l) // d + 1 of l tokens each, d apart, if t >= l (NSA, arXiv
  2502.11089, equation 7);
- of selected ones: its own block up to itself, and n - 1 others of b tokens: (n - 1) * b + (t - 1) % b + 1, or t as
  long as there are no more than n blocks.

Sums over a span of tokens are differences of sums from the first token on, each a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from simulator.workload import Attention, Linear, Mla, Sparse


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


Counted = Literal["compressed", "selected", "made", "makes"]
"""Of sparse attention: ``compressed`` tokens; tokens of ``selected`` blocks; compressed ones that new tokens complete,
each once (``made``); and 1 for each sequence that has such (``makes``)."""


class Reach(NamedTuple):
    """Which tokens of its sequence a token sees; what a layer keeps of a sequence is what the next one will see.

    Attributes
    ----------
    window, sinks
        So many before, itself among them, and so many of the first ones; default: all.
    block
        Of linear attention: tokens that see one another pair by pair. What it keeps is a state, whatever the length.
    sparse, counted
        Of sparse attention: what is counted in place of tokens.
    """

    window: int | None = None
    sinks: int = 0
    block: int = 0
    sparse: Sparse | None = None
    counted: Counted = "compressed"

    @classmethod
    def of(cls, part: Attention) -> Reach:
        """What tokens see of the cache of a layer."""
        return cls(block=part.block) if isinstance(part, Linear) else cls(part.window, part.sinks)

    @classmethod
    def all_of(cls, part: Attention) -> tuple[Reach, ...]:
        """That; in what reach tokens are chosen from what is cached; and what is counted of sparse attention."""
        if part.sparse:
            counted = (cls(sparse=part.sparse, counted=what) for what in get_args(Counted))
            return (cls.of(part), cls(part.sparse.window), *counted)
        indexer = part.indexer if isinstance(part, Mla) else None
        return (cls.of(part), cls(indexer.top)) if indexer else (cls.of(part),)

    def cached(self, cached: int) -> int:
        """How many of so many cached tokens some new one sees; 1 if a state of them is read.

        Of sparse attention, how many compressed tokens there are; or else what is counted of the next token.
        """
        if self.sparse:
            return self.sparse.compress.number(cached) if self.counted == "compressed" else self.pairs(Span(cached, 1))
        if self.block:
            return min(1, cached)
        return cached if self.window is None else min(cached, self.window + self.sinks - 1)

    def pairs(self, span: Span) -> int:
        """How often one of the new tokens sees a token; or what is counted of sparse attention."""
        if self.sparse and self.counted in ("compressed", "selected"):
            return span.sum(self.sparse.compress.seen if self.counted == "compressed" else self.sparse.select.seen)
        if self.sparse:
            made = span.sum(self.sparse.compress.number)
            return made if self.counted == "made" else min(1, made)
        if not self.block:
            return span.sum(self.seen)
        whole, left = divmod(span.new, self.block)
        return whole * self.seen(self.block) + self.seen(left)

    def seen(self, tokens: int) -> int:
        """How many tokens each of so many tokens sees, itself among them, added up from the first one on."""
        near = tokens if self.window is None else min(tokens, self.window + self.sinks)
        return near * (near + 1) // 2 + (tokens - near) * near

    def near(self, cached: int) -> tuple[int, int]:
        """Some new token sees the cached ones before the first of these numbers, and from the second on."""
        if self.window is None:
            return cached, cached
        return min(self.sinks, cached), max(0, cached + 1 - self.window)
