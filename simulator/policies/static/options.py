"""Options of the compiler."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

from pydantic import Field

from simulator.document import Part
from simulator.errors import ScopeError
from simulator.graph import Graph, TensorKind
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
        Kinds of tensors, or patterns of their names: these leave before all others, wherever room is short.
    """

    alpha: Weight = Field(0.1, description="cost of residency against stall")
    tries: Annotated[int, Field(ge=1)] = Field(6, description="candidates replayed at most")
    improve: Annotated[int, Field(ge=0)] = Field(150, description="replays for single changes on a small graph")
    recompute: bool = Field(False, description="run ops again where that is faster than copies")
    weights: Weights = Field(Weights(), description="weights of the score's terms")
    move: tuple[str, ...] = Field((), description="kinds or name patterns of tensors that leave before all others")

    def first(self, graph: Graph) -> frozenset[int]:
        """Tensors that leave before all others.

        Raises
        ------
        ScopeError
            If a pattern matches none.
        """
        found = {pattern: graph.matching(pattern) for pattern in self.move}
        for pattern, tensors in found.items():
            if not tensors and pattern not in set(TensorKind):
                must = "what option move names is a kind, or a pattern of names, of some tensor"
                raise ScopeError("policy 'static'", must, repr(pattern), "take a name that `hosim plan` prints")
        return frozenset(chain.from_iterable(found.values()))
