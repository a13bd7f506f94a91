"""Recompute and copies in one plan: what is rewritten, and the way back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from policy_problems import problem, tell, train

from simulator.errors import CapacityError
from simulator.plan import COMPUTE
from simulator.policies import POLICIES
from simulator.policies.recompute import Walker
from simulator.policies.static.mix import rewrite
from simulator.referee import check_plan

STATIC = POLICIES["static"]


def rewritten(p, limit):
    walker = Walker(replace(p, budget_bytes=math.inf))
    return rewrite(p, walker.plan(limit, (0.5, False), most=math.inf))


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


@pytest.mark.parametrize("duration", [3, 6, 20])
@pytest.mark.parametrize("budget", [26, 30, 36])
def test_with_recompute_a_step_is_never_longer(budget, duration):
    p = problem(train(5, size=10, duration=duration, steps=2), budget=budget)
    alone = p.replay(STATIC.plan(p)).step_ns
    recompute = p.replay(POLICIES["recompute"].plan(p)).step_ns
    mixed = STATIC.plan(p, {"recompute": True})
    check_plan(p.graph, p.hardware, mixed)
    assert p.replay(mixed).step_ns <= min(alone, recompute)


def test_the_mix_beats_both_where_each_is_cheap_for_some():
    p = problem(train(8, size=10, duration=6, steps=2), budget=40)
    alone = p.replay(STATIC.plan(p)).step_ns
    recompute = p.replay(POLICIES["recompute"].plan(p)).step_ns
    plan = STATIC.plan(p, {"recompute": True})
    mixed = p.replay(plan).step_ns
    assert mixed < alone
    assert mixed < recompute
    assert "repeated run" in plan.notes[-1]
    assert "hbm>ddr" in " ".join(tell(p, plan))


def test_what_fits_is_left_alone_and_what_cannot_fit_is_told():
    p = problem(train(4), budget=1000)
    assert STATIC.plan(p, {"recompute": True}) == STATIC.plan(p)
    p = problem(train(4), budget=12)
    with pytest.raises(CapacityError):
        STATIC.plan(p, {"recompute": True})
