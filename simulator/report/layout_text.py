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
from simulator.report.tables import aligned, figures
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
    holdings = [holding(job, number) for number in range(len(job.graphs))]
    kept = [
        {"program": one.program, "ranks": numbers(one.ranks), "ops": one.ops, **_sizes(one.kept_bytes)}
        for one in holdings
    ]
    peaks = [{"program": one.program, **_sizes(one.peak_bytes), "at_op": one.peak_op} for one in holdings]
    parts = {
        "held all step, by each rank": kept,
        "live at most, if nothing moves": peaks,
        "how weights are cut, before ZeRO": _cuts(weights, workload),
        "communicated in a step, by each rank": [_exchanged(one) for one in exchanges(job)],
    }
    tables = [f"{head}\n{aligned(figures(rows, _used(rows)), 2)}" for head, rows in parts.items() if rows]
    tables += [] if parts["communicated in a step, by each rank"] else ["nothing is communicated"]
    return "\n\n".join([f"{job.name}: {counted(job.ranks, 'rank')}{_parts(workload)}", *tables])


def _sizes(kinds: Counter[str]) -> dict[str, int]:
    """Bytes of each kind of tensor, and of all."""
    return {**{f"{kind}_bytes": kinds[kind] for kind in map(str, TensorKind)}, "in_all_bytes": kinds.total()}


def _used(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns of rows, but sizes that are 0 in all of them."""
    return [column for column in rows[0] if not column.endswith("_bytes") or any(row[column] for row in rows)]


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


def _cuts(weights: Mapping[str, Weight], workload: Workload) -> list[dict[str, Any]]:
    """How weights are cut, a line for those that differ in their numbers alone."""

    def alike(weight: Weight) -> tuple[str, str, str]:
        cut = ", ".join("+".join(axes) or "-" for axes in weight.layout.tensor_map)
        return re.sub(r"\d+", "*", weight.name), " x ".join(map(str, weight.shape)), f"[{cut}]"

    rows = []
    for (name, shape, cut), own in grouped(weights.values(), alike).items():
        row: dict[str, Any] = {"weights": name, "how_many": len(own), "shape": shape, "cut_along": cut}
        row["each_rank_bytes"] = own[0].parameters * workload.dtypes.element_bytes
        rows.append(row | {"ranks_that_hold_it": _holders(own[0])})
    return rows


def _holders(weight: Weight) -> int:
    """How many ranks hold the same: a block of the model is in one stage."""
    mesh, cut = weight.layout.mesh, (*weight.layout.cut, "pipeline")
    return mesh.size([axis for axis in mesh.axis_names if axis not in cut])


def _exchanged(one: Exchange) -> dict[str, Any]:
    """A line of the table of what is communicated."""
    members, arrow = one.group.members, one.kind in PAIRED
    shown = [f"{a} > {b}" if arrow else numbers((a, *rest, b)) for a, *rest, b in members[:_MOST_MEMBERS]]
    meets = " | ".join(shown) + (f" | ... ({len(members)})" if len(members) > _MOST_MEMBERS else "")
    about = {"program": one.label, "phase": one.phase, "collective": one.kind, "group": one.group.name}
    sizes = {"times": one.times, "size_bytes": one.size_bytes, "in_all_bytes": one.times * one.size_bytes}
    return {**about, **sizes, "who_meets": meets}


def numbers(ranks: Sequence[int]) -> str:
    """Write numbers of ranks: ``0-3`` for a run, ``0,2,4``, or the first ones and how many there are."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= _MOST_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"
