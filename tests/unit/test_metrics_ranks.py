"""What several ranks come to, counted by hand."""

from __future__ import annotations

import pytest
from rank_stories import cluster, perform, team

from simulator import metrics
from simulator.errors import InvariantError
from simulator.graph import Job
from simulator.metrics.figures import FIGURES, Figure, registered
from simulator.trace import CAUSES

PAIR = {"all": ((0, 1),)}
OPS = ("sum: a -> a, all_reduce all 40", "g: b -> b, 30 ns", "h: a -> a, 5 ns")
EARLY = team("a 40, b 1", "f: -> a b, 5 ns", *OPS, groups=PAIR)
LATE = team("a 40, b 1", "f: -> a b, 50 ns", *OPS, groups=PAIR)
JOB = Job("story", (EARLY, LATE), (0, 1), ("early", "late"))
BESIDE = "compute f; compute sum 1; compute g; compute h; detach a hbm; detach b hbm"
MACHINE = cluster(2)


def trace(text=BESIDE, machine=MACHINE, **more):
    return perform(machine, [(EARLY, text), (LATE, text)], **more)


def test_each_rank_adds_up_and_masks_its_own_communication():
    early, late = metrics.by_rank(JOB, MACHINE, trace())
    chosen = ("step_ns", "compute_ns", "wait_peer_ns", "wait_collective_ns", "stall_ns", "collective_ns", "masked_ns")
    assert [early[column] for column in chosen] == [95, 40, 15, 40, 55, 40, 0]
    assert [late[column] for column in chosen] == [95, 85, 0, 10, 10, 40, 30]
    assert (late["masked_fraction"], late["utilisation"], early["bubble_fraction"]) == (30 / 40, 85 / 95, 15 / 95)


def test_a_row_is_the_slowest_ranks_and_its_shares_are_of_all():
    row = metrics.summarise(JOB, MACHINE, trace())
    found = row["ranks"], row["slowest_rank"], row["step_ns"], row["compute_ns"]
    assert found == (2, 1, 95, 85), "of two that meet, the one that the other waits for"
    shares = (row["masked_fraction"], row["utilisation"], row["bubble_fraction"])
    assert shares == (30 / 80, 125 / 190, 15 / 190)
    assert set(row) <= set(metrics.columns(MACHINE))


@pytest.mark.parametrize("over_ranks", ["sum", "most"])
def test_a_figure_of_all_ranks_that_nothing_counts_is_refused(monkeypatch, over_ranks):
    new = Figure("retries", "count", "retries", "Retries.", over_ranks=over_ranks)
    monkeypatch.setattr("simulator.metrics.figures.FIGURES", registered(*FIGURES, new))
    must = f"a figure with over_ranks='{over_ranks}' is counted for each rank, found nothing; count it there"
    with pytest.raises(InvariantError, match=f"retries: {must}"):
        metrics.summarise(JOB, MACHINE, trace())


def test_the_slowest_rank_is_the_one_with_the_longest_step():
    longer = team("a 40, b 1", "f: -> a b, 50 ns", *OPS[:2], "h: a -> a, 6 ns", groups=PAIR)
    run = perform(MACHINE, [(EARLY, BESIDE), (longer, BESIDE)])
    row = metrics.summarise(Job("story", (EARLY, longer), (0, 1), ("a", "b")), MACHINE, run)
    assert (row["slowest_rank"], row["step_ns"], row["compute_ns"]) == (1, 96, 86)


def test_of_ranks_with_equally_long_steps_the_last_to_end_is_the_slowest():
    pair = {"pair": ((0, 1),)}
    first = team("a 5", "f: -> a, 10 ns", "s: a ->, send pair 5", groups=pair, steps=2)
    last = team("a 5", "r: -> a, recv pair 5", "g: a ->, 10 ns", groups=pair, steps=2)
    run = perform(MACHINE, [(first, "compute f; compute s 1"), (last, "compute r 1; compute g")])
    job = Job("story", (first, last), (0, 1), ("first", "last"))
    assert [(row["warmup_ns"], row["step_ns"]) for row in metrics.by_rank(job, MACHINE, run)] == [(10, 15), (25, 15)]
    assert metrics.summarise(job, MACHINE, run)["slowest_rank"] == 1


def test_of_ranks_that_begin_in_turn_the_last_step_counts_in_which_all_are_at_work():
    """Steps of 10 ns; one ends them at 10, 20 and 30, the other at 20, 30 and 40: both work until 30."""
    g = team("a 1", "f: -> a, 10 ns", groups={}, steps=3)
    run = perform(MACHINE, [(g, "compute f; detach a hbm")] * 2, starts=(0, 10))
    found = metrics.by_rank(Job("turns", (g,), (0, 0), ("g",)), MACHINE, run)
    assert [(row["warmup_ns"], row["step_ns"]) for row in found] == [(20, 10), (20, 10)]


def test_a_collective_on_the_compute_stream_is_a_wait_for_it_and_masks_nothing():
    early, late = metrics.by_rank(JOB, MACHINE, trace(BESIDE.replace("sum 1", "sum")))
    assert [late[column] for column in ("step_ns", "compute_ns", "wait_collective_ns")] == [125, 85, 40]
    assert [early[column] for column in ("compute_ns", "wait_collective_ns", "wait_peer_ns")] == [40, 40, 45]
    assert early["masked_fraction"] == late["masked_fraction"] == 0


@pytest.mark.parametrize(("nodes", "ddr"), [(1, 120), (2, 60), (4, 30)])
@pytest.mark.parametrize("fold", ["never", "auto"])
def test_peaks_are_those_of_the_fullest_instance_and_moved_bytes_of_all_ranks(nodes, ddr, fold):
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    machine = cluster(4, nodes, scope="supernode")
    run = perform(machine, [(g, "copy w ddr hbm; compute f; detach w hbm")] * 4, "w ddr", fold=fold)
    row = metrics.summarise(g, machine, run)
    assert (row["peak_hbm_bytes"], row["peak_ddr_bytes"], row["moved_h2d_bytes"]) == (30, ddr, 120)
    assert metrics.Frames(g, machine, run).memory().groupby("tier")["used_bytes"].max()["ddr"] == ddr


def test_tables_name_ranks_programs_and_what_each_waited_for():
    frames = metrics.Frames(JOB, MACHINE, trace())
    ranks = frames.ranks()
    assert ranks[["rank", "stands_in", "program", "step_ns"]].to_numpy().tolist() == [
        [0, 0, "early", 95], [1, 1, "late", 95],
    ]  # fmt: skip
    waits = frames.waits().query("stream == 0")[["rank", "op", "cause", "on", "blocker", "start_ns"]]
    assert waits.to_numpy().tolist() == [
        [0, "step0/h", "peer", "rank 1", "", 35],
        [0, "step0/h", "collective", "", "sum", 50],
        [1, "step0/h", "collective", "", "sum", 80],
    ]
    spans = frames.spans()
    assert spans["start_ns"].is_monotonic_increasing
    assert sorted(spans["rank"].unique()) == [0, 1]
    assert sorted(frames.residencies()["rank"].unique()) == [0, 1]


def test_a_run_that_blocks_counts_its_ranks_and_nothing_else():
    groups = {"one": ((0, 1),), "two": ((0, 1),)}
    g = team("a 40, b 40", "sum: -> a, all_reduce one 40", "add: -> b, all_reduce two 40", groups=groups)
    run = perform(MACHINE, [(g, "compute sum; compute add"), (g, "compute add; compute sum")])
    row = metrics.summarise(g, MACHINE, run)
    assert (row["status"], row["ranks"], row["step_ns"], row["peak_hbm_bytes"]) == ("blocked", 2, None, 40)
    assert all(row[f"wait_{cause}_ns"] is None for cause in CAUSES[:-1])


def pools(steps):
    """One rank hands over what it makes in 10 ns to one that takes 30 ns for it, over 1 ns."""
    pair = {"next": ((0, 1),)}
    gives = team("a 1", "f: -> a, 10 ns", "give: a ->, send next 1", groups=pair, steps=steps)
    takes = team("b 1", "take: -> b, recv next 1", "g: b ->, 30 ns", groups=pair, steps=steps)
    texts = "compute f; compute give 1; detach a hbm", "compute take 1; compute g; detach b hbm"
    run = perform(cluster(2), list(zip((gives, takes), texts, strict=True)))
    return metrics.summarise(Job("pools", (gives, takes), (0, 1), ("gives", "takes")), cluster(2), run)


def test_ranks_that_meet_have_settled_when_their_steps_are_alike():
    settled = pools(6)
    assert settled["least_step_ns"] == settled["step_ns"] == 31
    early = pools(2)
    assert early["step_ns"] == 31
    assert early["least_step_ns"] < 31


def test_ranks_that_never_meet_need_not_be_alike():
    quick = team("a 1", "f: -> a, 10 ns", groups={}, steps=2)
    slow = team("a 1", "f: -> a, 30 ns", groups={}, steps=2)
    run = perform(cluster(2), [(quick, "compute f; detach a hbm"), (slow, "compute f; detach a hbm")])
    row = metrics.summarise(Job("two", (quick, slow), (0, 1), ("quick", "slow")), cluster(2), run)
    assert row["least_step_ns"] == row["step_ns"] == 30


def test_what_waits_for_peers_and_collectives_is_communication_and_what_is_masked_is_not():
    beside = metrics.summarise(JOB, MACHINE, trace())
    inline = metrics.summarise(JOB, MACHINE, trace(BESIDE.replace("sum 1", "sum")))
    columns = ("collective_fraction", "communication_fraction")
    assert [beside[column] for column in columns] == [40 / 95, 10 / 95]
    assert [inline[column] for column in columns] == [40 / 125, 40 / 125]


@pytest.mark.parametrize(("nodes", "ddr"), [(1, 120), (2, 60), (4, 30)])
@pytest.mark.parametrize("fold", ["never", "auto"])
def test_memory_in_use_is_the_mean_over_time_and_instances_of_the_capacity(nodes, ddr, fold):
    """Ranks hold the 30 B of a copy in HBM all the time, and those at home in what nodes share."""
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    machine = cluster(4, nodes, scope="supernode", hbm="60 B")
    run = perform(machine, [(g, "copy w ddr hbm; compute f; detach w hbm")] * 4, "w ddr", fold=fold)
    row = metrics.summarise(g, machine, run)
    assert row["in_use_hbm_fraction"] == row["peak_in_use_hbm_fraction"] == 30 / 60
    twice = 0, 2 * row["step_ns"]
    assert metrics.mean_bytes(machine, run, twice) == {"hbm": 15, "ddr": ddr}
    assert set(row) <= set(metrics.columns(machine))


def test_ranks_that_are_unlike_count_each_in_the_mean():
    """Both hold the 40 B for all of 95 ns; one frees the other 50 B once g has ended at 35 ns, the other at 80 ns."""
    graphs = [team("a 40, b 50", f"f: -> a b, {ns} ns", *OPS, groups=PAIR) for ns in (5, 50)]
    run = perform(MACHINE, [(g, BESIDE) for g in graphs])
    row = metrics.summarise(Job("story", tuple(graphs), (0, 1), ("early", "late")), MACHINE, run)
    mean_bytes = (2 * 95 * 40 + (35 + 80) * 50) // (2 * 95)
    assert metrics.mean_bytes(MACHINE, run, (0, 95))["hbm"] == mean_bytes == 70
    assert (row["in_use_hbm_fraction"], row["peak_in_use_hbm_fraction"]) == (70 / 100, 90 / 100)


def test_what_is_reserved_and_lost_is_in_use_as_a_driver_shows_it():
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    machine = cluster(2)
    tiers = {**machine.tiers, "hbm": machine.tiers["hbm"].model_copy(update={"reserved_bytes": 20})}
    machine = machine.model_copy(update={"tiers": tiers})
    row = metrics.summarise(g, machine, perform(machine, [(g, "compute f")] * 2, "w hbm"))
    assert row["in_use_hbm_fraction"] == row["peak_in_use_hbm_fraction"] == 50 / 100
