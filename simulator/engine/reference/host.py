"""Rule 1: the host of a rank, a SimPy process that issues actions in order and pays for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import simpy

from simulator.engine.reference.actions import Action, first_unended
from simulator.engine.reference.order import Order
from simulator.engine.reference.rank import Rank, Steps
from simulator.plan import COMPUTE, COPY, DETACH, Code

_ACTIONS_PER_CHECKPOINT = 1024
"""Actions between checkpoints: rows are closed into blocks while they are few (`Recorder.flush`)."""


class HostThread:
    """The runtime of one rank.

    Parameters
    ----------
    rank, order
        What it issues to, and what each action waits for.
    queue_depth
        Number of computes that may be issued and not yet started.
    checkpoint
        Called now and then.

    Attributes
    ----------
    rank
        The rank.
    pays, finished
        Whether it pays for an action now; whether it has issued all.
    awaited
        The tensor that it waits for at a sync, or -1.
    """

    def __init__(self, rank: Rank, order: Order, queue_depth: int, checkpoint: Callable[[], None]) -> None:
        self.rank, self._order, self._clock = rank, order, rank.clock
        self._depth, self._checkpoint = queue_depth, checkpoint
        self._unstarted = 0
        self._half_empty: simpy.Event | None = None
        self.pays, self.finished, self.awaited = False, False, -1

    def run(self, begins_ns: int, priced: Iterable[tuple[Code, int]]) -> Steps:
        """Pay for and issue actions, one after another.

        Parameters
        ----------
        begins_ns
            When it begins [ns].
        priced
            The actions, each with what the host pays for it [ns].
        """
        rank, order = self.rank, self._order
        if begins_ns:
            yield from self._pay(begins_ns)
        for code, price_ns in priced:
            if price_ns:
                yield from self._pay(price_ns)
            kind, a, b, c = code
            if kind == COMPUTE:
                if self._unstarted >= self._depth:
                    self._half_empty = self._clock.event()
                    rank.on_change()
                    yield self._half_empty
                self._unstarted += 1
                rank.streams[b].append(order.compute(a, b))
            elif kind == COPY:
                copy = order.copy(a, b, c)
                rank.transfers[a].append(copy)
                copy.queue.append(copy)
                if copy.link.is_blocking:
                    order.number += 1
                    yield from self._wait_for([copy], a)
                    continue
            elif kind == DETACH:
                rank.detach(order.detach(a, b), a, b)
            else:
                yield from self._wait_for(order.sync(a).after, a)
            order.number += 1
            if order.number % _ACTIONS_PER_CHECKPOINT == 0:
                self._checkpoint()
            if rank.idle:
                rank.on_change()
        self.finished = True
        rank.on_change()

    def _pay(self, price_ns: int) -> Steps:
        self.pays = True
        self.rank.on_change()
        yield self._clock.end_after(price_ns)
        self.pays = False

    def note_start(self) -> None:
        """Count a compute that starts, and go on if half of a full queue has."""
        self._unstarted -= 1
        if self._half_empty is not None and self._unstarted <= self._depth // 2:
            self._half_empty.succeed()
            self._half_empty = None

    def _wait_for(self, actions: Sequence[Action], tensor: int) -> Steps:
        """Wait until these actions, which name the tensor, have ended."""
        while earlier := first_unended(actions):
            self.awaited = tensor
            self.rank.on_change()
            yield earlier.ended(self._clock)
        self.awaited = -1
