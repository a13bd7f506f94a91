"""Options of the compiler."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.document import Part
from simulator.errors import ScopeError
from simulator.policies.problem import Problem
from simulator.policies.static.score import Weight, Weights


class Options(Part):
    """Weights of the costs; the defaults serve every scenario.

    Attributes
    ----------
    alpha
        What residency costs in Algorithm 1: nanoseconds of stall that are as bad as holding the whole budget for a
        nanosecond. A copy in is issued ahead of its use if its share of the budget, times alpha, is below 1.
    tries
        How many candidates are replayed at most; as many again with all in the nearest tier, where links shed load.
    recompute
        Whether ops may run again, where that is faster than moving what they made.
    improve
        How many replays single changes may take on a small graph.
    weights
        How much each term of the score counts by which gaps are chosen.
    move
        Kinds of tensors, or patterns of their names: these leave wherever that hides their copies, and before all
        others where room is short.
    """

    alpha: Weight = Field(0.1, description="cost of residency against stall")
    tries: Annotated[int, Field(ge=1)] = Field(6, description="candidates replayed at most")
    improve: Annotated[int, Field(ge=0)] = Field(150, description="replays for single changes on a small graph")
    recompute: bool = Field(False, description="run ops again where that is faster than copies")
    weights: Weights = Field(Weights(), description="weights of the score's terms")
    move: list[str] = Field([], description="kinds or name patterns of tensors that leave where they can")

    def asked(self, problem: Problem) -> frozenset[int]:
        """Tensors that leave where they can.

        Parameters
        ----------
        problem
            What is planned for.

        Raises
        ------
        ScopeError
            If a pattern matches none that may leave.
        """
        found: set[int] = set()
        for pattern in self.move:
            tensors = problem.graph.matching(pattern)
            if not tensors:
                must = "what option move names is a kind, or a pattern of names, of some tensor"
                raise ScopeError("policy 'static'", must, repr(pattern), "take a name that `hosim plan` prints")
            may_leave = [tensor for tensor in tensors if not problem.pinned(tensor)]
            if not may_leave:
                must, what = "what option move names may leave the compute tier", f"{pattern!r}, which is at home there"
                raise ScopeError("policy 'static'", must, what, "give it another home, or free")
            found.update(may_leave)
        return frozenset(found)
