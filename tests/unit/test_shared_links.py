"""Plans that know what ranks share, beside plans made as if each rank were alone."""

from __future__ import annotations

import pytest
from synthetic import decode

import simulator as hosim
from simulator.formats import graph_jsonl
from simulator.graph import Job

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
  supply: {links: [in], bandwidth: 8 GB/s, scope: supernode}
topology: {devices_per_node: 8}
assumed: {compute: a story, tiers: a story, links: a story, buses: a story, topology: a story}
"""
WORKLOAD = """
schema: hosim/workload/1
name: layers
graph: layers.jsonl

"""
SCENARIO = """
schema: hosim/scenario/1
name: shared
hardware: shared.yaml
workload: layers.yaml
homes: {weight: pool}
budget: 24 kB
policies:
  - static
  - {policy: static, label: as if alone, alone: true}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory, quickly):
    folder = tmp_path_factory.mktemp("shared")
    graph = decode(8, weight_bytes=4000, kv_bytes=10, duration_ns=1000, steps=2)
    graph_jsonl.write(graph, folder / "layers.jsonl")
    (folder / "shared.yaml").write_text(MACHINE)
    (folder / "layers.yaml").write_text(WORKLOAD)
    (folder / "shared_story.yaml").write_text(SCENARIO)
    with quickly():
        return hosim.run(folder / "shared_story.yaml", job=Job.of(graph, 8))


def test_a_plan_that_knows_the_shared_links_is_no_slower_than_one_made_as_if_alone(results):
    aware, alone = (results[row].summary for row in ("static", "as if alone"))
    assert aware["status"] == alone["status"] == "ok"
    assert aware["ranks"] == 8
    assert aware["step_ns"] < alone["step_ns"]


def test_oversubscribed_links_are_told(results):
    """Eight ranks that pull 4 GB/s each from a supply of 8 GB/s take four times as long as alone."""
    alone = results["as if alone"].summary
    assert 1.05 < alone["crowding_in"] <= 4
    assert any("transfers of ranks that share in take" in text for text in results.sentences)


def test_the_problem_knows_who_shares(results):
    problem = results.case.problem
    assert problem.sharers == {"supply": 8}
    assert problem.alone.sharers == {}
