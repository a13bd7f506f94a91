"""`static`: a compiler that places every copy before the run, by time, bandwidth and room.

Passes, each a pure function with a typed hand-over::

    analyse   lifetimes in time          -> Analysis    idle gaps that a tensor could spend away
    select    what leaves                -> Selection   gaps, so that live bytes fit a limit
    insert    cache operators            -> Plan        a copy out after, and a copy in before, each gap
    predict   the compiler's own model   -> Timeline    when each op starts and each room is free
    refine    Algorithm 1                -> Positions   the cheapest position of each copy in
    validate  replay                     -> Plan        the fastest of a few that really fit

All are near-linear in ops and gaps: ranges of live bytes change in `profile`, compute time is a prefix sum, and the
copies of a channel are laid out backwards from their deadlines instead of trying positions.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.document import Part
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.static.analyse import analyse
from simulator.policies.static.validate import best_plan


class Options(Part):
    """Weights of the cost; the defaults serve every scenario.

    Attributes
    ----------
    alpha
        What residency costs in Algorithm 1: nanoseconds of stall that are as bad as holding the whole budget for a
        nanosecond. A copy in is issued ahead of its use if its share of the budget, times alpha, is below 1.
    tries
        How many candidates are replayed at most.
    """

    alpha: Annotated[float, Field(ge=0)] = Field(0.1, description="cost of residency against stall")
    tries: Annotated[int, Field(ge=1)] = Field(6, description="candidates replayed at most")


def plan(problem: Problem, options: Options) -> Plan:
    """Compile a plan that fits the budget and stalls least.

    Parameters
    ----------
    problem
        What to plan for.
    options
        See `Options`.

    Raises
    ------
    CapacityError
        If no plan was found that fits; the report tells the least demand reached.
    """
    return best_plan(problem, analyse(problem), options.alpha, options.tries)
