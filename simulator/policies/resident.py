"""`resident`: nothing moves."""

from __future__ import annotations

from simulator.document import Part
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.writer import Move, Writer, write


class Options(Part):
    """No options."""


def plan(problem: Problem, options: Options) -> Plan:
    """Keep everything in the compute tier for as long as it is live.

    Persistent tensors whose home is free live in the compute tier. Those whose home is another tier can only be used
    there, so they are copied in when the step starts (unless an op makes them anew), or behind the last barrier before
    their first use, stay, and go back when it ends.

    Parameters
    ----------
    problem
        What to plan for.
    options
        None.

    Raises
    ------
    CapacityError
        If what is live at once exceeds the budget: by how much, at which op, and what would help.
    """
    return write(
        problem, "resident", [Move(op, Writer.fetch, t) for op, came in problem.arrivals.items() for t in came]
    )
