"""The KV cache of one layer, as inference on one rank sees it."""

from __future__ import annotations

from typing import NamedTuple

from simulator.builders.decoder.tape import Tape


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

    @property
    def pairs(self) -> int:
        """How often one of the new tokens of a sequence attends to a token: to all before it, and to itself."""
        return self.new * self.cached + self.new * (self.new + 1) // 2


class Cache(NamedTuple):
    """What is cached of a layer, and what these tokens add to it.

    Attributes
    ----------
    held
        Tensors with the tokens that were there before.
    added
        The tensor that the new ones join.
    batch
        How many sequences there are.
    span
        Their tokens.
    token_bytes
        What a token takes [B].
    """

    held: list[str]
    added: str
    batch: int
    span: Span
    token_bytes: int

    @property
    def tokens(self) -> int:
        """How many new tokens all sequences have."""
        return self.batch * self.span.new

    @property
    def held_bytes(self) -> int:
        """What an op reads that attends to all that was there before [B]."""
        return self.batch * self.span.cached * self.token_bytes

    @property
    def added_bytes(self) -> int:
        """What an op writes that caches the new tokens [B]."""
        return self.tokens * self.token_bytes


def made_bytes(tape: Tape, *names: str) -> int:
    """Size of activations [B]."""
    return sum(tape.elements(name) * tape.spread[name].element_bytes for name in names)
