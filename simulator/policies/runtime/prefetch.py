"""Prefetchers: what a runtime fetches before it must."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from simulator.policies.problem import Problem
from simulator.policies.runtime.dynamic_reads import DynamicReads
from simulator.policies.runtime.runtime_cache import RuntimeCache
from simulator.policies.runtime.working_sets import WorkingSets


class LookAhead:
    """Fetches what ops that come into view need, without evicting what these need.

    Parameters
    ----------
    sets, cache
        What ops need, and what is held.
    ops
        How many ops ahead it looks, as far as there is no barrier between.
    """

    def __init__(self, sets: WorkingSets, cache: RuntimeCache, ops: int) -> None:
        self._sets, self._cache = sets, cache
        self._coming = _coming(sets.problem, ops)

    def fetch(self, op: int, base: int) -> None:
        """Fetch, as far as there is room, before an op is issued of the step that begins at op `base` of the run."""
        sets, cache = self._sets, self._cache
        for coming in self._coming[op]:
            for tensor in sets.uses[coming]:
                cache.needed_until[tensor] = base + coming
                if tensor in cache.here:
                    cache.eviction.touch(tensor)
            for tensor in sets.reads[coming]:
                if tensor not in cache.here and cache.is_clean[tensor]:
                    needed_bytes = cache.sizes[tensor] + sets.born_bytes[op]
                    if cache.make_room(needed_bytes, sets.kept[op], until=base + op):
                        cache.fetch(tensor)
                        cache.unused.add(tensor)


def _coming(problem: Problem, ahead: int) -> list[range]:
    """By op: the ops that come into view; at the first op all that are seen."""
    ops, coming, seen = len(problem.graph.ops), [], 0
    for op in range(ops):
        behind = min(op + ahead + 1, bisect_right(problem.fences, op, 0, ops))
        seen = max(seen, op + 1)
        coming.append(range(seen, behind))
        seen = max(seen, behind)
    return coming


class NextReads:
    """Fetches for the ops whose dynamic reads are revealed next.

    Parameters
    ----------
    dynamic, cache
        The dynamic reads, and what is held.
    wanted
        What to fetch for an op, such as all of its candidates, or a guess.
    """

    def __init__(self, dynamic: DynamicReads, cache: RuntimeCache, wanted: Callable[[int], Sequence[int]]) -> None:
        self._dynamic, self._cache, self._wanted = dynamic, cache, wanted
        order = sorted(dynamic.revealed)
        self._next = dict(zip(order, (*order[1:], order[0]), strict=True))

    def fetch(self, op: int, *, is_last: bool) -> None:
        """Fetch, as far as there is room, behind an op that reveals dynamic reads; nothing for after the last step."""
        coming, cache, fences = self._next[op], self._cache, self._dynamic.problem.fences
        if coming <= op and is_last:
            return
        # What the first op of a step reveals may be read behind the last one that reveals: then in the step at hand.
        readers = [reader for reader in self._dynamic.revealed[coming] if coming > op or reader < op]
        guesses = (self._wanted(reader) for reader in readers if fences[reader] <= op + 1)
        wanted = {tensor: None for guess in guesses for tensor in guess if tensor in cache.homes}
        for tensor in wanted:
            if tensor not in cache.here:
                if not cache.make_room(cache.sizes[tensor], wanted):
                    return
                cache.fetch(tensor)
