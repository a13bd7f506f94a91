"""Collectives (rule 14): who meets whom, and what flows.

The premise is the table of decision 0004: with n members and S bytes an algorithm has so many hops, and sends so many
bytes through each member's port. Everything else (which flows, when, at which rate) is found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

from oracle.flows import ONE, Flow, Wires, work
from oracle.order import Action
from simulator.graph import Collective, Graph
from simulator.hardware import Hardware

Part = tuple[str, int, int]
"""Fabric, hops, bytes through each port."""

Stage = list[Part]
"""Parts whose bytes flow side by side."""


def depth(members: int) -> int:
    """Levels of a binary tree with so many leaves."""
    return next(level for level in range(members) if 2**level >= members)


HOPS: dict[tuple[str, str], Callable[[int], int]] = {
    ("all_reduce", "ring"): lambda n: 2 * (n - 1),
    ("all_reduce", "tree"): lambda n: 2 * depth(n),
    ("all_reduce", "direct"): lambda n: 2,
    **{(kind, "ring"): lambda n: n - 1 for kind in ("all_gather", "reduce_scatter", "all_to_all", "broadcast")},
    **{(kind, "direct"): lambda n: 1 for kind in ("all_gather", "reduce_scatter", "all_to_all", "send", "recv")},
    ("broadcast", "tree"): depth,
}
"""In the order in which the first of several equally fast ones is taken: ring, tree, direct."""


def share(kind: str, algorithm: str, n: int) -> Fraction:
    """The part of the size that goes through each port."""
    if kind == "all_reduce":
        return Fraction(2) if algorithm == "tree" else Fraction(2 * (n - 1), n)
    return Fraction(1) if kind in {"broadcast", "send", "recv"} else Fraction(n - 1, n)


class Forms:
    """The stages of collectives on a machine."""

    def __init__(self, hardware: Hardware, wires: Wires) -> None:
        self.hardware, self.wires = hardware, wires

    def stages(self, collective: Collective, members: Sequence[int]) -> list[Stage]:
        """What a collective sends, stage after stage: of the algorithm that is asked for, or the fastest alone."""
        on_node = self.hardware.topology.devices_per_node
        counts = Counter(rank // on_node for rank in members)
        if len(members) == 1:
            return []
        kind, size, asked = str(collective.kind), collective.size_bytes, collective.algorithm
        fabric = self._fabric(is_inside=len(counts) == 1)
        names = self._library(kind, fabric) if asked == "auto" else [asked]
        forms = [[[self._part(kind, name, len(members), size, fabric)]] for name in names if name != "hierarchical"]
        if asked in {"auto", "hierarchical"} and self._has_levels(kind, counts):
            forms.append(self._levels(kind, size, next(iter(counts.values())), len(counts)))
        return min(forms, key=self._alone_ns)

    def _fabric(self, *, is_inside: bool) -> str:
        """The narrowest scope that joins them, and of several fabrics the first."""
        fabrics = self.hardware.fabrics.items()
        of_scope = {scope: [name for name, f in fabrics if f.scope == scope] for scope in ("node", "supernode")}
        return [*(of_scope["node"] if is_inside else ()), *of_scope["supernode"]][0]

    def _library(self, kind: str, fabric: str) -> list[str]:
        limited = {str(name): names for name, names in self.hardware.fabrics[fabric].algorithms.items()}
        return [name for of, name in HOPS if of == kind and name in limited.get(kind, ("ring", "tree", "direct"))]

    @staticmethod
    def _part(kind: str, algorithm: str, n: int, size: int, fabric: str) -> Part:
        sent = size * share(kind, algorithm, n)
        return fabric, HOPS[kind, algorithm](n), -(-sent.numerator // sent.denominator)

    def _has_levels(self, kind: str, counts: Counter[int]) -> bool:
        has_inner = any(fabric.scope == "node" for fabric in self.hardware.fabrics.values())
        is_even = len(set(counts.values())) == 1 and next(iter(counts.values())) > 1
        return has_inner and is_even and len(counts) > 1 and kind not in {"send", "recv"}

    def _levels(self, kind: str, size: int, per_node: int, nodes: int) -> list[Stage]:
        """In the node and across nodes, by the fastest choice for each; in chunks, where the outer fabric has some."""
        inner, outer = self._fabric(is_inside=True), self._fabric(is_inside=False)
        inside, across = (inner, per_node), (outer, nodes)
        levels = {
            "all_reduce": [(inside, "reduce_scatter", 1), (across, "all_reduce", per_node), (inside, "all_gather", 1)],
            "all_gather": [(across, "all_gather", per_node), (inside, "all_gather", 1)],
            "reduce_scatter": [(inside, "reduce_scatter", 1), (across, "reduce_scatter", per_node)],
            "all_to_all": [(inside, "all_to_all", 1), (across, "all_to_all", 1)],
            "broadcast": [(across, "broadcast", 1), (inside, "broadcast", 1)],
        }[kind]
        chunk = self.hardware.fabrics[outer].chunk_bytes
        first = size if chunk is None else min(size, chunk)
        choices = product(*(self._library(of, fabric) for (fabric, _), of, _ in levels))
        found = []
        for names in choices:
            every = [(of, name, n, parts, fabric) for ((fabric, n), of, parts), name in zip(levels, names, strict=True)]
            begin = [self._part(of, name, n, -(-first // parts), fabric) for of, name, n, parts, fabric in every]
            whole = [self._part(of, name, n, -(-size // parts), fabric) for of, name, n, parts, fabric in every]
            rest = Counter[str]()
            for (fabric, _, early), (_, _, all_) in zip(begin, whole, strict=True):
                rest[fabric] += all_ - early
            left = [(fabric, 0, size) for fabric, size in rest.items() if size]
            found.append([*([part] for part in begin), *([left] if left else [])])
        return min(found, key=self._alone_ns)

    def _alone_ns(self, stages: list[Stage]) -> int:
        return sum(max(self._part_ns(part) for part in stage) for stage in stages)

    def _part_ns(self, part: Part) -> int:
        fabric, hops, size = part
        needed = work(size, self.wires.port(fabric))
        return hops * self.hardware.fabrics[fabric].latency_ns + -(-needed // self.cap(fabric))

    def cap(self, fabric: str) -> int:
        """The share of a port that collectives reach, in 2^-32."""
        return max(1, int(self.hardware.fabrics[fabric].achieved_bandwidth_fraction * ONE))


class Meeting:
    """One run of a collective by its members."""

    def __init__(self, members: tuple[int, ...], forms: Forms, collective: Collective) -> None:
        self.members, self.forms, self.is_message = members, forms, str(collective.kind) in {"send", "recv"}
        self.arrived: dict[int, Action] = {}
        self.stages = forms.stages(collective, members)
        self.stage: Stage = []
        self.begins_ns, self.flowing, self.is_over = -1, 0, False

    @property
    def peer(self) -> int:
        """The lowest rank that has not arrived; -1 once all have."""
        return min((rank for rank in self.members if rank not in self.arrived), default=-1)

    def begin_stage(self, now: int) -> list[Flow]:
        """Begin the next stage with its hops, and then the bytes of all its parts; return what flows at once."""
        self.is_over, self.begins_ns = not self.stages, -1
        if self.is_over:
            return []
        self.stage = self.stages.pop(0)
        fabric, hops, _ = self.stage[0]
        self.begins_ns = now + hops * self.forms.hardware.fabrics[fabric].latency_ns
        return self.begin_flows(now) if self.begins_ns == now else []

    def begin_flows(self, now: int) -> list[Flow]:
        """One flow for each member, or for the sender of a message, and each part."""
        wires, flows, self.begins_ns = self.forms.wires, [], -1
        for fabric, _, size in self.stage:
            unit, cap = wires.port(fabric), self.forms.cap(fabric)
            for rank in self.members[:1] if self.is_message else self.members:
                uses = wires.of_phase(fabric, rank, self.members[-1] if self.is_message else rank)
                flows.append(Flow(self._end_flow, unit, cap, work(size, unit), now, uses))
        self.flowing = len(flows)
        return flows

    def _end_flow(self) -> None:
        self.flowing -= 1


def members_of(graph: Graph, op: int, rank: int) -> tuple[int, ...]:
    """With whom a rank meets at an op: a sender is the first of a pair, a receiver the second."""
    collective = graph.ops[op].collective
    assert collective is not None
    group = next(group for group in graph.groups if group.name == collective.group)
    place = {"send": 0, "recv": 1}.get(str(collective.kind))
    return next(m for m in group.members if (rank in m if place is None else m[place] == rank))
