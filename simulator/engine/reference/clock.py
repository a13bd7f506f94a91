"""Rule 9: the order of events within one instant, as priorities of SimPy's own queue.

An instant has rounds. In each, all ends come first, then all frees, then grants and starts in (rank, issue) order; a
free that comes while heads start has its turn once all of them have had theirs. Then rates are set anew, and the
ledgers look. A span of 0 ns ends in the next round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import simpy
from simpy.events import EventPriority

from simulator.engine.program import LONGEST_NS
from simulator.errors import ConfigError
from simulator.units import human

RANK_SHIFT = 40
"""An action's key is its rank times 2^40 plus its issue number: keys sort in (rank, issue) order."""

ISSUE_MASK = (1 << RANK_SHIFT) - 1
"""Mask of the issue number in a key."""

FREE, START, RATES, LOOK = range(1, 5)
"""Phases of a round. What has no turn (ends of spans, signals) comes before all of them, as SimPy's priorities do."""

_PHASE, _PASS, _ROUND = 1 << 62, 1 << 65, 1 << 96
"""Weights of a phase, of a pass over frees and starts, and of a round in a priority; a key is below all of them."""


class TurnEvent(simpy.Event):
    """An event that comes in its phase of the present instant; from then on the instant has come that far."""

    def __init__(self, clock: Clock, base: int, phase: int, key: int) -> None:
        self.env, self.callbacks, self._ok, self._value = clock, [self._begin], True, None
        self._clock, self._base, self._phase = clock, base, phase
        clock.schedule(self, EventPriority(base + phase * _PHASE + key))

    def _begin(self, event: simpy.Event) -> None:
        self._clock.base, self._clock.phase = self._base, self._phase


class Clock(simpy.Environment):
    """A SimPy environment of whole nanoseconds, with turns.

    Attributes
    ----------
    base, phase
        How far the instant has come: its round and pass, as a priority; and the phase of the pass, or 0.
    """

    if TYPE_CHECKING:  # SimPy's times may be fractions

        @property
        def now(self) -> int:
            """The time [ns]."""

    def __init__(self) -> None:
        super().__init__()
        self._instant = self.base = self.phase = 0

    def turn(self, phase: int, key: int = 0) -> TurnEvent:
        """Return an event in this phase of the round: in this pass, or in the next one if the phase is over."""
        if self._instant != self.now:
            self._instant, self.base, self.phase = self.now, 0, 0
        base = self.base + _PASS * (phase < self.phase)
        if phase >= RATES:  # once, after all passes
            base += _ROUND // 2 - base % _ROUND
        return TurnEvent(self, base, phase, key)

    def takes_turn(self, phase: int) -> bool:
        """Take a turn without an event if nothing else is left in this instant; return whether that is so.

        So may a process that came here by an event for which it waited alone: no other one is yet to go on by it.
        """
        now = self.now
        if self.peek() <= now:
            return False
        self._instant, self.base, self.phase = now, 0, phase  # a new start: nothing is left that comes before
        return True

    def end_after(self, delay_ns: int) -> simpy.Event:
        """Return the end of what takes so long: in this round, or in the next one if its ends are over."""
        if self.now + delay_ns > LONGEST_NS:
            must, do = "a run ends within 73 years (2^61 ns)", "give more bandwidth, or less to move or to compute"
            raise ConfigError("run", must, f"something that takes {human(delay_ns, 'ns')}", do)
        if delay_ns or self._instant != self.now or not self.phase:
            return simpy.Timeout(self, delay_ns)
        return TurnEvent(self, self.base - self.base % _ROUND + _ROUND, 0, 0)
