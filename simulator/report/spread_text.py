"""A job as text: what each rank holds, how weights are cut, and what ranks communicate in a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.graph import PAIRED, Group, Job, TensorKind
from simulator.layout import Weight
from simulator.lifetime import lifetimes, live_bytes
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
    label, ranks, ops
        The program, who runs it, and its ops in a step.
    kept
        Kind of tensor -> bytes that are there all step, before ZeRO's shards are gathered.
    peak
        Kind (or ``workspace``) -> bytes at the op with the most, if nothing moves.
    at
        Name of that op.
    """

    label: str
    ranks: tuple[int, ...]
    ops: int
    kept: Counter[str]
    peak: Counter[str]
    at: str


class Meeting(NamedTuple):
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
    found = [_head(job, workload), _holdings(job)]
    if weights:
        found.append(_cuts(weights, workload.dtypes.element_bytes))
    return "\n\n".join([*found, _meetings(job)])


def data(job: Job, weights: Mapping[str, Weight], element_bytes: int) -> dict[str, Any]:
    """The same as plain data: sizes in bytes, all ranks by number, all members.

    Parameters
    ----------
    job, weights
        As for `told`.
    element_bytes
        Size of an element of a weight [B].
    """
    holdings = [
        {
            "program": h.label,
            "ranks": h.ranks,
            "ops": h.ops,
            "kept_bytes": h.kept,
            "peak_bytes": h.peak,
            "peak_op": h.at,
        }
        for h in map(holding, [job] * len(job.graphs), range(len(job.graphs)))
    ]
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
    met = [{**m._asdict(), "group": m.group.name} for m in meetings(job)]
    groups = {group.name: group.members for graph in job.graphs for group in graph.groups}
    return {
        "schema": "hosim-layout/1",
        "name": job.name,
        "ranks": job.ranks,
        "programs": holdings,
        "weights": cut,
        "groups": groups,
        "collectives": met,
    }


def holding(job: Job, number: int) -> Holding:
    """What each rank of a graph holds."""
    graph = job.graphs[number]
    kept = Counter[str]()
    for tensor in graph.tensors:
        if tensor.persistent:
            kept[str(tensor.kind)] += tensor.size_bytes
    found = lifetimes(graph)
    op = int(live_bytes(graph, found).argmax())
    peak = Counter[str]({str(TensorKind.WORKSPACE): graph.ops[op].workspace_bytes})
    for t, tensor in enumerate(graph.tensors):
        if 0 <= found.born[t] <= op <= found.dies[t]:
            peak[str(tensor.kind)] += tensor.size_bytes
    return Holding(job.labels[number], job.ranks_of(number), len(graph.ops), kept, peak, graph.ops[op].name)


def meetings(job: Job) -> list[Meeting]:
    """What the ranks of each graph do together in a step, in the order of its first time."""
    return [meeting for number in range(len(job.graphs)) for meeting in _of_graph(job, number)]


def _of_graph(job: Job, number: int) -> Iterable[Meeting]:
    graph, ranks = job.graphs[number], set(job.ranks_of(number))
    groups = {group.name: group for group in graph.groups}
    found: Counter[tuple[str, str, str, int]] = Counter()
    for op in graph.ops:
        if op.collective is not None:
            about = op.collective
            found[op.phase, str(about.kind), about.group, about.size_bytes] += 1
    for (phase, kind, name, size_bytes), times in found.items():
        mine = tuple(members for members in groups[name].members if _takes_part(members, kind, ranks))
        yield Meeting(job.labels[number], phase, kind, Group(name, mine), times, size_bytes)


def _takes_part(members: tuple[int, ...], kind: str, ranks: set[int]) -> bool:
    if kind in PAIRED:
        return (members[0] if kind == "send" else members[-1]) in ranks
    return not ranks.isdisjoint(members)


def _head(job: Job, workload: Workload) -> str:
    lines, parallel, pools = [f"{job.name}: {counted(job.ranks, 'rank')}"], workload.parallel, workload.pools
    if pools is not None:
        answers = counted(pools.new_tokens, "token")
        lines[0] += (
            f" = prefill {pools.prefill} + decode {pools.decode}, each with the whole model; {answers} an answer"
        )
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


def _holdings(job: Job) -> str:
    found = [holding(job, number) for number in range(len(job.graphs))]
    programs = [_texts("program", (h.label for h in found)), _texts("ranks", (numbers(h.ranks) for h in found))]
    ops = Column("ops", tuple(f"{h.ops:,}" for h in found))
    kept = aligned([[*programs, ops, *_kinds([h.kept for h in found])]])
    where = _texts("at op", (h.at for h in found))
    peak = aligned([[*programs[:1], *_kinds([h.peak for h in found]), where]])
    return f"held all step, by each rank\n{_indented(kept)}\n\nlive at most, if nothing moves\n{_indented(peak)}"


def _kinds(found: Sequence[Counter[str]]) -> list[Column]:
    kinds = [str(kind) for kind in TensorKind if any(one[str(kind)] for one in found)]
    columns = [Column(kind, tuple(human(one[kind], "B") for one in found)) for kind in kinds]
    return [*columns, Column("in all", tuple(human(one.total(), "B") for one in found))]


def _cuts(weights: Mapping[str, Weight], element_bytes: int) -> str:
    groups: dict[tuple[str, str, str], list[Weight]] = {}
    for weight in weights.values():
        cut = ", ".join("+".join(axes) or "-" for axes in weight.layout.tensor_map)
        shape = " x ".join(map(str, weight.shape))
        groups.setdefault((re.sub(r"\d+", "*", weight.name), shape, f"[{cut}]"), []).append(weight)
    names, shapes, cuts = zip(*groups, strict=True)
    found = [group[0] for group in groups.values()]
    table = aligned(
        [
            [
                _texts("weights", names),
                Column("how many", tuple(str(len(group)) for group in groups.values())),
                Column("shape", shapes),
                _texts("cut along", cuts),
                Column("each rank", tuple(human(w.parameters * element_bytes, "B") for w in found)),
                Column("held by", tuple(counted(_holders(w), "rank") for w in found)),
            ]
        ]
    )
    return f"how weights are cut, before ZeRO\n{_indented(table)}"


def _holders(weight: Weight) -> int:
    """How many ranks hold the same: a block of the model is in one stage."""
    return weight.layout.mesh.size([axis for axis in weight.layout.copies if axis != "pipeline"])


def _meetings(job: Job) -> str:
    found = meetings(job)
    if not found:
        return "nothing is communicated"
    table = aligned(
        [
            [
                _texts("program", (m.label for m in found)),
                _texts("phase", (m.phase for m in found)),
                _texts("collective", (m.kind for m in found)),
                _texts("group", (m.group.name for m in found)),
                Column("times", tuple(f"{m.times:,}" for m in found)),
                Column("size", tuple(human(m.size_bytes, "B") for m in found)),
                Column("in all", tuple(human(m.times * m.size_bytes, "B") for m in found)),
                _texts("who meets", (_members(m) for m in found)),
            ]
        ]
    )
    return f"communicated in a step, by each rank\n{_indented(table)}"


def _members(meeting: Meeting) -> str:
    members, arrow = meeting.group.members, meeting.kind in PAIRED
    shown = [f"{a} > {b}" if arrow else numbers((a, *rest, b)) for a, *rest, b in members[:_MOST_MEMBERS]]
    return " | ".join(shown) + (f" | ... ({len(members)})" if len(members) > _MOST_MEMBERS else "")


def numbers(ranks: Sequence[int]) -> str:
    """Write numbers of ranks: ``0-3`` for a run, ``0,2,4``, or the first ones and how many there are."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= _MOST_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]},{ranks[1]},...,{ranks[-1]} ({len(ranks)})"


def _texts(head: str, cells: Iterable[str]) -> Column:
    return Column(head, tuple(cells), left=True)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
