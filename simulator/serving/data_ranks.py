"""Data ranks: each has a scheduler and a KV cache of its own, and all begin each iteration together.

Requests go to the ranks in turn, in order of arrival; those of a client to one rank. A rank finds only what it has
cached itself. Layers whose experts lie on all ranks keep them in step, so that an iteration ends for all at once, and a
rank without work runs along.

*One stands for all.* Ranks differ in their numbers, and one graph is replayed on all of them: that of a rank with as
many tokens as the fullest one, as many of them decoding, and of all else, cached tokens and pairs that attend, the most
of any. Linears and experts thus take what the fullest rank takes; attention does if the same rank reads and decodes
most, and else longer. What ranks copied, and their arithmetic, is counted of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

from simulator.builders import Iteration
from simulator.serving.scheduler import Scheduler, Served, Way, Work


def together(each: Sequence[Iteration]) -> Iteration:
    """Return the iteration that stands for those of all data ranks."""
    if len(each) == 1:
        return each[0]
    decoding, context, reading, cached, pairs, answers = map(max, zip(*(work[:6] for work in each), strict=True))
    reading = max(min(reading, 1), max(work.decoding + work.reading for work in each) - decoding)
    near = (
        tuple(map(max, zip(*of_reach, strict=True))) for of_reach in zip(*(work.near for work in each), strict=True)
    )
    loads, stores = _most(work.loads for work in each), _most(work.stores for work in each)
    return Iteration(decoding, context, reading, cached, pairs, answers, tuple(near), loads, stores)


def _most(copies: Iterable[tuple[tuple[Way, tuple[int, ...]], ...]]) -> tuple[tuple[Way, tuple[int, ...]], ...]:
    """Return the most tokens that any rank copies each way, in each group of layers."""
    tokens = dict[Way, tuple[int, ...]]()
    for way, counts in chain.from_iterable(copies):
        tokens[way] = tuple(map(max, counts, tokens.get(way, counts)))
    return tuple(sorted(tokens.items()))


class DataRanks:
    """The schedulers of all data ranks.

    Parameters
    ----------
    schedulers
        One for each rank.
    clients
        How many clients there are, whose requests each go to one rank; 0: each request goes to the next rank.
    """

    def __init__(self, schedulers: Sequence[Scheduler], clients: int) -> None:
        self.schedulers, self._clients = schedulers, clients

    def send(self, requests: Iterator[Served]) -> None:
        """Let requests wait, each on its rank."""
        for served in requests:
            turn = served.number % self._clients if self._clients else served.number
            self.schedulers[turn % len(self.schedulers)].waiting.append(served)

    def next(self, now_ns: int) -> list[tuple[Work, ...]]:
        """Return what runs next on each rank, as `Scheduler.next`."""
        return [*zip_longest(*(scheduler.next(now_ns) for scheduler in self.schedulers), fillvalue=Work())]

    def ended(self, works: Sequence[Work], now_ns: int) -> list[Served]:
        """Account for the end of an iteration, and return the sequences that finished."""
        pairs = zip(self.schedulers, works, strict=True)
        return [served for scheduler, work in pairs for served in scheduler.ended(work, now_ns)]

    def loading(self, now_ns: int) -> list[int]:
        """Return when the requests that wait for blocks on their way will have them [ns]."""
        return [ns for scheduler in self.schedulers for ns in scheduler.loading(now_ns)]

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(len(scheduler.waiting) for scheduler in self.schedulers)
