"""The optimum of problems that can be solved by hand, and what the policy refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from examples import some
from families import MEMBERS, SHAPES, member
from policy_problems import DDR, FREE, HBM, machine, problem, replay, tell, train
from stories import graph

from simulator.errors import CapacityError, ConfigError, InvariantError, ScopeError
from simulator.hardware import Hardware
from simulator.policies import POLICIES, Problem

OPTIMAL = POLICIES["optimal"]
PROVED = "proved optimal: no plan over one lower tier has a shorter step"


def step_ns(p: Problem) -> int:
    return replay(p, OPTIMAL.plan(p)).step_ns


def test_what_fits_does_not_move():
    p = problem(train())
    plan = OPTIMAL.plan(p)
    assert (plan.policy, plan.notes) == ("optimal", (PROVED,))
    assert replay(p, plan).step_ns == 60


def test_of_two_stretches_the_one_that_hides_its_copies_is_spent_away():
    """While k runs, a or b is away: 40 ns out and 40 in. a is made 50 ns earlier and is needed as late."""
    g = graph("a 40, b 40", "f: -> a, 50 ns", "g: -> b, 50 ns", "k: ->, 60 ns, workspace 40", "m: a b ->, 9 ns")
    p = problem(g, 80)
    plan = OPTIMAL.plan(p)
    assert replay(p, plan).step_ns == 50 + 50 + 60 + 40 + 9
    assert tell(p, plan)[:6] == ["f", "a hbm>ddr", "a -hbm", "g", "k", "a ddr>hbm"]


def test_a_copy_out_may_start_before_the_last_use():
    """a is copied out while g reads it, so that k finds its room as soon as h has ended."""
    g = graph("a 40, b 40", "f: -> a, 10 ns", "g: a ->, 40 ns", "h: a -> , 5 ns", "k: -> b, 9 ns", "m: b ->, 9 ns",
              "n: a ->, 9 ns")  # fmt: skip
    p = problem(g, 40)
    plan = OPTIMAL.plan(p)
    told = tell(p, plan)
    assert told.index("a hbm>ddr") < told.index("h") < told.index("a -hbm") < told.index("k")
    assert replay(p, plan).step_ns == 10 + 40 + 5 + 9 + 9 + 40 + 9


def test_the_order_of_copies_in_is_that_of_their_use():
    g = graph("v 30 persistent, w 30 persistent", "f: w ->, 30 ns", "g: v ->, 30 ns")
    p = problem(g, 60, {"v": DDR, "w": DDR})
    plan = OPTIMAL.plan(p)
    assert [told for told in tell(p, plan) if ">hbm" in told] == ["w ddr>hbm", "v ddr>hbm"]
    assert replay(p, plan).step_ns == 90


def test_a_free_home_is_chosen():
    """Beside f there is room for one of v and w; the one that is read later is at home in ddr, and comes during g."""
    g = graph("v 30 persistent, w 30 persistent", "f: v ->, 40 ns, workspace 30", "g: ->, 40 ns", "h: w ->, 40 ns")
    p = problem(g, 60, {"v": FREE, "w": FREE})
    plan = OPTIMAL.plan(p)
    assert (plan.home, replay(p, plan).step_ns) == ((HBM, DDR), 120)


def test_what_is_overwritten_is_given_up_without_a_copy():
    g = graph("a 40, b 40", "f: -> a, 9 ns", "g: a ->, 9 ns", "h: -> b, 9 ns", "k: b ->, 9 ns", "m: -> a, 9 ns")
    p = problem(g, 40)
    plan = OPTIMAL.plan(p)
    assert replay(p, plan).step_ns == 45
    assert "a hbm>ddr" not in tell(p, plan)


def test_no_copy_in_crosses_a_barrier():
    g = graph("w 30 persistent", "f: ->, 40 ns", "g: ->, 10 ns", "h: w ->, 5 ns")
    assert step_ns(problem(g, 60, {"w": DDR})) == 55
    ops = (g.ops[0], replace(g.ops[1], barrier=True), g.ops[2])
    assert step_ns(problem(replace(g, ops=ops), 60, {"w": DDR})) == 40 + 30 + 5


def test_a_budget_below_what_an_op_uses_does_not_fit():
    with pytest.raises(CapacityError):
        OPTIMAL.plan(problem(train(size=10), 20))


def test_the_launch_counts():
    fixed = machine().host.fixed.model_copy(update={"launch_ns": 7})
    host = machine().host.model_copy(update={"fixed": fixed})
    late = problem(train(layers=4), 31, hardware=machine().model_copy(update={"host": host}))
    assert step_ns(late) == step_ns(problem(train(layers=4), 31)) + 7


@pytest.mark.usefixtures("quick_plans")
def test_a_search_that_is_stopped_says_so():
    p = member(5)[1]
    plan = OPTIMAL.plan(p, {"time_limit_s": 0.01})
    assert plan.notes[0].startswith(
        "not proved optimal (the search stopped after 0.01 s): no plan over one lower tier takes less than "
    )
    assert replay(p, plan).status == "ok"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph": train(layers=31)}, "a graph has at most 60 ops.* found 62 ops; change"),
        ({"hardware": machine(h2d={"channels": 2})}, "one channel and full bandwidth, found 2 channels from ddr"),
        ({"hardware": machine(ddr="20 B")}, "one tier that holds them all.* of ddr"),
    ],
)
def test_what_the_program_does_not_describe_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        OPTIMAL.plan(problem(**{"graph": train(), "budget": 30, **change}))


def test_without_the_solver_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(ConfigError, match=r'policy .optimal.*pip install "hosim\[solve\]"'):
        OPTIMAL.plan(member(0)[1])


def test_a_plan_that_beats_the_bound_is_a_bug(monkeypatch):
    """If what no plan beats were wrong, the replay would show it."""
    true = Problem.bound_ns.func
    monkeypatch.setattr(Problem, "bound_ns", property(lambda p: true(p) * 2))
    with pytest.raises(InvariantError, match="no plan takes less than"):
        OPTIMAL.plan(member(0)[1])


@pytest.mark.usefixtures("quick_plans")
@pytest.mark.parametrize("number", some([0, 3, 6, 7, 8, 16], 3))
def test_the_optimum_is_what_is_stored(number):
    """A few of the family that `tests/bench/optimum.py` measures; no policy beats them."""
    stored = json.loads((Path(__file__).parents[1] / "bench" / "optima.json").read_text())
    assert [o["member"] for o in stored] == list(range(MEMBERS))
    shape, p = member(number)
    assert shape == SHAPES[number % len(SHAPES)]
    optimum = step_ns(p)
    assert optimum == stored[number]["step_ns"]
    for name in ("resident", "reactive", "lookahead", "offload_saved", "static"):
        try:
            assert replay(p, POLICIES[name].plan(p)).step_ns >= optimum
        except CapacityError:
            continue


def test_a_bus_that_its_links_cannot_fill_is_none():
    """Each way 1 GB/s: a bus of 2 GB/s slows nothing down."""
    document = machine().model_dump(by_alias=True, exclude_unset=True)
    bus = {"pcie": {"links": ["d2h", "h2d"], "bandwidth": "2 GB/s"}}
    wide = Hardware.model_validate({**document, "buses": bus})
    g = train(layers=4)
    assert step_ns(problem(g, 31, hardware=wide)) == step_ns(problem(g, 31))
    narrow = {"pcie": {**bus["pcie"], "bandwidth": "1.9 GB/s"}}
    with pytest.raises(
        ScopeError, match=r"one channel and full bandwidth, found bus 'pcie', of 1.90 GB/s, under links of 2"
    ):
        OPTIMAL.plan(problem(g, 31, hardware=Hardware.model_validate({**document, "buses": narrow})))


@pytest.mark.parametrize(
    ("tier", "stated", "found"),
    [
        ("ddr", {"bandwidth": "1.9 GB/s"}, r"found bus 'memory\.ddr', of 1\.90 GB/s, under links of 2"),
        ("hbm", {"shared": True}, "found copies that take bandwidth from kernels"),
    ],
)
def test_a_memory_that_copies_crowd_is_out_of_scope(tier, stated, found):
    document = machine().model_dump(by_alias=True, exclude_unset=True)
    document["tiers"][tier] |= stated
    with pytest.raises(ScopeError, match=found):
        OPTIMAL.plan(problem(train(layers=4), 31, hardware=Hardware.model_validate(document)))
