"""The writer: what each call becomes, what it refuses, and the peak it knows."""

import pytest
from policy_problems import DDR, HBM, machine, problem, tell, train
from stories import graph

from simulator.errors import CapacityError, PlanError
from simulator.hardware import Hardware
from simulator.plan import ABSENT, NOWHERE, STALE, VALID
from simulator.policies.writer import Writer


def writer(g, **more):
    p = problem(g, **more)
    return p, Writer(p, "mine")


def test_store_copies_out_once_and_evicts_clean_afterwards():
    p, w = writer(train(2))
    w.compute(0)
    w.store(1)
    w.fetch(1)
    w.store(1)
    assert tell(p, w.finish())[1:5] == ["a0 hbm>ddr", "a0 -hbm", "a0 ddr>hbm", "a0 -hbm"]


def test_a_write_makes_the_copy_stale_and_the_next_store_refreshes_it():
    p, w = writer(graph("x 4 persistent", "f: x -> x, 1 ns", "g: x ->, 1 ns"), homes={"x": DDR})
    w.fetch(0)
    assert (w.place(0, HBM), w.place(0, DDR), w.live_bytes(DDR)) == (VALID, VALID, 4)
    w.compute(0)
    assert (w.place(0, HBM), w.place(0, DDR)) == (VALID, STALE)
    w.store(0)
    assert (w.place(0, HBM), w.place(0, DDR), w.live_bytes(DDR)) == (ABSENT, VALID, 4)
    w.fetch(0)
    w.compute(1)
    assert tell(p, w.finish())[-2:] == ["g", "x -hbm"]


def test_dead_tensors_leave_all_tiers_and_outputs_leave_last():
    p, w = writer(graph("x 4 persistent, y 4, z 4", "f: x -> y x, 1 ns", "g: y -> z, 1 ns"))
    w.compute(0)
    w.back_up(1)
    w.compute(1)
    assert tell(p, w.finish()) == ["f", "y hbm>ddr", "g", "y -hbm", "y -ddr", "z -hbm"]


def test_outputs_are_released_after_persistent_tensors_came_home():
    g = graph("x 4 persistent, y 4", "f: x -> x y, 1 ns")
    g = type(g)(g.name, g.tensors, g.ops, (1,), 1)
    p, w = writer(g, homes={"x": DDR})
    w.fetch(0)
    w.compute(0)
    assert tell(p, w.finish()) == ["x ddr>hbm", "f", "x hbm>ddr", "x -hbm", "y -hbm"]


def test_free_persistent_tensors_live_where_the_policy_says():
    p = problem(train(1), homes={"w": -2})
    assert Writer(p, "mine").homes[0] == HBM
    chosen = Writer(p, "mine", {0: DDR})
    assert chosen.homes == (DDR, NOWHERE, NOWHERE)
    assert not chosen.resident(0)


def test_what_is_refused_names_the_policy_the_rule_and_the_state():
    _, w = writer(train(2))
    with pytest.raises(PlanError) as caught:
        w.compute(1)
    assert "policy 'mine', op 'f1'" in str(caught.value)
    assert "'a0' absent in hbm, absent in ddr" in str(caught.value)
    w.compute(0)
    with pytest.raises(PlanError, match="an evicted tensor is valid in another tier"):
        w.evict(1)
    with pytest.raises(PlanError, match="a tensor to detach is there"):
        w.detach(1, DDR)
    w.back_up(1)
    with pytest.raises(PlanError, match="not yet valid at its target"):
        w.copy(1, HBM, DDR)
    with pytest.raises(PlanError, match="may leave the compute tier"):
        w.store(0)
    with pytest.raises(PlanError, match="valid somewhere"):
        w.fetch(2)


def test_the_peak_counts_workspace_and_the_report_says_who_was_there():
    g = graph("x 4 persistent, y 7, z 1", "f: x -> y, 1 ns", "g: y -> z, 1 ns, workspace 20", "h: z ->, 1 ns")
    _, w = writer(g, budget=31)
    for op in range(3):
        w.compute(op)
    assert w.peak_bytes == [32, 0]
    with pytest.raises(CapacityError) as caught:
        w.finish()
    assert caught.value.report.at == "op g"
    assert caught.value.report.largest == (("y", 7), ("x", 4), ("z", 1))


def test_a_full_tier_passes_on_to_the_next_one_away():
    p = problem(train(2), hardware=machine(ddr="10 B"))
    tiers = {**p.hardware.tiers, "pool": p.hardware.tiers["ddr"]}
    far = {"bandwidth": "0.5 GB/s"}
    links = {
        **{name: link.model_dump(mode="json") for name, link in p.hardware.links.items()},
        "out": {"source": "hbm", "target": "pool", **far},
        "back": {"source": "pool", "target": "hbm", **far},
    }
    document = p.hardware.model_dump(mode="json") | {
        "tiers": {name: tier.model_dump(mode="json") for name, tier in tiers.items()},
        "links": links,
    }
    p = problem(train(2), hardware=Hardware.model_validate(document))
    assert p.neighbours == (1, 2)
    w = Writer(p, "mine")
    w.compute(0)
    w.back_up(1)
    w.compute(1)
    w.back_up(2)
    assert tell(p, w.finish())[:4] == ["f0", "a0 hbm>ddr", "f1", "a1 hbm>pool"]


def test_a_path_over_two_links_leaves_nothing_in_between():
    document = machine().model_dump(mode="json")
    document["tiers"]["ssd"] = {"capacity": "inf"}
    document["links"]["read"] = {"source": "ssd", "target": "ddr", "bandwidth": "1 GB/s"}
    document["links"]["write"] = {"source": "ddr", "target": "ssd", "bandwidth": "1 GB/s"}
    p = problem(graph("w 5 persistent", "f: w -> w, 1 ns"), homes={"w": 2}, hardware=Hardware.model_validate(document))
    assert p.neighbours == (1, 2)
    assert p.copy_ns(0, 2, HBM) == 10
    w = Writer(p, "mine")
    w.fetch(0)
    w.compute(0)
    assert tell(p, w.finish()) == [
        "w ssd>ddr",
        "w ddr>hbm",
        "w -ddr",
        "f",
        "w hbm>ddr",
        "w ddr>ssd",
        "w -ddr",
        "w -hbm",
    ]
