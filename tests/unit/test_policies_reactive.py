"""The runtime: orders of eviction against plain models, exact steps, several training steps."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from policy_problems import DDR, machine, problem, replay, tell, train
from stories import graph

from simulator.errors import CapacityError
from simulator.hardware import Hardware
from simulator.policies import FREE, POLICIES, reactive
from simulator.policies.runtime_cache import Eviction


def chain(n):
    """Tensors t0 .. of sizes 1 .., each written by an op; then random reads."""
    draw = random.Random(5)
    reads = [f"r{i}: t{draw.randrange(n)} ->" for i in range(3 * n)]
    writes = [f"w{i}: -> t{i}" for i in range(n)]
    return graph(", ".join(f"t{i} {i % 4 + 1}" for i in range(n)), *writes, *reads)


def key_of(name, p, used, times):
    """The plain rule: the smaller key leaves first."""
    found = p.lifetimes
    if name == "lru":
        return lambda t, now: used[t]
    if name == "lfu":
        return lambda t, now: (times[t], used[t])
    if name == "fifo":
        return lambda t, now: (found.writes[t][0], -p.sizes[t], t)
    n = len(p.graph.ops)
    return lambda t, now: (-next((u for u in found.uses[t] if u > now), n + found.uses[t][0]), t)


@pytest.mark.parametrize("name", ["lru", "lfu", "fifo", "furthest"])
def test_victims_follow_the_plain_rule(name):
    p = problem(chain(12))
    victims = Eviction(name, p)
    used, held, times = {}, [], Counter()
    key, draw, tick = key_of(name, p, used, times), random.Random(1), 0
    for now, op in enumerate(p.graph.ops):
        needed = tuple(dict.fromkeys((*op.reads, *op.writes)))
        victims.now = now
        for t in needed:
            tick += 1
            used[t] = tick
            times[t] += 1
            victims.touch(t)
            if t not in held:
                held.append(t)
        for _ in range(draw.randrange(3)):
            others = [t for t in held if t not in needed]
            got = victims.first(needed)
            if not others:
                assert got == -1
                break
            # a plain Furthest looks at uses after the op that touched the tensor last, as the heap does
            want = min(others, key=lambda t: key(t, now))
            assert got == want
            victims.discard(got)
            held.remove(got)


def test_what_was_used_later_leaves_if_what_comes_first_must_stay():
    order = Eviction("lru", problem(chain(3)))
    for tensor in range(3):
        order.touch(tensor)
    assert [order.first({0}), order.first({0, 1}), order.first({0, 1, 2})] == [1, 2, -1]


def words(text):
    return [step.strip() for step in text.split(";")]


def test_lru_evicts_under_pressure_only_and_fetches_on_demand():
    p = problem(train(4), budget=28)
    plan = POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0})
    assert tell(p, plan) == words(
        "f0; f1; a0 hbm>ddr; a0 -hbm; f2; a1 hbm>ddr; a1 -hbm; f3; b3; a3 -hbm; b2; a2 -hbm; g3 -hbm;"
        "a1 ddr>hbm; b1; a1 -hbm; a1 -ddr; g2 -hbm; a0 ddr>hbm; b0; a0 -hbm; a0 -ddr; g1 -hbm; g0 -hbm"
    )


def test_a_workspace_has_room_made_for_it():
    """g needs 10 B for b and 10 for its workspace, of 20."""
    p = problem(graph("a 10, b 10", "f: -> a", "g: -> b, workspace 10", "h: a b ->"), budget=20)
    told = tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0}))
    assert told[:6] == words("f; a hbm>ddr; a -hbm; g; a ddr>hbm; h")


def test_look_ahead_fetches_earlier():
    p = problem(train(4), budget=28)
    told = tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 1}))
    assert told.index("a1 ddr>hbm") < told.index("b2")
    assert told.index("a0 ddr>hbm") < told.index("b1")


def test_look_ahead_does_not_evict_what_it_is_about_to_need():
    p = problem(train(4), budget=28)
    told = tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 8}))
    fetched = [step for step in told if step.endswith("ddr>hbm")]
    assert fetched == ["a1 ddr>hbm", "a0 ddr>hbm"]


def test_synchronous_waits_for_each_copy():
    p = problem(train(4), budget=28)
    told = tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0, "synchronous": True}))
    copies = [(step, after) for step, after in pairwise(told) if ">" in step]
    assert len(copies) == 4
    assert all(after == f"sync {step.split()[0]}" for step, after in copies)


def test_a_runtime_that_drains_waits_for_all_that_it_issued_where_room_lacks_and_nowhere_else():
    p = problem(train(4), budget=28)
    ahead, drains = (
        tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0, "drains": flag}))
        for flag in (False, True)
    )
    assert [step for step in drains if not step.startswith("sync")] == ahead
    assert drains[:11] == words("f0; f1; sync a1; a0 hbm>ddr; a0 -hbm; f2; sync a2; sync a0; a1 hbm>ddr; a1 -hbm; f3")
    assert not any(step.startswith("sync") for step in drains[11:])


def test_a_clean_victim_is_not_copied_again():
    g = graph("u 10 persistent, v 10 persistent", "a: u ->", "b: v ->", "c: u ->", "d: v ->", steps=2)
    p = problem(g, budget=10, homes={"u": FREE, "v": DDR})
    told = tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0}))
    assert not any(step.endswith("hbm>ddr") for step in told)
    assert told[: len(told) // 2] == told[len(told) // 2 :]


def test_a_dirty_victim_is_and_everything_is_home_at_the_end_of_each_step():
    g = graph("u 10 persistent, v 10 persistent", "a: u -> u", "b: v ->", steps=2)
    p = problem(g, budget=10, homes={"v": DDR, "u": FREE})
    plan = POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0})
    assert plan.home == (DDR, DDR)
    step = words("u ddr>hbm; a; u hbm>ddr; u -hbm; v ddr>hbm; b; v -hbm")
    assert tell(p, plan) == [*step, *step]


def test_free_homes_fill_the_room_that_the_largest_working_set_leaves():
    g = graph("u 10 persistent, v 10 persistent, w 10 persistent", "a: u ->", "b: v ->", "c: w ->")
    p = problem(g, budget=25, homes=dict.fromkeys("uvw", FREE))
    assert POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0}).home == (0, 1, 1)


@pytest.mark.parametrize("barred", [False, True])
def test_it_does_not_look_past_a_barrier(barred):
    """What ops behind a barrier need is fetched once the barrier was issued: then all that is in view."""
    names = "abcde"
    g = graph(", ".join(f"{n} 10 persistent" for n in names), *(f"f{n}: {n} ->, 1 ns" for n in names))
    g = replace(g, ops=tuple(replace(op, barrier=barred and op.name == "fb") for op in g.ops))
    p = problem(g, budget=40, homes=dict.fromkeys(names, DDR))
    told = tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 2}))
    told = [step.replace(" ddr>hbm", "") for step in told if "-" not in step]
    assert told == (["a", "b", "fa", "fb", "c", "d", "e", "fc", "fd", "fe"] if barred else
                    ["a", "b", "c", "fa", "d", "fb", "e", "fc", "fd", "fe"])  # fmt: skip


def test_where_all_fits_nothing_moves_and_nothing_is_replayed():
    p = problem(train(4), budget=46)
    p = replace(p, trial=None)
    assert not any(">" in step for step in tell(p, POLICIES["reactive"].plan(p)))


def test_an_op_that_cannot_run_is_a_shortfall():
    p = problem(train(4), budget=24)
    with pytest.raises(CapacityError) as caught:
        POLICIES["reactive"].plan(p)
    assert (caught.value.report.demand_bytes, caught.value.report.at) == (25, "op f1")
    assert caught.value.report.largest == (("a0", 10), ("a1", 10), ("w", 5))


def test_no_room_away_is_a_shortfall_of_that_tier():
    p = problem(train(4), budget=28, hardware=machine(ddr="15 B"))
    with pytest.raises(CapacityError) as caught:
        tell(p, POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0}))
    assert caught.value.report.tier == "ddr"
    assert caught.value.report.short_bytes == 5


def test_best_is_no_slower_than_any_single_choice():
    p = problem(train(8, steps=2), budget=40, hardware=machine(d2h={"bandwidth": "0.7 GB/s"}))
    best = replay(p, POLICIES["reactive"].plan(p)).step_ns
    for evict in ("lru", "fifo", "furthest"):
        one = POLICIES["reactive"].plan(p, {"evict": evict, "look_ahead": 32})
        assert best <= replay(p, one).step_ns


def test_what_is_free_and_does_not_stay_goes_to_the_nearest_tier_with_room():
    document = machine(ddr="25 B").model_dump(mode="json", by_alias=True)
    document["tiers"]["ssd"] = {"capacity": "inf"}
    ends = {"write": ("hbm", "ssd"), "read": ("ssd", "hbm")}
    document["links"] |= {name: {"source": a, "target": b, "bandwidth": "0.5 GB/s"} for name, (a, b) in ends.items()}
    g = graph("a 10 persistent, b 10 persistent, c 10 persistent, d 10 persistent, e 1", "f: a -> e, 1 ns",
              "g: b e ->, 1 ns", "h: c ->, 1 ns", "i: d ->, 1 ns")  # fmt: skip
    p = problem(g, 21, dict.fromkeys("abcd", FREE), Hardware.model_validate(document))
    plan = POLICIES["reactive"].plan(p, {"evict": "lru", "look_ahead": 0})
    assert [p.tiers[home] for home in plan.home[:4]] == ["hbm", "ddr", "ddr", "ssd"]
    assert replay(p, plan).status == "ok"


BEHIND = {
    "write": {"source": "ddr", "target": "ssd", "bandwidth": "0.5 GB/s"},
    "read": {"source": "ssd", "target": "ddr", "bandwidth": "0.5 GB/s"},
}
"""An SSD that only DDR reaches."""


@pytest.mark.parametrize("options", [{}, {"look_ahead": 0, "evict": "lru"}, {"look_ahead": 2, "synchronous": True}])
def test_where_the_next_tier_is_full_it_demotes_to_the_one_behind(options):
    """DDR has room for two of the six that are saved; what left first goes on to the SSD, and comes back over DDR."""
    p = problem(train(layers=6, steps=2), 36, hardware=machine(ddr="20 B", **BEHIND))
    found = replay(p, POLICIES["reactive"].plan(p, options))
    assert found.status == "ok"
    assert (found.peak_bytes["ddr"], found.peak_bytes["ssd"]) == (20, 10)


def test_a_copy_takes_the_fastest_way_even_where_a_slow_link_is_straight():
    around = {"there": {"source": "ddr", "target": "ssd"}, "back": {"source": "ssd", "target": "hbm"}}
    slow = machine(h2d={"bandwidth": "0.1 GB/s"}, **around)
    p = problem(graph("w 10 persistent", "f: w ->, 5 ns"), 20, {"w": DDR}, slow)
    plan = POLICIES["reactive"].plan(p, {"look_ahead": 0, "evict": "lru"})
    assert tell(p, plan) == words("w ddr>ssd; w ssd>hbm; w -ssd; f; w -hbm")
    assert replay(p, plan).step_ns < 100, "what the link alone takes"


def test_what_is_demoted_is_what_left_first():
    p = problem(train(layers=6), 36, hardware=machine(ddr="20 B", **BEHIND))
    told = tell(p, POLICIES["reactive"].plan(p, {"look_ahead": 0, "evict": "lru"}))
    assert next(step for step in told if step.endswith(">ssd")) == "a0 ddr>ssd"
    assert told.index("a0 ssd>ddr") < told.index("a0 ddr>hbm") < told.index("b0")


def test_state_that_was_demoted_comes_home():
    """`w` begins and ends in DDR; meanwhile it goes on to the SSD, as `a` and `b` leave for DDR behind it."""
    ops = ("f: w -> a, 5 ns", "g: -> b, 5 ns", "h: -> c, 5 ns", "k: a ->, 5 ns", "m: b ->, 5 ns", "n: c ->, 5 ns")
    g = graph("w 10 persistent, a 10, b 10, c 20", *ops, steps=2)
    p = problem(g, 20, {"w": FREE}, machine(ddr="20 B", **BEHIND))
    plan = POLICIES["reactive"].plan(p, {"look_ahead": 0, "evict": "lru"})
    told = tell(p, plan)
    assert p.tiers[plan.home[0]] == "ddr"
    assert "w ddr>ssd" in told
    assert told.index("w ssd>ddr") > told.index("n")
    assert replay(p, plan).status == "ok"


def test_where_no_tier_has_room_it_says_so():
    p = problem(train(layers=6), 36, hardware=machine(ddr="20 B"))
    with pytest.raises(CapacityError, match="ddr"):
        POLICIES["reactive"].plan(p, {"look_ahead": 0})


def test_what_a_runtime_decides_is_remembered_for_other_bandwidths_and_for_nothing_else(monkeypatch):
    """Room, options and the ways between tiers are part of what it is remembered by."""
    decided = []
    batches = reactive._batches
    monkeypatch.setattr(reactive, "_batches", lambda *about: decided.append(about) or batches(*about))
    p, lru = problem(train(4), budget=28), {"evict": "lru", "look_ahead": 0}
    faster = machine(d2h={"bandwidth": "7 GB/s"}, h2d={"bandwidth": "7 GB/s"})
    assert tell(p, POLICIES["reactive"].plan(p, lru)) == tell(p, POLICIES["reactive"].plan(p, lru))
    tell(again := replace(p, hardware=faster), POLICIES["reactive"].plan(again, lru))
    assert len(decided) == 1
    tell(p, POLICIES["reactive"].plan(p, lru | {"look_ahead": 2}))
    tell(wider := replace(p, budget_bytes=30), POLICIES["reactive"].plan(wider, lru))
    tell(below := replace(p, homes=(DDR, *p.homes[1:])), POLICIES["reactive"].plan(below, lru))
    assert len(decided) == 4
