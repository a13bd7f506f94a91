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
from simulator.policies.static.step_model import Timeline
from simulator.trace import Trace

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


def ledger(
    problem: Problem, augmented: Augmented, timeline: Timeline, plan: Plan, trace: Trace, slots: int = SLOTS
) -> list[Slot]:
    """Count the occupancy of each link that copies use.

    Parameters
    ----------
    problem, augmented, plan
        What was planned.
    timeline
        Starts of the ops by which positions were chosen.
    trace
        What happened.
    slots
        How many slots.
    """
    busy, length_ns = _replayed(problem, plan, trace)
    scale_ns = max(length_ns, timeline.step_ns, 1)
    width_ns = -(-scale_ns // slots)
    wanted = _counted(_wanted(problem, augmented, timeline), width_ns, slots)
    real = _counted(busy, width_ns, slots)
    names = {id(link): name for name, link in problem.hardware.links.items()}
    found = []
    for hop, link in problem.links.items():
        if hop not in wanted and hop not in real:
            continue
        one, other = (table.get(hop, [0] * slots) for table in (wanted, real))
        for number in range(slots):
            start = number * width_ns
            row = (names[id(link)], number, start, start + width_ns, one[number], other[number], problem.servers(hop))
            found.append(Slot(*row))
    return found


def _wanted(problem: Problem, augmented: Augmented, timeline: Timeline) -> Iterator[tuple[tuple[int, int], int, int]]:
    starts, durations = timeline.start_ns, problem.durations_ns
    for one in augmented.cache_ops:
        if one.role is Role.DETACH:
            continue
        hops = list(pairwise(problem.path(one.source, one.target)))
        if one.role is Role.STORE:
            gap = augmented.gaps[one.trip]
            moment = starts[gap.after] + durations[gap.after] if gap.after >= 0 else 0
            for hop in hops:
                took = problem.copy_ns(one.tensor, *hop)
                yield hop, moment, moment + took
                moment += took
        else:
            moment = starts[one.before]
            for hop in reversed(hops):
                took = problem.copy_ns(one.tensor, *hop)
                yield hop, moment - took, moment
                moment -= took


def _replayed(problem: Problem, plan: Plan, trace: Trace) -> tuple[list[tuple[tuple[int, int], int, int]], int]:
    """Copies of the last step, and how long it is [ns]."""
    spans, steps = trace.spans.whole(), plan.fixed
    first = len(steps) * (plan.repeats - 1) if steps is not None else 0
    last = spans["issue"] >= first
    before = spans["end_ns"][~last & (spans["kind"] == COMPUTE)]
    origin = int(before.max(initial=0))
    mine = last & (spans["kind"] == COPY)
    names, hops = problem.hardware.link_names, {}
    tiers = {name: number for number, name in enumerate(problem.tiers)}
    for number, name in enumerate(names):
        link = problem.hardware.links[name]
        hops[number] = (tiers[link.source], tiers[link.target])
    columns = (spans[key][mine].tolist() for key in ("track", "start_ns", "end_ns"))
    copies = [(hops[track], start - origin, end - origin) for track, start, end in zip(*columns, strict=True)]
    return copies, int(spans["end_ns"][last].max(initial=origin)) - origin


def _counted(copies: Copies, width_ns: int, slots: int) -> dict[tuple[int, int], list[int]]:
    """Sum the copies by hop and slot; what lies before or after the step counts in its first or last slot."""
    found: dict[tuple[int, int], NDArray[np.int64]] = {}
    for hop, start, end in copies:
        row = found.setdefault(hop, np.zeros(slots, np.int64))
        low, high = (min(max(moment // width_ns, 0), slots - 1) for moment in (start, end))
        if low == high:
            row[low] += end - start
            continue
        row[low] += (low + 1) * width_ns - start
        row[low + 1 : high] += width_ns
        row[high] += end - high * width_ns
    return {hop: row.tolist() for hop, row in found.items()}
