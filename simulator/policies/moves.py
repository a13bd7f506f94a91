"""Moves at fixed points of a step, and the one way in which a choice of them becomes a plan.

A policy with a fixed rule looks at the gaps between uses and says what leaves and what comes back where; it keeps no
account of places, which is the `Writer`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from simulator.lifetime import NEVER
from simulator.plan import Plan
from simulator.policies.problem import Problem
from simulator.policies.writer import Writer


class Leave(NamedTuple):
    """A tensor gives up its room in the compute tier.

    Attributes
    ----------
    tensor
        What leaves.
    after
        The op after which its room is freed.
    stored
        The op after which it is copied out ahead of that; `NEVER`: it is copied out when its room is freed.
    """

    tensor: int
    after: int
    stored: int = NEVER


class Come(NamedTuple):
    """A tensor is copied into the compute tier before an op."""

    tensor: int
    before: int


@dataclass(frozen=True, slots=True)
class Style:
    """How copies are issued.

    Attributes
    ----------
    waits
        The host waits for a copy out before it frees the room.
    forgets
        What has come back is not kept in the other tier, unless that is its home.
    synchronous
        The host issues a copy when the ops before it have ended, and waits for it.
    joins
        Ops before which the host waits for all that has left.
    """

    waits: bool = False
    forgets: bool = False
    synchronous: bool = False
    joins: Collection[int] = ()


def write(
    problem: Problem,
    policy: str,
    leaves: Iterable[Leave],
    comes: Iterable[Come],
    style: Style | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Write a plan of moves; those at the same op are issued in the order in which they are given.

    Raises
    ------
    CapacityError
        If a tier holds more than its capacity, in issue order.
    """
    writer, style = Writer(problem, policy), style or Style()
    due, stored, freed = (defaultdict[int, list[int]](list) for _ in range(3))
    for tensor, before in comes:
        due[before].append(tensor)
    for tensor, after, ahead in leaves:
        freed[after].append(tensor)
        stored[ahead].append(tensor)
    left: list[int] = []
    for op in range(len(problem.graph.ops)):
        if op in style.joins:
            for tensor in left:
                writer.sync(tensor)
            left.clear()
        for tensor in due[op]:
            _copy(writer, writer.fetch, tensor, style)
            if style.forgets:
                writer.forget(tensor)
        writer.compute(op)
        for tensor in stored[op]:
            writer.back_up(tensor)
        for tensor in freed[op]:
            _copy(writer, writer.back_up, tensor, style)
            if style.waits:
                writer.sync(tensor)
            writer.evict(tensor)
            left.append(tensor)
    return writer.finish(notes)


def _copy(writer: Writer, copy: Callable[[int], None], tensor: int, style: Style) -> None:
    """Copy, between two waits of the host if copies are synchronous."""
    if style.synchronous:
        writer.drain()
    copy(tensor)
    if style.synchronous:
        writer.sync(tensor)
