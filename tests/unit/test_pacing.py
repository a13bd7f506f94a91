"""What paces a step, and its interval from published measurements."""

from __future__ import annotations

import math

import pytest

import simulator as hosim
from simulator import catalog
from simulator.graph import Graph, Op
from simulator.metrics import interval, pace_of, real_figures

LINKS = ("d2h", "h2d")
FIGURES = {
    "step_ns": 1000, "compute_ns": 100, "recompute_ns": 0, "busy_d2h_ns": 0, "busy_h2d_ns": 0, "wait_host_ns": 0,
    "wait_collective_ns": 0, "wait_peer_ns": 0,
}  # fmt: skip
RATIOS = {
    "pinned copies": {"one": [1.0, 1.1], "two": [1.2]},
    "framework copies": {"three": [4.0]},
    "training kernels": {"four": [1.5, 1.6, 1.7]},
}


def graph(*phases: str) -> Graph:
    return Graph("g", (), tuple(Op(f"op{i}", phase=phase) for i, phase in enumerate(phases)))


def real(phase: str, pinned: bool | None = None, **figures: int) -> tuple[str, int | None, int | None]:
    row = FIGURES | figures
    row = real_figures(row, pace_of(graph(phase), [100], LINKS, row, pinned=pinned), RATIOS)
    return row["paced_by"], row["real_low_ns"], row["real_high_ns"]


def test_what_is_busy_longest_paces_and_its_measurements_give_the_interval() -> None:
    assert real("decode", busy_h2d_ns=101) == ("copies over h2d", 1000, 4000)
    assert real("decode", True, busy_h2d_ns=101) == ("copies over h2d", 1000, 1200)
    assert real("decode", False, busy_h2d_ns=101) == ("copies over h2d", 4000, 4000)
    assert real("backward", busy_h2d_ns=100) == ("training kernels", 1500, 1700)


def test_a_kind_without_measurements_has_no_interval() -> None:
    assert real("decode") == ("decode kernels", None, None)
    assert real("decode", host_compute_ns=101) == ("host compute", None, None)


def test_issuing_and_meeting_are_part_of_what_is_printed_of_kernels() -> None:
    assert real("update", wait_host_ns=101) == ("issuing by the host", 1500, 1700)
    assert real("update", wait_peer_ns=60, wait_collective_ns=60) == ("collectives", 1500, 1700)


def test_no_measurement_is_like_a_wait_for_the_delays_of_a_peer() -> None:
    row = FIGURES | {"wait_peer_ns": 101}
    pacer = pace_of(graph("backward"), [100], LINKS, row, pinned=None, delays=True)
    assert real_figures(row, pacer, RATIOS) == {"paced_by": "peers", "real_low_ns": None, "real_high_ns": None}


@pytest.mark.parametrize("share", [1, 0.5])  # of the speed of a slow rank, whose row has longer computes
def test_no_ratio_applies_to_kernels_whose_times_are_stated(share: float) -> None:
    ops = Graph("g", (), tuple(Op(f"op{i}", phase="decode", duration_ns=ns) for i, ns in enumerate((60, None))))
    row = FIGURES | {"compute_ns": int(100 / share)}
    assert pace_of(ops, [60, 59], LINKS, row, pinned=None) == ("measured kernels", ())
    assert pace_of(ops, [60, 60], LINKS, row, pinned=None) == ("decode kernels", ("decode kernels",))
    assert pace_of(ops, [60, 40], LINKS, row | {"busy_h2d_ns": 201}, pinned=True).kinds == ("pinned copies",)


def test_no_ratio_applies_to_a_host_whose_times_are_stated() -> None:
    row = FIGURES | {"host_compute_ns": 101}
    for ns, kinds in ((90, ()), (None, ("host compute",))):
        ops = Graph("g", (), (Op("a", phase="decode"), Op("b", phase="decode", device="host", duration_ns=ns)))
        assert pace_of(ops, [100, 90], LINKS, row, pinned=None) == ("host compute", kinds)


def test_kernels_of_an_unknown_phase_are_like_all_kernels() -> None:
    assert real("") == ("kernels", 1500, 1700)


def test_each_record_has_the_same_weight_however_many_rows_it_has() -> None:
    ratios = {"prefill kernels": {"long": [2.0] * 98, "short": [1.0]}}
    assert interval(ratios, ["prefill kernels"]) == (1.0, 2.0)
    assert interval(ratios, []) is None


def test_what_ships_has_ratios_of_real_over_predicted_time() -> None:
    for records in catalog.measured_ratios().values():
        for ratios in records.values():
            assert ratios
            assert all(0 < ratio < math.inf for ratio in ratios)


@pytest.mark.parametrize(
    "scenario",
    ["long_context_kv_tiers", "llama3_8b_layer_scaling", pytest.param("llama3_8b_16_replicas", marks=pytest.mark.slow)],
)
def test_every_row_that_ran_says_what_paces_it(scenario: str) -> None:
    for row in hosim.run(scenario).values():
        summary = row.summary
        assert bool(summary.get("paced_by")) == row.is_ok
        if row.is_ok and summary["real_low_ns"] is not None:
            assert summary["real_low_ns"] <= summary["real_high_ns"]
