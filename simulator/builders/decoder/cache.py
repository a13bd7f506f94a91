"""The KV cache of one layer, as inference on one rank sees it."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from simulator.builders.decoder.reach import Span, pairs, reach
from simulator.builders.decoder.tape import Tape
from simulator.workload import Gqa, Mla


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


def made_bytes(tape: Tape, *names: str) -> int:
    """Size of activations [B]."""
    return sum(tape.elements(name) * tape.spread[name].element_bytes for name in names)
