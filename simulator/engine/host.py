"""One rank's host: it issues steps in order, pays for each, and waits only at a sync.

The backbone of a plan that is decided at run time only in part is counted once, and issued lap after lap. A runtime
decides about tensors of its own, which the backbone neither moves nor writes. Their steps are counted as they are
issued, as if there were no laps, and so are those reads of the backbone that are late. All else that the backbone asks
for is larger by the same amount in each lap (see `simulator.engine.book`), whatever is decided in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import cast

import simpy

from simulator.cost import ceil_div
from simulator.engine.book import Book
from simulator.engine.issued import Issued
from simulator.engine.places import Places
from simulator.engine.rounds import recurring
from simulator.engine.waits import RANK_SHIFT, Accountable, Step
from simulator.hardware import Host as HostCosts
from simulator.plan import COMPUTE, PART, SYNC, Code, Plan, Steps

_STEPS_PER_CHECKPOINT = 1024
"""Steps between checkpoints, or a few more."""


class Host:
    """The runtime of one rank.

    It has a time of its own, which what it pays moves on. Its decisions do not depend on what the device does in the
    meantime, except where it waits for the device (at a sync, or because the queue is full) and where a reactive plan
    looks at the machine. So it runs ahead of the clock up to the next such step, and each step takes effect at its
    time of issue: no event is needed for a payment.

    Parameters
    ----------
    places
        Where it issues to.
    plan
        What it issues.
    book
        Counts its steps; if the plan is reactive, also what it may look at.
    costs
        What it pays.
    checkpoint
        Called now and then.

    Attributes
    ----------
    now
        Its time: when the step at hand is issued [ns].
    key, lap
        Of the step that is issued next.
    prices, looks
        By kind of step, what it pays [ns]; whether its plan looks at the machine, so that it waits until it has paid.
    credit
        Computes that may be issued before the queue is looked at again.
    is_full
        The queue was full; it is filled up again once half of it has started.
    has_laps
        Whether the plan is run several times.
    awaited, finished
        The tensor that it waits for at a sync, or -1; it has issued all steps.
    watchers
        Streams whose wait depends on it.
    """

    __slots__ = (
        "_book",
        "_caught_up",
        "_checkpoint",
        "_depth",
        "_issue",
        "_laps",
        "_next_checkpoint",
        "_pending",
        "_room",
        "_steps",
        "_streams",
        "awaited",
        "clock",
        "credit",
        "finished",
        "has_laps",
        "is_full",
        "key",
        "lap",
        "looks",
        "now",
        "places",
        "prices",
        "rounds",
        "watchers",
    )

    def __init__(
        self, places: Places, plan: Plan, book: Book, costs: HostCosts, checkpoint: Callable[[], None]
    ) -> None:
        self.places, self.rounds, self.clock = places, places.rounds, places.rounds.clock
        self.key, self.lap, self.credit = places.rank << RANK_SHIFT, 0, 0
        self.is_full = self.finished = False
        self.awaited = -1
        self.watchers: list[Accountable] = []
        self._streams, self._depth, self._checkpoint = places.streams, costs.queue_depth, checkpoint
        self._next_checkpoint = self.key + _STEPS_PER_CHECKPOINT
        self._room = QueueRoom(self)
        self.prices, self.now = _prices(plan, costs)
        self._book = book
        self._laps = plan.repeats if plan.fixed is not None else 1
        self.has_laps = self._laps > 1 and (book.late is None or len(self._streams) == 1)
        self.looks = plan.fixed is None and plan.looks
        self._steps: Iterator[tuple[int, Step]] = iter(())
        self._issue = self._program(plan)
        self._pending: Step | None = None
        self._caught_up = recurring(self.clock, self._go_on)

    @property
    def is_ahead(self) -> bool:
        """Whether the clock has not reached the host's time: until then it pays."""
        return self.now > self.clock.now

    def wait_for_clock(self) -> None:
        """Go on when the clock has come to the host's time."""
        self.clock.at(self.now, self._caught_up)

    def _go_on(self, event: simpy.Event) -> None:
        self.advance()
        self.rounds.close()

    def advance(self) -> None:
        """Issue steps until one has to wait for the device."""
        self.is_full, self.awaited = False, -1
        self.now = max(self.now, self.clock.now)
        if self._pending is None or self._pending.issue(self):
            if self._pending is not None:
                self.key += 1
            self._pending = None
            self._pull()
        if self.watchers:
            self.rounds.restless += self.watchers
            self.watchers.clear()

    look_again = begin = advance
    """Go on at the sync; begin, after the launch."""

    def _program(self, plan: Plan) -> Callable[[], Step | None]:
        """What issues steps until one has to wait: steps that were counted once if laps are alike."""
        book, steps = self._book, plan.steps
        if isinstance(steps, Steps) and self.has_laps:
            counted = book.laps(steps.codes())
            self._steps = iter(counted)
            return partial(self._issue_laps, counted)
        book.host = self
        if isinstance(steps, Steps):
            book.lap_length = len(steps)
            return partial(book.issue, chain.from_iterable(map(Steps.codes, repeat(steps, self._laps))), self)
        issued = cast(Issued, book)
        if plan.backbone and len(self._streams) == 1:
            self.has_laps = True
            return partial(Backbone(plan.backbone, steps(issued), issued).issue, self)
        return partial(book.issue, spelled_out(steps(issued), plan.backbone), self)

    def _pull(self) -> None:
        """Take steps from the plan, pay for them and issue them, as far as nothing has to be waited for."""
        if not self.finished:
            self._pending = self._issue()
            self.finished = self._pending is None

    def _issue_laps(self, counted: list[tuple[int, Step]]) -> Step | None:
        """Issue counted steps, lap after lap, until one has to wait; that one, or None if there are no more."""
        while self.lap < self._laps:
            step = self.issue_counted(self._steps)
            if step is not None:
                return step
            self.lap += 1
            self._steps = iter(counted)
        return None

    def issue_counted(self, steps: Iterator[Counted]) -> Step | None:
        """Issue the rest of some steps that were counted before; the one that has to wait, if one has."""
        prices = self.prices if any(self.prices) else None
        for kind, step in steps:
            if prices is not None:
                self.now += prices[kind]
            if kind == COMPUTE and self.credit and step.queue:  # type: ignore[attr-defined]
                self.credit -= 1
                step.queue.append((self.key, step.op, step, self.now, self.lap))  # type: ignore[attr-defined]
            elif not step.issue(self):
                return step
            self.key += 1
        return None

    def must_wait(self) -> bool:
        """Whether the clock has not reached the host's time; if so, go on then."""
        if self.is_ahead:
            self.wait_for_clock()
            return True
        return False

    def has_credit(self) -> bool:
        """Whether a compute may be issued; if not, the queue is full, and is filled up when half of it has started."""
        if self.key >= self._next_checkpoint:
            self._next_checkpoint = self.key + _STEPS_PER_CHECKPOINT
            self._checkpoint()
        ahead = self.ahead
        self.credit = self._depth - ahead
        if self.credit:
            return True
        if self.is_ahead:
            self.wait_for_clock()
        else:
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
        self._asked = 0

    def wait(self, excess: int) -> None:
        """Look again before so many computes more can have started: one stream must have started its part by then."""
        self._asked += 1
        look = _Look(self, self._asked)
        streams = self._host.places.streams
        part = ceil_div(excess, len(streams))
        for stream in streams:
            stream.wait_for_start(stream.started + part, look)

    def look_again(self, asked: int) -> None:
        """Fill the queue up, if enough have started, and if nobody looked since this look was asked for."""
        if asked == self._asked:
            self._host.fill_up()


class _Look:
    """One look at the queue, asked for at every stream; the first stream that comes makes the others needless."""

    __slots__ = ("_asked", "_room")

    def __init__(self, room: QueueRoom, asked: int) -> None:
        self._room, self._asked = room, asked

    def look_again(self) -> None:
        self._room.look_again(self._asked)


def _prices(plan: Plan, costs: HostCosts) -> tuple[tuple[int, ...], int]:
    """The price of each kind of step, as far as its kind tells, and the cost of the launch [ns]."""
    if plan.fixed is not None:
        return (costs.fixed.step_ns,) * 4, costs.fixed.launch_ns
    if plan.backbone:
        return (*(costs.fixed.step_ns,) * 3, costs.reactive.prices_ns[SYNC]), costs.fixed.launch_ns
    return costs.reactive.prices_ns, 0


Counted = tuple[int, Step]
"""The kind of a step, and the step."""


def spelled_out(codes: Iterator[Code], parts: Sequence[Steps]) -> Iterator[Code]:
    """The codes of a plan with the steps of each part in its place."""
    return chain.from_iterable(parts[code[1]].codes() if code[0] == PART else (code,) for code in codes)


class Backbone:
    """Issues the parts of a backbone, and between them what is decided.

    Parameters
    ----------
    parts
        The parts; a lap is all of them in turn.
    codes
        What the plan issues, parts by their numbers.
    decided
        Counts what is decided.
    """

    __slots__ = ("_at", "_codes", "_computes", "_counted", "_decided", "_lap", "_part", "_parts", "_rest")

    def __init__(self, parts: Sequence[Steps], codes: Iterator[Code], decided: Issued) -> None:
        self._codes, self._decided = codes, decided
        self._parts = [list(part.codes()) for part in parts]
        self._computes = [part.kind.count(COMPUTE) for part in parts]
        counted = iter(decided.count_backbone(chain.from_iterable(self._parts)))
        self._counted = [list(islice(counted, len(part))) for part in parts]
        self._lap = self._at = 0
        self._part = -1
        self._rest: Iterator[Counted] = iter(())

    def issue(self, host: Host) -> Step | None:
        """Issue steps until one has to wait; that one, or None if there are no more."""
        while True:
            step = self._go_on(host) if self._part >= 0 else None
            if step is None:
                step = self._decided.issue(iter(self._next_decided, None), host)
            if step is not None or self._part < 0:
                return step
            self._begin(host)

    def _next_decided(self) -> Code | None:
        """The next step that is decided; None if a part comes first, or nothing more."""
        code = next(self._codes, None)
        if code is None or code[0] != PART:
            return code
        self._part = code[1]
        return None

    def _begin(self, host: Host) -> None:
        """Begin with a part."""
        host.lap, self._at = self._lap, 0
        self._rest = iter(self._counted[self._part])

    def _go_on(self, host: Host) -> Step | None:
        """Issue the rest of a part, and note what is issued; the step that has to wait, if one has."""
        first, part = host.key, self._parts[self._part]
        step = host.issue_counted(self._rest)
        issued = self._at + host.key - first + (step is not None)
        self._decided.noted += part[self._at : issued]
        self._at = issued
        if step is None:
            self._end(host)
        return step

    def _end(self, host: Host) -> None:
        """All of a part is issued: what is decided next comes behind its computes."""
        self._decided.go_past(self._computes[self._part])
        if self._part == len(self._parts) - 1:
            self._lap += 1
        self._part, host.lap = -1, 0
