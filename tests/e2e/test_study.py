"""Studies: documents that say what varies, what is drawn, and the file to which rows are appended."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import sys
from itertools import product

import chain
import numpy as np
import pandas as pd
import pytest

import simulator as hosim_api
from simulator import catalog
from simulator.errors import ConfigError
from simulator.metrics.statistics import beats, quantile_interval, summed
from simulator.report.uncertain import comparisons
from simulator.run import grid, kept
from simulator.run.case import prepare
from simulator.run.conditions import drawn, jittered
from simulator.run.row import row_of
from simulator.run.sweep import silent
from simulator.scenario.study import Sample

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

LINK, LATENCY, BUDGET, STEPS = "links.*.bandwidth", "links.*.latency", "scenario.budget", "workload.steps"
STUDY = """\
schema: hosim/study/1
name: mine
title: what I ask
scenario: inputs/scenario.yaml
policies: [static, reactive]
"""
UNIFORM = "{distribution: uniform, loc: 1 us, scale: 4 us}"


@pytest.fixture
def study(tmp_path, scenario):
    """Write a study of the chain."""

    def write(more: str):
        path = tmp_path / "mine.yaml"
        path.write_text(STUDY + more)
        return path

    return write


# what varies


@pytest.mark.parametrize("kind", ["grid", "list"])
@pytest.mark.parametrize(("listed", "first"), [("[[1], 2]", "[1]"), ("[{a: 1}, 2]", "{a: 1}"), ("[[], 2]", "[]")])
def test_a_value_that_is_no_number_is_refused_where_a_number_belongs(hosim, study, kind, listed, first):
    path = study(f"{kind}: {{{STEPS}: {listed}}}\n")
    for command in ("check", "sweep"):
        done = hosim(command, path)
        assert (done.code, done.out) == (1, "")
        where = f"hosim: {kind}, {STEPS} ({STEPS}: {first}): "
        assert done.err.splitlines()[-1].startswith(f"{where}this is a whole number, found {first}; ")


def test_lists_and_mappings_are_values_of_a_field_that_holds_them(study, tmp_path):
    """They are named as a document states them, and the study that is written with the rows says the same."""
    path = study("grid: {scenario.homes: [{}, {weight: ddr}]}\n")
    found = hosim_api.sweep(path, policies=["static"], workers=1, cache=False)
    assert [row["scenario.homes"] for row in found.rows] == ["{}", "{weight: 'ddr'}"]
    found.write(tmp_path / "out")
    again = hosim_api.sweep(tmp_path / "out" / "study.yaml", workers=1, cache=False)
    assert [row["step_ns"] for row in again.rows] == [row["step_ns"] for row in found.rows]
    with pytest.raises(ConfigError, match="the values of an axis are distinct"):
        hosim_api.sweep(study("grid: {scenario.homes: [{}, {}]}\n"), workers=1)


def test_points_are_cells_with_entries_of_the_list_and_draws(study):
    more = f"grid: {{{LINK}: 2..4 GB/s:2}}\nlist: {{{STEPS}: [1, 2, 2], {BUDGET}: [4 MB, 5 MB, 5.5 MB]}}\n"
    found = hosim_api.sweep(study(f"{more}sample: {{size: 2, of: {{{LATENCY}: {UNIFORM}}}}}\n"), workers=1)
    at = [tuple(row[key] for key in (LINK, STEPS, BUDGET, "draw")) for row in found.rows[::2]]
    entries = [(1, 4_000_000), (2, 5_000_000), (2, 5_500_000)]
    assert at == [(link, *entry, draw) for link, entry, draw in product((2 * 10**9, 4 * 10**9), entries, range(2))]
    assert [row["policy"] for row in found.rows[:2]] == ["static", "reactive"]
    latencies = {row["draw"]: set() for row in found.rows}
    for row in found.rows:
        latencies[row["draw"]].add(row[LATENCY])
    assert [len(own) for own in latencies.values()] == [1, 1]  # all cells and policies meet the same
    assert latencies[0] != latencies[1]


def test_a_cell_of_a_study_is_what_a_run_there_gives(study, scenario):
    (row,) = hosim_api.sweep(
        study(f"set: {{{STEPS}: 3}}\nsample: {{size: 1, of: {{{LATENCY}: {UNIFORM}}}}}\n"),
        policies=["static"],
        workers=1,
    ).rows
    alone = hosim_api.run(scenario, set={STEPS: 3, LATENCY: f"{row[LATENCY]} ns"})["static"].summary
    assert row["step_ns"] == alone["step_ns"] > 0


def test_what_is_asked_in_the_call_wins_over_the_study(study):
    found = hosim_api.sweep(study(f"grid: {{{LINK}: [2 GB/s]}}\n"), {STEPS: [1, 2]}, policies=["resident"], workers=1)
    assert [(row["policy"], row[STEPS]) for row in found.rows] == [("resident", 1), ("resident", 2)]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "a study varies something"),
        (f"grid: {{{LINK}: [1 GB/s]}}\nlist: {{{LINK}: [2 GB/s]}}\n", "a field varies in one way"),
        (f"list: {{{STEPS}: [1, 2], {LINK}: [2 GB/s]}}\n", "the fields of a list are equally long, found 1 and 2"),
        ("sample: {size: 4}\n", "a sample draws something"),
        (f"sample: {{size: 4, of: {{{LATENCY}: {{distribution: norm, scale: 1 us, c: 0.5}}}}}}\n", "c is of triang"),
        (f"sample: {{size: 4, of: {{{LATENCY}: {{distribution: lognorm, scale: 1 us}}}}}}\n", "lognorm without it"),
        (
            f"sample: {{size: 4, of: {{{LATENCY}: {{distribution: norm, loc: 1, scale: 1 us}}}}}}\n",
            "of, links.*.latency",
        ),
        (f"sample: {{size: 4, of: {{{LATENCY}: {{distribution: norm, scale: 1 GB}}}}}}\n", "links.*.latency"),
        (f"sample: {{size: 4, of: {{{LATENCY}: {{distribution: beta, scale: 1 us}}}}}}\n", "distribution"),
        (f"sample: {{size: 4, of: {{links.*.latenzy: {UNIFORM}}}}}\n", "did you mean 'latency'"),
        (f"sample: {{size: 90000, of: {{{LATENCY}: {UNIFORM}}}}}\n", "at most 10,000 cells are run"),
        (
            f"grid: {{{LINK}: 1..9 GB/s:1000, {STEPS}: 1..1000:1000, {LATENCY}: 1..9 us:1000}}\n",
            "found 1,000,000,000; ask for",
        ),
        ("sample: {size: 2, jitter: 0.1}\n", "bounds are of a machine without jitter"),
    ],
)
def test_what_is_wrong_is_one_message_before_anything_runs(hosim, study, more, told):
    done = hosim("sweep", study(more), *(["--bounds"] if "jitter" in more else []))
    assert (done.code, done.out) == (1, "")
    assert told in done.err


def test_a_study_is_checked_and_listed_as_other_documents_are(hosim, study):
    assert ": study, 6 points: ok" in hosim("check", study(f"grid: {{{LINK}: 1..3 GB/s:3, {STEPS}: [1, 2]}}\n")).out
    assert "tiny_train_uncertain" in hosim("list", "studies").out


def test_a_budget_above_the_capacity_is_a_row_of_its_cell(hosim, scenario):
    done = hosim("sweep", scenario, "--grid", "tiers.hbm.capacity=2 MB, 100 MB", "--policy", "static", "--workers", 1)
    assert done.code == 0
    assert "nothing runs at tiers.hbm.capacity 2.00 MB: " in done.out
    assert "a budget is at most the capacity of hbm (2.00 MB), found 4.30 MB" in done.out


# draws


def test_draws_are_of_the_distribution_that_is_named():
    said = {
        "a": {"distribution": "uniform", "loc": "1 us", "scale": "4 us"},
        "b": {"distribution": "norm", "loc": 10, "scale": 2},
        "c": {"distribution": "triang", "loc": "1 GB/s", "scale": "2 GB/s", "c": 0.25},
        "d": {"distribution": "lognorm", "scale": "2 us", "s": 0.5},
    }
    for method in ("random", "sobol"):
        axes, found = drawn(Sample(size=4096, method=method, seed=3, of=said), "here")
        assert [axis.unit for axis in axes] == ["ns", None, "B/s", "ns", None]
        uniform, norm, triang, lognorm, number = np.array(found).T
        assert list(number) == list(range(4096))
        assert (uniform.min(), uniform.max()) == pytest.approx((1000, 5000), abs=10)
        assert uniform.mean() == pytest.approx(3000, rel=0.02)
        assert (norm.mean(), norm.std()) == pytest.approx((10, 2), rel=0.03)
        assert triang.mean() == pytest.approx((1 + 3 + 1.5) / 3 * 10**9, rel=0.02)
        assert (np.median(lognorm), np.log(lognorm).std()) == pytest.approx((2000, 0.5), rel=0.03)


def test_a_sobol_sample_has_one_draw_in_each_part_of_the_range():
    said = {"a": {"distribution": "uniform", "scale": 1}}
    found = [value for value, _ in drawn(Sample(size=64, method="sobol", of=said), "here")[1]]
    assert sorted(math.floor(64 * value) for value in found) == list(range(64))
    assert found != [value for value, _ in drawn(Sample(size=64, method="sobol", seed=1, of=said), "here")[1]]


def test_without_scipy_a_sample_names_what_to_install(study, hosim, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = hosim("sweep", study("sample: {size: 2, jitter: 0.1}\n"))
    assert (done.code, done.out) == (1, "")
    assert "pip install 'hosim[study]'" in done.err


def test_jitter_gives_all_policies_of_a_draw_the_same_times(study, scenario):
    found = hosim_api.sweep(study("sample: {size: 3, jitter: 0.3, seed: 5}\n"), workers=1)
    case = prepare(catalog.resolve(scenario))
    for row in found.rows:
        assert row["compute_ns"] == sum(jittered(case, 0.3, row["draw"], 5).problem.durations_ns)
    assert len({row["compute_ns"] for row in found.rows}) == 3


def test_jitter_is_of_rows_that_set_something_of_the_machine_too(tmp_path):
    own = "- {policy: static, label: own, set: {links.*.bandwidth: 1 GB/s}}"
    case = prepare(catalog.resolve(chain.write(tmp_path, scenario=chain.SCENARIO.replace("- static", own))))
    shaken = jittered(case, 0.3, 2, 5)
    assert shaken.for_row("reactive") is shaken
    found, usual = shaken.for_row("own"), case.for_row("own")
    assert found.hardware.links["d2h"].bandwidth_bytes_per_s != usual.hardware.links["d2h"].bandwidth_bytes_per_s
    assert found.problem.durations_ns == jittered(usual, 0.3, 2, 5).problem.durations_ns != usual.problem.durations_ns


# plans that are made once


def test_plans_that_are_made_once_are_replayed_unchanged(study, scenario):
    """With less room than it was made for, a plan blocks; where links are slower it is the same one."""
    varied = f"grid: {{{BUDGET}: [4.3 MB, 3.5 MB], {LINK}: [4 GB/s, 1 GB/s]}}\n"
    anew = hosim_api.sweep(study(varied), workers=1)
    once = hosim_api.sweep(study(f"{varied}plans: once\n"), workers=1)
    statuses = {(row["policy"], row[BUDGET]): row["status"] for row in once.rows}
    assert statuses["static", 3_500_000] == "blocked"
    assert {*statuses.values()} == {"ok", "blocked"}
    assert {row["status"] for row in anew.rows} == {"ok"}
    case = prepare(catalog.resolve(scenario))
    plan = case.rows(["static"])["static"](case.problem)
    for row in once.rows:
        if row["policy"] == "static" and row["status"] == "ok":
            at = prepare(catalog.resolve(scenario, {LINK: f"{row[LINK]} B/s"}))
            assert row["step_ns"] == row_of(at, "static", lambda _: plan, silent).summary["step_ns"]
    runtime = [[one["step_ns"] for one in found.rows if one["policy"] == "reactive"] for found in (once, anew)]
    assert runtime[0] == runtime[1], "it decides as it runs"


# what draws tell


def test_the_interval_of_a_median_is_of_order_statistics():
    steps = list(range(100, 120))
    assert quantile_interval(steps, 0.5) == (105, 114)  # the 6th and the 15th of 20: Conover's table
    assert quantile_interval([1, 2, 3], 0.5) == (None, None)
    assert quantile_interval([*range(15), *[math.inf] * 5], 0.5) == (5, 14)


def test_how_often_one_beats_another_has_wilsons_interval():
    steps = {"one": [1] * 60 + [2, 3, math.inf, 2], "two": [2] * 60 + [2, 2, math.inf, math.inf]}
    found = beats(steps, "one", "two")
    assert (found.policy, found.other, found.times, found.draws) == ("one", "two", 61, 64)
    assert beats(steps, "two", "one").times == 1, "two draws tie"
    z, n, p = 1.959963984540054, 64, 61 / 64
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    assert (found.low, found.high) == pytest.approx(((middle - half) / scale, (middle + half) / scale))


def test_policies_with_the_same_median_share_it():
    rows = [{"policy": who, "draw": draw, "status": "ok", "step_ns": 1000 + draw} for who in "ab" for draw in range(3)]
    told = next(iter(comparisons(summed(rows, []), [])))
    assert told == "a and b have the least median, 1.00 us; a is faster than b in 0 % (0 to 56 %) of 3 draws."


@pytest.mark.slow
@pytest.mark.parametrize(("more", "drawn_as"), [("", 1), (f"grid: {{{STEPS}: [1, 2]}}\n", 1), ("both", 2)])
def test_draws_are_summed_up_and_drawn(hosim, study, tmp_path, drawn, monkeypatch, more, drawn_as):
    monkeypatch.setattr(drawn[0], "write", drawn[1])
    if more == "both":
        more = f"grid: {{{STEPS}: [1, 2], {LINK}: 2..4 GB/s:2}}\n"
    path = study(f"{more}sample: {{size: 8, of: {{{LATENCY}: {UNIFORM}}}}}\n")
    done = hosim("sweep", path, "--out", tmp_path / "out", "--workers", 1)
    assert done.code == 0
    assert "static has the least median" in done.out
    assert "and is faster than reactive in 100 % (68 to 100 %) of 8 draws." in done.out
    rows = pd.read_csv(tmp_path / "out" / "points.csv")
    assert len(rows) == 2 * 8 * max(1, 2 * drawn_as * bool(more))
    assert (tmp_path / "out" / "sweep.png").stat().st_size > 10_000
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(said["quantiles"]) == len(said["beats"]) == len(rows) / 8
    for line in said["quantiles"]:
        alike = [one for one in rows.to_dict("records") if all(one[key] == line[key] for key in {*one} & {*line})]
        own = sorted(one["step_ns"] for one in alike)
        assert (line["p05_step_ns"], line["median_step_ns"], line["p95_step_ns"]) == (own[0], own[3], own[7])
        assert (line["median_low_ns"], line["median_high_ns"]) == (own[0], own[7])
        assert (line["p05_low_ns"], line["p95_high_ns"]) == (None, None), "8 draws do not tell"
        assert own[0] <= line["p05_high_ns"] <= line["p95_low_ns"] <= own[7]
    assert {(pair["policy"], pair["other"], pair["times"], pair["draws"]) for pair in said["beats"]} == {
        ("static", "reactive", 8, 8),
        ("reactive", "static", 0, 8),
    }
    assert "faster than static  faster than reactive" in done.out
    if not more:
        again = hosim_api.sweep(tmp_path / "out" / "study.yaml", workers=1, cache=False)
        assert str(again) in done.out


# rows as they come

ASKED = {LINK: "1..4 GB/s:4", STEPS: [1, 2]}


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("points.csv", {"one": 1, "kept": 1}),
        pytest.param("points.csv", {"one": 1, "two": 2}, marks=pytest.mark.slow),
        pytest.param("points.parquet", {"one": 1, "kept": 1}, marks=pytest.mark.slow),
    ],
)
def test_the_file_is_the_same_with_any_number_of_workers_and_from_the_cache(scenario, tmp_path, name, folders):
    for folder, workers in folders.items():
        hosim_api.sweep(
            scenario, ASKED, workers=workers, cache=folder == "kept" or tmp_path / folder, out=tmp_path / folder / name
        )
    hosim_api.sweep(scenario, ASKED, workers=1, out=tmp_path / "kept" / name)
    texts = {(tmp_path / folder / name).read_bytes() for folder in folders}
    assert len(texts) == 1
    assert not list(tmp_path.glob("*/*.partial"))


def test_the_rows_of_the_file_are_those_of_the_table(scenario, tmp_path):
    whole = hosim_api.sweep(scenario, ASKED, workers=1)
    shown = hosim_api.sweep(scenario, ASKED, workers=1, out=tmp_path / "a.csv")
    hosim_api.sweep(scenario, ASKED, workers=1, out=tmp_path / "a.parquet")
    assert str(shown) == str(whole)
    for read in (
        pd.read_csv(tmp_path / "a.csv"),
        pd.read_parquet(tmp_path / "a.parquet"),
    ):
        assert set(whole.table) <= set(read)
        for column in whole.table:
            own, other = (
                [None if pd.isna(one) or one == "" else one for one in table[column]] for table in (whole.table, read)
            )
            assert own == other


def test_a_sweep_that_is_stopped_leaves_whole_rows(scenario, tmp_path, monkeypatch):
    measure, ran = grid.Cells.__call__, []

    def stop(self, loaded, point):
        ran.append(point)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return measure(self, loaded, point)

    monkeypatch.setattr(grid.Cells, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        hosim_api.sweep(scenario, ASKED, workers=1, out=tmp_path / "out")
    left = (tmp_path / "out.points.csv").read_text()
    assert left.endswith("\n")
    assert left.count("\n") == 1 + 3 * 3
    whole = hosim_api.sweep(scenario, ASKED, workers=1, out=tmp_path / "out")
    whole.write(tmp_path / "out")
    assert (tmp_path / "out" / "points.csv").read_text().startswith(left)
    assert not (tmp_path / "out.points.csv").exists()


def test_on_a_full_disk_the_file_ends_with_a_whole_row(hosim, scenario, tmp_path, monkeypatch):
    write, calls = os.write, []

    def full(file, data):
        calls.append(data)
        if len(calls) < 4:
            return write(file, data)
        if len(calls) == 4:
            return write(file, data[:50])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kept.os, "write", full)
    asked = [one for key, values in (("a", f"{LINK}=1..4 GB/s:4"),) for one in ("--grid", values)]
    done = hosim("sweep", scenario, *asked, "--workers", 1, "--out", tmp_path / "a.csv")
    assert (done.code, done.out) == (1, "")
    assert "rows can be written, found No space left on device; make room" in done.err
    assert (tmp_path / "a.csv").read_bytes() == b"".join(calls[:3])


@pytest.mark.parametrize(
    ("name", "out"), [("a.csv", "a.csv"), ("a.parquet.csv", "a.parquet"), ("out.points.csv", "out")]
)
def test_a_pipe_in_place_of_the_rows_is_refused(scenario, tmp_path, name, out):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=rf"{name}: an output is a file, found a device or a pipe"):
        hosim_api.sweep(scenario, {STEPS: [1]}, workers=1, out=tmp_path / out)


def test_a_parquet_file_is_whole_or_as_it_was(scenario, tmp_path, monkeypatch):
    from pyarrow import parquet

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.parquet").write_text("earlier")
    monkeypatch.setattr(parquet.ParquetWriter, "write_batch", full)
    with pytest.raises(ConfigError, match=r"a\.parquet: the file can be written, found No space left on device"):
        hosim_api.sweep(scenario, {STEPS: [1]}, workers=1, cache=False, out=tmp_path / "a.parquet")
    assert sorted(path.name for path in tmp_path.glob("*a.parquet*")) == ["a.parquet", "a.parquet.csv"]
    assert not list(tmp_path.glob(".part*"))
    assert (tmp_path / "a.parquet").read_text() == "earlier"


def test_a_file_that_another_process_writes_is_left_alone(hosim, scenario, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("theirs\n")
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = hosim("sweep", scenario, "--grid", f"{STEPS}=1,2", "--out", file)
    assert (done.code, done.out) == (1, "")
    assert "one process at a time writes a study, found another one that does" in done.err
    assert file.read_text() == "theirs\n"


def test_without_pyarrow_a_parquet_file_is_refused(scenario, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"name a \.csv"):
        hosim_api.sweep(scenario, {STEPS: [1]}, workers=1, out=tmp_path / "a.parquet")
    assert list(tmp_path.glob("a.parquet*")) == []
