"""Small problems for policies, and plans told as text.

One byte takes one nanosecond on a link, there is no latency; the compute tier is ``hbm`` (0), the other ``ddr`` (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from simulator import engine, metrics
from simulator.cost import durations_ns
from simulator.draws import Draws
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.lifetime import Lifetimes
from simulator.plan import COMPUTE, COPY, DETACH, Actions, Plan
from simulator.policies import FREE, POLICIES, Problem, Replay
from simulator.policies.static.cache_ops import Role
from simulator.policies.static.place import Augmented
from simulator.trace import CAUSES

HBM, DDR = 0, 1


OPTIONS = [
    ("resident", {}),
    ("reactive", {}),
    *(("reactive", {"evict": evict, "look_ahead": 0}) for evict in ("lru", "fifo", "furthest")),
    ("reactive", {"evict": "lru", "look_ahead": 2}),
    ("reactive", {"evict": "furthest", "look_ahead": 3, "synchronous": True}),
    ("reactive", {"evict": "lru", "look_ahead": 2, "drains": True}),
    ("lookahead", {"select_distance": 1, "distance": 1}),
    ("lookahead", {"select_distance": 1, "distance": 3}),
    ("offload_saved", {}),
    ("offload_saved", {"barrier_before_backward": False}),
    ("offload_saved", {"synchronous": True}),
    ("upstream_greedy", {}),
    ("upstream_greedy", {"limit": "5 B", "lead": 2}),
    ("recompute", {}),
    ("static", {}),
    ("static", {"recompute": True}),
]
ELSEWHERE = {"hybrid": "test_policies_dynamic", "optimal": "test_optimum"}
"""Policies that have laws of their own."""
OPTIONS += [(name, {}) for name in POLICIES if name not in {*dict(OPTIONS), *ELSEWHERE}]


def quick_first(*slow: tuple[str, dict[str, Any]]) -> list[Any]:
    """All options as parameters of a test, of which some are slow."""
    return [pytest.param(*one, marks=[pytest.mark.slow] * (one in slow)) for one in OPTIONS]


def machine(*, ddr: str = "inf", **links: dict[str, Any]) -> Hardware:
    """HBM and DDR with a link each way at 1 B/ns; `links` overrides fields of ``d2h`` and ``h2d`` or adds links.

    A link from or to another tier brings it along, with endless room.
    """
    known = {"d2h": {"source": "hbm", "target": "ddr"}, "h2d": {"source": "ddr", "target": "hbm"}}
    ends = [link[end] for link in links.values() for end in ("source", "target") if end in link]
    document = {
        "name": "small",
        "compute_tier": "hbm",
        "compute": {"peak": {"bf16": "1 TFLOP/s"}},
        "tiers": {tier: {"capacity": "inf"} for tier in ("hbm", "ddr", *ends)}
        | {"hbm": {"capacity": "inf", "bandwidth": "1 TB/s"}, "ddr": {"capacity": ddr}},
        "links": {
            name: {"bandwidth": "1 GB/s"} | known.get(name, {}) | links.get(name, {}) for name in {**known, **links}
        },
    }
    return Hardware.model_validate(document)


def train(layers: int = 3, size: int = 10, duration: int = 10, steps: int = 1) -> Graph:
    """A chain of layers: forward ``f0 ..`` saves ``a0 ..``, backward ``.. b0`` reads them in reverse."""
    builder = GraphBuilder("train")
    builder.tensor("w", 5, "weight", persistent=True)
    for i in range(layers):
        builder.tensor(f"a{i}", size)
        reads = ["w", f"a{i - 1}"] if i else ["w"]
        builder.op(f"f{i}", reads, [f"a{i}"], phase="forward", duration_ns=duration)
    for i in reversed(range(layers)):
        builder.tensor(f"g{i}", 1)
        reads = ["w", f"a{i}", f"g{i + 1}"] if i < layers - 1 else ["w", f"a{i}"]
        builder.op(f"b{i}", reads, [f"g{i}"], phase="backward", duration_ns=duration)
    return builder.build(steps=steps)


def problem(
    graph: Graph, budget: float = float("inf"), homes: dict[str, int] | None = None, hardware: Hardware | None = None
) -> Problem:
    """A problem whose persistent tensors live in HBM and all else is free, but for `homes` by tensor name."""
    hardware, homes = hardware or machine(), homes or {}
    home = tuple(homes.get(t.name, HBM if t.persistent else FREE) for t in graph.tensors)
    times = durations_ns(graph, hardware)
    return Problem(graph, hardware, home, budget, times, replay)


def replay(given: Problem, plan: Plan, draws: Draws | None = None) -> Replay:
    """Run a plan on the engine."""
    program = engine.Program(given.graph, plan, given.durations_ns, draws=draws)
    trace = engine.run([program], given.hardware, budget_bytes=given.budget_bytes)
    ran = metrics.RankRun.of(given.graph, given.hardware, trace)
    row = metrics.tried_figures(given.graph, given.hardware, ran)
    peaks = {tier: row[f"peak_{tier}_bytes"] for tier in given.tiers}
    waits = {cause: row.get(f"wait_{cause}_ns", 0) for cause in CAUSES}
    return Replay(trace.status, row["makespan_ns"], row["step_ns"], peaks, waits, trace, ran.begun_ns)


def needed(graph: Graph, home: list[int]) -> list[int]:
    """By op: what is pinned, the working set of the rest, and its workspace."""
    size, found = [t.size_bytes for t in graph.tensors], Lifetimes(graph)
    demand = []
    for i, op in enumerate(graph.ops):
        used = {*op.reads, *op.writes}
        pinned = {t for t, tier in enumerate(home) if tier == HBM and found.born[t] != -1}
        there = {t for t in pinned if found.born[t] <= i <= found.dies[t]}
        demand.append(sum(size[t] for t in used | there) + op.workspace_bytes)
    return demand


def recorded(plan: Plan, trace) -> Plan:
    """The plan with the steps that it issued, as a fixed plan."""
    if plan.fixed is not None:
        return plan
    issued = trace.issued[0].whole()
    steps = Actions.from_columns(*(issued[name].tolist() for name in ("kind", "a", "b", "c")))
    return replace(plan, actions=steps, repeats=1)


def tell(given: Problem, plan: Plan) -> list[str]:
    """The steps as text: ``f0``, ``a0 hbm>ddr``, ``a0 -hbm``, ``sync a0``; a reactive plan tells what it yields."""
    tensors, tiers = given.graph.tensors, given.tiers
    view: Any = SimpleNamespace(steps=given.graph.steps)
    codes: Sequence[tuple[int, ...]] = list(
        plan.actions.codes() if isinstance(plan.actions, Actions) else plan.actions(view)
    )
    told = []
    for kind, a, b, c in codes:
        if kind == COMPUTE:
            told.append(given.graph.ops[a].name)
        elif kind == COPY:
            told.append(f"{tensors[a].name} {tiers[b]}>{tiers[c]}")
        elif kind == DETACH:
            told.append(f"{tensors[a].name} -{tiers[b]}")
        else:
            told.append(f"sync {tensors[a].name}")
    return told


def check_augmented(augmented: Augmented) -> None:
    """Each operator lies in its window, the window between producer and consumer and within barriers; a trip's follow
    one another; and no op reads a tensor while it is away."""
    ops = augmented.problem.graph.ops
    for one in augmented.cache_ops:
        assert 0 <= one.first <= one.position <= one.last <= len(ops), "in its window"
        assert one.after < one.first, "behind what it follows"
        assert one.before < 0 or one.last <= one.before, "ahead of what it precedes"
        assert not any(op.barrier for op in ops[one.first : one.last]), "no window crosses a barrier"
    for chain in augmented.chains:
        store, detach, prefetch = (chain.get(role) for role in (Role.STORE, Role.DETACH, Role.PREFETCH))
        assert not store or (detach and store.position <= detach.position), "a detach follows its store"
        wraps = detach and prefetch and prefetch.before <= detach.after
        assert not detach or not prefetch or wraps or detach.position <= prefetch.position, "prefetched behind that"
    away, waiting = set(augmented.homes), list(augmented.cache_ops)
    for number, op in enumerate(ops):
        while waiting and waiting[0].position == number:
            one = waiting.pop(0)
            if one.role is not Role.STORE:
                (away.add if one.role is Role.DETACH else away.discard)(one.tensor)
        assert away.isdisjoint(op.reads), f"{op.name} reads what is there"
        away.difference_update(op.writes)
