"""``hosim-augmented/1``: an operator graph with its cache operators, for those who write compiler passes.

One JSON object, written only (the plan beside it is what hosim reads). Everything is named; times are in ns, sizes in
B. A program point is the index of the op that it lies before; the number of ops is the end of the step.

=============  =====================================================================================================
key            value
=============  =====================================================================================================
`schema`       ``hosim-augmented/1``
`graph`        name of the graph
`compute_tier` where ops work
`tensors`      list of ``{name, size_bytes, kind, persistent, home}``; `home` is null if an op makes the tensor
`ops`          list of ``{name, phase, reads, writes, duration_ns, barrier}`` in program order
`cache_ops`    list in the order of issue of ``{name, role, trip, tensor, source, target, size_bytes, alone_ns, after,
               before, window, position, stall_ns, residency_ns}``: `role` is store, detach or prefetch; `trip` is
               shared by the operators of one trip away; `target` is null for a detach; `after` and `before` name the
               op that must have run and the op that needs the tensor, or are null; `window` is the first and the last
               program point, `position` the chosen one; the last two are the cost terms of Algorithm 1 there
`edges`        list of ``{from, to, wraps}``: dependencies between ops and cache operators, by name; `wraps` if the
               edge leads into the next step
=============  =====================================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from simulator.plan import NOWHERE, Plan
from simulator.policies.static.augmented import Augmented, CacheOp

SCHEMA = "hosim-augmented/1"


def write(augmented: Augmented, plan: Plan, path: Path) -> None:
    """Write an augmented graph.

    Parameters
    ----------
    augmented, plan
        The graph with its cache operators, and the plan that came of it.
    path
        The file.
    """
    path.write_bytes(orjson.dumps(content(augmented, plan), option=orjson.OPT_INDENT_2) + b"\n")


def content(augmented: Augmented, plan: Plan) -> dict[str, Any]:
    """Return the object that `write` writes."""
    problem, graph, tiers = augmented.problem, augmented.problem.graph, augmented.problem.tiers
    names = [tensor.name for tensor in graph.tensors]
    tensors = [
        _fields(about, "name size_bytes kind persistent") | {"home": None if home == NOWHERE else tiers[home]}
        for about, home in zip(graph.tensors, plan.home, strict=True)
    ]
    ops = []
    for op, took in zip(graph.ops, problem.durations_ns, strict=True):
        used = {way: [names[t] for t in getattr(op, way)] for way in ("reads", "writes")}
        ops.append({**_fields(op, "name phase"), **used, "duration_ns": took, "barrier": op.barrier})
    return {
        "schema": SCHEMA,
        "graph": graph.name,
        "compute_tier": tiers[problem.compute_tier],
        "tensors": tensors,
        "ops": ops,
        "cache_ops": [_cache_op(augmented, one) for one in augmented.cache_ops],
        "edges": [{"from": edge.source, "to": edge.target, "wraps": edge.wraps} for edge in augmented.edges()],
    }


def _fields(one: object, names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names.split()}


def _cache_op(augmented: Augmented, one: CacheOp) -> dict[str, Any]:
    ops, tiers = augmented.problem.graph.ops, augmented.problem.tiers
    return {
        "name": augmented.name(one),
        **_fields(one, "role trip"),
        "tensor": augmented.problem.graph.tensors[one.tensor].name,
        "source": tiers[one.source],
        "target": None if one.target == NOWHERE else tiers[one.target],
        **_fields(one, "size_bytes alone_ns"),
        "after": ops[one.after].name if one.after >= 0 else None,
        "before": ops[one.before].name if 0 <= one.before < len(ops) else None,
        "window": [one.first, one.last],
        **_fields(one, "position stall_ns residency_ns"),
    }
