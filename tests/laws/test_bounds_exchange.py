"""No run is faster than what persistent tensors take that have no room together, and there are runs that meet it."""

from __future__ import annotations

import pytest
from bounding import bound
from hypothesis import assume, event, given
from hypothesis import strategies as st
from policy_problems import DDR, HBM, machine, problem, replay

from simulator.cost.service import ceil_div
from simulator.errors import CapacityError
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import working_set_bytes
from simulator.plan import FREE
from simulator.policies import POLICIES, Problem

KIND = "exchange in hbm"
rates = st.sampled_from(["0.3 GB/s", "0.7 GB/s", "1 GB/s", "3 GB/s", "inf"])


def streamed(sizes: list[int], durations: list[int], written: set[int], steps: int) -> Graph:
    """A persistent tensor for each op, some of them changed in place."""
    builder = GraphBuilder("streamed")
    for i, (size, duration) in enumerate(zip(sizes, durations, strict=True)):
        builder.tensor(f"w{i}", size, "weight", persistent=True)
        builder.op(f"op{i}", [f"w{i}"], [f"w{i}"] if i in written else [], duration_ns=duration)
    return builder.build(steps=steps)


@st.composite
def crowded(draw) -> Problem:
    """A few persistent tensors, most of them with a free home, in room for all but a few."""
    sizes = draw(st.lists(st.sampled_from([7, 20, 20, 20, 21]), min_size=2, max_size=7))
    durations = draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)))
    written = draw(st.sets(st.integers(0, len(sizes) - 1), max_size=2))
    graph = streamed(sizes, durations, written, draw(st.integers(1, 3)))
    home = {t.name: draw(st.sampled_from([FREE, FREE, FREE, HBM, DDR])) for t in graph.tensors}
    pinned = sum(t.size_bytes for t in graph.tensors if home[t.name] == HBM)
    least = pinned + int(working_set_bytes(graph).max())
    budget = max(least, sum(sizes) - draw(st.integers(1, 60)))
    links = {name: {"bandwidth": draw(rates), "channels": draw(st.integers(1, 2))} for name in ("d2h", "h2d")}
    return problem(graph, budget, home, machine(**links))


@given(crowded(), st.sampled_from(["static", "reactive", "lookahead", "upstream_greedy"]))
def test_no_policy_is_faster(p: Problem, name: str):
    try:
        done = replay(p, POLICIES[name].plan(p))
    except CapacityError:
        return
    assume(done.status == "ok" and done.peak_bytes["hbm"] <= p.budget_bytes)
    found = bound(p.graph, p.hardware, p.durations_ns, p.homes, p.budget_bytes)
    event(f"{'met' if found.ns == done.step_ns else 'not met'}, {found.kind.split()[0]}")
    assert found.ns <= done.step_ns


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("count", "room"), [(3, 2), (5, 3), (4, 1)])
def test_a_plan_meets_it(count: int, room: int, steps: int):
    """Tensors alike that take turns in one place beside those that stay."""
    p = problem(streamed([30] * count, [0] * count, set(), steps), 30 * room, {f"w{i}": FREE for i in range(count)})
    found = bound(p.graph, p.hardware, p.durations_ns, p.homes, p.budget_bytes)
    assert found.terms[KIND] == 30 * (count - room + 1)
    assert found.ns == replay(p, POLICIES["static"].plan(p)).step_ns


@pytest.mark.parametrize(("out", "back", "expected"), [(3, 1, 20 + ceil_div(20, 3)), (1, 3, ceil_div(40, 3))])
def test_the_first_out_may_be_quicker_than_another_in(out: int, back: int, expected: int):
    links = {"d2h": {"bandwidth": f"{out} GB/s"}, "h2d": {"bandwidth": f"{back} GB/s"}}
    p = problem(streamed([20] * 3, [0] * 3, set(), 2), 40, {f"w{i}": FREE for i in range(3)}, machine(**links))
    assert bound(p.graph, p.hardware, p.durations_ns, p.homes, 40).terms[KIND] == expected


def test_it_takes_the_size_that_says_most_and_leaves_out_what_is_overwritten():
    graph = streamed([50, 50, 1], [0] * 3, set(), 2)
    homes = [FREE] * 3
    p = problem(graph, 60, {t.name: FREE for t in graph.tensors})
    assert bound(graph, p.hardware, p.durations_ns, homes, 60).terms[KIND] == 40 + 50
    assert bound(graph, p.hardware, p.durations_ns, homes, 100).terms[KIND] == 1 + 1
    builder = GraphBuilder("overwritten")
    for name in "ab":
        builder.tensor(name, 50, persistent=True)
        builder.op(f"read {name}", [name], [], duration_ns=0)
    builder.op("overwrite a", [], ["a"], duration_ns=0)
    assert KIND not in bound(builder.build(steps=2), p.hardware, [0] * 3, [FREE] * 2, 60).terms
