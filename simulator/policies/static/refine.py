"""Fourth pass: where each copy in is issued. Algorithm 1 of HyperOffload, with time, channels and room.

The cost of a position is ``max(0, C_trans - C_overlap) + alpha * residency``: what the copy lasts beyond the
compute time that it overlaps, and the share of the budget that it holds, over the time it holds it before its use.
Moving a copy earlier lowers the cost by 1 ns per ns until it is hidden, and from there on raises it by
``alpha * size / budget``. So the cheapest position is that kink, or the earliest feasible one if the kink lies before
it (or the use itself where residency costs more than stall): it is found by bisection, and no position is tried.

Channel occupancy comes in by going backwards over the deadlines: a copy must end before its use and before the next
copy of its link begins. Room comes in by the live bytes that the predicted stores really leave. No copy is moved
across a barrier.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from simulator.policies.problem import Problem
from simulator.policies.profile import Profile
from simulator.policies.static.analyse import Analysis, Idle
from simulator.policies.static.predict import Timeline
from simulator.policies.static.select import Selection


def refine(
    problem: Problem,
    analysis: Analysis,
    selection: Selection,
    timeline: Timeline,
    alpha: float,
    slack_ns: int,
) -> dict[Idle, int]:
    """Find the cheapest position of each copy in.

    Parameters
    ----------
    problem, analysis, selection
        What leaves.
    timeline
        Predicted starts of the ops, and when rooms are free.
    alpha
        Weight of residency.
    slack_ns
        How much before its use a copy should have ended [ns].

    Returns
    -------
    dict
        Gap -> the op before which its copy in is issued.
    """
    starts, budget, here = timeline.start_ns, problem.budget_bytes, problem.compute_tier
    profile = Profile(analysis.live_bytes)
    earliest = {gap: _leave(profile, gap, timeline) for gap in selection.gaps}
    next_begin: dict[int, int] = {}
    positions: dict[Idle, int] = {}
    for gap in sorted(earliest, key=lambda g: (-g.before, g.tensor)):
        if not gap.returns:
            continue
        link = problem.path(gap.away, here)[-2]
        due = starts[gap.before] - slack_ns
        begin = min(due, next_begin.get(link, due)) - gap.in_ns
        position = gap.before
        if alpha * gap.size_bytes < budget:
            feasible = max(earliest[gap], problem.fences[gap.before])
            position = min(max(bisect_right(starts, begin), feasible), gap.before)
            position = profile.last_above(position, gap.before - 1, budget - gap.size_bytes) + 1
        profile.add(position, gap.before - 1, gap.size_bytes)
        next_begin[link] = max(begin, starts[position - 1] if position else 0)
        positions[gap] = position
    return positions


def _leave(profile: Profile, gap: Idle, timeline: Timeline) -> int:
    """Take the gap's tensor out of the profile while it is really away; return the first position to copy it in."""
    starts, ops = timeline.start_ns, len(timeline.start_ns) - 1
    freed = timeline.freed_ns.get((gap.tensor, gap.after), 0)
    gone = max(gap.after + 1, bisect_left(starts, freed, gap.after + 1, ops))
    if gap.wraps:
        profile.add(0, gap.before - 1, -gap.size_bytes)
        profile.add(gone, ops - 1, -gap.size_bytes)
        return 0
    profile.add(gone, gap.before - 1, -gap.size_bytes)
    return min(gone, gap.before)
