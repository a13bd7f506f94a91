"""What the PAGES says beside the claims of training: what could still be gained, and where a runtime's time goes."""

import re

import pytest
from pages import PAGES

import simulator as hosim
from simulator.report import tables

pytestmark = pytest.mark.slow


def seconds(ns):
    return f"{ns / 1e9:.2f} s"


@pytest.fixture(scope="module")
def results():
    return {name: hosim.run(name) for name in ("llama3_8b_offload_bandwidths", "llama3_8b_runtime_910c")}


@pytest.fixture(scope="module")
def sweep(results):
    return results["llama3_8b_offload_bandwidths"].summary


@pytest.fixture(scope="module")
def runtime(results):
    return results["llama3_8b_runtime_910c"].summary


def test_the_pages_show_what_is_printed(results):
    for name, found in results.items():
        (shown,) = re.findall(rf"<!-- measured by: hosim run {name} -->\n.*?\n\n```text\n(.*?)```", PAGES, re.DOTALL)
        assert shown.startswith(f"{tables.plain(list(found.values()))}\n\n{found.sentences[0]}\n")


def test_the_sweep_is_bounded_as_the_page_says(sweep):
    for rate in (33.6, 40, 50, 60, 70):
        best = sweep.loc[f"static {rate:g}"]
        assert best["gap_fraction"] < 0.0005
        assert sweep.loc[f"mixed {rate:g}", "step_ns"] <= best["step_ns"] <= sweep.loc[f"offload {rate:g}", "step_ns"]


def test_what_is_left_to_gain(sweep):
    steps = sweep["step_ns"]
    assert 1 - steps["static 33.6"] / steps["offload 33.6"] == pytest.approx(0.08, abs=0.005)
    assert 1 - steps["mixed 33.6"] / steps["offload 33.6"] == pytest.approx(0.23, abs=0.005)


def test_compactions_leap_as_the_page_says(runtime):
    counts = runtime["compactions"]
    assert (counts["runtime 64 GB"], counts["runtime 62 GB"]) == (1, 21)
    assert "two gigabytes are the difference between 1 and 21 compactions" in " ".join(PAGES.split())


def test_where_the_time_of_the_runtime_goes(runtime):
    row = runtime.loc["runtime 58 GB"]
    parts = row["compute_ns"] + row["wait_transfer_ns"] + row["wait_host_ns"] + row["wait_compaction_ns"]
    assert parts == row["step_ns"]
    assert row["wait_host_ns"] / 1e6 == pytest.approx(5, abs=0.5)
    assert row["wait_compaction_ns"] / row["compactions"] / 1e9 == pytest.approx(0.5, abs=0.05)
    assert seconds(row["compute_ns"] + row["wait_transfer_ns"]) == "8.83 s"
    fixed = runtime.loc["static at fixed offsets"]
    assert fixed["compactions"] == 0
    assert f"`static at fixed offsets` takes {seconds(fixed['step_ns'])} (" in " ".join(PAGES.split())
    assert re.search(r"\b13 of them\b", PAGES)
    assert 6.7e9 / (row["wait_compaction_ns"] / row["compactions"]) == pytest.approx(13, abs=1)
