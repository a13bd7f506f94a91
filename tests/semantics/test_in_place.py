"""Reads in place: a kernel loads a tensor over a link, without a copy (rules 3, 5 and 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rank_stories import cluster, perform
from stories import graph, machine, steps, timeline, waits

from simulator.errors import InvariantError, PlanError
from simulator.metrics import summarise
from simulator.plan import Plan
from simulator.referee import check_plan, check_trace
from simulator.trace import LOADS, Table

OVER = {"loads": "1 GB/s"}


def marked(g, *names):
    """The graph, which lets kernels read these in place."""
    return replace(g, in_place=frozenset(i for i, t in enumerate(g.tensors) if t.name in names))


def loads(trace):
    """What was loaded: ``"0-40 op 0, 40 B"``."""
    rows = trace.loads.whole()
    columns = (rows[name].tolist() for name in ("start_ns", "end_ns", "op", "size_bytes"))
    return [f"{start}-{end} op {op}, {size} B" for start, end, op, size in zip(*columns, strict=True)]


W = marked(graph("w 400 persistent", "f: w ->, 10 ns"), "w")


def test_3_a_kernel_loads_what_is_not_in_its_tier_and_takes_no_room_for_it():
    h = machine("100 B", h2d=OVER)
    t = perform(h, [(W, "compute f")], "w ddr")
    assert timeline(t, W, h) == ["0-400 f"]
    assert loads(t) == ["0-400 op 0, 400 B"]
    assert waits(t, W) == []
    row = summarise(W, h, t)
    assert (row["moved_h2d_bytes"], row["loaded_h2d_bytes"], row["peak_hbm_bytes"]) == (400, 400, 0)
    assert (row["transfer_ns"], row["compute_ns"]) == (0, 400)


def test_3_what_is_valid_in_its_tier_as_issued_is_not_loaded():
    h = machine("400 B", h2d=OVER)
    t = perform(h, [(W, "copy w ddr hbm; compute f; detach w hbm")], "w ddr")
    assert timeline(t, W, h) == ["0-400 h2d w", "400-410 f"]
    assert loads(t) == []


def test_10_a_load_comes_after_launch_and_latency_at_the_rate_of_loads():
    """The time of `f` is modelled, that of `m` measured, with its launch."""
    g = marked(graph("w 40 persistent", "f: w ->, bytes 40", "m: w ->, 7 ns"), "w")
    h = machine(compute={"launch": "3 ns"}, h2d={"loads": "500 MB/s", "latency": "2 ns"})
    t = perform(h, [(g, "compute f; compute m")], "w ddr")
    assert timeline(t, g, h) == ["0-85 f", "85-167 m"]


def test_10_a_kernel_loads_no_more_than_it_reads_and_is_not_faster_than_alone():
    """`f` reads some rows of a table: 10 B of 400; `k` would have all in 400 ns, but computes for 500."""
    g = marked(graph("w 400 persistent", "f: w ->, bytes 10", "k: w ->, 500 ns"), "w")
    h = machine("100 B", h2d=OVER)
    t = perform(h, [(g, "compute f; compute k")], "w ddr")
    assert timeline(t, g, h) == ["0-10 f", "10-510 k"]
    assert loads(t) == ["0-10 op 0, 10 B", "10-410 op 1, 400 B"]


def test_10_a_load_shares_the_link_with_copies():
    """Each gets a half, until `x` is there."""
    g = marked(graph("w 60 persistent, x 20 persistent", "f: w ->, 5 ns", "k: x ->, 5 ns"), "w")
    h = machine(h2d=OVER)
    t = perform(h, [(g, "copy x ddr hbm; compute f; compute k; detach x hbm")], "w ddr, x ddr")
    assert timeline(t, g, h) == ["0-40 h2d x", "0-80 f", "80-85 k"]


def test_10_loads_of_two_ranks_share_the_memory_below_also_if_one_stands_for_both():
    h = cluster(2, ddr={}, h2d=OVER)
    both = [(W, "compute f")] * 2
    assert timeline(perform(h, both, "w ddr"), W, h) == ["0-800 f", "0-800 f"]
    assert timeline(perform(h, both, "w ddr", fold="always"), W, h) == ["0-800 f"]


def test_10_what_is_loaded_does_not_pass_the_compute_tier():
    """`f` loads its 40 B, so that `g` on another stream has the memory for itself."""
    g = marked(graph("w 40 persistent, x 40 persistent", "f: w ->, bytes 40", "g: x ->, bytes 40"), "w")
    h = machine(h2d=OVER)
    t = perform(h, [(g, "compute f; compute g 1")], "w ddr, x hbm")
    assert timeline(t, g, h) == ["0-40 f", "0-40 g"]
    t = perform(h, [(replace(g, in_place=frozenset()), "compute f; compute g 1")], "w hbm, x hbm")
    assert timeline(t, g, h) == ["0-80 f", "0-80 g"]


def test_5_a_detach_waits_until_the_kernel_has_loaded():
    """Meanwhile `w` comes in, at half the rate; then it leaves DDR."""
    g = marked(graph("w 40 persistent", "f: w ->, 5 ns", "k: w ->, 5 ns"), "w")
    h = machine(h2d=OVER)
    t = perform(h, [(g, "compute f; copy w ddr hbm; detach w ddr; compute k; copy w hbm ddr; detach w hbm")], "w ddr")
    assert timeline(t, g, h) == ["0-80 f", "0-80 h2d w", "80-85 k", "80-120 d2h w"]
    places = t.residencies.whole()
    freed = zip(places["time_ns"].tolist(), places["tier"].tolist(), places["delta_bytes"].tolist(), strict=True)
    assert next(row for row in freed if row[2] < 0) == (80, h.tier_names.index("ddr"), -40)


def test_3_of_several_tiers_the_first_link_counts_and_what_is_under_way_there_is_waited_for():
    """`w` moves from the pool into DDR, from which `f` then loads it."""
    g = marked(graph("w 40 persistent", "f: w ->, 5 ns"), "w")
    h = machine(h2d=OVER, up={"source": "pool", "target": "ddr"}, down={"source": "ddr", "target": "pool"})
    t = perform(h, [(g, "copy w pool ddr; compute f; detach w ddr")], "w pool")
    assert timeline(t, g, h) == ["0-40 up w", "40-80 f"]
    assert waits(t, g) == ["0-40 f transfer"]


def test_5_without_such_a_link_or_a_mark_it_is_a_plan_error():
    for g, h in ((W, machine()), (replace(W, in_place=frozenset()), machine(h2d=OVER))):
        plan = Plan("story", h.tier_names, (h.tier_names.index("ddr"),), steps(g, h, "compute f"))
        with pytest.raises(PlanError, match="a tensor that an action reads is valid"):
            check_plan(g, h, plan)


SPOILT = {
    "left out": ({}, "a compute loads in place all of each tensor that is valid only elsewhere"),
    "of another size": ({"size_bytes": 399}, "a compute loads in place"),
    "over another link": ({"link": 0}, "a compute loads in place"),
    "longer than the kernel": ({"end_ns": 401}, "a compute loads while it runs"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_the_referee_refuses_loads_that_are(how):
    h = machine("100 B", h2d=OVER)
    t = perform(h, [(W, "compute f")], "w ddr")
    changed, law = SPOILT[how]
    rows = {name: column.copy() for name, column in t.loads.whole().items()}
    for name, value in changed.items():
        rows[name][:] = value
    table = Table(LOADS)
    if changed:
        table.append(b"".join(int(rows[name][0]).to_bytes(8, "little", signed=True) for name in LOADS))
    plan = Plan("story", h.tier_names, (1,), steps(W, h, "compute f"))
    with pytest.raises(InvariantError, match=law):
        check_trace(W, h, [plan], replace(t, loads=table))


def test_the_referee_refuses_a_kernel_that_loads_too_fast():
    """On a machine that loads, or carries, at half the rate the same trace breaks a law."""
    t = perform(machine("100 B", h2d=OVER), [(W, "compute f")], "w ddr")
    for link, law in (
        ({"loads": "500 MB/s"}, "a compute that loads takes"),
        ({**OVER, "bandwidth": "500 MB/s"}, "a comp"),
    ):
        h = machine("100 B", h2d=link)
        with pytest.raises(InvariantError, match=law):
            check_trace(W, h, [Plan("story", h.tier_names, (1,), steps(W, h, "compute f"))], t)
    two, h = cluster(2, ddr={}, h2d=OVER), cluster(2, ddr={"bandwidth": "500 MB/s"}, h2d=OVER)
    t = perform(two, [(W, "compute f")] * 2, "w ddr")
    with pytest.raises(InvariantError, match=r"bus 'memory.ddr'.*carries at most its bandwidth"):
        check_trace(W, h, [Plan("story", h.tier_names, (1,), steps(W, h, "compute f"))] * 2, t)
