"""Execution traces of PyTorch (its ``ExecutionTraceObserver``), alone or joined with the Kineto trace of the same run.

A trace is a tree of operators. The lowest ones that do work on the device become ops; their callers are left out, and
what they call (views, empty tensors) is folded into them. Ids of storages are reused once a storage is freed, so an id
means a new storage whenever an op returns it without having read it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Literal

from simulator.document import MOST_RANKS
from simulator.errors import insist
from simulator.graph import LARGEST, Collective
from simulator.importers.imported import Imported
from simulator.importers.kineto import STEP, UNTIMED, Timeline, chosen_step, event_of, report_spans
from simulator.importers.operators import Memory, OperatorNode, Tree, arithmetic, dtype_of, views
from simulator.importers.recordings import Event, Recording, blocks, collective_kind, objects, records_of, short, whole
from simulator.importers.streams import replay
from simulator.inputs import shown
from simulator.interrupts import no_garbage_search
from simulator.units import counted

FloatType = Literal["tf32", "fp32", "bf16", "fp16"]
"""Data types in which ``float`` matmuls may run."""
_VERSION = re.compile(r"1\.\d+\.\d+(-chakra\.\d+\.\d+\.\d+)?")


def _nodes_of(path: Path) -> list[OperatorNode]:
    """Read the nodes of an execution trace, sorted by id: the order in which they began.

    Raises
    ------
    ConfigError
        If the file is no execution trace, or of another version.
    """
    content, where = records_of(path), shown(path)
    is_trace = isinstance(content, dict) and isinstance(content.get("nodes"), list)
    insist(is_trace, where, "an execution trace has schema and nodes", "neither, or no list", "choose another file")
    must, version = "hosim reads versions 1 of execution traces", str(content.get("schema"))[:100]
    insist(_VERSION.fullmatch(version), f"{where}: schema", must, repr(version), "record it by a PyTorch from 2.1 on")
    raws = enumerate(objects(content["nodes"], f"{where}: nodes", "a node has an id and a name"))
    nodes = sorted((_node(raw, f"{where}: nodes[{index}]") for index, raw in raws), key=attrgetter("id"))
    twice = next((b.id for a, b in pairwise(nodes) if a.id == b.id), None)
    insist(twice is None, where, "each node has its own id", f"{twice} twice", "record it again")
    return nodes


def _node(raw: dict[str, Any], where: str) -> OperatorNode:
    is_node = type(raw.get("id")) is int and isinstance(raw.get("name"), str)
    insist(is_node, where, "a node has an id and a name", f"{raw!r:.60}", "record the trace again")
    attrs = raw["attrs"] if isinstance(raw.get("attrs"), list) else []
    more = {str(attr.get("name")): attr.get("value") for attr in attrs if isinstance(attr, dict)} or raw
    inputs, outputs = _side(raw, "input"), _side(raw, "output")
    values = inputs["values"] if isinstance(inputs.get("values"), list) else []
    reads = [list(views(value)) if isinstance(value, list) else [] for value in values]
    texts = [value for value in values if isinstance(value, str)]
    parent, schema = whole(raw.get("ctrl_deps", raw.get("parent"))), str(more.get("op_schema") or "")
    ids = raw["id"], parent, whole(more.get("rf_id"))
    written, shapes = list(views(outputs.get("values"))), (inputs.get("shapes"), outputs.get("shapes"))
    return OperatorNode(*ids, raw["name"], schema, reads, written, texts, *shapes, inputs.get("types"), more)


def _side(raw: dict[str, Any], key: str) -> dict[str, Any]:
    """Return values, shapes and types of a node's inputs or outputs; old versions keep them in separate keys."""
    values = raw.get(f"{key}s")
    old = {"values": values, "shapes": raw.get(f"{key}_shapes"), "types": raw.get(f"{key}_types")}
    return values if isinstance(values, dict) else old


def ops_of(tree: Tree, recording: Recording, of_float: str, *, timed: bool) -> dict[int, Event]:
    """Make the ops of a trace, in program order: id of the node -> op.

    Parameters
    ----------
    tree
        The nodes.
    recording
        Collects storages and groups.
    of_float
        Data type in which ``float`` matmuls run.
    timed
        Whether recorded times are added later; collectives then have no group.
    """
    memory, ops = Memory(tree, recording), dict[int, Event]()
    world = max((1, *(whole(node.more.get("pg_size")) for node in tree.nodes if node.is_collective)))
    for node in tree.nodes:
        owner = tree.owner.get(node.id)
        if owner != node.id:
            memory.fold(node, None if owner is None else ops.get(owner))
            continue
        op = Event(short(node.name), more={"phase": tree.phase[node.id]}, is_collective=node.is_collective)
        memory.use(node, op)
        if node.is_collective:
            _add_collective(node, op, recording, 0 if timed else world)
        else:
            op.more["op_class"], op.more["flops"] = arithmetic(node.name, node.shapes_in, node.shapes_out)
            op.more["dtype"] = dtype_of(node.types, of_float)
        ops[node.id] = op
    others = [op for op in ops.values() if op.more.get("phase") != "update"]
    used = {storage for op in others for storage in (*op.reads, *op.writes)}
    for storage in recording.storages:  # used by the update alone
        if storage.persistent and storage.kind == "weight" and storage not in used:
            storage.kind = "optimizer_state"
    return ops


def _add_collective(node: OperatorNode, op: Event, recording: Recording, world: int) -> None:
    """Add group and size to a collective; one with no other rank becomes an op without FLOPs."""
    kind, size, op.name = collective_kind(node.collective), whole(node.more.get("pg_size")), short(node.collective)
    if kind is None or not 1 < size <= min(world, MOST_RANKS):
        op.is_collective = world == 0
        recording.dropped["groups of collectives without members"] += world > 0
        return
    group = f"group {short(node.more.get('pg_name') or 'default')}"
    start, stride = (whole(node.more.get(f"global_rank_{key}")) for key in ("start", "stride"))
    ranks = [start + max(1, stride) * position for position in range(size)]
    recording.groups.setdefault(group, blocks(world, ranks))
    elements = max(whole(node.more.get(f"{key}_msg_nelems")) for key in ("in", "out"))
    sizes = [view.size_bytes // max(1, elements) for some in (*node.reads, node.writes) for view in some]
    total = sum(storage.size_bytes for storage in op.writes) if not sizes else 0
    op.more["collective"] = Collective(kind, group, min(elements * max(sizes[:1], default=0) or total, LARGEST))


@no_garbage_search()
def read_pytorch_trace(
    source: str | Path, *, kineto: Path | None = None, step: int | None = None, of_float: FloatType = "tf32"
) -> Imported:
    """Read an execution trace of PyTorch: ops, storages and their lifetimes; measured times come from a Kineto trace.

    Parameters
    ----------
    source
        The execution trace (JSON, perhaps compressed).
    kineto
        The Kineto trace of the same run, for measured times.
    step
        Number of the ``ProfilerStep`` to read; default: the last one that is followed by another.
    of_float
        The data type at whose peak the machine runs ``float`` matmuls.

    Raises
    ------
    ConfigError
        If a file is wrong or has no such step, or the two are not of the same run.
    """
    path, recording = Path(source), Recording()
    nodes = _nodes_of(path)
    tree = Tree(_nodes_of_step(nodes, step, shown(path), recording))
    ops, recording.kept["nodes"] = ops_of(tree, recording, of_float, timed=kineto is not None), f"{len(nodes):,}"
    recording.dropped["nodes folded into the op that they are a part of"] += len(tree.owner) - len(ops)
    idle = len(tree.nodes) - len(tree.owner)
    recording.dropped["nodes that only view, allocate, call others or work on the host"] += idle
    if kineto is None:
        recording.ops = list(ops.values())
        recording.derived.append(f"Without times a roofline gives them; float counts as {of_float} (--of-float).")
    else:
        _add_recorded_times(tree, ops, Timeline(kineto), recording)
    recording.derived.append("Tensors that no node makes existed before: weights, optimizer state, gradients, inputs.")
    return recording.imported(path, "A step")


def _nodes_of_step(nodes: list[OperatorNode], step: int | None, where: str, recording: Recording) -> list[OperatorNode]:
    """Return the nodes of one of the steps that the profiler marked; all nodes if it marked none or only one."""
    marks = [(node.name, node.id) for node in nodes if node.name.startswith(STEP)]
    if len(marks) < 2 and step is None:
        return nodes
    _, ids = chosen_step(marks, step, where, recording)
    of_step = [node for node in nodes if node.id in ids]
    recording.dropped["nodes of other steps"] += len(nodes) - len(of_step)
    return of_step


def _add_recorded_times(tree: Tree, ops: dict[int, Event], timeline: Timeline, recording: Recording) -> None:
    """Give ops the times of the kernels that they launched; the host accounts for the idle time in between."""
    where, launchers = shown(timeline.path), _launchers(tree, timeline, recording)
    spans, owners = timeline.device, [tree.owner.get(node) for node in _launched_by(timeline, launchers)]
    if not spans:
        recording.derived.append("Nothing ran on a device: ops take the times of the host's operators.")
        launched = [(index, node) for index, node in sorted(launchers.items()) if node in ops]
        spans, owners = [timeline.ops[index] for index, _ in launched], [tree.owner.get(node) for _, node in launched]
    of_step = [index for index, owner in enumerate(owners) if owner in ops]
    must, do = "the two traces are of the same run", "record both at once"
    insist(of_step, where, must, "no kernel that an op of the execution trace launched", do)
    step = slice(of_step[0], of_step[-1] + 1)
    spans, owning = spans[step], [ops.get(owner or 0) for owner in owners[step]]
    recording.dropped["kernels, copies and fills outside of the step"] += len(owners) - len(spans)
    ran = timeline.activities(spans, (op or event_of(span) for op, span in zip(owning, spans, strict=True)))
    replay(recording, ran, [*ops.values()], timeline.calls)
    report_spans(spans, recording)
    recording.dropped[UNTIMED] += timeline.others[UNTIMED]
    if left := owning.count(None):
        recording.derived.append(f"{counted(left, 'kernel')} that no op launched are ops without tensors.")


def _launched_by(timeline: Timeline, nodes: Mapping[int, int]) -> list[int]:
    """Return the node that launched each kernel (the innermost operator around the launch); 0 if there is none."""
    calls = [timeline.launched.get(span.correlation) for span in timeline.device]
    launches = [(call.start_ns, call.thread) if call else (-1, ("", "")) for call in calls]
    operators_left = [(timeline.ops[index], node) for index, node in sorted(nodes.items(), reverse=True)]
    launchers, around = [0] * len(launches), defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for kernel, (launch_ns, thread) in sorted(enumerate(launches), key=itemgetter(1)):
        while operators_left and operators_left[-1][0].start_ns <= launch_ns:
            operator, node = operators_left.pop()
            around[operator.thread].append((operator.end_ns, node))
        while around[thread] and around[thread][-1][0] < launch_ns:
            around[thread].pop()
        launchers[kernel] = around[thread][-1][1] if around[thread] else 0
    return launchers


def _launchers(tree: Tree, timeline: Timeline, recording: Recording) -> dict[int, int]:
    """Map indices of Kineto's operators to nodes of the execution trace: by ids, or else by the sequence of names."""
    indexes = {whole(operator.args.get("Record function id")): i for i, operator in enumerate(timeline.ops)}
    nodes = {node.rf_id: node.id for node in tree.nodes if node.rf_id}
    if shared_ids := indexes.keys() & nodes.keys() - {0}:
        recording.derived.append("Kernels were matched with ops by the ids of record functions.")
        return {indexes[rf_id]: nodes[rf_id] for rf_id in shared_ids}
    names = {node.name for node in tree.nodes if tree.owner.get(node.id) == node.id}
    ours = [node for node in tree.nodes if node.name in names]
    theirs = [(index, operator) for index, operator in enumerate(timeline.ops) if operator.name in names]
    letters = {name: chr(0x10000 + rank % 0x100000) for rank, name in enumerate(sorted(names))}
    pattern = "".join(letters[node.name] for node in ours)
    text = "".join(letters[operator.name] for _, operator in theirs)
    starts = [match.start() for match in re.finditer(re.escape(pattern), text)] if pattern else []
    must = "some consecutive operators of Kineto's have the names of the execution trace, in the same order"
    do = "record both at once, by a PyTorch that writes ids of record functions"
    insist(starts, shown(timeline.path), must, f"none of {counted(len(theirs), 'operator')}", do)
    took_ns = {start: theirs[start + len(ours) - 1][1].end_ns - theirs[start][1].start_ns for start in starts}
    median = sorted(starts, key=took_ns.__getitem__)[len(starts) // 2]
    text = f"The traces share no ids: of {counted(len(starts), 'run')} of the same names the median step was taken."
    recording.derived.append(text)
    return {index: node.id for (index, _), node in zip(theirs[median : median + len(ours)], ours, strict=True)}
