"""Which stream each op runs on, what the times are by which policies plan, and who tries plans alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bounding import bound, limits_alone
from policy_problems import HBM, replay
from rank_stories import cluster, team

from simulator import engine
from simulator.bounds import infeasible
from simulator.cost import durations_ns
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.plan import COMPUTE, NOWHERE
from simulator.policies import FREE, POLICIES, Problem
from simulator.scenario import Switches

GROUPS = {"data": ((0, 1),), "tensor": ((0, 1),)}
STEP = team(
    "a 40, b 20, c 10", "f: -> a, 50 ns", "sum: a -> a, all_reduce tensor 40", "g: -> b, 30 ns",
    "gather: b -> c, all_gather data 20", "h: a c ->, 5 ns", groups=GROUPS,
)  # fmt: skip
MACHINE = cluster(2)


def problem(graph: Graph = STEP, collectives: str = "own_stream", budget: float = float("inf")) -> Problem:
    homes = tuple(HBM if t.persistent else FREE for t in graph.tensors)
    times, switches = durations_ns(graph, MACHINE, 0), Switches(collectives=collectives)
    timed = zip(graph.ops, times, strict=True)
    alone = replace(graph, ops=tuple(replace(op, collective=None, duration_ns=ns) for op, ns in timed))
    return Problem(
        graph, MACHINE, homes, budget, times, lambda of, plan: replay(replace(of, graph=alone), plan), switches
    )


def test_each_group_has_a_stream_after_that_of_computes():
    assert problem().streams == (0, 2, 0, 1, 0)
    assert problem(collectives="compute_stream").streams == (0,) * 5


def test_the_clock_lets_streams_run_side_by_side_and_ascends():
    assert problem().durations_ns == [50, 40, 30, 10, 5]
    assert problem().clock == (0, 50, 50, 80, 90, 95)
    assert problem(collectives="compute_stream").clock == (0, 50, 90, 120, 130, 135)


@pytest.mark.parametrize(("name", "options"), [
    ("resident", {}),
    ("reactive", {"evict": "lru", "look_ahead": 2}),
    ("lookahead", {"select_distance": 1, "distance": 3}),
    ("offload_saved", {}),
    ("upstream_greedy", {"limit": "5 B", "lead": 2}),
    ("recompute", {}),
    ("static", {}),
])  # fmt: skip
def test_every_policy_puts_collectives_on_their_streams(name, options):
    p = problem()
    plan = POLICIES[name].plan(p, options)
    trace = engine.run([engine.Program(p.graph, plan, p.durations_ns)] * 2, MACHINE)
    spans = trace.by_rank()[1].spans.whole()
    ran = spans["kind"] == COMPUTE
    found = dict(zip(spans["item"][ran].tolist(), spans["track"][ran].tolist(), strict=True))
    assert tuple(found[op] for op in range(5)) == p.streams


def test_optimal_refuses_collectives():
    with pytest.raises(ConfigError, match=r"no collective, .* found a collective"):
        POLICIES["optimal"].plan(problem(), {})


def test_a_bound_counts_what_runs_side_by_side_once():
    """The gather of 10 ns and the sum of 40 ns run beside g; h waits for both."""
    homes = [NOWHERE] * 3
    found = bound(STEP, MACHINE, problem().durations_ns, homes, 1000)
    assert (found.terms["compute"], found.terms["critical path"]) == (85, 95)
    assert (found.kind, found.ns) == ("critical path", 95)
    slow = replace(STEP, ops=(replace(STEP.ops[0], duration_ns=1), *STEP.ops[1:]))
    assert bound(slow, MACHINE, [1, 40, 1, 10, 5], homes, 1000).ns == 46
    twice = replace(slow, steps=2)
    assert bound(twice, MACHINE, [1, 40, 1, 10, 5], homes, 1000).ns == 46
    assert bound(twice, MACHINE, [1, 40, 50, 10, 5], homes, 1000).ns == 66


def test_room_is_bounded_by_what_an_op_uses_and_what_stays():
    g = team("w 30 persistent, a 40, b 20", "f: -> a, 5 ns", "sum: a -> b, all_reduce data 40", "h: b ->, 5 ns",
             groups=GROUPS)  # fmt: skip
    homes = [HBM, NOWHERE, NOWHERE]
    assert infeasible(g, MACHINE, homes, 90) is None
    assert infeasible(g, MACHINE, homes, 89).short_bytes == 1
    assert limits_alone(g, MACHINE, durations_ns(g, MACHINE, 0), homes).peak_bytes(50) == 90


def test_a_rank_outside_the_group_of_its_collective_is_named():
    g = team("a 40", "sum: -> a, all_reduce all 40", groups={"all": ((0, 1),)})
    with pytest.raises(ConfigError, match=r"group 'all': the rank that runs all_reduce .* found rank 2 in op 'sum'"):
        durations_ns(g, cluster(3), 2)


def test_a_collective_alone_takes_its_time_and_is_what_others_wait_for():
    p = problem()
    found = p.replay(POLICIES["resident"].plan(p, {}))
    assert (found.makespan_ns, found.wait_ns["collective"], found.wait_ns["order"]) == (95, 10, 0)
