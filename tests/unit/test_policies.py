"""The registry, and the policies that follow a fixed rule: exact steps on a chain of layers."""

import inspect
from dataclasses import replace
from functools import partial

import pytest
from policy_problems import DDR, machine, problem, replay, tell, train
from stories import graph

from simulator import catalog
from simulator.document import Part
from simulator.errors import CapacityError, ConfigError
from simulator.graph_builder import GraphBuilder
from simulator.policies import FREE, POLICIES
from simulator.policies.decide import tune
from simulator.run import prepare, run_case


def words(text):
    return [step.strip() for step in text.split(";")]


def test_policies_are_named_with_a_line_each():
    assert all(entry.summary and entry.name == name for name, entry in POLICIES.items())
    assert all(inspect.getdoc(entry.function) and issubclass(entry.options, Part) for entry in POLICIES.values())


def test_unknown_option_names_policy_option_and_known_options():
    with pytest.raises(ConfigError) as caught:
        POLICIES["reactive"].plan(problem(train()), {"lookahead": 3})
    text = str(caught.value)
    assert "policy 'reactive', option 'lookahead'" in text
    assert "evict, look_ahead, synchronous, drains, dynamic" in text
    assert "did you mean 'look_ahead'?" in text


def test_wrong_value_of_an_option_names_what_is_allowed():
    with pytest.raises(ConfigError) as caught:
        POLICIES["reactive"].read_options({"evict": "mru"}, "scenarios/x.yaml:7, options.{}".format)
    text = str(caught.value)
    assert text.startswith("scenarios/x.yaml:7, options.evict: input should be")
    assert "'lru'" in text
    assert "found 'mru'" in text
    assert "'best'" in text


@pytest.mark.parametrize(
    ("given", "where", "must", "found", "do"),
    [
        (
            {"recompute": [None, {"a": "b"}]},
            "recompute",
            "this is true or false",
            "[null, {a: 'b'}]",
            "correct it",
        ),
        (
            {"move": True},
            "move",
            "this is a list",
            "true",
            "correct it",
        ),
    ],
)
def test_a_wrong_option_is_told_where_it_is_wrong_and_as_people_write_it(given, where, must, found, do):
    with pytest.raises(ConfigError) as caught:
        POLICIES["static"].read_options(given)
    assert caught.value.args == (f"policy 'static', option '{where}'", must, found, do)


@pytest.mark.parametrize("given", [{}, {"prefetch": "none"}, {"prefetch": "next_layer_all"}])
def test_an_option_without_effect_is_refused(given):
    with pytest.raises(ConfigError) as caught:
        POLICIES["hybrid"].read_options({"accuracy": 0.8, **given})
    found = f"accuracy with prefetch: {given.get('prefetch', 'none')}"
    do = "write prefetch: speculative, or remove accuracy"
    assert caught.value.args == ("policy 'hybrid', option 'accuracy'", "an accuracy is of a guess", found, do)
    assert POLICIES["hybrid"].read_options({"accuracy": 0.8, "prefetch": "speculative"})


def test_an_option_of_a_policy_without_options():
    with pytest.raises(ConfigError, match="only known keys stand here"):
        POLICIES["resident"].read_options({"x": 1})


def test_resident_moves_nothing_and_frees_at_the_last_use():
    p = problem(train(2), budget=32)
    plan = POLICIES["resident"].plan(p)
    assert tell(p, plan) == words("f0; f1; b1; a1 -hbm; b0; a0 -hbm; g1 -hbm; g0 -hbm")
    assert replay(p, plan).peak_bytes == {"hbm": 26, "ddr": 0}


def test_resident_brings_in_what_lives_elsewhere_and_takes_it_back():
    p = problem(train(1), homes={"w": DDR})
    plan = POLICIES["resident"].plan(p)
    assert tell(p, plan) == words("w ddr>hbm; f0; b0; a0 -hbm; g0 -hbm; w -hbm")


def test_resident_that_does_not_fit_says_by_how_much_where_and_what_would_help():
    p = problem(train(3), budget=30)
    with pytest.raises(CapacityError) as caught:
        POLICIES["resident"].plan(p)
    report = caught.value.report
    assert (report.tier, report.demand_bytes, report.capacity_bytes, report.short_bytes) == ("hbm", 36, 30, 6)
    assert report.at == "op b2"
    assert report.largest[0] == ("a0", 10)
    assert report.levers[0] == "choose a policy that moves more data, such as 'static'"


def test_no_smaller_batch_is_advised_where_the_model_alone_has_no_room():
    builder = GraphBuilder("two weights")
    for name, size in {"w": 40, "v": 30}.items():
        builder.tensor(name, size, "weight", persistent=True)
    builder.tensor("a", 5)
    builder.op("f", ["w", "v"], ["a"], duration_ns=10)
    weights = builder.build()
    for budget, advised in ((60, "use more ranks, or a smaller format: the model takes 70 B"), (72, "make the batch")):
        with pytest.raises(CapacityError) as caught:
            POLICIES["resident"].plan(problem(weights, budget=budget))
        assert [lever for lever in caught.value.report.levers if lever.startswith(advised)]
        assert any("batch smaller" in lever for lever in caught.value.report.levers) == (budget == 72)


def test_offload_saved_stores_after_forward_and_fetches_in_order_of_use():
    p = problem(train(4), budget=30)
    plan = POLICIES["offload_saved"].plan(p)
    assert tell(p, plan) == words(
        "f0; f1; a0 hbm>ddr; a0 -hbm; f2; a1 hbm>ddr; a1 -hbm; f3; sync a0; sync a1; b3; a3 -hbm;"
        "a1 ddr>hbm; a1 -ddr; b2; a2 -hbm; g3 -hbm; a0 ddr>hbm; a0 -ddr; b1; a1 -hbm; g2 -hbm; b0; a0 -hbm; g1 -hbm;"
        "g0 -hbm"
    )


def test_offload_saved_fetches_as_far_ahead_as_the_budget_allows():
    p = problem(train(4), budget=46)
    told = tell(p, POLICIES["offload_saved"].plan(p, {"barrier_before_backward": False}))
    assert told[told.index("f3") + 1 : told.index("b3")] == words("a1 ddr>hbm; a1 -ddr; a0 ddr>hbm; a0 -ddr")


def test_offload_saved_fetches_so_many_ops_ahead_as_it_is_told():
    p = problem(train(4), budget=46)
    told = tell(p, POLICIES["offload_saved"].plan(p, {"barrier_before_backward": False, "ahead": 1}))
    copies = [told.index(step) for step in words("a1 ddr>hbm; a0 ddr>hbm")]
    assert [told[at + 2] for at in copies] == ["b2", "b1"], "each before the op that precedes its reader"


def test_offload_saved_leaves_out_what_lives_shorter_than_its_copies():
    """a2 of three layers idles 0 ns, a1 20 ns, as long as its copies; only a0 is away."""
    p = problem(train(3), budget=46)
    told = tell(p, POLICIES["offload_saved"].plan(p))
    assert [step for step in told if ">" in step] == words("a0 hbm>ddr; a0 ddr>hbm")


def test_synchronous_offload_hides_nothing():
    p = problem(train(4), budget=30)
    plan = POLICIES["offload_saved"].plan(p, {"synchronous": True})
    done = replay(p, plan)
    assert done.step_ns == 80 + 4 * 10
    assert done.wait_ns["transfer"] == 40


def test_the_barrier_makes_backward_wait_for_the_last_copy_out():
    """Forward copies 20 B out at 0.1 B/ns, from 10 ns on (a0 may leave when its reader f1 has started): 210 ns."""
    slow = machine(d2h={"bandwidth": "0.1 GB/s"}, h2d={"bandwidth": "inf"})
    p = problem(train(4, duration=60), budget=46, hardware=slow)
    with_barrier = replay(p, POLICIES["offload_saved"].plan(p))
    without = replay(p, POLICIES["offload_saved"].plan(p, {"barrier_before_backward": False}))
    assert with_barrier.step_ns > without.step_ns == 480


def test_lookahead_copies_out_at_the_producer_and_in_a_distance_ahead():
    p = problem(train(4), budget=30)
    options = {"select_distance": 2, "distance": 1}
    assert tell(p, POLICIES["lookahead"].plan(p, options)) == words(
        "f0; a0 hbm>ddr; f1; a1 hbm>ddr; sync a0; a0 -hbm; f2; sync a1; a1 -hbm; f3; b3; a3 -hbm; a1 ddr>hbm; b2; "
        "a2 -hbm; g3 -hbm; a0 ddr>hbm; b1; a1 -hbm; a1 -ddr; g2 -hbm; b0; a0 -hbm; a0 -ddr; g1 -hbm; g0 -hbm"
    )


def test_lookahead_frees_after_the_last_use_and_moves_as_few_as_fit():
    p = problem(train(4), budget=38)
    options = {"select_distance": 2, "distance": 1}
    told = tell(p, POLICIES["lookahead"].plan(p, options))
    assert told[: told.index("b3")] == words("f0; a0 hbm>ddr; f1; sync a0; a0 -hbm; f2; f3")


def test_lookahead_moves_what_is_idle_for_longer_than_its_distance():
    """a0 is used by ops 0, 1 and 7: six apart."""
    p = problem(train(4), budget=38)
    assert "a0 hbm>ddr" in tell(p, POLICIES["lookahead"].plan(p, {"select_distance": 5, "distance": 1}))
    with pytest.raises(CapacityError):
        POLICIES["lookahead"].plan(p, {"select_distance": 6, "distance": 1})


def test_lookahead_knows_no_budget_and_says_so():
    p = problem(train(4), budget=20)
    with pytest.raises(CapacityError):
        POLICIES["lookahead"].plan(p, {"select_distance": 2, "distance": 2})


def test_lookahead_moves_as_few_as_fit_and_takes_the_fastest_distances():
    p = problem(train(120, steps=2), budget=1100)
    plan = POLICIES["lookahead"].plan(p)
    assert plan.notes == ("select_distance 100, distance 50: 11 tensors that ops make moved",)


def test_lookahead_tries_distances_that_suit_a_short_graph():
    p = problem(train(6), budget=46)
    plan = POLICIES["lookahead"].plan(p)
    assert plan.notes == ("select_distance 3, distance 1: 2 tensors that ops make moved",)
    with pytest.raises(CapacityError):
        POLICIES["lookahead"].plan(p, {"select_distance": 100})


def test_options_that_give_the_same_plan_are_replayed_once():
    p = problem(train(8), hardware=machine(h2d={"bandwidth": "0.1 GB/s"}))
    tried = []

    def make(*options):
        plan = POLICIES["offload_saved"].plan(p, {"synchronous": options[0] % 2 == 1})
        tried.append(options)
        return replace(plan, notes=(str(options),))

    replayed = []
    counted = replace(p, trial=lambda of, plan: replayed.append(plan) or replay(of, plan))
    best = tune(counted, [(0, 1, 2, 3)], make)
    assert tried == [(0,), (1,), (2,), (3,)]
    assert len(replayed) == 2
    assert best in replayed


def test_nothing_is_tried_after_a_plan_that_never_waits():
    p, tried = problem(train(8), hardware=machine(h2d={"bandwidth": "0.1 GB/s"})), []

    def make(name):
        tried.append(name)
        return POLICIES[name].plan(p)

    names = ["offload_saved", "resident", "upstream_greedy"]
    assert tune(p, [names], make) == POLICIES["resident"].plan(p)
    assert tried == ["offload_saved", "resident"]


@pytest.mark.parametrize("name", ["lookahead", "offload_saved", "static", "reactive"])
def test_persistent_tensors_that_live_away_go_back_dirty_or_clean(name):
    g = graph("w 10 persistent, v 10 persistent, y 1", "f: w v -> w y, 10 ns", "g: y ->, 10 ns", steps=3)
    p = problem(g, homes={"w": DDR, "v": DDR})
    told = tell(p, POLICIES[name].plan(p, {}))
    assert "w hbm>ddr" in told
    assert "v hbm>ddr" not in told
    assert replay(p, POLICIES[name].plan(p, {})).peak_bytes["ddr"] == 20


def test_a_pinned_activation_stays():
    homes = {f"a{i}": 0 for i in range(4)}
    p = problem(train(4), budget=46, homes=homes)
    assert not any(">" in step for step in tell(p, POLICIES["offload_saved"].plan(p)))
    assert p.pinned(1)
    assert p.homes[5] == FREE


@pytest.mark.parametrize(
    ("micro_batches", "options"), [(3, {}), (2, {"synchronous": True}), (2, {"barrier_before_backward": False})]
)
def test_offload_saved_stores_what_each_micro_batch_saves_before_it_comes_back(micro_batches, options):
    loaded = catalog.resolve("tiny_train_910c")
    parallel = loaded.workload.parallel.model_copy(update={"micro_batches": micro_batches})
    workload = loaded.workload.model_copy(update={"parallel": parallel})
    scenario = loaded.scenario.model_copy(update={"policies": ()})
    case = prepare(replace(loaded, scenario=scenario, workload=workload))
    row = run_case(case, {"row": partial(POLICIES["offload_saved"].plan, options=options)})["row"]
    assert row.status == "ok"
    assert f"{sum(row.spans['track'] == 'd2h') // case.graph.steps} tensors saved" in row.summary["notes"]
