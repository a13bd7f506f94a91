"""`hosim sweep` and `hosim.sweep`: all cells of a grid, kept by content."""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
from itertools import product
from pathlib import Path

import documents
import pytest
import tasks

import simulator as hosim_api
from simulator import catalog, interrupts
from simulator.errors import ConfigError, HosimError
from simulator.policies import POLICIES
from simulator.report import grids
from simulator.report.pictures import curves
from simulator.report.views import Panel
from simulator.report.words import shown
from simulator.run import grid, kept
from simulator.run.axes import axis
from simulator.run.sweep import Study
from simulator.run.sweep import sweep as measured

BANDWIDTHS, BUDGETS = "links.*.bandwidth", "scenario.budget"


@pytest.fixture
def folder(own_cache):
    """Where rows are kept."""
    return own_cache / "hosim"


# axes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("16..64 GB/s:4", [16 * 10**9, 32 * 10**9, 48 * 10**9, 64 * 10**9]),
        ("16 GB/s..64 GB/s:2", [16 * 10**9, 64 * 10**9]),
        ("500 MB..2 GB:4", [500 * 10**6, 10**9, 1_500 * 10**6, 2 * 10**9]),
        ("32 GB, 64 GB", [32 * 10**9, 64 * 10**9]),
        ("1..16:5 log", [1, 2, 4, 8, 16]),
        ("1..10:10 log", [1, 2, 3, 4, 5, 6, 8, 10]),  # what rounds to the same whole number counts once
        ("0.5..1.5:3", [0.5, 1.0, 1.5]),
        ("1, 2, 4", [1, 2, 4]),
        ("bf16, fp8", ["bf16", "fp8"]),
        ([8, 16], [8, 16]),
        (["1 GB", "2 GB"], [10**9, 2 * 10**9]),
    ],
)
def test_values_are_read(text, values):
    assert axis("a.b", text)[1] == values


@pytest.mark.parametrize(
    "text",
    ["", "1,,2", "4..1:3", "1..4:1", "a..b:3", "0..4:3 log", "2, 2", "1 GB..2 ms:3", "1..9:99999999", "1..2:3", []],
)
def test_values_that_are_none_are_refused_with_the_axis(text):
    with pytest.raises(ConfigError, match=r"^grid, a\.b: "):
        axis("a.b", text)


def test_an_axis_without_limit_is_one_of_named_values():
    assert axis("links.d2h.bandwidth", "1 GB/s, inf")[1] == ["1 GB/s", "inf"]


# cells


def test_each_cell_is_what_a_run_there_gives(scenario):
    found = hosim_api.sweep(scenario, {BANDWIDTHS: "1..4 GB/s:2", "workload.steps": [1, 2]}, workers=1)
    assert [(row[BANDWIDTHS], row["workload.steps"]) for row in found.rows][:: len(found.rows) // 4] == [
        (at * 10**9, steps) for at, steps in product((1, 4), (1, 2))
    ]
    for row in found.rows:
        there = {BANDWIDTHS: f"{row[BANDWIDTHS]} B/s", "workload.steps": row["workload.steps"]}
        alone = hosim_api.run(scenario, set=there)[row["policy"]].summary
        same = set(alone) & set(row) - {"notes", "remarks"}
        assert {key: row[key] for key in same} == {key: alone[key] for key in same}
        assert len(same) > (20 if row["status"] == "ok" else 3)


def test_there_is_a_line_for_each_cell_and_policy_and_sentences_about_them(hosim, scenario):
    done = hosim("sweep", scenario, "--grid", f"{BANDWIDTHS}=1..4 GB/s:3", "--workers", 1)
    assert done.code == 0
    head, *lines = done.out.splitlines()
    assert head.split()[:2] == ["policy", BANDWIDTHS]
    policies = ["resident", "reactive", "static"]
    assert len(lines[: lines.index("")]) == 3 * len(policies)
    told = " ".join(lines[lines.index("") :])
    assert all(f"{policy} takes" in told or f"{policy} does not fit" in told for policy in policies)


@pytest.mark.slow
def test_the_result_is_the_same_with_any_number_of_workers(scenario):
    asked = {BANDWIDTHS: "1..4 GB/s:3", BUDGETS: ["80 MB", "90 MB"]}
    assert (
        hosim_api.sweep(scenario, asked, workers=1, cache=False).json()
        == hosim_api.sweep(scenario, asked, workers=2, cache=False).json()
    )


def test_what_cannot_run_in_a_cell_is_a_row_with_its_reason(hosim, tmp_path):
    documents.lay(tmp_path, documents.JOB, documents.STORY)
    done = hosim("sweep", tmp_path / "story.yaml", "--grid", f"{BUDGETS}=100 B, 64 GB", "--workers", 1)
    assert done.code == 0
    assert f"resident does not fit at {BUDGETS} 100 B.\n" in done.out


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([f"{BANDWIDTHS}=1..200 GB/s:200", "workload.steps=1..100:100"], "at most 10,000 cells are run"),
        (
            [f"{BANDWIDTHS}=8..16 GB/s:2", "links.d2h.b*=8..16 GB/s:2"],
            "found links.d2h.bandwidth on links.*.bandwidth and on links.d2h.b*",
        ),
        (["links.*.bandwith=1 GB/s"], "did you mean 'bandwidth'"),
        (["workload.banana=1,2"], "a change names a field of the workload"),
        ([], "a sweep varies something, found nothing"),
        ([f"{BANDWIDTHS}=fast"], "grid, links.*.bandwidth"),
        (["workload.steps=1,2", "--policy=residnet"], "a row of the scenario or one that hosim has, found 'residnet'"),
    ],
)
def test_what_is_wrong_is_one_message_before_anything_runs(hosim, scenario, asked, told):
    done = hosim("sweep", scenario, *(text if text.startswith("--") else f"--grid={text}" for text in asked))
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert len(done.err.splitlines()) == 1


def test_an_axis_that_is_said_twice_is_a_wrong_option(hosim, scenario):
    result = hosim("sweep", scenario, "--grid", f"{BANDWIDTHS}=8 GB/s", "--grid", f"{BANDWIDTHS}=9 GB/s")
    assert result.code == 2
    assert "an axis is given once" in result.err


def test_a_grid_without_values_is_a_wrong_option(hosim, scenario):
    assert hosim("sweep", scenario, "--grid", "links").code == 2


# what is kept


def test_what_was_run_before_is_not_run_again(scenario, monkeypatch):
    asked = {BANDWIDTHS: "1..4 GB/s:3"}
    first = hosim_api.sweep(scenario, asked, workers=1)
    ran = []
    monkeypatch.setattr(grid.Cells, "__call__", lambda self, loaded, point: ran.append(point) or [])
    assert hosim_api.sweep(scenario, asked, workers=1).json() == first.json()
    assert ran == []
    hosim_api.sweep(scenario, {BANDWIDTHS: "1..5 GB/s:5"}, workers=1)
    assert ran == [(2 * 10**9,), (3 * 10**9,), (5 * 10**9,)]


@pytest.mark.parametrize("change", ["workload", "rows", "code", "bounds", "set"])
def test_another_question_is_run_anew(scenario, monkeypatch, change):
    asked, more = {BANDWIDTHS: "1..2 GB/s:2"}, {}
    hosim_api.sweep(scenario, asked, workers=1)
    ran = []
    monkeypatch.setattr(grid.Cells, "__call__", lambda self, loaded, point: ran.append(point) or [])
    if change == "workload":
        more["set"] = {"workload.steps": 3}
    if change == "set":
        more["set"] = {"tiers.ddr.capacity": "900 GB"}
    if change == "rows":
        more["policies"] = ["static"]
    if change == "bounds":
        more["bounds"] = True
    if change == "code":
        monkeypatch.setattr(grid, "code_key", lambda: "another")
    hosim_api.sweep(scenario, asked, workers=1, **more)
    assert len(ran) == 2


def test_a_sweep_that_is_stopped_goes_on(scenario, folder, monkeypatch):
    interrupts.complete.clear()
    asked, measure, ran = {BANDWIDTHS: "1..4 GB/s:4"}, grid.Cells.__call__, []

    def stop(self, loaded, point):
        ran.append(point)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return measure(self, loaded, point)

    monkeypatch.setattr(grid.Cells, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        hosim_api.sweep(scenario, asked, workers=1)
    assert interrupts.complete == [f"all rows so far, in {folder / 'rows.sqlite'},"]
    assert len(hosim_api.sweep(scenario, asked, workers=1).rows) % 4 == 0
    assert len(ran) == 3 + 2  # the two that were measured are there


def test_nothing_is_kept_if_that_is_asked_for_and_of_functions(scenario, folder):
    hosim_api.sweep(scenario, {BANDWIDTHS: ["1 GB/s"]}, workers=1, cache=False)
    mine = {"mine": POLICIES["static"].plan}
    hosim_api.sweep(scenario, {BANDWIDTHS: ["1 GB/s"]}, policies=mine, workers=1)
    assert not folder.exists()


def test_a_cache_that_cannot_be_read_is_one_message(hosim, scenario, tmp_path):
    folder = tmp_path / "spoilt"
    folder.mkdir()
    (folder / "rows.sqlite").write_bytes(b"no database" * 100)
    done = hosim("sweep", scenario, "--grid", f"{BANDWIDTHS}=1..2 GB/s:2", "--cache", folder)
    assert done.code == 1
    assert "rows.sqlite: rows that were measured can be kept and read again, found file is not a database" in done.err


@pytest.mark.parametrize("fault", ["a home that is a file", "a home that nobody has", "a spoilt file", "a full disk"])
def test_without_the_default_cache_a_sweep_goes_on_and_says_so(hosim, scenario, tmp_path, monkeypatch, fault):
    home = tmp_path / "home"
    asked = ("sweep", scenario, "--grid", f"{BANDWIDTHS}=1..3 GB/s:3", "--policy", "static", "--workers", 1)
    usual = hosim(*asked, "--no-cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    if fault == "a home that is a file":
        home.write_text("")
    elif fault == "a home that nobody has":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(kept.Path, "home", lambda: os.fspath(Path("~nobody-at-all").expanduser()))
    elif fault == "a spoilt file":
        (home / "cache" / "hosim").mkdir(parents=True)
        (home / "cache" / "hosim" / "rows.sqlite").write_bytes(b"no database" * 100)
    else:
        monkeypatch.setattr(kept.orjson, "dumps", lambda *_, dumps=kept.orjson.dumps, **__: _full(dumps, *_, **__))
    done = hosim(*asked)
    assert (done.code, done.out) == (0, usual.out)
    (said,) = (line for line in done.err.splitlines() if "not kept" in line)
    assert re.fullmatch(
        r"hosim: .*: rows are not kept from here on \(.*\); name another folder with --cache, or .*", said
    )


def _full(dumps, data, **more):
    """Write JSON for keys, and find the disk full when rows are kept."""
    if isinstance(data, list) and data and isinstance(data[0], dict):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return dumps(data, **more)


def test_a_folder_that_is_asked_for_is_used_or_refused(hosim, scenario, tmp_path):
    (tmp_path / "file").write_text("")
    done = hosim("sweep", scenario, "--grid", f"{BANDWIDTHS}=1..2 GB/s:2", "--cache", tmp_path / "file" / "inner")
    assert (done.code, done.out) == (1, "")
    assert "rows that were measured can be kept and read again, found [Errno 20]" in done.err


def test_a_row_that_is_spoilt_in_a_cache_is_one_message(tmp_path):
    rows = kept.KeptRows(tmp_path)
    rows.put(b"key", [{"policy": "static"}])
    assert rows.get(b"key") == [{"policy": "static"}]
    with sqlite3.connect(tmp_path / "rows.sqlite") as base:
        base.execute("UPDATE rows SET rows = ?", (b"{{",))
    base.close()
    with pytest.raises(ConfigError, match=r"kept and read again, found .*; remove that file"):
        rows.get(b"key")
    rows.close()


def test_a_cache_of_another_form_is_refused(tmp_path):
    tmp_path.joinpath("later").mkdir()
    with sqlite3.connect(tmp_path / "later" / "rows.sqlite") as base:
        base.execute("PRAGMA user_version = 7")
    base.close()
    with pytest.raises(ConfigError, match="rows are kept in form 1, found form 7"):
        kept.KeptRows(tmp_path / "later")


@pytest.mark.skipif(os.geteuid() == 0, reason="all may be written by the superuser")
def test_a_folder_that_cannot_be_made_is_one_message(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="can be kept"):
        kept.KeptRows(tmp_path / "new")


# what is written


@pytest.mark.parametrize("axes", [1, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 3))])
def test_the_folder_holds_the_rows_the_picture_and_the_documents(hosim, scenario, tmp_path, axes):
    asked = [f"{BANDWIDTHS}=1..2 GB/s:2", f"{BUDGETS}=80 MB, 90 MB", "workload.steps=1,2"][:axes]
    out = tmp_path / "out"
    done = hosim("sweep", scenario, *(one for text in asked for one in ("--grid", text)), "--out", out)
    assert done.code == 0
    names = {path.name for path in out.iterdir()}
    assert names >= {"points.csv", "sweep.png", "sweep.svg", "report.html", "summary.json", "scenario.yaml"}
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["grid"]) == [text.partition("=")[0] for text in asked]
    assert len((out / "points.csv").read_text().splitlines()) == 1 + len(summary["rows"])


@pytest.mark.parametrize(
    ("unit", "values", "name", "first"),
    [
        ("ns", [500, 1500], "links.*.latency [us]", 0.5),
        ("B/s", [16 * 10**9, 2 * 10**11], "links.*.latency [GB/s]", 16),
        ("B/s", [16 * 10**9, 2 * 10**11, 2 * 10**12], "links.*.latency [GB/s]", 16),
        ("B", [5 * 10**5], "links.*.latency [kB]", 500),
        ("%", [0.05, 0.1], "links.*.latency [%]", 5),
        ("", [3, 4], "links.*.latency", 3),
    ],
)
def test_an_axis_is_drawn_in_a_handy_unit(unit, values, name, first):
    rows = [{"policy": "static", "latency": value, "step_ns": 5} for value in values]
    ax = curves("steps", [Panel("one step", "links.*.latency", "ns", rows, "latency", "step_ns", unit)])
    assert (ax.get_xlabel(), ax.lines[0].get_xdata()[0]) == (name, first)
    assert ax.get_xticklabels()[0].get_text() == str(first)


def test_a_long_table_is_written_and_not_printed(hosim, scenario):
    done = hosim("sweep", scenario, "--grid", f"{BANDWIDTHS}=1..9 GB/s:70", "--policy", "reactive", "--workers", 1)
    assert "70 rows are too many to print: --out DIR writes them to DIR/points.csv, --out FILE.csv" in done.out
    assert len(done.out.splitlines()) < 6


def test_the_table_is_tidy(scenario):
    table = hosim_api.sweep(scenario, {BANDWIDTHS: ["1 GB/s", "2 GB/s"]}, policies=["static"], workers=1).table
    assert list(table[BANDWIDTHS]) == [10**9, 2 * 10**9]
    assert str(table["step_ns"].dtype) == "Int64"


# what changes nothing


def test_what_is_no_wider_than_an_axis_that_changes_no_step_is_named(hosim, scenario):
    machine = scenario.with_name("machine.yaml")
    machine.write_text(f"{machine.read_text()}buses:\n  pcie: {{links: [d2h, h2d], bandwidth: 3 GB/s}}\n")
    grid = ("--grid", f"{BANDWIDTHS}=2 GB/s, 4 GB/s, 8 GB/s, 16 GB/s", "--grid", "tiers.hbm.capacity=50 MB, 100 MB")
    done = hosim("sweep", scenario, *grid, "--policy", "static", "--policy", "reactive", "--workers", 1)
    assert f"From 4.00 GB/s to 16.0 GB/s, {BANDWIDTHS} changes no step of static and reactive: " in done.out
    assert ": the bus pcie (3.00 GB/s) limits it.\n" in done.out
    assert ": the scenario's budget (4.30 MB) limits it.\n" in done.out


def test_ranges_are_of_neighbours_whose_steps_are_the_same_in_all_cells():
    steps = {1: {"a": 5, "b": 5}, 2: {"a": 5, "b": 5}, 3: {"a": 4, "b": 5}, 4: {"a": 4, "b": 5}, 5: {"a": 4, "b": 5}}
    assert grids._flat_ranges([1, 2, 3, 4, 5], steps) == [(1, 2), (3, 5)]
    del steps[4]
    assert grids._flat_ranges([1, 2, 3, 4, 5], steps) == [(1, 2)]


def test_without_a_cap_it_is_told_what_computes_wait_for():
    rows = [{"wait_capacity_ns": 2, "wait_transfer_ns": 1}, {"wait_transfer_ns": 2}]
    assert grids._what_limits([], rows) == "most stalls there are waits for transfers"
    assert grids._what_limits([], [{"wait_host_ns": 0}]) == "no compute waits there"
    assert grids._what_limits(["a", "b"], rows) == "a and b limit it"


def strict(scenario, **more):
    axis = catalog.Axis("number", (), "a test")
    return Study(catalog.resolve(scenario), tasks.measured, (axis,), [(n,) for n in range(5)], probes=(), **more)


@pytest.mark.slow
def test_a_point_whose_process_dies_twice_is_a_row(scenario):
    rows = measured([strict(scenario)], workers=2)
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "failed", "ok"]
    assert rows[3]["notes"].startswith("its process died, twice")
    with pytest.raises(HosimError, match="a process survives until it has measured its points, found 1 that died"):
        measured([strict(scenario, is_strict=True)], workers=2)


def test_how_many_points_there_are_is_said_before_they_run_and_then_how_long_they_take(hosim, scenario, tmp_path):
    asked = ("sweep", scenario, "--workers", 1, "--cache", tmp_path, "--grid")
    first = hosim(*asked, f"{BANDWIDTHS}=1..3 GB/s:3").err.splitlines()
    assert first[0] == "hosim: 3 points, 0 of them kept from before"
    assert re.fullmatch(r"hosim: about \S+ \S+ for the other 1", first[1])
    more = hosim(*asked, f"{BANDWIDTHS}=1..5 GB/s:5").err.splitlines()
    assert more[0] == "hosim: 5 points, 3 of them kept from before"
    assert hosim(*asked, f"{BANDWIDTHS}=1..5 GB/s:5").err == "hosim: 5 points, 5 of them kept from before\n"


def test_costs_that_a_machine_states_are_in_the_table(hosim, scenario):
    asked = ("sweep", scenario, "--grid", "workload.steps=1", "--no-cache", "--workers", 1, "--policy", "static")
    assert "cost" not in hosim(*asked).out
    done = hosim(*asked, "--set", "compute.price=3.6 USD/h", "--set", "compute.power=700 W")
    run = hosim_api.run(scenario, set={"compute.price": "3.6 USD/h", "workload.steps": 1}, policies=["static"])
    head, line = done.out.splitlines()[:2]
    assert head.split()[-2:] == ["energy", "cost"]
    assert line.endswith(shown("step_usd", run["static"].summary["step_usd"]))
