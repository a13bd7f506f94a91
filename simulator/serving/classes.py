"""Which iterations are alike, so that one is replayed for all of them: a class is a shape of batch.

*What ops take.* FLOPs and bytes of each op grow evenly with the numbers of an iteration (tokens that are cached, pairs
that attend to one another, ...), so a few graphs tell both sides of its roofline for all numbers, and so what all ops
take, each alone. But experts: few tokens leave some out, which are then not read. What each of these saves is known
from an iteration of few tokens, and how many they are is a closed form.

*A class.* Each number is rounded to the nearest multiple of what costs a part of the scale of the iteration, which is
the power of two below what its ops take; but not to 0. A number's price is that at which one more costs most; of
tokens it is the higher, the fewer experts others have chosen. Tokens
that are copied are rounded alike, to whole blocks, at the price of their links. A part is 1/8; where compute then
waits for more than 1/100 of the time, it is 1/64.

*One for all.* An iteration takes what the one of its class takes that is replayed, and what its own ops take more or
less, each alone. What the class has in common is how ops, copies and the host wait for one another.

*The error.* With the same order of ops and copies, no end moves by more than they do together, as it waits for each at
most once. So what a number makes wrong is at most half a part, and only in so far as waits change with it: where they
do not, it is a few nanoseconds of rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.builders import Iteration, decoder_of, iteration
from simulator.builders.tape import read_experts
from simulator.builders.weights import blocks
from simulator.catalog import Loaded
from simulator.cost import memory_rate_cap, roofline
from simulator.cost.service import NS_PER_S
from simulator.policies import Problem
from simulator.serving.asked import asked_of, groups_of
from simulator.workload import Experts

PARTS = (8, 64)
"""Into so many parts the scale of an iteration is cut; and if compute waits."""
WAITS = 1 / 100
"""Less than this share of the time is no wait."""
_LARGE = (1 << 12, 1 << 24, 1 << 16, 1 << 24, 1 << 36, 1 << 11)
_LARGE_NEAR = (1 << 24, 1 << 24, 1 << 36)
"""Numbers beside which a nanosecond of rounding is nothing, and all experts are chosen; for each further reach, too."""
_TOKENS = (0, 2)
"""Which of the numbers are tokens, that choose experts."""
Numbers = NDArray[np.float64]


class _Shape:
    """Iterations that have the same ops, and differ in numbers.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload of requests.
    some
        One of them, without copies.

    Attributes
    ----------
    known_ns
        What the ops of iterations take that stand for others [ns].
    """

    def __init__(self, loaded: Loaded, some: Iteration) -> None:
        self._loaded, self._is_all = loaded, some.answers == some.decoding + some.reading
        self._model = decoder_of(loaded.workload)
        parts = dict.fromkeys(part for _, part in self._model.kinds if isinstance(part, Experts))
        self._experts = [part for part in parts if part.top_k < part.routed]
        there, large_ones = self.numbers(some), (*_LARGE, *_LARGE_NEAR * len(some.near))
        large = [number if n else 0 for number, n in zip(large_ones, there, strict=True)]
        base, *more = ([n * (1 + (i == at)) for i, n in enumerate(large)] for at in range(-1, len(large)))
        at_large, names, flops = self._sides(base)
        beside = [(max(1, n), *self._sides(one)) for one, n in zip(more, large, strict=True)]
        slopes = np.array([(sides - at_large) / n for n, sides, *_ in beside])
        self._flops_slopes: Numbers = np.array([(other - flops) / n for n, _, _, other in beside])
        self._flops_constant = flops - float(np.dot(large, self._flops_slopes))
        constant = at_large - np.tensordot(large, slopes, 1)
        fewer = self._fewer(names, [min(1 + (at in _TOKENS), n) for at, n in enumerate(there)], slopes, constant)
        every = [constant[None], slopes, *fewer]
        both, self._counts = np.unique(np.concatenate(every), axis=-1, return_counts=True)
        slopes, fewer_ns = both[1 : len(slopes) + 1], both[len(slopes) + 1 :]
        self._constant, self._slopes = both[0], slopes.reshape(len(slopes), -1)
        self._fewer_ns = fewer_ns.reshape(len(fewer_ns), self._slopes.shape[1])
        self._prices_ns: Numbers = slopes.max(axis=1) @ self._counts
        self._fewer_prices_ns: Numbers = fewer_ns.max(axis=1, initial=0) @ self._counts
        self.known_ns: dict[Iteration, float] = {}

    def numbers(self, work: Iteration) -> list[int]:
        """The numbers of an iteration; answers that are as many as all tokens are none of their own."""
        return [*work[:5], 0 if self._is_all else work.answers, *chain.from_iterable(work.near)]

    def made(self, numbers: Sequence[int]) -> Iteration:
        """The iteration of some numbers."""
        decoding, context, reading, cached, pairs, answers, *near = numbers
        answers = decoding + reading if self._is_all else answers
        triples = [(near[at], near[at + 1], near[at + 2]) for at in range(0, len(near), 3)]
        return Iteration(decoding, context, reading, cached, pairs, answers, tuple(triples))

    def prices_ns(self, work: Iteration) -> Numbers:
        """What one more of each number costs at most [ns]; a token the more for experts, the fewer others choose."""
        if not self._experts:
            return self._prices_ns
        found, tokens = self._prices_ns.copy(), work.decoding + work.reading
        fewer, most = (np.array(self._unchosen(n)) for n in (tokens, tokens // 2))
        found[[*_TOKENS]] += (most - fewer) @ self._fewer_prices_ns / max(1, tokens - tokens // 2)
        return found

    def flops(self, work: Iteration) -> int:
        """The arithmetic of an iteration."""
        return round(self._flops_constant + float(np.dot(self.numbers(work), self._flops_slopes)))

    def _sides(self, numbers: Sequence[int]) -> tuple[Numbers, list[str], int]:
        """Both sides of the roofline of each op [ns]; what the ops are called; and their arithmetic [FLOP]."""
        hardware, graph = self._loaded.hardware, iteration(self._loaded.workload, self.made(numbers), 1)
        cap, launch_ns, found = memory_rate_cap(hardware), hardware.compute.launch_ns, []
        for op in graph.ops:
            least_ns, traffic = roofline(op, hardware)
            found.append((least_ns, launch_ns + traffic / cap if traffic else 0))
        return np.array(found, np.float64).T, [op.name for op in graph.ops], sum(graph.arithmetic.values())

    def _unchosen(self, tokens: int) -> list[int]:
        """How many experts of a layer so many tokens leave out, of each kind of layers with experts."""
        return [part.held - read_experts(part, tokens) for part in self._experts]

    def _fewer(self, names: Sequence[str], few: list[int], slopes: Numbers, constant: Numbers) -> list[Numbers]:
        """What an expert that is left out saves both sides of each op [ns], from an iteration of few tokens."""
        saved = constant + np.tensordot(few, slopes, 1) - self._sides(few)[0] if self._experts else constant
        parts = dict(zip(blocks(self._model.layers), map(self._model.layer, range(self._model.layers)), strict=True))
        of_op = [parts[block].feed_forward if (block := name.split("/")[0]) in parts else None for name in names]
        found = zip(self._experts, self._unchosen(sum(few[at] for at in _TOKENS)), strict=True)
        return [np.where([one == part for one in of_op], saved / max(1, number), 0)[None] for part, number in found]

    def ops_ns(self, work: Iteration) -> float:
        """What the ops of an iteration take, each alone."""
        more: Numbers = np.dot(self.numbers(work), self._slopes)
        if self._experts:
            more -= np.dot(self._unchosen(work.decoding + work.reading), self._fewer_ns)
        sides = self._constant + more.reshape(self._constant.shape)
        return float(sides.max(axis=0) @ self._counts)


class Classes:
    """Tells which iterations are alike.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload of requests.
    problem
        Of one of its iterations: which ways lead from tier to tier.
    """

    def __init__(self, loaded: Loaded, problem: Problem) -> None:
        self._loaded, self._problem, self._asked = loaded, problem, asked_of(loaded)
        self._sizes = [group.block_bytes(self._asked.block) for group in groups_of(loaded)]
        self._shapes: dict[tuple[bool, ...], _Shape] = {}
        self._ways: dict[tuple[str, str], tuple[str, ...]] = {}

    def links(self, source: str, target: str) -> tuple[str, ...]:
        """Links that a copy from one tier to another takes, with those that they go via."""
        problem, links, tiers = self._problem, self._loaded.hardware.links, self._problem.tiers
        if (source, target) not in self._ways:
            hops = pairwise(problem.path(tiers.index(source), tiers.index(target)))
            found = [problem.link_names[hop] for hop in hops]
            self._ways[source, target] = tuple(one for name in found for one in (name, *links[name].via))
        return self._ways[source, target]

    @staticmethod
    def kind(work: Iteration) -> tuple[bool, ...]:
        """Iterations of a kind have the same ops."""
        near = map(bool, chain.from_iterable(work.near))
        return (*map(bool, work[:6]), work.answers == work.decoding + work.reading, *near)

    def of(self, work: Iteration, parts: int) -> tuple[Iteration, int]:
        """The iteration that is replayed for a class, and what the ops of one of the class take more than its [ns]."""
        kind = self.kind(work)
        if kind not in self._shapes:
            self._shapes[kind] = _Shape(self._loaded, work)
        shape, asked, here = self._shapes[kind], self._asked, self._loaded.hardware.compute_tier
        own_ns = shape.ops_ns(work)
        part_ns = 2.0 ** math.floor(math.log2(max(own_ns, 1))) / parts
        numbers = [_near(*one, part_ns) for one in zip(shape.numbers(work), shape.prices_ns(work), strict=True)]
        numbers[0] = min(numbers[0], asked.max_sequences)
        numbers[2] = min(numbers[2], asked.max_tokens - numbers[0])
        alike = shape.made(numbers)

        def near(tokens: Sequence[int], *way: str) -> tuple[int, ...]:
            rates = [self._loaded.hardware.links[link].bandwidth_bytes_per_s for link in self.links(*way)]
            block_ns = [sum(size * NS_PER_S / rate for rate in rates) for size in self._sizes]
            found = zip(tokens, block_ns, strict=True)
            return tuple(asked.block * _near(n // asked.block, price_ns, part_ns) for n, price_ns in found)

        loads = tuple((tier, near(tokens, tier, here)) for tier, tokens in work.loads)
        stores = tuple((way, near(tokens, *way)) for way, tokens in work.stores)
        if alike not in shape.known_ns:
            shape.known_ns[alike] = shape.ops_ns(alike)
        return alike._replace(loads=loads, stores=stores), round(own_ns - shape.known_ns[alike])

    def flops(self, work: Iteration) -> int:
        """The arithmetic of an iteration of which `of` has told."""
        return self._shapes[self.kind(work)].flops(work)

    def moved(self, work: Iteration) -> Counter[str]:
        """Bytes that the loads and stores of an iteration move over each link."""
        here, found = self._loaded.hardware.compute_tier, Counter[str]()
        for way, tokens in (*(((tier, here), tokens) for tier, tokens in work.loads), *work.stores):
            size_bytes = sum(n // self._asked.block * size for n, size in zip(tokens, self._sizes, strict=True))
            for link in self.links(*way):
                found[link] += size_bytes
        return found


def _near(number: int, price_ns: float, part_ns: float) -> int:
    """The nearest multiple of as many as cost a part; what costs nothing is one, and 0 alone is 0."""
    step = max(1.0, part_ns / price_ns) if price_ns > 0 else math.inf
    return min(1, number) if step == math.inf else max(min(1, number), round(round(number / step) * step))
