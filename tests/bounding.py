"""The bound of one rank alone, in one call."""

from __future__ import annotations

from simulator.bounds import Bound, Limits


def bound(graph, hardware, durations_ns, homes, budget_bytes, *, may_repeat=False) -> Bound:
    """What no plan within the budget beats, whatever other ranks do."""
    return Limits.alone(graph, hardware, durations_ns, homes, may_repeat=may_repeat).step(budget_bytes)
