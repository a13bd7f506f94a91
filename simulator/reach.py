"""Tokens of its sequence that a token sees, counted exactly.

Token t (from 1) of a sequence has t - 1 before it. It sees

- of all tokens: t; within a `Reach` of r tokens (a window and its sinks, or those that were chosen): min(t, r);
- of those of its own block of so many new ones (linear attention, which keeps a state of all before);
- of compressed ones: those that are complete, (t - l) // d + 1 of l tokens each, d apart, if t >= l (NSA, arXiv
  2502.11089, equation 7); or t // s of s tokens each, at most r of them (DeepSeek-V4);
- of selected ones: its own block up to itself, and n - 1 others of b tokens: (n - 1) * b + (t - 1) % b + 1, or t as
  long as there are no more than n blocks.

Sums over a span of tokens are differences of sums from the first token on, each a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from simulator.workload import Attention, Gqa, Indexer, Mla, Mqa, Pool, Recurrent, Sparse, seen_in_blocks


class TokenSpan(NamedTuple):
    """Tokens of one sequence that run now, behind those that are cached.

    Attributes
    ----------
    cached
        Number of cached tokens.
    new
        Number of tokens that run now.
    """

    cached: int
    new: int

    @property
    def length(self) -> int:
        """Number of tokens of the sequence once these have run."""
        return self.cached + self.new

    def sum(self, until: Callable[[int], int]) -> int:
        """Add something up over the new tokens; `until(n)` is the sum over the first n tokens of the sequence."""
        return until(self.length) - until(self.cached)


Counted = Literal["compressed", "selected", "made", "makes", "chosen"]
"""What is counted where tokens are compressed: ``compressed`` tokens that are seen; tokens of ``selected`` blocks that
are seen; compressed tokens that new ones complete (``made``); sequences in which some are completed (``makes``); and
compressed tokens that are ``chosen`` of those that are seen."""


class Reach(NamedTuple):
    """Tokens of its sequence that a token sees. A layer keeps in its cache what the next token will see.

    Attributes
    ----------
    window, sinks
        The token sees the last `window` tokens, itself among them, and the first `sinks` ones; default: all.
    block
        In linear attention, tokens that see one another pair by pair. The layer keeps a state in place of tokens.
    whole
        Tokens of a block, of which `window` are seen as a whole, the last one up to the token itself.
    sparse, counted
        How tokens are compressed, and what the methods count in place of tokens; at most `window` are chosen.
    """

    window: int | None = None
    sinks: int = 0
    block: int = 0
    whole: int = 1
    sparse: Sparse | Pool | None = None
    counted: Counted = "compressed"

    @classmethod
    def of(cls, part: Attention) -> Reach:
        """Return what tokens see of the cache of a layer."""
        return cls(block=part.together) if isinstance(part, Recurrent) else cls(part.window, part.sinks)

    @classmethod
    def all_of(cls, part: Attention) -> tuple[Reach, ...]:
        """Return what the cost of a layer depends on: what it keeps, what an indexer chooses, and compressed tokens."""
        if part.sparse:
            counted = (cls(sparse=part.sparse, counted=view) for view in get_args(Counted)[:-1])
            return (cls.of(part), cls(part.sparse.window), *counted)
        if isinstance(part, Mqa) and (pool := part.pool):
            chosen = [cls.chosen(pool.indexer, pool)] if pool.indexer else []
            counted = (cls(sparse=pool, counted=view) for view in ("compressed", "made"))
            return (cls.of(part), cls(block=pool.stride), *counted, *chosen)
        indexer = part.indexer if isinstance(part, (Gqa, Mla)) else None
        return (cls.of(part), cls.chosen(indexer)) if indexer else (cls.of(part),)

    @classmethod
    def chosen(cls, indexer: Indexer, pool: Pool | None = None) -> Reach:
        """Return what tokens see of those that an indexer chooses, perhaps of compressed ones."""
        return cls(indexer.top, whole=indexer.block, sparse=pool, counted="chosen")

    def cached(self, cached: int) -> int:
        """Count the cached tokens that the new ones see; a state that is read counts as 1.

        Where tokens are compressed, how many of these there are, or what is counted of the next token alone.
        """
        if self.sparse:
            return (
                self.sparse.compress.number(cached)
                if self.counted == "compressed"
                else self.pairs(TokenSpan(cached, 1))
            )
        if self.block:
            return min(1, cached)
        if self.whole > 1:
            return self.pairs(TokenSpan(cached, 1)) - 1
        return cached if self.window is None else min(cached, self.window + self.sinks - 1)

    def pairs(self, span: TokenSpan) -> int:
        """Count the pairs of a new token and a token that it sees; or what is counted of compressed ones."""
        if self.sparse and self.counted == "compressed":
            return span.sum(self.sparse.compress.seen)
        if isinstance(self.sparse, Sparse) and self.counted == "selected":
            return span.sum(self.sparse.select.seen)
        if self.sparse and self.counted != "chosen":
            made = span.sum(self.sparse.compress.number)
            return made if self.counted == "made" else min(1, made)
        if not self.block:
            return span.sum(self.seen)
        whole, left = divmod(span.new, self.block)
        return whole * self.seen(self.block) + self.seen(left)

    def seen(self, tokens: int) -> int:
        """Add up how many tokens each of the first `tokens` tokens sees, itself among them."""
        if self.whole > 1 and self.window:
            return seen_in_blocks(tokens, self.window, self.whole)
        every = self.sparse.compress.stride if self.sparse else 1
        near = tokens // every if self.window is None else min(tokens // every, self.window + self.sinks)
        return every * near * (near - 1) // 2 + (tokens - every * near + 1) * near

    def near(self, cached: int) -> tuple[int, int]:
        """Return which cached tokens new ones see: those before the first of two positions, and from the second on."""
        if self.window is None:
            return cached, cached
        return min(self.sinks, cached), max(0, cached + 1 - self.window)
