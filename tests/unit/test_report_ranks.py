"""What reports say and draw of several ranks."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import rc_context

import simulator as hosim
from simulator.graph import Graph, Job
from simulator.report import figures, html, meetings, perfetto, ranks, ranks_figure
from simulator.report.sentences import sentences
from simulator.report.stalls import by_cause, waits_for_peers
from simulator.report.text import rank_columns
from simulator.report.usage import shared_usages

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
def scenarios(tmp_path_factory):
    """A step of a small model on eight ranks, two stages of two by two: by how they are folded."""
    folder = tmp_path_factory.mktemp("inputs")
    text = (WORKLOADS / "tiny_train.yaml").read_text().replace("name: tiny_train", "name: eight")
    text = text.replace("steps: 2\n", PARALLEL, 1).replace("  steps: the", "  parallel: small\n  steps: the")
    (folder / "eight.yaml").write_text(text)
    for fold in ("never", "always"):
        (folder / f"{fold}.yaml").write_text(SCENARIO + f"fold: {fold}\n")
    return {fold: folder / f"{fold}.yaml" for fold in ("never", "always")}


@pytest.fixture(scope="module")
def whole(scenarios):
    return hosim.run(scenarios["never"])["static"]


@pytest.fixture(scope="module")
def folded(scenarios):
    return hosim.run(scenarios["always"])["static"]


# which ranks are shown


def row_of(stands_in, graph_of, slowest=None, each=4):
    g = Graph("g", (), ())
    job = Job("job", (g,) * (max(graph_of) + 1), tuple(graph_of), tuple(f"stage {i}" for i in range(max(graph_of) + 1)))
    hardware = SimpleNamespace(topology=SimpleNamespace(devices_per_node=each))
    return SimpleNamespace(
        trace=SimpleNamespace(stands_in=tuple(stands_in)), job=job, summary={"slowest_rank": slowest}, hardware=hardware
    )


def test_of_few_ranks_all_are_shown():
    row = row_of(range(4), [0, 0, 1, 1])
    assert ranks.chosen(row, 4) == [0, 1, 2, 3]
    assert ranks.omitted(row, [0, 1, 2, 3]) == ""


def test_of_many_ranks_the_first_of_each_program_and_node_and_the_slowest_are_shown():
    row = row_of(range(16), [0] * 9 + [1] * 7, slowest=14)
    assert ranks.chosen(row, 7) == [0, 1, 4, 8, 9, 12, 14]
    assert ranks.omitted(row, ranks.chosen(row, 7)) == (
        "7 of 16 ranks are shown; of those with rows of their own, the first of each program and node, the slowest, "
        "and the lowest numbers"
    )


def test_folded_ranks_are_shown_by_the_one_that_stands_for_them():
    row = row_of([0] * 8 + [8] * 8, [0] * 8 + [1] * 8, slowest=14)
    assert ranks.chosen(row, 1) == [0]
    assert ranks.chosen(row, 7) == [0, 8]
    said = "2 of 16 ranks are shown; 14 do exactly what the one does that stands for them"
    assert ranks.omitted(row, [0, 8]) == said


def test_a_rank_is_a_row_of_its_own(whole, folded):
    views = ranks.of_ranks(whole)
    assert [view.rank for view in views] == list(range(8))
    assert [view.name + ", " + view.says for view in views][::4] == ["rank 0, stage 0", "rank 4, stage 1"]
    assert [(view.rank, view.says) for view in ranks.of_ranks(folded)] == [
        (0, "stage 0, stands for 4 ranks"),
        (4, "stage 1, stands for 4 ranks"),
    ]
    assert [view.summary["step_ns"] for view in views[::4]] == whole.ranks["step_ns"].tolist()[::4]


# meetings and what they load


def test_members_of_a_meeting_are_listed_alike(whole):
    met = defaultdict(list)
    for view in ranks.of_ranks(whole):
        spans = view.trace.spans.whole()
        for one in meetings.of_rank(view):
            times = int(spans["start_ns"][one.span]), int(spans["end_ns"][one.span])
            met[one.what.group, one.members, one.number].append((view.rank, *times))
    assert len(met) > 20
    for (_, members, _), parts in met.items():
        assert sorted(rank for rank, *_ in parts) == sorted(members)
        assert len({tuple(times) for _, *times in parts}) == 1


@pytest.mark.parametrize("fold", ["whole", "folded"])
def test_the_load_of_a_bus_holds_all_that_went_over_it(fold, request):
    """The integral of the mean rate is what was copied, and what collectives sent through the ports."""
    row = request.getfixturevalue(fold)
    views = ranks.of_ranks(row)
    loads = {load.bus: load for load in meetings.loads(row, views)}
    assert set(loads) == {"ddr_in", "ddr_out"}
    for load in loads.values():
        assert load.flows[-1] == 0
        assert load.flows.max() >= 4
        area = (load.mean_bytes_per_s[:-1] * np.diff(load.time_ns)).sum() / 1e9
        link = row.hardware.buses[load.bus].links[0]
        moved = 0
        for view in views:
            spans = view.trace.spans.whole()
            mine = (spans["kind"] == 1) & (spans["track"] == row.hardware.link_names.index(link))
            moved += view.stands_for * sum(view.graph.tensors[t].size_bytes for t in spans["item"][mine].tolist())
        assert moved > 0
        assert area == pytest.approx(moved, rel=1e-4)


def test_shared_tiers_are_counted_over_all_ranks(whole, folded):
    for row in (whole, folded):
        ((scope, instance, usage),) = shared_usages(row, ranks.of_ranks(row))
        assert (scope, instance, usage.tier) == ("node", 0, "ddr")
        last = np.append(usage.time_ns[1:] != usage.time_ns[:-1], True)
        assert usage.total_bytes[last].max() <= row.summary["peak_ddr_bytes"]
        assert usage.total_bytes[last].min() >= 0
        assert usage.total_bytes.max() == row.summary["peak_ddr_bytes"]


# Perfetto


def threads_of(events):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_a_trace_has_a_process_for_each_rank_and_one_for_what_they_share(whole):
    events = list(perfetto.events(whole))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        **dict.fromkeys(range(4), "static, stage 0, rank"),
        **dict.fromkeys(range(4, 8), "static, stage 1, rank"),
        8: "static, shared in node 0, process",
    }
    threads = threads_of(events)
    assert {"compute", "stalls", "collectives: tensor", "collectives: data", "h2d"} <= set(threads.values())
    slices = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            slices[e["pid"], e["tid"]].append((round(e["ts"] * 1000), round(e["dur"] * 1000)))
    assert set(slices) <= set(threads)
    for found in slices.values():
        found.sort()
        assert all(start + took <= later for (start, took), (later, _) in pairwise(found))
    counters = {(e["pid"], e["name"]) for e in events if e["ph"] == "C"}
    assert (8, "ddr_in: under way") in counters
    assert any(pid == 8 and name.startswith("ddr_in: mean (cap ") for pid, name in counters)
    assert {pid for pid, name in counters if name.startswith("ddr")} == {8}
    assert {pid for pid, name in counters if name.startswith("hbm")} == set(range(8))


def test_arrows_lead_from_each_send_to_its_receive_and_through_members(whole):
    events = list(perfetto.events(whole))
    slices = defaultdict(list)
    for e in events:
        if e["ph"] == "X" and e["cat"] == "collective":
            slices[e["pid"], e["tid"]].append(e)
    flows = defaultdict(list)
    for e in events:
        if e.get("cat") == "meeting":
            around = [s for s in slices[e["pid"], e["tid"]] if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]]
            flows[e["id"]].append((e["ph"], e["name"], around))
    assert {name for parts in flows.values() for _, name, _ in parts} == {"meets", "received by"}
    for parts in flows.values():
        assert [how for how, *_ in parts] == ["s", *["t"] * (len(parts) - 2), "f"]
        wanted = {s["args"]["meeting"] for s in parts[0][2]}
        assert all(wanted & {s["args"]["meeting"] for s in around} for *_, around in parts)
        if parts[0][1] == "received by":
            kinds = [{s["args"]["kind"] for s in around} for *_, around in parts]
            assert "send" in kinds[0]
            assert "recv" in kinds[1]


def test_folded_ranks_are_named_with_how_many_they_stand_for(folded):
    events = list(perfetto.events(folded))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[0] == "static, stage 0 x4, rank"
    assert names[4] == "static, stage 1 x4, rank"
    labels = [e["args"]["labels"] for e in events if e["name"] == "process_labels"]
    assert labels == ["2 of 8 ranks are shown; 6 do exactly what the one does that stands for them"]


def test_of_a_large_job_some_ranks_are_written(whole, monkeypatch):
    monkeypatch.setattr(perfetto, "MOST_RANKS", 2)
    events = list(perfetto.events(whole))
    assert {e["pid"] for e in events if e["ph"] == "X"} == {0, 4}
    assert "2 of 8 ranks are shown" in next(e["args"]["labels"] for e in events if e["name"] == "process_labels")


# pictures, page and sentences


def texts(picture):
    out = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}):
        picture.write(out, "svg")
    return {"".join(e.itertext()).strip() for e in ET.fromstring(out.getvalue()).iter() if e.tag.endswith("}text")}


def test_the_timeline_names_ranks_causes_and_groups(whole, folded):
    assert {"rank 0, stage 0", "rank 7, stage 1", "tensor", "peer", "collectives, by group"} <= texts(
        figures.timeline(whole)
    )
    said = texts(figures.timeline(folded))
    assert "rank 4, stage 1, stands for 4 ranks" in said
    assert "2 of 8 ranks are shown; 6 do exactly what the one does that stands for them" in said


def test_a_picture_shows_what_each_rank_spends_its_step_on(whole, folded):
    for row in (whole, folded):
        assert {"compute", "stall: peer", "stall: collective", "rank", "7"} <= texts(ranks_figure.spent(row))


def test_what_a_rank_waits_for_is_that_of_its_compute_stream(whole):
    view = ranks.of_ranks(whole, [0])[0]
    shares = [float(share.split()[0]) for *_, share in by_cause(view)]
    assert sum(shares) == pytest.approx(100 * view.summary["stall_ns"] / view.summary["step_ns"], abs=1)
    assert sum(waits_for_peers(view).values()) == view.summary["wait_peer_ns"]


def test_sentences_tell_who_waits_for_whom(whole, folded):
    for row in (whole, folded):
        said = sentences([row])[-1]
        assert re.search(r"the longest wait is of rank \d, stage \d for rank \d, stage \d: [\d.]+ [mu]s a step", said)


def test_the_page_has_a_table_of_ranks(whole, folded):
    heads = [column.head for column in rank_columns(ranks.of_ranks(whole))]
    assert heads[:4] == ["rank", "runs", "step", "compute"]
    assert {"collectives", "masked", "bubble", "utilisation", "peak hbm"} <= set(heads)
    provenance = {"hosim": "0", "fitted": [], "assumed": [], "inputs": [], "switches": {}, "set": {}}
    text = html.page(html.Story("eight", "", (), provenance), [folded], lambda row: ())
    assert "<h3>The ranks</h3>" in text
    assert "2 of 8 ranks are shown" in text
    assert "What a step waits for (rank 0, the slowest)" in text
    assert '<td class="left">stage 1</td>' in text


def test_a_blocked_job_is_told_without_figures(whole):
    """A trace that was cut: the row is blocked, and what there is can still be drawn."""
    trace = replace(whole.trace, status="blocked", blocked=("rank 0: op 'a' waits for rank 1",))
    summary = {**whole.summary, "status": "blocked", "step_ns": None, "slowest_rank": None}
    row = replace(whole, trace=trace, summary=summary)
    assert "static: blocked" in texts(figures.timeline(row))
    assert list(perfetto.events(row))
