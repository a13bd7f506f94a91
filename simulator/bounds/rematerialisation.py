"""What a plan takes that may run ops again: what has no room at an op is copied, or it is made again.

Let ``k`` be an op of the line, in its first run. What is needed later, what ``k`` uses, its workspace, and what stays
have ``x`` bytes more than the budget: of the values that are needed, ``x`` bytes have no place when ``k`` starts, nor
when it ends. If a first run reads such a value later, or it has to be there at the end, then either the op that made it
runs again after ``k`` has started, or the value is valid elsewhere. In the latter case it was copied out before ``k``
started, if an op of this step made it; and if it is read, it comes in after ``k`` has ended.

Let ``r`` be the time that ops of the line take which run again after ``k`` has started, each counted once. The line
runs one op at a time, so that from the end of ``k`` to that of the step at least ``r`` passes and all first runs behind
``k``. These ops make at most ``s(r)`` of the bytes that lie idle at ``k``: as much as if parts of ops could run, those
first that make most bytes in a time. What beside the line makes, counts as made in no time. So the step takes at least

    max(head of k, (x - s(r)) / w_out) + k + max(tail of k, line behind k + r, (x - s(r)) / w_in + the last op)

for some ``r``, with what has no place in a copy out counted of values made in the step, in a copy in of those that are
read. ``s`` is concave, so that this is convex in ``r``; its minimum is found in floating point, and rounded down by
more than that errs. An op that takes less time for a byte than a link runs again at first; the minimum lies where both
take equally long, or where nothing is left to copy.

The ops that are tried are the shortest of room in stretches of the line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.critical_path import Timing
from simulator.bounds.cuts import ns_per_byte, rate_of
from simulator.bounds.idle import Demand, tightest
from simulator.hardware import Hardware

MOST_OPS = 32
"""So many ops are tried at most."""

_ERROR = 1e-9
"""More than floating point errs by, as a share."""

_CLOSER, _BETWEEN = 8, 64
"""How often the minimum is looked for between the neighbours of the least of so many times."""


class _At(NamedTuple):
    """What lies idle at an op beyond the room there is.

    Attributes
    ----------
    out, into
        What was made in the step; what is read [B].
    made, took
        What the first of the ops that may run again make, those first that make most in a time; what they take: both
        ascending from 0 [B, ns].
    """

    out: float
    into: float
    made: NDArray[np.float64]
    took: NDArray[np.float64]


class Rematerialisation:
    """What is known of plans that run ops again, whatever the budget.

    Parameters
    ----------
    timing, hardware, demand
        As for `simulator.bounds.step_time.Limits`; what must be held while each op runs.
    """

    def __init__(self, timing: Timing, hardware: Hardware, demand: Demand) -> None:
        graph, cut = timing.precedence.graph, demand.cuts[0]
        self._timing, self._moving = timing, demand.moving
        self._in_line = np.array(timing.precedence.streams, np.int64) == 0
        self._took = np.where(self._in_line, timing.durations_ns, 0).astype(float)
        self._behind = np.cumsum(self._took[::-1])[::-1] - self._took
        self._repeatable = np.array([op.repeatable for op in graph.ops], bool)
        self._held = demand.work + demand.stays
        self._needed = self._held + self._moving.over(len(graph.ops))
        sizes = sorted({tensor.size_bytes for tensor in graph.tensors} - {0})
        self._in_ns, self._out_ns = (ns_per_byte(rate_of(names, hardware, sizes)) for names in (cut.into, cut.out_of))

    def longest(self, budget_bytes: int | float) -> tuple[int, int]:
        """Find the op at which a budget [B] costs most, and what the step takes at least because of it [ns]."""
        short = np.flatnonzero(self._in_line & (self._needed > budget_bytes))
        found = [(self._least_ns(int(k), budget_bytes), int(k)) for k in tightest(short, self._needed, MOST_OPS)]
        return max(found, default=(0, -1))

    def _least_ns(self, k: int, budget_bytes: int | float) -> int:
        timing, at = self._timing, self._at(k, budget_bytes)

        def step_ns(again_ns: NDArray[np.float64]) -> NDArray[np.float64]:
            made = np.interp(again_ns, at.took, at.made)
            out_ns, in_ns = np.maximum(at.out - made, 0) * self._out_ns, np.maximum(at.into - made, 0) * self._in_ns
            copied_ns = np.where(in_ns > 0, in_ns + timing.last_ns, 0)
            behind_ns = np.maximum(np.maximum(self._behind[k] + again_ns, timing.tails_ns[k]), copied_ns)
            found: NDArray[np.float64] = np.maximum(out_ns, timing.heads_ns[k]) + timing.durations_ns[k] + behind_ns
            return found

        times = at.took
        for _ in range(_CLOSER):
            i = int(step_ns(times).argmin())
            times = np.linspace(times[max(0, i - 1)], times[min(len(times) - 1, i + 1)], _BETWEEN)
        return int(step_ns(times).min() * (1 - _ERROR)) - 2

    def _at(self, k: int, budget_bytes: int | float) -> _At:
        ops = len(self._took)
        here = self._moving.where((self._moving.first <= k) & (k <= self._moving.last))
        beyond = float(self._held[k] - budget_bytes)
        is_made = here.made >= 0
        made = np.bincount(here.maker[is_made], here.size[is_made], ops)
        again = np.flatnonzero(self._repeatable & (made > 0))
        at_once, again = again[self._took[again] == 0], again[self._took[again] > 0]
        again = again[np.argsort(self._took[again] / made[again], kind="stable")]
        return _At(
            beyond + float(here.size[is_made].sum()),
            beyond + float(here.size[here.due < ops].sum()),
            np.cumsum([made[at_once].sum(), *made[again]]),
            np.cumsum([0.0, *self._took[again]]),
        )
