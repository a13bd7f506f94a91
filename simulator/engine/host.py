"""One rank's host: it issues actions in order, pays for each, and waits only at a sync."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappush
from itertools import chain, repeat

from simulator.cost.service import ceil_div
from simulator.engine.dependencies import Counted, Exclusive
from simulator.engine.event_loop import RANK_SHIFT, Recurring, Watchers
from simulator.engine.places import Places
from simulator.engine.stream import Stream, must_wait, unmet
from simulator.plan import COMPUTE, COPY, DETACH

_ACTIONS_PER_CHECKPOINT = 1024
"""Actions between checkpoints, or a few more: rows are closed into blocks while they are few (`Recorder.flush`)."""


class HostThread:
    """The runtime of one rank.

    It has a time of its own, which each payment moves on. What it issues does not depend on what the device does in the
    meantime, except where it waits for the device (at a sync, or because the queue is full) and where a reactive plan
    looks at the machine. So it runs ahead of the clock up to the next such action, and each action takes effect at its
    time of issue: a payment needs no event.

    Parameters
    ----------
    places, streams
        Where it issues to.
    laps
        What it issues; counts are from the start of each lap.
    queue_depth
        Number of computes that may be issued and not yet started.
    checkpoint
        Called now and then.

    Attributes
    ----------
    now
        Its time: when the action at hand is issued [ns].
    looks
        Whether its plan looks at the machine: then the clock must have caught up before each action.
    awaited, finished
        The tensor that it waits for at a sync, or -1; whether it has issued all actions.
    watchers
        Accounts of waits that depend on it.
    """

    def __init__(
        self,
        places: Places,
        streams: list[Stream],
        laps: Iterator[Iterable[Counted]],
        queue_depth: int,
        checkpoint: Callable[[], None],
    ) -> None:
        self._places, self._streams = places, streams
        self._lap, numbered = 0, (zip(repeat(lap), actions) for lap, actions in enumerate(laps))
        self._actions = chain.from_iterable(numbered)
        self._depth, self._checkpoint = queue_depth, checkpoint
        self._rounds, self._clock = places.rounds, places.rounds.clock
        self._key = places.rank << RANK_SHIFT
        self._next_checkpoint = self._key + _ACTIONS_PER_CHECKPOINT
        self._credit = self._asked = 0
        self._pending: Counted | None = None
        self._caught_up = Recurring(self._clock, lambda _: self.advance())
        self.now, self.looks = 0, False
        self.awaited, self.finished = -1, False
        self.watchers: Watchers = []

    @property
    def is_ahead(self) -> bool:
        """Whether the host's time is ahead of the clock, so that it is still paying."""
        return self.now > self._clock.now

    def advance(self) -> None:
        """Take, pay for and issue actions until one has to wait for the device."""
        self.awaited, self._asked = -1, self._asked + 1
        self.now = max(self.now, self._clock.now)
        if self._pending is None or self._issue(self._pending):
            self._pending, issue, looks, actions = None, self._issue, self.looks, self._actions
            for self._lap, counted in actions:
                self.now += counted[3]
                if (looks and self._must_wait()) or not issue(counted):
                    self._pending = counted
                    break
            self.finished = self._pending is None
        self._rounds.wake(self.watchers)

    def _issue(self, counted: Counted) -> bool:
        """Issue an action; return whether the host could."""
        (kind, op, action, _), lap = counted, self._lap
        if kind == COMPUTE:
            if not self._credit and not self._has_credit():
                return False
            self._credit -= 1
            action.stream.append((self._key, op, action, self.now, lap))
        elif kind == COPY:
            action.link.append((self._key, action, self.now, lap))
        elif kind == DETACH:
            self._detach(action, self._key, self.now, lap)
        elif not self._is_past(action, lap):
            return False
        self._key += 1
        return True

    def _must_wait(self) -> bool:
        """Return whether the host is ahead of the clock; if so, go on when the clock catches up."""
        if self.is_ahead:
            self._clock.at(self.now, self._caught_up)
        return self.is_ahead

    def _is_past(self, sync: Exclusive, lap: int) -> bool:
        """Return whether all that a sync waits for has ended; if not, look again when an action on its tensor ends."""
        if self._must_wait():
            return False
        tensor, moves = sync.tensor, sync.moves + lap * self._places.moves_per_lap[sync.tensor]
        if must_wait(sync.users, lap, self.advance):
            self.awaited = tensor
        elif self._places.moves_ended[tensor] < moves:
            self._places.wait_for_moves(tensor, moves, self._key, self.advance)
            self.awaited = tensor
        return self.awaited < 0

    def _has_credit(self) -> bool:
        """Return whether a compute may be issued; a full queue is refilled once half of it has started."""
        if self._key >= self._next_checkpoint:
            self._next_checkpoint = self._key + _ACTIONS_PER_CHECKPOINT
            self._checkpoint()
        ahead = self._count_unstarted()
        self._credit = self._depth - ahead
        if not self._credit and not self._must_wait():
            self._wait_for_starts(ahead - self._depth // 2)
        return self._credit > 0

    def _count_unstarted(self) -> int:
        """Count the computes that were issued and have not started."""
        return sum([len(stream.queue) for stream in self._streams])

    def _wait_for_starts(self, excess: int) -> None:
        """Look again at the latest when `excess` more computes have started: then some stream has started its share.

        The first stream that gets there cancels the looks at the others.
        """
        self._asked += 1
        look, part = partial(self._fill_up, self._asked), ceil_div(excess, len(self._streams))
        for stream in self._streams:
            stream.started.wait(stream.started.reached + part, look)

    def _fill_up(self, asked: int) -> None:
        """Go on if half of the queue has started, unless this look was cancelled."""
        if asked == self._asked:
            excess = self._count_unstarted() - self._depth // 2
            if excess > 0:
                self._wait_for_starts(excess)
            else:
                self.advance()

    def _detach(self, detach: Exclusive, key: int, issued_ns: int, lap: int) -> None:
        """Free a place once all earlier actions that name the tensor have ended: first its users, then its moves."""
        places, frees, tensor = self._places, self._rounds.frees, detach.tensor
        moves = detach.moves + lap * places.moves_per_lap[tensor]
        if awaited := unmet(detach.users, lap):
            awaited[0].wait(awaited[1], partial(self._detach, detach, key, issued_ns, lap))
        elif places.moves_ended[tensor] < moves:
            places.wait_for_moves(tensor, moves, key, partial(self._detach, detach, key, issued_ns, lap))
        elif issued_ns > self._clock.now:
            freed = key, places.free, tensor, detach.tier
            self._clock.at(issued_ns, Recurring(self._clock, lambda _: heappush(frees, freed)))
        else:
            heappush(frees, (key, places.free, tensor, detach.tier))
