"""The cache runtime: it decides while it runs what comes into the compute tier and what leaves it.

It decides about each op; or, beside a *static part* that was planned before, about dynamic reads alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from simulator.plan import COMPUTE, PART, SYNC, Code, View
from simulator.policies.problem import Problem
from simulator.policies.runtime.runtime_cache import RuntimeCache, Setting
from simulator.policies.runtime.working_sets import DynamicReads, WorkingSets

_AT_ONCE = 64
"""Most ops that are decided before their steps are handed on: a run that blocks ends soon."""


@dataclass(frozen=True)
class Runtime:
    """The steps of a plan that decides while it runs; each call starts afresh, as a plan may be run more than once.

    Attributes
    ----------
    dynamic
        Dynamic reads that are handled once they are revealed.
    setting
        What it decides about, and how.
    issuer
        Makes what issues the steps.
    """

    dynamic: DynamicReads
    setting: Setting
    issuer: Callable[[RuntimeCache, View], Issuer]

    def __call__(self, view: View) -> Iterator[Code]:
        """Issue all steps of a run.

        Parameters
        ----------
        view
            Asked how many steps there are and what is chosen; the runtime keeps its own books of the machine.
        """
        return chain.from_iterable(self._batches(view, RuntimeCache(self.setting)))

    def _batches(self, view: View, cache: RuntimeCache) -> Iterator[list[Code]]:
        """Issue some at a time; a batch is emptied when the next one is asked for."""
        issuer, revealed = self.issuer(cache, view), self.dynamic.revealed
        for step in range(view.steps):
            is_last = step == view.steps - 1
            for stretch, op in enumerate(issuer.ends):
                issuer.issue(stretch, step)
                cache.unused.difference_update(cache.awaited.pop(op, ()))
                yield cache.codes
                cache.codes.clear()
                for reader in revealed.get(op, ()):
                    cache.expect(reader, view.chosen(reader))
                    if issuer.at_once:
                        yield cache.codes
                        cache.codes.clear()
                if op in revealed:
                    issuer.fetch_ahead(op, is_last=is_last)
            issuer.end_step(is_last=is_last)
            yield cache.codes
            cache.codes.clear()


class StaticPart:
    """Issues what was planned before, and at the end of the run lets all leave that the cache holds.

    Parameters
    ----------
    dynamic, ends
        The dynamic reads; and by part, the op that ends it, -1 for the last.
    wanted
        What to fetch for an op whose dynamic reads are revealed next, such as all of its candidates, or a guess.
    cache, view
        Of what is read dynamically, which no part moves; and what tells a guess.

    Attributes
    ----------
    at_once
        Whether copies for an op are issued before the host asks what another op reads that was revealed with it.
    """

    at_once = True

    def __init__(
        self,
        dynamic: DynamicReads,
        ends: Sequence[int],
        wanted: Callable[[View, int], Sequence[int]],
        cache: RuntimeCache,
        view: View,
    ) -> None:
        self.ends, self._dynamic, self._wanted, self._cache, self._view = ends, dynamic, wanted, cache, view
        order = sorted(dynamic.revealed)
        self._next = dict(zip(order, (*order[1:], *order[:1]), strict=True))

    def issue(self, stretch: int, step: int) -> None:
        """Issue a part."""
        self._cache.codes.append((PART, stretch, 0, 0))

    def fetch_ahead(self, op: int, *, is_last: bool) -> None:
        """Fetch, as far as there is room, for the ops whose dynamic reads are revealed next."""
        coming, cache, fences = self._next[op], self._cache, self._dynamic.problem.fences
        if coming <= op and is_last:
            return
        # What the first op of a step reveals may be read behind the last one that reveals: then in the step at hand.
        readers = [reader for reader in self._dynamic.revealed[coming] if coming > op or reader < op]
        guesses = (self._wanted(self._view, reader) for reader in readers if fences[reader] <= op + 1)
        wanted = {tensor: None for guess in guesses for tensor in guess if tensor in cache.homes}
        for tensor in wanted:
            if tensor not in cache.here:
                if not cache.make_room(cache.sizes[tensor], wanted):
                    return
                cache.fetch(tensor)

    def end_step(self, *, is_last: bool) -> None:
        """Let all leave when the run ends."""
        for tensor in [*self._cache.here] if is_last else ():
            self._cache.evict(tensor)


class OpByOp:
    """Fetches what each op needs and what ops in view will, evicts under pressure and frees what is dead.

    Parameters
    ----------
    sets, ahead
        What ops need, and how many ops ahead it looks, as far as there is no barrier between.
    cache, view
        What is held: all that may move; the view is not asked.
    """

    at_once = False

    def __init__(self, sets: WorkingSets, ahead: int, cache: RuntimeCache, view: View) -> None:
        self._sets, self._cache = sets, cache
        self._coming = _coming(sets.problem, ahead)
        self._signal, ops = sets.dynamic.signal, len(sets.uses)
        cuts = {*range(0, ops, _AT_ONCE), ops, *(op + 1 for op in (*self._signal, *sets.dynamic.readers))}
        self._stretches = list(pairwise(sorted(cuts)))
        self.ends = [stop - 1 for _, stop in self._stretches]

    def issue(self, stretch: int, step: int) -> None:
        """Decide for some ops, with what is awaited meanwhile as if each of them used it."""
        sets, cache, here, eviction = self._sets, self._cache, self._cache.here, self._cache.eviction
        touch, base, streams = eviction.touch, step * len(sets.uses), sets.problem.streams
        for op in range(*self._stretches[stretch]):
            for awaited in cache.awaited.values():
                for tensor in awaited:
                    if tensor in here:
                        touch(tensor)
            eviction.now = base + op
            if cache.unused:
                cache.unused.difference_update(sets.uses[op])
            absent, needed_bytes = [], sets.born_bytes[op]
            for tensor in sets.uses[op]:
                if tensor in here:
                    touch(tensor)
                else:
                    absent.append(tensor)
                    needed_bytes += cache.sizes[tensor]
            if cache.room[cache.tier] < needed_bytes:
                cache.make_room(needed_bytes, sets.kept[op])
            for tensor in absent:
                (cache.hold if tensor in sets.made[op] else cache.fetch)(tensor)
            if self._coming[op]:
                self._look_ahead(op, base)
            cache.codes.append((COMPUTE, op, streams[op], 0))
            self._conclude(op)
        if self.ends[stretch] in self._signal:
            cache.codes.append((SYNC, self._signal[self.ends[stretch]], 0, 0))

    def fetch_ahead(self, op: int, *, is_last: bool) -> None:
        """Nothing: what comes into view is fetched with each op."""

    def _look_ahead(self, op: int, base: int) -> None:
        """Fetch, as far as there is room, what ops that come into view need, without evicting what these need."""
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

    def _conclude(self, op: int) -> None:
        """Note what the op has taken and written, and free what is dead after it."""
        cache, sets = self._cache, self._sets
        cache.room[cache.tier] -= sets.held_bytes[op]
        for tensor in sets.writes[op]:
            cache.is_clean[tensor] = False
        for tensor in sets.problem.lifetimes.dead_after[op]:
            cache.leave(tensor)
            cache.drop(tensor)

    def end_step(self, *, is_last: bool) -> None:
        """Bring every persistent tensor home, but candidates of dynamic reads only at last, and release the outputs."""
        sets, cache = self._sets, self._cache
        may_stay = () if is_last else sets.dynamic.candidates
        for tensor in sets.guests:
            if tensor in cache.here and tensor not in may_stay:
                cache.evict(tensor)
        for tensor in sets.residents:
            if tensor not in cache.here:
                cache.make_room(cache.sizes[tensor], sets.residents)
                cache.fetch(tensor)
                cache.unused.add(tensor)
            cache.drop(tensor)
        for tensor in sets.guests:
            cache.bring_home(tensor)
        for tensor in sets.outputs:
            if tensor in cache.here or sets.pinned[tensor]:
                cache.leave(tensor)
            cache.drop(tensor)


def _coming(problem: Problem, ahead: int) -> list[range]:
    """By op: the ops that come into view; at the first op all that are seen."""
    ops, coming, seen = len(problem.graph.ops), [], 0
    for op in range(ops):
        behind = min(op + ahead + 1, bisect_right(problem.fences, op, 0, ops))
        seen = max(seen, op + 1)
        coming.append(range(seen, behind))
        seen = max(seen, behind)
    return coming


Issuer = StaticPart | OpByOp
"""Issues a training step in stretches (`issue`), each up to an op (`ends`), and what ends the step (`end_step`)."""
