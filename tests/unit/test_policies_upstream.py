"""The open-source planner's rule: its decisions in small cases that its description prints, and against a plain
re-telling of it that looks at every op."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_problems import DDR, problem, replay, tell, train
from strategies import graphs

from simulator.errors import CapacityError
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import IdleInterval
from simulator.policies import POLICIES
from simulator.policies.baselines import choose


def words(text):
    return [step.strip() for step in text.split(";")]


def story(*ops, **sizes):
    """Ops as ``"a>b"`` (reads a, writes b) of one nanosecond each."""
    builder = GraphBuilder("story")
    for name, size in sizes.items():
        builder.tensor(name, size)
    for i, op in enumerate(ops):
        reads, writes = op.split(">")
        builder.op(f"o{i}", reads.split(), writes.split(), duration_ns=1)
    return builder.build()


def greedy(graph, limit):
    """The same rule, op by op and interval by interval."""
    accesses: dict[int, list[int]] = {}
    for i, op in enumerate(graph.ops):
        for t in dict.fromkeys((*op.reads, *op.writes)):
            accesses.setdefault(t, []).append(i)
    resident = [0] * len(graph.ops)
    tracked = {t: at for t, at in accesses.items() if t not in graph.inputs}
    for t, at in tracked.items():
        for i in range(at[0], at[-1] + 1):
            resident[i] += graph.tensors[t].size_bytes
    intervals = [
        (b - a, graph.tensors[t].size_bytes, -a, t) for t, at in tracked.items() for a, b in pairwise(at) if b > a + 1
    ]
    taken = []
    for distance, size, minus_start, t in sorted(intervals, key=lambda g: g[:3], reverse=True):
        if max(resident) <= limit:
            break
        interior = range(1 - minus_start, distance - minus_start)
        if any(resident[i] > limit for i in interior):
            taken.append(IdleInterval(t, -minus_start, distance - minus_start))
            for i in interior:
                resident[i] -= size
    return tuple(taken), max(resident)


@given(graphs(max_ops=12), st.integers(0, 40))
def test_decisions_are_those_of_the_rule(graph, limit):
    p = problem(graph, homes=dict.fromkeys((t.name for t in graph.tensors if t.persistent), 0))
    assert choose(p, limit) == greedy(graph, limit)


def test_redundant_picks_stay():
    graph = story(">a", ">b", "b>c", ">c", "b>", "a>", a=10, b=60, c=50)
    intervals, _ = choose(problem(graph), 70)
    assert [graph.tensors[g.tensor].name for g in intervals] == ["a", "b"]


def test_it_plans_once_more_than_it_can_keep_and_does_not_say_no():
    graph = story(">a", "a>b", "b>", a=100, b=100)
    assert choose(problem(graph), 50) == ((), 200)
    plan = POLICIES["upstream_greedy"].plan(problem(graph), {"limit": "50 B"})
    assert plan.notes[1] == "this exceeds its limit of 50 B, but it does not check"


def test_copies_out_after_the_last_write_and_in_at_the_consumer():
    p = problem(train(3))
    plan = POLICIES["upstream_greedy"].plan(p, {"limit": "21 B"})
    assert tell(p, plan) == words(
        "f0; a0 hbm>ddr; f1; a0 -hbm; f2; b2; a2 -hbm; b1; a1 -hbm; g2 -hbm; a0 ddr>hbm; b0; a0 -hbm; a0 -ddr; g1 -hbm"
        "; g0 -hbm"
    )
    assert replay(p, plan).peak_bytes == {"hbm": 27, "ddr": 10}  # w, a1, g2, g1, and a0 on its way in while b1 runs


def test_a_lead_issues_copies_in_earlier_but_not_before_the_room_is_free():
    p = problem(train(4))
    at = {}
    for lead in (0, 1, 2, 9):
        told = tell(p, POLICIES["upstream_greedy"].plan(p, {"limit": "31 B", "lead": lead}))
        at[lead] = told[told.index("a0 ddr>hbm") + 1]
    assert at == {0: "b0", 1: "b1", 2: "b2", 9: "f2"}


def test_a_copy_that_is_still_valid_is_not_made_twice_and_one_that_is_not_is_made_again():
    clean = story(">a", "a>", ">b", "a>", ">b", "a>", a=10, b=10)
    dirty = story(">a", "a>", ">b", "a>a", ">b", "a>", a=10, b=10)
    for graph, copies in ((clean, 1), (dirty, 2)):
        p = problem(graph)
        told = tell(p, POLICIES["upstream_greedy"].plan(p, {"limit": "10 B"}))
        assert (told.count("a hbm>ddr"), told.count("a ddr>hbm")) == (copies, 2)


def test_what_lives_elsewhere_comes_in_when_it_is_needed():
    p = problem(train(1), homes={"w": DDR})
    plan = POLICIES["upstream_greedy"].plan(p)
    assert tell(p, plan)[:2] == ["w ddr>hbm", "f0"]


def test_outputs_count_only_up_to_their_last_use_and_stay():
    builder = GraphBuilder("outputs")
    for name in "gh":
        builder.tensor(name, 10)
    builder.op("o0", [], ["g"], duration_ns=1)
    builder.op("o1", [], ["h"], duration_ns=1)
    p = problem(builder.build(["g", "h"]), budget=10)
    assert choose(p, 10)[1] == 10
    with pytest.raises(CapacityError) as caught:
        POLICIES["upstream_greedy"].plan(p)
    assert caught.value.report.demand_bytes == 20


def test_persistent_tensors_are_not_planned_for_but_taken_off_the_budget():
    for budget, copies in ((36, 0), (35, 1)):
        p = problem(train(3), budget=budget)
        assert tell(p, POLICIES["upstream_greedy"].plan(p)).count("a0 hbm>ddr") == copies
