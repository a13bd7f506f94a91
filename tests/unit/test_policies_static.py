"""The passes of the compiler, one by one, and the whole."""

from collections import Counter
from dataclasses import replace

import pytest
from policy_problems import DDR, HBM, check_augmented, machine, problem, replay, tell, train
from stories import graph

from simulator.errors import CapacityError, ScopeError
from simulator.graph import TensorKind
from simulator.hardware import Hardware
from simulator.policies import FREE, POLICIES, static
from simulator.policies.static import Options, compiled
from simulator.policies.static.analyse import analyse, scored
from simulator.policies.static.place import insert, place
from simulator.policies.static.select import select

ONE_TIER = {
    "name": "one",
    "compute_tier": "hbm",
    "compute": {"peak": {"bf16": "1 TFLOP/s"}},
    "tiers": {"hbm": {"capacity": "1 kB", "bandwidth": "1 TB/s"}},
}


@pytest.fixture(scope="module", autouse=True)
def plans_are_quick():
    """What is tried here is the search."""


def placed(p, selection, *, eager=False):
    """Where the copies in are issued: tensor name -> op name."""
    refined = place(insert(selection), eager=eager)
    check_augmented(refined)
    return {
        p.graph.tensors[one.tensor].name: p.graph.ops[one.position].name
        for one in refined.cache_ops
        if one.role == "prefetch"
    }


def names(p, intervals):
    return [p.graph.tensors[idle.tensor].name for idle in intervals]


def idle_of(p, name):
    found = analyse(p)
    return next(g for g in (*found.forced, *found.candidates) if p.graph.tensors[g.tensor].name == name)


def test_analyse_finds_intervals_in_time_and_prices_the_copies():
    p = problem(train(4), hardware=machine(h2d={"bandwidth": "0.5 GB/s"}))
    idle = idle_of(p, "a0")
    assert (idle.after, idle.before, idle.wraps, idle.returns) == (1, 7, False, True)
    assert (idle.lead_ns, idle.out_ns, idle.in_ns, idle.exposed_ns) == (50, 10, 20, 0)
    assert idle_of(p, "a2").exposed_ns == 20
    assert names(p, analyse(p).candidates) == ["a0", "a1", "a2"]


def test_analyse_wraps_what_may_live_away_around_the_step():
    g = graph(
        "u 10 persistent, v 10 persistent, x 1", "a: -> x, 10 ns", "b: u v -> u, 10 ns", "c: x ->, 30 ns", steps=2
    )
    p = problem(g, homes={"u": FREE, "v": DDR})
    clean, dirty = idle_of(p, "v"), idle_of(p, "u")
    assert [*names(p, analyse(p).forced), *names(p, analyse(p).candidates)] == ["v", "x", "u"]
    assert (clean.wraps, clean.lead_ns, clean.trail_ns, clean.out_ns, clean.in_ns) == (True, 10, 30, 0, 10)
    assert dirty.out_ns == 10


def test_analyse_knows_values_that_are_not_read_again():
    g = graph("x 10, y 1, z 1", "a: -> x", "b: -> y", "c: -> x", "d: x ->", "e: -> z")
    g = type(g)(g.name, g.tensors, g.ops, (0,), 1)
    p = problem(g)
    rewritten, output = (g for g in analyse(p).candidates if p.graph.tensors[g.tensor].name == "x")
    assert (rewritten.after, rewritten.before, rewritten.returns, rewritten.in_ns) == (0, 2, False, 0)
    assert (output.after, output.before, output.returns) == (3, 5, False)


def test_a_free_tensor_that_nobody_uses_lives_away():
    g = graph("u 10 persistent, x 1", "a: -> x")
    p = problem(g, budget=5, homes={"u": FREE})
    assert POLICIES["static"].plan(p).home[0] == DDR


def test_select_takes_the_longest_idle_first_and_only_as_much_as_needed():
    p = problem(train(6))
    found = analyse(p)
    peak = int(found.live_bytes.max())
    assert select(found, peak).intervals == ()
    assert names(p, select(found, peak - 10).intervals) == ["a0"]
    assert names(p, select(found, peak - 11).intervals) == ["a0", "a1"]
    assert select(found, peak - 11).live_bytes.max() == peak - 20


def test_select_prefers_large_tensors_where_latency_makes_small_ones_dear():
    g = graph("s 2, l 20, y 1", "a: -> s l", "b: -> y, 500 ns", "c: s l ->")
    p = problem(g, hardware=machine(d2h={"latency": "40 ns"}, h2d={"latency": "40 ns"}))
    assert names(p, select(analyse(p), 22).intervals) == ["l"]


def test_select_gives_back_what_turned_out_needless():
    """s is worth more and goes first, but is not enough; l, which must follow, would have been."""
    g = graph("s 2, l 20, y 1", "a: -> s l", "b: -> y, 500 ns, workspace 10", "c: s l ->")
    p = problem(g)
    assert scored(idle_of(p, "s")).total > scored(idle_of(p, "l")).total
    assert names(p, select(analyse(p), 22).intervals) == ["l"]


def test_select_says_what_is_left_over():
    p = problem(train(4))
    assert select(analyse(p), 10).live_bytes.max() == 25


def test_place_ends_each_copy_just_before_its_use_and_before_the_next_copy():
    """Copies in take 15 ns, ops 10 ns; b0 starts at 150 ns: a0 comes from 135, a1 from 120, a2 from 105 ns."""
    p = problem(train(8, size=15))
    found = analyse(p)
    selection = select(found, int(found.live_bytes.max()) - 45)
    assert names(p, selection.intervals) == ["a0", "a1", "a2"]
    assert placed(p, selection) == {"a0": "b1", "a1": "b2", "a2": "b4"}


def test_place_comes_no_earlier_than_there_is_room():
    """While b6 runs, 67 of 76 B are live: before b5 nothing of 10 B may come in."""
    p = problem(train(8), budget=76)
    found = analyse(p)
    selection = select(found, 76)
    assert placed(p, selection, eager=True) == {"a0": "b5"}


def test_place_brings_copies_in_as_early_as_there_is_room_the_next_use_first():
    """a2 is read first, then a1, then a0; none comes later than just in time."""
    p = problem(train(8, size=15))
    found = analyse(p)
    selection = select(found, int(found.live_bytes.max()) - 45)
    late, early = (placed(p, selection, eager=eager) for eager in (False, True))
    ops = {op.name: i for i, op in enumerate(p.graph.ops)}
    assert all(ops[early[name]] <= ops[late[name]] for name in early)
    assert ops[early["a2"]] <= ops[early["a1"]] <= ops[early["a0"]]


@pytest.mark.parametrize("name", ["static", "lookahead", "offload_saved"])
def test_no_copy_in_is_moved_across_a_barrier(name):
    g = train(8, duration=5)
    ops = tuple(replace(op, barrier=op.name == "b2") for op in g.ops)
    options = {"select_distance": 11, "distance": 4} if name == "lookahead" else {}
    for graph_, crossed in ((g, True), (replace(g, ops=ops), False)):
        p = problem(graph_, budget=66, homes={f"a{i}": HBM for i in range(2, 8)})
        told = tell(p, POLICIES[name].plan(p, options))
        assert (told.index("a1 ddr>hbm") < told.index("b2")) == crossed


def test_static_hides_what_offload_saved_exposes():
    hardware = machine(d2h={"bandwidth": "0.4 GB/s"}, h2d={"bandwidth": "1 GB/s"})
    p = problem(train(8, steps=2), budget=66, hardware=hardware)
    static, saved = (replay(p, POLICIES[n].plan(p)).step_ns for n in ("static", "offload_saved"))
    assert static == 160 < saved


def test_static_never_exceeds_its_budget_and_says_how_much_it_needs():
    p = problem(train(4), budget=24)
    with pytest.raises(CapacityError) as caught:
        POLICIES["static"].plan(p)
    assert caught.value.report.demand_bytes == 25
    assert not any("'static'" in lever for lever in caught.value.report.levers)
    fits = problem(train(4), budget=25 + 2)
    assert replay(fits, POLICIES["static"].plan(fits)).peak_bytes["hbm"] <= 27


def test_static_drops_a_clean_tensor_without_copying_it():
    g = graph(
        "u 10 persistent, x 10, y 1",
        "a: u ->, 20 ns",
        "b: -> x, 20 ns",
        "c: x -> y, 20 ns",
        "d: u y ->, 20 ns",
        steps=2,
    )
    p = problem(g, budget=21, homes={"u": DDR})
    told = tell(p, POLICIES["static"].plan(p))
    assert "u hbm>ddr" not in told
    p = problem(g, budget=12, homes={"u": DDR})
    told = tell(p, POLICIES["static"].plan(p))
    assert told.count("u ddr>hbm") == 2
    assert "u hbm>ddr" not in told


def test_weights_that_live_away_are_copied_in_ahead_of_each_layer():
    tensors = "x 1, " + ", ".join(f"w{i} 10 persistent" for i in range(5))
    ops = ["l0: w0 -> x, 20 ns", *(f"l{i}: w{i} x -> x, 20 ns" for i in range(1, 5))]
    g = graph(tensors, *ops, steps=3)
    p = problem(g, budget=21, homes={f"w{i}": DDR for i in range(5)})
    done = replay(p, POLICIES["static"].plan(p))
    assert done.peak_bytes["hbm"] <= 21
    assert done.step_ns == 100
    assert HBM not in p.homes[1:]


@pytest.mark.usefixtures("quick_plans")
def test_what_moves_counts_as_effort_where_that_is_more_than_ops(monkeypatch):
    """Two ops read twelve tensors, of which at least three leave: a second placement would be worth 24 ops or more."""
    listed = [f"w{i}" for i in range(12)]
    ops = (f"first: {' '.join(listed[:6])} ->, 10 ns", f"second: {' '.join(listed[6:])} ->, 10 ns")
    p = problem(
        graph(", ".join(f"{name} 10 persistent" for name in listed), *ops), budget=90, homes=dict.fromkeys(listed, FREE)
    )
    placements = []
    monkeypatch.setattr(type(p), "bound_ns", 0)  # otherwise the first placement meets it
    monkeypatch.setattr(static, "place", lambda *args, **more: placements.append(args) or place(*args, **more))
    for effort, at_least in ((9, 1), (10**6, 2)):
        monkeypatch.setattr(static, "EFFORT", effort)
        placements.clear()
        POLICIES["static"].plan(p)
        assert len(placements) >= at_least
        assert effort > 9 or len(placements) == 1


def test_blocks_of_alike_caches_leave_in_turn():
    """Four ops read four blocks of 10 B each, and 30 B are too much: 50 B leave; of one op after the other, 60 B did.

    Nothing hides copies that the first op waits for, so that its blocks stay.
    """
    listed = [[f"c{op}b{block}" for block in range(4)] for op in range(4)]
    ops = [f"f{op}: {' '.join(blocks)} ->, 100 ns" for op, blocks in enumerate(listed)]
    names = [name for blocks in listed for name in blocks]
    g = graph(", ".join(f"{name} 10 persistent" for name in names), *ops, steps=2)
    p = problem(g, budget=130, homes=dict.fromkeys(names, FREE))
    chosen = select(analyse(p), 130).intervals
    assert sorted(g.tensors[idle.tensor].name[:2] for idle in chosen) == ["c1", "c1", "c2", "c3", "c3"]


def test_blocks_leave_in_turn_also_if_they_idle_longer_and_longer():
    """As above, for three tokens one after another, each op longer than the one before: no two intervals are alike.

    What is only read lives away and is never stored, but for what the first op waits for.
    """
    names = [[f"c{op}b{block}" for block in range(4)] for op in range(4)]
    ops = [
        f"t{token}f{op}: {' '.join(names[op])} ->, {100 + 4 * token + op} ns" for token in range(3) for op in range(4)
    ]
    blocks = [name for of_op in names for name in of_op]
    g = graph(", ".join(f"{name} 10 persistent" for name in blocks), *ops)
    g = replace(g, tensors=tuple(replace(t, kind=TensorKind.KV_CACHE) for t in g.tensors))
    p = problem(g, budget=130, homes=dict.fromkeys(blocks, FREE))
    chosen = select(analyse(p), 130).intervals
    back = Counter(idle.before for idle in chosen)
    assert len(back) > 8, "of nearly each op"
    assert max(back.values()) == 2, "50 B for every four ops, and never all of one"
    assert {g.tensors[idle.tensor].name[:2] for idle in chosen if idle.out_ns} <= {"c0"}


def read_only(listed, *ops):
    """A graph that runs twice, with blocks of a KV cache of 10 B each that no op writes, and ``y``."""
    g = graph(", ".join(f"{name} 10 persistent" for name in listed) + ", y 10", *ops, steps=2)
    return replace(g, tensors=tuple(replace(t, kind=TensorKind.KV_CACHE) if t.persistent else t for t in g.tensors))


def test_a_block_that_the_first_op_reads_lives_away_where_that_is_faster():
    """It has room beside y in no step: 10 ns in for each of three tokens, or in for two, out and home again."""
    ops = [
        op for token in "012" for op in (f"a{token}: k ->, 30 ns", f"b{token}: -> y, 30 ns", f"c{token}: y ->, 30 ns")
    ]
    p = problem(read_only(["k"], *ops), budget=15, homes={"k": FREE})
    assert not analyse(p).moving_homes
    plan = POLICIES["static"].plan(p)
    assert plan.home[0] == DDR
    assert replay(p, plan).step_ns == 9 * 30 + 3 * 10


def test_the_same_few_blocks_leave_for_each_token():
    """Three tokens of four ops that read four blocks each, 30 B too much; if each interval is chosen alone, six leave.

    A block whose home is away comes in at the beginning of the step as well, whatever it leaves for.
    """
    blocks = [f"c{op}b{block}" for op in range(4) for block in range(4)]
    ops = [
        f"t{t}f{op}: {' '.join(blocks[4 * op : 4 * op + 4])} ->, {100 + 4 * t} ns" for t in range(3) for op in range(4)
    ]
    p = problem(read_only(blocks, *ops), budget=130, homes=dict.fromkeys(blocks, FREE))
    chosen = select(analyse(p), 130).intervals
    assert len({idle.tensor for idle in chosen}) == 5


def test_what_is_asked_for_leaves_and_a_home_here_keeps():
    """Each of a0 .. a7 would make room for b7 and its neighbours; a0 idles longest and is chosen alone."""
    g = train(8)

    def gone(move=(), budget=76, homes=None):
        p = problem(g, budget=budget, homes=homes)
        return names(p, compiled(p, Options(move=[*move])).augmented.selection.intervals)

    assert gone() == ["a0"]
    assert gone(["a[3]"]) == ["a3"]
    assert gone(homes={"a0": HBM}) == ["a1"]
    assert gone(["a3"], budget=1000) == ["a3"], "although there is room"
    assert "a7" not in gone(["activation"], budget=1000), "read by the next op"


@pytest.mark.usefixtures("quick_plans")
def test_what_is_asked_for_or_at_home_here_is_not_made_again():
    """Copies take ten times as long as ops, so that all that has no room is made again, if it may be."""
    slow = machine(d2h={"bandwidth": "0.1 GB/s"}, h2d={"bandwidth": "0.1 GB/s"})

    def again(homes=None, move=()):
        p = problem(train(8), budget=70, hardware=slow, homes=homes)
        found = compiled(p, Options(recompute=True, move=[*move]))
        return {op.name for op in found.augmented.problem.graph.ops if "#" in op.name}

    assert again() == {"f0#2", "f2#2"}
    assert "f2#2" not in again(move=["a2"])
    assert "f2#2" not in again(homes={"a2": HBM})


@pytest.mark.parametrize(
    ("pattern", "homes", "message"),
    [
        ("x*", {}, r"option move .* found 'x\*'; take a name"),
        ("expert", {}, r"option move .* found 'expert'; take a name"),
        ("a1", {"a1": HBM}, r"tensors of option move may leave .* found 'a1', which is at home there; give it another"),
    ],
)
def test_a_pattern_that_asks_for_what_cannot_leave_is_refused(pattern, homes, message):
    with pytest.raises(ScopeError, match=message):
        POLICIES["static"].plan(problem(train(4), budget=27, homes=homes), {"move": [pattern]})


def test_on_one_tier_nothing_moves():
    p = problem(read_only(["k"], "a: k -> y"), homes={"k": FREE}, hardware=Hardware.model_validate(ONE_TIER))
    assert POLICIES["static"].plan(p).home[0] == HBM


@pytest.mark.parametrize("name", ["resident", "recompute"])
def test_what_comes_in_once_comes_behind_the_last_barrier_before_its_use(name):
    g = graph("u 10 persistent, v 10 persistent", "a: ->, 10 ns", "b: v ->, 10 ns", "c: u ->, 10 ns")
    walled = replace(g, ops=tuple(replace(op, barrier=op.name == "a") for op in g.ops))
    for graph_, first in ((g, ["u ddr>hbm", "v ddr>hbm", "a"]), (walled, ["a", "u ddr>hbm", "v ddr>hbm"])):
        p = problem(graph_, homes={"u": DDR, "v": DDR})
        assert tell(p, POLICIES[name].plan(p))[:3] == first
