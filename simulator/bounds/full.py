"""When a tier is full, and with what: what a capacity that is too small says of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.errors import full_from
from simulator.graph import Graph
from simulator.lifetime import Lifetimes


def full(
    graph: Graph,
    found: Lifetimes,
    needed: NDArray[np.int64] | Sequence[int],
    capacity_bytes: int | float,
    worst: int,
    came: Mapping[int, int],
) -> str:
    """Say from which op on there is no room, and what came last of all that stays; with one op, what stays longest.

    Parameters
    ----------
    graph, found
        What runs, and its lifetimes.
    needed, capacity_bytes
        What a tier must hold at each op, and what there is room for [B]; somewhere it is too much.
    worst
        The op at which most is needed; 0 if that is where the step begins.
    came
        For each tensor that stays until then, the op that it comes with; 0 for what is there from the start.

    Returns
    -------
    str
        As a phrase (see `full_from`); empty if that is there already where most is needed, and nothing came until then.
    """
    first = int((np.asarray(needed) > capacity_bytes).argmax())
    until = ((op, found.dies[tensor], tensor) for tensor, op in came.items() if 0 < op <= first)
    *_, last = max(until, default=(None,))
    at, most = (f"op {graph.ops[op].name!r}" for op in (first, worst))
    return full_from(at, most, "" if last is None else graph.tensors[last].name)
