"""What no plan beats, for a question that names a budget or a step: the best of all bounds that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.bounds.idle import Idle
from simulator.bounds.needs import needs
from simulator.bounds.relaxation import relaxed_peak_bytes, relaxed_step_ns
from simulator.bounds.step_time import Bound, combinatorial
from simulator.graph import Graph
from simulator.hardware import Hardware

_HALVINGS = 12
"""The combinatorial bound on the peak is found to one part in 4,096 of what is live."""


class Limits:
    """Lower bounds for one graph on one machine.

    Parameters
    ----------
    graph, hardware, durations_ns, homes
        As for `bound`.
    relaxed
        Whether the linear relaxation counts as well; not of a graph with collectives, of which it knows nothing. It
        needs the extra ``hosim[solve]``.
    may_repeat
        As for `bound`.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        durations_ns: Sequence[int],
        homes: Sequence[int],
        *,
        relaxed: bool = False,
        may_repeat: bool = False,
    ) -> None:
        self._graph, self._hardware, self._durations_ns = graph, hardware, durations_ns
        relaxed = relaxed and not graph.meets
        self._idle = Idle(graph, hardware, homes, may_repeat=may_repeat)
        self._combinatorial = combinatorial(graph, hardware, durations_ns, homes, self._idle)
        self._needs = list(needs(graph, hardware, homes, self._idle, may_repeat=may_repeat)) if relaxed else None
        here = hardware.tier_names.index(hardware.compute_tier)
        self._at_home = sum(t.size_bytes for t, home in zip(graph.tensors, homes, strict=True) if home == here)

    def step(self, budget_bytes: int | float) -> Bound:
        """No step within the budget takes less.

        Raises
        ------
        ConfigError
            If the relaxation is asked for and scipy is not installed.
        """
        found = self._combinatorial(budget_bytes)
        if self._needs is None:
            return found
        most = int((self._idle.work + self._idle.all).max())
        facts = (self._graph, self._hardware, self._durations_ns, self._idle, self._needs)
        relaxed_ns = relaxed_step_ns(*facts, int(min(budget_bytes, most)))
        terms = {**found.terms, "relaxation": relaxed_ns}
        return replace(found, terms=terms) if relaxed_ns <= found.ns else Bound(relaxed_ns, "relaxation", terms)

    def peak_bytes(self, step_ns: int) -> int:
        """No plan whose step takes at most `step_ns` has a lower peak in the compute tier [B].

        A run that peaks at some bytes is a plan for a budget of that size. So a budget whose bound on the step is
        above `step_ns` is below the peak, and so is every smaller one, for which no bound is lower. The relaxation
        has the budget as its objective.

        Raises
        ------
        ConfigError
            If the relaxation is asked for and scipy is not installed.
        """
        idle = self._idle
        least = max(int((idle.work + idle.stays).max()), self._at_home)
        most = max(least, int((idle.work + idle.all).max()))
        for _ in range(_HALVINGS):
            middle = (least + most) // 2
            if self._combinatorial(middle).ns > step_ns:
                least = middle + 1
            else:
                most = middle
        if self._needs is None:
            return least
        facts = (self._graph, self._hardware, self._durations_ns, idle, self._needs)
        return max(least, relaxed_peak_bytes(*facts, step_ns))
