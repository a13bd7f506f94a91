"""One short story per rule of the machine, each with an exact timeline; copies have a file of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replays import rows
from stories import graph, machine, peak_bytes, play, steps, timeline, waits

from simulator import engine, metrics
from simulator.errors import CapacityError, InvariantError, PlanError
from simulator.plan import COMPUTE, COPY, NOWHERE, Plan
from simulator.referee import check_trace


def test_1_host_pays_for_each_step_of_a_fixed_plan_and_for_its_launch():
    h = machine(host={"fixed": {"launch": "100 ns", "step": "7 ns"}})
    g = graph("a 10", "f: -> a, 5 ns", "g: a ->, 5 ns")
    t = play(h, g, "compute f; compute g; detach a hbm")
    assert timeline(t, g, h) == ["107-112 f", "114-119 g"]
    assert waits(t, g) == ["0-107 f host", "112-114 g host"]


def test_1_reactive_host_pays_to_inspect_to_issue_and_to_synchronise():
    prices = {"inspect": "1 ns", "compute": "2 ns", "copy": "4 ns", "detach": "8 ns", "sync": "16 ns"}
    h = machine(host={"reactive": prices})
    g = graph("w 10 persistent", "f: w ->, 5 ns")

    def decide(view):
        assert view.now_ns == 0
        yield (COPY, 0, 1, 0)
        assert view.now_ns == 4
        assert view.place(0, 0) == "valid"
        assert not view.settled(0)
        assert view.room_bytes(0) == 100
        yield (3, 0, 0, 0)
        assert view.now_ns == 20
        assert view.settled(0)
        yield (COMPUTE, 0, 0, 0)
        yield (2, 0, 0, 0)

    t = play(h, g, decide, "w ddr")
    assert timeline(t, g, h) == ["4-14 h2d w", "23-28 f"]
    assert next(zip(*t.issued[0].whole().values(), strict=True)) == (COPY, 0, 1, 0)
    assert waits(t, g) == ["0-23 f host"]


def test_1_reactive_host_pays_to_enter_what_goes_home_changed():
    """The state ``w`` is entered at home, which takes 7 ns before it is copied; the activation ``a`` is only copied."""
    h = machine(host={"reactive": {"copy": "2 ns", "update": "7 ns"}})
    g = graph("w 10 persistent, a 10", "f: w -> w a, 5 ns")

    def decide(view):
        yield (COPY, 0, 1, 0)
        yield (COMPUTE, 0, 0, 0)
        yield (COPY, 0, 0, 1)
        yield (COPY, 1, 0, 1)
        yield from ((2, tensor, tier, 0) for tensor, tier in ((0, 0), (1, 0), (1, 1)))

    t = play(h, g, decide, "w ddr")
    assert timeline(t, g, h) == ["2-12 h2d w", "12-17 f", "17-27 d2h w", "27-37 d2h a"]
    assert t.spans.whole()["issued_ns"].tolist() == [2, 2, 11, 13]
    plan = Plan("story", h.tier_names, (1, NOWHERE), decide)
    check_trace(g, h, [plan], t)
    dearer = machine(host={"reactive": {"copy": "2 ns", "update": "8 ns"}})
    with pytest.raises(
        InvariantError, match="the host issues in order and pays for each action, found issued at ns 11"
    ):
        check_trace(g, dearer, [plan], t)
    fixed = "copy w ddr hbm; compute f; copy w hbm ddr; copy a hbm ddr; detach w hbm; detach a hbm; detach a ddr"
    t = play(h, g, fixed, "w ddr")
    assert set(t.spans.whole()["issued_ns"].tolist()) == {0}


def test_1_reactive_host_pays_for_page_locked_memory_where_a_copy_out_takes_a_new_place():
    """1 MiB and a bit are two MiB; a copy to a place that is there, and a copy in, cost nothing more."""
    big = (1 << 20) + 1
    h = machine(host={"reactive": {"pin": "50 ns"}}, hbm=f"{8 * big} B")
    g = graph(f"a {big}", "f: -> a, 5 ns", "g: a -> a, 5 ns")

    def decide(_):
        yield (COMPUTE, 0, 0, 0)
        yield (COPY, 0, 0, 1)
        yield (COMPUTE, 1, 0, 0)
        yield (COPY, 0, 0, 1)
        yield from ((2, 0, 0, 0), (COPY, 0, 1, 0), (2, 0, 0, 0), (2, 0, 1, 0))

    t = play(h, g, decide, "")
    assert t.spans.whole()["issued_ns"].tolist() == [0, 100, 100, 100, 100]
    plan = Plan("story", h.tier_names, (NOWHERE,), decide)
    check_trace(g, h, [plan], t)
    with pytest.raises(InvariantError, match="the host issues in order and pays for each action"):
        check_trace(g, machine(host={"reactive": {"pin": "51 ns"}}, hbm=f"{8 * big} B"), [plan], t)


def test_1_a_host_that_does_not_look_at_the_machine_issues_at_the_same_times():
    h = machine(host={"reactive": {"compute": "20 ns", "copy": "5 ns"}})
    g = graph("w 10 persistent, a 10", "f: w ->, 10 ns", "g: -> a, 10 ns")

    def decide(view):
        for _ in range(3):
            yield (COPY, 0, 1, 0)
            yield (COMPUTE, 0, 0, 0)
            yield (2, 0, 0, 0)
            yield (COMPUTE, 1, 0, 0)
            yield (2, 1, 0, 0)

    seen = []
    for looks in (True, False):
        plan = Plan("story", h.tier_names, (1, NOWHERE), decide, looks=looks)
        t = engine.run([engine.Program(g, plan, [10, 10])], h)
        seen.append((timeline(t, g, h), waits(t, g), t.spans.whole()["issued_ns"].tolist()))
    assert seen[0] == seen[1]
    assert seen[0][0][:4] == ["5-15 h2d w", "25-35 f", "45-55 g", "50-60 h2d w"]


def test_1_computes_that_need_nothing_wait_for_their_time_of_issue():
    h = machine(host={"reactive": {"compute": "20 ns"}})
    g = graph("a 10 persistent", "f: a -> a, 10 ns")

    def decide(view):
        for _ in range(4):
            yield (COMPUTE, 0, 0, 0)

    plan = Plan("story", h.tier_names, (0,), decide, looks=False)
    t = engine.run([engine.Program(g, plan, [10])], h)
    assert timeline(t, g, h) == ["20-30 f", "40-50 f", "60-70 f", "80-90 f"]
    assert waits(t, g) == ["0-20 f host", "30-40 f host", "50-60 f host", "70-80 f host"]


def test_1_a_detach_that_is_issued_ahead_acts_at_its_time_whoever_waits_for_it():
    """The copy waits for the room of b, which is free in the midst of k; nobody waits for that of c."""
    h = machine("60 B", host={"reactive": {"compute": "10 ns", "copy": "10 ns", "detach": "45 ns"}})
    g = graph(
        "b 20 persistent, c 40 persistent, w 20 persistent",
        *("f: ->, 40 ns", "g: ->, 40 ns", "k: ->, 40 ns", "l: w ->, 40 ns"),
    )
    codes = [
        (COMPUTE, 0, 0, 0),
        (COPY, 2, 1, 0),
        *((COMPUTE, op, 0, 0) for op in (1, 2, 3)),
        (2, 0, 0, 0),
        (2, 1, 0, 0),
    ]
    plan = Plan("story", h.tier_names, (0, 0, 1), lambda view: iter(codes), looks=False)
    t = engine.run([engine.Program(g, plan, [40] * 4)], h)
    assert timeline(t, g, h) == ["10-50 f", "50-90 g", "90-130 k", "95-115 h2d w", "130-170 l"]
    r = t.residencies.whole()
    assert r["time_ns"].tolist()[3:] == [95, 95, 140]
    assert r["delta_bytes"].tolist()[3:] == [-20, 20, -40]


@pytest.mark.parametrize("look", [lambda v: v.now_ns, lambda v: v.room_bytes(0), lambda v: v.settled(0)])
def test_1_a_plan_that_says_that_it_does_not_look_is_held_to_it(look):
    h, g = machine(), graph("w 10 persistent", "f: w ->, 5 ns")

    def decide(view):
        assert view.place(0, 0) == "valid"
        look(view)
        yield (COMPUTE, 0, 0, 0)

    plan = Plan("story", h.tier_names, (0,), decide, looks=False)
    with pytest.raises(PlanError, match="action 0: only a plan that says so looks at the machine"):
        engine.run([engine.Program(g, plan, [5])], h)


def test_1_host_runs_ahead_by_the_depth_of_its_queue():
    ops = [f"f{i}: ->, 10 ns" for i in range(5)]
    g = graph("a 1", *ops)
    t = play(machine(host={"queue_depth": 1}), g, "; ".join(f"compute f{i}" for i in range(5)))
    assert t.spans.whole()["issued_ns"].tolist() == [0, 0, 10, 20, 30]
    t = play(machine(host={"queue_depth": 4}), g, "; ".join(f"compute f{i}" for i in range(5)))
    assert t.spans.whole()["issued_ns"].tolist() == [0, 0, 0, 0, 10], "filled up again once half has started"


def test_1_sync_is_the_only_step_the_host_waits_for():
    h, g = machine(), graph("a 40", "f: -> a, 10 ns", "g: ->, 10 ns")
    t = play(h, g, "compute f; copy a hbm ddr; sync a; compute g; detach a hbm; detach a ddr")
    assert timeline(t, g, h) == ["0-10 f", "10-50 d2h a", "50-60 g"]
    assert waits(t, g) == ["10-50 g transfer"]


def test_2_computes_of_a_stream_run_in_issue_order_and_streams_run_side_by_side():
    h, g = machine(), graph("a 1", "f: ->, 10 ns", "g: ->, 4 ns", "k: ->, 3 ns")
    t = play(h, g, "compute f 0; compute g 1; compute k 1")
    assert timeline(t, g, h) == ["0-10 f", "0-4 g", "4-7 k"]


def test_2_streams_wait_for_each_other_where_they_share_a_tensor():
    h, g = machine(), graph("a 1", "f: -> a, 10 ns", "g: a ->, 4 ns", "k: -> a, 3 ns")
    t = play(h, g, "compute f 0; compute g 1; compute k 0; detach a hbm")
    assert timeline(t, g, h) == ["0-10 f", "10-14 g", "14-17 k"]
    assert waits(t, g) == ["0-10 g order", "10-14 k order"]


def test_3_room_is_taken_at_the_start_and_a_write_in_place_takes_none():
    h = machine("50 B")
    g = graph("a 40", "f: -> a, 10 ns, workspace 10", "g: a -> a, 10 ns")
    t = play(h, g, "compute f; compute g; detach a hbm")
    assert timeline(t, g, h) == ["0-10 f", "10-20 g"]
    assert peak_bytes(t, 0) == 50
    assert t.residencies.whole()["time_ns"].tolist() == [0, 0, 10, 20]


def test_5_steps_on_one_tensor_take_effect_in_issue_order():
    h, g = machine(), graph("a 40", "f: -> a, 10 ns", "g: a ->, 10 ns", "k: a ->, 10 ns")
    t = play(
        h,
        g,
        "compute f; copy a hbm ddr; detach a hbm; copy a ddr hbm; compute g; compute k; detach a hbm; detach a ddr",
    )
    assert timeline(t, g, h) == ["0-10 f", "10-50 d2h a", "50-90 h2d a", "90-100 g", "100-110 k"]


def test_5_reads_overlap_a_copy_and_a_write_waits_for_it_and_makes_other_copies_stale():
    h, g = machine(), graph("a 40", "f: -> a, 10 ns", "g: a ->, 5 ns", "k: a -> a, 5 ns")
    t = play(h, g, "compute f; copy a hbm ddr; compute g; compute k; copy a hbm ddr; detach a hbm; detach a ddr")
    assert timeline(t, g, h) == ["0-10 f", "10-50 d2h a", "10-15 g", "50-55 k", "55-95 d2h a"]
    assert waits(t, g) == ["15-50 k transfer"]
    assert peak_bytes(t, 1) == 40, "a refresh of a stale copy takes no new room"


def test_5_a_reactive_plan_that_reads_what_it_detached_is_refused():
    def decide(view):
        yield (COMPUTE, 0, 0, 0)
        yield (2, 0, 0, 0)
        yield (COMPUTE, 1, 0, 0)

    g = graph("a 40", "f: -> a, 10 ns", "g: a ->, 5 ns")
    with pytest.raises(
        PlanError, match=r"action 2 \(compute g\): a tensor that a compute reads is valid .* 'a' absent in hbm"
    ):
        play(machine(), g, decide)


def test_5_a_reactive_plan_on_an_unknown_stream_is_refused():
    g = graph("a 4", "f: -> a, 5 ns")
    with pytest.raises(
        PlanError, match=r"action 0 \(compute\): a reactive plan uses compute streams 0 to 0, found stream 1"
    ):
        play(machine(), g, lambda view: iter([(COMPUTE, 0, 1, 0)]))


def test_6_death_is_a_detach_and_nothing_is_freed_by_itself():
    h, g = machine(), graph("a 40", "f: -> a, 10 ns", "g: ->, 10 ns")
    t = play(h, g, "compute f; compute g")
    assert t.residencies.whole()["delta_bytes"].tolist() == [40]


@pytest.mark.parametrize("is_reactive", [False, True])
def test_6_an_output_stays_until_the_last_op_before_its_detach_has_ended(is_reactive):
    h = machine()
    g = replace(graph("a 40, b 10", "f: -> a, 10 ns", "g: -> b, 60 ns"), outputs=(0,))

    def freed(text):
        what = (lambda view: steps(g, h, text).codes()) if is_reactive else text
        r = play(h, g, what).residencies.whole()
        rows = zip(*(r[c].tolist() for c in ("time_ns", "tier", "tensor", "delta_bytes")), strict=True)
        return [f"{time} {g.tensors[t].name} {h.tier_names[tier]}" for time, tier, t, delta in rows if delta < 0]

    assert freed("compute f; compute g; detach a hbm; detach b hbm") == ["70 a hbm", "70 b hbm"]
    stored = "compute f; copy a hbm ddr; detach a hbm; compute g; detach b hbm; detach a ddr"
    assert freed(stored) == ["50 a hbm", "70 b hbm", "70 a ddr"], "a copy elsewhere is enough"


def test_8_computes_go_before_copies_and_a_large_request_is_never_overtaken():
    h = machine("100 B")
    g = graph("a 60, b 60, w 30 persistent", "f: -> a, 10 ns", "g: a ->, 10 ns", "k: -> b, 10 ns", "m: w ->, 1 ns")
    t = play(
        h,
        g,
        "compute f; compute g; copy w ddr hbm; detach a hbm; compute k; detach b hbm; compute m; detach w hbm",
        "w ddr",
    )
    assert timeline(t, g, h) == ["0-10 f", "10-20 g", "10-40 h2d w", "20-30 k", "40-41 m"]
    g = graph("a 60, b 60, w 50 persistent, v 10 persistent", "f: -> a, 10 ns", "g: a ->, 10 ns", "m: w v ->, 1 ns")
    t = play(
        h,
        g,
        "compute f; compute g; copy w ddr hbm; copy v ddr hbm; detach a hbm; compute m; detach w hbm; detach v hbm",
        "w ddr, v ddr",
    )
    assert timeline(t, g, h) == ["0-10 f", "10-20 g", "20-70 h2d w", "70-80 h2d v", "80-81 m"]


def test_9_at_one_instant_ends_then_frees_then_starts_and_zero_spans_end_in_the_next_round():
    h = machine("40 B")
    g = graph("a 40, b 40", "f: -> a, 10 ns", "z: ->, 0 ns", "y: ->, 0 ns", "g: -> b, 10 ns")
    t = play(h, g, "compute f; detach a hbm; compute z; compute y; compute g; detach b hbm")
    assert timeline(t, g, h) == ["0-10 f", "10-10 z", "10-10 y", "10-20 g"]
    assert peak_bytes(t, 0) == 40
    assert len(t.waits) == 0


def test_9_all_that_is_detached_at_one_instant_is_free_before_room_is_granted():
    h = machine("40 B", host={"reactive": {"compute": "10 ns"}})
    g = graph("b 20 persistent, c 20 persistent, w 20 persistent", "f: ->, 40 ns", "g: ->, 10 ns")
    codes = [(COMPUTE, 0, 0, 0), (COPY, 2, 1, 0), (COMPUTE, 1, 0, 0), (2, 0, 0, 0), (2, 1, 0, 0)]
    plan = Plan("story", h.tier_names, (0, 0, 1), lambda view: iter(codes), looks=False)
    t = engine.run([engine.Program(g, plan, [40, 10])], h)
    assert timeline(t, g, h) == ["10-50 f", "20-40 h2d w", "50-60 g"]
    assert t.residencies.whole()["delta_bytes"].tolist()[3:] == [-20, -20, 20]


def test_9_both_places_of_a_tensor_are_free_at_the_instant_at_which_both_are_detached():
    h, g = (
        machine(host={"reactive": {"compute": "10 ns"}}),
        graph("b 20 persistent", *(f"{op}: ->, 40 ns" for op in "fgk")),
    )
    codes = [(COPY, 0, 0, 1), *((COMPUTE, op, 0, 0) for op in (0, 1, 2)), (2, 0, 0, 0), (2, 0, 1, 0)]
    t = engine.run(
        [engine.Program(g, Plan("story", h.tier_names, (0,), lambda view: iter(codes), looks=False), [40] * 3)], h
    )
    assert t.residencies.whole()["time_ns"].tolist() == [0, 0, 30, 30]


def test_11_a_wait_is_split_where_its_cause_changes_and_the_sum_is_exact():
    h = machine("100 B", host={"fixed": {"launch": "5 ns"}})
    g = graph("w 60 persistent, a 80", "f: -> a, 10 ns", "g: a ->, 10 ns", "k: w ->, 10 ns")
    t = play(
        h,
        g,
        "compute f; compute g; copy a hbm ddr; detach a hbm; copy w ddr hbm; compute k; detach w hbm; detach a ddr",
        "w ddr",
    )
    assert timeline(t, g, h) == ["5-15 f", "15-25 g", "15-95 d2h a", "95-155 h2d w", "155-165 k"]
    assert waits(t, g) == ["0-5 f host", "25-95 k capacity", "95-155 k transfer"]


def test_11_waiting_behind_another_transfer_is_a_transfer_wait_that_names_it():
    h, g = machine(), graph("w 20 persistent, v 20 persistent", "f: v ->, 5 ns", "g: w ->, 5 ns")
    t = play(h, g, "copy w ddr hbm; copy v ddr hbm; compute f; compute g; detach w hbm; detach v hbm", "w ddr, v ddr")
    w = t.waits.whole()
    assert [w[c].tolist() for c in ("start_ns", "end_ns", "tensor", "on", "blocker")] == [
        [0, 20],
        [20, 40],
        [1, 1],
        [1, 1],
        [0, 1],
    ]


def test_13_a_plan_that_blocks_itself_is_told_with_who_waits_for_what():
    h = machine("100 B")
    g = graph("a 60, b 60", "f: -> a, 10 ns", "g: a -> b, 10 ns")
    t = play(h, g, "compute f; compute g; detach a hbm; detach b hbm")
    assert t.status == "blocked"
    told = "op 'g' (action 1) waits for 60 B of room in hbm: 60 B of 100 B are held, largest 'a' 60 B; no issued detach"
    assert t.blocked == (told + " will free more, so detach something before it, or give more room",)
    assert timeline(t, g, h) == ["0-10 f"]


def test_13_a_read_that_nothing_brings_is_told():
    h, g = machine(), graph("w 60 persistent", "f: w ->, 10 ns")
    t = play(h, g, "compute f", "w ddr")
    assert t.blocked == ("op 'f' (action 0) waits for tensor 'w'", "no action that was issued brings tensor 'w'")


def test_13_homes_that_exceed_a_tier_are_refused_before_the_run():
    with pytest.raises(CapacityError, match="20 B short"):
        play(machine("40 B"), graph("w 60 persistent", "f: w ->, 10 ns"), "compute f", "w hbm")


def test_an_op_that_runs_again_takes_room_anew_and_waits_for_it_like_any_other():
    """a is given up after g and made again for k; the second f finds room only when b is gone, with h."""
    h = machine("100 B")
    g = graph("a 60, b 70", "f: -> a, 10 ns", "g: a ->, 5 ns", "h: -> b, 20 ns", "k: a ->, 5 ns")
    t = play(
        h,
        g,
        "compute f; compute g; detach a hbm; compute h; copy b hbm ddr; detach b hbm; compute f; compute k;"
        "detach a hbm; detach b ddr",
    )
    assert timeline(t, g, h) == ["0-10 f", "10-15 g", "15-35 h", "35-105 d2h b", "105-115 f", "115-120 k"]
    assert waits(t, g) == ["35-105 f capacity"]
    assert peak_bytes(t, 0) == 70
    row = metrics.summarise(g, h, t)
    assert [row[c] for c in ("compute_ns", "recompute_ns", "stall_ns", "step_ns")] == [40, 10, 70, 120]
    names = metrics.Frames(g, h, t).spans()["name"].tolist()
    assert names == ["step0/f", "step0/g", "step0/h", "b", "step0/f#2", "step0/k"]
    assert metrics.Frames(g, h, t).waits()["op"].tolist() == ["step0/f#2"]


def test_every_step_of_a_repeated_plan_counts_its_runs_from_one():
    h, g = machine(), graph("a 60", "f: -> a, 10 ns", "g: a ->, 5 ns", steps=2)
    t = play(h, g, "compute f; detach a hbm; compute f; compute g; detach a hbm")
    names = metrics.Frames(g, h, t).spans()["name"].tolist()
    assert names == [f"step{n}/{what}" for n in (0, 1) for what in ("f", "f#2", "g")]
    row = metrics.summarise(g, h, t)
    assert [row[c] for c in ("compute_ns", "recompute_ns", "stall_ns", "step_ns")] == [15, 10, 0, 25]


def test_9_what_a_host_detaches_while_computes_start_is_freed_behind_them():
    """As `e` starts the host goes on and detaches `x`; `f`, which stands in line behind `e`, starts before that."""
    h = machine("3 B", host={"queue_depth": 2})
    g = graph("x 1 input, a 1", "d: x ->", "e: ->, workspace 1", "f: -> a", "k: ->")
    t = play(h, g, "compute d 1; compute e 1; compute f; compute k; detach x hbm; detach a hbm", "x hbm")
    assert t.status == "ok"
    assert peak_bytes(t, 0) == 3


def test_9_places_that_are_given_up_at_one_instant_are_freed_in_issue_order():
    """`f` ends before the copy of `a` at 10 ns, as it began before it; `a` was detached first."""
    h, g = machine(), graph("a 10 persistent, b 20 input", "f: b ->, 10 ns")
    t = play(h, g, "compute f; copy a hbm ddr; detach a hbm; detach b hbm", "a hbm, b hbm")
    freed = [row["tensor"] for row in rows(t.residencies) if row["time_ns"] == 10]
    assert [g.tensors[tensor].name for tensor in freed] == ["a", "b"]
