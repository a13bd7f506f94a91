"""What readers of a run should know of what went in, and what they must not read out of it."""

from __future__ import annotations

import math
import re

import chain
import pytest
from stories import machine

import simulator as hosim
from simulator import catalog
from simulator.hardware import asked_bytes_per_s, without_effect

pytestmark = pytest.mark.usefixtures("quick_plans")


def _said(tmp_path, **more):
    return "\n".join(hosim.run(chain.write(tmp_path), **more).sentences)


def test_a_link_that_its_bus_caps_is_named_with_the_bus(quick_plans):
    steps, small = [], {"workload.model.layers": 2}
    for rate in (100, 200, 400):
        changes = small | {"links.*.bandwidth": f"{rate} GB/s"}
        results = hosim.run("llama3_8b_train_h100", set=changes, policies=["lookahead"])
        steps.append(results["lookahead"].summary["step_ns"])
        assert (
            f"links.d2h.bandwidth is {rate} GB/s, but buses.pcie.bandwidth is 100 GB/s: set both, as "
            "more of one changes nothing."
        ) in results.sentences
    assert len(set(steps)) == 1


@pytest.mark.parametrize(
    ("link", "is_said"),
    [
        ({"bandwidth": "2 GB/s"}, True),
        ({"bandwidth": "2 GB/s", "channels": 3, "sharing": "servers"}, False),
        ({"bandwidth": "3 GB/s", "channels": 3, "sharing": "servers"}, True),
        ({"bandwidth": "2 GB/s", "efficiency": [{"size": "1 kB", "fraction": 0.4}]}, False),
        ({"bandwidth": "0.9 GB/s"}, False),
    ],
)
def test_a_link_is_capped_if_one_copy_of_any_size_fills_the_bus(link, is_said):
    h = machine(h2d=link, buses={"pcie": {"links": ["h2d"], "bandwidth": "1 GB/s"}})
    assert bool(without_effect(h, None, ["links.h2d.bandwidth"])) == is_said


def test_what_a_bus_is_asked_for_counts_all_who_share_it_and_has_no_end_with_a_port():
    h = catalog.read_hardware("cloudmatrix384_node")
    assert asked_bytes_per_s(h, h.buses["ub_out"]) == math.inf
    assert asked_bytes_per_s(h, h.buses["ddr_out"]) == 16 * 33_600_000_000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"buses.pcie.bandwidth": "120 GB/s"},
            "buses.pcie.bandwidth is 120 GB/s, but the sum of its links is 111 GB/s",
        ),
        ({"tiers.hbm.capacity": "90 GB"}, ""),
        ({"links.*.bandwidth": "40 GB/s"}, ""),
        ({"buses.pcie.bandwidth": "90 GB/s"}, ""),
    ],
)
def test_a_bus_wider_than_its_links_is_named_and_what_has_an_effect_is_not(changes, said):
    results = hosim.run("llama3_8b_train_h100", set=changes, policies=["resident"])
    found = [one for one in results.sentences if "changes nothing" in one]
    assert [said in one for one in found] == [True] * bool(said)


def test_what_would_make_a_plan_free_widens_the_memory_of_the_host_as_well(tmp_path):
    free = re.compile(r"links\.\*\.bandwidth \+ tiers\.ddr\.bandwidth")
    said = _said(tmp_path, set={"tiers.ddr.bandwidth": "1 GB/s"}, policies=["static"], what_if=True)
    assert free.search(said), said


def test_a_capacity_beyond_the_budget_is_named(tmp_path):
    said = _said(tmp_path, set={"tiers.hbm.capacity": "20 MB"}, policies=["static"])
    assert "tiers.hbm.capacity is 20.0 MB, but the scenario's budget is 4.30 MB" in said


def test_runtimes_that_decide_for_free_are_named(tmp_path):
    free = "Decisions of reactive cost no time: bench_machine states no costs of a host; add the key host."
    assert free in _said(tmp_path)
    assert "costs of a host" not in _said(tmp_path, policies=["static"])
    assert "costs of a host" not in _said(tmp_path, set={"host.queue_depth": 512})


@pytest.mark.slow
def test_experts_without_a_home_are_named_where_weights_have_one(tmp_path):
    source = hosim.catalog.path_of("moe_experts_on_demand", "scenario").read_text(encoding="utf-8")
    for homes, is_said in (("weight: ddr", True), ("weight: ddr\n  expert: hbm", False)):
        (tmp_path / "mine.yaml").write_text(source.replace("expert: ddr", homes, 1), encoding="utf-8")
        said = hosim.run(tmp_path / "mine.yaml", policies=["resident"]).sentences
        forgotten = "58.0 GB of experts stay in hbm: homes names weight, not expert"
        assert (f"{forgotten}; to move them, add --home expert=ddr." in said) == is_said


def test_what_copies_while_compute_waits_is_not_hidden_whatever_it_waits_for(tmp_path):
    """`static` waits for room only, which copies out make at the rate of their link."""
    results = hosim.run("llama3_8b_train_910c", policies=["static"])
    row = results["static"].summary
    assert row["wait_transfer_ns"] == 0 < row["wait_capacity_ns"]
    assert row["exposed_transfer_ns"] >= row["exposed_d2h_ns"] == row["wait_capacity_ns"]
    assert row["hidden_fraction"] == 1 - row["exposed_transfer_ns"] / row["transfer_ns"] < 0.9
    assert "overlaps 80 % of its copying with compute and loses 869 ms waiting for room in hbm" in results.sentences[0]


def test_a_graph_without_flops_says_why_there_are_no_rates(tmp_path):
    said = "TFLOP/s and MFU are unknown: no op of class matmul or attention has FLOPs"
    assert f"{said}; for tokens/s state workload.batch and workload.sequence." in _said(tmp_path)
    assert f"{said}." in _said(tmp_path, set={"workload.batch": 4, "workload.sequence": 100})
    assert said not in "\n".join(hosim.run("tiny_train_910c", policies=["resident"]).sentences)
