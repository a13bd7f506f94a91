"""A stay of a tensor in the compute tier, or of the workspace of a compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One stay in the tier.

    Attributes
    ----------
    item, size_bytes
        A tensor, or a `workspace`; how much it takes [B].
    taken, freed
        Steps of a lap that take and free it: -1, it is there when the lap begins; the number of steps, it stays. One
        that is there at both ends, and is away between, is taken after it is freed.
    """

    item: int
    size_bytes: int
    taken: int
    freed: int

    def stays(self, steps: int) -> tuple[tuple[int, int], ...]:
        """From and to, both included: one stretch, or two where it comes back."""
        if self.taken > self.freed:
            return (-1, self.freed), (self.taken, steps)
        return ((self.taken, self.freed),)

    def length(self, steps: int) -> int:
        """Over how many steps it is there."""
        return sum(end - start for start, end in self.stays(steps))


def live_bytes(tenancies: Sequence[Tenancy], steps: int) -> list[int]:
    """How much is live at each step from -1 on [B]."""
    change = [0] * (steps + 3)
    for one in tenancies:
        for start, end in one.stays(steps):
            change[start + 1] += one.size_bytes
            change[end + 2] -= one.size_bytes
    return list(accumulate(change))


def span(tenancies: Sequence[Tenancy], chosen: Sequence[int]) -> int:
    """End of the last range [B]."""
    return max((at + one.size_bytes for one, at in zip(tenancies, chosen, strict=True)), default=0)
