"""Recompute on random steps of forward and backward: it costs exactly what runs again, and what it costs is a bound."""

from __future__ import annotations

from dataclasses import replace

from bounding import bound
from hypothesis import assume, event, given
from hypothesis import strategies as st
from policy_problems import machine, problem, replay

from simulator import engine, metrics
from simulator.errors import CapacityError
from simulator.graph import Job
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import IdleInterval, live_bytes, working_set_bytes
from simulator.plan import Plan
from simulator.policies import POLICIES, Problem
from simulator.policies.recompute import remakes
from simulator.policies.writer import Writer
from simulator.referee import check_plan, check_trace

SLOW = machine(d2h={"bandwidth": "0.1 GB/s"}, h2d={"bandwidth": "0.1 GB/s"})


@st.composite
def steps(draw) -> Problem:
    """A few layers, each with a tensor that backward reads, perhaps one that it does not, and an update in place."""
    builder, layers = GraphBuilder("random"), draw(st.integers(2, 8))
    builder.tensor("w", 5, "weight", persistent=True)
    above = "w"
    for i in range(layers):
        builder.tensor(f"t{i}", draw(st.integers(1, 20)))
        builder.tensor(f"a{i}", draw(st.integers(5, 40)))
        more = draw(st.lists(st.sampled_from([f"a{k}" for k in range(i)] or ["w"]), max_size=1))
        builder.op(f"p{i}", [above, *more], [f"t{i}"], duration_ns=draw(st.integers(1, 30)), phase="forward")
        repeatable = draw(st.integers(0, 7)) > 0
        builder.op(f"f{i}", [f"t{i}"], [f"a{i}"], duration_ns=draw(st.integers(1, 30)), repeatable=repeatable)
        above = f"a{i}"
    for i in reversed(range(layers)):
        spoils = draw(st.sampled_from([[], [], *([f"{name}{k}"] for name in "ta" for k in range(layers))]))
        reads = [f"a{i}", *draw(st.lists(st.sampled_from([f"t{k}" for k in range(i + 1)]), max_size=1))]
        builder.op(f"b{i}", reads, spoils, duration_ns=draw(st.integers(1, 30)), phase="backward")
    builder.op("u", ["w"], ["w"], duration_ns=1)
    graph = builder.build(steps=draw(st.integers(1, 2)))
    least, most = int(working_set_bytes(graph).max()) + 5, int(live_bytes(graph).max())
    assume(least < most)
    return problem(graph, draw(st.integers(least, most)), hardware=SLOW)


@given(steps())
def test_a_step_takes_its_compute_and_what_runs_again_and_no_longer_than_the_bound_says(p: Problem):
    """Nothing is copied, so nothing waits; and no value is used that is not the one of program order."""
    try:
        plan = POLICIES["recompute"].plan(p)
    except CapacityError:
        event("does not fit")
        return
    check_plan(p.graph, p.hardware, plan)
    trace = engine.run([engine.Program(p.graph, plan, p.durations_ns)], p.hardware, budget_bytes=p.budget_bytes)
    check_trace(p.graph, p.hardware, [plan], trace, p.budget_bytes)
    row = metrics.summarise(p.graph, p.hardware, trace)
    assert row["step_ns"] == row["compute_ns"] + row["recompute_ns"]
    assert row["compute_ns"] == p.clock[-1]
    assert row["peak_hbm_bytes"] <= p.budget_bytes
    repeats = metrics.repeats(Job.of(p.graph), trace)
    event("recomputes" if repeats else "fits")
    homes = p.known_homes
    least = bound(p.graph, p.hardware, p.durations_ns, homes, p.budget_bytes, may_repeat=repeats)
    assert row["step_ns"] >= least.ns


@given(steps())
def test_what_makes_a_tensor_again_can_run_there(p: Problem):
    """In each idle interval the tensor goes and its ops run again; the referee finds all values right."""
    ample = replace(p, budget_bytes=10**6)
    for idle, ops in remakes(p.graph):
        plan = with_idle(ample, idle, ops)
        check_plan(p.graph, p.hardware, plan)
        done = replay(ample, plan)
        assert done.status == "ok"
        assert done.step_ns == (p.clock[-1] + sum(p.durations_ns[op] for op in ops))
        event("made again")


def with_idle(p: Problem, idle: IdleInterval, ops: tuple[int, ...]) -> Plan:
    """Everything stays, but for the tensor of the interval."""
    writer = Writer(p, "by hand")
    for op in range(len(p.graph.ops)):
        if op == idle.before:
            writer.detach(idle.tensor, p.compute_tier)
            for again in ops:
                writer.compute(again, again=True)
        writer.compute(op)
    return writer.finish()
