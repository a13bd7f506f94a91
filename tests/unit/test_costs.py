"""What a step costs, against closed forms."""

from __future__ import annotations

import re

import pytest
from rank_stories import cluster

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.metrics import columns
from simulator.metrics.summary import costs
from simulator.plan import COMPUTE
from simulator.report.words import written
from simulator.units import FieldError, exact, parse, unit_of

HOUR_NS, YEAR_NS = 3600 * 10**9, 8766 * 3600 * 10**9
NONE = "tiny_train_910c"
"""A scenario whose machine states no cost."""


def _row(changes, scenario="tiny_train_910c", policy="static"):
    return hosim.run(scenario, set=changes, policies=[policy])[policy]


@pytest.fixture(scope="module")
def graph():
    return _row({}).graph


def test_what_is_not_stated_is_not_counted():
    row = _row({})
    assert not set(columns(row.hardware, ("cost",)))
    assert not {column for column in row.summary if "usd" in column or "energy" in column or "life" in column}


def test_power_is_drawn_while_the_step_lasts():
    row = _row({"compute.power": "0.7 kW"}).summary
    assert row["energy_j"] == pytest.approx(700 * row["step_ns"] / 1e9, rel=1e-12)
    tokens = row["tokens_per_s"] * row["step_ns"] / 1e9
    assert row["energy_per_token_j"] == pytest.approx(row["energy_j"] / tokens, rel=1e-12)
    assert "step_usd" not in row


def test_each_operation_and_each_byte_takes_its_energy(graph):
    flops = sum(op.flops for op in graph.ops)
    touched = sum(op.read_bytes + op.write_bytes for op in graph.ops)
    assert _row({"compute.energy": "0.5 pJ/FLOP"}).summary["energy_j"] == pytest.approx(flops * 0.5e-12, rel=1e-12)
    found = _row({"tiers.hbm.energy": "3.92 pJ/bit"}).summary["energy_j"]
    assert found == pytest.approx(touched * 8 * 3.92e-12, rel=1e-12)
    row = _row({"links.d2h.energy": "10 pJ/B", "links.h2d.energy": "30 pJ/B"}).summary
    moved = row["moved_d2h_bytes"] * 10e-12 + row["moved_h2d_bytes"] * 30e-12
    assert row["energy_j"] == pytest.approx(moved, rel=1e-12)
    assert moved > 0


def test_what_runs_again_takes_its_energy_again(graph):
    once = sum(op.flops for op in graph.ops) * 1e-12
    tight = catalog.load("tiny_train_910c", "scenario").document.model_copy(update={"budget_bytes": 400 * 10**6})
    row = _row({"compute.energy": "1 pJ/FLOP"}, tight, "recompute")
    spans = row.trace.spans.whole()
    ran = spans["item"][spans["kind"] == COMPUTE].tolist()
    every = sum(row.graph.ops[op].flops for op in ran) * 1e-12 / row.graph.steps
    assert every > once
    assert row.summary["energy_j"] == pytest.approx(every, rel=1e-12)


def test_devices_and_room_cost_as_long_as_the_step_lasts():
    row = _row({"compute.price": "3.6 USD/h", "tiers.ddr.price": "0.5 USD/GB/h"}).summary
    an_hour = 3.6 + 0.5 * row["peak_ddr_bytes"] / 1e9
    assert row["peak_ddr_bytes"] > 0
    assert row["step_usd"] == pytest.approx(an_hour * row["step_ns"] / HOUR_NS, rel=1e-12)
    tokens = row["tokens_per_s"] * row["step_ns"] / 1e9
    assert row["usd_per_million_tokens"] == pytest.approx(row["step_usd"] / tokens * 1e6, rel=1e-12)
    assert "energy_j" not in row


def test_an_ssd_lives_until_its_endurance_is_written():
    machine = catalog.load("h100_four_tiers", "hardware").document
    row = {"step_ns": 2 * 10**9, "energy_j": 8.0} | {f"peak_{name}_bytes": 10**9 for name in machine.tiers}
    row |= {f"moved_{name}_bytes": 0 for name in machine.links}
    assert costs(machine, row, 1, None)["life_ssd_years"] is None  # nothing is written
    found = costs(machine, row | {"moved_write_bytes": 10**12}, 1, 4_000_000)
    assert found["life_ssd_years"] == pytest.approx(56_064 * 2e9 / YEAR_NS, rel=1e-12)
    assert found["energy_per_token_j"] == pytest.approx(2e-6, rel=1e-12)
    an_hour = 3.5 + 3.24 / 730  # the device, and 1 GB in the pool; DDR is in the price of the device
    assert found["usd_per_million_tokens"] == pytest.approx(an_hour * 2 / 3600 / 4, rel=1e-12)
    assert costs(machine, row | {"step_ns": None}, 1, 4) == {}  # it did not run to its end


def test_ranks_pay_for_each_device_and_for_each_instance_of_a_tier():
    machine = catalog.load("cloudmatrix384", "hardware").document
    compute = machine.compute.model_copy(update={"price_uusd_per_h": 2 * 10**6})
    prices = {"hbm": 73 * 10**10, "pool": 73 * 10**9}  # 1 and 0.1 USD/GB/h
    tiers = {
        name: tier.model_copy(update={"price_nusd_per_gb_month": prices[name], "endurance_bytes": 10**15})
        for name, tier in machine.tiers.items()
    }
    priced = machine.model_copy(update={"compute": compute, "tiers": tiers})
    row = {"step_ns": HOUR_NS, "peak_hbm_bytes": 3 * 10**9, "peak_pool_bytes": 10**11}
    row |= {f"moved_{name}_bytes": 10**12 for name in machine.links}
    found = costs(priced, row, 16, None)
    assert found["step_usd"] == pytest.approx(16 * (2 + 3) + 10, rel=1e-12)
    assert found["life_pool_years"] == pytest.approx(1000 * HOUR_NS / YEAR_NS, rel=1e-12)
    assert found["life_hbm_years"] == pytest.approx(16_000 * HOUR_NS / YEAR_NS, rel=1e-12)
    assert found["usd_per_million_tokens"] is None


@pytest.mark.parametrize(("ranks", "nodes"), [(7, 1), (8, 1), (9, 2), (17, 3)])
def test_a_node_that_is_not_full_has_and_wears_a_tier_of_its_own(ranks, nodes):
    """Eight devices share the DDR of a node: 1 USD/GB/h, of which 3 GB are held; 10^15 B wear it out."""
    machine, priced = cluster(8), {"price_nusd_per_gb_month": 73 * 10**10, "endurance_bytes": 10**15}
    tiers = machine.tiers | {"ddr": machine.tiers["ddr"].model_copy(update=priced)}
    row = {"step_ns": HOUR_NS, "peak_hbm_bytes": 0, "peak_ddr_bytes": 3 * 10**9}
    row |= {"moved_d2h_bytes": 10**12, "moved_h2d_bytes": 0}
    found = costs(machine.model_copy(update={"tiers": tiers}), row, ranks, None)
    assert found["step_usd"] == pytest.approx(3 * nodes, rel=1e-12)
    assert found["life_ddr_years"] == pytest.approx(nodes * 1000 * HOUR_NS / YEAR_NS, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1.275 kW", "mW", 1_275_000), ("3.92 pJ/bit", "fJ/B", 31_360), ("1.5 pJ/FLOP", "fJ/FLOP", 1_500),
        ("3.5 USD/h", "uUSD/h", 3_500_000), ("2.5 USD/GB/month", "nUSD/GB/month", 2_500_000_000),
    ],
)  # fmt: skip
def test_units_of_costs(text, unit, value):
    assert parse(text, unit) == value
    assert unit_of(text) == unit
    assert exact(value, unit) == text


def test_a_price_for_a_power_is_refused():
    with pytest.raises(FieldError, match="a power is needed, such as '700 W'"):
        parse("3.5 USD/h", "mW")


def test_costs_are_written_with_three_digits():
    assert [written(value, "USD") for value in (0.00186, 0.154, 2439.4, 0)] == [
        "0.00186 USD", "0.154 USD", "2,439 USD", "0.00 USD",
    ]  # fmt: skip


def test_tables_and_cards_show_what_is_stated(capsys):
    with pytest.raises(SystemExit):
        main(["run", NONE, "--policy", "static", "--set", "compute.power=700 W", "--set", "tiers.ddr.endurance=1 TB"])
    said = capsys.readouterr().out
    assert "a device 700 W" in said
    assert "endures 1.00 TB" in said
    assert re.search(r"^policy +.* energy  energy/token +life of ddr$", said, re.MULTILINE)
