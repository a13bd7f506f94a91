"""One rank's host: it issues steps in order, pays for each, and waits only at a sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import simpy
from simpy.events import EventCallbacks

from simulator.cost import ceil_div
from simulator.engine.book import Book, Step
from simulator.engine.issued import Issued
from simulator.engine.rounds import RANK_SHIFT
from simulator.errors import InvariantError
from simulator.hardware import Host as HostCosts
from simulator.plan import Code, Plan, Steps

if TYPE_CHECKING:
    from simulator.engine.rank import Rank
    from simulator.engine.stream import Stream

_STEPS_PER_CHECKPOINT = 8192
"""Steps between checkpoints, or a few more."""


class Host:
    """The runtime of one rank.

    Parameters
    ----------
    rank
        Whose places, streams and links it issues to.
    plan
        What it issues.
    book
        Counts its steps; if the plan is reactive, also what it may look at.

    Attributes
    ----------
    key, lap
        Of the step that is issued next.
    credit
        Computes that may be issued before the queue is looked at again.
    is_full
        The queue was full; it is filled up again once half of it has started.
    is_busy, awaited, finished
        It pays for a step; the tensor that it waits for at a sync, or -1; it has issued all steps.
    watchers
        Streams whose wait depends on it.
    """

    def __init__(self, rank: Rank, plan: Plan, book: Book) -> None:
        machine, costs = rank.machine, rank.machine.hardware.host
        self.places, self.rounds, self.clock = rank.places, machine.rounds, machine.rounds.clock
        self.key, self.lap, self.credit = rank.number << RANK_SHIFT, -1, 0
        self.is_full = self.is_busy = self.finished = False
        self.awaited = -1
        self.watchers: list[Stream] = []
        self._streams, self._depth, self._checkpoint = rank.streams, costs.queue_depth, machine.checkpoint
        self._next_checkpoint = self.key
        self._room = QueueRoom(self)
        self._begin_lap, prices, self._launch = _program(plan, costs, book, machine.recorder.issued[rank.number])
        self._prices = prices if any(prices) else None
        self._laps = plan.repeats if plan.fixed is not None else 1
        self._steps: Iterator[Step] = iter(())
        self._pending: Step | None = None
        self._callbacks: EventCallbacks = [self._paid]
        self._payment = simpy.Event(self.clock)
        self._payment._ok, self._payment._value = True, None

    def begin(self) -> None:
        """Pay for the launch, then issue."""
        if self._launch:
            self._pay(self._launch)
        else:
            self.advance()

    def _pay(self, cost: int) -> None:
        self.is_busy = True
        self._payment.callbacks = self._callbacks
        self.clock.at(self.clock.now + cost, self._payment)

    def _paid(self, event: simpy.Event) -> None:
        self.is_busy = False
        self.advance()
        self.rounds.close()

    def advance(self) -> None:
        """Issue steps until one costs time, the queue is full, or a sync has to wait."""
        self.is_full, self.awaited = False, -1
        if self._pending is None or self._pending.issue(self):
            if self._pending is not None:
                self.key += 1
            self._pending = None
            self._pull()
        if self.watchers:
            self.rounds.restless += self.watchers
            self.watchers.clear()

    look_again = advance
    """Go on at the sync."""

    def _pull(self) -> None:
        """Take steps from the plan and issue them, as far as possible now."""
        prices = self._prices
        while not self.finished:
            for step in self._steps:
                if prices is not None and prices[step.kind]:
                    self._pending = step
                    self._pay(prices[step.kind])
                    return
                if not step.issue(self):
                    self._pending = step
                    return
                self.key += 1
            self.lap += 1
            self.finished = self.lap == self._laps
            self._steps = iter(()) if self.finished else self._begin_lap()

    def has_credit(self) -> bool:
        """Whether a compute may be issued; if not, the queue is full, and is filled up when half of it has started."""
        if self.key >= self._next_checkpoint:
            self._next_checkpoint = self.key + _STEPS_PER_CHECKPOINT
            self._checkpoint()
        ahead = self.ahead
        self.credit = self._depth - ahead
        if self.credit:
            return True
        self.is_full = True
        self._room.wait(ahead - self._depth // 2)
        return False

    @property
    def ahead(self) -> int:
        """Computes that were issued and have not started."""
        return sum([len(stream.queue) for stream in self._streams])

    def fill_up(self) -> None:
        """If the queue was full, go on once half of it has started."""
        if self.is_full:
            excess = self.ahead - self._depth // 2
            if excess > 0:
                self._room.wait(excess)
            else:
                self.advance()


class QueueRoom:
    """Waits until enough computes of a full queue have started."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def wait(self, excess: int) -> None:
        """Look again before so many computes more can have started: one stream must have started its part by then."""
        streams = self._host.places.streams
        part = ceil_div(excess, len(streams))
        for stream in streams:
            stream.wait_for_start(stream.started + part, self)

    def look_again(self) -> None:
        """Fill the queue up, if enough have started."""
        self._host.fill_up()


def _program(
    plan: Plan, costs: HostCosts, book: Book, rows: list[int]
) -> tuple[Callable[[], Iterator[Step]], tuple[int, ...], int]:
    """What begins a lap, the price of each kind of step, and the cost of the launch."""
    steps, reactive = plan.steps, costs.reactive
    if isinstance(steps, Steps):
        prices: tuple[int, ...] = (costs.fixed.step_ns,) * 4
        if plan.repeats == 1:
            return lambda: map(book.step, steps.codes()), prices, costs.fixed.launch_ns
        return book.laps(steps.codes()).__iter__, prices, costs.fixed.launch_ns
    if not isinstance(book, Issued):
        raise InvariantError("engine", "a reactive plan has a view", "none", "report this")
    prices = (reactive.inspect_ns + reactive.compute_ns, reactive.copy_ns, reactive.detach_ns, reactive.sync_ns)
    return lambda: _decide(steps(book), book, rows), prices, 0


def _decide(codes: Iterator[Code], book: Issued, rows: list[int]) -> Iterator[Step]:
    """Count and record each step of a reactive plan; the next is asked for when this one was issued."""
    for code in codes:
        yield book.step(code)
        rows += code
