"""Recompute and copies in one plan: what is rewritten, and the way back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from policy_problems import machine, problem, replay, tell, train

from simulator import metrics
from simulator.errors import CapacityError
from simulator.plan import COMPUTE
from simulator.policies import POLICIES, static
from simulator.policies.recompute import Walker
from simulator.policies.static import Options, mix
from simulator.policies.static.analyse import scored
from simulator.policies.static.explanation import CHEAPER, IN_PASSING, Decision, explained
from simulator.policies.static.mix import rewrite, rewrites
from simulator.referee import check_plan

STATIC = POLICIES["static"]


@pytest.fixture(scope="module", autouse=True)
def plans_are_quick():
    """What is tried here is the search."""


def rewritten(p, limit):
    walker = Walker(replace(p, budget_bytes=math.inf))
    return rewrite(p, walker.walk(limit, 0.5).plan())


def test_an_op_that_runs_again_is_an_op_and_makes_a_tensor():
    p = problem(train(4), budget=26)
    found = rewritten(p, 26)
    names = [op.name for op in found.problem.graph.ops]
    assert names[:4] == ["f0", "f1", "f2", "f3"]
    again = [name for name in names if "#" in name]
    assert again
    tensors = [t.name for t in found.problem.graph.tensors]
    for name in again:
        made = f"a{name[1]}#{name[3]}"
        assert made in tensors
        op = found.problem.graph.ops[names.index(name)]
        assert op.writes == (tensors.index(made),)
        assert found.op_of[names.index(name)] == p.graph.ops.index(next(o for o in p.graph.ops if o.name == name[:2]))
        assert p.graph.tensors[found.tensor_of[tensors.index(made)]].name == made[:2]


def test_under_an_ample_limit_nothing_is_rewritten():
    p = problem(train(4), budget=26)
    assert rewritten(p, 1000).problem.graph == p.graph


def test_a_plan_is_translated_step_for_step():
    p = problem(train(4), budget=26)
    found = rewritten(p, 26)
    plan = POLICIES["resident"].plan(found.problem)
    back = found.translated(plan)
    check_plan(p.graph, p.hardware, back)
    kinds = [kind for kind, *_ in plan.fixed.codes()]
    assert [kind for kind, *_ in back.fixed.codes()] == kinds
    runs = [p.graph.ops[a].name for kind, a, _, _ in back.fixed.codes() if kind == COMPUTE]
    assert runs == [op.name.split("#")[0] for op in found.problem.graph.ops]
    assert len(back.home) == len(p.graph.tensors)


@pytest.mark.usefixtures("quick_plans")
@pytest.mark.parametrize("duration", [3, 6, 20])
@pytest.mark.parametrize("budget", [26, 30, 36])
def test_with_recompute_a_step_is_never_longer(budget, duration):
    p = problem(train(5, size=10, duration=duration, steps=2), budget=budget)
    alone = p.replay(STATIC.plan(p)).step_ns
    recompute = p.replay(POLICIES["recompute"].plan(p)).step_ns
    mixed = STATIC.plan(p, {"recompute": True})
    check_plan(p.graph, p.hardware, mixed)
    assert p.replay(mixed).step_ns <= min(alone, recompute)


@pytest.fixture(scope="module")
def mixed():
    """Eight layers where some are cheaper to run again and others to move: the problem, and what was decided."""
    p = problem(train(8, size=10, duration=6, steps=2), budget=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.policies.static.improve.REPLAYS", 10)
        return p, explained(p, Options(recompute=True))


@pytest.mark.usefixtures("quick_plans")
def test_the_mix_beats_both_where_each_is_cheap_for_some(mixed):
    p, found = mixed
    alone = p.replay(STATIC.plan(p)).step_ns
    recompute = p.replay(POLICIES["recompute"].plan(p)).step_ns
    step = p.replay(found.plan).step_ns
    assert step < alone
    assert step < recompute
    assert "rerun" in found.plan.notes[-1]
    assert "hbm>ddr" in " ".join(tell(p, found.plan))


def test_what_is_made_again_is_a_decision_with_its_costs(mixed):
    p, found = mixed
    again = found.decided(Decision.RECOMPUTE)
    ops, tensors = found.augmented.problem.graph.ops, found.augmented.problem.graph.tensors
    assert [ops[one.interval.before].name for one in again] == [op.name for op in ops if "#" in op.name]
    for one in again:
        idle = one.interval
        (made,) = ops[idle.before].writes
        before, after = tensors[idle.tensor].name, tensors[made].name
        assert before.split("#")[0] == after.split("#")[0]
        assert (one.remake_ns, idle.out_ns, idle.in_ns, idle.size_bytes) == (6, 10, 10, 10)
        assert idle.before == min(found.augmented.problem.lifetimes.uses[made])
        assert idle.lead_ns == 6 * (idle.before - idle.after - 1)
        assert one.reason in {CHEAPER, IN_PASSING}
        assert one.score == scored(idle, queue_ns=6)
    done = replay(p, found.plan)
    assert 6 * len(again) == metrics.summarise(p.graph, p.hardware, done.trace, None)["recompute_ns"]


def test_what_was_dead_is_made_again_in_passing():
    p = problem(train(8, size=10, duration=1, steps=2), budget=33, hardware=machine(d2h={"bandwidth": "0.1 GB/s"}))
    found = explained(p, Options(recompute=True))
    last = {
        t.name: found.augmented.problem.lifetimes.uses[i][-1]
        for i, t in enumerate(found.augmented.problem.graph.tensors)
    }
    passing = [one for one in found.decided(Decision.RECOMPUTE) if one.reason == IN_PASSING]
    assert passing
    for one in passing:
        (made,) = found.augmented.problem.graph.ops[one.interval.before].writes
        assert "#" in found.augmented.problem.graph.ops[last[found.augmented.problem.graph.tensors[made].name]].name


@pytest.mark.usefixtures("quick_plans")
def test_what_is_kept_or_moved_says_what_making_it_again_would_take(mixed):
    p, found = mixed
    told = {one.remake_ns for one in found.choices if one.decision is not Decision.RECOMPUTE}
    assert 6 in told
    assert {one.remake_ns for one in explained(p, Options()).choices} == {None}


def test_what_fits_is_left_alone_and_what_cannot_fit_is_told():
    p = problem(train(4), budget=1000)
    assert STATIC.plan(p, {"recompute": True}) == STATIC.plan(p)
    p = problem(train(4), budget=12)
    with pytest.raises(CapacityError):
        STATIC.plan(p, {"recompute": True})


def test_a_rewritten_problem_is_tried_once_whatever_limits_lead_to_it():
    found = rewrites(problem(train(8), budget=40))
    graphs = [one.written.problem.graph for one in found]
    assert all(graph != other for at, graph in enumerate(graphs) for other in graphs[:at])


@pytest.mark.parametrize("budget", [16, 24, 40])
def test_what_a_pass_tells_of_its_time_is_no_more_than_the_bound_of_what_it_leads_to(budget):
    """So what is left out for it would be left out for its bound."""
    found = rewrites(problem(train(8), budget=budget))
    assert found
    for one in found:
        assert one.least_ns == one.written.problem.clock[-1] <= one.written.problem.bound_ns


def test_a_witness_of_a_graph_that_is_too_large_to_rewrite_says_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(static, "EFFORT", 0)
    monkeypatch.setattr(mix, "LARGEST", 0)
    with pytest.raises(CapacityError):
        static.witness(problem(train(4), budget=10), Options(recompute=True))
