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
        return f"compute {_name(graph.ops, a)}"
    tensor = _name(graph.tensors, a)
    if kind == COPY:
        return f"copy {tensor} {_tier(tiers, b)} -> {_tier(tiers, c)}"
    return f"detach {tensor} from {_tier(tiers, b)}" if kind == DETACH else f"sync {tensor}"


def _name(named: Sequence[object], number: int) -> str:
    return str(getattr(named[number], "name", number)) if 0 <= number < len(named) else str(number)


def _tier(tiers: Sequence[str], number: int) -> str:
    return tiers[number] if 0 <= number < len(tiers) else str(number)
