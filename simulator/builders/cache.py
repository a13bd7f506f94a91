"""The KV cache as inference on one rank sees it: which tensors hold the tokens that a token sees (`simulator.reach`).

*Tensors.* Without ``kv`` a layer has one for what is cached before a step (``L03/kv``, persistent), and one for what
decode adds (``L03/kv.tail``); in prefill, one for each chunk (``c0/L03/kv``). With ``kv`` a layer has one for each
block of each sequence, or of several together (``L03/kv/s0/b0012``). Those of decode are persistent, and there from the
start: the block that a new token joins is written in place, so that it must be brought home again if that is another
tier. If new blocks come as needed, those behind the one that the first new token joins are tensors of the step, born
with their first token and put out, as blocks of prompts are. What compresses tokens has one tensor in place of each
that is not cut (``L03/kv.compressed``).

A block has *left* when a window has passed it, so that no token of its sequence sees it any more. Blocks that left
before the step do not exist, and a block that the step begins and leaves dies with its last reader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self, cast

from simulator.builders.specs import numbered
from simulator.builders.tape import Tape
from simulator.reach import Reach, TokenSpan
from simulator.workload import Attention, DecoderModel, Dtypes, KvBlocks, Mixer, Mqa, Recurrent


class Store:
    """Tensors in a row that hold the tokens of all sequences, from the first token on.

    One segment of the row follows the other; a segment is a tensor, or one for each group of sequences.

    Parameters
    ----------
    block
        Tokens of a segment, if all but the last one have the same number.
    """

    def __init__(self, block: int | None = None) -> None:
        self.block = block
        self.groups: int | None = None  # how many of the groups are left
        self._stops: list[int] = []
        self._names: list[list[str]] = []

    def add(self, stop: int, names: list[str]) -> None:
        """Add the segment that ends before token `stop`; without names, nothing there is ever read."""
        self._stops.append(stop)
        self._names.append(names)

    def of(self, start: int, stop: int, group: int | None = None) -> list[str]:
        """Name the tensors with tokens from `start` to before `stop`, of one group of sequences or of all."""
        if start >= stop:
            return []
        segments = self._names[bisect_right(self._stops, start) : bisect_right(self._stops, stop - 1) + 1]
        chosen = slice(self.groups) if group is None else slice(group, group + 1)
        return [name for names in segments for name in names[chosen]]


class Cache:
    """Tensors with what is cached of a layer and with what new tokens add to it, for any sequences together.

    Parameters
    ----------
    tape
        Tape whose current layer it is for.
    sequences, tokens
        Number of sequences, and of new tokens in all of them.
    seen
        Function from a reach to the number of cached tokens seen within it in all sequences, and of pairs of a new
        token and one that it sees.

    Attributes
    ----------
    within, seen, pairs
        The function `seen`, and what it returns for the reach of the layer.
    held, held_bytes
        Tensors with cached tokens that are seen, and what an op that attends to them reads [B].
    added, added_bytes
        Tensors that the new tokens join, and what an op that caches them writes [B].
    states, goes_on
        Tensor with all that a layer keeps of sequences in place of tokens, if there is one; whether tokens came before.
    out, after
        Tensor that the output is a part of, if it is not one of its own; and a list with it if it has other parts.
    longest
        Tokens that the longest sequence has in the end; 0 if that is not known.
    expanded
        Number of cached latents whose keys and values are made at a time.
    gates
        Gates of the views of sparse attention, if they were made for other sequences as well.
    span, store, compressed
        The tokens of each sequence, and the stores of them and of compressed ones.
    beside
        Function to the same for the part with a state beside attention.
    """

    span: TokenSpan
    store: Store
    compressed: Store
    beside: Callable[[], Cache]

    def __init__(self, tape: Tape, sequences: int, tokens: int, seen: Callable[[Reach], tuple[int, int]]) -> None:
        part = tape.attention
        self.sequences, self.tokens, self.within = sequences, tokens, seen
        self.seen, self.pairs = seen(Reach.of(part))
        self.held_bytes, self.added_bytes = self.seen * tape.token_bytes, tokens * part.views * tape.token_bytes
        self.held, self.added, self.after = list[str](), list[str](), list[str]()
        self.states, self.out, self.gates, self.goes_on = "", "", "", True
        self.expanded, self.longest = self.seen, 0

    def reused(self, tape: Tape) -> Self:
        """Read what another layer cached, new tokens included, and add nothing."""
        self.held, self.added, self.added_bytes = [*dict.fromkeys([*self.held, *self.added])], [], 0
        self.held_bytes += self.tokens * tape.token_bytes
        return self


def own_bytes(t: Tape, cache: Cache, *names: str) -> int:
    """Return the size of the current tokens in tensors that may hold others as well [B]."""
    return sum(t.made_bytes(name) * t.replicas * cache.tokens // t.spread[name].rows[0] for name in names)


class CacheRoom:
    """The KV cache of all layers.

    Parameters
    ----------
    tape
        Tape on which its tensors are declared.
    batch
        Number of sequences, all alike; default: those of the workload.

    Attributes
    ----------
    stores
        Layer -> the stores of the tokens of all sequences, new ones included, and of the compressed ones.
    come
        Blocks that come as needed, which are outputs of the step.
    """

    def __init__(self, tape: Tape, batch: int = 0) -> None:
        self.tape, self.work, self.batch = tape, tape.workload, batch or tape.workload.batch
        self.stores: dict[str, tuple[Store, Store]] = {}
        self.come: list[str] = []

    def cache(self, span: TokenSpan, layer: str) -> Cache:
        """Return the cache that the tokens of a span find in a layer, which becomes the current one."""
        self.tape.block = layer
        block, batch = self.work.kv.block if self.work.kv else None, self.batch

        def seen(reach: Reach) -> tuple[int, int]:
            return batch * reach.cached(span.cached), batch * reach.pairs(span)

        cache = Cache(self.tape, batch, batch * span.new, seen)
        keeper = self.tape.keeper
        cache.store, cache.compressed = store, _ = self.stores.setdefault(keeper, (Store(block), Store()))
        cache.span, cache.longest, cache.beside = span, span.length, partial(self.cache, span, layer)
        store.groups = -(-batch // self.work.kv.together(self.work.batch)) if self.work.kv else None
        sinks, near = Reach.of(self.tape.attention).near(span.cached)
        cache.held = [*dict.fromkeys([*store.of(0, sinks), *store.of(near, span.cached)])]
        cache.added, cache.goes_on = store.of(span.cached, span.length), span.cached > 0
        return cache.reused(self.tape) if keeper != layer else cache

    def add_prompts(self, span: TokenSpan, layer: str) -> Cache:
        """Add the tensors that a chunk of the prompts caches, and return its cache."""
        self.tape.block = layer
        if self.tape.keeper != layer:
            return self.cache(span, layer)
        self._add(layer, [(f"{self.tape.micro}{layer}/kv", span)], before=0)
        return self.cache(span, layer)

    def add_decode(self, layer: str) -> None:
        """Add the tensors cached before a step, and those that the step caches."""
        before, self.tape.block = self.work.sequence, layer
        if not self.tape.attention.kv_elements and not self.tape.attention.state:
            return
        spans = [(f"{layer}/kv", TokenSpan(0, before)), (f"{layer}/kv.tail", TokenSpan(before, self.work.new_tokens))]
        self._add(layer, spans, before)

    def kept(self, layer: str) -> list[str]:
        """Return the tensors of a layer that the next token after the prompts needs."""
        cache, part = self.cache(TokenSpan(self.work.sequence, 1), layer), self.tape.layer.attention
        if not parts_of(part):
            return []
        states = self.tape.attention.kept_bytes(self.work.dtypes.element_bytes, self.work.dtypes.state_bytes)
        return [*cache.held, *cache.compressed.of(0, self.work.sequence), *(f"{layer}/{name}" for name in states)]

    def _add(self, layer: str, spans: list[tuple[str, TokenSpan]], before: int) -> None:
        """Add the tensors of spans, one each or in blocks; `before` tokens of a sequence are cached before the step."""
        cache, work, part = self.cache(TokenSpan(before, 1), layer), self.work, self.tape.attention
        for name, span in spans:
            first, last = (part.compress.number(n) if part.compress else 0 for n in (span.cached, span.length))
            if last > first:
                each_bytes = part.compressed_elements * work.dtypes.kv_bytes
                sizes = {f"{name}.compressed": work.batch * (last - first) * each_bytes}
                self._add_segment(cache.compressed, last, sizes, lasts=span.length <= before)
        if work.kv is not None:
            self._add_blocks(layer, range(spans[0][1].cached, spans[-1][1].length), work.kv, before)
            return
        for name, span in spans:
            tokens = cache.seen if span.length <= before else sum(work.lengths) or work.batch * span.new
            sizes = {name: tokens * self.tape.attention.views * self.tape.token_bytes} if self.tape.token_bytes else {}
            self._add_segment(cache.store, span.length, sizes, lasts=span.length <= before)

    def _add_blocks(self, layer: str, tokens: range, kv: KvBlocks, before: int) -> None:
        """Add the blocks of these tokens; those that no token sees are left out."""
        work, together, token_bytes = self.work, kv.together(self.work.batch), self.tape.token_bytes
        block_bytes = kv.block * self.tape.attention.views * token_bytes
        end, reach = work.sequence + work.new_tokens if before else work.sequence, Reach.of(self.tape.attention)
        (sinks, near), (last_sinks, last_near) = reach.near(before), reach.near(end)
        names, starts = numbered("b", -(-end // kv.block), 4), range(0, work.batch, together)
        of_each = (min(together, work.batch - start) * block_bytes for start in starts)
        ends = [before + work.lengths[start] for start in starts] if work.lengths else [end] * len(starts)
        groups = [*zip([f"{layer}/kv/{group}/" for group in numbered("s", len(starts))], of_each, ends, strict=True)]
        for block in range(tokens.start // kv.block, -(-tokens.stop // kv.block)):
            start, stop = block * kv.block, (block + 1) * kv.block
            is_begun, is_new = start >= before, kv.new == "as_needed" and start > before
            is_seen = not is_begun or start < last_sinks or stop > last_near
            is_held = token_bytes and (is_begun or start < sinks or stop > near)
            sizes = {f"{group}{names[block]}": size for group, size, last in groups if last > start and is_held}
            self._add_segment(self.stores[layer][0], stop, sizes, lasts=before > 0 and is_seen and not is_new)
            self.come += sizes if is_new and is_seen else []

    def _add_segment(self, store: Store, stop: int, sizes: dict[str, int], *, lasts: bool) -> None:
        """Add tensors of these sizes [B], which hold the tokens up to before `stop`."""
        for name, size_bytes in sizes.items():
            self.tape.graph.tensor(name, size_bytes, "kv_cache", persistent=lasts)
        store.add(stop, list(sizes))


# what layers keep


def cache_name(attention: Mixer) -> str:
    """Return the last part of the name of the tensor that a layer keeps for all sequences."""
    return "state" if isinstance(attention, Recurrent) else "kv"


class CachedLayers(NamedTuple):
    """Tokens that layers with the same reach keep in the KV cache.

    Attributes
    ----------
    reach
        Reach of these layers: the tokens of a sequence that they keep.
    token_bytes
        Size of a token in all of these layers, or of a sequence, if they keep a state [B].
    """

    reach: Reach
    token_bytes: int

    def block_bytes(self, tokens: int) -> int:
        """Return the size of so many tokens, or of the state of a sequence [B]."""
        return self.token_bytes * (1 if self.reach.block else tokens)


def cached_layers(model: DecoderModel, dtypes: Dtypes, ranks: int = 1) -> tuple[CachedLayers, ...]:
    """Return what one of so many tensor ranks keeps of a sequence in the layers of a model."""
    by_reach = Counter[Reach]()
    for (attention, _), layers in model.kinds.items():
        for part in parts_of(attention.of_one(ranks)):
            by_reach.update({reach: layers * size for reach, size in kept_by_reach(part, dtypes).items()})
    return tuple(map(CachedLayers, by_reach.keys(), by_reach.values()))


def kept_by_reach(part: Mixer, dtypes: Dtypes) -> Counter[Reach]:
    """Return what a layer keeps of a token: its own, its share of a compressed one; or the state of a sequence [B].

    Rows that are to become one are those of the last tokens, as serving engines keep them: so a prefix is found again.
    """
    states_bytes = sum(part.kept_bytes(dtypes.element_bytes, dtypes.state_bytes).values())
    if isinstance(part, Recurrent):
        return Counter({Reach.of(part): states_bytes})
    kept = Counter({Reach.of(part): part.views * part.kv_elements * dtypes.kv_bytes})
    if part.compress:
        kept[Reach()] += -(-part.compressed_elements * dtypes.kv_bytes // part.compress.stride)
    if isinstance(part, Mqa) and part.pool:
        kept[Reach(part.pool.reach)] += -(-states_bytes // part.pool.reach)
    return kept


def parts_of(attention: Attention) -> list[Mixer]:
    """Return the parts of a layer's attention that keep something of a sequence: tokens, a state, or both."""
    keeping = [cast(Mixer, attention)] if attention.kv_elements else []
    return [*keeping, attention.state] if attention.state else keeping


def limited_reaches(model: DecoderModel) -> tuple[Reach, ...]:
    """Return the reaches of a model's attention, without the one that has all tokens."""
    reaches = (reach for kind, _ in model.kinds for part in parts_of(kind) for reach in Reach.all_of(part))
    return tuple(dict.fromkeys(reach for reach in reaches if reach != Reach()))
