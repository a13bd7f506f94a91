"""What must be copied in each step, and over which links; see `step_time` for the proof, and `rings` for full tiers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.bounds.idle import Idle, reached
from simulator.bounds.order import Order
from simulator.bounds.rings import Ring
from simulator.cost import ceil_div, transfer_ns
from simulator.hardware import Hardware, Link
from simulator.plan import FREE, NOWHERE

NS_PER_S = 10**9


def time_ns(size_bytes: int, bandwidth_bytes_per_s: int | float) -> int:
    """Time that so many bytes need at a bandwidth at least [ns]."""
    if bandwidth_bytes_per_s in {0, math.inf}:
        return 0  # where no link leads, `infeasible` knows more
    return ceil_div(size_bytes * NS_PER_S, int(bandwidth_bytes_per_s))


@dataclass(frozen=True, slots=True)
class Beyond:
    """What has no room in a ring.

    Attributes
    ----------
    ring
        Which one.
    in_bytes, out_bytes
        What must enter it and leave it at least [B].
    """

    ring: Ring
    in_bytes: int
    out_bytes: int


@dataclass(frozen=True, slots=True)
class Forced:
    """What must be copied in each step.

    Attributes
    ----------
    edges
        Link name -> (source, target), as tier ids.
    moves
        ``(from, to, sizes)``: whole tensors that must get from one tier to another, of which one is the compute tier.
    beyond
        Bytes that the budget forces out of the compute tier, and in again; then the same of each further ring.
    rest_ns
        What the step takes beside all these copies at least [ns].
    """

    edges: dict[str, tuple[int, int]]
    moves: tuple[tuple[int, int, tuple[int, ...]], ...]
    beyond: tuple[Beyond, ...]
    rest_ns: int

    @property
    def into(self) -> tuple[str, ...]:
        """Links into the compute tier."""
        return self.beyond[0].ring.into

    @property
    def out_of(self) -> tuple[str, ...]:
        """Links out of the compute tier."""
        return self.beyond[0].ring.out_of

    def over(self, names: Iterable[str]) -> int:
        """Bytes that must pass these links."""
        rest = set(names)
        most = max(self._of_ring(one, rest) for one in self.beyond)
        together = 0
        for one in self.beyond:
            border = rest.intersection((*one.ring.into, *one.ring.out_of))
            together += self._of_ring(one, border)
            rest -= border
        return max(most, together)

    def _of_ring(self, one: Beyond, cut: set[str]) -> int:
        """Bytes that must pass these links, of what leaves a ring or enters it."""
        whole = sum(sum(sizes) for *ends, sizes in self._over(cut) if not one.ring.tiers.issuperset(ends))
        into, out_of = one.ring.into, one.ring.out_of
        back = one.in_bytes if into and cut.issuperset(into) else 0
        return whole + back + (one.out_bytes if out_of and cut.issuperset(out_of) else 0)

    def _over(self, cut: set[str]) -> list[tuple[int, int, tuple[int, ...]]]:
        if not cut:
            return []
        rest = [ends for name, ends in self.edges.items() if name not in cut]
        return [move for move in self.moves if move[1] not in reached(move[0], rest)]

    def bytes_ns(self, name: str, link: Link) -> int:
        """Time that the link needs for the bytes that must pass it [ns]."""
        return time_ns(self.over((name,)), link.bandwidth_bytes_per_s)

    def channels_ns(self, name: str, link: Link) -> int:
        """Time that the link's channels need for the whole tensors that must pass it [ns]."""
        return ceil_div(self._alone_ns(name, link), link.channels)

    def _alone_ns(self, name: str, link: Link) -> int:
        """Time of all these transfers one after another [ns]."""
        sizes = [size for _, _, sizes in self._over({name}) for size in sizes]
        alone = {size: transfer_ns(size, link) for size in set(sizes)}
        return sum(alone[size] for size in sizes)

    def queue_ns(self, links: Mapping[str, Link]) -> int:
        """Time that the channels of a queue need for what must pass its links [ns]."""
        busy = sum(max(self.bytes_ns(name, link), self._alone_ns(name, link)) for name, link in links.items())
        return ceil_div(busy, min(link.channels for link in links.values()))


def forced(order: Order, hardware: Hardware, homes: Sequence[int], idle: Idle, budget_bytes: int | float) -> Forced:
    """Find what must be copied in each step within a budget.

    Parameters
    ----------
    order, hardware, homes, idle, budget_bytes
        As for `combinatorial`.
    """
    number = {name: i for i, name in enumerate(hardware.tier_names)}
    rest_ns = _rest_ns(order, may_repeat=idle.may_repeat)
    beyond = tuple(
        Beyond(
            ring,
            _excess(idle.work + read_later, budget_bytes + ring.room_bytes),
            _excess(idle.work + made_here, budget_bytes + ring.room_bytes),
        )
        for ring, made_here, read_later in zip(idle.rings, idle.made_in, idle.read_in, strict=True)
    )
    return Forced(
        edges={name: (number[link.source], number[link.target]) for name, link in hardware.links.items()},
        moves=_moves(order, number[hardware.compute_tier], homes, idle) if rest_ns is not None else (),
        beyond=beyond,
        rest_ns=rest_ns or 0,
    )


def _moves(order: Order, here: int, homes: Sequence[int], idle: Idle) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Whole tensors that must get home, or from there to the compute tier."""
    before, found = order.before, idle.lifetimes
    graph = before.graph
    inward: dict[int, list[int]] = {}
    back: dict[int, list[int]] = {}
    for t in sorted(before.inputs - order.staying):
        size, home = graph.tensors[t].size_bytes, homes[t]
        if home in {NOWHERE, FREE, here} or not found.uses[t]:
            continue
        first = found.first_use[t]
        if found.is_read(t, first) and (graph.steps == 1 or before.leads_on(first)):
            inward.setdefault(home, []).append(size)
        if found.writes[t] and graph.tensors[t].persistent and graph.steps == 1:
            back.setdefault(home, []).append(size)
    return (
        *((home, here, tuple(sizes)) for home, sizes in inward.items()),
        *((here, home, tuple(sizes)) for home, sizes in back.items()),
    )


def _rest_ns(order: Order, *, may_repeat: bool) -> int | None:
    """What a step takes at least beside the copies that each step forces; None if they may have more than a step.

    They are issued after all of the step before, so that they start after the last op there has been come to.
    """
    before, steps = order.before, order.before.graph.steps
    if steps == 1 or not before.graph.meets:
        return 0
    final = len(before.streams) - 1
    if may_repeat or before.last < 0 or final == before.last or before.ended[final] != before.last:
        return None if before.graph.ops[final].collective else 0
    return order.last_ns


def _excess(demand: NDArray[np.int64], room_bytes: int | float) -> int:
    largest = int(demand.max())
    return int(largest - room_bytes) if largest > room_bytes else 0
