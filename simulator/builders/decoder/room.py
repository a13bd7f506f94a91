"""Which tensors cache the keys and values of a layer, and how many tokens each of them holds.

Without ``kv`` a layer has one for what is cached before a step (``L03/kv``, persistent), and one for what decode adds
(``L03/kv.tail``); in prefill, one for each chunk (``c0/L03/kv``). With ``kv`` a layer has one for each block of each
sequence, or of several together (``L03/kv/s0/b0012``). Those of decode are persistent, and there from the start: the
block that a new token joins is written in place, so that it must be brought home again if that is another tier. If new
blocks come as needed, those behind the one that the first new token joins are tensors of the step, born with their
first token and put out, as blocks of prompts are. What compresses tokens has one tensor in place of each that is not
cut (``L03/kv.compressed``).

A block has *left* when a window has passed it, so that no token of its sequence sees it any more. If such blocks are
dropped, those that left before the step are not there, and what the step begins and leaves behind dies with its last
reader. If they are stored, all are there, and those that the step leaves behind are persistent: they are written in it,
so that they must be at home when it ends; or put out, if they come as needed.
"""

from __future__ import annotations

from simulator.builders.decoder.cache import Cache, Store
from simulator.builders.decoder.reach import Span, compressed
from simulator.builders.decoder.tape import Tape
from simulator.builders.naming import numbered
from simulator.workload import Gqa, KvBlocks, Mla, Workload


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
