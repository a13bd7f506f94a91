"""Runs that may read in place: what is marked, what rows do, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build
from trained import EXPERTS, GQA, workload

import simulator
from simulator.errors import ConfigError
from simulator.workload import Workload

LINK = {"bandwidth": "1 GB/s"}
MACHINE: dict[str, Any] = {
    "schema": "hosim/hardware/1",
    "name": "box",
    "compute_tier": "hbm",
    "compute": {"peak": {"bf16": "1 TFLOP/s"}, "launch": "1 us"},
    "tiers": {"hbm": {"capacity": "1 GB", "bandwidth": "100 GB/s"}, "ddr": {"capacity": "1 GB"}},
    "links": {
        "d2h": {"source": "hbm", "target": "ddr", **LINK},
        "h2d": {"source": "ddr", "target": "hbm", "loads": "1 GB/s", **LINK},
    },
}
DECODES = {"phase": "decode", "new_tokens": 2, "steps": 3, "in_place": ["weight", "kv_cache"]}
HOW = {
    "prefetched": {"policy": "static", "in_place": "never"},
    "in place": {"policy": "static", "in_place": "always"},
    "chosen": {"policy": "static"},
    "on demand": {"policy": "reactive"},
    "a runtime in place": {"policy": "reactive", "in_place": "always"},
}


@pytest.fixture
def rows(tmp_path: Path):
    def run(work: dict[str, Any] = DECODES, machine: dict[str, Any] = MACHINE, how: Any = None) -> dict[str, Any]:
        document = workload(GQA, **work).model_dump(mode="json", exclude_unset=True)
        how = how or [{"label": label, **row} for label, row in HOW.items()]
        scenario = {"schema": "hosim/scenario/1", "name": "s", "policies": how, "homes": {"weight": "ddr"}}
        scenario |= {"hardware": "box.yaml", "workload": "w.yaml"}
        document = {"schema": "hosim/workload/1", **document}
        for name, written in {"box": machine, "w": document, "s": scenario}.items():
            (tmp_path / f"{name}.yaml").write_text(json.dumps(written), encoding="utf-8")
        return {label: row.summary for label, row in simulator.run(tmp_path / "s.yaml").items()}

    return run


def test_what_persists_and_no_op_writes_may_be_read_in_place() -> None:
    graph = build(workload(GQA, **DECODES))
    names = {graph.tensors[t].name for t in graph.in_place}
    written = {graph.tensors[t].name for op in graph.ops for t in op.writes}
    of_kinds = {t.name for t in graph.tensors if t.kind in ("weight", "kv_cache") and t.persistent}
    assert names == of_kinds - written
    assert build(workload(GQA, **DECODES | {"in_place": ["embed/*"]})).in_place < graph.in_place


@pytest.mark.slow
def test_rows_leave_in_place_what_they_say(rows: Any) -> None:
    found = rows()
    size = sum(t.size_bytes for t in build(workload(GQA, **DECODES)).tensors if t.kind == "weight")
    for label, row in found.items():
        loads = row["loaded_h2d_bytes"]
        assert (loads > 0) == (label not in {"prefetched", "on demand"}), label
        assert row["moved_h2d_bytes"] >= loads
        assert row["step_ns"] >= row["bound_ns"] > 0
    assert found["prefetched"]["moved_h2d_bytes"] == size
    assert found["chosen"]["step_ns"] <= min(found["prefetched"]["step_ns"], found["in place"]["step_ns"])
    assert found["in place"]["peak_hbm_bytes"] < found["prefetched"]["peak_hbm_bytes"]


REFUSED = {
    "nothing of that name": ({"in_place": ["nothing"]}, {}, "patterns of names, in the graph, found 'nothing'"),
    "what ops make": ({"in_place": ["activation"]}, {}, "read in place only persistent tensors that no op writes"),
    "a link out": (
        {},
        {"d2h": {"loads": "1 GB/s"}},
        "kernels load over a wire into the compute tier, found one into ddr",
    ),
    "no such link": ({}, {"h2d": {"loads": None}}, "over a link that states loads, found none that does"),
    "dynamic reads": ({"experts": "each"}, {}, "where nothing is read dynamically and the host computes nothing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str, rows: Any) -> None:
    work, changes, message = REFUSED[what]
    links = {
        name: {k: v for k, v in (link | changes.get(name, {})).items() if v} for name, link in MACHINE["links"].items()
    }
    if "experts" in work:
        work = {**work, "model": workload(GQA, EXPERTS).model.model_dump(mode="json", exclude_unset=True)}
    with pytest.raises(ConfigError, match=message):
        rows(DECODES | work, MACHINE | {"links": links})


def test_a_row_that_nothing_allows_is_refused(rows: Any) -> None:
    without = {key: value for key, value in DECODES.items() if key != "in_place"}
    with pytest.raises(
        ConfigError, match=r"policies.0.in_place: a row reads in place only tensors that the workload allows"
    ):
        rows(without, how=[{"policy": "static", "in_place": "always"}])
    with pytest.raises(ConfigError, match="the actions of a plan say what they read in place, found in_place: never"):
        rows(how=[{"policy": "mine.jsonl", "in_place": "never"}])


def test_loads_of_a_workload_that_allows_none_have_no_effect(rows: Any, tmp_path: Path, hosim: Any) -> None:
    rows({key: value for key, value in DECODES.items() if key != "in_place"}, how=["static"])
    told = hosim("run", tmp_path / "s.yaml", "--set", "links.h2d.loads=2 GB/s")
    assert "links.h2d.loads" in told.out
    assert "the workload reads nothing in place" in told.out


def test_what_lies_in_the_compute_tier_is_not_read_in_place(rows: Any) -> None:
    """The weights' home is DDR, that of the cache HBM: no row can read that where it is."""
    how = [{"policy": "static", "in_place": "always"}]
    row = rows(DECODES | {"in_place": ["kv_cache"]}, how=how)["static"]
    assert row["status"] == "refused"


def test_requests_say_nothing_of_it() -> None:
    with pytest.raises(ValueError, match="in_place is for phase train, prefill, decode"):
        Workload.model_validate({"name": "w", "phase": "serve", "in_place": ["weight"],
                                 "pools": {"prefill": 1, "decode": 1, "new_tokens": 1},
                                 "model": workload(GQA).model.model_dump(mode="json", exclude_unset=True)})  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_are_blank")
def test_a_plan_that_reads_in_place_is_a_file_that_runs_and_is_not_exported(
    rows: Any, tmp_path: Path, hosim: Any
) -> None:
    rows()
    scenario, plan = tmp_path / "s.yaml", tmp_path / "told" / "plan.jsonl"
    told = hosim("plan", scenario, "--policy", "in place", "--out", tmp_path / "told")
    assert "No policy with host ops or reads in place explains its plan." in told.out
    assert hosim("lint", plan, "--scenario", scenario).code == 0
    label = {"policy": str(plan), "label": "again"}
    found = rows(how=[label, {"policy": "static", "label": "first", "in_place": "always"}])
    assert found["again"]["step_ns"] == found["first"]["step_ns"]
    refused = hosim("export", plan, "--scenario", scenario, "--to", "residency", "-o", tmp_path / "out.json")
    assert refused.code == 1
    assert "other programs read in the compute tier alone" in refused.err
