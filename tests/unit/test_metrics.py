"""Numbers worked out by hand: 1 byte takes 1 ns; the traces are the engine's own, small enough to check by eye."""

from __future__ import annotations

import pytest
from stories import graph, machine, play, steps

from simulator import engine, metrics
from simulator.bounds import Bound
from simulator.cost import durations_ns
from simulator.graph import Job
from simulator.hardware import Topology
from simulator.plan import NOWHERE, Plan
from simulator.trace import CAUSES

MACHINE = machine()
GRAPH = graph("w 10 persistent, a 4", "f: w -> a, 10 ns, workspace 2", "g: a ->, 5 ns")
TEXT = "copy w ddr hbm; compute f; detach w hbm; compute g; detach a hbm"


def test_one_step_is_counted_to_the_last_end_of_anything():
    g = graph("w 10 persistent", "f: w -> w, 5 ns")
    text = "copy w ddr hbm; compute f; copy w hbm ddr; detach w hbm"
    row = metrics.summarise(g, MACHINE, play(MACHINE, g, text, "w ddr"), Bound(20, "link h2d"))
    assert row == {
        "status": "ok",
        "step_ns": 25,
        "makespan_ns": 25,
        **dict.fromkeys(("tokens_per_s", "samples_per_s", "tflops", "mfu")),
        "warmup_ns": 0,
        "compute_ns": 5,
        "recompute_ns": 0,
        "delay_ns": 0,
        "stall_ns": 10,
        **{f"wait_{cause}_ns": 10 if cause == "transfer" else 0 for cause in CAUSES[:-1]},
        "drain_ns": 10,
        "transfer_ns": 20,
        "exposed_transfer_ns": 10,
        "hidden_fraction": 0.5,
        "busy_d2h_ns": 10,
        "exposed_d2h_ns": 0,
        "busy_h2d_ns": 10,
        "exposed_h2d_ns": 10,
        "peak_hbm_bytes": 10,
        "peak_ddr_bytes": 10,
        "in_use_hbm_fraction": 10 / 100,
        "peak_in_use_hbm_fraction": 10 / 100,
        "moved_d2h_bytes": 10,
        "moved_h2d_bytes": 10,
        "bound_ns": 20,
        "bounded_by": "link h2d",
        "gap_fraction": 0.25,
    }


def test_of_several_steps_the_last_is_measured_and_the_others_are_warm_up():
    """f waits for w: from 0 to 10 in the first step; in the second the copy starts with g, at 20, and f waits at 25."""
    g = graph("w 10 persistent, a 4", "f: w -> a, 10 ns", "g: a ->, 5 ns", steps=2)
    row = metrics.summarise(g, MACHINE, play(MACHINE, g, TEXT, "w ddr"))
    assert (row["warmup_ns"], row["step_ns"], row["makespan_ns"]) == (25, 20, 45)
    assert (row["compute_ns"], row["stall_ns"], row["wait_transfer_ns"], row["drain_ns"]) == (15, 5, 5, 0)
    assert (row["transfer_ns"], row["hidden_fraction"]) == (5, 0.0)
    assert (row["moved_h2d_bytes"], row["moved_d2h_bytes"]) == (10, 0)
    assert (row["busy_h2d_ns"], row["exposed_h2d_ns"], row["busy_d2h_ns"]) == (5, 5, 0)
    assert "bound_ns" not in row


def test_what_a_link_carries_is_exposed_where_the_stream_waits_whatever_for():
    """a goes out from 10 to 20 and b comes in from 10 to 20: g computes until 15, and h waits for b until 20."""
    g = graph("a 10, b 10 persistent", "f: -> a, 10 ns", "g: ->, 5 ns", "h: b ->, 5 ns")
    text = "compute f; compute g; copy a hbm ddr; copy b ddr hbm; compute h; detach a hbm; detach a ddr; detach b hbm"
    row = metrics.summarise(g, MACHINE, play(MACHINE, g, text, "b ddr"))
    assert (row["stall_ns"], row["wait_transfer_ns"]) == (5, 5)
    assert (row["busy_d2h_ns"], row["exposed_d2h_ns"]) == (10, 5)
    assert (row["busy_h2d_ns"], row["exposed_h2d_ns"]) == (10, 5)


def test_nothing_moved_hides_nothing():
    g = graph("a 4", "f: -> a, 10 ns", "g: a ->, 5 ns")
    row = metrics.summarise(g, MACHINE, play(MACHINE, g, "compute f; compute g; detach a hbm"))
    assert (row["hidden_fraction"], row["transfer_ns"], row["step_ns"]) == (None, 0, 15)


def test_a_blocked_run_has_peaks_and_an_end_but_no_step():
    g = graph("a 60, b 60", "f: -> a, 10 ns", "g: -> b, 5 ns")
    trace = play(MACHINE, g, "compute f; compute g; detach a hbm; detach b hbm", budget_bytes=60)
    assert trace.status == "ok"
    g = graph("a 60, b 60", "f: -> a, 10 ns", "g: a -> b, 5 ns")
    trace = play(MACHINE, g, "compute f; compute g; detach a hbm; detach b hbm")
    row = metrics.summarise(g, MACHINE, trace, Bound(15, "compute"))
    assert (row["status"], row["makespan_ns"], row["peak_hbm_bytes"]) == ("blocked", 10, 60)
    assert row["step_ns"] is row["stall_ns"] is row["wait_capacity_ns"] is row["hidden_fraction"] is None
    assert row["moved_h2d_bytes"] is row["gap_fraction"] is None
    assert metrics.Frames(g, MACHINE, trace).spans()["name"].tolist() == ["step0/f"]


def test_the_peak_is_after_the_allocation_and_before_the_free():
    """While f runs: w, a and the workspace. It is over before g starts."""
    trace = play(MACHINE, GRAPH, TEXT, "w ddr")
    assert metrics.peaks_bytes(MACHINE, trace) == {"hbm": 16, "ddr": 10}
    peak = metrics.peak_breakdown(GRAPH, MACHINE, trace, "hbm")
    assert (peak.tier, peak.time_ns, peak.used_bytes) == ("hbm", 10, 16)
    assert peak.by_kind == {"activation": 14, "workspace": 2}
    assert peak.largest == (("w", 10), ("a", 4), ("workspace of f", 2))
    assert metrics.peak_breakdown(GRAPH, MACHINE, trace, "hbm", most=1).largest == (("w", 10),)


def test_of_equal_peaks_the_first_is_told():
    g = graph("a 4, b 4", "f: -> a, 10 ns", "g: -> b, 10 ns")
    trace = play(MACHINE, g, "compute f; detach a hbm; compute g; detach b hbm")
    peak = metrics.peak_breakdown(g, MACHINE, trace, "hbm")
    assert (peak.time_ns, peak.largest) == (0, (("a", 4),))


@pytest.mark.parametrize(
    ("text", "again"), [("compute f; detach a hbm", False), ("compute f; compute f; detach a hbm", True)]
)
def test_a_run_repeats_if_an_op_runs_more_than_once_in_a_step(text, again):
    g = graph("a 4", "f: -> a, 10 ns", steps=2)
    assert metrics.repeats(Job.of(g), play(MACHINE, g, text)) is again


def test_a_tier_that_holds_nothing_has_no_peak():
    g = graph("a 4", "f: -> a, 10 ns")
    trace = play(MACHINE, g, "compute f; detach a hbm")
    assert metrics.peak_breakdown(g, MACHINE, trace, "ddr").used_bytes == 0
    assert metrics.peaks_bytes(MACHINE, trace)["ddr"] == 0


def test_reactive_runs_are_cut_where_all_is_as_at_time_0():
    """The copy for the next step is issued after the last detach of the step before, not after its last op."""
    g = graph("w 10 persistent, a 4", "f: w -> a, 10 ns", "g: a ->, 5 ns", steps=3)
    codes = [code for _ in range(3) for code in steps(g, MACHINE, TEXT).codes()]
    decided = play(MACHINE, g, lambda view: iter(codes), "w ddr")
    fixed = play(MACHINE, g, TEXT, "w ddr")
    assert metrics.summarise(g, MACHINE, decided) == metrics.summarise(g, MACHINE, fixed)
    frames = [metrics.Frames(g, MACHINE, trace).spans() for trace in (decided, fixed)]
    assert frames[0].equals(frames[1])
    assert frames[0]["step"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_spans_have_names_tracks_and_units():
    g = graph("w 10 persistent, a 4", "f: w -> a, 10 ns", "g: a ->, 5 ns", steps=2)
    text = "copy w ddr hbm; compute f; compute f; detach w hbm; compute g; detach a hbm"
    frame = metrics.Frames(g, MACHINE, play(MACHINE, g, text, "w ddr")).spans()
    assert list(frame.columns) == [
        "rank", "step", "kind", "name", "track", "channel", "phase", "source", "target", "issue",
        "issued_ns", "start_ns", "end_ns", "size_bytes",
    ]  # fmt: skip
    assert frame["name"].tolist() == [
        "w", "step0/f", "step0/f#2", "step0/g", "w", "step1/f", "step1/f#2", "step1/g",
    ]  # fmt: skip
    assert frame.iloc[0].to_dict() == {
        "rank": 0, "step": 0, "kind": "transfer", "name": "w", "track": "h2d", "channel": 0, "phase": "",
        "source": "ddr", "target": "hbm", "issue": 0, "issued_ns": 0, "start_ns": 0, "end_ns": 10, "size_bytes": 10,
    }  # fmt: skip
    assert frame["track"].tolist()[1:4] == ["stream 0"] * 3
    assert frame["start_ns"].is_monotonic_increasing


def test_waits_say_why_and_on_what():
    g = graph("w 10 persistent, a 4", "f: w -> a, 10 ns", "g: a ->, 5 ns", steps=2)
    frame = metrics.Frames(g, MACHINE, play(MACHINE, g, TEXT, "w ddr")).waits()
    assert frame.to_dict("records") == [
        {
            "rank": 0, "stream": 0, "step": step, "op": f"step{step}/f", "cause": "transfer", "tensor": "w",
            "on": "h2d", "blocker": "w", "issue": 1 + 5 * step, "start_ns": start, "end_ns": end,
        }
        for step, start, end in ((0, 0, 10), (1, 25, 30))
    ]  # fmt: skip


def test_waits_for_room_name_the_tier():
    g = graph("v 60 persistent, a 60", "f: -> a, 5 ns")
    text = "copy v hbm ddr; detach v hbm; compute f; detach a hbm; copy v ddr hbm; detach v ddr"
    frame = metrics.Frames(g, MACHINE, play(MACHINE, g, text, "v hbm")).waits()
    assert frame[["cause", "tensor", "on", "blocker"]].to_numpy().tolist() == [["capacity", "", "hbm", ""]]


def test_memory_is_told_change_by_change():
    frame = metrics.Frames(GRAPH, MACHINE, play(MACHINE, GRAPH, TEXT, "w ddr")).memory()
    rows = list(zip(*(frame[c] for c in ("time_ns", "tier", "kind", "kind_bytes", "used_bytes")), strict=True))
    assert rows == [
        (0, "ddr", "activation", 10, 10),
        (0, "hbm", "activation", 10, 10),
        (10, "hbm", "activation", 14, 14),
        (10, "hbm", "workspace", 2, 16),
        (20, "hbm", "workspace", 0, 14),
        (20, "hbm", "activation", 4, 4),
        (25, "hbm", "activation", 0, 0),
    ]


def test_residencies_say_from_when_to_when():
    frame = metrics.Frames(GRAPH, MACHINE, play(MACHINE, GRAPH, TEXT, "w ddr")).residencies()
    rows = frame[["tensor", "kind", "tier", "start_ns", "end_ns", "size_bytes"]].to_numpy().tolist()
    assert rows == [
        ["w", "activation", "ddr", 0, 25, 10],
        ["w", "activation", "hbm", 0, 20, 10],
        ["a", "activation", "hbm", 10, 25, 4],
        ["workspace of f", "workspace", "hbm", 10, 20, 2],
    ]


def test_with_two_streams_the_one_that_ends_last_is_measured():
    g = graph("a 4, b 4", "f: -> a, 10 ns", "g: -> b, 3 ns", "h: b ->, 4 ns")
    trace = play(MACHINE, g, "compute f 0; compute g 1; compute h 1; detach a hbm; detach b hbm")
    assert metrics.summarise(g, MACHINE, trace)["compute_ns"] == 10
    trace = play(MACHINE, g, "compute f 0; compute g 1; compute h 0; detach a hbm; detach b hbm")
    assert metrics.summarise(g, MACHINE, trace)["compute_ns"] == 14


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_has_its_own_device_and_shares_what_is_shared(ranks: int):
    home = (1, NOWHERE)
    plan = Plan("hand", MACHINE.tier_names, home, steps(GRAPH, MACHINE, TEXT))
    node = MACHINE.model_copy(update={"topology": Topology(devices_per_node=ranks)})
    trace = engine.run([engine.Program(GRAPH, plan, durations_ns(GRAPH, MACHINE))] * ranks, node)
    assert metrics.peaks_bytes(node, trace) == {"hbm": 16, "ddr": 10 * ranks}
    frame = metrics.Frames(GRAPH, node, trace).memory()
    assert frame.groupby("tier")["used_bytes"].max().to_dict() == {"hbm": 16, "ddr": 10 * ranks}
    assert sorted(metrics.Frames(GRAPH, node, trace).spans()["rank"].unique()) == list(range(ranks))
