"""What no plan beats, for a question that names a budget or a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.bounds.before import Before
from simulator.bounds.idle import Idle
from simulator.bounds.order import Order
from simulator.bounds.step_time import Bound, combinatorial
from simulator.graph import Graph
from simulator.hardware import Hardware

_HALVINGS = 12
"""The bound on the peak is found to one part in 4,096 of what is live."""


class Limits:
    """Lower bounds for one graph on one machine.

    Parameters
    ----------
    order
        Of the graph's ops, alone or among those of other ranks; with their times.
    hardware, homes
        As for `bound`.
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
        may_repeat: bool = False,
        sharers: Mapping[str, int] | None = None,
    ) -> None:
        graph = order.before.graph
        self._idle = Idle(graph, hardware, homes, may_repeat=may_repeat, before=order.before)
        self._combinatorial = combinatorial(order, hardware, homes, self._idle, sharers)
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
        may_repeat: bool = False,
    ) -> Limits:
        """Find those of one rank, whatever other ranks do; parameters as for `bound`."""
        order = Order.alone(Before.of(graph), durations_ns, may_repeat=may_repeat)
        return cls(order, hardware, homes, may_repeat=may_repeat)

    def step(self, budget_bytes: int | float) -> Bound:
        """No step within the budget takes less."""
        return self._combinatorial(budget_bytes)

    def peak_bytes(self, step_ns: int) -> int:
        """No plan whose step takes at most `step_ns` has a lower peak in the compute tier [B].

        A run that peaks at some bytes is a plan for a budget of that size. So a budget whose bound on the step is
        above `step_ns` is below the peak, and so is every smaller one, for which no bound is lower.
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
        return least
