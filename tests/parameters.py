"""How many parameters a model has, counted from the weights that a builder lays out."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from simulator.builders.specs import specs
from simulator.workload import DecoderModel, Experts


class Count(NamedTuple):
    """How many parameters a model has.

    Attributes
    ----------
    total
        All of them.
    active
        Those that a token goes through: without the experts that the router leaves out.
    table
        Those of the input's table, of which a token reads one row; `active` counts them, as most publications do.
    """

    total: int
    active: int
    table: int


def count(model: DecoderModel) -> Count:
    """Count the parameters of a model on all ranks, to the last one."""
    total = idle = 0
    part = model.feed_forward
    for _, found in specs(model):
        for spec in found.values():
            size = prod(spec.shape)
            if spec.kind == "expert" and isinstance(part, Experts):
                size *= part.ranks
                idle += size // part.routed * (part.routed - part.chosen)
            total += size
    return Count(total, total - idle, model.hidden * model.vocabulary)
