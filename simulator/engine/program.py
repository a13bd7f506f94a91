"""Programs of ranks, compiled once into flat columns; and which ranks stand for others that run the same.

Ranks with the same program, with the choices of dynamic reads, form a *class*. A run may simulate the first rank
of each class alone only if nothing tells the others apart from it: they take no turns at what they share (bandwidth is
shared max-min; room of a shared tier is not, so it must suffice for all they may hold, or do hold), all nodes with
ranks of a class have the same mix of classes, and ranks of a class meet the same mix. A flow then counts on each shared
resource as often as there are ranks that it stands for, so that all rates and times are exactly those of a run of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from simulator.cost import is_contended
from simulator.draws import Draws
from simulator.errors import ConfigError
from simulator.graph import HOST, Graph, OpKind, Roles
from simulator.hardware import Hardware
from simulator.lifetime import duplicates
from simulator.plan import COMPUTE, COPY, Plan
from simulator.scenario import AllocatorKind
from simulator.trace import Trace, instances, pick, running

LONGEST_NS = 1 << 61
"""No run may take longer: 73 years. So no sum of two times is too large for 64 bits [ns]."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What a rank runs: a graph with its plan. Ranks that run the same share one.

    Attributes
    ----------
    starts_ns
        When the host begins to issue [ns].
    draws
        What its dynamic reads choose; if None, its ops read all candidates and take `durations_ns`.
    allocator
        How places of its compute tier get addresses.
    device
        The machine with the rates of its own device; None: they are those of all.
    """

    graph: Graph
    plan: Plan
    durations_ns: Sequence[int]
    starts_ns: int = 0
    draws: Draws | None = None
    allocator: AllocatorKind = "ideal"
    device: Hardware | None = None


class Own(NamedTuple):
    """What a rank has of its own, as `Program` has it."""

    durations_ns: Sequence[int]
    draws: Draws | None = None
    device: Hardware | None = None


def programs_of(graph: Graph, plan: Plan, of_ranks: Sequence[Own], allocator: AllocatorKind) -> list[Program]:
    """Return the programs of the ranks of a graph; ranks that begin at the same time and have the same share one.

    Parameters
    ----------
    graph, plan, allocator
        As for `Program`.
    of_ranks
        For each rank, in order, what it has of its own.
    """
    programs, all_ranks, starts_ns = dict[tuple[int, ...], Program](), list[Program](), plan.starts_ns
    for position, has in enumerate(of_ranks):
        start_ns = starts_ns[position % len(starts_ns)]
        key = start_ns, *map(id, has)
        if key not in programs:
            programs[key] = Program(graph, plan, has.durations_ns, start_ns, has.draws, allocator, has.device)
        all_ranks.append(programs[key])
    return all_ranks


class Columns:
    """A graph in columns by op id or tensor id, over which the engine loops.

    Attributes
    ----------
    of_op
        Per op: tensors that it reads, and writes, the tier that its device works in, and what it takes alone [ns]. A
        collective without members takes that, as if the others always came in time.
    workspace_bytes, is_collective, size_bytes
        Per op; and per tensor.
    streams, computes, is_contended
        How many compute streams the plan uses, and computes it runs; whether its kernels share the device.
    compute_tier, tiers
        Id of the tier that kernels of the accelerator work in; those of all devices.
    outputs
        Outputs of a step that are not persistent.
    device
        The machine with the rates of its device.
    in_place
        Tensors that ops may read in place.
    roles
        Its collectives, and with whom each rank meets there.
    """

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.device = program.device or hardware
        graph, fixed = program.graph, program.plan.fixed
        streams = {(op, node.stream) for op, node in enumerate(graph.ops)}  # those of the plan, if it is fixed
        if fixed is not None:
            streams = {(op, of) for kind, op, of in zip(fixed.kind, fixed.a, fixed.b, strict=True) if kind == COMPUTE}
        last_stream = max((stream for _, stream in streams), default=0)
        self.is_contended = is_contended(graph, streams, shares_memory=hardware.shares_memory)
        self.compute_tier, self.streams = hardware.compute_tier_id, 1 + last_stream
        self.computes = len(graph.ops) * graph.steps
        if fixed is None:
            self.streams = runtime_streams(graph)
        else:
            self.computes = fixed.kind.count(COMPUTE) * program.plan.repeats
        self.of_op = [
            (op.reads, op.writes, hardware.host_tier_id if op.device == HOST else self.compute_tier, duration_ns)
            for op, duration_ns in zip(graph.ops, program.durations_ns, strict=True)
        ]
        self.tiers = {self.compute_tier, *[tier for _, _, tier, _ in self.of_op]}
        self.workspace_bytes = [op.workspace_bytes for op in graph.ops]
        self.is_collective = [op.kind is OpKind.COLLECTIVE for op in graph.ops]
        self.size_bytes = [tensor.size_bytes for tensor in graph.tensors]
        self.roles = Roles(graph)
        self.in_place = graph.in_place
        self.outputs = frozenset(t for t in graph.outputs if not graph.tensors[t].persistent)


class Reveals:
    """Rule 15: from when on the reads of an op are known, by what was issued.

    Parameters
    ----------
    graph
        The ops.

    Attributes
    ----------
    step_of
        By op with dynamic reads, the step that its next issue belongs to.
    issues
        By op that reveals such reads, in their order: how often it was issued.
    """

    def __init__(self, graph: Graph) -> None:
        self._revealed_by = {op: reads.revealed_by for op, reads in graph.dynamic_reads.items()}
        self.step_of = dict.fromkeys(self._revealed_by, 0)
        self.issues = dict.fromkeys(sorted({*self._revealed_by.values()}), 0)

    def is_revealed(self, op: int) -> bool:
        """Return whether the next reads of an op are known: the op that reveals them was issued and has ended."""
        by = self._revealed_by[op]
        return self.issues[by] > self.step_of[op] and self._has_ended(by)

    def is_predictable(self, op: int) -> bool:
        """Return whether the next reads of an op can be guessed: the last reveal before theirs has ended."""
        order = [*self.issues]
        position = order.index(self._revealed_by[op])
        before, needed = order[position - 1], self.step_of[op] + (position > 0)
        return self.issues[before] >= needed > 0 and self._has_ended(before)

    def _has_ended(self, op: int) -> bool:
        """Return whether the last issue of an op has ended."""
        raise NotImplementedError


def runtime_streams(graph: Graph) -> int:
    """Return how many compute streams a runtime may use: those of the graph, and one of its own for each group."""
    return 1 + int(graph.columns.streams.max(initial=0)) + len(graph.groups)


def classes(programs: Sequence[Program]) -> tuple[int, ...]:
    """Return for each rank the first rank with the same program."""
    first: dict[Program, int] = {}
    return tuple(first.setdefault(program, rank) for rank, program in enumerate(programs))


def folding_obstacle(programs: Sequence[Program], hardware: Hardware, *, is_tried: bool = False) -> str:
    """Return why ranks with the same program may not stand for one another; empty if they may.

    Parameters
    ----------
    programs
        What each rank runs.
    hardware
        The machine.
    is_tried
        Whether the trace will tell (`has_room`) if shared tiers have room; only fixed plans ask nothing of it.
    """
    stands_in = classes(programs)
    if len(set(stands_in)) == len(stands_in):
        return ""
    is_tried &= all(program.plan.fixed is not None for program in programs)
    scarce = _shared_compute(hardware) if is_tried else _scarce_tiers(programs, hardware)
    checks = (scarce, _uneven_nodes(stands_in, hardware), _odd_meetings(programs, hardware))
    return next((reason for check in checks for reason in check), "")


def has_room(hardware: Hardware, trace: Trace) -> bool:
    """Tell whether shared tiers never kept a rank waiting, with all that simulated ranks stand for.

    They did not if there is room at each instant for all that is taken there, before anything is freed.
    """
    rows = trace.residencies.whole()
    for index, tier in enumerate(hardware.tiers.values()):
        if tier.scope == "device":
            continue
        of_tier = pick(rows, rows["tier"] == index)
        instance, counts = instances(hardware.topology.sharing[tier.scope], trace.stands_in)
        change = of_tier["delta_bytes"] * counts[of_tier["rank"]]
        order = np.lexsort((change < 0, of_tier["time_ns"]))
        held = running(instance[of_tier["rank"]][order], change[order])
        if held.max(initial=0) > tier.usable_bytes:
            return False
    return True


def simulated_for(programs: Sequence[Program], hardware: Hardware, fold: str) -> tuple[int, ...]:
    """Return for each rank the rank that is simulated in its place; `fold` as for `simulator.engine.run`."""
    if fold == "never" or len(programs) == 1:
        return tuple(range(len(programs)))
    reason = folding_obstacle(programs, hardware) or (fold == "always" and _drawn_apart(programs))
    if reason and fold == "always":
        must, do = "ranks stand for one another only if nothing tells them apart", "say auto, or never"
        raise ConfigError("fold", must, reason, do)
    return tuple(range(len(programs))) if reason else classes(programs)


def _drawn_apart(programs: Sequence[Program]) -> str:
    """Return which ranks differ only in what they draw: choices of dynamic reads, or delays; empty if none do."""
    first: dict[tuple[int, ...], int] = {}
    for rank, program in enumerate(programs):
        key = id(program.graph), id(program.plan), program.starts_ns, id(program.device)
        before = programs[other := first.setdefault(key, rank)]
        if before.draws is not program.draws or before.durations_ns is not program.durations_ns:
            drawn = "the lengths of its delays" if before.draws is program.draws else "the choices of its dynamic reads"
            return f"ranks {other} and {rank} run the same, but each draws {drawn}"
    return ""


def _scarce_tiers(programs: Sequence[Program], hardware: Hardware) -> Iterator[str]:
    """Name shared tiers that may run out of room, for which ranks would then take turns."""
    yield from _shared_compute(hardware)
    again = list(duplicates([(program.graph, program.plan.home) for program in programs], hardware))
    for index, (name, tier) in enumerate(hardware.tiers.items()):
        if tier.scope == "device":
            continue
        works_here = name == (hardware.host_compute.tier if hardware.host_compute else None)
        footprint = {of: _footprint_bytes(of, index, works_here=works_here) for of in dict.fromkeys(programs)}
        sharing, needs = hardware.topology.sharing[tier.scope], Counter[int]()
        for rank, program in enumerate(programs):
            needs[rank // sharing] += footprint[program]
        for stored in again:
            needs[stored.rank // sharing] -= stored.size_bytes if stored.tier == index else 0
        if max(needs.values()) > tier.usable_bytes:
            yield f"the shared tier {name!r} may run out of room, which ranks then get one after another"


def _shared_compute(hardware: Hardware) -> Iterator[str]:
    """Name the compute tier if ranks share it."""
    if hardware.tiers[hardware.compute_tier].scope != "device":
        yield f"the compute tier {hardware.compute_tier!r} is shared"


def _footprint_bytes(program: Program, tier: int, *, works_here: bool) -> int:
    """Return the most that a program can hold in a tier: all that is at home there, or copied or made there [B]."""
    tensors, plan = program.graph.tensors, program.plan
    ops = [program.graph.ops[op] for op in program.graph.on_host] if works_here else []
    spaces = sum(op.workspace_bytes for op in ops)
    if plan.fixed is None:
        return sum(tensor.size_bytes for tensor in tensors) + spaces
    held = {t for t, home in enumerate(plan.home) if home == tier}
    held.update(a for kind, a, _, target in plan.fixed.codes() if kind == COPY and target == tier)
    held.update(*(op.writes for op in ops))
    return sum(tensors[t].size_bytes for t in held) + spaces


def _uneven_nodes(stands_in: tuple[int, ...], hardware: Hardware) -> Iterator[str]:
    """Name two ranks of one class whose nodes have a different mix of classes."""
    on_node = hardware.topology.devices_per_node
    company = [Counter(stands_in[start : start + on_node]) for start in range(0, len(stands_in), on_node)]
    for rank, first in enumerate(stands_in):
        if company[rank // on_node] != company[first // on_node]:
            yield f"ranks {first} and {rank} run the same, but not beside the same on their nodes"
            return


def _odd_meetings(programs: Sequence[Program], hardware: Hardware) -> Iterator[str]:
    """Name two ranks of one class that meet a different mix of classes, or send to one another."""
    stands_in, on_node = classes(programs), hardware.topology.devices_per_node

    @cache
    def company(members: tuple[int, ...]) -> tuple[object, ...]:
        nodes = Counter(rank // on_node for rank in members)
        return sorted(nodes.values()), Counter(stands_in[rank] for rank in members)

    for graph in {id(program.graph): program.graph for program in programs}.values():
        ranks = [rank for rank, program in enumerate(programs) if program.graph is graph]
        for call, members in Roles(graph).members.items():
            for rank in ranks:
                first, peers = stands_in[rank], members.get(rank, ())
                if company(peers) != company(members.get(first, ())):
                    yield f"ranks {first} and {rank} run the same, but meet others in group {call.group!r}"
                    return
                if call.role and peers and stands_in[peers[0]] == stands_in[peers[1]]:
                    yield f"ranks {peers[0]} and {peers[1]} run the same, and one sends to the other"
                    return
