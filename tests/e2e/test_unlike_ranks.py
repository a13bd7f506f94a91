"""Unlike devices and drawn delays from documents: what a person sets, sweeps and is told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rank_stories import cluster, job_of, team
from rank_strategies import jobs
from small_job import SCENARIO, written

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.errors import ConfigError
from simulator.graph import DelaySpread, Graph, Job, OpKind

COMPUTES = {"compute.launch": "0 ns", "compute.peak.bf16": "1 GFLOP/s"}
"""A machine whose kernels take as long as their arithmetic."""


def test_a_slow_rank_keeps_all_waiting_under_the_plan_of_the_machine_as_it_is(tmp_path):
    path = written(tmp_path, "data: 4", SCENARIO.replace("expect:", "set: {compute.launch: 0 ns}\nexpect:"))
    plain, slow = (hosim.run(path, set={**COMPUTES, **more})["static"] for more in ({}, {"ranks.2.compute": 0.5}))
    assert [plan.fixed for plan in plain.plans] == [plan.fixed for plan in slow.plans]
    assert slow.summary["step_ns"] > 1.9 * plain.summary["step_ns"]
    assert slow.summary["step_ns"] == slow.summary["bound_ns"]
    computes = slow.ranks["compute_ns"].tolist()
    assert [computes[2] > 1.9 * ns for ns in computes] == [True, True, False, True]
    assert slow.ranks["stands_in"].tolist() == [0, 0, 2, 0], "its peers are of one class"
    assert (slow.ranks["wait_peer_ns"] > 0).tolist() == [True, True, False, True]


def test_a_row_has_a_slow_rank_of_its_own_and_a_sweep_varies_it(tmp_path):
    row = "policies: [static, {policy: static, label: slow, set: {ranks.0-1.memory: 0.5}}]"
    text = SCENARIO.replace("policies: [resident, reactive, static]", row).split("expect:", maxsplit=1)[0]
    results = hosim.run(written(tmp_path, "data: 4", text), set={"compute.launch": "0 ns"})
    assert results["slow"].summary["step_ns"] > results["static"].summary["step_ns"]
    swept = hosim.sweep(tmp_path / "scenario.yaml", {"ranks.3.compute": [1, 0.5]}, policies=["static"], set=COMPUTES)
    like, unlike = (row["step_ns"] for row in swept.rows)
    assert unlike > 1.9 * like


@pytest.mark.parametrize(
    ("change", "told"),
    [("ranks.7.compute=0.5", "ranks.7.compute"), ("ranks={1: {memory: 0.5}, 6-7: {compute: 0.8x}}", "ranks.6-7.*")],
)
def test_a_rank_that_does_not_run_has_no_effect(tmp_path, capsys, change, told):
    with pytest.raises(SystemExit):
        main(["run", str(written(tmp_path, "data: 4")), "--policy", "resident", "--set", change])
    assert f"without effect here: {told} (no such rank)" in capsys.readouterr().out


def test_what_is_wrong_of_several_paces_names_its_rank_and_field():
    with pytest.raises(ConfigError, match=r"set, ranks\.2\.compute: this is a number, found 'x'"):
        catalog.resolve("llama3_8b_16_replicas", {"ranks": {"1": {"compute": 0.5}, "2": {"compute": "x"}}})


def test_editors_take_a_pace_as_a_multiple_too():
    pace = catalog.schema("hardware")["$defs"]["DevicePace"]["properties"]["compute"]
    number, text = pace["anyOf"]
    assert number == {"type": "number", "exclusiveMinimum": 0, "maximum": 10}
    assert re.search(text["pattern"], "0.8x")
    assert not re.search(text["pattern"], "80 %")


def test_devices_that_serve_are_alike():
    with pytest.raises(ConfigError, match="the devices that serve are alike, found some with a pace of their own"):
        hosim.serve("kv_reuse_h100", set={"ranks.0.compute": 0.5})


def on_cluster(folder: Path, ranks: int) -> Path:
    """A scenario on the machine of the rank stories, for jobs made in Python."""
    why = dict.fromkeys(("compute", "host", "tiers", "links", "topology", "fabrics", "allocator"), "a story")
    (folder / "hardware.yaml").write_text(catalog.dump(cluster(ranks, hbm="1 kB").model_copy(update={"assumed": why})))
    text = SCENARIO.split("expect:", maxsplit=1)[0].replace("dgx_h100", "hardware.yaml")
    return written(folder, "data: 2", text + "seed: 3\n")


@pytest.mark.parametrize(
    "distribution", ["exponential", *(pytest.param(d, marks=pytest.mark.slow) for d in ("uniform", "lognormal"))]
)
def test_delays_are_drawn_for_each_rank_once_for_all_rows(tmp_path, distribution):
    path = on_cluster(tmp_path, 4)
    g = team("y 4", "tool: -> y, 1000 ns, delay", "sum: y -> y, all_reduce all 40", groups={"all": ((0, 1, 2, 3),)})
    spread = DelaySpread(distribution, 0 if distribution == "exponential" else 400)
    job = Job.of(replace(g, ops=(replace(g.ops[0], spread=spread), g.ops[1])), 4)
    results = hosim.run(path, job=job)
    delays = [row.ranks["delay_ns"].tolist() for row in results.values()]
    assert delays[0] == delays[1] == delays[2]
    assert len(set(delays[0])) == 4
    step_ns = {row.summary["step_ns"] for label, row in results.items() if label != "reactive"}
    assert step_ns == {max(delays[0]) + 60}, "the slowest keeps all waiting; the sum takes 60 ns"
    assert results["static"].summary["bound_ns"] <= max(delays[0]) + 60
    assert results["resident"].plans[0].fixed is not None
    (tmp_path / "scenario.yaml").write_text(path.read_text().replace("seed: 3", "seed: 4"))
    assert hosim.run(path, job=job)["static"].ranks["delay_ns"].tolist() != delays[0]


@st.composite
def varied(draw) -> Job:
    """One graph or two halves, on 8 ranks, some of whose ops are delays that each rank draws."""
    programs, _ = draw(jobs(max_steps=3))
    spreads = st.sampled_from(
        [None, DelaySpread("exponential"), DelaySpread("uniform", 5), DelaySpread("lognormal", 9)]
    )

    def with_delays(graph: Graph) -> Graph:
        fixed = {"kind": OpKind.DELAY, "repeatable": False}
        ops = [
            replace(op, **fixed, spread=draw(spreads)) if not op.collective and draw(st.booleans()) else op
            for op in graph.ops
        ]
        return replace(graph, ops=tuple(ops))

    graphs = {id(ran.graph): with_delays(ran.graph) for ran in programs}
    return job_of([graphs[id(ran.graph)] for ran in programs])


@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(varied(), st.dictionaries(st.sampled_from("0123456"), st.sampled_from([0.5, 4.0]), max_size=2))
def test_no_row_of_unlike_ranks_is_faster_than_its_bound_and_its_parts_fill_its_step(tmp_path_factory, job, paces):
    """A row that broke a law, or was faster than its bound, would be `failed`."""
    path = on_cluster(tmp_path_factory.mktemp("varied"), 8)
    changes = {f"ranks.{rank}.compute": pace for rank, pace in paces.items()}
    for row in hosim.run(path, job=job, set=changes, policies=["resident", "offload_saved"]).values():
        assert row.status == "ok", row.summary
        parts = row.ranks.filter(regex="^(compute|recompute|delay|stall|drain)_ns$")
        assert parts.sum(axis=1).tolist() == row.ranks["step_ns"].tolist()
        assert row.summary["bound_ns"] <= row.summary["step_ns"]
