"""Fused groups: which graphs have them, what policies see of them, what the referee refuses, and what stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_problems import HBM, machine, problem, replay, tell, train
from stories import graph, steps

from simulator import bounds
from simulator.errors import ConfigError, PlanError
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import launched, working_set_bytes
from simulator.plan import COMPUTE, NOWHERE, Plan
from simulator.policies import POLICIES
from simulator.policies.fused import contract
from simulator.policies.static import Options, explained
from simulator.policies.static.step_model import predict
from simulator.referee import check_plan


def fuse(g: Graph, *groups: str) -> Graph:
    """The same graph with the ops of each group (names with a space between) fused under the first one's name."""
    name = {op: group.split()[0] for group in groups for op in group.split()}
    return replace(g, ops=tuple(replace(op, fused=name.get(op.name, "")) for op in g.ops))


CHAIN = graph("a 10, b 10, c 10", "f: -> a, 5 ns", "g: a -> b, 5 ns, workspace 3", "h: b -> c, 5 ns, workspace 7")
FUSED = fuse(CHAIN, "f g h")


def test_ops_in_a_row_with_one_name_are_a_group():
    g = graph("a 1", *(f"{op}: -> a, 1 ns" for op in "abcde"))
    assert [list(group) for group in fuse(g, "b c", "d e").launches] == [[0], [1, 2], [3, 4]]
    assert [len(group) for group in fuse(g, "b").launches] == [1] * 5


def test_a_group_that_is_torn_is_refused():
    builder = GraphBuilder("torn")
    for name, group in (("f", "one"), ("g", "")):
        builder.op(name, fused=group)
    with pytest.raises(ConfigError, match=r"op 'h': the ops of a fused group follow one another.*'g' between it and"):
        builder.op("h", fused="one")


def test_a_group_is_one_op_to_a_policy():
    found = contract(problem(FUSED)).problem
    (op,) = found.graph.ops
    assert (op.name, op.reads, op.writes, op.workspace_bytes) == ("fused f", (), (0, 1, 2), 7)
    assert found.durations_ns == [15]
    assert working_set_bytes(found.graph).tolist() == [37]


def test_a_problem_without_groups_stays_as_it_is():
    p = problem(CHAIN)
    assert contract(p).problem is p


def test_a_plan_is_written_out_op_by_op():
    p = problem(FUSED)
    assert tell(p, POLICIES["resident"].plan(p)) == ["f", "g", "h", "a -hbm", "b -hbm", "c -hbm"]
    assert tell(p, POLICIES["reactive"].plan(p)) == ["f", "g", "h", "a -hbm", "b -hbm", "c -hbm"]


def test_no_copy_in_comes_within_a_group():
    g = train(8, duration=5)
    p = problem(fuse(g, "b4 b3 b2"), budget=66, homes={f"a{i}": HBM for i in range(2, 8)})
    plan = POLICIES["static"].plan(p)
    told = tell(p, plan)
    assert not told.index("b4") < told.index("a1 ddr>hbm") < told.index("b2")
    check_plan(p.graph, p.hardware, plan)


def test_a_group_runs_again_as_a_whole_or_not_at_all():
    g = fuse(train(6, duration=3), "f1 f2", "f3 f4")
    p = problem(g, budget=46, hardware=machine(d2h={"bandwidth": "0.1 GB/s"}))
    for name, options in (("recompute", {}), ("static", {"recompute": True})):
        plan = POLICIES[name].plan(p, options)
        check_plan(p.graph, p.hardware, plan)
        runs = [p.graph.ops[a].name for kind, a, _, _ in plan.fixed.codes() if kind == COMPUTE]
        assert len(runs) > len(set(runs))
        assert "".join(runs).count("f1f2") == runs.count("f1") == runs.count("f2")


def refused(text: str, g: Graph = FUSED) -> str:
    hardware = machine()
    plan = Plan("hand", hardware.tier_names, (NOWHERE,) * len(g.tensors), steps(g, hardware, text))
    with pytest.raises(PlanError) as caught:
        check_plan(g, hardware, plan)
    return str(caught.value)


def test_the_referee_names_step_tensor_and_rule():
    text = "compute f; compute g; detach a hbm; compute h; detach b hbm; detach c hbm"
    assert refused(text) == (
        "plan 'hand', step 2 (detach a from hbm): nothing is issued between two ops of fused group 'f', found this "
        "step between 'g' and 'h'; issue it before the group or behind it"
    )
    assert "copy a hbm -> ddr" in refused(text.replace("detach a hbm", "copy a hbm ddr"))
    assert "sync a" in refused(text.replace("detach a hbm", "sync a"))


def test_the_referee_wants_a_group_as_a_whole():
    alone = "compute f; compute g; compute h; compute g; detach a hbm; detach b hbm; detach c hbm"
    assert "fused group 'f' is issued as a whole, from its first op on, found op 'g' alone" in refused(alone)
    assert "found the end before op 'g'" in refused("compute f; compute g; compute h; compute f")
    two = fuse(graph("a 1", "f: -> a, 1 ns", "g: a ->, 1 ns", "x: ->, 1 ns"), "f g")
    assert "nothing is issued between" in refused("compute f; compute x; compute g; detach a hbm", two)


def test_the_machine_frees_within_a_group_so_the_bounds_do_not_rise():
    """37 bytes are held as issued, 27 as it happens: what is detached behind the group is free after its last user."""
    p = problem(FUSED, 27)
    plan = POLICIES["resident"].plan(problem(FUSED))
    check_plan(p.graph, p.hardware, plan)
    done = replay(p, plan)
    assert (done.status, done.peak_bytes["hbm"]) == ("ok", 27)
    assert bounds.infeasible(p.graph, p.hardware, p.homes, 27) is None


def test_what_a_replay_shows_of_a_group_is_one_span():
    g = fuse(train(4, duration=5, steps=2), "f1 f2", "b2 b1")
    p = contract(problem(g)).problem
    plan = POLICIES["resident"].plan(p)
    assert predict(p, plan).start_ns == (0, 5, 15, 20, 25, 35, 40)


def test_the_plan_of_a_graph_with_groups_is_explained():
    g = fuse(train(8, duration=5, steps=2), "f1 f2", "b5 b4")
    p = problem(g, budget=66)
    found = explained(p, Options())
    check_plan(p.graph, p.hardware, found.plan)
    found.candidate.augmented.check()
    assert found.plan == POLICIES["static"].plan(p)
    assert {op.fused for op in found.problem.graph.ops} == {"", "f1", "b5"}


def test_the_optimum_is_not_looked_for():
    pytest.importorskip("scipy")
    with pytest.raises(ConfigError, match="each op may be followed by a copy, found a fused group"):
        POLICIES["optimal"].plan(problem(FUSED))


def test_late_reads_name_the_group_that_reveals_them() -> None:
    builder = GraphBuilder("g")
    for name in ("x", "a", "b"):
        builder.tensor(name, 1, persistent=True)
    for name in ("norm", "route"):
        builder.op(name, ["x"], fused="router")
    builder.op("experts", ["a", "b"], late=builder.late("experts", "route", ["a", "b"]))
    assert [op.late and op.late.revealed_by for op in launched(builder.build()).ops] == [None, 0]
