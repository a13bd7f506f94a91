"""Rows that do other work are compared by tokens/s, or not at all; a cell that cannot be is a row with its reason."""

import pytest
import some_ranks

import simulator as hosim_api
from simulator.metrics.rows import pace
from simulator.report import grids
from simulator.report.changes import changes
from simulator.report.views import Varied
from simulator.run import grid

WORKLOAD = """
schema: hosim/workload/1
name: w
phase: train
batch: 1
sequence: 512
model: {family: llama, layers: 2, hidden: 256, heads: 8, kv_heads: 4, ffn: 512, vocabulary: 320}
parallel: {ranks: all, data: 2}
"""


@pytest.fixture
def scenario(tmp_path):
    return some_ranks.lay(tmp_path, WORKLOAD)


@pytest.mark.usefixtures("pictures_are_blank")
def test_cells_of_other_work_are_compared_by_tokens(hosim, scenario, tmp_path):
    """Two ranks against sixteen, each with its own samples: a longer step with eight times the tokens is no slower."""
    done = hosim("sweep", scenario, "--grid", "workload.parallel.data=2,16", "--out", tmp_path / "out")
    assert done.code == 0
    assert "as long" not in done.out
    assert "tokens/s" in done.out.splitlines()[0]
    few, many = hosim_api.sweep(scenario, {"workload.parallel.data": [2, 16]}).rows  # kept from before
    assert many["step_ns"] > few["step_ns"]
    assert many["tokens_per_s"] > few["tokens_per_s"]
    times = few["tokens_per_s"] / many["tokens_per_s"]
    ends = (f"{row['tokens_per_s']:,.0f} tokens/s at workload.parallel.data {n}" for n, row in ((16, many), (2, few)))
    most, least = ends
    least = least.replace(" at", ", at", 1)
    assert f"resident makes {most}, and {times:.2f}x as many, {least}." in done.out


def test_cells_of_the_same_work_are_compared_by_step(hosim, scenario):
    done = hosim("sweep", scenario, "--grid", "workload.parallel.tensor=1,2,8")
    assert "x as long, " in done.out
    assert "tokens/s" not in done.out


@pytest.mark.parametrize("is_of_work", [True, False])
def test_cells_whose_work_is_not_known_are_not_compared(is_of_work):
    rows = [{"policy": "p", "status": "ok", "steps": n, "step_ns": 100 * n, "stall_ns": n - 1} for n in (1, 2)]
    axes = [Varied("steps", values=[1, 2], is_of_work=is_of_work)]
    said = [*grids._extremes(rows, axes)]
    assert said[-1] == "p has no stall in 1 of 2 cells, the first at steps 1."
    assert said[:-1] == ([] if is_of_work else ["p takes 100 ns at steps 1, and 2.00x as long, 200 ns, at steps 2."])
    (drawn,) = grids._maps([row | {"other": 0} for row in rows], [*axes, Varied("other", values=[0])], "step_ns")
    assert drawn.best == (0 if is_of_work else 100)


@pytest.mark.parametrize(
    ("rows", "is_same_work", "by"),
    [
        ([{"step_ns": 10**9, "tokens_per_s": 8.0}, {"step_ns": 2 * 10**9, "tokens_per_s": 4.0}], False, "step_ns"),
        ([{"step_ns": 10**9, "tokens_per_s": 8.0}, {"step_ns": 10**9, "tokens_per_s": 4.0}], True, "tokens_per_s"),
        ([{"step_ns": 10, "samples_per_s": 10**8}, {"step_ns": 10, "samples_per_s": 2 * 10**8}], True, "samples_per_s"),
        ([{"step_ns": 10, "tokens_per_s": 10**8}, {"step_ns": 10, "tokens_per_s": None}], True, "step_ns"),
        ([{"step_ns": 10, "tokens_per_s": 10**8}, {"step_ns": 10, "tokens_per_s": None}], False, ""),
        ([{"step_ns": 10}, {"step_ns": 20}], False, ""),
    ],
)
def test_what_compares_rows(rows, is_same_work, by):
    assert pace(rows, is_same_work=is_same_work) == by


def test_a_map_over_other_work_has_the_time_of_a_token(scenario):
    found = hosim_api.sweep(
        scenario, {"workload.batch": [1, 2], "links.*.bandwidth": ["10 GB/s", "20 GB/s"]}, cache=False
    )
    (drawn,) = found.view.maps
    assert drawn.per == "time of a token"
    times = [1e9 / row["tokens_per_s"] for row in found.rows]
    assert sorted(height for line in drawn.heights for height in line) == pytest.approx(sorted(times))
    assert drawn.best == pytest.approx(min(times))


def test_a_cell_that_cannot_be_is_a_row_with_its_reason(hosim, scenario, tmp_path):
    """Neither 3 nor 5 ranks divide the heads, wherever they stand in the grid."""
    out = tmp_path / "points.csv"
    done = hosim("sweep", scenario, "--grid", "workload.parallel.tensor=3,1,8,5", "--no-cache", "--out", out)
    assert done.code == 0
    status = [line.split()[-6:] for line in done.out.splitlines()[1:5]]
    assert [line[1] if line[0] != "failed" else "failed" for line in status].count("failed") == 2
    assert "nothing runs at workload.parallel.tensor 3 and workload.parallel.tensor 5: " in done.out
    assert "tensor divides heads, ffn, vocabulary, found 3, and 8 heads" in done.out
    assert out.read_text().count("failed") == 2


def test_where_no_cell_can_be_that_is_one_message(hosim, scenario):
    done = hosim("sweep", scenario, "--grid", "workload.parallel.tensor=3,5", "--grid", "workload.batch=1,2")
    assert (done.code, done.out) == (1, "")
    assert "tensor divides heads, ffn, vocabulary, found 3, and 8 heads" in done.err


def test_a_study_with_a_cell_that_cannot_be_is_checked_and_run(hosim, scenario):
    study = scenario.with_name("study.yaml")
    study.write_text(
        "schema: hosim/study/1\nname: study\nscenario: scenario.yaml\nlist: {workload.parallel.tensor: [3, 2]}\n"
    )
    assert grid.points_in(study) == 2
    done = hosim("sweep", study)
    assert done.code == 0
    assert " fails at workload.parallel.tensor 3: " in done.out


def test_a_frontier_goes_on_over_a_value_that_cannot_be(hosim, scenario):
    done = hosim("frontier", scenario, "--of", "workload.parallel.tensor", "--at-most", "9")
    assert (done.code, done.err) == (0, "")
    assert "resident fits at workload.parallel.tensor 8, but not at 5, 6 and 7, " in done.out
    assert "; at 9 it fails: workload w, parallel.tensor: tensor divides heads" in done.out
    assert "no plan" not in done.out, "it is no bound that such documents cannot be"


def test_a_search_of_the_largest_goes_on_over_a_value_that_cannot_be(hosim, scenario):
    """Two tensor ranks cut the tokens, so that only even lengths can be; the middle ones that are tried are odd."""
    work = scenario.with_name("workload.yaml")
    work.write_text(work.read_text().replace("data: 2", "tensor: 2, sequence: true"))
    of = ("--of", "workload.sequence", "--multiple-of", "1", "--slowdown", "inf")
    done = hosim("frontier", scenario, *of, "--at-least", "2", "--at-most", "4096", "--set", "tiers.hbm.capacity=16 MB")
    assert (done.code, done.err) == (0, "")
    assert "tensor divides heads, ffn, vocabulary, tokens of a micro-batch" in done.out


def test_a_diff_of_other_work_is_by_tokens(hosim, scenario, tmp_path):
    for batch in (1, 4):
        (tmp_path / f"b{batch}").write_text(hosim("run", scenario, "--set", f"workload.batch={batch}", "--json").out)
    done = hosim("diff", tmp_path / "b1", tmp_path / "b4", "--fail-on", "worse")
    assert "other work, by tokens/s" in done.out
    assert done.code == 0, "more tokens in a second, though a step takes longer"
    assert hosim("diff", tmp_path / "b4", tmp_path / "b1", "--fail-on", "worse").code == 1


@pytest.mark.parametrize(("content", "is_worse"), [("same", True), ("other", False)])
def test_a_diff_of_work_that_is_not_known_compares_no_steps(content, is_worse):
    def result(step_ns, content):
        row = {"policy": "p", "status": "ok", "step_ns": step_ns, "compute_ns": step_ns, "peak_hbm_bytes": step_ns}
        inputs = [{"kind": "workload", "name": "w", "sha256": "0", "content": content}]
        return {"rows": [row], "stalls": {}, "figures": {}, "provenance": {"inputs": inputs}}

    (row,) = changes(result(10, "same"), result(20, content), 0)
    assert (row.worse, row.moved) == (is_worse, True)
    assert row.step.difference == (10 if is_worse else None)
    assert bool(row.terms) == is_worse
