"""One short story per rule about addresses and compaction (semantics 17)."""

from __future__ import annotations

from typing import Any

import pytest
from stories import graph, machine, play, timeline, waits

from simulator import metrics
from simulator.errors import ScopeError
from simulator.hardware import Allocator, Hardware
from simulator.metrics.summary import Window, allocator_figures
from simulator.trace import Table

A_PAGE: dict[str, Any] = {"page": "10 B", "compaction": {"per_page": "2 ns"}}
THREE = ("a 30, b 30, c 30, d 50", "f: -> a, 10 ns", "g: -> b, 10 ns", "k: a -> c, 10 ns", "m: b -> d, 10 ns",
         "n: b d ->, 5 ns")  # fmt: skip
ONE_AFTER_ANOTHER = (
    "compute f; compute g; compute k; detach a hbm; detach c hbm; compute m; compute n; detach b hbm; detach d hbm"
)


def with_addresses(hbm: str = "100 B", allocator: dict[str, Any] | None = None, **more: Any) -> Hardware:
    found = Allocator.model_validate(A_PAGE if allocator is None else allocator)
    return machine(hbm, **more).model_copy(update={"allocator": found})


def rows(table: Table, *columns: str) -> list[tuple[int, ...]]:
    whole = table.whole()
    return list(zip(*(whole[name].tolist() for name in columns), strict=True))


def test_17_what_fits_in_bytes_and_in_no_hole_waits_until_all_holes_are_one():
    h, g = with_addresses(), graph(*THREE)
    t = play(h, g, ONE_AFTER_ANOTHER)
    assert timeline(t, g, h) == ["0-10 f", "10-20 g", "20-30 k", "30-40 m", "40-45 n"], "bytes alone suffice"
    t = play(h, g, ONE_AFTER_ANOTHER, allocator="best_fit")
    assert timeline(t, g, h) == ["0-10 f", "10-20 g", "20-30 k", "36-46 m", "46-51 n"]
    assert waits(t, g) == ["30-36 m compaction"], "holes of 30 and 40 bytes; b has three pages, each takes 2 ns"
    moved = [row for row in rows(t.addresses, "time_ns", "tensor", "offset_bytes", "delta_bytes") if row[0] == 36]
    assert moved == [(36, 1, 30, -30), (36, 1, 0, 30), (36, 3, 30, 50)]
    assert rows(t.compactions, "asked_ns", "start_ns", "end_ns", "pages") == [(30, 30, 36, 3)]
    assert metrics.Frames(g, h, t).waits()[["op", "cause", "on"]].to_numpy().tolist() == [
        ["step0/m", "compaction", "hbm"]
    ]
    for (start, end), count in (((30, 51), 1), ((0, 30), 0), ((0, 31), 1)):
        found = allocator_figures(h, t, Window(0, 0, 0, start, end))
        assert found["compactions"] == count, "it counts in the step in which it is asked for"


@pytest.mark.parametrize(("pages", "counted"), [("in_use", 4), ("moved", 3)])
def test_17_pages_count_once_begun_all_in_use_or_those_that_move(pages, counted):
    """e has 5 B at the bottom and stays, b has 30 B and moves."""
    h = with_addresses(allocator={"page": "10 B", "compaction": {"per_page": "2 ns", "pages": pages}})
    g = graph("e 5 persistent, " + THREE[0], *THREE[1:])
    t = play(h, g, ONE_AFTER_ANOTHER, "e hbm", allocator="best_fit")
    assert rows(t.compactions, "asked_ns", "start_ns", "end_ns", "pages") == [(30, 30, 30 + 2 * counted, counted)]


def test_17_copies_in_flight_end_before_a_compaction_and_no_other_begins():
    h = with_addresses(allocator={"page": "10 B", "compaction": {"per_event": "7 ns"}})
    g = graph("e 5 persistent, " + THREE[0], *THREE[1:])
    text = (
        "compute f; compute g; compute k; detach a hbm; detach c hbm; copy b hbm ddr; copy e hbm ddr; compute m; "
        "compute n; detach b hbm; detach d hbm; detach b ddr; detach e ddr"
    )
    t = play(h, g, text, "e hbm")
    assert timeline(t, g, h)[3:] == ["20-50 d2h b", "30-40 m", "40-45 n", "50-55 d2h e"]
    t = play(h, g, text, "e hbm", allocator="best_fit")
    assert timeline(t, g, h)[3:] == ["20-50 d2h b", "57-62 d2h e", "57-67 m", "67-72 n"]
    assert waits(t, g) == ["30-57 m compaction"], "the drain and the cost are one wait"
    assert rows(t.compactions, "asked_ns", "start_ns", "end_ns") == [(30, 50, 57)]


def test_17_a_copy_that_finds_no_hole_asks_too_and_a_compute_under_way_ends_first():
    h, g = with_addresses(), graph("e 50 persistent, " + THREE[0].replace("d 50", "d 10"), *THREE[1:])
    text = (
        "compute f; compute g; compute k; detach a hbm; detach c hbm; compute m; copy e ddr hbm; compute n; "
        "detach b hbm; detach d hbm; detach e hbm"
    )
    t = play(h, g, text, "e ddr", allocator="best_fit")
    assert rows(t.compactions, "asked_ns", "start_ns", "end_ns", "pages") == [(30, 40, 48, 4)]
    assert timeline(t, g, h)[3:] == ["30-40 m", "48-98 h2d e", "48-53 n"]
    assert waits(t, g) == ["40-48 n compaction"], "m runs on, n waits"


def test_17_a_copy_between_other_tiers_runs_on_also_in_a_queue_that_serves_copies_of_the_tier():
    h = with_addresses(queue=("h2d", "d2h", "write"), write={"source": "ddr", "target": "ssd"})
    g = graph("e 50 persistent, " + THREE[0], *THREE[1:])
    text = ONE_AFTER_ANOTHER.replace("compute m;", "copy e ddr ssd; compute m;")
    t = play(h, g, text, "e ddr", allocator="best_fit")
    assert timeline(t, g, h)[3:] == ["20-70 write e", "36-46 m", "46-51 n"]
    assert waits(t, g) == ["30-36 m compaction"], "what moves e is no copy from or to hbm"


def test_17_without_a_price_what_fits_in_no_hole_waits_for_one():
    h, g = with_addresses(allocator={}), graph(*THREE)
    t = play(h, g, ONE_AFTER_ANOTHER, allocator="best_fit")
    assert t.status == "blocked", "b stays between two holes until m has run"
    assert "(60 B are reserved, and the largest hole has 40 B)" in t.blocked[0]


def test_17_all_streams_stop_and_say_so():
    h = with_addresses()
    g = graph(*THREE, "s: ->, 3 ns", "u: ->, 4 ns")
    text = ONE_AFTER_ANOTHER.replace("compute m;", "compute m; compute s 1; compute u 1;")
    t = play(h, g, text, allocator="best_fit", home="")
    assert t.status == "ok"
    assert [w for w in waits(t, g) if "compaction" in w], waits(t, g)
    for row in rows(t.spans, "start_ns", "end_ns"):
        assert all(
            row[0] <= asked or row[0] >= end for asked, _, end in rows(t.compactions, "asked_ns", "start_ns", "end_ns")
        )


def test_17_offsets_fixed_before_the_run_make_a_place_wait_for_who_had_its_range():
    h, g = machine("90 B"), graph(*THREE)
    text = (
        "compute f; compute g; compute k; copy a hbm ddr; detach a hbm; detach c hbm; compute m; compute n; "
        "detach b hbm; detach d hbm; detach a ddr"
    )
    t = play(h, g, text, allocator="fixed")
    lies = {row[0]: row[1:] for row in rows(t.addresses, "tensor", "offset_bytes", "delta_bytes") if row[2] > 0}
    assert lies == {0: (30, 30), 1: (0, 30), 2: (60, 30), 3: (30, 50)}, "largest first would span 110 bytes, not 90"
    assert timeline(t, g, h)[3:] == ["20-50 d2h a", "50-60 m", "60-65 n"]
    assert waits(t, g) == ["30-50 m capacity"], "d lies where a and c lay"
    assert len(t.compactions) == 0


def test_17_a_range_rests_as_long_as_it_can_before_it_is_used_again():
    g = graph("a 30, b 30", "f: -> a, 10 ns", "g: -> b, 10 ns")
    text = "compute f; copy a hbm ddr; detach a hbm; compute g; detach b hbm; detach a ddr"
    t = play(machine("30 B"), g, text, allocator="fixed")
    assert timeline(t, g, machine()) == ["0-10 f", "10-40 d2h a", "40-50 g"], "there is one range"
    t = play(machine("60 B"), g, text, allocator="fixed")
    assert waits(t, g) == [], "b could lie where a lay, but there is room beside it"
    lies = [row[0] for row in rows(t.addresses, "offset_bytes", "delta_bytes") if row[1] > 0]
    assert lies == [0, 30]


def test_17_a_runtime_has_no_offsets_before_the_run():
    h, g = machine(), graph(*THREE)
    with pytest.raises(ScopeError, match="only a plan made before the run has fixed offsets"):
        play(h, g, lambda view: iter(()), allocator="fixed")


def test_17_who_was_first_in_line_for_room_of_another_tier_starts_once_all_holes_are_one():
    """`x` waits for the room of `y` in ddr, which leaves at 33 ns, while `m` has the holes joined until 38 ns."""
    h = with_addresses(read={"source": "pool", "target": "hbm"}, spill={"source": "ddr", "target": "pool"})
    ddr = h.tiers["ddr"].model_copy(update={"capacity_bytes": 33})
    h = h.model_copy(update={"tiers": {**h.tiers, "ddr": ddr}})
    g = graph("x 10 persistent, y 33 persistent, a 30, b 30, c 30, d 50", *THREE[1:])
    plan = f"copy y ddr pool; detach y ddr; copy x hbm ddr; {ONE_AFTER_ANOTHER}; detach x hbm"
    t = play(h, g, plan, "x hbm, y ddr", allocator="best_fit")
    assert rows(t.compactions, "asked_ns", "end_ns", "pages") == [(30, 38, 4)]
    assert timeline(t, g, h)[3:] == ["20-30 k", "38-48 d2h x", "38-48 m", "48-53 n"]
