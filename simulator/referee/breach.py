"""How the referee's messages name a step, and what it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.errors import InvariantError
from simulator.graph import Graph
from simulator.plan import COMPUTE, COPY, DETACH, SYNC, Code


class Breach(NamedTuple):
    """What a step breaks: the rule, what was found, and what to do."""

    must: str
    found: str
    do: str


def broken(where: str, law: str, found: str) -> InvariantError:
    """The error that names the row, the law and the numbers."""
    return InvariantError(where, law, found, "report this: it is a bug of hosim")


def describe(graph: Graph, tiers: Sequence[str], code: Code) -> str:
    """Say what a step does, such as ``copy L03/attn.q.out hbm -> ddr``.

    Parameters
    ----------
    graph
        For the names of ops and tensors.
    tiers
        Tier names by id.
    code
        The step; ids that are out of range are shown as numbers.
    """
    kind, a, b, c = code
    if not COMPUTE <= kind <= SYNC:
        return f"kind {kind}"
    if kind == COMPUTE:
        return f"compute {_name([op.name for op in graph.ops], a)}"
    tensor, source, target = _name([tensor.name for tensor in graph.tensors], a), _name(tiers, b), _name(tiers, c)
    if kind == COPY:
        return f"copy {tensor} {source} -> {target}"
    return f"detach {tensor} from {source}" if kind == DETACH else f"sync {tensor}"


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)
