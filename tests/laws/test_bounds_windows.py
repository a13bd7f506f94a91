"""No run is faster than the longest path over windows, and there are runs that meet it."""

from __future__ import annotations

import pytest
from bounding import bound
from hypothesis import assume, event, given
from hypothesis import strategies as st
from policy_problems import DDR, HBM, problem, replay
from strategies import machines

from simulator.bounds import Precedence, Timing
from simulator.bounds.idle import Demand
from simulator.bounds.windows import Rematerialisation
from simulator.errors import CapacityError
from simulator.graph import Graph
from simulator.graph_builder import GraphBuilder
from simulator.lifetime import working_set_bytes
from simulator.plan import FREE
from simulator.policies import POLICIES, Problem


def tokens(
    weights: list[int], count: int, took: int = 0, *, writes: frozenset[int] = frozenset(), steps: int = 1
) -> Graph:
    """Each token reads all weights in turn, writes some in place, and keeps a byte or more for the next ones."""
    builder = GraphBuilder("tokens")
    for i, size in enumerate(weights):
        builder.tensor(f"w{i}", size, "weight", persistent=True)
    for token in range(count):
        for i in range(len(weights)):
            name = f"t{token}/{i}"
            builder.tensor(name, 1 + i % 3)
            reads = [f"w{i}", *[f"t{t}/{i}" for t in range(token)]]
            changed = [f"w{i}"] if i in writes else []
            builder.op(name, reads, [*changed, name], duration_ns=took * (i % 3))
    return builder.build(steps=steps)


@st.composite
def decodes(draw) -> Problem:
    """Several tokens in one step, on any machine, with room for some of the weights."""
    weights = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    writes = draw(st.frozensets(st.integers(0, len(weights) - 1), max_size=2))
    count, took = draw(st.integers(1, 4)), draw(st.integers(0, 20))
    graph = tokens(weights, count, took, writes=writes, steps=draw(st.integers(1, 2)))
    homes = {f"w{i}": draw(st.sampled_from([FREE, DDR, DDR, HBM])) for i in range(len(weights))}
    pinned = sum(size for i, size in enumerate(weights) if homes[f"w{i}"] == HBM)
    least = pinned + int(working_set_bytes(graph).max())
    hardware = draw(machines(host=False, staged=True))
    return problem(graph, least + draw(st.integers(0, 40)), homes, hardware)


ROWS = [("static", {}), ("reactive", {}), ("lookahead", {}), ("recompute", {}), ("static", {"recompute": True})]


@pytest.mark.usefixtures("quick_plans")
@given(decodes(), st.sampled_from(ROWS))
def test_no_policy_is_faster(p: Problem, row: tuple[str, dict[str, bool]]):
    name, options = row
    try:
        done = replay(p, POLICIES[name].plan(p, options))
    except CapacityError:
        return
    assume(done.status == "ok" and done.peak_bytes["hbm"] <= p.budget_bytes)
    may_repeat = name == "recompute" or bool(options)
    found = bound(p.graph, p.hardware, p.durations_ns, p.homes, p.budget_bytes, may_repeat=may_repeat)
    event(f"{'met' if found.ns == done.step_ns else 'not met'}, {found.kind.split()[0]}")
    assert found.ns <= done.step_ns


@pytest.mark.parametrize("took", [0, 7, 40])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_plan_meets_it(count: int, took: int):
    """Two weights of 30 B, of which one has room: each comes in for each token, while nothing is computed."""
    builder = GraphBuilder("tokens")
    for name in "vw":
        builder.tensor(name, 30, "weight", persistent=True)
    for token in range(count):
        for name in "vw":
            builder.op(f"t{token}/{name}", [name], [], duration_ns=took)
    p = problem(builder.build(), 30, {"v": DDR, "w": DDR})
    found = bound(p.graph, p.hardware, p.durations_ns, p.homes, p.budget_bytes)
    assert found.ns == 2 * count * (30 + took) == replay(p, POLICIES["static"].plan(p)).step_ns


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 3000)), min_size=2, max_size=6), st.floats(0.1, 0.9))
def test_ops_at_which_less_is_needed_are_passed_over(layers: list[tuple[int, int]], share: float):
    """Where ops have no room, that at which the budget costs most is found, as if each were looked at alone."""
    builder, names = GraphBuilder("there and back"), [f"a{i}" for i in range(len(layers))]
    for name, (size, took) in zip(names, layers, strict=True):
        builder.tensor(name, size)
        builder.op(f"made/{name}", [], [name], duration_ns=took)
    for name in reversed(names):
        builder.op(f"read/{name}", [name], [], duration_ns=1)
    p = problem(builder.build(), 1, {})
    timing = Timing.alone(Precedence.of(p.graph), p.durations_ns, may_repeat=True)
    again = Rematerialisation(timing, Demand(timing.precedence, p.hardware, p.homes, may_repeat=True))
    budget = int(share * sum(size for size, _ in layers))
    short = [op for op in range(len(p.graph.ops)) if again._needed[op] > budget]
    each = [(again._least_ns(op, budget, -(10**9)), op) for op in short]
    best_ns, op = max([(0, 0), *each])
    assert again.longest(budget) == (best_ns, f"room or recompute at {p.graph.ops[op].name}")


@given(decodes(), st.integers(1, 4))
def test_fewer_points_ask_for_less(p: Problem, most: int):
    facts = (p.graph, p.hardware, p.durations_ns, p.homes, p.budget_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.bounds.windows.MOST_POINTS", 2 * most)
        assert bound(*facts).ns <= bound_of_all(facts)


def bound_of_all(facts: tuple) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.bounds.windows.MOST_POINTS", 10**6)
        return bound(*facts).ns
