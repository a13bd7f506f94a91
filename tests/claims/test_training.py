"""What the PAGES says beside the claims of training: what could still be gained, and where a runtime's time goes."""

import re

import pytest
from pages import PAGES

import simulator as hosim

pytestmark = pytest.mark.slow


def rows_of(head):
    """Cells of the table with this head."""
    table = PAGES[PAGES.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def seconds(ns):
    return f"{ns / 1e9:.2f} s"


@pytest.fixture(scope="module")
def sweep():
    return hosim.run("llama3_8b_offload_bandwidths").summary


@pytest.fixture(scope="module")
def runtime():
    return hosim.run("llama3_8b_runtime_910c").summary


def test_the_sweep_is_split_and_bounded_as_the_readme_says(sweep):
    found = rows_of("| link | `offload_saved` |")
    assert len(found) == 5
    for link, *cells in found:
        at = link.removesuffix(" GB/s")
        own, best = sweep.loc[f"offload {at}"], sweep.loc[f"static {at}"]
        over = own["busy_d2h_ns"] - own["exposed_d2h_ns"]
        split = f"{own['exposed_d2h_ns'] / 1e9:.2f}, {over / 1e9:.2f} s"
        rest = seconds(own["step_ns"] - own["busy_d2h_ns"])
        mixed = sweep.loc[f"mixed {at}", "step_ns"]
        assert cells == [
            seconds(own["step_ns"]),
            split,
            rest,
            *map(seconds, (best["step_ns"], best["bound_ns"], mixed)),
        ]


def test_what_is_left_to_gain(sweep):
    steps = sweep["step_ns"]
    assert 1 - steps["static 33.6"] / steps["offload 33.6"] == pytest.approx(0.08, abs=0.005)
    assert 1 - steps["mixed 33.6"] / steps["offload 33.6"] == pytest.approx(0.23, abs=0.005)


def test_compactions_leap_as_the_readme_says(runtime):
    found = rows_of("| who leaves first, pool |")
    named = {"furthest next use, best fit (MindSpore)": "runtime", "furthest next use, caching (PyTorch)": "caching"}
    counts = []
    for who, *cells in found:
        for limit, cell in zip((58, 60, 62, 64), cells, strict=True):
            if cell:
                row = runtime.loc[f"{named.get(who, 'lru')} {limit} GB"]
                assert cell == f"{row['compactions']:.0f}: {float(f'{row.step_ns / 1e9:.3g}'):g} s"
                counts.append(row["compactions"])
    assert len(counts) == 8


def test_where_the_time_of_the_runtime_goes(runtime):
    row = runtime.loc["runtime 58 GB"]
    parts = row["compute_ns"] + row["wait_transfer_ns"] + row["wait_host_ns"] + row["wait_compaction_ns"]
    assert parts == row["step_ns"]
    assert row["wait_host_ns"] / 1e6 == pytest.approx(5, abs=0.5)
    assert row["wait_compaction_ns"] / row["compactions"] / 1e9 == pytest.approx(0.5, abs=0.05)
    assert seconds(row["compute_ns"] + row["wait_transfer_ns"]) == "8.83 s"
    fixed = runtime.loc["static at fixed offsets"]
    assert fixed["compactions"] == 0
    assert f"`static` takes {seconds(fixed['step_ns'])} with them" in PAGES
    assert re.search(r"\b13 of them\b", PAGES)
    assert 6.7e9 / (row["wait_compaction_ns"] / row["compactions"]) == pytest.approx(13, abs=1)
