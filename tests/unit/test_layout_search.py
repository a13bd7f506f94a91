"""`hosim layout search`: bounds, estimates, continued replays, the front, and what cannot be."""

import pickle
import sys
from itertools import product

import pytest
from examples import some

import simulator as hosim
from simulator import catalog
from simulator.catalog import Axis
from simulator.cli import main
from simulator.errors import ConfigError
from simulator.processes import spawned
from simulator.run import row as rows_run
from simulator.run.case import execute
from simulator.run.estimates import estimate
from simulator.run.grid import Cells
from simulator.run.layouts import LayoutCells

WORKLOAD = """
schema: hosim/workload/1
name: small
title: A small decoder
model:
  {family: llama, layers: 4, hidden: 512, heads: 8, kv_heads: 2, ffn: 1024, vocabulary: 4096, tied_embeddings: false}
phase: train
batch: 1
sequence: 512
parallel: {ranks: all, data: 2, micro_batches: 2, zero_stage: 1}
"""
SCENARIO = """
schema: hosim/scenario/1
name: spread
title: A small search
hardware: dgx_h100
workload: ./workload.yaml
homes: {weight: hbm, gradient: hbm, optimizer_state: hbm, activation: free}
policies: [resident, offload_saved]
layout:
  devices: 8
  global_batch: 8
  replay: 3
  over: {parallel.context: [1], parallel.zero_stage: [1]}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "workload.yaml").write_text(WORKLOAD, encoding="utf-8")
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def laid(scenario, **fields):
    """Return the scenario with other fields of ``workload.parallel``."""
    changes = {Axis(key, (f"workload.parallel.{key}",), "a test"): value for key, value in fields.items()}
    return catalog.at(catalog.resolve(scenario), changes)


MESHES = [
    {"data": data, "tensor": tensor, "pipeline": pipeline, "zero_stage": zero, "micro_batches": micros, **more}
    for (data, tensor, pipeline), zero, (micros, more) in product(
        [(1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 4)],
        [0, 1, 2, 3],
        [(1, {}), (3, {}), (4, {"schedule": "gpipe"}), (2, {"sequence": True})],
    )
    if not (zero and data == 1) and not (more.get("sequence") and tensor == 1)
]
VIRTUAL = {"schedule": "interleaved", "chunks": 2, "micro_batches": 4, "pipeline": 2}
MESHES = MESHES[::3]  # in which each degree, stage and schedule stands with several of the others
MESHES += [VIRTUAL | {"data": 1, "tensor": 2, "zero_stage": 0}, VIRTUAL | {"data": 2, "tensor": 1, "zero_stage": 1}]


@pytest.mark.parametrize("mesh", some(MESHES, 3), ids=str)
def test_no_row_goes_below_the_bounds(scenario, mesh):
    spread = laid(scenario, **mesh)
    expected = estimate(spread, can_move=False)
    for row in Cells(("resident", "offload_saved"), with_bounds=False)(spread, ()):
        assert row["status"] == "ok"
        assert row["step_ns"] >= expected.least_step_ns
        assert row["peak_hbm_bytes"] >= expected.least_bytes


@pytest.mark.parametrize(
    ("policy", "mesh"),
    [
        ("offload_saved", {"data": 2, "pipeline": 1, "micro_batches": 9, "zero_stage": 3}),
        ("resident", {"data": 2, "pipeline": 2, "micro_batches": 11, "zero_stage": 2}),
        pytest.param(
            "offload_saved",
            {"data": 1, "pipeline": 4, "micro_batches": 17, "zero_stage": 0},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "resident",
            {"data": 1, "tensor": 2, "pipeline": 4, "micro_batches": 13, "zero_stage": 0, "sequence": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_a_continued_replay_is_the_whole_one(scenario, policy, mesh):
    spread = laid(scenario, **mesh)
    (short,), (whole,) = (LayoutCells([policy], whole=whole)(spread, ()) for whole in (False, True))
    assert len(short) < len(whole)  # it was continued
    assert {key: short[key] for key in short if key.endswith(("_ns", "_bytes"))} == {
        key: whole[key] for key in short if key.endswith(("_ns", "_bytes"))
    }
    assert short["tokens_per_s"] == whole["tokens_per_s"]
    assert short["bubble_fraction"] == pytest.approx(whole["bubble_fraction"] or 0)


@pytest.mark.parametrize(("falls_ns", "micros"), [(0, [8, 9]), (1, [8, 9, 20])])
def test_all_is_replayed_where_one_more_micro_batch_makes_a_step_wait_less(scenario, monkeypatch, falls_ns, micros):
    """Plans that offload then differ by more than a micro-batch, and waits would fall below nothing."""
    ran = list[int]()

    def counted(_, loaded, __):
        ran.append(count := loaded.workload.parallel.micro_batches)
        return [{"policy": "static", "status": "ok", "ranks": 2, "notes": "", "step_ns": 100 * count,
                 "wait_capacity_ns": 50 - falls_ns * count}]  # fmt: skip

    monkeypatch.setattr(Cells, "__call__", counted)
    (row,) = LayoutCells(["static"])(laid(scenario, data=1, pipeline=4, micro_batches=20), ())
    assert (ran, row["step_ns"], row["wait_capacity_ns"]) == (micros, 2000, 50 - 20 * falls_ns)


def test_rows_with_the_same_plans_are_replayed_once(scenario, monkeypatch):
    """Where all fits, `static` moves nothing either; a row on another machine is a run of its own."""
    ran = list[str]()

    def counted(case, plans, *given):
        ran.append(plans[0].policy)
        return execute(case, plans, *given)

    monkeypatch.setattr(rows_run, "execute", counted)
    other = "{policy: resident, label: slow, set: {links.*.latency: 9 us}}"
    scenario.write_text(scenario.read_text().replace("[resident, off", f"[resident, static, {other}, off"))
    rows = {label: result.summary for label, result in hosim.run(scenario).items()}
    assert ran == ["resident", "resident", "offload_saved"]
    assert rows["static"]["step_ns"] == rows["resident"]["step_ns"] < rows["offload_saved"]["step_ns"]
    assert rows["static"]["policy"] == "static"


def test_gpipe_is_replayed_whole(scenario):
    spread = laid(scenario, data=2, pipeline=2, micro_batches=11, schedule="gpipe")
    assert LayoutCells(["resident"])(spread, ()) == LayoutCells(["resident"], whole=True)(spread, ())


def test_the_front_is_what_no_row_beats(scenario):
    found = hosim.layout_search(scenario, workers=1)
    ran = [row for row in found.rows if row["status"] == "ok"]
    assert len(found.rows) == 3 * 2
    assert [row["tokens_per_s"] for row in ran] == sorted((row["tokens_per_s"] for row in ran), reverse=True)
    for row in ran:
        beaten = any(
            other["tokens_per_s"] >= row["tokens_per_s"] and other["peak_hbm_bytes"] < row["peak_hbm_bytes"]
            for other in ran
        )
        assert not (row["front"] and beaten)
    assert ran[0]["front"]
    layouts = found.tables["layouts"]
    assert {row["data"] * row["tensor"] * row["pipeline"] for row in layouts} == {8}
    assert {row["data"] * row["micro_batches"] for row in layouts if row["status"] == "estimated"} == {8}


def test_the_fastest_by_the_estimate_are_replayed(scenario):
    found = hosim.layout_search(scenario, workers=1, replay=2, policies=["resident"])
    estimates = sorted(row["estimated_tokens_per_s"] for row in found.tables["layouts"] if row["status"] == "estimated")
    assert sorted(row["estimated_tokens_per_s"] for row in found.rows) == estimates[-2:]


def test_what_cannot_be_is_counted_with_its_reason(scenario):
    found = hosim.layout_search(
        scenario, workers=1, over={"parallel.tensor": "2,3,8", "parallel.data": [1, 2, 3]}, replay=1
    )
    reasons = " ".join(found.sentences)
    failed = [row for row in found.tables["layouts"] if row["status"] == "failed"]
    assert (
        "layouts are impossible: data * context * tensor * pipeline is devices (such as data 1, tensor 2, pipeline 1"
        in reasons
    )
    assert "impossible: each stage has some of the model's 4 layers" not in reasons
    assert sum(int(line.split(" of ")[0]) for line in found.sentences if "are impossible:" in line) == len(failed)
    found = hosim.layout_search(scenario, workers=1, replay=1)
    assert any(
        "each stage has some of the model's 4 layers (such as data 1, tensor 1, pipeline 8" in one
        for one in found.sentences
    )


def test_a_batch_that_divides_over_no_layout(scenario, capsys):
    with pytest.raises(SystemExit, match="1"):
        main(
            ["layout", "search", str(scenario), "--global-batch", "3", "--grid", "parallel.data=2,4", "--workers", "1"]
        )
    printed = capsys.readouterr()
    assert "data * batch * micro_batches is global_batch" in printed.out
    assert printed.err.endswith("hosim: no layout ran to its end\n")


def test_no_layout_has_room(scenario):
    found = hosim.layout_search(scenario, workers=1, memory="10 MB")
    assert found.rows == []
    assert any("the homes in hbm fit there" in line for line in found.sentences)


def test_memory_is_a_budget_of_rows(scenario):
    found = hosim.layout_search(scenario, workers=1, memory="100 MB", replay=2)
    assert {row["peak_hbm_bytes"] <= 100 * 10**6 for row in found.rows if row["status"] == "ok"} <= {True}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": 7, "over": {"parallel.tensor": [2]}}, "some degrees multiply to the devices, found none to 7"),
        ({"over": {"parallel.tensr": [2]}}, "a change names a field of the workload"),
        ({"over": {"parallel.tensor": [0]}}, "greater than or equal to 1"),
        ({"devices": 0}, "greater than or equal to 1"),
        ({"over": {"parallel.tensor": "2,2"}}, "the values of an axis are distinct"),
    ],
)
def test_wrong_questions(scenario, given, message):
    with pytest.raises(ConfigError, match=message.replace("*", r"\*")):
        hosim.layout_search(scenario, workers=1, **given)


def test_more_layouts_than_are_estimated_are_refused(scenario, monkeypatch):
    monkeypatch.setattr(sys.modules["simulator.run.layouts"], "_MOST_LAYOUTS", 20)
    with pytest.raises(ConfigError, match=r"at most 20 layouts are estimated, found \d+"):
        hosim.layout_search(scenario, over={"sequence": range(1, 22)}, workers=1)


def test_layers_that_do_not_train_alike(scenario):
    with pytest.raises(ConfigError, match="layers of one kind train alike"):
        hosim.layout_search(scenario, set={"workload.frozen": ["L00/*"]}, workers=1)


def test_only_training_has_layouts():
    with pytest.raises(ConfigError, match="layouts are searched for a decoder that trains"):
        hosim.layout_search("qwen3_30b_decode_910c", devices=2, global_batch=2, workers=1)


def test_the_global_batch_is_stated():
    with pytest.raises(ConfigError, match="a search of layouts states the global batch, found none"):
        hosim.layout_search("llama3_8b_2x2x2", devices=8, workers=1)


@pytest.mark.slow
def test_results_do_not_depend_on_processes(scenario):
    over = {"parallel.pipeline": [1, 2], "parallel.tensor": [1, 2, 4]}
    one, two = (hosim.layout_search(scenario, workers=workers, replay=2, over=over) for workers in (1, 2))
    assert one.json() == two.json()


def test_what_estimates_and_what_replays_can_be_sent_to_other_processes(scenario, monkeypatch):
    """With their options: a slow test sends them."""

    def as_sent(make, tasks, workers):
        return spawned(*pickle.loads(pickle.dumps((make, tasks))), 0)

    (here,) = hosim.layout_search(scenario, workers=1, replay=1, policies=["resident"]).rows
    monkeypatch.setattr(sys.modules["simulator.run.layouts"], "spawned", as_sent)
    assert hosim.layout_search(scenario, workers=1, replay=1, policies=["resident"]).rows == [here]
    replays = LayoutCells(["resident"], whole=True)
    assert vars(pickle.loads(pickle.dumps(replays))) == vars(replays)


def test_the_folder_has_the_table_and_the_picture(scenario, tmp_path):
    hosim.layout_search(scenario, workers=1, replay=1).write(tmp_path / "out")
    assert (tmp_path / "out" / "layouts.csv").exists()
    assert (tmp_path / "out" / "layouts.png").exists()


def test_the_layout_of_a_workload_is_shown_without_a_command(capsys):
    printed = []
    for words in (["layout", "llama3_8b_layer"], ["layout", "show", "llama3_8b_layer"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[0].startswith("llama3_8b_layer: 8 ranks")


@pytest.mark.slow
def test_interleaved_stages_are_searched_too(scenario):
    over = {"parallel.schedule": ["1f1b", "interleaved"], "parallel.chunks": [2], "parallel.pipeline": [2]}
    found = hosim.layout_search(scenario, over=over, replay=2, global_batch=16)
    listed = [row for row in found.tables["layouts"] if row["status"] == "estimated"]
    assert {row["schedule"] for row in listed} == {"interleaved"}, "virtual stages are of interleaved ones"
    assert {row["status"] for row in found.rows} == {"ok"}
