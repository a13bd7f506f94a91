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

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.critical_path import Timing
from simulator.bounds.cuts import ns_per_byte, rate_of
from simulator.bounds.idle import Demand, tightest

Floats = NDArray[np.float64]

MOST_OPS = 32
"""So many ops are tried at most."""

_ERROR = 1e-9
"""More than floating point errs by, as a share."""

_CLOSER, _BETWEEN = 8, 64
"""How often the minimum is looked for between the neighbours of the least of so many times."""


class Rematerialisation:
    """What is known of plans that run ops again, whatever the budget.

    Parameters
    ----------
    timing, demand
        As for `simulator.bounds.Limits`; what must be held while each op runs.
    """

    def __init__(self, timing: Timing, demand: Demand) -> None:
        graph, cut = timing.precedence.graph, demand.cuts[0]
        self._timing, self._moving = timing, demand.moving
        self._in_line = np.array(timing.precedence.streams, np.int64) == 0
        self._took = np.where(self._in_line, timing.durations_ns, 0).astype(float)
        self._behind = np.cumsum(self._took[::-1])[::-1] - self._took
        self._repeatable = np.array([op.repeatable for op in graph.ops], bool)
        self._held, self._needed = demand.held, demand.held + self._moving.over(len(graph.ops))
        sizes = sorted({tensor.size_bytes for tensor in graph.tensors} - {0})
        rates = (rate_of(names, demand.hardware, sizes) for names in (cut.into, cut.out_of))
        self._in_ns, self._out_ns = map(ns_per_byte, rates)

    def longest(self, budget_bytes: int | float) -> tuple[int, str]:
        """What a step takes at least at the op at which a budget [B] costs most [ns], and what to call it."""
        short = np.flatnonzero(self._in_line & (self._needed > budget_bytes))
        least_ns = ((self._least_ns(int(k), budget_bytes), int(k)) for k in tightest(short, self._needed, MOST_OPS))
        ns, op = max(least_ns, default=(0, 0))
        return ns, f"room or recompute at {self._timing.precedence.graph.ops[op].name}"

    def _least_ns(self, k: int, budget_bytes: int | float) -> int:
        """What the step takes at least if what has no place at an op is copied, or made again [ns]."""
        timing, idle, ops = self._timing, self._moving, len(self._took)
        here = idle.where((idle.first <= k) & (k <= idle.last))
        beyond, is_made = float(self._held[k] - budget_bytes), here.made >= 0
        out_bytes = beyond + float(here.size[is_made].sum())
        in_bytes = beyond + float(here.size[here.due < ops].sum())
        made = np.bincount(here.maker[is_made], here.size[is_made], ops)
        again = np.flatnonzero(self._repeatable & (made > 0))
        at_once, again = again[self._took[again] == 0], again[self._took[again] > 0]
        again = again[np.argsort(self._took[again] / made[again], kind="stable")]
        all_made, times = np.cumsum([made[at_once].sum(), *made[again]]), np.cumsum([0.0, *self._took[again]])

        def step_ns(again_ns: Floats) -> Floats:
            left = np.interp(again_ns, times, all_made)
            out_ns, in_ns = np.maximum(out_bytes - left, 0) * self._out_ns, np.maximum(in_bytes - left, 0) * self._in_ns
            copied_ns = np.where(in_ns > 0, in_ns + timing.last_ns, 0)
            behind_ns = np.maximum(np.maximum(self._behind[k] + again_ns, timing.tails_ns[k]), copied_ns)
            return np.asarray(np.maximum(out_ns, timing.heads_ns[k]) + timing.durations_ns[k] + behind_ns)

        near = times
        for _ in range(_CLOSER):
            i = int(step_ns(near).argmin())
            near = np.linspace(near[max(0, i - 1)], near[min(len(near) - 1, i + 1)], _BETWEEN)
        return int(step_ns(near).min() * (1 - _ERROR)) - 2
