"""The relaxation worked out by hand: a byte takes a nanosecond, unless a story says otherwise."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from families import member
from policy_problems import train
from stories import graph, machine

from simulator.bounds import FREE, Bound, Limits, relaxation
from simulator.bounds.linear import LinearProgram
from simulator.cost import durations_ns
from simulator.errors import ConfigError
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import NOWHERE

DDR = 1


def limits(g: Graph, homes: dict[str, int] | None = None, hardware: Hardware | None = None, **more) -> Limits:
    hardware, found = hardware or machine(), homes or {}
    home = [found.get(t.name, NOWHERE) for t in g.tensors]
    return Limits.alone(g, hardware, durations_ns(g, hardware), home, **({"relaxed": True} | more))


SAVED = graph("a 40, b 40, c 40", "f: -> a, 1 ns", "g: -> b, 1 ns", "h: -> c, 1 ns", "k: c ->, 1 ns", "m: a b ->, 1 ns")


def test_what_fits_takes_its_compute():
    assert limits(SAVED).step(120) == Bound(5, "compute", {"compute": 5, "relaxation": 5} | dict.fromkeys(LINKS, 0))


LINKS = ("link d2h", "link h2d")


def test_two_tight_ops_in_a_row():
    """30 B leave between f and h, and come back between k and m: at k there is no more room than at h."""
    assert limits(SAVED).step(90).terms["relaxation"] == 1 + 30 + 1 + 1 + 30 + 1


def test_weights_that_stream_wait_for_each_other():
    """w is needed at once, and v comes in while f runs, but not before w: 30 + 10 + 20 more, and g."""
    g = graph("w 30 persistent, v 30 persistent", "f: w ->, 10 ns", "g: v ->, 30 ns")
    found = limits(g, {"w": DDR, "v": DDR})
    terms = {"compute": 40, "link d2h": 0, "link h2d": 60, "link h2d before g": 90}
    assert found.step(60) == Bound(90, "link h2d before g", {**terms, "relaxation": 90})


def test_a_version_goes_out_once_however_often_it_leaves():
    """a is away beside h and beside q: one copy out, which is slow, and two copies in."""
    beside = "1 ns, workspace 40"
    g = graph("a 40", "f: -> a, 1 ns", f"h: ->, {beside}", "k: a ->, 1 ns", f"q: ->, {beside}", "m: a ->, 1 ns")
    slow = machine(d2h={"bandwidth": "0.25 GB/s"})
    assert limits(g, hardware=slow).step(40).ns == 1 + 160 + 1 + 40 + 1 + 1 + 40 + 1


def test_one_channel_counts_latency_and_several_do_not():
    g = graph("w 30 persistent, v 30 persistent", "f: w ->, 10 ns", "g: v ->, 30 ns")
    late = {"latency": "7 ns"}
    assert limits(g, {"w": DDR, "v": DDR}, machine(h2d=late)).step(60).ns == 90 + 14
    assert limits(g, {"w": DDR, "v": DDR}, machine(h2d={**late, "channels": 2})).step(60).ns == 90


def test_a_bus_slows_its_links_and_carries_both_directions():
    """Out and in take 160 ns each, with h and k between them."""
    g = graph("a 40, b 40", "f: -> a, 1 ns", "h: -> b, 99 ns", "k: b ->, 1 ns", "m: a ->, 1 ns")
    duplex = {"duplex": {"links": ["d2h", "h2d"], "bandwidth": "0.25 GB/s"}}
    assert limits(g, hardware=machine(buses=duplex)).step(40).ns == 1 + 160 + 99 + 1 + 160 + 1


def test_links_that_share_a_queue_take_turns():
    """w goes back while v comes in, or after: 30 + 30 each way."""
    g = graph("w 30 persistent, v 30 persistent", "f: w -> w, 10 ns", "g: v ->, 1 ns")
    alone = machine()
    together = alone.model_copy(update={"copy_queues": {"both": ("d2h", "h2d")}})
    assert [limits(g, {"w": DDR, "v": DDR}, m).step(60).terms["relaxation"] for m in (alone, together)] == [70, 90]


def test_without_bandwidth_limit_there_is_no_stall():
    free = {"bandwidth": "inf"}
    assert limits(SAVED, hardware=machine(d2h=free, h2d=free)).step(80).ns == 5


def test_the_peak_falls_as_the_step_may_take_longer():
    """In 64 ns 30 B can leave and be back; what a step without end needs is what m uses."""
    found = limits(SAVED)
    assert [found.peak_bytes(ns) for ns in (5, 64, 10**9)] == [120, 90, 80]
    assert [limits(SAVED, relaxed=False).peak_bytes(ns) for ns in (62, 64)] == [91, 90]


def test_without_a_link_there_is_a_bound_on_the_peak_too():
    alone = machine().model_copy(update={"links": {}})
    assert [limits(SAVED, hardware=alone, relaxed=relaxed).peak_bytes(5) for relaxed in (False, True)] == [80, 80]


def test_the_peak_holds_at_least_the_homes():
    g = graph("w 40 persistent, a 1", "f: -> a, 1 ns")
    assert limits(g, {"w": 0}).peak_bytes(10**6) == 41
    assert limits(g, {"w": FREE}).peak_bytes(10**6) == 1


@pytest.mark.parametrize("number", [0, 2, 3, 5, 6, 17])
def test_it_stays_below_itself_when_coarsened(number, monkeypatch):
    """Fewer checkpoints ask for less."""
    p = member(number)[1]
    homes = [home if there else NOWHERE for home, there in zip(p.homes, p.starts_with, strict=True)]
    found = []
    for most in (10**6, 300, 60, 1):
        monkeypatch.setattr(relaxation, "MOST_VARIABLES", most)
        made = Limits.alone(p.graph, p.hardware, p.durations_ns, homes, relaxed=True)
        found.append((made.step(p.budget_bytes).ns, made.peak_bytes(p.clock[-1])))
    assert found == sorted(found, key=lambda pair: -pair[0])
    assert [peak for _, peak in found] == sorted((peak for _, peak in found), reverse=True)


def test_the_program_does_not_grow_with_the_graph(monkeypatch):
    seen = []
    solve = LinearProgram.bound
    monkeypatch.setattr(LinearProgram, "bound", lambda self: seen.append(self.variables) or solve(self))
    for layers in (20, 120):
        g = train(layers=layers)
        limits(g, {"w": 0}).step(layers * 5)
    assert max(seen) <= relaxation.MOST_VARIABLES * 1.5


def test_any_dual_values_give_a_bound(monkeypatch):
    """Minimise x + y for x + 2 y >= 7 and 3 x + y >= 6, up to 9 each: 1 + 3. Rounded up, as the sum is whole."""
    program = LinearProgram()
    x, y = program.variable(9), program.variable(9)
    program.charge(x)
    program.charge(y)
    program.at_least([(1, x), (2, y)], 7)
    program.at_least([(3, x), (1, y)], 6)
    assert program.bound() == 4
    random = np.random.default_rng(1)
    for scale in (0.1, 1.0, 10.0, 1000.0):
        for _ in range(50):
            monkeypatch.setattr(program, "_solve", lambda s=scale: random.random(2) * s)
            assert 0 <= program.bound() <= 4


def test_without_an_answer_of_the_solver_the_bound_is_compute(monkeypatch):
    monkeypatch.setattr(LinearProgram, "_solve", lambda self: None)
    assert limits(SAVED).step(90).kind == "room at 2 ops"
    assert limits(SAVED).step(90).terms["relaxation"] == 5


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert limits(SAVED, relaxed=False).step(90).ns == 64
    with pytest.raises(ConfigError, match=r'pip install "hosim\[solve\]"'):
        limits(SAVED).step(90)


def test_several_steps_are_one_window():
    """From the start of the last op of a step to that of the next: w may come in beside the last op before."""
    g = graph("w 30 persistent, v 30 persistent", "f: w ->, 10 ns", "g: v ->, 30 ns", steps=3)
    assert limits(g, {"w": DDR, "v": DDR}).step(60).ns == 60
    assert limits(graph("w 60 persistent", "f: ->, 10 ns", "g: w ->, 30 ns", steps=3), {"w": DDR}).step(60).ns == 60
