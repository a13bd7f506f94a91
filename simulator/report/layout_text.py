"""A job as text: what each rank holds, how weights are cut, and what ranks communicate in a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.graph import PAIRED, Group, Job, TensorKind
from simulator.layout import Weight
from simulator.lifetime import Lifetimes, live_bytes
from simulator.report.rows import grouped
from simulator.report.text import Column, aligned
from simulator.units import counted, human
from simulator.workload import Workload

_MOST_MEMBERS = 3
_MOST_RANKS = 8
_ZERO = {
    1: "optimizer state is sharded over replicas (ZeRO 1)",
    2: "optimizer state and gradients are sharded over replicas (ZeRO 2)",
    3: "optimizer state, gradients and weights are sharded over replicas (ZeRO 3)",
}


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
    holdings = [holding(job, number) for number in range(len(job.graphs))]
    met = list(exchanges(job))
    parts = {
        "held all step, by each rank": _kept(holdings),
        "live at most, if nothing moves": _peak(holdings),
        "how weights are cut, before ZeRO": _cuts(weights, workload.dtypes.element_bytes) if weights else [],
        "communicated in a step, by each rank": _exchanges(met) if met else [],
    }
    found = [f"{head}\n{aligned([columns], 2)}" for head, columns in parts.items() if columns]
    return "\n\n".join([_head(job, workload), *found, *([] if met else ["nothing is communicated"])])


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
            mine = tuple(members for members in groups[name].members if _takes_part(members, kind, ranks))
            yield Exchange(job.labels[number], phase, kind, Group(name, mine), times, size_bytes)


def _takes_part(members: tuple[int, ...], kind: str, ranks: set[int]) -> bool:
    if kind in PAIRED:
        return (members[0] if kind == "send" else members[-1]) in ranks
    return not ranks.isdisjoint(members)


def _head(job: Job, workload: Workload) -> str:
    lines, parallel, pools = [f"{job.name}: {counted(job.ranks, 'rank')}"], workload.parallel, workload.pools
    if pools is not None:
        answers = counted(pools.new_tokens, "token")
        lines[0] += f" = prefill {pools.prefill} + decode {pools.decode}, each with the whole model"
        lines[0] += f"; {answers} an answer"
    if parallel.ranks == "all":
        axes = [name for name in parallel.axis_names if name != "expert"]
        lines[0] += " = " + " x ".join(f"{name} {getattr(parallel, name)}" for name in axes)
        lines[0] += f"; neighbours along {', then '.join(reversed(axes))}"
    details = []
    if parallel.expert > 1:
        details.append(f"{parallel.expert} replicas in a row share the experts")
    if parallel.sequence:
        details.append("tokens are cut along tensor between the linears")
    if parallel.zero_stage:
        details.append(_ZERO[parallel.zero_stage])
    if parallel.micro_batches > 1:
        details.append(f"{parallel.micro_batches} micro-batches a step, {parallel.schedule}")
    return "\n".join([*lines, *details])


def _kept(found: Sequence[Holding]) -> list[Column]:
    return [
        Column.texts("program", (h.program for h in found)),
        Column.texts("ranks", (numbers(h.ranks) for h in found)),
        Column("ops", tuple(f"{h.ops:,}" for h in found)),
        *_kinds([h.kept_bytes for h in found]),
    ]


def _peak(found: Sequence[Holding]) -> list[Column]:
    program, op = Column.texts("program", (h.program for h in found)), Column.texts("at op", (h.peak_op for h in found))
    return [program, *_kinds([h.peak_bytes for h in found]), op]


def _kinds(found: Sequence[Counter[str]]) -> list[Column]:
    kinds = [str(kind) for kind in TensorKind if any(one[str(kind)] for one in found)]
    columns = [Column(kind, tuple(human(one[kind], "B") for one in found)) for kind in kinds]
    return [*columns, Column("in all", tuple(human(one.total(), "B") for one in found))]


def _cuts(weights: Mapping[str, Weight], element_bytes: int) -> list[Column]:
    def alike(weight: Weight) -> tuple[str, str, str]:
        cut = ", ".join("+".join(axes) or "-" for axes in weight.layout.tensor_map)
        return re.sub(r"\d+", "*", weight.name), " x ".join(map(str, weight.shape)), f"[{cut}]"

    groups = grouped(weights.values(), alike)
    names, shapes, cuts = zip(*groups, strict=True)
    firsts = [group[0] for group in groups.values()]
    return [
        Column.texts("weights", names),
        Column("how many", tuple(str(len(group)) for group in groups.values())),
        Column("shape", shapes),
        Column.texts("cut along", cuts),
        Column("each rank", tuple(human(w.parameters * element_bytes, "B") for w in firsts)),
        Column("held by", tuple(counted(_holders(w), "rank") for w in firsts)),
    ]


def _holders(weight: Weight) -> int:
    """How many ranks hold the same: a block of the model is in one stage."""
    return weight.layout.mesh.size([axis for axis in weight.layout.copies if axis != "pipeline"])


def _exchanges(found: Sequence[Exchange]) -> list[Column]:
    return [
        Column.texts("program", (one.label for one in found)),
        Column.texts("phase", (one.phase for one in found)),
        Column.texts("collective", (one.kind for one in found)),
        Column.texts("group", (one.group.name for one in found)),
        Column("times", tuple(f"{one.times:,}" for one in found)),
        Column("size", tuple(human(one.size_bytes, "B") for one in found)),
        Column("in all", tuple(human(one.times * one.size_bytes, "B") for one in found)),
        Column.texts("who meets", (_members(one) for one in found)),
    ]


def _members(one: Exchange) -> str:
    members, arrow = one.group.members, one.kind in PAIRED
    shown = [f"{a} > {b}" if arrow else numbers((a, *rest, b)) for a, *rest, b in members[:_MOST_MEMBERS]]
    return " | ".join(shown) + (f" | ... ({len(members)})" if len(members) > _MOST_MEMBERS else "")


def numbers(ranks: Sequence[int]) -> str:
    """Write numbers of ranks: ``0-3`` for a run, ``0,2,4``, or the first ones and how many there are."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= _MOST_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"
