"""``residency-trace/1``: a step as recorded by the open-source HyperOffload planner, and its schedule.

One JSON object; hosim only reads it. Example::

    {"schema": "residency-trace/1", "memory_limit_bytes": 150,
     "storages": [{"id": 7, "bytes": 100}, {"id": 9, "bytes": 50, "retained": true, "kind": "wgrad"}],
     "ops": [{"id": 0, "name": "mm", "duration_ms": 0.5, "reads": [], "writes": [{"storage": 7, "bytes": 100}]},
             {"id": 1, "name": "mm", "duration_ms": 0.5, "reads": [{"storage": 7, "bytes": 100}],
              "writes": [{"storage": 9, "bytes": 50}]}],
     "schedule": {"pre": [], "post": [[1, "RELEASE_DEVICE", 7]]}}

==========================  =====================================================================================
key                         value
==========================  =====================================================================================
`source`                    what was traced; its `kind` names the graph
`memory_limit_bytes`        the planner's limit; a scenario has a budget of its own
`storages`                  `id`, `bytes`, `retained` (it stays when the step ends: an output), `kind` (``wgrad`` is
                            a gradient, all else an activation); those that no op accesses are left out
`ops`                       in program order: `id`, `name`, `duration_ms`, `reads` and `writes`
`reads`, `writes`           `storage` and its `bytes`
`schedule`                  `pre` and `post` of ops: op, action, storage. The actions are ``COPY_D2H`` (nothing happens
                            if the host has a copy, even an old one), ``RELEASE_DEVICE``, ``COPY_H2D`` (nothing
                            happens if it is on the device) and ``RELEASE_HOST``
==========================  =====================================================================================

Other keys are for people. Storage 7 becomes tensor ``s7`` (padded so that names sort), op 0 ``0/mm``. An op that only
makes a view is recorded as writing the storage that it reads, which makes copies of that storage look stale; these
writes are dropped unless they are asked for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator import inputs
from simulator.errors import ConfigError, insist
from simulator.faults import faults
from simulator.graph import LARGEST, Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import Lifetimes
from simulator.plan import COPY, DETACH, NOWHERE, Actions, Plan
from simulator.units import counted

SCHEMA = "residency-trace/1"

HERE, HOST = 0, 1
"""Tier ids of the device (the compute tier) and of the host."""

VIEW = re.compile(
    "_reshape_alias|_unsafe_view|alias|as_strided|(unsafe_)?(chunk|split)|split_with_sizes|detach|diagonal|expand(_as)?"
    "|(un)?flatten|movedim|narrow|permute|real|reshape|select|slice|(un)?squeeze|swapaxes|t|transpose|unbind|unfold"
    "|view(_as(_complex|_real)?)?"
)
"""ATen ops, without overload, that only make a view of their input."""

Views = Literal["reads", "writes"]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


_Id = Annotated[int, Field(ge=0, le=LARGEST)]
_Size = Annotated[int, Field(alias="bytes", ge=0, le=LARGEST)]


class _Storage(_Record):
    id: _Id
    size_bytes: _Size
    retained: bool = False
    kind: str = ""


class _Access(_Record):
    storage: _Id
    size_bytes: _Size


class _TracedOp(_Record):
    id: _Id
    name: str
    duration_ms: float = Field(ge=0, le=LARGEST / 1e6, allow_inf_nan=False)
    reads: tuple[_Access, ...] = ()
    writes: tuple[_Access, ...] = ()


# Action of a schedule -> action of a plan, and its tiers.
_ACTIONS: dict[str, tuple[int, ...]] = {
    "COPY_D2H": (COPY, HERE, HOST),
    "RELEASE_DEVICE": (DETACH, HERE),
    "COPY_H2D": (COPY, HOST, HERE),
    "RELEASE_HOST": (DETACH, HOST),
}

# Op, action, storage.
_Action = tuple[_Id, Literal["COPY_D2H", "RELEASE_DEVICE", "COPY_H2D", "RELEASE_HOST"], _Id]


class _Schedule(_Record):
    pre: tuple[_Action, ...] = ()
    post: tuple[_Action, ...] = ()


class _Trace(_Record):
    source: dict[str, Any] = {}
    memory_limit_bytes: int | None = None
    storages: tuple[_Storage, ...]
    ops: tuple[_TracedOp, ...]
    schedule: _Schedule = _Schedule()

    @property
    def names(self) -> dict[int, str]:
        """Ids of the storages that some op accesses -> names of their tensors, padded so that they sort."""
        accessed = {access.storage for op in self.ops for access in (*op.reads, *op.writes)}
        width = max((len(str(storage.id)) for storage in self.storages), default=1)
        return {storage.id: f"s{storage.id:0{width}d}" for storage in self.storages if storage.id in accessed}


def read(path: Path, views: Views = "reads") -> Graph:
    """Read the graph of a trace, which runs one step.

    Parameters
    ----------
    path
        The file.
    views
        Whether an op that only makes a view of a storage ``reads`` it, or also ``writes`` it, as recorded.

    Raises
    ------
    ConfigError
        If the file or its graph breaks a rule.
    """
    return _graph(path, _load(path), views)


def read_plan(path: Path, graph: Graph, tiers: tuple[str, ...]) -> Plan:
    """Read the schedule of a trace as a plan: the actions of the planner's runtime, whether valid or not.

    A tensor that the schedule never releases is detached after its last use, or at the end of the step if it is an
    output.

    Parameters
    ----------
    path
        The file.
    graph
        The graph of the trace.
    tiers
        Names of two tiers: the compute tier and the host's memory.

    Raises
    ------
    ConfigError
        If the file breaks a rule, or the machine does not have two tiers.

    Notes
    -----
    A schedule that reads absent or stale tensors yields a plan that the referee refuses.
    """
    must = "a schedule of a residency trace is for a machine of two tiers, the compute tier first"
    insist(len(tiers) == 2, str(path), must, ", ".join(tiers), "choose another machine")
    return Plan(path.name, tiers, (NOWHERE,) * len(graph.tensors), _steps(path, _load(path), graph), graph.steps)


def describe(path: Path) -> str:
    """Read a trace and its schedule, and describe them in one line."""
    trace = _load(path)
    graph = _graph(path, trace, "reads")
    copies = sum(code[0] == COPY for code in _steps(path, trace, graph).codes())
    sizes = {"op": len(graph.ops), "tensor": len(graph.tensors), "output": len(graph.outputs)}
    parts = ", ".join(counted(size, noun) for noun, size in sizes.items())
    return f"trace {graph.name!r}: {parts}; schedule of {copies:,} copies"


def unused(path: Path) -> dict[str, int]:
    """Count, by name, what a trace holds but its graph does not."""
    trace = _load(path)
    names = trace.names
    counts = {
        "entry of the schedule": len(trace.schedule.pre) + len(trace.schedule.post),
        "memory_limit_bytes": int(trace.memory_limit_bytes is not None),
        "storage that no op accesses": sum(storage.id not in names for storage in trace.storages),
    }
    return {name: count for name, count in counts.items() if count}


def _load(path: Path) -> _Trace:
    text = inputs.unmarked(inputs.whole(path), path)
    try:
        trace = _Trace.model_validate_json(text)
    except ValidationError as error:
        is_json = error.errors()[0]["type"] != "json_invalid"
        fault = faults(error, orjson.loads(text) if is_json else None)[0]
        where = f"{path}: {'.'.join(fault.path)}" if fault.path else str(path)
        raise ConfigError(where, f"the file is a {SCHEMA}: {fault.must}", fault.found, fault.do) from None
    are_apart = len({op.id for op in trace.ops}) == len(trace.ops)
    insist(are_apart, f"{path}: ops", "each op has its own id", "one twice", "number them anew")
    return trace


def _graph(path: Path, trace: _Trace, views: Views) -> Graph:
    sizes, names = {storage.id: storage.size_bytes for storage in trace.storages}, trace.names
    builder = GraphBuilder(str(trace.source.get("kind", path.stem)), str(path))
    kept = [storage for storage in trace.storages if storage.id in names]
    for storage in kept:
        builder.tensor(names[storage.id], storage.size_bytes, "gradient" if storage.kind == "wgrad" else "activation")
    width = len(str(max((op.id for op in trace.ops), default=0)))
    for op in trace.ops:
        for access in (*op.reads, *op.writes):
            if sizes.get(access.storage) != access.size_bytes:
                where, found = f"{path}: op {op.id} ({op.name})", f"{access.size_bytes:,} B of {access.storage}"
                must, do = "an op's accesses have the sizes of their storages", "add the storage, or correct the op"
                raise ConfigError(where, must, found, do)
        reads, writes = ([names[access.storage] for access in accessed] for accessed in (op.reads, op.writes))
        if views == "reads" and VIEW.fullmatch(op.name.partition(".")[0]):
            writes = [write for write in writes if write not in reads]
        builder.op(f"{op.id:0{width}d}/{op.name}", reads, writes, duration_ns=round(op.duration_ms * 1e6))
    return builder.build([names[storage.id] for storage in kept if storage.retained])


def _steps(path: Path, trace: _Trace, graph: Graph) -> Actions:
    """Return the actions that are issued when all ops run, each between its entries of the schedule."""
    entries, actions, held = _entries(path, trace, graph), Actions(), (set[int](), set[int]())

    def act(tensor: int, kind: int, tier: int, target: int = HERE) -> None:
        if kind == COPY and tensor not in held[target]:
            held[target].add(tensor)
            actions.copy(tensor, tier, target)
        elif kind == DETACH and tensor in held[tier]:
            held[tier].remove(tensor)
            actions.detach(tensor, tier)

    for index, (op, dead) in enumerate(zip(graph.ops, Lifetimes(graph).dead_after, strict=True)):
        for tensor, action in entries["pre", index]:
            act(tensor, *action)
        actions.compute(index)
        held[HERE].update(op.writes)
        for tensor, action in entries["post", index]:
            act(tensor, *action)
        left = sorted(held[HERE] | held[HOST]) if index == len(graph.ops) - 1 else ()
        for tensor in (*dead, *left):
            act(tensor, DETACH, HERE)
            act(tensor, DETACH, HOST)
    return actions


def _entries(path: Path, trace: _Trace, graph: Graph) -> dict[tuple[str, int], list[tuple[int, tuple[int, ...]]]]:
    """Return, for each table of the schedule and op, pairs of a tensor and what to do with it."""
    ids = {tensor.name: tensor_id for tensor_id, tensor in enumerate(graph.tensors)}
    tensors = {storage: ids[name] for storage, name in trace.names.items()}
    ops = {op.id: index for index, op in enumerate(trace.ops)}
    entries: dict[tuple[str, int], list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for table in ("pre", "post"):
        for op, action, storage in getattr(trace.schedule, table):
            must = "an entry names an op, and a storage that some op accesses"
            insist(op in ops and storage in tensors, f"{path}: schedule.{table}", must, f"{op} and {storage}")
            entries[table, ops[op]].append((tensors[storage], _ACTIONS[action]))
    return entries
