"""What reports say and draw of several ranks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import folding
import numpy as np
import orjson
import pytest
from matplotlib.text import Text
from rank_stories import cluster, perform, team

import simulator as hosim
from simulator import metrics
from simulator.graph import Graph, Job
from simulator.metrics.rows import Row, by_place, chosen, of_ranks
from simulator.report import drawing, html, perfetto, pictures, timeline
from simulator.report.readings import usages
from simulator.report.sentences import crowded, sentences
from simulator.report.tables import rank_columns
from simulator.report.words import omitted

WORKLOADS = Path(__file__).parents[2] / "workloads"
SCENARIO = """
schema: hosim/scenario/1
name: eight
hardware: cloudmatrix384_node
workload: eight.yaml
homes: {optimizer_state: ddr, activation: free}
policies: [static]
"""
PARALLEL = "parallel: {ranks: all, data: 2, tensor: 2, pipeline: 2, zero_stage: 1, micro_batches: 2}\nsteps: 2\n"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    """A step of a small model on eight ranks, two stages of two by two."""
    folder = tmp_path_factory.mktemp("inputs")
    text = (WORKLOADS / "tiny_train.yaml").read_text().replace("name: tiny_train", "name: eight")
    text = text.replace("steps: 2\n", PARALLEL, 1).replace("  steps: the", "  parallel: small\n  steps: the")
    (folder / "eight.yaml").write_text(text)
    (folder / "scenario.yaml").write_text(SCENARIO)
    return folder / "scenario.yaml"


@pytest.fixture(scope="module")
def whole(scenario):
    with folding.folded("never"):
        return hosim.run(scenario)["static"]


@pytest.fixture(scope="module")
def folded(scenario):
    with folding.folded("always"):
        return hosim.run(scenario)["static"]


# which ranks are shown


def row_of(stands_in, graph_of, slowest=None, each=4):
    g = Graph("g", (), ())
    job = Job("job", (g,) * (max(graph_of) + 1), tuple(graph_of), tuple(f"stage {i}" for i in range(max(graph_of) + 1)))
    hardware = SimpleNamespace(topology=SimpleNamespace(devices_per_node=each))
    trace = SimpleNamespace(stands_in=tuple(stands_in))
    return Row("row", "row", {"slowest_rank": slowest}, job, hardware, budget_bytes=0, trace=trace)


def test_of_few_ranks_all_are_shown():
    row = row_of(range(4), [0, 0, 1, 1])
    assert chosen(row, 4) == [0, 1, 2, 3]
    assert omitted(row, [0, 1, 2, 3]) == ""


def test_of_many_ranks_the_first_of_each_program_and_the_slowest_are_shown():
    row = row_of(range(16), [0] * 9 + [1] * 7, slowest=14)
    assert chosen(row, 7) == [0, 1, 2, 3, 4, 9, 14]
    assert omitted(row, chosen(row, 7)) == "7 of 16 ranks are shown"


def test_folded_ranks_are_shown_by_the_one_that_stands_for_them():
    row = row_of([0] * 8 + [8] * 8, [0] * 8 + [1] * 8, slowest=14)
    assert chosen(row, 1) == [0]
    assert chosen(row, 7) == [0, 8]
    said = "2 of 16 ranks are shown; 14 do exactly the same as one of these"
    assert omitted(row, [0, 8]) == said


def test_a_rank_is_a_row_of_its_own(whole, folded):
    views = of_ranks(whole, whole.simulated)
    assert [view.rank for view in views] == list(range(8))
    assert [view.rank_name for view in views][::4] == ["rank 0, stage 0", "rank 4, stage 1"]
    assert [view.rank_name for view in of_ranks(folded, folded.simulated)] == [
        "rank 0, stage 0, stands for 4 ranks",
        "rank 4, stage 1, stands for 4 ranks",
    ]
    assert [view.summary["step_ns"] for view in views[::4]] == whole.ranks["step_ns"].tolist()[::4]


# what they share


def counters(row):
    """By process and name, the times [ns] and values of each counter."""
    found = defaultdict(list)
    for e in map(orjson.loads, perfetto.events(row)):
        if e["ph"] == "C":
            (value,) = e["args"].values()
            found[e["pid"], e["name"]].append((round(e["ts"] * 1000), value))
    return found


@pytest.mark.parametrize("fold", ["whole", "folded"])
def test_the_rate_of_a_bus_holds_all_that_went_over_it(fold, request):
    """The integral of the rate is what was copied."""
    row = request.getfixturevalue(fold)
    rates = {name.split(":")[0]: values for (_, name), values in counters(row).items() if ": rate" in name}
    assert set(rates) == {"ddr_in", "ddr_out"}
    for bus, values in rates.items():
        time, rate = np.array(values).T
        assert rate[-1] == 0
        area = (rate[:-1] * np.diff(time)).sum() / 1e9
        link = row.hardware.buses[bus].links[0]
        moved = 0
        for view in of_ranks(row, row.simulated):
            spans = view.trace.spans.whole()
            mine = (spans["kind"] == 1) & (spans["track"] == row.hardware.link_names.index(link))
            moved += view.stands_for * sum(view.graph.tensors[t].size_bytes for t in spans["item"][mine].tolist())
        assert moved > 0
        assert area == pytest.approx(moved, rel=1e-4)


def crowd():
    """Two copies of a node share a bus of 10 GB/s: the first goes at all of it until the second comes at 4 ns."""
    pool = {"pool": {"links": ["h2d"], "bandwidth": "10 GB/s", "scope": "node"}}
    machine = cluster(2, buses=pool, hbm="1 kB", h2d={"bandwidth": "10 GB/s"})
    early = team("w 80 persistent", "f: w ->, 1 ns", groups={})
    late = team("w 60 persistent", "g: ->, 4 ns", "h: ->, 1 ns", "f: w ->, 1 ns", groups={})
    plans = [(early, "copy w ddr hbm; compute f; detach w hbm")]
    plans += [(late, "compute g; compute h; copy w ddr hbm; compute f; detach w hbm")]
    trace = perform(machine, plans, "w ddr")
    job = Job("story", (early, late), (0, 1), ("early", "late"))
    summary = metrics.summarise(job, machine, trace)
    return Row("story", "story", summary, job, machine, 1000, trace=trace)


@pytest.mark.parametrize("which", ["whole", "folded", "crowd"])
def test_no_counter_with_a_cap_ever_exceeds_it(which, request):
    row = crowd() if which == "crowd" else request.getfixturevalue(which)
    tiers = {t: row.budget_bytes if t == row.hardware.compute_tier else row.hardware.tiers[t].usable_bytes
             for t in row.hardware.tiers}  # fmt: skip
    caps = tiers | {name: bus.bandwidth_bytes_per_s for name, bus in row.hardware.buses.items()}
    found = Counter()
    for e in map(orjson.loads, perfetto.events(row)):
        if e["ph"] == "C" and re.search(r"\((cap|capacity|budget) ", e["name"]):
            what = re.split("[: ]", e["name"])[0]
            found[what] += 1
            assert max(e["args"].values()) <= caps[what], e
    assert {name for name, bus in row.hardware.buses.items() if bus.scope != "device"} <= set(found)
    assert min(found.values()) > 1


def test_a_counter_draws_the_true_rate():
    (rate,) = (values for (_, name), values in counters(crowd()).items() if name.startswith("pool: rate"))
    assert rate == [(0, 10**10), (14, 0)], "it is the same when the second copy comes, and when the first is done"


def test_shared_tiers_are_counted_over_all_ranks(whole, folded):
    for row in (whole, folded):
        (usage,) = usages(row)
        assert (usage.scope, usage.instance, usage.tier) == ("node", 0, "ddr")
        last = np.append(usage.time_ns[1:] != usage.time_ns[:-1], True)
        assert usage.total_bytes[last].max() <= row.summary["peak_ddr_bytes"]
        assert usage.total_bytes[last].min() >= 0
        assert usage.total_bytes.max() == row.summary["peak_ddr_bytes"]


# Perfetto


def threads_of(events):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_a_trace_has_a_process_for_each_rank_and_one_for_what_they_share(whole):
    events = list(map(orjson.loads, perfetto.events(whole)))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        **dict.fromkeys(range(4), "static, stage 0, rank"),
        **dict.fromkeys(range(4, 8), "static, stage 1, rank"),
        8: "shared in node 0, id",
    }
    threads = threads_of(events)
    assert {"steps", "stream 0", "stream 0 stalls", "stream 1", "h2d #0"} <= set(threads.values())
    slices = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            slices[e["pid"], e["tid"]].append((round(e["ts"] * 1000), round(e["dur"] * 1000)))
    assert set(slices) <= set(threads)
    for found in slices.values():
        found.sort()
        assert all(start + took <= later for (start, took), (later, _) in pairwise(found))
    found = set(counters(whole))
    assert any(pid == 8 and name.startswith("ddr_in: rate (cap ") for pid, name in found)
    assert {pid for pid, name in found if name.startswith("ddr")} == {8}
    assert {pid for pid, name in found if name.startswith("hbm")} == set(range(8))


def test_folded_ranks_are_named_with_how_many_they_stand_for(folded):
    events = list(map(orjson.loads, perfetto.events(folded)))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[0] == "static, stage 0 x4, rank"
    assert names[4] == "static, stage 1 x4, rank"
    labels = [e["args"]["labels"] for e in events if e["name"] == "process_labels"]
    assert labels == ["2 of 8 ranks are shown; 6 do exactly the same as one of these"]


def test_of_a_large_job_some_ranks_are_written(whole, monkeypatch):
    monkeypatch.setattr(perfetto, "MOST_RANKS", 2)
    events = list(map(orjson.loads, perfetto.events(whole)))
    assert {e["pid"] for e in events if e["ph"] == "X"} == {0, 4}
    assert "2 of 8 ranks are shown" in next(e["args"]["labels"] for e in events if e["name"] == "process_labels")


# pictures, page and sentences


def texts(picture):
    picture.draw_without_rendering()  # names the ticks
    return {text.get_text().strip() for text in picture.findobj(Text)}


def test_the_timeline_names_ranks_causes_and_groups(whole, folded):
    assert {"rank 0, stage 0", "rank 7, stage 1", "collective: tensor", "stall: peer"} <= texts(
        timeline.timeline(whole).figure
    )
    said = texts(timeline.timeline(folded).figure)
    assert "rank 4, stage 1, stands for 4 ranks" in said
    assert "2 of 8 ranks are shown; 6 do exactly the same as one of these" in said


def test_ranks_that_never_meet_have_a_timeline():
    assert {"rank 0, early", "rank 1, late"} <= texts(timeline.timeline(crowd()).figure)


def test_a_picture_shows_what_each_rank_spends_its_step_on(whole, folded):
    for row in (whole, folded):
        assert {"compute", "stall: peer", "stall: collective", "rank", "7"} <= texts(pictures.by_rank(row).figure)


def test_what_a_rank_waits_for_is_that_of_its_compute_stream(whole):
    view = of_ranks(whole, [0])[0]
    waited = by_place(view)
    assert sum(one["ns"] for one in waited) == view.summary["stall_ns"]
    assert sum(one["ns"] for one in waited if one["cause"] == "peer") == view.summary["wait_peer_ns"]


def test_sentences_tell_how_ranks_fare(whole, folded):
    for row in (whole, folded):
        said = "".join(sentences([row]))
        assert re.search(r"the 8 ranks of \w+ compute for [\d.]+ % of the time and wait for peers for [\d.]+ %", said)


def test_the_page_has_a_table_of_ranks(whole, folded, tmp_path):
    heads = [column.head for column in rank_columns(of_ranks(whole, whole.simulated))]
    assert heads[:4] == ["rank", "runs", "step", "compute"]
    assert {"collectives", "masked", "bubble", "utilisation", "peak hbm"} <= set(heads)
    provenance = {"hosim": "0", "fitted": [], "assumed": [], "inputs": [], "switches": {}, "set": {}}
    said = {"sentences": [], "expectations": [], "stalls": {"static": by_place(folded)}, "provenance": provenance}
    pages = html.Pages(tmp_path, [folded.label], lambda row, folder: None)
    pages.report(folded.case.loaded.scenario, said, [pages.add(folded) | {"row": folded}])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("data:image/png") == 3, "the table, the timeline, and what each rank does"
    assert "<h3>The ranks</h3>" in text
    assert "2 of 8 ranks are shown" in text
    assert "What a step waits for (rank 4, the slowest)" in text
    assert '<td class="left">stage 1</td>' in text


def test_of_crowded_links_the_worst_is_named_in_each_row():
    rows = [
        SimpleNamespace(label=label, is_ok=True, summary={"crowding_in": times, "crowding_out": 1.06})
        for label, times in (("one", 2.0), ("two", 3.0), ("three", 1.04))
    ]
    times = "2.00x as long as alone under one and 3.00x as long as alone under two"
    assert crowded(rows) == [f"transfers of ranks that share in take {times}"]


def test_a_row_that_has_not_settled_says_so(whole):
    """Only where ranks that meet differ, in a run that has warmed up."""
    step = whole.summary["step_ns"]

    def said(least, row=whole):
        return [text for text in sentences([replace(row, summary={**whole.summary, "least_step_ns": least})])
                if "settled" in text]  # fmt: skip

    assert said(step) == said(int(step / 1.004)) == []
    (warning,) = said(step // 2)
    assert warning.startswith("warning: static has not settled: the measured step takes ")
    assert warning.endswith("set steps of the workload to more than 2.")
    graphs = tuple(replace(graph, steps=1) for graph in whole.job.graphs)
    once = replace(whole, job=replace(whole.job, graphs=graphs))
    assert said(step // 2, row=once) == []
    turns = replace(whole, summary={**whole.summary, "period": 2, "period_ns": 3 * step // 2})
    (warning,) = [text for text in sentences([turns]) if "alternate" in text]
    assert warning.startswith("warning: steps of static alternate: 2 of them take ")


def test_a_result_draws_its_ranks_into_axes_that_one_has(whole):
    ax = drawing.Picture(1.0).subplots()
    assert whole.by_rank(ax) is ax
    assert ax.get_xlabel() == "rank"
    assert len(ax.patches) == len(whole.by_rank().patches)


def test_no_bar_is_too_narrow_to_be_seen():
    """Bars of a thousandth of a pixel, some pixels apart: each colours a column where it lies."""
    for count in (100, 200):
        picture = drawing.Picture(1.0)
        ax = picture.subplots()
        ax.set_xlim(0, 1000)
        ax.set_ylim(1, 0)
        ax.axis("off")
        drawing.settle(ax)
        start = np.linspace(10_000, 990_000, count).astype(np.int64)
        drawing.bars(ax, (0.0, 1.0), (start, start + 1), np.zeros(count, np.int64), ["#0000ff"], 1000)
        picture.canvas.draw()
        row = np.asarray(picture.canvas.buffer_rgba())[int(picture.bbox.height - ax.bbox.y0) - 50, :, 0]
        at = ax.transData.transform([(x / 1000, 0) for x in start.tolist()])[:, 0]
        assert all((row[int(x) - 1 : int(x) + 2] < 128).any() for x in at.tolist())


def test_a_pixel_is_divided_by_height_as_its_time_is():
    """A million ops of 3 us, each after a stall of 1 us: three quarters of the lane are compute, one is stall."""
    picture = drawing.Picture(1.0)
    ax = picture.subplots()
    ax.set_xlim(0, 4000)
    ax.set_ylim(1, 0)
    ax.axis("off")
    drawing.settle(ax)
    start = 4000 * np.arange(1_000_000)
    starts, ends = np.concatenate([start, start + 1000]), np.concatenate([start + 1000, start + 4000])
    drawing.bars(ax, (0.0, 1.0), (starts, ends), np.repeat([1, 0], 1_000_000), ["#000000", "#ff0000"], 10**6)
    picture.canvas.draw()
    (left, low), (right, high) = (corner.astype(int) for corner in ax.bbox.get_points())
    seen = np.asarray(picture.canvas.buffer_rgba())[::-1][low + 1 : high - 1, left + 1 : right - 1, :3]
    red = (seen == (255, 0, 0)).all(axis=2)
    assert red[-20:].all()
    assert (seen[:75] == 0).all()
    assert 0.24 < red.mean() < 0.26


def test_a_blocked_job_is_told_without_figures(whole):
    """A trace that was cut: the row is blocked, and what there is can still be drawn."""
    trace = replace(whole.trace, status="blocked", blocked=("rank 0: op 'a' waits for rank 1",))
    summary = {**whole.summary, "status": "blocked", "step_ns": None, "slowest_rank": None}
    row = replace(whole, trace=trace, summary=summary)
    assert any(text.startswith("static: blocked (") for text in texts(timeline.timeline(row).figure))
    assert list(map(orjson.loads, perfetto.events(row)))
