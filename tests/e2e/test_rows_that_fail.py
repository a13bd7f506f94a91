"""What is wrong with one row is told of that row; the others stand, in every command that has rows."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

MACHINE = """\
schema: hosim/hardware/1
name: m
compute_tier: hbm
compute: {peak: {bf16: 1 TFLOP/s}}
tiers: {hbm: {capacity: 100 B, bandwidth: 1 TB/s}, ddr: {capacity: inf}}
links:
  d2h: {source: hbm, target: ddr, bandwidth: 1 GB/s}
  h2d: {source: ddr, target: hbm, bandwidth: 1 GB/s}
"""
GRAPH = [
    {"schema": "hosim-graph/1", "name": "g"},
    *(
        {"tensor": name, "size_bytes": size, "kind": "weight", "persistent": True}
        for name, size in (("v", 10), ("w", 40))
    ),
    *({"tensor": name, "size_bytes": size, "kind": "activation"} for name, size in (("a", 50), ("b", 60))),
    {"op": "opA", "writes": ["a"], "duration_ns": 100},
    {"op": "opC", "reads": ["a", "v", "w"], "duration_ns": 100},
    {"op": "opB", "writes": ["b"], "duration_ns": 100, "stream": 1},
]
STORY = """\
schema: hosim/scenario/1
name: s
hardware: m.yaml
workload: w.yaml
homes: {weight: ddr}
policies: [static, {policy: other.jsonl, label: other}]
"""


@pytest.fixture
def story(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MACHINE)
    (tmp_path / "w.yaml").write_text("schema: hosim/workload/1\nname: w\ngraph: g.jsonl\n")
    (tmp_path / "g.jsonl").write_text("\n".join(map(json.dumps, GRAPH)))
    (tmp_path / "s.yaml").write_text(STORY.replace("other.jsonl, label: other", "reactive"))
    return tmp_path


@pytest.fixture
def with_plan_of_another_graph(hosim, story):
    assert hosim("plan", "s.yaml", "--policy", "static", "--out", "plan").code == 0
    (file,) = (story / "plan").rglob("*.jsonl")
    text = file.read_text().replace('"opB"', '"opX"')
    (story / "other.jsonl").write_text(text)
    (story / "s.yaml").write_text(STORY)
    return story / "s.yaml"


def test_a_plan_file_of_another_graph_is_a_row(hosim, with_plan_of_another_graph):
    done = hosim("run", with_plan_of_another_graph.name, "--no-what-if")
    assert done.code == 1
    assert "static  ok" in done.out
    assert "hosim: other fails: other.jsonl:" in done.err
    done = hosim("sweep", with_plan_of_another_graph.name, "--grid", "links.*.bandwidth=1 GB/s,2 GB/s", "--no-cache")
    assert done.out.count(" ok ") == 2
    assert "other fails at links.*.bandwidth 1.00 GB/s and links.*.bandwidth 2.00 GB/s: other.jsonl:" in done.out


@pytest.mark.slow
def test_a_plan_made_once_says_why_it_does_not_run(hosim, with_plan_of_another_graph):
    asked = ("--policy", "other", "--plans", "once", "--jitter", "1%", "--draws", "1", "--no-cache")
    done = hosim("sweep", with_plan_of_another_graph, *asked)
    assert done.code == 1
    assert "other.jsonl:" in done.err


def test_no_bound_is_told_for_a_stall_of_one_of_several_streams(hosim, story):
    """A step that is longer than the ops of one stream says nothing of how long that stream waits."""
    done = hosim("frontier", "s.yaml", "--policy", "static", "--of", "links.*.bandwidth", "--such-that", "stall <= 1 %")
    assert "static meets stall <= 1 % at links.*.bandwidth 488 MB/s" in done.out
    assert "bound was not searched: no bound is known that tells of stall <= 1 %." in done.out


def test_a_value_that_its_field_can_never_hold_is_refused_before_a_sweep(hosim, story):
    for grid in ("links.*.bandwidth=abc,1 GB/s", "links.*.channels=0,1"):
        done = hosim("sweep", "s.yaml", "--grid", grid, "--no-cache")
        assert (done.code, done.out) == (1, "")
        assert done.err.count("hosim: ") == 1


def test_a_home_that_later_ones_override_is_named(hosim, story):
    (story / "s.yaml").write_text(
        STORY.replace("{weight: ddr}", '{"v": ddr, weight: hbm}').replace(", {policy: other.jsonl, label: other}", "")
    )
    assert "without effect here: homes.v (later homes cover all of its tensors)." in hosim("run", "s.yaml").out
