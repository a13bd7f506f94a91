"""Which iterations are alike, so that one is replayed for all of them: a class is a shape of batch.

*What ops take.* FLOPs and bytes of each op grow evenly with the numbers of an iteration (tokens that are cached, pairs
that attend to one another, ...), so a few graphs tell both sides of its roofline for all numbers, and so what all ops
take, each alone.

*A class.* Each number is rounded to the nearest multiple of what costs a part of the scale of the iteration, which is
the power of two below what its ops take; but not to 0. A number's price is that at which one more costs most. Tokens
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
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.builders import Iteration, iteration
from simulator.catalog import Loaded
from simulator.cost import memory_rate_cap, roofline
from simulator.cost.service import NS_PER_S
from simulator.policies import Problem
from simulator.serving.asked import asked_of, token_bytes

PARTS = (8, 64)
"""Into so many parts the scale of an iteration is cut; and if compute waits."""
WAITS = 1 / 100
"""Less than this share of the time is no wait."""
_LARGE = (1 << 12, 1 << 24, 1 << 16, 1 << 24, 1 << 36, 1 << 11)
"""Numbers beside which a nanosecond of rounding is nothing."""
Numbers = NDArray[np.float64]


class _Shape:
    """Iterations that have the same ops, and differ in numbers.

    Parameters
    ----------
    loaded
        The scenario, its machine and its workload of requests.
    some
        One of them, without copies.
    """

    def __init__(self, loaded: Loaded, some: Iteration) -> None:
        self._loaded, self._is_all = loaded, some.answers == some.decoding + some.reading
        large = [number if there else 0 for number, there in zip(_LARGE, self.numbers(some), strict=True)]
        base, *more = ([n * (1 + (i == at)) for i, n in enumerate(large)] for at in range(-1, len(large)))
        at_large = self._sides(base)
        slopes = np.array([(self._sides(one) - at_large) / max(1, n) for one, n in zip(more, large, strict=True)])
        constant = at_large - np.tensordot(large, slopes, 1)
        both, self._counts = np.unique(np.concatenate([constant[None], slopes]), axis=-1, return_counts=True)
        self._constant, self._slopes = both[0], both[1:]
        self.prices_ns: Numbers = self._slopes.max(axis=1) @ self._counts

    def numbers(self, work: Iteration) -> list[int]:
        """The numbers of an iteration; answers that are as many as all tokens are none of their own."""
        return [*work[:5], 0 if self._is_all else work.answers]

    def made(self, numbers: Sequence[int]) -> Iteration:
        """The iteration of some numbers."""
        decoding, context, reading, cached, pairs, answers = numbers
        return Iteration(decoding, context, reading, cached, pairs, decoding + reading if self._is_all else answers)

    def _sides(self, numbers: Sequence[int]) -> Numbers:
        """Both sides of the roofline of each op [ns]."""
        hardware, graph = self._loaded.hardware, iteration(self._loaded.workload, self.made(numbers), 1)
        cap, launch_ns, found = memory_rate_cap(hardware), hardware.compute.launch_ns, []
        for op in graph.ops:
            least_ns, traffic = roofline(op, hardware)
            found.append((least_ns, launch_ns + traffic / cap if traffic else 0))
        return np.array(found, np.float64).T

    def ops_ns(self, work: Iteration) -> float:
        """What the ops of an iteration take, each alone."""
        sides = self._constant + np.tensordot(self.numbers(work), self._slopes, 1)
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

    def of(self, work: Iteration, parts: int) -> tuple[Iteration, int]:
        """The iteration that is replayed for a class, and what the ops of one of the class take more than its [ns]."""
        kind = (*map(bool, work[:6]), work.answers == work.decoding + work.reading)
        if kind not in self._shapes:
            self._shapes[kind] = _Shape(self._loaded, work)
        shape, asked, here = self._shapes[kind], self._asked, self._loaded.hardware.compute_tier
        own_ns = shape.ops_ns(work)
        part_ns = 2.0 ** math.floor(math.log2(max(own_ns, 1))) / parts
        numbers = [_near(*one, part_ns) for one in zip(shape.numbers(work), shape.prices_ns, strict=True)]
        numbers[0] = min(numbers[0], asked.max_sequences)
        numbers[2] = min(numbers[2], asked.max_tokens - numbers[0])
        alike = shape.made(numbers)

        def near(tokens: int, *way: str) -> int:
            rates = (self._loaded.hardware.links[link].bandwidth_bytes_per_s for link in self.links(*way))
            block_ns = sum(asked.block * token_bytes(self._loaded) * NS_PER_S / rate for rate in rates)
            return asked.block * _near(tokens // asked.block, block_ns, part_ns)

        loads = tuple((tier, near(tokens, tier, here)) for tier, tokens in work.loads)
        stores = tuple((way, near(tokens, *way)) for way, tokens in work.stores)
        return alike._replace(loads=loads, stores=stores), round(own_ns - shape.ops_ns(alike))

    def moved(self, work: Iteration) -> Counter[str]:
        """Bytes that the loads and stores of an iteration move over each link."""
        here, found = self._loaded.hardware.compute_tier, Counter[str]()
        for way, tokens in (*(((tier, here), tokens) for tier, tokens in work.loads), *work.stores):
            for link in self.links(*way):
                found[link] += tokens * token_bytes(self._loaded)
        return found


def _near(number: int, price_ns: float, part_ns: float) -> int:
    """The nearest multiple of as many as cost a part; what costs nothing is one, and 0 alone is 0."""
    step = max(1.0, part_ns / price_ns) if price_ns > 0 else math.inf
    return min(1, number) if step == math.inf else max(min(1, number), round(round(number / step) * step))
