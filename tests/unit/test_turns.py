"""Ranks that share a link and take turns: only where that helps, and never slower than beginning together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rank_stories import cluster, perform, team
from synthetic import decode

import simulator as hosim
from simulator import metrics
from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.formats import graph_jsonl, plan_jsonl
from simulator.graph import Collective, CollectiveKind, Group, Job, Op, OpKind
from simulator.run.stories import plan
from simulator.workload import Workload

pytestmark = pytest.mark.usefixtures("quick_plans")

MACHINE = """
schema: hosim/hardware/1
name: shared
compute_tier: hbm
compute: {peak: {bf16: 1 TFLOP/s}}
tiers:
  hbm: {capacity: 100 kB, bandwidth: 1 TB/s}
  pool: {scope: supernode, capacity: inf}
links:
  in: {source: pool, target: hbm, bandwidth: 4 GB/s}
  out: {source: hbm, target: pool, bandwidth: 4 GB/s}
buses:
  supply: {links: [in], bandwidth: SUPPLY, scope: supernode}
fabrics: {net: {bandwidth: 1 GB/s}}
topology: {devices_per_node: 8}
assumed: {compute: a story, tiers: a story, links: a story, buses: a story, fabrics: a story, topology: a story}
"""
MODEL = {"family": "llama", "layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "ffn": 8, "vocabulary": 8}
SCENARIO = """
schema: hosim/scenario/1
name: turns
hardware: machine.yaml
workload: layers.yaml
homes: {weight: pool}
budget: BUDGET
policies:
  - static
  - {policy: static, label: in turns, staggered: true}
"""


def run(folder, graph, *, budget="5 kB", supply="16 GB/s", ranks=8, **more):
    graph_jsonl.write(graph, folder / "layers.jsonl")
    (folder / "machine.yaml").write_text(MACHINE.replace("SUPPLY", supply))
    (folder / "layers.yaml").write_text("schema: hosim/workload/1\nname: layers\ngraph: layers.jsonl\n")
    (folder / "turns.yaml").write_text(SCENARIO.replace("BUDGET", budget))
    return hosim.run(folder / "turns.yaml", job=Job.of(graph, ranks), **more)


def layers(steps=3, duration_ns=500):
    """Four layers of 4,000 bytes, 1 us of a link alone each, and as long to compute."""
    return decode(4, computes=2, weight_bytes=4000, kv_bytes=10, duration_ns=duration_ns, steps=steps)


def test_ranks_without_room_to_copy_ahead_take_turns(tmp_path):
    """With room for one layer a rank copies, then computes: 2 + 1 us together, 1 + 1 us while others compute."""
    results = run(tmp_path, layers())
    together, turns = (results[row].summary for row in ("static", "in turns"))
    assert (together["step_ns"], turns["step_ns"]) == (4 * 3000, 4 * 2000)
    assert (together["pulling_supply"], together["demand_supply"]) == (8, 2.0)
    assert (turns["pulling_supply"], turns["demand_supply"]) == (4, 1.0)
    assert results["in turns"].plan.starts_ns[1] % 2000 == 1000, "one computes while the other copies"
    parts = ("compute_ns", "recompute_ns", "stall_ns", "drain_ns")
    assert sum(turns[part] for part in parts) == turns["step_ns"], "also of a step in the middle of the run"
    assert turns["moved_in_bytes"] == together["moved_in_bytes"] == 8 * 4 * 4000
    assert "in place of 12.0 us" in turns["notes"]
    crowd = "transfers of ranks that share in take 2.00x as long as alone under static."
    assert crowd in results.sentences


def test_turns_win_nothing_where_the_supply_is_never_idle(tmp_path):
    """4 GB/s for eight: a layer takes 8 us of the supply, and there is room to copy while computing."""
    results = run(tmp_path, layers(), budget="12 kB", supply="4 GB/s")
    together, turns = (results[row].summary for row in ("static", "in turns"))
    busy_ns = 8 * 4 * 4000 // 4
    assert (together["step_ns"], busy_ns) == (32_500, 32_000)
    assert busy_ns <= turns["step_ns"] <= together["step_ns"], "at most what it idles is won"


@pytest.mark.parametrize(
    ("supply", "budget"),
    [
        pytest.param(supply, budget, marks=[pytest.mark.slow] * ((i + j) % 4 > 0))
        for i, supply in enumerate(["4 GB/s", "11 GB/s", "20 GB/s"])
        for j, budget in enumerate(["5 kB", "8200 B", "10 kB", "14 kB", "20 kB"])
    ],
)
def test_turns_are_never_slower_and_never_faster_than_the_supply(tmp_path, budget, supply):
    results = run(tmp_path, layers(duration_ns=700), budget=budget, supply=supply)
    together, turns = (results[row].summary for row in ("static", "in turns"))
    assert turns["step_ns"] <= together["step_ns"]
    moved = turns["moved_in_bytes"]
    assert turns["step_ns"] >= moved / int(supply.split()[0])


def test_ranks_that_meet_in_each_step_begin_together(tmp_path):
    graph = layers()
    meets = Op("sum", kind=OpKind.COLLECTIVE, collective=Collective(CollectiveKind.ALL_REDUCE, "all", 4))
    graph = replace(graph, ops=(*graph.ops, meets), groups=(Group("all", (tuple(range(8)),)),))
    results = run(tmp_path, graph)
    assert results["in turns"].plan.starts_ns == (0,)
    assert results["in turns"].summary["notes"].endswith("or run for less than three steps with a fixed plan")
    assert results["in turns"].summary["step_ns"] == results["static"].summary["step_ns"]


def test_a_plan_in_turns_is_a_file_that_can_be_run_again(tmp_path):
    results = run(tmp_path, layers())
    made, graph = results["in turns"].plan, results.case.graph
    plan_jsonl.write(made, graph, tmp_path / "plan.jsonl")
    again = plan_jsonl.read(tmp_path / "plan.jsonl", graph, made.tiers)
    assert again.starts_ns == made.starts_ns != (0,)
    row = hosim.run(tmp_path / "turns.yaml", job=results.case.job, policies={"again": lambda problem: again})["again"]
    assert row.summary["step_ns"] == results["in turns"].summary["step_ns"]


@pytest.mark.parametrize("starts", ["", "-1", "0 0.5", "0,1", "1" * 17])
def test_beginnings_that_are_no_times_are_refused(tmp_path, starts):
    graph = layers(steps=1)
    path = tmp_path / "plan.jsonl"
    path.write_text(f'{{"schema":"hosim-plan/1","starts_ns":"{starts}"}}\n')
    with pytest.raises(ConfigError, match="starts_ns: string should match pattern"):
        plan_jsonl.read(path, graph, ("hbm", "pool"))


@pytest.mark.parametrize("row", ["policy: static, alone: true", "policy: plan.jsonl"])
def test_turns_are_for_a_policy_that_knows_what_is_shared(tmp_path, row):
    text = SCENARIO.replace("policy: static, label: in turns", row).replace("BUDGET", "5 kB")
    (tmp_path / "turns.yaml").write_text(text)
    with pytest.raises(ConfigError, match="turns are for a policy that knows of shared links"):
        hosim.run(tmp_path / "turns.yaml")


def test_a_crowd_is_counted_on_each_instance_folded_or_not():
    """Four ranks on two nodes: two pull on each node's bus at once, and what ends gives way to what starts."""
    h = cluster(4, 2, scope="supernode", buses={"pool": {"links": ["h2d"], "bandwidth": "1 GB/s", "scope": "node"}})
    g = team("w 30 persistent, v 10 persistent", "f: w v ->, 5 ns", groups={})
    programs = [(g, "copy w ddr hbm; copy v ddr hbm; compute f; detach w hbm; detach v hbm")] * 4
    for fold in ("never", "auto"):
        trace = perform(h, programs, "w ddr, v ddr", fold=fold)
        assert metrics.crowds(h, trace) == {"pool": metrics.Crowd(2, 2.0)}, fold
    apart = perform(h, programs, "w ddr, v ddr", starts=(0, 40))
    assert metrics.crowds(h, apart) == {"pool": metrics.Crowd(1, 1.0)}
    assert int(np.max(apart.spans.whole()["end_ns"])) == 85


def test_a_plan_is_told_as_its_row_decides_it(tmp_path):
    """`hosim plan` of a row in turns says so; of a row as if alone, what ranks crowd."""
    graph = layers()
    run(tmp_path, graph)
    path = tmp_path / "turns.yaml"
    path.write_text(path.read_text() + "  - {policy: static, label: as if alone, alone: true}\n")
    (tmp_path / "layers.yaml").write_text(
        "schema: hosim/workload/1\nname: layers\ngraph: layers.jsonl\nreplicas: 8\nassumed: {replicas: a story}\n"
    )
    told = plan(path, "in turns").text()
    assert "ranks begin in 4 turns, up to 9.00 us late, once: 8.00 us a step in place of 12.0 us" in told
    alone = plan(path, "as if alone")
    assert "transfers of ranks that share in take 2.00x as long as alone under as if alone" in alone.text()
    assert alone.explanations[0].augmented.problem.sharers == {}


def test_replicas_are_ranks_that_never_meet(tmp_path):
    workload = Workload.model_validate({"name": "w", "graph": "layers.jsonl", "replicas": 3})
    alone = layers()
    job = build_job(workload, tmp_path, lambda path, views: alone)
    assert (job.ranks, job.graphs) == (3, (alone,))
    meets = replace(alone, groups=(Group("all", ((0, 1),)),))
    with pytest.raises(ConfigError, match="a replica is one rank that meets no other, found a graph of 2 ranks"):
        build_job(workload, tmp_path, lambda path, views: meets)
    with pytest.raises(ValueError, match="a replica is one rank that meets no other"):
        Workload.model_validate({"name": "w", "model": MODEL, "replicas": 2, "parallel": {"ranks": "all", "data": 2}})
    several = Workload.model_validate({"name": "w", "model": MODEL, "replicas": 3, "batch": 2, "sequence": 16})
    assert several.tokens == 3 * 2 * 16
