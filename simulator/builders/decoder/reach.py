"""Which tokens a token sees, counted exactly: over all before it, a window, compressed or selected blocks.

Token t (from 1) of a sequence has t - 1 before it. It sees

- of all tokens: t; within a `reach` of r tokens (a window and its sinks): min(t, r);
- of compressed ones: those that are complete, (t - l) // d + 1 of l tokens each, d apart, if t >= l (NSA, arXiv
  2502.11089, equation 7);
- of selected ones: its own block up to itself, and n - 1 others of b tokens: (n - 1) * b + (t - 1) % b + 1, or t as
  long as there are no more than n blocks.

Sums over a span of tokens are differences of sums from the first token on, each a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simulator.workload import Compress, Gqa, Mla, Select


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
