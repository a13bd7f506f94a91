"""From the augmented graph to a plan: each cache operator becomes steps at its program point."""

from __future__ import annotations

from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.static.augmented import Augmented, Role
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
    left = {one.tensor: number for number, one in enumerate(augmented.cache_ops) if one.role is not Role.PREFETCH}
    cache_ops, number = augmented.cache_ops, 0
    for point in range(len(problem.graph.ops) + 1):
        while number < len(cache_ops) and cache_ops[number].position == point:
            one = cache_ops[number]
            if one.role is Role.STORE:
                writer.back_up(one.tensor, one.target)
            elif one.role is Role.DETACH:
                writer.detach(one.tensor, problem.compute_tier)
            else:
                writer.fetch(one.tensor)
                if left.get(one.tensor, -1) < number:
                    writer.forget(one.tensor)
            number += 1
        if point < len(problem.graph.ops):
            writer.compute(point)
    return writer.finish(notes)
