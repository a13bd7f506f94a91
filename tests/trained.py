"""Small decoders that are trained, and what tests count of their graphs."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from simulator.graph import Graph
from simulator.lifetime import Lifetimes
from simulator.workload import Workload

GQA = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 6}
MLA = {"kind": "mla", "heads": 4, "q_lora_rank": 10, "kv_lora_rank": 11, "qk_nope": 5, "qk_rope": 4, "v_head": 7}
SPARSE = {"compress": {"block": 4, "stride": 2}, "select": {"block": 2, "top": 3, "last": 1}, "window": 3}
VIEWS = [part | {"sparse": SPARSE | {"caches": caches}} for part in (GQA, MLA) for caches in ("shared", "own")]
"""Attention of three views, which may have a key and a value each."""
DENSE = {"kind": "dense", "width": 24}
EXPERTS = {"kind": "experts", "routed": 8, "top_k": 2, "width": 10, "shared": 1, "router_bias": True}
H, V, LAYERS, BATCH, SEQUENCE = 16, 40, 3, 2, 8
T = BATCH * SEQUENCE


def fed_by(feed_forward: dict[str, Any]) -> dict[str, Any]:
    """What a model says of its feed-forwards: of those with experts the first layer has a dense one."""
    others = [{"stop": 1, "feed_forward": {"kind": "dense", "width": 24}}] if "routed" in feed_forward else []
    return {"feed_forward": feed_forward, "others": others}


def workload(attention: dict[str, Any] = GQA, feed_forward: dict[str, Any] = DENSE, /, **more: Any) -> Workload:
    model = {"family": "decoder", "layers": LAYERS, "hidden": H, "vocabulary": V}
    model |= {"attention": attention, **fed_by(feed_forward)}
    data = {"name": "w", "model": model, "batch": BATCH, "sequence": SEQUENCE, **more}
    return Workload.model_validate(data)


def arithmetic(graph: Graph) -> int:
    return sum(op.flops for op in graph.ops)


def flops(graph: Graph, phase: str, op_class: str) -> int:
    """Of a phase and a class; backward of attention is of its class, too."""
    of_class = (op_class, f"{op_class}_backward")
    return sum(op.flops for op in graph.ops if op.phase == phase and op.op_class in of_class)


def sizes(graph: Graph, *kinds: str) -> dict[str, int]:
    return {t.name: t.size_bytes for t in graph.tensors if t.kind in kinds}


def saved_bytes(graph: Graph, block: str) -> int:
    """Sizes of what a forward op of `block` writes and an op of another phase reads, by walking the ops."""
    written = {t for op in graph.ops if op.phase == "forward" and op.name.startswith(block) for t in op.writes}
    read = {t for op in graph.ops if op.phase != "forward" for t in op.reads}
    return sum(graph.tensors[t].size_bytes for t in written & read)


def check_lives(graph: Graph) -> None:
    """Every gradient is used up by its update, and nothing outlives the step."""
    life = Lifetimes(graph)
    dead = Counter(t for ts in life.dead_after for t in ts)
    for t, tensor in enumerate(graph.tensors):
        assert dead[t] == (not tensor.persistent), tensor.name
        if tensor.kind == "gradient" and not re.search(r"^mb\d/|\.part$", tensor.name):
            assert graph.ops[life.last_use[t]].phase in {"update", "backward"}


LAYOUTS = [
    {"data": d, "expert": e, "tensor": t, "pipeline": p, "sequence": bool(s), "micro_batches": m}
    for d, e, t, p, s, m in [
        (2, 1, 1, 1, 0, 1), (4, 2, 1, 1, 0, 2), (1, 1, 2, 1, 0, 1), (1, 1, 2, 3, 1, 2), (2, 2, 2, 1, 1, 1),
        (2, 4, 2, 1, 0, 1), (2, 4, 2, 3, 1, 2), (1, 2, 2, 1, 0, 1), (4, 4, 1, 1, 0, 1),
    ]
]  # fmt: skip
LAYOUTS += [
    {"data": 4, "expert": 4, "expert_tensor": 1, "tensor": 2, "pipeline": 1, "sequence": True, "micro_batches": 1}
]
ALONE = ("attn.q_a", "attn.kv_a", "ffn.router")
"""Linears whose weights every tensor rank has as a whole, and applies to all tokens."""


def by_op(graphs: list[Graph], phase: str) -> Counter[str]:
    """Work by linear, whatever the layer, the micro-batch and the gradient."""
    total: Counter[str] = Counter()
    for op in (op for graph in graphs for op in graph.ops if op.phase == phase):
        total[re.sub(r"^(mb\d/)?\w+/(fwd|bwd|again)/|\.[dw]grad$", "", op.name)] += op.flops
    return Counter({name: number for name, number in total.items() if number})
