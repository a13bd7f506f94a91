"""The bounds of one rank alone, in one call."""

from __future__ import annotations

from simulator.bounds import Bound, Limits, Precedence, Timing


def limits_alone(graph, hardware, durations_ns, homes, *, may_repeat=False) -> Limits:
    """What no plan beats, whatever other ranks do; with the time of each op alone [ns]."""
    timing = Timing.alone(
        Precedence.of(graph, shares_memory=hardware.shares_memory), durations_ns, may_repeat=may_repeat
    )
    return Limits(timing, hardware, homes, may_repeat=may_repeat)


def bound(graph, hardware, durations_ns, homes, budget_bytes, *, may_repeat=False) -> Bound:
    """The same within the budget."""
    return limits_alone(graph, hardware, durations_ns, homes, may_repeat=may_repeat).step(budget_bytes)
