"""Options of the compiler."""

from __future__ import annotations

from pydantic import Field

from simulator.document import Part
from simulator.errors import ScopeError
from simulator.policies.problem import Problem


class Options(Part):
    """What the compiler may do, and what it is told to.

    Attributes
    ----------
    recompute
        Whether ops may run again, where that is faster than moving what they made.
    move
        Kinds of tensors, or patterns of their names: these leave wherever that hides their copies, and before all
        others where room is short.
    """

    recompute: bool = Field(False, description="run ops again where that is faster than copies")
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
