"""Laws of ops of the host: the referee accepts what the engine does with them, and no plan beats the bounds."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from random import Random

import pytest
from bounding import limits_alone
from examples import examples, some
from hypothesis import event, given, settings
from oracle_cases import Run, hosted
from policy_problems import problem, replay

from simulator import engine, metrics
from simulator.cost import durations_ns
from simulator.errors import CapacityError, ScopeError
from simulator.graph import Job
from simulator.graph_builder import GraphBuilder
from simulator.hardware import Hardware
from simulator.metrics import summarise
from simulator.plan import FREE
from simulator.policies import POLICIES, Problem
from simulator.referee import check_plan, check_trace

HBM, DDR = 0, 1
POLICY_NAMES = ["resident", "static", "reactive", "lookahead", "offload_saved", "upstream_greedy", "recompute"]
AGAIN = "static, which may run ops again"


@settings(max_examples=examples(200))
@given(hosted())
def test_the_referee_accepts_any_run_and_no_plan_beats_the_bounds(run: Run) -> None:
    """Nothing is said to stay at home in HBM, so that drawn plans may move it."""
    trace = engine.run(run.programs, run.hardware, budget_bytes=run.budget_bytes)
    graph, plans = run.programs[0].graph, [program.plan for program in run.programs]
    for plan in plans:
        check_plan(graph, run.hardware, plan)
    check_trace(graph, run.hardware, plans, trace, run.budget_bytes)
    event(trace.status)
    if trace.status != "ok" or len(plans) > 1 or metrics.repeats(Job.of(graph), trace):
        return
    homes = [FREE if home == HBM else home for home in plans[0].home]
    limits = limits_alone(graph, run.hardware, durations_ns(graph, run.hardware), homes)
    assert summarise(graph, run.hardware, trace)["step_ns"] >= limits.step(run.budget_bytes).ns


def machine(draw: Random) -> Hardware:
    """HBM over DDR, in which the host computes."""
    return Hardware.model_validate(
        {
            "name": "hosted",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "1 GFLOP/s"}},
            "host_compute": {"tier": "ddr", "peak": {"bf16": "1 GFLOP/s"}, "launch": draw.choice(["0 ns", "3 ns"])},
            "host": {"queue_depth": draw.choice([1, 4, 1024])},
            "tiers": {
                "hbm": {"capacity": "inf", "bandwidth": "1 GB/s"},
                "ddr": {"capacity": "inf", "bandwidth": draw.choice(["0.5 GB/s", "2 GB/s"]), "scope": "node"},
            },
            "links": {
                "d2h": {"source": "hbm", "target": "ddr", "bandwidth": "1 GB/s"},
                "h2d": {"source": "ddr", "target": "hbm", "bandwidth": draw.choice(["1 GB/s", "300 MB/s"])},
            },
        }
    )


@cache
def step_of(seed: int) -> Problem:
    """A step some of whose ops run on the host, with weights in HBM or DDR, and little room."""
    draw, builder = Random(seed), GraphBuilder("step")
    known = [f"w{i}" for i in range(draw.randint(1, 3))]
    for name in known:
        builder.tensor(name, draw.randint(5, 60), "weight", persistent=True)
    ops = draw.randint(4, 9)
    for i in range(ops):
        reads, writes = draw.sample(known, min(len(known), draw.randint(1, 3))), []
        if draw.random() < 0.6:
            builder.tensor(f"a{i}", draw.randint(5, 60))
            known.append(f"a{i}")
            writes.append(f"a{i}")
        if draw.random() < 0.3:
            writes.append(draw.choice(known[: len(known) - len(writes)]))
        fields = {"duration_ns": draw.randint(1, 100), "phase": "forward" if i < ops // 2 else "backward"}
        if draw.random() < 0.35:
            fields |= {"device": "host"}
            fields |= draw.choice([{}, {"duration_ns": None, "flops": draw.randint(0, 60)}])
        fields |= {"workspace_bytes": draw.choice([0, 0, 10]), "barrier": draw.random() < 0.1}
        builder.op(f"op{i}", reads, writes, **fields)
    outputs = [name for name in known if name.startswith("a") and draw.random() < 0.15]
    graph = builder.build(outputs, steps=draw.choice([1, 2, 3]))
    size = [tensor.size_bytes for tensor in graph.tensors]
    homes = {tensor.name: draw.choice([HBM, DDR, DDR, FREE]) for tensor in graph.tensors if tensor.persistent}
    pinned = sum(tensor.size_bytes for tensor in graph.tensors if homes.get(tensor.name) == HBM)
    working = max(op.workspace_bytes + sum(size[t] for t in {*op.reads, *op.writes}) for op in graph.ops)
    return problem(graph, max(working, pinned) + draw.choice([0, 10, 30, 60, 200]), homes, hardware=machine(draw))


@cache
def least_ns(seed: int) -> int:
    """No plan of such a step is faster; the same for all policies."""
    case = step_of(seed)
    limits = limits_alone(case.graph, case.hardware, case.durations_ns, case.known_homes)
    return limits.step(case.budget_bytes).ns


@pytest.mark.parametrize("policy", some([*POLICY_NAMES, AGAIN], 3))
@pytest.mark.parametrize("block", [11, *(pytest.param(block, marks=pytest.mark.slow) for block in (*range(7), 15))])
def test_every_policy_runs_ops_of_the_host(policy, block, quick_plans):
    """Its plan obeys all laws, never blocks itself, and is no faster than the bound.

    In blocks 11 and 15 plans gave up what the accelerator overwrites while the host had yet to read it.
    """
    planned, entry, options = 0, POLICIES[policy.split(",")[0]], {"recompute": True} if policy == AGAIN else {}
    for seed in range(20 * block, 20 * block + 20):
        case = step_of(seed)
        with suppress(CapacityError, ScopeError):
            plan = entry.plan(case, options)
            if plan.fixed is not None:
                check_plan(case.graph, case.hardware, plan)
            ran = replay(case, plan)
            assert ran.status == "ok", (seed, ran.trace.blocked)
            check_trace(case.graph, case.hardware, [plan], ran.trace, case.budget_bytes)
            assert policy in {"recompute", AGAIN} or ran.step_ns >= least_ns(seed), seed
            planned += 1
    assert planned > 8
