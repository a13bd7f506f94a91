"""One short story per rule about copies, their queues and their bandwidth (semantics 4 and 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stories import graph, machine, play, steps, timeline, waits

from simulator.engine.reference.rooms import Ask, Gate, Room, RoomClaim
from simulator.errors import InvariantError
from simulator.plan import Plan
from simulator.referee import check_trace
from simulator.scenario import Switches


def test_4_a_copy_becomes_eligible_when_the_compute_before_it_has_started_or_by_switch_ended():
    h, g = machine(), graph("w 30 persistent", "f: ->, 10 ns", "g: w ->, 10 ns")
    plan = "compute f; copy w ddr hbm; compute g; detach w hbm"
    t = play(h, g, plan, "w ddr")
    assert timeline(t, g, h) == ["0-10 f", "0-30 h2d w", "30-40 g"]
    t = play(h, g, plan, "w ddr", switches=Switches(copies_wait_for="end"))
    assert timeline(t, g, h) == ["0-10 f", "10-40 h2d w", "40-50 g"]


def test_4_a_head_that_cannot_start_blocks_its_channel_and_a_transfer_holds_both_places():
    h = machine("60 B")
    g = graph("w 40 persistent, v 10 persistent, a 50", "f: -> a, 20 ns", "g: w v ->, 5 ns")
    t = play(
        h,
        g,
        "compute f; copy w ddr hbm; copy v ddr hbm; detach a hbm; compute g; detach w hbm; detach v hbm",
        "w ddr, v ddr",
    )
    assert timeline(t, g, h) == ["0-20 f", "20-60 h2d w", "60-70 h2d v", "70-75 g"]
    assert waits(t, g) == ["20-60 g transfer", "60-70 g transfer"], "first for w, then for v"


def test_4_channels_carry_transfers_side_by_side_and_share_the_link():
    h, g = machine(h2d={"channels": 2}), graph("w 30 persistent, v 10 persistent", "f: w v ->, 5 ns")
    t = play(h, g, "copy w ddr hbm; copy v ddr hbm; compute f; detach w hbm; detach v hbm", "w ddr, v ddr")
    assert timeline(t, g, h) == ["0-40 h2d w", "0-20 h2d v", "40-45 f"]
    assert sorted(t.spans.whole()["channel"].tolist()) == [0, 0, 1]


BOTH = ("d2h", "h2d")


def test_4_links_of_a_copy_queue_take_turns_in_issue_order():
    g = graph("a 20, w 30 persistent", "f: -> a, 10 ns", "g: w ->, 5 ns", "k: a ->, 5 ns")
    text = "compute f; copy a hbm ddr; copy w ddr hbm; compute g; detach w hbm; compute k; detach a hbm; detach a ddr"
    apart, shared = machine(), machine(queue=BOTH)
    t = play(apart, g, text, "w ddr")
    assert timeline(t, g, apart) == ["0-10 f", "0-30 h2d w", "10-30 d2h a", "30-35 g", "35-40 k"]
    t = play(shared, g, text, "w ddr")
    assert timeline(t, g, shared) == ["0-10 f", "10-30 d2h a", "30-60 h2d w", "60-65 g", "65-70 k"]
    assert waits(t, g) == ["10-30 g transfer", "30-60 g transfer"]
    w = t.waits.whole()
    told = zip(w["start_ns"].tolist(), w["on"].tolist(), w["blocker"].tolist(), strict=True)
    assert list(told) == [(10, 0, 0), (30, 1, 1)], "first for the copy out of a on d2h, then for its own"


def test_4_upstream_copies_wait_for_the_op_before_them_on_one_queue():
    """A copy in at its consumer is never hidden, and neither is what it waits for in the queue."""
    h = machine(queue=BOTH, d2h={"latency": "1 ns"}, h2d={"latency": "1 ns"})
    g = graph("a 20, b 10", "f: -> a, 10 ns", "g: -> b, 5 ns", "k: b ->, 5 ns", "m: a ->, 5 ns")
    text = "compute f; copy a hbm ddr; detach a hbm; compute g; compute k; detach b hbm; copy a ddr hbm; compute m"
    t = play(h, g, text + "; detach a hbm; detach a ddr", switches=Switches(copies_wait_for="end"))
    assert timeline(t, g, h) == ["0-10 f", "10-31 d2h a", "10-15 g", "15-20 k", "31-52 h2d a", "52-57 m"]


def test_4_several_channels_serve_a_copy_queue_and_a_link_keeps_its_own_bandwidth():
    two = {"channels": 2}
    h = machine(queue=BOTH, d2h=two, h2d={**two, "bandwidth": "2 GB/s"})
    g = graph("a 20, w 30 persistent, v 10 persistent", "f: -> a, 1 ns", "g: v w ->, 5 ns", "k: a ->, 5 ns")
    text = "compute f; copy a hbm ddr; copy w ddr hbm; copy v ddr hbm; compute g; detach w hbm; detach v hbm; compute k"
    t = play(h, g, text + "; detach a hbm; detach a ddr", "w ddr, v ddr")
    assert timeline(t, g, h) == ["0-1 f", "1-21 d2h a", "1-16 h2d w", "16-21 h2d v", "21-26 g", "26-31 k"]
    assert t.spans.whole()["channel"].tolist() == [0, 1, 0, 1, 0, 0]


def test_4_the_head_of_a_copy_queue_blocks_the_other_direction_too():
    h = machine("30 B", queue=BOTH)
    g = graph("y 10, w 10 persistent, x 10 persistent, z 10", "f: -> y, 1 ns", "k: -> z, 1 ns", "n: w x z ->, 5 ns")
    text = "compute f; copy w ddr hbm; copy x ddr hbm; copy y hbm ddr; detach y hbm; compute k; compute n"
    end = "; detach z hbm; detach w hbm; detach x hbm; detach y ddr"
    assert play(machine("30 B"), g, text + end, "w ddr, x ddr").status == "ok"
    t = play(h, g, text + end, "w ddr, x ddr")
    assert t.status == "blocked"
    assert t.blocked[0] == "op 'n' (action 6) waits for tensor 'x'"
    assert t.blocked[1].startswith(
        "the copy of 'x' from ddr to hbm (action 2) waits for 10 B of room in hbm: 30 B of 30 B"
    )
    assert len(t.blocked) == 2


def test_10_latency_holds_the_channel_but_takes_no_bandwidth():
    h = machine(h2d={"channels": 2, "latency": "10 ns"})
    g = graph("w 30 persistent, v 30 persistent", "k: ->, 20 ns", "f: w v ->, 5 ns")
    t = play(h, g, "copy w ddr hbm; compute k; copy v ddr hbm; compute f; detach w hbm; detach v hbm", "w ddr, v ddr")
    assert timeline(t, g, h) == ["0-70 h2d w", "0-20 k", "0-70 h2d v", "70-75 f"]


def test_10_size_efficiency_is_the_cap_of_the_flow_and_only_fair_links_pass_it_on():
    points = [{"size": "10 B", "fraction": 0.25}, {"size": "1 kB", "fraction": 1.0}]
    g = graph("v 10 persistent, w 1000 persistent", "f: w v ->, 5 ns")
    plan = "copy v ddr hbm; copy w ddr hbm; compute f; detach w hbm; detach v hbm"
    for sharing, end in (("fifo", 1020), ("fair", 1010), ("servers", 2000)):
        h = machine("2 kB", h2d={"channels": 2, "efficiency": points, "sharing": sharing})
        t = play(h, g, plan, "w ddr, v ddr")
        assert timeline(t, g, h)[:2] == ["0-40 h2d v", f"0-{end} h2d w"], sharing


def test_10_links_on_a_bus_share_it():
    h = machine(buses={"duplex": {"links": ["d2h", "h2d"], "bandwidth": "1 GB/s"}})
    g = graph("w 30 persistent, a 30", "f: -> a, 10 ns", "g: w ->, 5 ns")
    t = play(
        h, g, "compute f; copy a hbm ddr; copy w ddr hbm; compute g; detach a hbm; detach a ddr; detach w hbm", "w ddr"
    )
    assert timeline(t, g, h) == ["0-10 f", "0-50 h2d w", "10-60 d2h a", "50-55 g"]


def test_10_a_link_without_a_limit_still_feels_its_bus():
    h = machine(h2d={"bandwidth": "inf"}, buses={"bus": {"links": ["h2d"], "bandwidth": "1 GB/s"}})
    g = graph("w 10 persistent", "f: w ->, 1 ns")
    t = play(h, g, "copy w ddr hbm; compute f; detach w hbm", "w ddr")
    assert timeline(t, g, h) == ["0-10 h2d w", "10-11 f"]


def test_10_a_copy_takes_bandwidth_of_the_compute_tier_from_kernels_where_several_streams_compute():
    h = machine(compute={"peak": {"bf16": "inf"}})
    tensors, ops = "w 30 persistent, x 20 persistent", ("f: x ->", "g: w ->", "k: ->")
    g = graph(tensors, *ops)
    g = type(g)(g.name, g.tensors, tuple(type(op)(op.name, op.reads, op.writes, op.read_bytes) for op in g.ops))
    plan = "copy w ddr hbm; compute f; compute g; compute k{}; detach w hbm"
    assert timeline(play(h, g, plan.format(""), "w ddr, x hbm"), g, h)[:3] == ["0-30 h2d w", "0-20 f", "30-60 g"]
    t = play(h, g, plan.format(" 1"), "w ddr, x hbm")
    assert timeline(t, g, h) == ["0-50 h2d w", "0-40 f", "0-0 k", "50-80 g"]


BEHIND = (
    "copy z ddr hbm; copy a ddr hbm; copy b pool hbm; compute f; detach z hbm; detach a hbm; compute g; detach b hbm"
)
TENSORS, OPS = (
    "h 10 persistent, z 30 persistent, a 20 persistent, b 70 persistent",
    ("f: z a ->, 5 ns", "g: b ->, 5 ns"),
)
HOMES = "h hbm, z ddr, a ddr, b pool"


def test_8_a_copy_that_fits_and_was_issued_before_who_waits_for_room_starts():
    """`b` waits for 70 B while `a`, issued before it, still stands behind `z` on its own link; then `a` fits."""
    h, g = machine(read={"source": "pool", "target": "hbm"}), graph(TENSORS, *OPS)
    t = play(h, g, BEHIND, HOMES)
    assert t.status == "ok", t.blocked
    assert timeline(t, g, h) == ["0-30 h2d z", "30-50 h2d a", "50-55 f", "55-125 read b", "125-130 g"]


def stand_behind_all(self: Room, claim: RoomClaim) -> Ask:
    """Queue whoever finds a queue, and look at nobody until something is freed."""
    gate = Gate()
    if any(other.claim.is_copy == claim.is_copy for other in self.get_queue):
        gate.opens = self.clock.event()
    ask = ASK(self, replace(claim, gate=gate))
    gate.opens = None
    return ask


ASK = Room.ask


@pytest.mark.parametrize("frees", [False, True], ids=["blocked", "late"])
def test_the_referee_sees_a_copy_that_could_have_started(monkeypatch: pytest.MonkeyPatch, frees: bool):
    """As above, with the engine broken; `a` never starts, or once `y` is freed at 90 ns."""
    h = machine(read={"source": "pool", "target": "hbm"})
    g, text, homes = graph(TENSORS, *OPS), BEHIND, HOMES
    if frees:
        g = graph(f"{TENSORS}, y 10 input", "k: y ->, 90 ns", *OPS)
        text, homes = BEHIND.replace("compute f", "compute k; detach y hbm; compute f"), f"{HOMES}, y hbm"
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    monkeypatch.setattr(Room, "ask", stand_behind_all)
    t = play(h, g, text, homes)
    assert t.status == ("ok" if frees else "blocked")
    places = dict(item.split() for item in homes.split(","))
    plan = Plan("story", h.tier_names, tuple(h.tier_names.index(places[x.name]) for x in g.tensors), steps(g, h, text))
    with pytest.raises(InvariantError, match=r"first in line for room of a tier \(hbm\).*20 B beside .* at 30 ns"):
        check_trace(g, h, [plan], t)


@pytest.mark.parametrize(
    ("size", "law"), [(30, r"\(hbm\) starts when it fits, found 30 B"), (0, "an action starts as soon as it can")]
)
def test_the_referee_sees_a_copy_whose_program_point_was_missed(size: int, law: str):
    """The engine lets copies wait for the end of the last compute, and the referee is told that they do not."""
    h, g = machine(), graph(f"w {size} persistent", "f: ->, 10 ns", "g: w ->, 10 ns")
    text, end = "compute f; copy w ddr hbm; compute g; detach w hbm", Switches(copies_wait_for="end")
    t, plan = play(h, g, text, "w ddr", switches=end), Plan("story", h.tier_names, (1,), steps(g, h, text))
    check_trace(g, h, [plan], t, None, end)
    with pytest.raises(InvariantError, match=law):
        check_trace(g, h, [plan], t)


@pytest.mark.parametrize("reads", ["a b", "b a"])
def test_11_of_several_tensors_an_op_waits_for_the_one_that_was_copied_first_however_it_lists_them(reads: str):
    """`a` waits for the room of `x`, which leaves until 60 ns; `b` comes from 0 to 80 ns."""
    h = machine(h2d={"bandwidth": "0.5 GB/s"}, read={"source": "pool", "target": "hbm"})
    g = graph("x 60 input, a 50 persistent, b 40 persistent", "k: x ->, 10 ns", f"f: {reads} ->, 5 ns")
    first, second = "copy a pool hbm", "copy b ddr hbm"
    rest = "compute k; copy x hbm ddr; detach x hbm; compute f; detach x ddr; detach a hbm; detach b hbm"
    t = play(h, g, f"{second}; {first}; {rest}", "x hbm, a pool, b ddr")
    assert timeline(t, g, h)[-1] == "110-115 f"
    assert waits(t, g) == ["10-80 f transfer", "80-110 f transfer"]
    t = play(h, g, f"{first}; {second}; {rest}", "x hbm, a pool, b ddr")
    assert waits(t, g) == ["10-60 f capacity", "60-110 f transfer", "110-140 f transfer"]


@pytest.mark.parametrize(
    ("home", "text", "told"),
    [
        ("hbm", "copy w hbm ddr; detach w ddr; compute f; compute g", ["0-10 d2h w", "10-40 f", "40-45 g"]),
        (
            "ddr",
            "copy w ddr hbm; compute f; detach w hbm; copy w ddr hbm; compute g; detach w hbm",
            ["0-5 h2d w", "5-35 f", "35-40 h2d w", "40-45 g"],
        ),
    ],
)
def test_5_a_detach_of_nothing_is_in_order_like_any_other(home: str, text: str, told: list[str]):
    """`w` has 0 B: its detach leaves no row, and what comes behind still waits for all that was issued before."""
    h = machine(d2h={"latency": "10 ns"}, h2d={"latency": "5 ns"})
    g = graph("w 0 persistent", "f: w ->, 30 ns", "g: w ->, 5 ns")
    t = play(h, g, text, f"w {home}")
    assert timeline(t, g, h) == told
    check_trace(g, h, [Plan("story", h.tier_names, (h.tier_names.index(home),), steps(g, h, text))], t)


@pytest.mark.parametrize("efficiency", [[], [{"size": "1 B", "fraction": 0.5}]])
def test_10_a_link_without_a_limit_takes_all_of_its_bus_whatever_its_channels_and_its_curve(efficiency: list[object]):
    bus = {"bus": {"links": ["h2d"], "bandwidth": "1 GB/s"}}
    more = {"channels": 3, "sharing": "servers", "efficiency": efficiency}
    h = machine("2 kB", h2d={"bandwidth": "inf", **more}, buses=bus)
    g = graph("w 1000 persistent", "f: w ->, 1 ns")
    t = play(h, g, "copy w ddr hbm; compute f; detach w hbm", "w ddr")
    assert timeline(t, g, h) == ["0-1000 h2d w", "1000-1001 f"]
