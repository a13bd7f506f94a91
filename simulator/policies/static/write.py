"""From the augmented graph to a plan: each cache operator becomes steps at its program point."""

from __future__ import annotations

from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.static.augmented import DETACH, PREFETCH, STORE, Augmented
from simulator.policies.writer import Writer


def write(problem: Problem, augmented: Augmented, notes: tuple[str, ...] = ()) -> Plan:
    """Write the plan; the writer adds deaths, and the way home of what lives elsewhere.

    Parameters
    ----------
    problem
        What the plan is for.
    augmented
        Ops and cache operators.
    notes
        What the plan says about itself.

    Raises
    ------
    CapacityError
        If a tier holds more than its capacity in issue order.
    """
    writer = Writer(problem, "static", augmented.homes)
    ops, here = len(problem.graph.ops), problem.compute_tier
    left = {one.tensor: number for number, one in enumerate(augmented.cache_ops) if one.role is not PREFETCH}
    point = 0
    for number, one in enumerate(augmented.cache_ops):
        for op in range(point, one.position):
            writer.compute(op)
        role, tensor, point = one.role, one.tensor, one.position
        if role is STORE:
            writer.back_up(tensor, one.target)
        elif role is DETACH:
            writer.detach(tensor, here)
        else:
            writer.fetch(tensor)
            if left.get(tensor, -1) < number:
                writer.forget(tensor)
    for op in range(point, ops):
        writer.compute(op)
    return writer.finish(notes)
