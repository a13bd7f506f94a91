"""Tables and counts that the PAGES states in its prose are what commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench.serving import kept
from pages import PAGES

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.report.words import percent, quantity
from simulator.run.grid import sweep

ROOT = Path(__file__).parents[2]


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose heading begins so."""
    (found,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGES, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


@pytest.mark.slow
def test_the_curve_of_kimi_k2_on_one_gpu():
    curve = sweep("kimi_k2_on_one_node", cache=False, workers=1)
    (shown,) = re.findall(r"^\| batch \| 64 \| 512 \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGES, re.MULTILINE)
    lines = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in shown.splitlines()}
    rows = {policy: [row for row in curve.rows if row["policy"] == policy] for policy in ("static", "reactive")}
    assert lines == {
        "a step": [quantity(row["step_ns"], "ns") for row in rows["static"]],
        "tokens/s": [f"{row['tokens_per_s']:.3g}" for row in rows["static"]],
        "gap at most": [percent(row["gap_fraction"]) for row in rows["static"]],
        "a step of `reactive`": [quantity(row["step_ns"], "ns") for row in rows["reactive"]],
    }


@pytest.mark.slow
def test_how_fast_the_link_must_be():
    for name, *times in table("`links.h2d.bandwidth`"):
        rate = " ".join(name.replace(",", "").split()[:2])
        rows = {row["policy"]: row for row in hosim.serve("kv_reuse_h100", set={"links.h2d.bandwidth": rate}).rows}
        found = [rows[policy][f"read_{share}_hit_p50_ns"] for share in (50, 100) for policy in ("static", "on demand")]
        assert times == [quantity(ns, "ns") for ns in found], name


@pytest.mark.slow
def test_what_a_slower_pool_does():
    scenario = catalog.read_scenario("chat_kv_tiers_h100")
    alone = scenario.model_copy(update={"kv_tiers": {"hbm": scenario.kv_tiers["hbm"]}})
    for name, *cells in table("link | TTFT p50"):
        rate = re.match(r"[\d.]+ GB/s", name)
        changes = {"links.*.bandwidth": rate.group()} if rate else {}
        (row,) = hosim.serve(scenario if rate else alone, set=changes, policies=["static"]).rows
        times = [row[f"{what}_{which}_ns"] for what in ("ttft", "tpot") for which in ("p50", "p95")]
        assert cells == [*(quantity(ns, "ns") for ns in times), f"{row['tokens_per_s']:.3g}"], name


@pytest.mark.slow
def test_what_comes_of_how_a_tier_keeps_blocks():
    assert [tuple(line) for line in table("DDR | TTFT p50")] == [*kept()]


def test_the_figures_of_the_first_machine_are_counted_as_hosim_list_does(capsys):
    with pytest.raises(SystemExit):
        main(["list", "hardware"])
    (counted,) = re.findall(r"ascend_910c_die +1 device +(.*?)  ", capsys.readouterr().out)
    assert f"`hosim list` counts {counted} figures of the 910C profile" in PAGES


@pytest.mark.slow
def test_the_fitted_parameters_are_those_that_validate_lists():
    calibrated = ("kv_peak_calibrated", "kv_longest_calibrated", "kv_fragmentation")
    training = ("llama3_8b_2x2x2", "llama3_8b_runtime_910c", "llama3_8b_offload_fused")
    judged = hosim.validate([*training, *calibrated]).judged
    fitted = dict.fromkeys(fit.parameter for one in judged for fit in one.fits)
    held = [one for one in judged if one.verdict.printed and one.verdict.word == "holds"]
    chosen = dict.fromkeys(name for one in held for name in one.chosen)
    pages = " ".join(PAGES.split())
    assert f"**Six parameters are fitted**, as `hosim validate` lists: {', '.join(fitted)}. Only" in pages
    assert {fit.parameter for one in held for fit in one.fits} == {"rate of arithmetic"}
    assert f"**Three choices explain** what holds of training, and count like it: {', '.join(chosen)}." in pages


@pytest.mark.slow
def test_the_table_of_the_acceptance_trace():
    command = [sys.executable, "tests/bench/acceptance.py", "--traces", "acceptance", "--queues", "one"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": "."}
    )
    found = {}
    for line in done.stdout.splitlines()[1:-1]:
        about, bound, planner, static, _ = line.split("|")
        _, accounting, _, budget, rate = about.split()
        found[accounting, budget, rate] = (bound.split()[0], planner.split()[0], static.split()[0])
    budget = ""
    for cells in table("budget | link"):
        budget = re.search(r"\((\d+ %)\)", cells[0]).group(1).replace(" ", "") if cells[0] else budget
        freed, kept = (found[accounting, budget, cells[1].split()[0]] for accounting in "ab")
        bounds = [freed[0]] if freed[0] == kept[0] else [freed[0], kept[0]]
        said = [cell.replace(",", "") for cell in (cells[2], cells[4], cells[5], cells[6])]
        assert said == [freed[1], freed[2], kept[2], " / ".join(bounds)], cells
