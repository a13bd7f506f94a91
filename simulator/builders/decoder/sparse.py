"""Native sparse attention (NSA, arXiv 2502.11089, section 3): compressed, selected and near tokens, mixed by gates.

A layer runs, in this order, so that what is selected can be fetched while the other two views are computed::

    attn.gate   attn.cache   attn.compress   attn.select   attn.compressed   attn.window   attn.selected   attn.mix

Let w be the elements of what is made into one (of a key or a value of one head; of a latent, whole), B sequences, p the
FLOP and k the bytes that a pair takes in full attention, and P the pairs of a view (`reach`).

- ``gate``: a linear from the layer's input to three gates for each head.
- ``compress``: blocks of l tokens that are complete now go through an MLP l * w -> w -> w, of keys and of values, all
  heads alike: 2 * w * w * (l + 1) FLOP each. (The paper prints no widths; position embeddings are l * w parameters.)
- ``select``: scores of all compressed tokens and the best blocks of each group of heads: the FLOP of their keys, which
  are read once. Scores are made again by the attention to compressed tokens rather than kept, and adding those of a
  block up, and sorting, are not counted.
- ``compressed``, ``window``, ``selected``: B * P * p FLOP. The first two read what they see once, as dense attention;
  of selected blocks each token reads its own, B * P * k bytes: blocks that several tokens select are read again.
- ``mix``: only moves bytes.

All views attend to the same keys and values; the paper gives each its own, which adds two projections. Latent attention
is absorbed in both phases, because the heads of one group share what they select.

In decode, where the cache is cut into blocks, each sequence has an op ``attn.selected.s0`` of its own, whose selected
blocks are late reads that ``attn.select`` reveals; each group of heads chooses for itself. The first and the last
blocks, which are always selected, are read for certain. Blocks that the window sees as well are in place then, and no
candidates: all choices fall on others, so that a little more is fetched than could be (7 of 1,022 blocks lie in the
window at 65,536 tokens). A block has the keys of all groups, and is fetched and read as a whole for any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simulator.builders.decoder.cache import Cache, made_bytes
from simulator.builders.decoder.reach import compressed, compressed_pairs, pairs, selected_pairs
from simulator.builders.decoder.tape import ID_BYTES, Tape
from simulator.builders.naming import numbered
from simulator.graph import Late
from simulator.workload import Sparse


class Query(NamedTuple):
    """What new tokens attend with.

    Attributes
    ----------
    taken, taken_bytes
        Tensors of the queries, and what an op reads of them [B].
    new
        Tensors with the keys and values of the new tokens.
    width
        Elements of a row of what comes out.
    pair_flops
        Work of a pair of tokens [FLOP].
    scores
        The part of it that scores a key [FLOP], and what is read of a token for it [B].
    """

    taken: list[str]
    taken_bytes: int
    new: list[str]
    width: int
    pair_flops: int
    scores: tuple[int, int]


def sparse(t: Tape, part: Sparse, cache: Cache, query: Query, x: str) -> str:
    """Attend to three views of the tokens before, from the normed input to what the output projection takes."""
    return _Views(t, part, cache, query).mixed(x)


class _Views:
    """The three views of one layer and of the tokens that run now."""

    def __init__(self, tape: Tape, part: Sparse, cache: Cache, query: Query) -> None:
        self.tape, self.part, self.cache, self.query = tape, part, cache, query
        self.complete = compressed(cache.span.length, part.compress)

    def mixed(self, x: str) -> str:
        t, cache = self.tape, self.cache
        gates = t.linear("attn.gate", x)
        partial = set(cache.held).intersection(cache.added)
        new_bytes = made_bytes(t, *self.query.new)
        t.op(
            "attn.cache",
            [*self.query.new, *sorted(partial)],
            cache.added,
            read_bytes=new_bytes,
            write_bytes=cache.added_bytes,
        )
        self._compress()
        chosen = self._select()
        views = [self._compressed()] if self.complete else []
        views += [self._window(), *self._selected(chosen)]
        out = t.tensor("attn.core.out", self.query.width, t.cut())
        t.op("attn.mix", [gates, *views], [out])
        return out

    def _compress(self) -> None:
        """Make each block that is complete now into one token."""
        t, cache, about = self.tape, self.cache, self.part.compress
        before = compressed(cache.span.cached, about)
        made = cache.batch * (self.complete - before)
        weights = [t.weight(f"attn.compress.{name}") for name in compression(cache.part.kind)]
        if not made:
            return
        start, stop = before * about.stride, (self.complete - 1) * about.stride + about.block
        width = weights[0].shape[-1]
        parts = cache.part.kv_elements // width
        read_bytes = cache.batch * (stop - start) * cache.token_bytes
        t.op(
            "attn.compress",
            [*cache.store.of(start, stop), *(weight.name for weight in weights)],
            cache.compressed.of(before, self.complete),
            flops=made * parts * 2 * width * width * (about.block + 1),
            op_class="matmul",
            read_bytes=read_bytes + sum(map(t.weight_bytes, weights)),
            write_bytes=made * cache.token_bytes,
        )

    def _select(self) -> str | None:
        """Score what is compressed, and choose blocks; None as long as there are no more than are selected."""
        t, cache, about, (flops, key_bytes) = self.tape, self.cache, self.part.select, self.query.scores
        if cache.span.length <= about.top * about.block:
            return None
        out = t.tensor("attn.blocks", cache.part.groups * about.top, t.cut(), ID_BYTES)
        t.op(
            "attn.select",
            [*self.query.taken, *cache.compressed.of(0, self.complete)],
            [out],
            flops=cache.batch * compressed_pairs(cache.span, self.part.compress) * flops,
            op_class="attention",
            read_bytes=self.query.taken_bytes + cache.batch * self.complete * key_bytes,
        )
        return out

    def _compressed(self) -> str:
        cache = self.cache
        seen = compressed_pairs(cache.span, self.part.compress)
        names = cache.compressed.of(0, self.complete)
        return self._view("compressed", names, seen, cache.batch * self.complete)

    def _window(self) -> str:
        cache, window = self.cache, self.part.window
        names = cache.store.of(max(0, cache.span.cached + 1 - window), cache.span.length)
        read = cache.batch * (min(cache.span.cached, window - 1) + cache.span.new)
        return self._view("window", names, pairs(cache.span, window), read)

    def _selected(self, chosen: str | None) -> list[str]:
        cache, about = self.cache, self.part.select
        seen, length = selected_pairs(cache.span, about), cache.span.length
        first, last = about.first, -(-length // about.block) - about.last
        free = min(last, (length - self.part.window) // about.block) - first
        if chosen is None or cache.store.block is None or self.tape.phase == "prefill" or free < about.chosen:
            names = [*cache.store.of(0, length), *([chosen] if chosen else [])]
            return [self._view("selected", names, seen, cache.batch * seen)]
        certain = seen - about.chosen * about.block
        found = []
        for group, name in enumerate(numbered("selected.s", cache.batch)):
            fixed = [(0, first * about.block), (last * about.block, length)]
            known = [tensor for start, stop in fixed for tensor in cache.store.of(start, stop, group)]
            candidates = cache.store.of(first * about.block, (first + free) * about.block, group)
            samples, each = cache.part.groups, about.chosen
            late = self.tape.late(f"attn.{name}", "attn.select", candidates, samples=samples, each=each)
            found.append(self._view(name, [*known, *candidates, chosen], seen, certain, late))
        return found

    def _view(self, name: str, reads: Iterable[str], seen: int, read: int, late: Late | None = None) -> str:
        """Attend to `seen` tokens for each sequence, of which `read` are read in all; late, of one sequence."""
        t, query, cache = self.tape, self.query, self.cache
        batch = 1 if late else cache.batch
        out = t.tensor(f"attn.{name}.out", query.width, t.cut(), rows=(batch * cache.span.new,))
        t.op(
            f"attn.{name}",
            [*query.taken, *dict.fromkeys(reads)],
            [out],
            flops=batch * seen * query.pair_flops,
            op_class="attention",
            read_bytes=query.taken_bytes * batch // cache.batch + read * cache.token_bytes,
            late=late,
        )
        return out


def compression(kind: str) -> tuple[str, ...]:
    """Names of the weights that compress: of latents whole, or of keys and of values."""
    parts = ("",) if kind == "mla" else ("k.", "v.")
    return tuple(f"{part}{name}" for part in parts for name in ("in", "out", "position"))
