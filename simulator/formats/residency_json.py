"""``residency-trace/1``: a step as the open-source HyperOffload planner sees it, and the schedule that it made.

One JSON object, read only. A small one::

    {"schema": "residency-trace/1", "memory_limit_bytes": 150,
     "storages": [{"id": 7, "bytes": 100}, {"id": 9, "bytes": 50, "retained": true, "kind": "wgrad"}],
     "ops": [{"id": 0, "name": "mm", "duration_ms": 0.5, "reads": [], "writes": [{"storage": 7, "bytes": 100}]},
             {"id": 1, "name": "mm", "duration_ms": 0.5, "reads": [{"storage": 7, "bytes": 100}],
              "writes": [{"storage": 9, "bytes": 50}]}],
     "schedule": {"pre": [], "post": [[1, "RELEASE_DEVICE", 7]]}}

==========================  =====================================================================================
key                         value
==========================  =====================================================================================
`source`                    what was traced: its `kind` names the graph
`memory_limit_bytes`        the planner's limit; a scenario's budget is its own business
`storages`                  `id`, `bytes`, `retained` (it stays when the step ends: an output), `kind` (``wgrad`` is
                            a gradient, all else an activation); those that no op accesses are left out
`ops`                       in program order: `id`, `name`, `duration_ms`, `reads` and `writes`
`reads`, `writes`           `storage` and its `bytes`
`schedule`                  `pre` and `post` of ops: op, action, storage. The actions are ``COPY_D2H`` (nothing happens
                            if the host has a copy, even an old one), ``RELEASE_DEVICE``, ``COPY_H2D`` (nothing
                            happens if it is on the device) and ``RELEASE_HOST``
==========================  =====================================================================================

Other keys are for people. Storage 7 becomes tensor ``s7`` (padded so that names sort), op 0 ``0/mm``. An op that only
makes a view is recorded as writing the storage that it reads, which makes copies of it look old; unless one asks for
the writes, they are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.errors import ConfigError
from simulator.formats import jsonl
from simulator.graph import LARGEST, Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import lifetimes
from simulator.plan import NOWHERE, Plan, Steps
from simulator.units import human

HERE, HOST = 0, 1
"""The device, which is the compute tier, and the host."""

ACTIONS = ("COPY_D2H", "RELEASE_DEVICE", "COPY_H2D", "RELEASE_HOST")

Action = tuple[int, str, int]
"""Op, action, storage."""


class Runtime:
    """One run of a schedule.

    Parameters
    ----------
    where
        What messages call the schedule.
    graph
        What runs.
    ops, tensors
        Ids in the schedule -> ids in the graph.

    Attributes
    ----------
    steps
        What was issued.
    faults
        Reads of what is absent, and copies in of what is absent or old, in the order of happening.
    copies_out, copies_in, host_peak_bytes
        Copies that were made, and the most that the host held [B].
    """

    def __init__(self, where: str, graph: Graph, ops: Mapping[int, int], tensors: Mapping[int, int]) -> None:
        self._where, self._graph, self._ops, self._tensors = where, graph, ops, tensors
        self._held: tuple[set[int], set[int]] = (set(), set())
        self._old: set[int] = set()
        self._host_bytes = 0
        self._at = ""
        self.steps = Steps()
        self.faults: list[ConfigError] = []
        self.copies_out = self.copies_in = self.host_peak_bytes = 0

    def run(self, pre: Iterable[Action], post: Iterable[Action]) -> None:
        """Run all ops with what the schedule says for before and after each.

        Raises
        ------
        ConfigError
            If the schedule names an op, a storage or an action that does not exist.
        """
        before, after = self._by_op("pre", pre), self._by_op("post", post)
        dead_after = lifetimes(self._graph).dead_after
        for op, what in enumerate(self._graph.ops):
            self._at = f"before op {what.name!r}"
            self._act(before.get(op, ()))
            self._compute(op)
            self._at = f"after op {what.name!r}"
            self._act(after.get(op, ()))
            for tensor in dead_after[op]:
                self._give_up(tensor)
        for tensor in sorted(self._held[HERE] | self._held[HOST]):
            self._give_up(tensor)

    def _by_op(self, table: str, actions: Iterable[Action]) -> dict[int, list[tuple[str, int]]]:
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for op, action, storage in actions:
            given = {"op": (op, self._ops), "action": (action, ACTIONS), "storage": (storage, self._tensors)}
            for what, (name, known) in given.items():
                if name not in known:
                    must = f"an entry is an op, one of {', '.join(ACTIONS)}, and a storage that some op accesses"
                    raise ConfigError(f"{self._where}.{table}", must, f"{what} {name!r}", "correct it")
            found[self._ops[op]].append((action, self._tensors[storage]))
        return found

    def _act(self, actions: Iterable[tuple[str, int]]) -> None:
        act = {"COPY_D2H": self._copy_out, "COPY_H2D": self._copy_in}
        for action, tensor in actions:
            if action in act:
                act[action](tensor)
            else:
                self._release(tensor, HERE if action == "RELEASE_DEVICE" else HOST)

    def _compute(self, op: int) -> None:
        what = self._graph.ops[op]
        for tensor in what.reads:
            if tensor not in self._held[HERE]:
                self._fault("what an op reads is on the device", tensor, "released, and not copied in")
        self.steps.compute(op)
        self._held[HERE].update(what.writes)
        self._old.update(self._held[HOST].intersection(what.writes))

    def _copy_out(self, tensor: int) -> None:
        if tensor in self._held[HOST]:
            return
        if tensor not in self._held[HERE]:
            self._fault("what is copied out is on the device", tensor, "not there")
        self._held[HOST].add(tensor)
        self._host_bytes += self._graph.tensors[tensor].size_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, self._host_bytes)
        self.steps.copy(tensor, HERE, HOST)
        self.copies_out += 1

    def _copy_in(self, tensor: int) -> None:
        if tensor in self._held[HERE]:
            return
        if tensor not in self._held[HOST]:
            self._fault("what is copied in has a copy on the host", tensor, "without one")
        elif tensor in self._old:
            found = "whose copy on the host is older than its last write"
            self._fault("what is copied in is what was written last", tensor, found)
        self._held[HERE].add(tensor)
        self.steps.copy(tensor, HOST, HERE)
        self.copies_in += 1

    def _release(self, tensor: int, tier: int) -> None:
        if tensor not in self._held[tier]:
            return
        self._held[tier].remove(tensor)
        self.steps.detach(tensor, tier)
        if tier == HOST:
            self._old.discard(tensor)
            self._host_bytes -= self._graph.tensors[tensor].size_bytes

    def _give_up(self, tensor: int) -> None:
        self._release(tensor, HERE)
        self._release(tensor, HOST)

    def _fault(self, must: str, tensor: int, how: str) -> None:
        name = repr(self._graph.tensors[tensor].name)
        self.faults.append(ConfigError(f"{self._where}, {self._at}", must, f"{name} {how}", "correct the schedule"))


SCHEMA = "residency-trace/1"

VIEWS = frozenset(
    (
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "movedim",
        "narrow",
        "permute",
        "real",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unflatten",
        "unsafe_chunk",
        "unsafe_split",
        "unsqueeze",
        "view",
        "view_as",
        "view_as_complex",
        "view_as_real",
    )
)
"""ATen ops, without overload, that only make a view of what they read."""

Views = Literal["reads", "writes"]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


_Id = Annotated[int, Field(ge=0, le=LARGEST)]


class _Storage(_Record):
    id: _Id
    size_bytes: int = Field(alias="bytes", ge=0, le=LARGEST)
    retained: bool = False
    kind: str = ""


class _Access(_Record):
    storage: _Id
    size_bytes: int = Field(alias="bytes", ge=0, le=LARGEST)


class _Op(_Record):
    id: _Id
    name: str
    duration_ms: float = Field(ge=0, le=LARGEST / 1e6, allow_inf_nan=False)
    reads: tuple[_Access, ...] = ()
    writes: tuple[_Access, ...] = ()

    @property
    def is_view(self) -> bool:
        return self.name.partition(".")[0] in VIEWS


class _Schedule(_Record):
    pre: tuple[tuple[_Id, str, _Id], ...] = ()
    post: tuple[tuple[_Id, str, _Id], ...] = ()


class _Trace(_Record):
    source: dict[str, Any] = {}
    memory_limit_bytes: int | None = None
    storages: tuple[_Storage, ...]
    ops: tuple[_Op, ...]
    schedule: _Schedule = _Schedule()


def read(path: Path, views: Views = "reads") -> Graph:
    """Read the graph of a trace; it runs one step.

    Parameters
    ----------
    path
        The file.
    views
        Whether an op that only makes a view of a storage ``reads`` it, or ``writes`` it too, as it is recorded.

    Raises
    ------
    ConfigError
        If the file or its graph breaks a rule.
    """
    return _graph(path, _load(path), views)


def read_plan(path: Path, graph: Graph, tiers: tuple[str, ...]) -> Plan:
    """Read the schedule of a trace as a plan: the steps that the planner's runtime makes of it, right or wrong.

    What the schedule never releases is detached after its last use, or at the end of the step if it is an output.

    Parameters
    ----------
    path
        The file.
    graph
        Its graph.
    tiers
        Names of two tiers: the compute tier and the host's memory.

    Raises
    ------
    ConfigError
        If the file breaks a rule, or the machine has other tiers than two.

    Notes
    -----
    A schedule that reads what is absent or old makes a plan that the referee refuses; `describe` refuses it too.
    """
    if len(tiers) != 2:
        must = "a schedule of a residency trace is for a machine of two tiers, the compute tier first"
        raise ConfigError(str(path), must, ", ".join(tiers), "choose another machine")
    runtime = _runtime(path, _load(path), graph)
    return Plan(path.name, tiers, (NOWHERE,) * len(graph.tensors), runtime.steps, graph.steps)


def describe(path: Path) -> str:
    """Read a trace, check its schedule and say in one line what is in it."""
    trace = _load(path)
    graph = _graph(path, trace, "reads")
    runtime = _runtime(path, trace, graph)
    if runtime.faults:
        raise runtime.faults[0]
    views = sum(_view_writes(op) for op in trace.ops)
    return (
        f"trace {graph.name!r}: {len(graph.ops):,} ops, {len(graph.tensors):,} tensors, {len(graph.outputs):,} outputs"
        f", {views:,} writes by views; schedule of {runtime.copies_out:,} copies out and {runtime.copies_in:,} in, "
        f"at most {human(runtime.host_peak_bytes, 'B')} on the host"
    )


def _runtime(path: Path, trace: _Trace, graph: Graph) -> Runtime:
    ids = {tensor.name: t for t, tensor in enumerate(graph.tensors)}
    tensors = {storage: ids[name] for storage, name in _storage_names(trace).items() if name in ids}
    ops = {op.id: i for i, op in enumerate(trace.ops)}
    runtime = Runtime(f"{path}: schedule", graph, ops, tensors)
    runtime.run(trace.schedule.pre, trace.schedule.post)
    return runtime


def _load(path: Path) -> _Trace:
    try:
        return _Trace.model_validate_json(jsonl.whole(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        found = repr(first["input"]) if first["type"] != "missing" else "none"
        must = f"the file is a {SCHEMA} ({first['msg'].lower()})"
        found = found if len(found) <= 60 else f"{found[:57]}..."
        raise ConfigError(f"{path}: {where}" if where else str(path), must, found, "correct the file") from None


def _graph(path: Path, trace: _Trace, views: Views) -> Graph:
    sizes = {storage.id: storage.size_bytes for storage in trace.storages}
    names, op_names = _storage_names(trace), _op_names(path, trace)
    builder = GraphBuilder(str(trace.source.get("kind", path.stem)), str(path))
    accessed = {access.storage for op in trace.ops for access in (*op.reads, *op.writes)}
    kept = [storage for storage in trace.storages if storage.id in accessed]
    for storage in kept:
        builder.tensor(names[storage.id], storage.size_bytes, "gradient" if storage.kind == "wgrad" else "activation")
    for op, name in zip(trace.ops, op_names, strict=True):
        for access in (*op.reads, *op.writes):
            _check_access(path, op, access, sizes)
        reads = [names[access.storage] for access in op.reads]
        writes = [names[access.storage] for access in op.writes]
        if views == "reads" and op.is_view:
            writes = [write for write in writes if write not in reads]
        builder.op(name, reads, writes, duration_ns=round(op.duration_ms * 1e6))
    return builder.build([names[storage.id] for storage in kept if storage.retained])


def _check_access(path: Path, op: _Op, access: _Access, sizes: dict[int, int]) -> None:
    where, size = f"{path}: op {op.id} ({op.name})", sizes.get(access.storage)
    if size is None:
        must = "what an op accesses is one of the storages"
        raise ConfigError(where, must, f"storage {access.storage}", "add the storage, or correct the op")
    if size != access.size_bytes:
        must = f"each access of storage {access.storage} has its size ({size:,} B)"
        raise ConfigError(where, must, f"{access.size_bytes:,} B", "correct one of the two")


def _view_writes(op: _Op) -> int:
    read = {access.storage for access in op.reads}
    return sum(access.storage in read for access in op.writes) if op.is_view else 0


def _storage_names(trace: _Trace) -> dict[int, str]:
    width = max((len(str(storage.id)) for storage in trace.storages), default=1)
    return {storage.id: f"s{storage.id:0{width}d}" for storage in trace.storages}


def _op_names(path: Path, trace: _Trace) -> list[str]:
    width = len(str(max((op.id for op in trace.ops), default=0)))
    if len({op.id for op in trace.ops}) < len(trace.ops):
        raise ConfigError(f"{path}: ops", "each op has its own id", "one twice", "number them anew")
    return [f"{op.id:0{width}d}/{op.name}" for op in trace.ops]
