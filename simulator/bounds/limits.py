"""What no plan beats, for a question that names a budget or a step: the best of all bounds that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.bounds.before import Before
from simulator.bounds.idle import Idle
from simulator.bounds.needs import needs
from simulator.bounds.order import Order
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
    order
        Of the graph's ops, alone or among those of other ranks; with their times.
    hardware, homes
        As for `bound`.
    relaxed
        Whether the linear relaxation counts as well; not of a graph with collectives, of which it knows nothing, nor if
        the last op takes less than in the step before. It needs the extra ``hosim[solve]``.
    may_repeat
        As for `bound`, and as for the order.
    sharers
        For each bus that ranks share, how many do there at the same time what this one does.
    """

    def __init__(
        self,
        order: Order,
        hardware: Hardware,
        homes: Sequence[int],
        *,
        relaxed: bool = False,
        may_repeat: bool = False,
        sharers: Mapping[str, int] | None = None,
    ) -> None:
        graph = order.before.graph
        self._graph, self._hardware, self._durations_ns = graph, hardware, order.durations_ns
        relaxed = relaxed and not graph.meets and not order.shorter_ns
        self._idle = Idle(graph, hardware, homes, may_repeat=may_repeat, before=order.before)
        self._combinatorial = combinatorial(order, hardware, homes, self._idle, sharers)
        facts = (graph, hardware, homes, self._idle)
        self._needs = list(needs(*facts, may_repeat=may_repeat, staying=order.staying)) if relaxed else None
        here = hardware.tier_names.index(hardware.compute_tier)
        self._at_home = sum(t.size_bytes for t, home in zip(graph.tensors, homes, strict=True) if home == here)

    @classmethod
    def alone(
        cls,
        graph: Graph,
        hardware: Hardware,
        durations_ns: Sequence[int],
        homes: Sequence[int],
        *,
        relaxed: bool = False,
        may_repeat: bool = False,
    ) -> Limits:
        """Find those of one rank, whatever other ranks do; parameters as for `bound`."""
        order = Order.alone(Before.of(graph), durations_ns, may_repeat=may_repeat)
        return cls(order, hardware, homes, relaxed=relaxed, may_repeat=may_repeat)

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
