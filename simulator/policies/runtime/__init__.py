"""The cache runtime: it decides while it runs what comes into the compute tier and what leaves it.

It decides about each op; or, beside a *static part* that was planned before, about dynamic reads alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from simulator.plan import COMPUTE, PART, SYNC, Code, View
from simulator.policies.runtime.dynamic_reads import DynamicReads
from simulator.policies.runtime.prefetch import LookAhead, NextReads
from simulator.policies.runtime.runtime_cache import RuntimeCache
from simulator.policies.runtime.working_sets import WorkingSets

_AT_ONCE = 64
"""Most ops that are decided before their steps are handed on: a run that blocks ends soon."""


class StaticPart:
    """Issues what was planned before, and at the end of the run lets all leave that the cache holds.

    Parameters
    ----------
    ends
        By part, the op that ends it; -1 for the last.
    cache
        Of what is read dynamically, which no part moves.

    Attributes
    ----------
    at_once
        Whether copies for an op are issued before the host asks what another op reads that was revealed with it.
    """

    at_once = True

    def __init__(self, ends: Sequence[int], cache: RuntimeCache) -> None:
        self.ends, self._cache = ends, cache

    def issue(self, stretch: int, step: int) -> None:
        """Issue a part."""
        self._cache.codes.append((PART, stretch, 0, 0))

    def end_step(self, *, is_last: bool) -> None:
        """Let all leave when the run ends."""
        for tensor in [*self._cache.here] if is_last else ():
            self._cache.evict(tensor)


class OpByOp:
    """Fetches what each op needs, evicts under pressure and frees what is dead.

    Parameters
    ----------
    sets, cache
        What ops need, and what is held: all that may move.
    ahead
        How many ops it looks ahead.
    """

    at_once = False

    def __init__(self, sets: WorkingSets, cache: RuntimeCache, ahead: int) -> None:
        self._sets, self._cache = sets, cache
        self._look_ahead = LookAhead(sets, cache, ahead) if ahead else None
        self._signal, ops = sets.dynamic.signal, len(sets.uses)
        cuts = {*range(0, ops, _AT_ONCE), ops, *(op + 1 for op in (*self._signal, *sets.dynamic.readers))}
        self._stretches = list(pairwise(sorted(cuts)))
        self.ends: Sequence[int] = [stop - 1 for _, stop in self._stretches]

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
            if self._look_ahead:
                self._look_ahead.fetch(op, base)
            cache.codes.append((COMPUTE, op, streams[op], 0))
            self._conclude(op)
        if self.ends[stretch] in self._signal:
            cache.codes.append((SYNC, self._signal[self.ends[stretch]], 0, 0))

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


Issuer = StaticPart | OpByOp
"""Issues a training step in stretches (`issue`), each up to an op (`ends`), and what ends the step (`end_step`)."""


def batches(
    issuer: Issuer, cache: RuntimeCache, dynamic: DynamicReads, prefetcher: NextReads | None, view: View
) -> Iterator[list[Code]]:
    """Issue all steps of a run, some at a time; a batch is emptied when the next one is asked for.

    Parameters
    ----------
    issuer, cache, prefetcher
        What issues the steps and what fetches ahead, both by way of the cache.
    dynamic
        Dynamic reads that are handled once they are revealed.
    view
        Asked how many steps there are and what is chosen; the runtime keeps its own books of the machine.
    """
    for step in range(view.steps):
        is_last = step == view.steps - 1
        for stretch, op in enumerate(issuer.ends):
            issuer.issue(stretch, step)
            cache.unused.difference_update(cache.awaited.pop(op, ()))
            yield cache.codes
            cache.codes.clear()
            for reader in dynamic.revealed.get(op, ()):
                cache.expect(reader, view.chosen(reader))
                if issuer.at_once:
                    yield cache.codes
                    cache.codes.clear()
            if prefetcher and op in dynamic.revealed:
                prefetcher.fetch(op, is_last=is_last)
        issuer.end_step(is_last=is_last)
        yield cache.codes
        cache.codes.clear()
