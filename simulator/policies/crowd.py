"""How long copies take while others of the same plan are under way."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite

from simulator.policies.problem import Problem


class Crowd:
    """Copies over some links, all of which are busy, those of all ranks: each bus is shared at its worst.

    Parameters
    ----------
    problem
        What is planned for.
    hops
        The links that copies take, by their two ends.
    """

    def __init__(self, problem: Problem, hops: Collection[tuple[int, int]]) -> None:
        self._problem = problem
        self._wires = {wire for hop in hops for wire in problem.wires(hop)}
        self._factors = {hop: self._factor(hop) for hop in hops}

    @property
    def is_felt(self) -> bool:
        """Whether a bus may slow down any of the copies."""
        return any(factor > 1 for factor in self._factors.values())

    def copy_ns(self, tensor: int, hop: tuple[int, int]) -> int:
        """Time of a copy of the tensor over one link [ns]."""
        return int(self._problem.copy_ns(tensor, *hop) * self._factors[hop])

    def _factor(self, hop: tuple[int, int]) -> float:
        """How much longer copies over a link take than alone."""
        hardware, factor = self._problem.hardware, 1.0
        for name, bus in hardware.buses.items():
            busy = self._wires.intersection(bus.links)
            rate = sum(hardware.links[wire].bandwidth_bytes_per_s for wire in sorted(busy))
            wanted = self._problem.sharers.get(name, 1) * rate
            if not busy.isdisjoint(self._problem.wires(hop)) and isfinite(wanted):
                factor = max(factor, wanted / bus.bandwidth_bytes_per_s)
        return factor
