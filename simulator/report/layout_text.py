"""A job as text: what each rank holds, how weights are cut, and what ranks communicate in a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from simulator.graph import PAIRED, Group, Job, TensorKind
from simulator.layout import Weight
from simulator.lifetime import Lifetimes, live_bytes
from simulator.report.rows import grouped
from simulator.report.tables import Column, Heads, aligned, table
from simulator.units import counted
from simulator.workload import Workload

_MOST_MEMBERS = 3
_MOST_RANKS = 8


class Holding(NamedTuple):
    """What each rank of a program holds [B].

    Attributes
    ----------
    program, ranks, ops
        The program, who runs it, and its ops in a step.
    kept_bytes
        Kind of tensor -> bytes that are there all step, before ZeRO's shards are gathered.
    peak_bytes
        Kind (or ``workspace``) -> bytes at the op with the most, if nothing moves.
    peak_op
        Name of that op.
    """

    program: str
    ranks: tuple[int, ...]
    ops: int
    kept_bytes: Counter[str]
    peak_bytes: Counter[str]
    peak_op: str


class Exchange(NamedTuple):
    """Collectives of a program that are alike, in one step."""

    label: str
    phase: str
    kind: str
    group: Group
    times: int
    size_bytes: int


def told(job: Job, workload: Workload, weights: Mapping[str, Weight]) -> str:
    """Tell a job in tables.

    Parameters
    ----------
    job
        What all ranks run.
    workload
        Which it was built from.
    weights
        How weights are cut; may be empty.
    """
    holdings, met = [holding(job, number) for number in range(len(job.graphs))], list(exchanges(job))
    about: Heads[Holding] = {"ranks": ("text", lambda one: numbers(one.ranks)), "ops": ("count", attrgetter("ops"))}
    parts = {
        "held all step, by each rank": _held(holdings, about, "kept_bytes", {}),
        "live at most, if nothing moves": _held(holdings, {}, "peak_bytes", {"at op": ("text", attrgetter("peak_op"))}),
        "how weights are cut, before ZeRO": _cuts(weights, workload) if weights else [],
        "communicated in a step, by each rank": table(met, _EXCHANGED) if met else [],
    }
    tables = [f"{head}\n{aligned(columns, 2)}" for head, columns in parts.items() if columns]
    head = f"{job.name}: {counted(job.ranks, 'rank')}{_parts(workload)}"
    return "\n\n".join([head, *tables, *([] if met else ["nothing is communicated"])])


def data(job: Job, weights: Mapping[str, Weight], element_bytes: int) -> dict[str, Any]:
    """The same as plain data: sizes in bytes, all ranks by number, all members.

    Parameters
    ----------
    job, weights
        As for `told`.
    element_bytes
        Size of an element of a weight [B].
    """
    cut = [
        {
            "weight": w.name,
            "shape": w.shape,
            "device_matrix": w.layout.mesh.device_matrix,
            "axis_names": w.layout.mesh.axis_names,
            "tensor_map": w.layout.tensor_map,
            "rank_bytes": w.parameters * element_bytes,
            "held_by_ranks": _holders(w),
        }
        for w in weights.values()
    ]
    return {
        "schema": "hosim-layout/1",
        "name": job.name,
        "ranks": job.ranks,
        "programs": [holding(job, number)._asdict() for number in range(len(job.graphs))],
        "weights": cut,
        "groups": {group.name: group.members for graph in job.graphs for group in graph.groups},
        "collectives": [{**one._asdict(), "group": one.group.name} for one in exchanges(job)],
    }


def holding(job: Job, number: int) -> Holding:
    """What each rank of a graph holds."""
    graph = job.graphs[number]
    kept = Counter[str]()
    for tensor in graph.tensors:
        if tensor.persistent:
            kept[str(tensor.kind)] += tensor.size_bytes
    found = Lifetimes(graph)
    op = int(live_bytes(graph, found).argmax())
    peak = Counter[str]({str(TensorKind.WORKSPACE): graph.ops[op].workspace_bytes})
    for t, tensor in enumerate(graph.tensors):
        if 0 <= found.born[t] <= op <= found.dies[t]:
            peak[str(tensor.kind)] += tensor.size_bytes
    return Holding(job.labels[number], job.ranks_of(number), len(graph.ops), kept, peak, graph.ops[op].name)


def exchanges(job: Job) -> Iterator[Exchange]:
    """What the ranks of each graph do together in a step, in the order of its first time."""
    for number, graph in enumerate(job.graphs):
        ranks, groups = set(job.ranks_of(number)), {group.name: group for group in graph.groups}
        met = ((op.phase, what) for op in graph.ops if (what := op.collective) is not None)
        found = Counter((phase, str(what.kind), what.group, what.size_bytes) for phase, what in met)
        for (phase, kind, name, size_bytes), times in found.items():
            takes_part = {"send": slice(0, 1), "recv": slice(-1, None)}.get(kind, slice(None))
            mine = tuple(members for members in groups[name].members if not ranks.isdisjoint(members[takes_part]))
            yield Exchange(job.labels[number], phase, kind, Group(name, mine), times, size_bytes)


def _parts(workload: Workload) -> str:
    """How ranks share the model: its axes, of which neighbours differ in the last one first, and ZeRO's stage."""
    parallel, pools = workload.parallel, workload.pools
    axes = [f"{name} {getattr(parallel, name)}" for name in parallel.axis_names if name != "expert"]
    axes = axes if parallel.ranks == "all" else []
    text = f" = {' x '.join(axes)}" if axes else ""
    text += f" = prefill {pools.prefill} + decode {pools.decode}, each with the whole model" if pools else ""
    return text + (f"; ZeRO {parallel.zero_stage}" if parallel.zero_stage else "")


def _held(holdings: Sequence[Holding], before: Heads[Holding], column: str, behind: Heads[Holding]) -> list[Column]:
    """What each program holds: a column for each kind of tensor that there is, and one for all, between others."""
    read: Callable[[Holding], Counter[str]] = attrgetter(column)

    def of(kind: str) -> Callable[[Holding], int]:
        return lambda one: read(one)[kind]

    kinds: Heads[Holding] = {kind: ("B", of(kind)) for kind in map(str, TensorKind) if any(map(of(kind), holdings))}
    program: Heads[Holding] = {"program": ("text", attrgetter("program"))}
    in_all: Heads[Holding] = {"in all": ("B", lambda one: read(one).total())}
    return table(holdings, program | before | kinds | in_all | behind)


def _cuts(weights: Mapping[str, Weight], workload: Workload) -> list[Column]:
    """Weights that differ in their numbers alone share a line."""

    def alike(weight: Weight) -> tuple[str, str, str]:
        cut = ", ".join("+".join(axes) or "-" for axes in weight.layout.tensor_map)
        return re.sub(r"\d+", "*", weight.name), " x ".join(map(str, weight.shape)), f"[{cut}]"

    heads: Heads[list[Weight]] = {
        "weights": ("text", lambda own: alike(own[0])[0]),
        "how many": ("count", len),
        "shape": ("text", lambda own: alike(own[0])[1]),
        "cut along": ("text", lambda own: alike(own[0])[2]),
        "each rank": ("B", lambda own: own[0].parameters * workload.dtypes.element_bytes),
        "ranks that hold it": ("count", lambda own: _holders(own[0])),
    }
    return table(grouped(weights.values(), alike).values(), heads)


def _holders(weight: Weight) -> int:
    """How many ranks hold the same: a block of the model is in one stage."""
    return weight.layout.mesh.size([axis for axis in weight.layout.copies if axis != "pipeline"])


def _members(one: Exchange) -> str:
    members, arrow = one.group.members, one.kind in PAIRED
    shown = [f"{a} > {b}" if arrow else numbers((a, *rest, b)) for a, *rest, b in members[:_MOST_MEMBERS]]
    return " | ".join(shown) + (f" | ... ({len(members)})" if len(members) > _MOST_MEMBERS else "")


_EXCHANGED: Heads[Exchange] = {
    "program": ("text", attrgetter("label")),
    "phase": ("text", attrgetter("phase")),
    "collective": ("text", attrgetter("kind")),
    "group": ("text", attrgetter("group.name")),
    "times": ("count", attrgetter("times")),
    "size": ("B", attrgetter("size_bytes")),
    "in all": ("B", lambda one: one.times * one.size_bytes),
    "who meets": ("text", _members),
}


def numbers(ranks: Sequence[int]) -> str:
    """Write numbers of ranks: ``0-3`` for a run, ``0,2,4``, or the first ones and how many there are."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= _MOST_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"
