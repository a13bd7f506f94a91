"""The ledger of channel occupancy: how long each link is wanted, and how long it is busy, in each slot of a step.

*Wanted* is what just-in-time copies would take: each copy out right after the last use, each copy in so that it ends at
its next use. A slot in which more is wanted than the link can serve is *oversubscribed*: some copies must be issued
earlier or later than that, which is what the refinement does. *Busy* is what the replay shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.plan import COMPUTE, COPY, Plan
from simulator.policies.problem import Problem
from simulator.policies.static.augmented import Augmented, Role
from simulator.trace import Trace, pick, tuples

_EVER = 2**62
SLOTS = 64
"""How many slots a step is cut into."""


class Slot(NamedTuple):
    """One slot of one link.

    Attributes
    ----------
    link, number
        Name of the link, and which slot.
    start_ns, end_ns
        Its part of the step [ns].
    wanted_ns, busy_ns
        Time of copies that just-in-time positions would put there, and that the replay did [ns].
    servers
        How many copies the link serves at a time.
    """

    link: str
    number: int
    start_ns: int
    end_ns: int
    wanted_ns: int
    busy_ns: int
    servers: int

    @property
    def is_oversubscribed(self) -> bool:
        """Whether more is wanted than can be served."""
        return self.wanted_ns > (self.end_ns - self.start_ns) * self.servers


Copies = Iterable[tuple[tuple[int, int], int, int]]
"""Hop, start and end [ns] of copies."""


def ledger(problem: Problem, augmented: Augmented, plan: Plan, trace: Trace, slots: int = SLOTS) -> list[Slot]:
    """Count the occupancy of each link that copies use.

    Parameters
    ----------
    problem, augmented, plan
        What was planned.
    trace
        What happened.
    slots
        How many slots.
    """
    busy, length_ns = _replayed(problem, plan, trace)
    width_ns = -(-max(length_ns, problem.clock[-1], 1) // slots)
    tables = [_counted(copies, width_ns, slots) for copies in (_wanted(problem, augmented), busy)]
    found = []
    for hop, name in problem.link_names.items():
        if any(hop in table for table in tables):
            rows = [table.get(hop, [0] * slots) for table in tables]
            for number, (wanted, real) in enumerate(zip(*rows, strict=True)):
                start = number * width_ns
                found.append(Slot(name, number, start, start + width_ns, wanted, real, problem.links[hop].servers))
    return found


def _wanted(problem: Problem, augmented: Augmented) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Copies out right after the last use, and copies in that end at the next."""
    starts, durations = problem.clock, problem.durations_ns
    for one in augmented.cache_ops:
        if one.role is Role.DETACH:
            continue
        after = augmented.gaps[one.trip].after
        moment = starts[after] + durations[after] if after >= 0 else 0
        if one.role is Role.PREFETCH:
            moment = starts[one.before] - problem.copy_ns(one.tensor, one.source, one.target)
        for hop in pairwise(problem.path(one.source, one.target)):
            begin, moment = moment, moment + problem.copy_ns(one.tensor, *hop)
            yield hop, begin, moment


def _replayed(problem: Problem, plan: Plan, trace: Trace) -> tuple[Copies, int]:
    """Copies of the last step, and how long it is [ns]."""
    spans, steps = trace.spans.whole(), plan.fixed
    first = len(steps) * (plan.repeats - 1) if steps is not None else 0
    last = spans["issue"] >= first
    origin = int(spans["end_ns"][~last & (spans["kind"] == COMPUTE)].max(initial=0))
    mine = tuples(pick(spans, last & (spans["kind"] == COPY)), "track", "start_ns", "end_ns")
    hops = [problem.hops[name] for name in problem.hardware.link_names]
    copies = [(hops[track], start - origin, end - origin) for track, start, end in mine]
    return copies, int(spans["end_ns"][last].max(initial=origin)) - origin


def _counted(copies: Copies, width_ns: int, slots: int) -> dict[tuple[int, int], list[int]]:
    """Sum the copies by hop and slot; what lies before or after the step counts in its first or last slot."""
    borders = np.arange(slots + 1) * width_ns
    borders[[0, -1]] = -_EVER, _EVER
    found: dict[tuple[int, int], NDArray[np.int64]] = {}
    for hop, start, end in copies:
        found[hop] = found.get(hop, 0) + np.diff(borders.clip(start, end))
    return {hop: row.tolist() for hop, row in found.items()}
