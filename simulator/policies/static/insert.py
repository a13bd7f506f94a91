"""Third pass: turn chosen gaps and positions into cache operators between the ops."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.plan import FREE, Plan
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import Analysis, Idle
from simulator.policies.static.select import Selection
from simulator.policies.writer import Writer

Positions = Mapping[Idle, int]
"""Gap -> the op before which its copy in is issued."""


def insert(
    problem: Problem, analysis: Analysis, selection: Selection, positions: Positions, notes: tuple[str, ...] = ()
) -> Plan:
    """Write the plan: each gap begins with a copy out right after its last use and ends with a copy in.

    Parameters
    ----------
    problem
        What the plan is for.
    analysis, selection
        What leaves.
    positions
        Where the copies in are issued; right before the use for gaps that are not in it.
    notes
        What the plan says about itself.

    Raises
    ------
    CapacityError
        If a tier holds more than its capacity in issue order.
    """
    homes = {gap.tensor: gap.away for gap in selection.gaps if gap.wraps and problem.homes[gap.tensor] == FREE}
    homes.update((tensor, problem.away(tensor)[0]) for tensor in analysis.idle_homes)
    writer = Writer(problem, "static", homes)
    leave: dict[int, list[Idle]] = {}
    come: dict[int, list[Idle]] = {}
    last_gap: dict[int, int] = {}
    for gap in selection.gaps:
        leave.setdefault(gap.after, []).append(gap)
        if gap.returns:
            come.setdefault(positions.get(gap, gap.before), []).append(gap)
        last_gap[gap.tensor] = max(last_gap.get(gap.tensor, -1), gap.after)
    persistent = [t.persistent for t in problem.graph.tensors]
    for op in range(len(problem.graph.ops)):
        for gap in sorted(come.get(op, ()), key=lambda g: (g.before, g.tensor)):
            writer.fetch(gap.tensor)
            if last_gap[gap.tensor] < gap.before:
                writer.forget(gap.tensor)
        writer.compute(op)
        for gap in leave.get(op, ()):
            if persistent[gap.tensor] or not gap.wraps:
                writer.store(gap.tensor)
    return writer.finish(notes)
