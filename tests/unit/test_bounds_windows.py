"""Windows worked out by hand, on a machine in which a byte takes a nanosecond unless a story says otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bounding import bound
from stories import graph, machine

from simulator import catalog
from simulator.bounds import Bound
from simulator.bounds.windows import MOST_POINTS, Windows
from simulator.cost import durations_ns
from simulator.graph import Graph
from simulator.hardware import Hardware
from simulator.plan import FREE, NOWHERE
from simulator.run.case import prepare

HBM, DDR = 0, 1

TOKENS = ("f0: v ->, 5 ns", "g0: w ->, 7 ns", "f1: v ->, 5 ns", "g1: w ->, 7 ns")
WEIGHTS = "v 30 input, w 40 input"


PERSISTENT = "v 30 persistent, w 40 persistent"
ANYWHERE = {"v": FREE, "w": FREE}


def limit(g: Graph, homes: dict[str, int], budget: int, hardware: Hardware | None = None, **more: bool) -> Bound:
    hardware = hardware or machine()
    return bound(
        g, hardware, durations_ns(g, hardware), [homes.get(t.name, NOWHERE) for t in g.tensors], budget, **more
    )


def test_what_has_no_room_comes_in_for_each_token():
    """Of 70 B 20 have no place: while f0 runs those of w, then those of v, then of w. What is at home here is there.

    So all of w comes in, then all of v, and all of w again: copies move whole tensors.
    """
    g = graph(WEIGHTS, *TOKENS)
    found = limit(g, ANYWHERE, 50)
    assert (found.ns, found.kind) == (5 + 40 + 7 + 30 + 5 + 40 + 7, "room at 3 ops")
    assert limit(g, {"v": DDR, "w": DDR}, 50).ns == 30 + 5 + 40 + 7 + 30 + 5 + 40 + 7
    assert limit(g, {"v": HBM, "w": DDR}, 70).ns == 40 + 7 + 5 + 7
    assert limit(g, ANYWHERE, 70).kind == "compute"


def test_what_comes_in_hides_under_ops_between():
    """While f0 runs there is no room for w, which comes in while h runs: of 40 B, 29 are waited for."""
    ops = (TOKENS[0], "h0: ->, 11 ns", TOKENS[1])
    g = graph(WEIGHTS, *ops)
    assert limit(g, ANYWHERE, 50).terms["room at f0"] == 5 + 40 + 7


def test_a_window_counts_a_tensor_once_and_only_if_it_was_there_before():
    """Two ops read w; what g makes itself needs no copy."""
    g = graph(f"{WEIGHTS}, a 20", TOKENS[0], "g: w -> a, 1 ns", "h: w a ->, 1 ns")
    assert limit(g, ANYWHERE, 60).ns == 5 + 40 + 1 + 1


def test_ways_in_and_out_take_turns_on_a_queue_and_on_a_bus():
    """a leaves while w comes in, and w is there before: 40 B each way, as 20 B have no room beside g of 60 B."""
    ops = ("f: -> a, 3 ns", "g: w ->, 7 ns, workspace 20", "h: a ->, 1 ns")
    g = graph("w 40 input, a 40", *ops)
    expected = 3 + 40 + 7 + 40 + 1
    assert limit(g, {"w": FREE}, 60).ns == expected
    in_turn = limit(g, {"w": FREE}, 60, machine(queue=("d2h", "h2d"))).ns
    duplex = {"duplex": {"links": ["d2h", "h2d"], "bandwidth": "1 GB/s"}}
    assert in_turn == limit(g, {"w": FREE}, 60, machine(buses=duplex)).ns == 3 + (40 + 40) + 7 + 40 + 1


def test_no_link_is_faster_than_its_channels_are_with_what_they_carry():
    """A copy of w takes 5 + 40 ns, of v 5 + 30: v brings 6 B in 7 ns, w 8 B in 9."""
    g = graph(WEIGHTS, *TOKENS[:2])
    late = {"latency": "5 ns"}
    assert limit(g, ANYWHERE, 50, machine(h2d=late)).ns == 5 + 45 + 7  # 40 B at 8 / 9 B/ns
    assert limit(g, ANYWHERE, 50, machine(h2d={**late, "channels": 2})).ns == 5 + 40 + 7


def test_what_comes_from_home_is_there_before_who_reads_it():
    """In a later step it may begin to come while the last op of the step before runs."""
    g = graph(PERSISTENT, "h: ->, 9 ns", *TOKENS[:2], "k: ->, 2 ns")
    homes = {"v": DDR, "w": DDR}
    assert limit(g, homes, 99).terms["link h2d before g0"] == 70 + 7 + 2
    assert limit(replace(g, steps=2), homes, 99).terms["link h2d before g0"] == 70 - 2 + 7 + 2


def test_what_was_written_goes_home_after_the_last_who_writes_it():
    g = graph(PERSISTENT, "f: v -> v, 5 ns", "g: w -> w, 7 ns", "k: v ->, 2 ns")
    found = limit(g, {"v": DDR, "w": DDR}, 99)
    assert (found.ns, found.kind) == (70 + 7 + 40, "link h2d before g, link d2h after g")
    assert limit(replace(g, steps=2), {"v": DDR, "w": DDR}, 99).kind == "link h2d before g"


def test_what_can_be_made_again_is_in_no_window():
    """a and b leave for nothing, v does not."""
    ops = ("f: v -> a, 1 ns", "g: -> b, 1 ns", "h: ->, 1 ns, workspace 50", "k: a b v ->, 1 ns")
    g = graph("v 30 persistent, a 10, b 10", *ops)
    assert limit(g, {"v": FREE}, 60, may_repeat=True).ns == 1 + 1 + 1 + 30 + 1
    assert limit(g, {"v": FREE}, 60).ns == 1 + 10 + 1 + 40 + 1


def test_a_part_of_what_goes_out_may_be_made_again():
    """40 B go out while f runs, for 30 ns, and 10 ns longer: a quarter is made again in 7.5 ns, and all in 30 ns."""
    g = graph("a 40", "f: -> a, 30 ns", "k: ->, 1 ns, workspace 50", "g: a ->, 1 ns")
    fast = machine(h2d={"bandwidth": "100 GB/s", "latency": "0 ns"})
    found = limit(g, {}, 50, fast, may_repeat=True)
    assert (found.ns, found.kind) == (30 + 7.5 + 1 + 1 - 2.5, "room or recompute at k")  # 2 ns for rounding, and down


def test_what_is_never_read_sets_the_rate_of_what_goes_home():
    g = graph("u 1 persistent, w 11 persistent", "f: -> w, 3 ns")
    slow = machine(d2h={"bandwidth": "0.25 GB/s", "latency": "1 ns"})
    assert limit(g, {"u": HBM, "w": DDR}, 99, slow).ns == 3 + 1 + 44


@pytest.mark.parametrize("times", [1.0, 1.03])
def test_all_ops_are_asked_of_a_peak_only_where_few_do_not_say_that_it_is_too_small(times: float, monkeypatch):
    (task,) = prepare(catalog.resolve("llama3_8b_train_910c")).tasks
    limits, asked = task.limits(), list[int]()
    step_ns = int(times * limits.step(task.problem.budget_bytes).ns)

    def counted(self: Windows, budget: float, most: int) -> object:
        asked.append(most)
        return points(self, budget, most)

    points = Windows._points
    monkeypatch.setattr(Windows, "_points", counted)
    found = limits.peak_bytes(step_ns)
    assert (asked.count(MOST_POINTS // 8), asked.count(MOST_POINTS)) == (12, 8)
    monkeypatch.setattr("simulator.bounds._FEWER", 1)
    assert limits.peak_bytes(step_ns) == found
