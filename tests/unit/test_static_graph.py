"""The augmented graph as a value: what it holds, what it refuses, how it is written down."""

import csv
import json
from dataclasses import replace
from itertools import pairwise
from math import log2

import pytest
from policy_problems import DDR, HBM, check_augmented, machine, problem, replay, tell, train
from stories import graph

from simulator.formats import graph_jsonl
from simulator.graph import TensorKind
from simulator.hardware import Hardware
from simulator.plan import COPY
from simulator.policies import FREE, POLICIES
from simulator.policies.static import Options
from simulator.policies.static.analyse import TERMS, analyse, scored
from simulator.policies.static.cache_ops import Role
from simulator.policies.static.explanation import Decision, explained, ledger
from simulator.policies.static.place import insert
from simulator.policies.static.room import assign_tiers
from simulator.policies.static.select import select
from simulator.report import decisions


@pytest.fixture(scope="module", autouse=True)
def plans_are_quick():
    """What is tried here is the search."""


def augmented_of(p, limit):
    return insert(select(analyse(p), limit))


def of_kind(name, kind, tensors, *ops, **more):
    """A story's graph with the kind of one tensor changed."""
    g = graph(tensors, *ops, **more)
    return replace(g, tensors=tuple(replace(t, kind=TensorKind(kind)) if t.name == name else t for t in g.tensors))


def one_trip():
    """a0 of 10 B leaves after f1 and is read by b0."""
    p = problem(train(4), budget=37)
    return p, augmented_of(p, 37)


def changed(augmented, role, **fields):
    one = next(one for one in augmented.cache_ops if one.role is role)
    return augmented.moved({one: one._replace(**fields)})


def test_a_trip_is_a_chain_from_its_producer_to_its_consumer():
    _, augmented = one_trip()
    check_augmented(augmented)
    assert [(str(one.role), one.first, one.position, one.last) for one in augmented.cache_ops] == [
        ("store", 1, 2, 7),
        ("detach", 2, 2, 7),
        ("prefetch", 2, 7, 7),
    ]
    assert [(edge.source, edge.target) for edge in augmented.edges()] == [
        ("f0", "store a0 #0"),
        ("f1", "detach a0 #0"),
        ("prefetch a0 #0", "b0"),
        ("store a0 #0", "detach a0 #0"),
        ("detach a0 #0", "prefetch a0 #0"),
    ]


@pytest.mark.parametrize(
    ("role", "fields", "message"),
    [
        (Role.STORE, {"position": 8}, "in its window"),
        (Role.STORE, {"first": 0}, "behind what it follows"),
        (Role.PREFETCH, {"last": 8}, "ahead of what it precedes"),
        (Role.STORE, {"position": 5}, "a detach follows its store"),
    ],
)
def test_a_broken_graph_is_seen(role, fields, message):
    _, augmented = one_trip()
    with pytest.raises(AssertionError, match=message):
        check_augmented(changed(augmented, role, **fields))


def test_what_is_detached_later_is_no_fault():
    _, augmented = one_trip()
    check_augmented(changed(augmented, Role.DETACH, position=4, first=4))


def test_a_tensor_that_is_read_while_away_is_seen():
    _, augmented = one_trip()
    with pytest.raises(AssertionError, match="b0 reads what is there"):
        check_augmented(replace(augmented, cache_ops=augmented.cache_ops[:-1]))


def test_no_window_crosses_a_barrier():
    g = train(4)
    g = replace(g, ops=tuple(replace(op, barrier=op.name == "b2") for op in g.ops))
    p = problem(g, budget=37)
    augmented = augmented_of(p, 37)
    check_augmented(augmented)
    prefetch = augmented.cache_ops[-1]
    assert (prefetch.first, prefetch.last) == (6, 7)
    with pytest.raises(AssertionError, match="no window crosses a barrier"):
        check_augmented(changed(augmented, Role.PREFETCH, first=3))


def test_what_is_overwritten_before_it_is_read_is_dropped_not_stored():
    g = graph("x 10, y 10, z 1", "a: -> x", "b: x -> z", "c: -> y", "d: y -> x", "e: x ->")
    p = problem(g, budget=21)
    augmented = augmented_of(p, 20)
    assert [one.role for one in augmented.cache_ops] == []
    g = graph("x 10, y 10, z 1", "a: -> x", "b: -> y", "c: y -> z", "d: -> x", "e: x ->")
    p = problem(g, budget=15)
    augmented = augmented_of(p, 15)
    assert [(one.role, one.tensor) for one in augmented.cache_ops] == [(Role.DETACH, 0)]
    plan = POLICIES["static"].plan(p)
    assert "x hbm>ddr" not in tell(p, plan)
    assert replay(p, plan).status == "ok"


def test_a_second_trip_of_an_unchanged_tensor_is_not_stored_again():
    g = graph("x 10, y 10, z 10", "a: -> x", "b: -> y", "c: x ->", "d: -> z", "e: x ->")
    p = problem(g, budget=15)
    augmented = augmented_of(p, 10)
    assert [str(one.role) for one in augmented.cache_ops if one.tensor == 0] == [
        "store", "detach", "prefetch", "detach", "prefetch",
    ]  # fmt: skip


def test_a_weight_that_moves_lives_away_and_is_never_stored():
    g = of_kind(
        "w",
        "weight",
        "w 10 persistent, y 10, z 1, x 1",
        "a: -> x, 40 ns",
        "b: w -> x",
        "c: -> y, 30 ns",
        "d: y ->",
        "e: w -> z, 20 ns",
        steps=2,
    )
    p = problem(g, budget=22, homes={"w": FREE})
    assert "nothing moves" in POLICIES["static"].plan(p).notes[0]
    p = problem(g, budget=15, homes={"w": FREE})
    told = tell(p, POLICIES["static"].plan(p))
    assert "w hbm>ddr" not in told
    assert told.count("w ddr>hbm") == 2


def test_the_score_is_the_sum_of_its_terms():
    """10 B idle for 30 ns after copies of 20 ns in all."""
    p = problem(train(4))
    score = scored(analyse(p).candidates[0])
    assert dict(zip(TERMS, score.terms, strict=True)) == pytest.approx(
        {"size": log2(11), "idle": log2(31), "bandwidth": -log2(21), "exposed": 0}
    )
    assert score.total == pytest.approx(sum(score.terms))


def two_tiers(ddr):
    document = machine(ddr=ddr).model_dump(mode="json")
    document["tiers"]["ssd"] = {"capacity": "inf"}
    document["links"]["read"] = {"source": "ssd", "target": "ddr", "bandwidth": "1 GB/s"}
    document["links"]["write"] = {"source": "ddr", "target": "ssd", "bandwidth": "1 GB/s"}
    return Hardware.model_validate(document)


def test_what_does_not_fit_in_ddr_goes_on_to_the_ssd():
    p = problem(train(8, duration=60), budget=49, hardware=two_tiers("30 B"))
    intervals = assign_tiers(p, analyse(p).candidates[:4])
    assert sorted(idle.away for idle in intervals) == [1, 1, 1, 2]
    longest = max(intervals, key=lambda idle: idle.lead_ns)
    assert longest.away == 2
    plan = POLICIES["static"].plan(p)
    done = replay(p, plan)
    assert (done.status, done.peak_bytes["ddr"] <= 30, done.peak_bytes["ssd"] > 0) == ("ok", True, True)


def test_only_what_is_too_much_for_ddr_goes_on():
    """DDR holds 5 of 6 tensors; the one that goes on passes it while there is room."""
    p = problem(train(8, duration=60), budget=28, hardware=two_tiers("50 B"))
    intervals = explained(p, Options()).augmented.intervals
    assert sorted(idle.away for idle in intervals) == [1, 1, 1, 1, 1, 2]


def test_what_no_op_uses_takes_no_room_in_the_tier_that_others_need():
    p = problem(graph("u 10 persistent, x 1", "a: -> x"), budget=5, homes={"u": FREE}, hardware=two_tiers("30 B"))
    assert POLICIES["static"].plan(p).home[0] == p.tiers.index("ssd")


def test_decisions_name_the_tier_and_the_prices_of_the_way_that_is_taken(tmp_path):
    p = problem(train(8, duration=60), budget=49, hardware=two_tiers("30 B"))
    found = explained(p, Options())
    went = {}
    for kind, tensor, _, target in found.plan.fixed.codes():
        if kind == COPY and target != HBM:
            went[tensor] = max(target, went.get(tensor, 0))
    moved = found.decided(Decision.MOVE)
    assert set(went.values()) == {1, 2}
    assert {choice.interval.tensor: choice.interval.away for choice in moved} == went
    for choice in moved:
        copies = 20 * choice.interval.away
        assert choice.interval.out_ns + choice.interval.in_ns == copies
        assert dict(zip(TERMS, choice.score.terms, strict=True))["bandwidth"] == -log2(1 + copies)
    assert [choice.score.total for choice in moved] == sorted((c.score.total for c in moved), reverse=True)
    further = next(choice for choice in moved if choice.interval.away == 2)
    assert further.reason == "the budget is exceeded otherwise; ddr is full or too slow"
    assert "hbm to ssd: alone 20 ns" in decisions.tensor_text(found, p.graph.tensors[further.interval.tensor].name)
    decisions.write(found, tmp_path)
    rows = csv.DictReader((tmp_path / "decisions.csv").read_text().splitlines())
    names = {p.graph.tensors[t].name: ("", "ddr", "ssd")[tier] for t, tier in went.items()}
    assert {row["tensor"]: row["tier"] for row in rows if row["decision"] == "move"} == names


def test_all_stays_in_ddr_where_it_fits():
    p = problem(train(8, duration=60), budget=49, hardware=two_tiers("1 kB"))
    assert {idle.away for idle in assign_tiers(p, analyse(p).candidates)} == {1}


def staged(ddr, read="0.5 GB/s"):
    """An SSD behind DDR whose copies reach HBM in chunks of 1 B, over the link that those from DDR take."""
    document = two_tiers(ddr).model_dump(mode="json")
    document["links"]["read"]["bandwidth"] = read
    document["links"]["ssd_to_hbm"] = {"source": "ssd", "target": "hbm", "via": ["read", "h2d"], "chunk": "1 B"}
    document["links"]["hbm_to_ssd"] = {"source": "hbm", "target": "ssd", "via": ["d2h", "write"], "chunk": "1 B"}
    return Hardware.model_validate(document)


def streamed(layers=12, duration=2):
    """Weights of 10 B, each read by one op of a step."""
    weights = [f"w{i:02}" for i in range(layers)]
    ops = [f"o{i:02}: {name} ->, {duration} ns" for i, name in enumerate(weights)]
    g = graph(", ".join(f"{name} 10 persistent" for name in weights), *ops, steps=2)
    weight = TensorKind.WEIGHT
    return replace(g, tensors=tuple(replace(t, kind=weight) for t in g.tensors)), dict.fromkeys(weights, FREE)


def test_a_tier_behind_the_link_of_another_takes_no_load_from_it():
    """Each copy takes five times as long as an op, and from the SSD ten times, over the same link."""
    g, homes = streamed()
    p = problem(g, budget=30, homes=homes, hardware=staged("1 kB"))
    assert p.links[2, 0].via == ("read", "h2d")
    assert {idle.away for idle in assign_tiers(p, analyse(p).candidates)} == {1}


def test_what_is_too_much_for_a_tier_is_spread_over_the_step():
    """DDR has room for two of three, beside the chunks; the link is busy all the time, and the SSD half of it."""
    g, homes = streamed()
    p = problem(g, budget=30, homes=homes, hardware=staged("84 B"))
    intervals = assign_tiers(p, analyse(p).candidates)
    further = sorted(idle.before for idle in intervals if idle.away == 2)
    assert len(further) == 4
    assert all(2 <= after - before <= 5 for before, after in pairwise(further))


def test_the_ledger_marks_slots_in_which_more_is_wanted_than_fits():
    p = problem(train(8, size=15), budget=60, hardware=machine(d2h={"bandwidth": "0.5 GB/s"}))
    augmented = augmented_of(p, 60)
    slots = ledger(augmented, replay(p, augmented.plan).trace, slots=16)
    assert {slot.link for slot in slots} == {"d2h", "h2d"}
    stored = sum(one.alone_ns for one in augmented.cache_ops if one.role is Role.STORE)
    for column in ("wanted_ns", "busy_ns"):
        assert sum(getattr(slot, column) for slot in slots if slot.link == "d2h") == stored
    assert any(slot.is_oversubscribed for slot in slots if slot.link == "d2h")


def test_every_interval_is_explained_and_one_tensor_is_told_in_full():
    p = problem(train(6), budget=47)
    found = explained(p, Options())
    analysis = analyse(p)
    assert len(found.choices) == len(analysis.candidates) + len(analysis.forced)
    moved = {choice.interval.tensor for choice in found.decided(Decision.MOVE)}
    assert moved == {one.tensor for one in found.augmented.cache_ops}
    told = decisions.tensor_text(found, "a0")
    assert "idle from f1 to b0" in told
    assert "score" in told
    assert "prefetch before" in told


def test_the_graph_is_exported_with_its_edges(tmp_path):
    _, augmented = one_trip()
    graph_jsonl.write_augmented(augmented, tmp_path / "a.json")
    read = json.loads((tmp_path / "a.json").read_bytes())
    assert read["schema"] == "hosim-augmented/1"
    assert [(one["name"], one["window"], one["position"]) for one in read["cache_ops"]][2] == (
        "prefetch a0 #0",
        [2, 7],
        7,
    )
    names = {op["name"] for op in read["ops"]} | {one["name"] for one in read["cache_ops"]}
    assert all(edge["from"] in names and edge["to"] in names for edge in read["edges"])


def test_static_says_why_nothing_moves():
    p = problem(train(3), budget=1000)
    plan = POLICIES["static"].plan(p)
    assert plan.fixed == POLICIES["resident"].plan(p).fixed
    assert plan.notes == ("nothing moves: at most 36 B are live at once, of a budget of 1.00 kB",)
    assert plan.home[0] == HBM


def test_a_window_begins_behind_a_barrier():
    g = graph("u 10 persistent", "a: ->, 10 ns", "b: u ->, 10 ns")
    g = replace(g, ops=(replace(g.ops[0], barrier=True), g.ops[1]))
    p = problem(g, homes={"u": DDR})
    text = decisions.tensor_text(explained(p, Options()), "u")
    assert "window before b ... before b" in text
