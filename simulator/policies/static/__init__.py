"""`static`: a compiler that places every copy before the run, by time, bandwidth and room.

Passes, each a pure function with a typed hand-over::

    analyse   lifetimes in time         -> Analysis    idle gaps that a tensor could spend away
    select    what leaves               -> Selection    gaps, so that live bytes fit a limit
    insert    cache operators           -> Augmented    the graph with a Store, Detach and Prefetch for each gap
    refine    Algorithm 1               -> Augmented    each cache operator at its cheapest position
    validate  replay                    -> Candidate    the fastest of a few that really fit

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
from simulator.policies.static.explanation import Explanation, explanation
from simulator.policies.static.score import Scorer, Weights
from simulator.policies.static.select import explain, ranked
from simulator.policies.static.validate import Candidate, Validator

__all__ = ["Explanation", "Options", "Weights", "compiled", "explained", "plan"]


class Options(Part):
    """Weights of the costs; the defaults serve every scenario.

    Attributes
    ----------
    alpha
        What residency costs in Algorithm 1: nanoseconds of stall that are as bad as holding the whole budget for a
        nanosecond. A copy in is issued ahead of its use if its share of the budget, times alpha, is below 1.
    tries
        How many candidates are replayed at most.
    improve
        How many replays single changes may take on a small graph.
    weights
        How much each term of the score counts by which gaps are chosen.
    """

    alpha: Annotated[float, Field(ge=0)] = Field(0.1, description="cost of residency against stall")
    tries: Annotated[int, Field(ge=1)] = Field(6, description="candidates replayed at most")
    improve: Annotated[int, Field(ge=0)] = Field(150, description="replays for single changes on a small graph")
    weights: Weights = Field(Weights(), description="weights of the score's terms")


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
    return compiled(problem, options).plan


def compiled(problem: Problem, options: Options) -> Candidate:
    """Compile a plan, and keep what led to it."""
    analysis = analyse(problem)
    order = ranked(problem, analysis, Scorer(problem, options.weights))
    return Validator(problem, analysis, order, options.alpha, options.tries).run(options.improve)


def explained(problem: Problem, options: Options) -> Explanation:
    """Compile a plan and say why it is as it is.

    Parameters
    ----------
    problem, options
        As for `plan`.

    Raises
    ------
    CapacityError
        If no plan was found that fits.
    """
    analysis = analyse(problem)
    score = Scorer(problem, options.weights)
    order = ranked(problem, analysis, score)
    candidate = Validator(problem, analysis, order, options.alpha, options.tries).run(options.improve)
    forced = [(gap, score(gap)) for gap in analysis.forced]
    return explanation(problem, candidate, explain(problem, candidate.selection, order, forced))
