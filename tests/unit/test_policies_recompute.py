"""`recompute`, and the ops that make a tensor again: worked out by hand, and against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from policy_problems import DDR, problem, replay, tell, train
from stories import graph

from simulator import catalog
from simulator.errors import CapacityError
from simulator.graph import OpKind
from simulator.lifetime import IdleInterval
from simulator.policies import POLICIES
from simulator.policies.recompute import Remaker, least_peak_bytes, remakes
from simulator.referee import check_plan
from simulator.run import prepare


def words(text):
    return [step.strip() for step in text.split(";")]


def plan(p):
    found = POLICIES["recompute"].plan(p)
    check_plan(p.graph, p.hardware, found)
    return found


def extra_ns(p):
    """What recompute adds to a step, on the engine."""
    done = replay(p, plan(p))
    assert done.status == "ok"
    assert done.peak_bytes["hbm"] <= p.budget_bytes
    return done.step_ns - p.clock[-1]


def test_what_fits_is_left_alone():
    p = problem(train(3), budget=36)
    assert plan(p).actions == POLICIES["resident"].plan(p).actions
    assert plan(p).notes == ()


def test_what_does_not_fit_is_given_up_when_room_is_needed_and_made_again_before_its_use():
    p = problem(train(3), budget=26)
    assert tell(p, plan(p)) == words(
        "f0; f1; a0 -hbm; f2; b2; a2 -hbm; b1; a1 -hbm; g2 -hbm; f0; b0; a0 -hbm; g1 -hbm; g0 -hbm"
    )
    assert extra_ns(p) == 10
    assert plan(p).notes == ("1 tensor dropped, and remade by 1 rerun, 10 ns in all",)


@pytest.mark.parametrize("layers", [16, 64, 256, pytest.param(1024, marks=pytest.mark.slow)])
def test_about_the_square_root_of_2n_layers_of_room_cost_at_most_one_more_forward(layers):
    """Of k places and one more forward come at most k * (k + 1) / 2 layers; of half the places half a forward."""
    places = math.isqrt(2 * layers) + 3
    assert extra_ns(problem(train(layers), budget=7 + 10 * places)) <= 1.1 * layers * 10
    assert extra_ns(problem(train(layers), budget=7 + 10 * (layers // 2))) <= layers * 10 // 2


def test_below_that_layers_are_made_again_more_than_once():
    assert 1.1 * 256 * 10 < extra_ns(problem(train(256), budget=7 + 10 * 11)) < 2.5 * 256 * 10


def test_time_grows_with_the_number_of_ops_not_with_its_square():
    """Counted in chains looked up, which is what the time goes into."""
    looked_up = []
    for layers in (256, 2048):
        p = problem(train(layers), budget=7 + 10 * (layers // 4))
        remaker_chain, count = Remaker.chain, [0]

        def counted(self, *arguments, chain=remaker_chain, count=count):
            found = chain(self, *arguments)
            count[0] += 1 + len(found or ())
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Remaker, "chain", counted)
            plan(p)
        looked_up.append(count[0])
    assert looked_up[1] < 8 * 1.5 * looked_up[0]


def test_what_cannot_fit_says_how_much_the_least_plan_would_need():
    p = problem(train(8), budget=20)
    with pytest.raises(CapacityError) as caught:
        plan(p)
    report = caught.value.report
    assert report.tier == "hbm"
    assert 20 < report.demand_bytes <= 40
    assert report.levers


def test_what_can_never_fit_is_not_tried_in_vain():
    """Of the layers only the one at work is live, if its neighbours are made again: w, a, the one below, and g."""
    p = problem(train(40), budget=20)
    remaker = Remaker(p.graph)
    least = least_peak_bytes(p, remaker)
    assert least == 5 + 10 + 10
    with pytest.raises(CapacityError) as caught:
        plan(p)
    assert caught.value.report.demand_bytes >= least
    assert extra_ns(problem(train(40), budget=caught.value.report.demand_bytes)) > 0


def beside(layers):
    """Backward reads only what lies beside the chain: h0 .. die in forward, but s0 .. are made of them."""
    names = [f"{name}{i}" for i in range(layers) for name in "hs"]
    flow = []
    for i in range(layers):
        flow += [f"f{i}: {f'h{i - 1}' if i else ''} -> h{i}, 10 ns", f"g{i}: h{i} -> s{i}, 1 ns"]
    back = [f"b{i}: s{i} ->, 10 ns" for i in reversed(range(layers))]
    return graph(", ".join(f"{name} 10" for name in names), *flow, *back)


@pytest.mark.parametrize("layers", [16, 128])
def test_what_is_made_in_passing_again_and_again_lives_on_as_a_checkpoint(layers):
    """Each s on its own would take the whole chain before it: layers / 2 forwards in all instead of one at most."""
    p = problem(beside(layers), budget=20 + 10 * layers // 2)
    assert extra_ns(p) <= layers * 11


def test_what_lives_elsewhere_comes_in_as_in_resident():
    p = problem(train(3), budget=26, homes={"w": DDR})
    told = tell(p, plan(p))
    assert told[0] == "w ddr>hbm"
    assert told.count("f0") == 2


def test_cheap_ops_run_again_before_dear_ones():
    """a and b are as large and idle as each other; b takes 2 ns to make, a 50 ns."""
    g = graph(
        "a 10, b 10, c 20", "f: -> a, 50 ns", "g: a -> b, 2 ns", "h: -> c, 5 ns", "k: c ->, 5 ns", "m: a b ->, 5 ns"
    )
    p = problem(g, budget=30)
    assert tell(p, plan(p)) == words("f; g; b -hbm; h; k; c -hbm; g; m; a -hbm; b -hbm")
    assert extra_ns(p) == 2


def test_what_dies_in_between_is_made_again_too_and_leaves_at_once():
    """b is made of a, which nothing else needs: both ops run again."""
    g = graph("a 10, b 10, c 20", "f: -> a, 3 ns", "g: a -> b, 2 ns", "h: -> c, 5 ns", "k: c ->, 5 ns", "m: b ->, 5 ns")
    p = problem(g, budget=20)
    assert tell(p, plan(p)) == words("f; g; a -hbm; b -hbm; h; k; c -hbm; f; g; a -hbm; m; b -hbm")


@pytest.mark.parametrize("why", ["collective", "not repeatable", "in place", "persistent", "overwritten"])
def test_what_must_not_run_again_is_kept(why):
    reads, writes = ("w", "w a") if why in {"in place", "persistent"} else ("w", "a")
    flow = f"f: {reads if why == 'in place' else ''} -> {writes}, 10 ns"
    update = "u: -> w, 1 ns" if why == "overwritten" else "u: ->, 1 ns"
    if why == "overwritten":
        flow = "f: w -> a, 10 ns"
    g = graph("w 5 persistent, a 10, c 20", flow, update, "h: -> c, 5 ns", "k: c ->, 5 ns", "m: a ->, 5 ns")
    kind = OpKind.COLLECTIVE if why == "collective" else OpKind.COMPUTE
    g = replace(g, ops=(replace(g.ops[0], kind=kind, repeatable=why != "not repeatable"), *g.ops[1:]))
    assert Remaker(g).maker(1, 4) == -1
    p = problem(g, budget=30)
    with pytest.raises(CapacityError):
        plan(p)
    plain = graph("w 5 persistent, a 10, c 20", "f: w -> a, 10 ns", "u: ->, 1 ns", *(
        ["h: -> c, 5 ns", "k: c ->, 5 ns", "m: a ->, 5 ns"]))  # fmt: skip
    assert extra_ns(problem(plain, budget=30)) == 10


def test_intervals_tell_what_makes_a_tensor_again():
    """b is made of a (dead by then) and of w: f and g run again."""
    g = graph(
        "w 5 persistent, a 10, b 4",
        "f: w -> a, 3 ns",
        "g: a w -> b, 2 ns, workspace 7",
        "h: ->, 5 ns",
        "m: b ->, 5 ns",
    )
    found = dict(remakes(g))
    assert found == {IdleInterval(2, 1, 3): (0, 1)}
    assert dict(remakes(g, most_ops=0)) == {}


def test_intervals_of_a_chain_take_their_own_op_each():
    g = train(5)
    found = {idle: made for idle, made in remakes(g) if idle.tensor in range(1, 6)}
    assert all(len(made) == 1 for made in found.values())
    assert len(found) == 4


def test_full_recompute_of_a_transformer_costs_about_one_more_forward():
    """Where little more than the inputs of the layers fits: at most their forward, which is what checkpointing each
    layer by hand costs; at least the part of it that does not only make the input of the next layer."""
    case = prepare(catalog.resolve("llama3_8b_train_910c"))
    tight = replace(case.problem, budget_bytes=51 * 10**9)
    object.__setattr__(tight, "replay", lambda plan: replay(tight, plan))
    names = [op.name for op in tight.graph.ops]
    layers = {
        name: ns for name, ns in zip(names, tight.durations_ns, strict=True) if "/fwd/" in name and name[0] == "L"
    }
    last = sum(ns for name, ns in layers.items() if name.endswith(("fwd/ffn.down", "fwd/add2")))
    whole = sum(layers.values())
    assert whole - last < extra_ns(tight) < whole
    assert whole / tight.clock[-1] == pytest.approx(1 / 3, abs=0.03)
