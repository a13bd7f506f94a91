"""The operator graph: what runs, in which order, on which tensors; it knows no machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from simulator.errors import ConfigError


class TensorKind(StrEnum):
    """What a tensor is for."""

    WEIGHT = "weight"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    KV_CACHE = "kv_cache"
    EXPERT = "expert"
    WORKSPACE = "workspace"
    INPUT = "input"


class OpKind(StrEnum):
    """Where an op runs."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named storage; views are folded into it.

    Attributes
    ----------
    name
        Unique path name, such as ``L03/attn.qkv.out``.
    size_bytes
        Size [B].
    kind
        What it is for.
    persistent
        It exists before the first op and after the last one of every step (weights, optimizer state).
    shared
        ``node`` or ``supernode`` if it is read-only and stored once per instance there.
    """

    name: str
    size_bytes: int
    kind: TensorKind = TensorKind.ACTIVATION
    persistent: bool = False
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operator, at the granularity of a kernel.

    Attributes
    ----------
    name
        Unique path name, such as ``L03/fwd/attn.qkv``.
    reads, writes
        Tensor ids; an op that updates a tensor in place both reads and writes it.
    read_bytes, write_bytes
        Traffic in the compute tier [B].
    flops
        Arithmetic work [FLOP].
    workspace_bytes
        Room it needs in the compute tier while it runs [B].
    duration_ns
        Measured time [ns]; the cost model is used if None.
    op_class, dtype
        Keys of the hardware's achieved fractions and peaks.
    phase
        ``forward``, ``backward``, ``update``, ``prefill``, ``decode`` or empty.
    barrier
        No cache operator may be moved across it.
    """

    name: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    read_bytes: int = 0
    write_bytes: int = 0
    flops: int = 0
    workspace_bytes: int = 0
    duration_ns: int | None = None
    kind: OpKind = OpKind.COMPUTE
    op_class: str = "vector"
    dtype: str = "bf16"
    phase: str = ""
    barrier: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in program order over tensors, run `steps` times.

    Attributes
    ----------
    name
        For people.
    tensors, ops
        Their position is their id. The ops are those of one step.
    outputs
        Tensors (ids) that must still be valid in some tier when a step ends; persistent ones always must.
    steps
        How many times the ops run, one after another. Tensors that are not persistent are new in each step.

    Notes
    -----
    What exists before the first op is what is persistent, plus, in a graph of one step, what is read before it is
    written.
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...] = ()
    steps: int = 1

    @property
    def inputs(self) -> tuple[int, ...]:
        """Ids of the tensors that exist before the first op: the persistent ones, and those read before written."""
        written: set[int] = set()
        found = {i for i, t in enumerate(self.tensors) if t.persistent}
        for op in self.ops:
            found.update(t for t in op.reads if t not in written)
            written.update(op.writes)
        return tuple(sorted(found))


class GraphBuilder:
    """Build a graph by names, in program order; every rule of a graph is checked here.

    Parameters
    ----------
    name
        For people.
    where
        What the messages call the origin of the graph: a file, or the builder's name.
    """

    def __init__(self, name: str, where: str = "") -> None:
        self._name, self._where = name, where or name
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._tensor_ids: dict[str, int] = {}
        self._op_names: set[str] = set()
        self._written: set[int] = set()
        self._read_first: dict[int, str] = {}

    def tensor(self, name: str, size_bytes: int, kind: str = "activation", **more: object) -> int:
        """Add a tensor and return its id; `more` holds ``persistent`` and ``shared``."""
        where = f"{self._where}: tensor {name!r}"
        if name in self._tensor_ids:
            raise ConfigError(where, "a tensor name is unique", "it twice", "rename one of the two")
        if not isinstance(size_bytes, int) or size_bytes < 0:
            raise ConfigError(
                where, "a size is a whole number of bytes, at least 0", repr(size_bytes), "correct the size"
            )
        if kind not in [k.value for k in TensorKind]:
            known = ", ".join(TensorKind)
            raise ConfigError(where, f"a kind is one of {known}", repr(kind), "choose one of these")
        self._tensor_ids[name] = len(self._tensors)
        self._tensors.append(Tensor(name, size_bytes, TensorKind(kind), **more))  # type: ignore[arg-type]
        return self._tensor_ids[name]

    def op(self, name: str, reads: Iterable[str] = (), writes: Iterable[str] = (), **more: object) -> int:
        """Add the next op and return its id; `more` holds the other fields of `Op`.

        ``read_bytes`` and ``write_bytes`` are the sizes of the tensors unless given.
        """
        where = f"{self._where}: op {name!r}"
        if name in self._op_names:
            raise ConfigError(where, "an op name is unique", "it twice", "rename one of the two")
        read_ids, write_ids = self._ids(where, reads), self._ids(where, writes)
        for number in ("flops", "workspace_bytes", "duration_ns", "read_bytes", "write_bytes"):
            value = more.get(number)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ConfigError(where, f"{number} is a whole number, at least 0", repr(value), "correct it")
        more.setdefault("read_bytes", sum(self._tensors[t].size_bytes for t in read_ids))
        more.setdefault("write_bytes", sum(self._tensors[t].size_bytes for t in write_ids))
        if "kind" in more:
            more["kind"] = OpKind(str(more["kind"]))
        for t in read_ids:
            if t not in self._written:
                self._read_first.setdefault(t, name)
        self._written.update(write_ids)
        self._op_names.add(name)
        self._ops.append(Op(name, read_ids, write_ids, **more))  # type: ignore[arg-type]
        return len(self._ops) - 1

    def _ids(self, where: str, names: Iterable[str]) -> tuple[int, ...]:
        ids = []
        for name in names:
            if name not in self._tensor_ids:
                raise ConfigError(
                    where,
                    "an op names tensors of the graph",
                    f"{name!r}",
                    "declare the tensor, or correct the name",
                )
            ids.append(self._tensor_ids[name])
        return tuple(dict.fromkeys(ids))

    def build(self, outputs: Sequence[str] = (), steps: int = 1) -> Graph:
        """Check the whole and return the graph.

        Raises
        ------
        ConfigError
            If there is no op, or a tensor is read before it is written although it is not there from the start: in
            program order that is a cycle (some later op writes it) or a dangling tensor (nobody does).
        """
        if not self._ops:
            raise ConfigError(self._where, "a graph has at least one op", "none", "add an op")
        if steps < 1:
            raise ConfigError(
                self._where, "a graph runs at least once", f"steps = {steps}", "set steps to 1 or more"
            )
        for t, op in self._read_first.items():
            self._check_early_read(t, op, steps)
        ids = self._ids(f"{self._where}: outputs", outputs)
        for t in ids:
            if t not in self._written and not self._tensors[t].persistent:
                name = self._tensors[t].name
                raise ConfigError(
                    f"{self._where}: outputs",
                    "an output is written by some op",
                    repr(name),
                    "correct the list",
                )
        return Graph(self._name, tuple(self._tensors), tuple(self._ops), ids, steps)

    def _check_early_read(self, tensor: int, op: str, steps: int) -> None:
        t = self._tensors[tensor]
        if t.persistent:
            return
        where = f"{self._where}: op {op!r}"
        if tensor in self._written:
            raise ConfigError(
                where,
                "what an op reads was written by an earlier op",
                f"{t.name!r}, which only a later op writes (a cycle)",
                "put the ops in program order, or mark the tensor persistent",
            )
        if t.kind != TensorKind.INPUT or steps > 1:
            raise ConfigError(
                where,
                "what an op reads is written by an earlier op, persistent, or (in one step) of kind input",
                f"{t.name!r}, which nothing writes (dangling)",
                "add the op that writes it, or mark the tensor persistent",
            )
