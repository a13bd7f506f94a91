"""The cases of the engine benchmark: how many steps each has, and how to run it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from synthetic import decode

from simulator import engine
from simulator.builders.specs import blocks
from simulator.cost import durations_ns
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.plan import FREE, Actions, Plan
from simulator.policies import POLICIES
from simulator.policies.problem import Problem
from simulator.trace import Trace

LAYERS = 8
"""Layers of one step; the step is repeated as often as the number of ops asks for."""


@dataclass(frozen=True)
class Case:
    """One measured run.

    Attributes
    ----------
    steps
        Steps that the host issues in all: what "operator" means in operators per second, computes and cache operators
        alike. What a reactive plan issues is counted in its trace.
    computes
        Computes among them.
    run
        Runs it.
    """

    steps: int
    computes: int
    run: Callable[[], Trace]


def _machine(hbm: str, host: dict[str, Any] | None = None) -> Hardware:
    link = {"bandwidth": "1 GB/s"}
    return Hardware.model_validate(
        {
            "schema": "hosim/hardware/1",
            "name": "bench",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}},
            "host": host or {},
            "tiers": {"hbm": {"capacity": hbm, "bandwidth": "1 TB/s"}, "pool": {"capacity": "inf"}},
            "links": {
                "out": {"source": "hbm", "target": "pool", **link},
                "in": {"source": "pool", "target": "hbm", **link},
            },
        }
    )


def _case(graph: Graph, hardware: Hardware, steps: Actions, homes: list[int]) -> Case:
    plan = Plan("bench", hardware.tier_names, tuple(homes), steps, graph.steps)
    program = engine.Program(graph, plan, durations_ns(graph, hardware))
    return Case(len(steps) * graph.steps, len(graph.ops) * graph.steps, lambda: engine.run([program], hardware))


def decode_case(ops: int, layers: int = LAYERS) -> Case:
    """Nine steps a layer: weight and KV cache in, four computes, KV cache out, two detaches; HBM holds three layers."""
    graph = decode(layers, weight_bytes=4000, kv_bytes=1000, duration_ns=1200, steps=max(1, ops // (9 * layers)))
    ids = {tensor.name: i for i, tensor in enumerate(graph.tensors)}
    steps = Actions()
    for layer, block in enumerate(blocks(layers)):
        weight, kv = ids[f"{block}/weight"], ids[f"{block}/kv"]
        steps.copy(weight, 1, 0)
        steps.copy(kv, 1, 0)
        for i in range(4):
            steps.compute(4 * layer + i)
        steps.copy(kv, 0, 1)
        steps.detach(weight, 0)
        steps.detach(kv, 0)
    homes = [0 if tensor.name == "hidden" else 1 for tensor in graph.tensors]
    return _case(graph, _machine("16 kB"), steps, homes)


def pool_case(ops: int, ranks: int = 1) -> Case:
    """The decode layer on so many ranks, with `ops` steps in all: weights from a pool whose reads all share, KV cache
    in over a channel of each rank's own, and out over one whose bandwidth all share."""
    graph = decode(
        LAYERS, weight_bytes=4000, kv_bytes=1000, duration_ns=1200, steps=max(1, ops // (9 * LAYERS * ranks))
    )
    ids = {tensor.name: i for i, tensor in enumerate(graph.tensors)}
    hardware = _pool_machine(ranks)
    hbm, pool, ddr = (hardware.tier_names.index(name) for name in ("hbm", "pool", "ddr"))
    steps = Actions()
    for layer in range(LAYERS):
        weight, kv = ids[f"L{layer:02}/weight"], ids[f"L{layer:02}/kv"]
        steps.copy(weight, pool, hbm)
        steps.copy(kv, ddr, hbm)
        for i in range(4):
            steps.compute(4 * layer + i)
        steps.copy(kv, hbm, ddr)
        steps.detach(weight, hbm)
        steps.detach(kv, hbm)
    homes = [hbm if t.name == "hidden" else ddr if t.name.endswith("kv") else pool for t in graph.tensors]
    plan = Plan("bench", hardware.tier_names, tuple(homes), steps, graph.steps)
    program = engine.Program(graph, plan, durations_ns(graph, hardware))
    count = ranks * graph.steps
    return Case(len(steps) * count, len(graph.ops) * count, lambda: engine.run([program] * ranks, hardware))


def _pool_machine(ranks: int) -> Hardware:
    """Each rank's share of the pool is 1 GB/s each way, however many there are."""
    link, shared = {"bandwidth": "4 GB/s"}, {"bandwidth": f"{ranks} GB/s", "scope": "supernode"}
    return Hardware.model_validate(
        {
            "schema": "hosim/hardware/1",
            "name": "pool",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 TFLOP/s"}},
            "tiers": {
                "hbm": {"capacity": "16 kB", "bandwidth": "1 TB/s"},
                "pool": {"capacity": "inf", "scope": "supernode"},
                "ddr": {"capacity": "inf"},
            },
            "links": {
                "read": {"source": "pool", "target": "hbm", **link},
                "write": {"source": "hbm", "target": "ddr", **link},
                "own": {"source": "ddr", "target": "hbm", "bandwidth": "1 GB/s"},
            },
            "buses": {"reads": {"links": ["read"], **shared}, "writes": {"links": ["write"], **shared}},
            "topology": {"devices_per_node": ranks},
        }
    )


def compute_case(ops: int) -> Case:
    """Forty-nine steps a layer: forty-four computes and five detaches of what they hand on, no copies."""
    builder, steps = GraphBuilder("compute-heavy"), Actions()
    builder.tensor("hidden", 100, persistent=True)
    for layer in range(LAYERS):
        weight = f"L{layer:02}/weight"
        builder.tensor(weight, 4000, "weight", persistent=True)
        tensor = -1
        for i in range(44):
            part = f"L{layer:02}/part{i // 9}"
            first, last = i % 9 == 0, i % 9 == 8 or i == 43
            tensor = builder.tensor(part, 100) if first else tensor
            reads, writes = ["hidden", weight, *([] if first else [part])], ["hidden", *([part] if first else [])]
            steps.compute(builder.op(f"L{layer:02}/{i:02}", reads, writes, duration_ns=1200))
            if last:
                steps.detach(tensor, 0)
    graph = builder.build(steps=max(1, ops // (49 * LAYERS)))
    return _case(graph, _machine("100 kB"), steps, [0 if t.persistent else -1 for t in graph.tensors])


def reactive_case(ops: int) -> Case:
    """On-demand LRU, about 3,000 of 5,064 tensors resident; two tensors an op, about 28 copies per 100 computes."""
    builder = GraphBuilder("reactive")
    builder.tensor("hidden", 1, persistent=True)
    names = [f"w{i:04}" for i in range(5064)]
    for name in names:
        builder.tensor(name, 1000, "weight", persistent=True)
    state = 1
    computes = min(ops, 20_000)
    for i in range(computes):
        state = (state * 1103515245 + 12345) % 2**31
        hot = state // 65536 % 100 < 81
        one = state // 7 % (2400 if hot else len(names))
        two = (one * 31 + i) % (2400 if hot else len(names))
        builder.op(f"op{i:06}", ["hidden", names[one], names[two]], ["hidden"], duration_ns=1200)
    graph = builder.build(steps=max(1, ops // computes))
    host = {"reactive": {"inspect": "500 ns", "compute": "500 ns", "copy": "500 ns"}}
    hardware = _machine("3 MB", host)
    policy = POLICIES["reactive"]
    homes = (0, *(FREE for _ in names))
    spans = durations_ns(graph, hardware)
    problem = Problem(graph, hardware, homes, 3_000_100, spans, _no_replay)
    plan = policy.function(problem, policy.options(evict="lru", look_ahead=0))
    program = engine.Program(graph, plan, spans)

    def run() -> Trace:
        return engine.run([program], hardware, budget_bytes=3_000_100)

    return Case(computes * graph.steps, computes * graph.steps, run)


def _no_replay(problem: Problem, plan: Plan) -> Any:
    raise NotImplementedError


CASES: dict[str, Callable[[int], Case]] = {
    "decode": decode_case,
    "compute": compute_case,
    "reactive": reactive_case,
    "pool1": pool_case,
    "pool64": partial(pool_case, ranks=64),
    "pool384": partial(pool_case, ranks=384),
}
