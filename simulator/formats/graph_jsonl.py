"""``hosim-graph/1``: an operator graph as JSON lines.

The header, then the tensors and the groups of ranks, then the ops in program order. An op names tensors and groups of
earlier lines. A small one::

    {"schema":"hosim-graph/1","name":"mlp","steps":1,"outputs":["y"],"tensors":4,"ops":2}
    {"tensor":"x","size_bytes":4096,"kind":"input"}
    {"tensor":"w","size_bytes":8192,"kind":"weight","persistent":true}
    {"tensor":"h","size_bytes":4096}
    {"tensor":"y","size_bytes":4096}
    {"op":"fwd/up","reads":["x","w"],"writes":["h"],"flops":16777216,"op_class":"matmul","phase":"forward"}
    {"op":"fwd/gelu","reads":["h"],"writes":["y"],"duration_ns":1500}

=======  =================  =====================================================================  ===========
line     key                value                                                                  default
=======  =================  =====================================================================  ===========
header   `name`             text for people                                                        file's name
header   `steps`            how many times the ops run                                             1
header   `outputs`          tensors that stay valid until the last op of a step (and end it at     none
                            home, if a scenario gives them one in another tier)
header   `tensors`, `ops`   how many lines follow of each, so that a cut file is noticed           not checked
tensor   `tensor`           unique path name                                                       required
tensor   `size_bytes`       size                                                                   required
tensor   `kind`             weight, gradient, optimizer_state, activation, kv_cache, expert,       activation
                            workspace or input
tensor   `persistent`       it exists before the first op and after the last one of each step      false
tensor   `shared`           node or supernode: read-only, stored once for all ranks there          not shared
group    `group`            unique name of ranks that meet in collectives                          required
group    `ranks`            list of those who meet, each a list of ranks: for collectives without  required
                            overlap, for send and recv pairs (from, to)
op       `op`               unique path name                                                       required
op       `reads`, `writes`  names of tensors, each once; an update in place is in both             none
op       `read_bytes`,      traffic in the compute tier                                            their sizes
         `write_bytes`
op       `flops`            arithmetic work                                                        0
op       `workspace_bytes`  room it needs while it runs                                            0
op       `duration_ns`      measured time                                                          cost model
op       `kind`             compute or collective                                                  compute
op       `op_class`         matmul, attention, vector or a key of the machine's fractions          vector
op       `dtype`            key of the machine's peaks                                             bf16
op       `phase`            forward, backward, update, prefill or decode                           none
op       `barrier`          no copy in is moved across it                                          false
op       `repeatable`       running it again makes the same values, and does nothing else          true
op       `late`             reads that are known only at run time: an object of `revealed_by` (an   none
                            earlier op), `candidates` (tensors among `reads`; what is chosen of
                            them adds its size to `read_bytes`), `samples` (how many choose; 1)
                            and `each` (how many different candidates each of these chooses; 1)
op       `collective`       what it does with other ranks, for kind collective: an object of       none
                            `does` (all_reduce, all_gather, reduce_scatter, all_to_all,
                            broadcast, send, recv), `group`, `size_bytes`, and `algorithm` (auto,
                            ring, tree, direct, hierarchical; auto)
=======  =================  =====================================================================  ===========

What an op reads was written by an earlier op, is persistent, or is of kind input in a graph of one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from sys import intern

from simulator.formats import jsonl
from simulator.graph import Collective, CollectiveKind, Graph, Late, Op, OpKind, Tensor
from simulator.graph_builder import GraphBuilder
from simulator.units import counted, suggestion

SCHEMA = "hosim-graph/1"

_HEADER = jsonl.Shape(
    {"schema": str, "name": str, "steps": int, "outputs": list, "tensors": int, "ops": int}, ("schema",)
)
_TENSOR = jsonl.Shape(
    {"tensor": str, "size_bytes": int, "kind": str, "persistent": bool, "shared": str},
    ("tensor", "size_bytes"),
)
_TYPES: dict[str, type] = {"int": int, "int | None": int, "str": str, "OpKind": str, "bool": bool}
_FIELDS = {field.name: _TYPES[str(field.type)] for field in fields(Op)[1:] if field.type in _TYPES}
_OP = jsonl.Shape({"op": str, "reads": list, "writes": list} | _FIELDS | {"late": dict, "collective": dict}, ("op",))
_RANKS = "a list of lists of ranks, such as [[0, 1], [2, 3]]"
_GROUP = jsonl.Shape({"group": str, "ranks": list}, ("group", "ranks"), {"ranks": _RANKS})
_COLLECTIVE = jsonl.Shape(
    {"does": str, "group": str, "size_bytes": int, "algorithm": str}, ("does", "group", "size_bytes")
)
_LATE = jsonl.Shape(
    {"revealed_by": str, "candidates": list, "samples": int, "each": int}, ("revealed_by", "candidates")
)
_LINES = {"op": _OP, "tensor": _TENSOR, "group": _GROUP}
_REPEATED = {"op_class", "dtype", "phase"}
"""Texts that many ops share; each is kept once."""


def read(path: Path) -> Graph:
    """Read a graph.

    Parameters
    ----------
    path
        The file, or one compressed by gzip whose name ends in ``.gz``.

    Raises
    ------
    ConfigError
        If a line or the graph breaks a rule; the message names the line.
    """
    lines = jsonl.read(path, SCHEMA, _HEADER)
    header = next(lines)
    builder = GraphBuilder(header.record.get("name", path.name.split(".")[0]), str(path))
    counts = {"tensors": 0, "ops": 0}
    for line in lines:
        builder.line, record = line.number, line.record
        if line.kind(_LINES) == "op":
            for key in _REPEATED & record.keys():
                record[key] = intern(record[key])
            _check_names_once(line)
            if "collective" in record:
                record["collective"] = _collective(line)
                record.setdefault("kind", OpKind.COLLECTIVE.value)
            if "late" in record:
                record["late"] = _late(line, builder)
            builder.op(record.pop("op"), **record)
            counts["ops"] += 1
        elif "group" in record:
            builder.group(record["group"], _members(line))
        else:
            builder.tensor(record.pop("tensor"), **record)
            counts["tensors"] += 1
    jsonl.count(header, counts)
    return builder.build(header.record.get("outputs", ()), header.record.get("steps", 1))


def _check_names_once(line: jsonl.Line, keys: tuple[str, ...] = ("reads", "writes")) -> None:
    """Refuse a tensor that an op reads or writes twice; how much traffic that is, its bytes say."""
    for key in keys:
        names = line.record.get(key, ())
        if len(names) > 1:
            name, times = Counter(map(repr, names)).most_common(1)[0]
            if times > 1:
                do = f"name it once; {key.removesuffix('s')}_bytes says how much traffic that is"
                raise line.error(f"each tensor is named once in {key}", f"{name} {times} times", do)


def _collective(line: jsonl.Line) -> Collective:
    inner = jsonl.Line(line.path, line.number, line.record["collective"])
    inner.check(_COLLECTIVE)
    about = inner.record
    kinds = {str(kind): kind for kind in CollectiveKind}
    if about["does"] not in kinds:
        must, close = f"a collective does one of {', '.join(kinds)}", suggestion(about["does"], kinds)
        raise line.error(must, repr(about["does"]), f"choose one of these{close}")
    return Collective(kinds[about["does"]], about["group"], about["size_bytes"], about.get("algorithm", "auto"))


def _late(line: jsonl.Line, builder: GraphBuilder) -> Late:
    inner = jsonl.Line(line.path, line.number, line.record["late"])
    inner.check(_LATE)
    inner.check_values(_LATE)
    _check_names_once(inner, ("candidates",))
    return builder.late(line.record["op"], **inner.record)


def _members(line: jsonl.Line) -> list[list[int]]:
    members = line.record["ranks"]
    if not all(type(ranks) is list for ranks in members):
        raise line.error(f"ranks is {_RANKS}", repr(members), "correct it")
    return list(members)


def write(graph: Graph, path: Path) -> None:
    """Write a graph; what has its default value is left out.

    Parameters
    ----------
    graph
        The graph.
    path
        The file; compressed if its name ends in ``.gz``.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    jsonl.write(path, _records(graph))


def describe(path: Path) -> str:
    """Read a graph and say in one line what is in it."""
    graph = read(path)
    sizes = sum(t.size_bytes for t in graph.tensors if t.persistent)
    return (
        f"graph {graph.name!r}: {counted(len(graph.ops), 'op')}, {counted(len(graph.tensors), 'tensor')} "
        f"({sizes:,} B persistent), {counted(graph.steps, 'step')}"
    )


def _records(graph: Graph) -> Iterator[dict[str, object]]:
    names = [t.name for t in graph.tensors]
    yield {
        "schema": SCHEMA,
        "name": graph.name,
        "steps": graph.steps,
        "outputs": [names[t] for t in graph.outputs],
        "tensors": len(graph.tensors),
        "ops": len(graph.ops),
    }
    sizes = [t.size_bytes for t in graph.tensors]
    yield from map(_tensor_record, graph.tensors)
    for group in graph.groups:
        yield {"group": group.name, "ranks": group.members}
    for op in graph.ops:
        record = _op_record(op, names, sizes)
        if op.late:
            record["late"] = _late_record(op.late, graph.ops[op.late.revealed_by].name, names)
        yield record


def _stated(value: Tensor | Op | Collective | Late, plain: object, keys: Iterable[str]) -> dict[str, object]:
    """Fields that are not as those of a plain one."""
    return {key: found for key in keys if (found := getattr(value, key)) != getattr(plain, key)}


def _tensor_record(tensor: Tensor) -> dict[str, object]:
    record: dict[str, object] = {"tensor": tensor.name, "size_bytes": tensor.size_bytes}
    return record | _stated(tensor, Tensor("", 0), ("kind", "persistent", "shared"))


def _op_record(op: Op, names: list[str], sizes: list[int]) -> dict[str, object]:
    record: dict[str, object] = {"op": op.name}
    for key, ids in (("reads", op.reads), ("writes", op.writes)):
        if ids:
            record[key] = [names[t] for t in ids]
    candidates = op.late.candidates if op.late else ()
    if op.read_bytes != sum(sizes[t] for t in op.reads) - sum(sizes[t] for t in candidates):
        record["read_bytes"] = op.read_bytes
    if op.write_bytes != sum(sizes[t] for t in op.writes):
        record["write_bytes"] = op.write_bytes
    if op.kind is not OpKind.COMPUTE and op.collective is None:
        record["kind"] = op.kind.value
    record |= _stated(op, Op(""), [key for key in _FIELDS if key not in ("read_bytes", "write_bytes", "kind")])
    if about := op.collective:
        made = {"does": about.kind, "group": about.group, "size_bytes": about.size_bytes}
        record["collective"] = made | _stated(about, Collective(about.kind, "", 0), ["algorithm"])
    return record


def _late_record(late: Late, revealed_by: str, names: list[str]) -> dict[str, object]:
    record: dict[str, object] = {"revealed_by": revealed_by, "candidates": [names[t] for t in late.candidates]}
    return record | _stated(late, Late(0, ()), ("samples", "each"))
