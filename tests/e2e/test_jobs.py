"""Jobs of several ranks from end to end: documents in, one row and a table of ranks out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from examples import some
from folding import folded
from rank_stories import cluster, team
from small_job import SCENARIO, written

import simulator as hosim
from simulator import catalog
from simulator.catalog.shelf import path_of
from simulator.cli import main
from simulator.errors import ConfigError
from simulator.graph import Job
from simulator.hardware import Hardware
from simulator.trace import CAUSES

pytestmark = pytest.mark.usefixtures("pictures_are_blank")


def test_a_job_of_one_graph_runs_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["run", str(written(tmp_path, "data: 2, tensor: 2")), "--out", str(out)])
    told = capsys.readouterr()
    assert ended.value.code == 0, told.err
    assert re.search(r"the 4 ranks of \w+ compute for", told.out)
    assert "Expectations of the scenario: 1 of 1 hold." in told.out
    ranks = pd.read_csv(out / "static" / "ranks.csv")
    assert ranks["rank"].tolist() == [0, 1, 2, 3]
    waits = [f"wait_{cause}_ns" for cause in CAUSES[:-1]]
    parts = ranks[["compute_ns", "recompute_ns", "drain_ns", *waits]].sum(axis=1)
    assert parts.tolist() == ranks["step_ns"].tolist()
    row = next(row for row in json.loads((out / "summary.json").read_text())["rows"] if row["policy"] == "static")
    assert row["step_ns"] == ranks["step_ns"].max()
    assert row["moved_h2d_bytes"] == ranks["moved_h2d_bytes"].sum()
    again = hosim.run(out / "scenario.yaml")
    assert again["static"].summary["step_ns"] == row["step_ns"]


@pytest.mark.parametrize(
    "parallel", some(["tensor: 2, pipeline: 2, micro_batches: 3", "data: 2, tensor: 2", "data: 4"], 3)
)
def test_folded_and_unfolded_give_the_same_row(tmp_path, parallel):
    rows = []
    for fold in ("auto", "never"):
        with folded(fold):
            results = hosim.run(written(tmp_path, parallel))
        rows.append([row.summary for row in results.values()])
        steps = results["static"].ranks.drop(columns="stands_in")
        rows[-1].append(steps.to_dict())
    assert rows[0] == rows[1]


PIPELINE = "tensor: 2, pipeline: 2, micro_batches: 2"


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory):
    """A run of two stages of two ranks, for all that only read it."""
    return hosim.run(written(tmp_path_factory.mktemp("pipelined"), PIPELINE))


def test_each_graph_of_a_job_has_its_plan(pipelined):
    row = pipelined["static"]
    assert [plan.policy for plan in row.plans] == ["static", "static"]
    assert [len(plan.home) for plan in row.plans] == [len(graph.tensors) for graph in row.job.graphs]
    assert row.ranks["program"].tolist() == [row.job.labels[number] for number in row.job.graph_of]
    assert set(row.waits["rank"]) <= {0, 1, 2, 3}


def test_the_same_job_gives_the_same_tables(pipelined, tmp_path):
    first = pipelined["reactive"]
    second = hosim.run(written(tmp_path, PIPELINE), policies=["reactive"])["reactive"]
    for table in ("spans", "waits", "memory", "ranks"):
        pd.testing.assert_frame_equal(getattr(first, table), getattr(second, table))


def test_hosim_plan_tells_each_graph(tmp_path, capsys):
    out = tmp_path / "plan"
    scenario = written(tmp_path, PIPELINE)
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(scenario), "--out", str(out)])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert "stage 0, 2 ranks from 0 to 1" in told
    assert "stage 1, 2 ranks from 2 to 3" in told
    notes = [line for line in told.splitlines() if "nothing moves" in line]
    assert [note.split(": nothing moves: at most ")[0] for note in notes] == [
        "stage 0, 2 ranks from 0 to 1", "stage 1, 2 ranks from 2 to 3",
    ]  # fmt: skip
    assert {path.parent.name for path in out.rglob("plan.jsonl")} == {"stage-0", "stage-1"}


def story(tmp_path: Path) -> Path:
    """The scenario on the machine of the rank stories."""
    why = dict.fromkeys(("compute", "host", "tiers", "links", "topology", "fabrics", "allocator"), "a story")
    (tmp_path / "hardware.yaml").write_text(catalog.dump(cluster(2).model_copy(update={"assumed": why})))
    text = SCENARIO.split("expect:", maxsplit=1)[0].replace("dgx_h100", "hardware.yaml")
    return written(tmp_path, "data: 2", text)


def test_a_job_made_in_python(tmp_path):
    pair = {"all": ((0, 1),)}
    early, late = (
        team("a 40", f"f: -> a, {ns} ns", "sum: a -> a, all_reduce all 40", "h: a ->, 5 ns", groups=pair)
        for ns in (5, 25)
    )
    job = Job("made", (early, late), (0, 1), ("early", "late"))
    row = hosim.run(story(tmp_path), job=job, policies=["resident"])["resident"]
    chosen = ("step_ns", "compute_ns", "wait_peer_ns", "wait_collective_ns")
    assert [row.summary[column] for column in chosen] == [70, 30, 0, 40], "of the late one, which the other waits for"


def test_a_circle_of_ranks_is_a_row_that_names_who_waits_for_whom(tmp_path):
    """Each sums in a group of its own with the next rank first, over a tensor that its second sum needs, too."""
    groups = {"a": ((0, 1),), "b": ((1, 2),), "c": ((0, 2),)}
    sums = [
        [f"p: x -> x, all_reduce {first} 40", f"q: x -> x, all_reduce {then} 40"] for first, then in ("ac", "ba", "cb")
    ]
    graphs = tuple(team("x 40 persistent", "f: -> x, 5 ns", *ops, groups=groups) for ops in sums)
    results = hosim.run(written(tmp_path, "data: 2"), job=Job("circle", graphs, (0, 1, 2), ("A", "B", "C")))
    assert {row.status for row in results.values()} == {"blocked"}
    circle = "; ".join(
        f"rank {rank}: op 'p' (action 1) waits for rank {(rank + 1) % 3} to come to the collective of group '{group}'"
        for rank, group in enumerate("abc")
    )
    assert f"resident blocks itself: {circle}" in results.sentences[0]
    results.write(tmp_path / "out")
    assert circle.split("; ")[2] in (tmp_path / "out" / "report.html").read_text().replace("&#39;", "'")
    assert pd.read_csv(tmp_path / "out" / "summary.csv")["status"].tolist() == ["blocked"] * 3


def test_plans_of_ranks_that_lack_room_block_and_say_which_rank(tmp_path, capsys):
    """What the second stage receives has a stream of its own; the first stage has no room to send it."""
    scenario = SCENARIO.split("expect:", maxsplit=1)[0]
    first = hosim.run(written(tmp_path, "pipeline: 2, micro_batches: 4", scenario), policies=["resident"])
    first.write(tmp_path / "first")
    peak = first["resident"].summary["peak_hbm_bytes"]
    again = scenario.replace("resident, reactive, static", "{policy: first/resident/plan-*.jsonl, label: again}")
    path = written(tmp_path, "pipeline: 2, micro_batches: 4", f"{again}budget: {peak - 1} B\n")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path)])
    told = capsys.readouterr()
    assert ended.value.code == 1
    assert told.err == "hosim: no row ran to its end, all are blocked\n"
    assert re.search(
        r"again blocks itself: rank \d: op .* of room in hbm: .*; rank \d: op .* waits for rank \d to come", told.out
    )


def test_more_ranks_than_devices_are_refused(tmp_path):
    g = team("a 40", "sum: -> a, all_reduce all 40", groups={"all": ((0, 1, 2),)})
    with pytest.raises(ConfigError, match=r"each rank has a device of its own.*3"):
        hosim.run(story(tmp_path), job=Job.of(g, 3))


def test_a_plan_file_is_of_one_graph(tmp_path):
    text = SCENARIO.replace("[resident, reactive, static]", "[plan.jsonl]").split("expect:")[0]
    (tmp_path / "plan.jsonl").write_text("")
    with pytest.raises(
        ConfigError, match=r"a file has the plan of one graph, found one file for 2 graphs; name a file"
    ):
        hosim.run(written(tmp_path, PIPELINE, text))


def few_layers(name, folder):
    """Write a shipped scenario and its workload, whose model now has two layers."""
    workload = catalog.read_scenario(name).workload
    text = path_of(workload, "workload").read_text()
    assert "layers: 32" in text
    (folder / "workload.yaml").write_text(text.replace("layers: 32", "layers: 2").replace("[16, 16]", "[1, 1]"))
    text = path_of(name, "scenario").read_text()
    path = folder / f"{name}.yaml"
    path.write_text(text.replace(f"workload: {workload}", "workload: workload.yaml").replace("[16, 16]", "[1, 1]"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefill_decode_pools", "llama3_8b_2x2x2"])
def test_plans_of_several_graphs_are_written_read_and_replayed_to_the_same_bytes(name, tmp_path):
    first = hosim.run(few_layers(name, tmp_path), policies=["resident"])
    first.write(tmp_path / "first")
    plans = sorted(path.name for path in (tmp_path / "first" / "resident").glob("plan-*.jsonl"))
    assert len(plans) == len(first.case.tasks) > 1
    text = (tmp_path / "first" / "scenario.yaml").read_text()
    again = tmp_path / "first" / "again.yaml"
    again.write_text(text.replace("- policy: resident\n", "- policy: resident/plan-*.jsonl\n  label: resident\n"))
    second = hosim.run(again)
    assert second["resident"].policy == "resident/plan-*.jsonl"
    assert second["resident"].summary == first["resident"].summary
    assert [one["kind"] for one in second.provenance["inputs"]][-2:] == [f"plan resident {plan}" for plan in plans]
    second.write(tmp_path / "second")
    for file in (*plans, "spans.csv", "waits.csv", "memory.csv", "ranks.csv"):
        one, other = ((tmp_path / run / "resident" / file).read_bytes() for run in ("first", "second"))
        assert one == other, file
    assert hosim.run(tmp_path / "second" / "scenario.yaml")["resident"].summary == first["resident"].summary


@pytest.mark.slow
def test_plans_that_hosim_plan_writes_for_several_graphs_run_again(tmp_path, request):
    command = request.getfixturevalue("hosim")
    path = written(tmp_path, PIPELINE)
    done = command("plan", path, "--out", tmp_path / "planned")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"Plan: {tmp_path / 'planned' / '*' / 'plan.jsonl'}")
    text = (
        path.read_text().replace("[resident, reactive, static]", "[static, planned/*/plan.jsonl]").split("expect:")[0]
    )
    path.write_text(text)
    rows = hosim.run(path)
    assert rows["plan"].summary == {**rows["static"].summary, "policy": "plan"}
    for graph in ("stage-0", "stage-1"):
        done = command("check", tmp_path / "planned" / graph / "plan.jsonl", "--scenario", path)
        assert done.code == 0, done.err
    (tmp_path / "planned" / "stage-1" / "plan.jsonl").unlink()
    assert "stage-1/plan.jsonl" in command("run", path).err


def test_a_plan_made_once_is_of_one_rank(tmp_path):
    found = hosim.sweep(written(tmp_path, "data: 2"), {"links.*.bandwidth": ["1x", "0.9x"]}, plans="once", cache=False)
    assert "a case that is planned once has one rank" in found.sentences[0]


def test_plans_made_apart_fit_together_in_what_ranks_share(tmp_path):
    """Alone each of two ranks could store 40 B in a node's 60 B; together they share them, and say what is lacking."""
    document = cluster(2, hbm="50 B").model_dump(by_alias=True)
    document["tiers"]["ddr"]["capacity"] = "60 B"
    why = dict.fromkeys(("compute", "host", "tiers", "links", "topology", "fabrics", "allocator"), "a story")
    (tmp_path / "hardware.yaml").write_text(catalog.dump(Hardware.model_validate(document | {"assumed": why})))
    scenario = written(
        tmp_path, "data: 2", SCENARIO.split("expect:", maxsplit=1)[0].replace("dgx_h100", "hardware.yaml")
    )
    g = team("a 40, b 40", "f: -> a, 5 ns", "g: -> b, 5 ns", "h: b ->, 5 ns", "i: a ->, 5 ns", groups={})
    alone, both = (hosim.run(scenario, job=Job.of(g, ranks), policies=["static"])["static"] for ranks in (1, 2))
    assert alone.summary["moved_d2h_bytes"] == 40
    assert (both.status, both.shortfall.tier, both.shortfall.capacity_bytes) == ("infeasible", "ddr", 30)


def test_what_plans_say_names_the_stage_where_others_say_something_else(pipelined):
    rows = pipelined
    assert rows["reactive"].summary["notes"].startswith("evicts "), "all stages say the same"
    first, second = rows["static"].summary["notes"].split("; ")
    assert first.startswith("stage 0, 2 ranks from 0 to 1: nothing moves")
    assert second.startswith("stage 1, 2 ranks from 2 to 3: nothing moves")


def test_a_job_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="job: the job of all ranks is a Job, found one int"):
        hosim.run(written(tmp_path, "tensor: 2"), job=3)


def test_the_stage_that_lacks_most_room_speaks_for_all(pipelined, tmp_path):
    needed = pipelined["resident"].summary["peak_hbm_bytes"]
    small = f"{SCENARIO}budget: 550 kB\nassumed: {{budget: a story}}\n"
    short = hosim.run(written(tmp_path, PIPELINE, small), policies=["resident"])["resident"].summary
    assert (short["status"], short["short_bytes"]) == ("infeasible", needed - 550_000)


def test_the_order_of_axes_matters_where_ranks_are_on_several_nodes(tmp_path):
    def step_ns(nodes, names):
        machine = {"topology.devices_per_node": 8 // nodes, "topology.nodes": nodes}
        scenario = SCENARIO.replace("[resident, reactive, static]", "[resident]").split("expect:")[0]
        path = written(tmp_path, f"data: 4, tensor: 2, axis_names: [pipeline, {names}]", scenario)
        return hosim.run(path, set=machine)["resident"].summary["step_ns"]

    assert step_ns(1, "data, tensor") == step_ns(1, "tensor, data")
    assert step_ns(2, "data, tensor") < step_ns(2, "tensor, data"), "sums of each layer would go between nodes"
