"""`hosim sweep` along the curve of a scenario: a training step on a few ranks to many."""

from __future__ import annotations

import json
import re

import pytest
from folding import folded

import simulator as hosim_api

WORKLOAD = """\
schema: hosim/workload/1
name: replicas
model: {family: llama, layers: 1, hidden: 512, heads: 8, kv_heads: 2, ffn: 1536, vocabulary: 4096}
batch: 1
sequence: 1024
parallel: {ranks: all, data: 2, zero_stage: 1}
assumed: {model: a test, batch: a test, sequence: a test, parallel: a test}
"""
SCENARIO = """\
schema: hosim/scenario/1
name: curve
hardware: dgx_h100
workload: replicas.yaml
policies: [resident, offload_saved]
sweep:
  workload.parallel.data: [4, 8, 32]
"""


def of_workload(points):
    """The same fields of the workload, as paths from the three documents."""
    return re.sub(r"([a-z_.]+): (?=[\[{0-9])", r"workload.\1: ", points)


@pytest.fixture
def curve(tmp_path):
    """Write a scenario with its workload; the keys of the curve may be others."""

    def write(points="parallel.data: [4, 8, 32]", workload=WORKLOAD):
        (tmp_path / "replicas.yaml").write_text(workload)
        path = tmp_path / "curve.yaml"
        path.write_text(SCENARIO.replace("workload.parallel.data: [4, 8, 32]", of_workload(points)))
        return path

    return write


def test_there_is_a_line_for_each_policy_and_point(hosim, curve):
    done = hosim("sweep", curve())
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][:5] == ["policy", "ranks", "status", "step", "compute"]
    assert [line[:3] for line in lines[1:7]] == [
        [p, n, "ok"] for p in ("resident", "offload_saved") for n in ("4", "8", "32")
    ]
    assert re.search(r"resident makes .* tokens/s at ranks 4 and .* tokens/s at ranks 32; it stalls for ", done.out)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """All rows at all points of the curve."""
    folder = tmp_path_factory.mktemp("curve")
    (folder / "replicas.yaml").write_text(WORKLOAD)
    (folder / "curve.yaml").write_text(SCENARIO)
    return hosim_api.sweep(folder / "curve.yaml", cache=False).rows


def test_each_point_is_what_a_run_of_its_workload_gives(swept, tmp_path):
    for data in (4, 32):
        folder = tmp_path / str(data)
        folder.mkdir()
        (folder / "replicas.yaml").write_text(WORKLOAD.replace("data: 2", f"data: {data}"))
        (folder / "one.yaml").write_text(SCENARIO[: SCENARIO.index("sweep:")])
        alone = hosim_api.run(folder / "one.yaml", policies=["resident"])["resident"].summary
        (row,) = (row for row in swept if (row["policy"], row["ranks"]) == ("resident", data))
        assert {key: row[key] for key in alone if "slowdown" not in key} == {
            key: value for key, value in alone.items() if "slowdown" not in key
        }


def test_weak_scaling_is_the_first_step_over_the_step(swept):
    rows = [row for row in swept if row["policy"] == "resident"]
    steps = [row["step_ns"] for row in rows]
    assert steps == sorted(set(steps))
    assert [row["efficiency"] for row in rows] == pytest.approx([steps[0] / step for step in steps])
    assert [row["tokens"] for row in rows] == [4 * 1024, 8 * 1024, 32 * 1024]
    assert [row["tokens_per_s"] for row in rows] == [row["tokens"] * 10**9 / row["step_ns"] for row in rows]


def test_with_the_work_shared_among_more_ranks_it_is_the_step_for_each_of_them(curve):
    rows = hosim_api.sweep(curve("parallel.tensor: [1, 2]"), policies=["resident"]).rows
    assert [(row["ranks"], row["tokens"]) for row in rows] == [(2, 2048), (4, 2048)]
    assert rows[1]["efficiency"] == pytest.approx(rows[0]["step_ns"] / rows[1]["step_ns"] / 2)
    assert rows[1]["efficiency"] < 1


def test_fields_of_a_point_are_set_together(curve):
    rows = hosim_api.sweep(
        curve("{parallel.data: [2, 4], parallel.tensor: [1, 2], batch: [3, 1]}"), policies=["resident"]
    ).rows
    assert [(row["ranks"], row["tokens"]) for row in rows] == [(2, 2 * 3 * 1024), (8, 4 * 1024)]
    assert [row["workload.batch"] for row in rows] == [3, 1]


def test_unfolded_changes_nothing(curve):
    rows = []
    for fold in ("auto", "never"):
        with folded(fold):
            path = curve("parallel.data: [4, 16]")
            rows.append(hosim_api.sweep(path, policies=["resident"], cache=False, workers=1).rows)
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_the_folder_runs_again_and_holds_the_picture(hosim, curve, tmp_path):
    out = tmp_path / "out"
    first = hosim("sweep", curve(), "--policy", "resident", "--out", out)
    summary = json.loads((out / "summary.json").read_text())
    assert {p.name for p in out.iterdir()} == set(summary["files"])
    assert {"sweep.png", "sweep.svg", "summary.csv", "scenario.yaml", "workload.yaml"} <= set(summary["files"])
    assert [row["workload.parallel.data"] for row in summary["rows"]] == [4, 8, 32]
    again = hosim("sweep", out / "scenario.yaml", "--policy", "resident", "--out", tmp_path / "again")
    assert again.out == first.out
    assert (tmp_path / "again" / "sweep.svg").read_bytes() == (out / "sweep.svg").read_bytes()


@pytest.mark.slow
def test_the_picture_is_drawn_where_some_rows_do_not_run(hosim, curve, tmp_path):
    done = hosim("sweep", curve(), "--set", "tiers.hbm.capacity=60 MB", "--out", tmp_path / "out")
    assert "offload_saved does not fit at ranks 4, ranks 8 and ranks 32" in done.out
    assert (tmp_path / "out" / "sweep.png").is_file()


def test_what_does_not_fit_is_a_line_and_the_first_that_runs_is_compared_with(hosim, curve):
    """Optimizer state is sharded, so that only many ranks have room for it."""
    done = hosim("sweep", curve(), "--set", "tiers.hbm.capacity=92 MB", "--policy", "resident")
    status = [line.split()[2] for line in done.out.splitlines()[1:4]]
    assert status == ["infeasible", "ok", "ok"]
    assert done.out.splitlines()[2].split()[-2:] == ["100", "%"]
    assert hosim("sweep", curve(), "--set", "tiers.hbm.capacity=10 MB").code == 1


def test_points_may_differ_in_a_field_and_not_in_ranks(hosim, curve):
    done = hosim("sweep", curve("{batch: [1, 2], sequence: [1024, 512]}"), "--policy", "resident")
    head, *rows = [line.split() for line in done.out.splitlines()[:3]]
    assert head[:6] == ["policy", "workload.batch", "workload.sequence", "status", "step", "compute"]
    assert [row[1:4] for row in rows] == [["1", "1,024", "ok"], ["2", "512", "ok"]]
    assert "resident makes" in done.out


@pytest.mark.usefixtures("pictures_are_blank")
def test_a_run_of_one_point_tells_of_the_curve(hosim, curve, tmp_path):
    said = "This is one point of a curve: hosim sweep compares workload.parallel.data 4, 8 and 32."
    assert hosim("run", curve(), "--policy", "resident", "--out", tmp_path / "out").out.count(said) == 1
    assert said in (tmp_path / "out" / "report.html").read_text()
    assert "one point" not in hosim("sweep", curve("batch: [1, 2]"), "--policy", "resident").out


def test_what_is_held_and_moved_is_told(hosim, curve):
    path = curve("{batch: [1, 2]}", WORKLOAD.replace("{ranks: all, data: 2, zero_stage: 1}", "{data: 1}"))
    path.write_text(path.read_text().replace("sweep:", "homes: {optimizer_state: ddr}\nsweep:"))
    done = hosim("sweep", path, "--policy", "offload_saved")
    assert done.code == 0
    heads = next(line for line in done.out.splitlines() if "peak" in line)
    assert re.split("  +", heads) == ["policy", "workload.batch", "peak hbm", "peak ddr", "moved d2h", "moved h2d"]


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (
            "parallel.dta: [8]",
            "sweep.workload.parallel.dta: a change names a field of the workload, found",
        ),
        ("parallel.data: [seven, eight]", "sweep.workload.parallel.data (workload.parallel.data: eight): "),
        ("{parallel.data: [9, 11], parallel.expert: [2, 2]}", "expert divides data, found 2 and 9"),
        ("{parallel.data: [8, 9], batch: [1]}", "the fields of a list are equally long, found 1 and 2"),
        ("parallel.data: []", "found []"),
        ("parallel.data: 8", "found 8"),
    ],
)
def test_a_wrong_curve_is_one_message(scaling, said, hosim, curve):
    done = hosim("sweep", curve(scaling))
    assert done.code == 1
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_point_that_fails_is_a_row_with_its_reason(hosim, curve):
    done = hosim("sweep", curve("parallel.data: [8, 2048]"), "--policy", "resident")
    assert done.code == 0
    assert [line.split()[1:3] for line in done.out.splitlines()[1:3]] == [["8", "ok"], ["2,048", "failed"]]
    assert "resident fails at workload.parallel.data 2,048: " in done.out
    assert "each rank has a device of its own, found 2,048 ranks for 1,024" in done.out


@pytest.mark.parametrize("first", [True, False])
def test_a_point_that_cannot_be_is_a_row_with_its_reason(first, hosim, curve):
    """Its documents do not read, wherever it stands among the points; efficiency is against the first that ran."""
    data, expert = ("[9, 8]", "[2, 1]") if first else ("[8, 9]", "[1, 2]")
    done = hosim("sweep", curve(f"{{parallel.data: {data}, parallel.expert: {expert}}}"), "--policy", "resident")
    assert done.code == 0
    assert {tuple(line.split()[1:4]) for line in done.out.splitlines()[1:3]} == {
        ("9", "2", "failed"),
        ("8", "1", "ok"),
    }
    assert "resident fails at workload.parallel.data 9, workload.parallel.expert 2: " in done.out
    assert "expert divides data, found 2 and 9" in done.out


@pytest.mark.slow
def test_two_workers_find_the_same(curve):
    one, two = (hosim_api.sweep(curve(), workers=workers) for workers in (1, 2))
    assert one.rows == two.rows


def test_a_scenario_without_points_is_told_how_to_list_some(hosim, scenario):
    done = hosim("sweep", scenario)
    assert (done.code, done.out) == (1, "")
    assert "a sweep varies something, found nothing" in done.err


def test_a_point_may_set_a_field_that_holds_a_mapping(hosim, curve):
    done = hosim("sweep", curve("dtypes: [{compute: bf16}, {compute: fp16}]"), "--policy", "resident")
    assert done.code == 0
    assert [line.split("  ")[1] for line in done.out.splitlines()[1:3]] == ["{compute: 'bf16'}", "{compute: 'fp16'}"]
    wrong = hosim("sweep", curve("batch: [[1], 2]"))
    assert (wrong.code, wrong.out) == (1, "")
    assert "curve.yaml:7, sweep.workload.batch (workload.batch: [1]): this is a whole number" in wrong.err
