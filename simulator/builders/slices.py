"""Which bytes of a weight go from whom to whom, if ranks with one layout of it hand it to ranks with another.

A rank holds a box of the weight: along each dimension an interval, at its position on the axes that cut it. With ZeRO
stage 3 it holds an interval of the elements of that box, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from simulator.layout import Weight

Box = tuple[tuple[int, int], ...]
"""Along each dimension the first element, and the one behind the last."""


class HeldSlice(NamedTuple):
    """What a rank holds of a weight.

    Attributes
    ----------
    first, last
        Of the elements of the box, the first one that it holds, and the one behind the last.
    """

    box: Box
    first: int
    last: int

    @classmethod
    def of(cls, weight: Weight, rank: int, zero_stage: int = 0) -> HeldSlice:
        """Return what a rank of the weight's mesh holds, with stage 3 of ZeRO only its shard."""
        layout, box = weight.layout, list[tuple[int, int]]()
        for axes, length in zip(layout.tensor_map, layout.local_shape(weight.shape), strict=True):
            position = layout.mesh.positions(axes)[rank]
            if len(box) == len(weight.shape) - 1:
                position //= weight.copies
            box.append((position * length, (position + 1) * length))
        first, last = 0, weight.parameters
        if zero_stage == 3:
            shard = -(-weight.parameters // layout.mesh.size(weight.replicas))
            first = min(last, layout.mesh.positions(weight.replicas)[rank] * shard)
            last = min(last, first + shard)
        return cls(tuple(box), first, last)

    def shared(self, box: Box) -> int:
        """Count the elements that it holds of a box."""
        shape = [stop - start for start, stop in self.box]
        inner = tuple(
            (max(a, start) - start, max(a, start, min(b, stop)) - start)
            for (start, stop), (a, b) in zip(self.box, box, strict=True)
        )
        return _before(self.last, shape, inner) - _before(self.first, shape, inner)


def _before(index: int, shape: Sequence[int], box: Box) -> int:
    """Count the elements of a box that come before an index of the elements of a whole shape, in their order."""
    if not shape:
        return min(index, 1)
    row, left = divmod(index, prod(shape[1:]))
    (start, stop), inside = box[0], box[1:]
    whole = max(0, min(row, stop) - start) * prod(b - a for a, b in inside)
    return whole + (_before(left, shape[1:], inside) if start <= row < stop else 0)


def messages(sources: dict[int, HeldSlice], targets: dict[int, HeldSlice]) -> dict[tuple[int, ...], int]:
    """Return how many elements each rank gets from each, itself included.

    Ranks that hold the same take turns: the n-th target asks the n-th of them, unless it holds that itself.

    Parameters
    ----------
    sources, targets
        Rank -> what it holds, and what it is to hold: whole boxes.
    """
    replicas: dict[HeldSlice, list[int]] = {}
    for rank, held in sources.items():
        replicas.setdefault(held, []).append(rank)
    sent: dict[tuple[int, ...], int] = {}
    for turn, (target, wanted) in enumerate(targets.items()):
        for held, ranks in replicas.items():
            if elements := held.shared(wanted.box):
                source = target if target in ranks else ranks[turn % len(ranks)]
                sent[source, target] = sent.get((source, target), 0) + elements
    return sent
