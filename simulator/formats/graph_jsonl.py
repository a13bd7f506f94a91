"""``hosim-graph/1``: an operator graph as JSON lines; also (written only) a graph with its cache operators.

The header is followed by tensors and groups of ranks, and then by the ops in program order. An op may name only tensors
and groups of earlier lines. Example::

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
header   `steps`            number of times that the ops run                                       1
header   `outputs`          tensors that stay valid until the last op of a step (and end it at     none
                            home, if a scenario gives them one in another tier)
header   `tensors`, `ops`   number of lines of each, so that a truncated file is noticed           not checked
tensor   `tensor`           unique path name                                                       required
tensor   `size_bytes`       size                                                                   required
tensor   `kind`             weight, gradient, optimizer_state, activation, kv_cache, expert,       activation
                            workspace or input
tensor   `persistent`       it exists before the first op and after the last one of each step      false
tensor   `shared`           node or supernode: read-only, stored once for all ranks there          not shared
group    `group`            unique name of a group of ranks, for collectives                       required
group    `ranks`            lists of the ranks that meet: disjoint for collectives, pairs (from,   required
                            to) for send and recv
op       `op`               unique path name                                                       required
op       `reads`, `writes`  names of tensors, each once; an update in place is in both             none
op       `read_bytes`,      traffic in the tier of its device                                      their sizes
         `write_bytes`
op       `flops`            arithmetic work                                                        0
op       `workspace_bytes`  scratch memory while it runs                                           0
op       `duration_ns`      measured time; required of a delay                                     cost model
op       `kind`             compute; collective; or delay: holds its stream and computes nothing   compute
op       `op_class`         a class of ops: matmul, attention, vector, ...; or one of your own         vector
op       `dtype`            key of its device's peaks                                              bf16
op       `phase`            forward, backward, update, prefill or decode                           none
op       `barrier`          no copy into the compute tier is moved across it                       false
op       `repeatable`       running it again makes the same values, and does nothing else          true
op       `stream`           compute stream of its rank that it runs on, below 32; a collective with    0
                            others runs on one of its group's
op       `device`           accelerator, or host: the cores of the machine's host_compute           accelerator
op       `dynamic`          reads that are known only at run time: an object of `revealed_by` (an   none
                            earlier op), `candidates` (tensors among `reads`; the chosen ones add
                            their size to `read_bytes`), `samples` (number of samples that
                             choose; 1), `each` (different candidates per sample; 1) and `updates`
                             (what is chosen is written, too, and all candidates are among
                             `writes`; false)
op       `spread`           how a delay varies from rank to rank about its duration: an object of      none
                            `distribution` (uniform, exponential, lognormal) and `deviation_ns`
                            (standard deviation; of exponential the mean, and not stated)
op       `collective`       communication with other ranks, for kind collective: an object of      none
                            `does` (all_reduce, all_gather, reduce_scatter, all_to_all,
                            broadcast, send, recv), `group`, `size_bytes`, and `algorithm` (auto,
                            ring, tree, direct, hierarchical; auto)
=======  =================  =====================================================================  ===========

What an op reads was written by an earlier op, is persistent, or is of kind input in a graph of one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, Required

import orjson

from simulator.formats import jsonl
from simulator.graph import Collective, CollectiveKind, DelaySpread, DynamicReads, Graph, Op, OpKind, Tensor
from simulator.graph_builder import GraphBuilder, OpNumbers
from simulator.plan import NOWHERE

if TYPE_CHECKING:
    from simulator.policies.static.cache_ops import CacheOp
    from simulator.policies.static.place import Augmented
from simulator.units import counted

SCHEMA = "hosim-graph/1"


class _GraphHeader(jsonl.Record, total=False):
    schema: Required[str]
    name: str
    steps: jsonl.Whole
    outputs: list[str]
    tensors: jsonl.Whole
    ops: jsonl.Whole


class _Tensor(jsonl.Record, total=False):
    tensor: Required[str]
    size_bytes: Required[int]
    kind: str
    persistent: bool
    shared: str


class _Group(jsonl.Record):
    group: str
    ranks: list[list[int]]


class _DynamicReads(jsonl.Record, total=False):
    revealed_by: Required[str]
    candidates: Required[jsonl.Names]
    samples: int
    each: int
    updates: bool


class _Collective(jsonl.Record, total=False):
    does: Required[str]
    group: Required[str]
    size_bytes: Required[int]
    algorithm: str


class _DelaySpread(jsonl.Record, total=False):
    distribution: Required[str]
    deviation_ns: int


class _Op(jsonl.Record, OpNumbers, total=False):
    op: Required[str]
    kind: str
    reads: jsonl.Names
    writes: jsonl.Names
    collective: _Collective
    dynamic: _DynamicReads
    spread: _DelaySpread


# Optional fields of an op's line -> their defaults.
_NESTED = ("collective", "dynamic", "spread")
_PLAIN = {field.name: field.default for field in fields(Op)[3:] if field.name not in _NESTED}
_KINDS = {str(kind): kind for kind in CollectiveKind}


def read(path: Path) -> Graph:
    """Read a graph.

    Parameters
    ----------
    path
        The file, perhaps compressed with gzip.

    Raises
    ------
    ConfigError
        If a line or the graph breaks a rule; the message names the line.
    """
    lines = jsonl.read(path, SCHEMA, _GraphHeader, {"op": _Op, "tensor": _Tensor, "group": _Group})
    header = next(lines)
    builder = GraphBuilder(header.record.get("name", path.name.split(".")[0]), str(path))
    counts = {"tensors": 0, "groups": 0, "ops": 0}
    for line in lines:
        builder.line, record = line.number, line.record
        counts[f"{line.kind}s"] += 1
        if line.kind == "op":
            _add_op(builder, record)
        elif line.kind == "group":
            builder.group(record["group"], record["ranks"])
        else:
            builder.tensor(record.pop("tensor"), **record)
    jsonl.count(header, counts)
    return builder.build(header.record.get("outputs", ()), header.record.get("steps", 1))


def _add_op(builder: GraphBuilder, record: dict[str, Any]) -> None:
    for key in ("op_class", "dtype", "phase"):
        if key in record:  # strings that many ops share are stored once
            record[key] = intern(record[key])
    if about := record.get("collective"):
        does = about.pop("does")
        record["collective"] = Collective(_KINDS.get(does, does), **about)
        record.setdefault("kind", OpKind.COLLECTIVE.value)
    if dynamic := record.get("dynamic"):
        record["dynamic"] = builder.dynamic_reads(record["op"], **dynamic)
    if spread := record.get("spread"):
        record["spread"] = DelaySpread(**spread)
    builder.op(record.pop("op"), **record)


def write(graph: Graph, path: Path) -> None:
    """Write a graph, leaving out fields with default values.

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
    jsonl.write(path, records(graph))


def describe(path: Path) -> str:
    """Read a graph and describe it in one line."""
    return summary(read(path))


def summary(graph: Graph) -> str:
    """Describe a graph in one line."""
    sizes = f"{sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent):,} B persistent"
    ops, tensors = counted(len(graph.ops), "op"), counted(len(graph.tensors), "tensor")
    return f"graph {graph.name!r}: {ops}, {tensors} ({sizes}), {counted(graph.steps, 'step')}"


def records(graph: Graph) -> Iterator[dict[str, object]]:
    """Yield the lines of a graph's file, its ops last."""
    names = [t.name for t in graph.tensors]
    outputs, counts = [names[t] for t in graph.outputs], {"tensors": len(graph.tensors), "ops": len(graph.ops)}
    yield {"schema": SCHEMA, "name": graph.name, "steps": graph.steps, "outputs": outputs, **counts}
    plain = {field.name: field.default for field in fields(Tensor)[2:]}
    for tensor in graph.tensors:
        yield {"tensor": tensor.name, "size_bytes": tensor.size_bytes} | _stated(tensor, plain)
    for group in graph.groups:
        yield {"group": group.name, "ranks": group.members}
    for op in graph.ops:
        yield _op_record(op, graph, names)


def _stated(value: Tensor | Op | Collective | DynamicReads | DelaySpread, plain: dict[str, Any]) -> dict[str, object]:
    """Return the fields whose values differ from the defaults in `plain`."""
    return {key: getattr(value, key) for key, default in plain.items() if getattr(value, key) != default}


def _op_record(op: Op, graph: Graph, names: list[str]) -> dict[str, object]:
    chosen = op.dynamic.candidates if op.dynamic else ()
    read, written, left = (sum(graph.tensors[t].size_bytes for t in ids) for ids in (op.reads, op.writes, chosen))
    record: dict[str, object] = {"op": op.name}
    record |= {key: [names[t] for t in ids] for key, ids in (("reads", op.reads), ("writes", op.writes)) if ids}
    written -= left if op.dynamic and op.dynamic.updates else 0
    record |= _stated(op, _PLAIN | {"read_bytes": read - left, "write_bytes": written})
    if op.collective:
        record.pop("kind", None)
        about = {"group": None, "size_bytes": None, "algorithm": "auto"}
        record["collective"] = {"does": op.collective.kind, **_stated(op.collective, about)}
    if op.spread:
        record["spread"] = {"distribution": op.spread.distribution, **_stated(op.spread, {"deviation_ns": 0})}
    if op.dynamic:
        dynamic = {"revealed_by": graph.ops[op.dynamic.revealed_by].name, "candidates": [names[t] for t in chosen]}
        record["dynamic"] = dynamic | _stated(op.dynamic, {"samples": 1, "each": 1, "updates": False})
    return record


def write_augmented(augmented: Augmented, path: Path) -> None:
    """Write ``hosim-augmented/1``: an operator graph with its cache operators, for authors of compiler passes.

    One JSON object, which hosim does not read back: it reads the plan written beside it. Everything is referred to by
    name; times are in ns, sizes in B. A program point is the index of the op that it precedes; the number of ops stands
    for the end of the step.

    =============  =================================================================================================
    key            value
    =============  =================================================================================================
    `schema`       ``hosim-augmented/1``
    `graph`        name of the graph
    `compute_tier` where ops work
    `tensors`      list of ``{name, size_bytes, kind, persistent, home}``; `home` is null if an op makes the tensor
    `ops`          list of ``{name, phase, reads, writes, duration_ns, barrier}`` in program order
    `cache_ops`    list in the order of issue of ``{name, role, trip, tensor, source, target, size_bytes, alone_ns,
                   after, before, window, position, stall_ns, residency_ns}``: `role` is store, detach or prefetch;
                   `trip` is shared by the operators of one trip away; `target` is null for a detach; `after` and
                   `before` name the op that must have run and the op that needs the tensor, or are null; `window` is
                   the first and the last program point, `position` the chosen one; the last two are the cost terms
                   of Algorithm 1 there
    `edges`        list of ``{from, to, wraps}``: dependencies between ops and cache operators, by name; `wraps` if
                   the edge leads into the next step
    =============  =================================================================================================

    Parameters
    ----------
    augmented
        The graph with its cache operators.
    path
        The file.
    """
    problem, graph, tiers = augmented.problem, augmented.problem.graph, augmented.problem.tiers
    names = [tensor.name for tensor in graph.tensors]
    homes = [None if home == NOWHERE else tiers[home] for home in augmented.plan.home]
    placed = zip(graph.tensors, homes, strict=True)
    tensors = [_fields(tensor, "name size_bytes kind persistent") | {"home": home} for tensor, home in placed]
    ops = []
    for op, took in zip(graph.ops, problem.durations_ns, strict=True):
        used = {way: [names[t] for t in getattr(op, way)] for way in ("reads", "writes")}
        ops.append({**_fields(op, "name phase"), **used, "duration_ns": took, "barrier": op.barrier})
    cache_ops = [_cache_op(augmented, cache_op) for cache_op in augmented.cache_ops]
    edges = [{"from": edge.source, "to": edge.target, "wraps": edge.wraps} for edge in augmented.edges()]
    about = {"schema": "hosim-augmented/1", "graph": graph.name, "compute_tier": tiers[problem.compute_tier]}
    content = {**about, "tensors": tensors, "ops": ops, "cache_ops": cache_ops, "edges": edges}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def _fields(record: object, names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names.split()}


def _cache_op(augmented: Augmented, cache_op: CacheOp) -> dict[str, Any]:
    ops, tiers = augmented.problem.graph.ops, augmented.problem.tiers
    tensor = augmented.problem.graph.tensors[cache_op.tensor].name
    target = None if cache_op.target == NOWHERE else tiers[cache_op.target]
    after = ops[cache_op.after].name if cache_op.after >= 0 else None
    before = ops[cache_op.before].name if 0 <= cache_op.before < len(ops) else None
    about = {"name": augmented.name(cache_op), **_fields(cache_op, "role trip"), "tensor": tensor}
    copy = {"source": tiers[cache_op.source], "target": target, **_fields(cache_op, "size_bytes alone_ns")}
    order = {"after": after, "before": before, "window": [cache_op.first, cache_op.last]}
    return about | copy | order | _fields(cache_op, "position stall_ns residency_ns")
