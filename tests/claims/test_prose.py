"""Tables and counts that the README states in its prose are what commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.report.rows import percent, quantity
from simulator.run.scaling import scaling

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose heading begins so."""
    (found,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


@pytest.mark.slow
def test_the_curve_of_kimi_k2_on_one_gpu():
    curve = scaling("kimi_k2_on_one_node")
    (shown,) = re.findall(r"^\| batch \| 64 \| 512 \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    lines = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in shown.splitlines()}
    rows = {policy: [row for row in curve.rows if row["policy"] == policy] for policy in ("static", "reactive")}
    assert lines == {
        "a step": [quantity(row["step_ns"], "ns") for row in rows["static"]],
        "tokens/s": [f"{row['tokens_per_s']:.3g}" for row in rows["static"]],
        "gap": [percent(row["gap_fraction"]) for row in rows["static"]],
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
    for name, *cells in table("link | first token p50"):
        rate = re.match(r"[\d.]+ GB/s", name)
        changes = {"links.*.bandwidth": rate.group()} if rate else {}
        (row,) = hosim.serve(scenario if rate else alone, set=changes, policies=["static"]).rows
        times = [row[f"{what}_{which}_ns"] for what in ("ttft", "tpot") for which in ("p50", "p95")]
        assert cells == [*(quantity(ns, "ns") for ns in times), f"{row['tokens_per_s']:.3g}"], name


def test_the_figures_of_the_first_machine_are_counted_as_hosim_list_does(capsys):
    with pytest.raises(SystemExit):
        main(["list", "hardware"])
    (counted,) = re.findall(r"ascend_910c_die +1 device +(.*?)  ", capsys.readouterr().out)
    assert f"`hosim list` counts {counted} figures of the 910C profile" in README


@pytest.mark.slow
def test_the_fitted_parameters_are_those_that_validate_lists():
    calibrated = ("kv_peak_calibrated", "kv_longest_calibrated", "kv_fragmentation")
    said = str(hosim.validate(["llama3_8b_2x2x2", "llama3_8b_runtime_910c", *calibrated]))
    fitted = [re.findall(r"free parameters? \((.*?)\)", said), re.findall(r"; \d+ \((.*?)\) explain", said)]
    listed = ", ".join(part for found in fitted for part in found).replace(" and ", ", ")
    assert f"as `hosim validate` lists: {listed}." in " ".join(README.split())
