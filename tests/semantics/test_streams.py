"""Several compute streams of one rank: room in issue order, and a device that is not faster than itself."""

from __future__ import annotations

import pytest
from rank_stories import perform
from stories import graph, machine, peak_bytes, play, steps, timeline, waits

from simulator.engine.reference.kernels import Kernels
from simulator.errors import InvariantError
from simulator.graph import Graph, Op
from simulator.hardware import Hardware
from simulator.plan import NOWHERE, Plan
from simulator.referee import check_trace
from simulator.scenario import Switches
from simulator.trace import Trace

TENSORS = "v 10 persistent, w 40 persistent, a 50, b 60"
OPS = ("A: -> a, 100 ns", "C: a v w ->, 100 ns", "B: -> b, 100 ns")
PLAN = (
    "copy v ddr hbm; copy w ddr hbm; compute A{0}; compute C{0}; detach v hbm; detach w hbm; detach a hbm; "
    "compute B{1}; detach b hbm"
)


@pytest.mark.parametrize("streams", [("", ""), ("", " 1"), (" 1", ""), (" 1", " 2")])
def test_a_compute_takes_room_after_the_copies_that_other_streams_need(streams):
    """`B` must not stand before the copy of `w`, which `C` needs, and which frees what `B` lacks."""
    g, h = graph(TENSORS, *OPS), machine("100 B")
    t = play(h, g, PLAN.format(*streams), "v ddr, w ddr")
    assert t.status == "ok", t.blocked
    assert timeline(t, g, h) == ["0-10 h2d v", "0-100 A", "10-50 h2d w", "100-200 C", "200-300 B"]
    assert peak_bytes(t, 0) == 100


def test_the_line_behind_such_a_copy_is_a_wait_for_what_that_waits_for():
    g, h = graph(TENSORS, *OPS), machine("100 B")
    t = play(h, g, PLAN.format("", " 1"), "v ddr, w ddr")
    assert waits(t, g) == ["0-10 B transfer", "10-200 B capacity"]


def test_a_wait_is_split_where_a_copy_becomes_eligible_and_finds_no_room():
    """The stream that waits has nothing to do with the compute that the copy waits for."""
    g, h = graph("a 80 persistent, w 40 persistent", "x: ->, 30 ns", "r: w ->, 5 ns"), machine("100 B")
    text = "copy a hbm ddr; compute x; detach a hbm; copy w ddr hbm; compute r 1"
    t = play(h, g, text, "a hbm, w ddr", switches=Switches(copies_wait_for="end"))
    assert timeline(t, g, h) == ["0-80 d2h a", "0-30 x", "80-120 h2d w", "120-125 r"]
    assert waits(t, g) == ["0-30 r order", "30-80 r capacity", "80-120 r transfer"]


def test_a_copy_behind_a_compute_that_may_not_have_been_issued_is_not_judged():
    """`Z` never fits, and stands before the copy of `x`, which would; after a sync no row says that `Z` was issued."""
    g = graph("big 60 persistent, u 40 persistent, x 10 persistent, z 50", "Z: -> z, 1 ns", "R: u x ->, 1 ns")
    h = machine("120 B")
    plan = "copy u ddr hbm; copy x ddr hbm; sync big; compute Z; compute R; detach z hbm; detach u hbm; detach x hbm"
    homes = {"big": "hbm", "u": "ddr", "x": "ddr"}
    t = play(h, g, plan, ", ".join(f"{name} {tier}" for name, tier in homes.items()))
    assert t.status == "blocked"
    assert timeline(t, g, h) == ["0-40 h2d u"]
    home = tuple(h.tier_names.index(homes[tensor.name]) if tensor.name in homes else NOWHERE for tensor in g.tensors)
    check_trace(g, h, [Plan("story", h.tier_names, home, steps(g, h, plan))], t)


def device(**compute: object) -> Hardware:
    """1 FLOP takes 1 ns, and a byte of traffic, too."""
    return machine("1 kB", compute={"peak": {"bf16": "1 GFLOP/s"}} | compute)


def side_by_side(hardware: Hardware, *ops: Op) -> list[str]:
    """Each op on a stream of its own; the referee judges."""
    g = Graph("ops", (), ops)
    return timeline(ran(hardware, g), g, hardware)


def ran(hardware: Hardware, g: Graph) -> Trace:
    return perform(hardware, [(g, "; ".join(f"compute {op.name} {i}" for i, op in enumerate(g.ops)))])


def matmul(name: str, flops: int, **more: object) -> Op:
    return Op(name, flops=flops, op_class="matmul", **more)  # type: ignore[arg-type]


def test_kernels_of_two_streams_share_the_arithmetic_of_their_unit():
    """Each has a half until the shorter one has done its 10; the longer one then has the whole."""
    assert side_by_side(device(), matmul("f", 10), matmul("g", 30)) == ["0-20 f", "0-40 g"]


def test_a_kernel_leaves_what_it_does_not_reach():
    """Alone each reaches 60 % of the peak, so that both together have all of it: 12 FLOP take 24 ns, alone 20."""
    h = device(achieved_fraction={"matmul": 0.6})
    assert side_by_side(h, matmul("f", 12)) == ["0-20 f"]
    assert side_by_side(h, matmul("f", 12), matmul("g", 12)) == ["0-24 f", "0-24 g"]


def test_units_are_apart_and_the_vector_unit_has_what_its_class_reaches():
    """A matmul and an elementwise kernel do not meet; two elementwise ones share the 10 % that their class reaches."""
    h = device(achieved_fraction={"matmul": 1.0, "vector": 0.1})
    assert side_by_side(h, matmul("f", 30), Op("v", flops=3)) == ["0-30 f", "0-30 v"]
    assert side_by_side(h, Op("u", flops=3), Op("v", flops=3)) == ["0-60 u", "0-60 v"]


def test_traffic_and_arithmetic_of_a_kernel_go_side_by_side_after_its_launch():
    """`f` reads 40 beside the 20 of `g`: 20 each until 45, the rest of `f` until 65; its own 30 FLOP are long done."""
    h = device(launch="5 ns")
    found = side_by_side(h, matmul("f", 30, read_bytes=40), matmul("g", 0, read_bytes=20))
    assert found == ["0-65 f", "0-45 g"]


def test_a_measured_duration_is_not_stretched():
    """It was recorded beside whatever ran beside it; two ops with modelled times beside it share all the same."""
    assert side_by_side(device(), matmul("f", 10, duration_ns=10), matmul("g", 30)) == ["0-10 f", "0-30 g"]
    ops = matmul("f", 10, duration_ns=10), matmul("g", 30), matmul("k", 30)
    assert side_by_side(device(), *ops) == ["0-10 f", "0-60 g", "0-60 k"]


FASTER = [
    (matmul("f", 10), "a unit computes at most at its peak"),
    (Op("f", read_bytes=10), "a memory carries at most its bandwidth"),
]


@pytest.mark.parametrize(("op", "law"), FASTER)
def test_the_referee_knows_a_device_that_is_faster_than_itself(op, law, monkeypatch):
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    monkeypatch.setattr(Kernels, "run", lambda self, compute: iter([self.rank.clock.end_after(compute.duration_ns)]))
    g = Graph("ops", (), (op, Op("g", flops=op.flops, read_bytes=op.read_bytes, op_class=op.op_class)))
    with pytest.raises(InvariantError, match=law):
        ran(device(), g)


def test_11_of_what_is_ahead_in_line_it_is_whose_head_was_issued_first():
    """`C` is behind `T`, which waits for `p`, and behind the copy of `w`, which waits for that of `h`."""
    h = machine("200 B")
    g = graph("h 100 persistent, w 10 persistent, x 5, y 5", "p: ->, 50 ns", "T: -> x, 100 ns", "S: w ->, 5 ns",
              "C: -> y, 5 ns")  # fmt: skip
    plan = "compute p 0; copy h ddr hbm; compute T 0; copy w ddr hbm; compute S 1; compute C 2; "
    t = play(h, g, plan + "detach h hbm; detach w hbm; detach x hbm; detach y hbm", "h ddr, w ddr")
    assert timeline(t, g, h) == ["0-50 p", "0-100 h2d h", "50-150 T", "100-110 h2d w", "100-105 C", "110-115 S"]
    assert [wait for wait in waits(t, g) if " C " in wait] == ["0-50 C order", "50-100 C transfer"]
