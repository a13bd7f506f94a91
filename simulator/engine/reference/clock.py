"""Rule 9: the order of events within one instant, as priorities of SimPy's own queue.

An instant has rounds. In each, all ends come first, then all frees, then grants and starts in (rank, issue) order; a
free that comes while heads start has its turn once all of them have had theirs. Then rates are set anew, and the
ledgers look. A span of 0 ns ends in the next round.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

RANK_SHIFT = 40
"""An action's key is its rank times 2^40 plus its issue number: keys sort in (rank, issue) order."""

ISSUE_MASK = (1 << RANK_SHIFT) - 1
"""Mask of the issue number in a key."""

END, FREE, START, RATES, LOOK = range(5)
"""Phases of a round. What has no turn (ends of spans, signals) comes before all of them, as SimPy's priorities do."""

_PHASE, _PASS, _ROUND = 1 << 62, 1 << 65, 1 << 96
"""Weights of a phase, of a pass over frees and starts, and of a round in a priority; a key is below all of them."""


class Turn(simpy.Event):
    """An event that comes in its phase of the present instant."""

    def __init__(self, clock: Clock, priority: int) -> None:
        super().__init__(clock)
        self._ok, self._value, self._priority = True, None, priority
        self.callbacks = [self._begin]
        clock.schedule(self, priority)

    def _begin(self, event: simpy.Event) -> None:
        self.env.priority = self._priority


class Clock(simpy.Environment):
    """A SimPy environment of whole nanoseconds, with turns.

    Attributes
    ----------
    priority
        Of the last turn: it says how far the instant has come.
    """

    def __init__(self) -> None:
        super().__init__()
        self._instant, self.priority = 0, 0

    def turn(self, phase: int, key: int = 0) -> Turn:
        """Return an event in this phase of the round: at once, or in the next pass if the phase is over."""
        if self._instant != self.now:
            self._instant, self.priority = self.now, 0
        begun, done = divmod(self.priority, _ROUND)
        if phase >= RATES:  # once for all passes
            return Turn(self, (begun + 1) * _ROUND - (LOOK + 1 - phase) * _PHASE + key)
        passes, done = divmod(done, _PASS)
        passes += phase < done // _PHASE
        return Turn(self, begun * _ROUND + passes * _PASS + phase * _PHASE + key)

    def end_after(self, delay_ns: int) -> simpy.Event:
        """Return the end of what takes so long: in this round, or in the next one if its ends are over."""
        if delay_ns or self._instant != self.now or not self.priority % _ROUND:
            return self.timeout(delay_ns)
        return Turn(self, (self.priority // _ROUND + 1) * _ROUND)

    def call(self, event: simpy.Event, callback: Callable[[], None]) -> None:
        """Call back when an event comes."""
        event.callbacks.append(lambda _: callback())
