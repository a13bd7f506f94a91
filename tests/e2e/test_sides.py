"""Runs in which the host updates, attends or runs experts: what crosses, and where what it alone uses lives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build
from trained import BATCH, EXPERTS, GQA, LAYERS, H, sizes, workload

import simulator as hosim
from simulator.run.effects import hints
from simulator.run.results import Result

RATES = {"peak": {"bf16": "1 TFLOP/s", "fp32": "1 TFLOP/s"}}
MACHINE: dict[str, Any] = {
    "schema": "hosim/hardware/1",
    "name": "box",
    "compute_tier": "hbm",
    "compute": RATES | {"launch": "1 us"},
    "tiers": {
        "hbm": {"capacity": "1 GB", "bandwidth": "100 GB/s"},
        "ddr": {"capacity": "1 GB", "bandwidth": "10 GB/s", "scope": "node"},
    },
    "links": {
        "d2h": {"source": "hbm", "target": "ddr", "bandwidth": "1 GB/s"},
        "h2d": {"source": "ddr", "target": "hbm", "bandwidth": "1 GB/s"},
    },
    "host_compute": RATES | {"tier": "ddr"},
}
AHEAD = {"reactive": {"evict": "lru", "look_ahead": 0}, "lookahead": {"distance": 2}}
"""What these two would search for, each by as many replays as there are values."""
POLICIES = ["resident", "static", *AHEAD]
DECODES = {"phase": "decode", "new_tokens": 2}


@pytest.fixture
def rows(tmp_path: Path):
    def run(homes: dict[str, str] | None = None, policies: list[str] = POLICIES, **more: Any) -> dict[str, Result]:
        work = workload(GQA, EXPERTS, steps=2, **more).model_dump(mode="json", exclude_unset=True)
        chosen = [{"policy": name, "options": AHEAD.get(name, {})} for name in policies]
        scenario = {"schema": "hosim/scenario/1", "name": "s", "policies": chosen, "homes": homes or {}}
        scenario |= {"hardware": "box.yaml", "workload": "w.yaml"}
        work = {"schema": "hosim/workload/1", **work}
        for name, document in {"box": MACHINE, "w": work, "s": scenario}.items():
            (tmp_path / f"{name}.yaml").write_text(json.dumps(document), encoding="utf-8")
        found = hosim.run(tmp_path / "s.yaml")
        assert {name: row.status for name, row in found.items()} == dict.fromkeys(policies, "ok")
        return found

    return run


def moved(row: Result) -> tuple[int, int]:
    return row.summary["moved_d2h_bytes"], row.summary["moved_h2d_bytes"]


@pytest.mark.slow
def test_gradients_come_down_and_weights_go_up(rows: Any) -> None:
    weights = sizes(build(workload(GQA, EXPERTS)), "weight", "expert")
    trained = sum(size for name, size in weights.items() if "router_bias" not in name)
    early = rows(on={"optimizer": {"host": 1.0, "waits": False}})
    for name, row in rows(on={"optimizer": "host"}).items():
        assert moved(row) == (trained, trained + 4), "and a signal"
        assert moved(early[name]) == (trained, trained), name
        assert row.summary["host_compute_ns"] >= 14 * trained // 10, "28 B of a parameter at 10 GB/s"
        assert row.summary["step_ns"] > early[name].summary["step_ns"], "no op of the next step runs beside updates"


def test_the_cache_stays_with_the_host_that_attends_to_it(rows: Any) -> None:
    times = 2 * LAYERS * BATCH * 2
    for name, row in rows(on={"attention": "host"}, **DECODES).items():
        assert moved(row) == (times * (24 + 12 + 12), times * 24), name


def test_experts_stay_with_the_host_that_runs_them(rows: Any) -> None:
    tokens = 2 * (LAYERS - 1) * BATCH
    for name, row in rows(on={"experts": "host"}, **DECODES).items():
        assert moved(row) == (tokens * (2 * H + 8 * 2), tokens * 2 * H), name


def test_experts_of_the_host_are_not_told_to_need_a_home(rows: Any) -> None:
    for side, is_told in (("host", False), ("accelerator", True)):
        (row,) = rows(on={"experts": side}, policies=["resident"], homes={"weight": "ddr"}, **DECODES).values()
        assert any("homes names weight, not expert" in hint for hint in hints(row.case, [row])) == is_told


def test_what_the_host_alone_uses_is_at_home_there_unless_one_says_another(rows: Any) -> None:
    states = sum(sizes(build(workload(GQA, EXPERTS)), "optimizer_state").values())
    (row,) = rows(on={"optimizer": "host"}, policies=["resident"]).values()
    (other,) = rows(on={"optimizer": "host"}, policies=["resident"], homes={"optimizer_state": "hbm"}).values()
    assert row.summary["peak_ddr_bytes"] >= states
    assert moved(other) == tuple(much + states for much in moved(row))
    (told,) = (hint for hint in hints(other.case, [other]) if "optimizer_state" in hint)
    assert told.startswith("homes.optimizer_state puts ")
    assert told.endswith(" only the host uses them: they come to ddr and go back in each step; say ddr, or drop it.")
    assert not any("optimizer_state" in hint or "device;" in hint for hint in hints(row.case, [row]))


def test_layers_stay_with_the_host_and_the_fewest_that_make_room_are_found(rows: Any, tmp_path: Path) -> None:
    found = rows(policies=["resident"], **DECODES, on={"layers": 2})["resident"]
    hidden = 2 * BATCH * H * 2  # of two tokens
    assert moved(found) == (hidden, hidden)
    peaks = [
        rows(policies=["resident"], **DECODES, on={"layers": n})["resident"].summary["peak_hbm_bytes"]
        for n in (3, 2, 1, 0)
    ]
    assert peaks == sorted(peaks)
    asked = {"of": "workload.on.layers", "at_least": 1, "at_most": LAYERS, "multiple_of": 1}
    answers = hosim.frontier(tmp_path / "s.yaml", set={"budget": f"{(peaks[1] + peaks[2]) // 2} B"}, **asked).rows
    assert next(row for row in answers if row["policy"] == "resident")["least_on.layers"] == 2
    with pytest.raises(hosim.HosimError, match="say where to look: at_least and at_most"):
        hosim.frontier(tmp_path / "s.yaml", of="workload.on.layers")
