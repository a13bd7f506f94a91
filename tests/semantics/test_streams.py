"""Several compute streams of one rank: room in issue order, and a device that is not faster than itself."""

from __future__ import annotations

import pytest
from stories import graph, machine, peak_bytes, play, timeline, waits

from simulator.scenario import Switches

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
