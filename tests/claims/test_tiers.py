"""What the README says of weights that are streamed from SSDs."""

from __future__ import annotations

import pytest

import simulator as hosim
from simulator import catalog
from simulator.policies import POLICIES
from simulator.run import run_case
from simulator.run.case import prepare


@pytest.mark.parametrize(
    ("batch", "bounded_by", "gap"),
    [
        (1024, "link read", 0.02),
        pytest.param(4096, "link h2d before head/decode/lm", 0.003, marks=pytest.mark.slow),
    ],
)
def test_a_batch_is_bounded_by_the_drives_until_its_caches_fill_the_link(batch, bounded_by, gap):
    """The bound knows that what goes over DDR passes both links; `static` reaches it on a machine that is crowded."""
    loaded = catalog.resolve("llama3_70b_stream_ssd", {"workload.batch": batch})
    row = run_case(prepare(loaded), ["static"])["static"].summary
    assert (row["status"], row["bounded_by"]) == ("ok", bounded_by)
    assert row["gap_fraction"] < gap


@pytest.mark.slow
def test_every_policy_runs_over_all_four_tiers():
    """All but `optimal`, which plans over one lower tier."""
    rows = catalog.load("tiny_train_four_tiers", "scenario").document.policies
    others = POLICIES.keys() - {"optimal", *(choice.policy for choice in rows)}
    results = hosim.run("tiny_train_four_tiers", policies=[*(choice.row for choice in rows), *sorted(others)])
    for label in results:
        row = results[label].summary
        assert row["status"] == "ok"
        assert all(row[f"peak_{tier}_bytes"] > 0 for tier in ("hbm", "ddr", "pool", "ssd"))


def test_a_runtime_goes_on_to_the_drive_where_ddr_is_full():
    """`static` spills as well, and takes less time."""
    results = hosim.run("tiny_train_t4", set={"tiers.ddr.capacity": "40 MB"}, policies=["reactive", "static"])
    reactive, static = (results[label].summary for label in ("reactive", "static"))
    assert reactive["status"] == static["status"] == "ok"
    assert reactive["peak_ssd_bytes"] > 0
    assert static["step_ns"] < reactive["step_ns"]
