"""Bounds hold of plans that run ops in program order, each on its stream; of others none is told."""

from __future__ import annotations

import json
from functools import partial

import chain
import numpy as np
import pytest
from stories import graph, machine

import simulator as hosim
from simulator.metrics import keeps_program, step_starts
from simulator.plan import COMPUTE, Actions, Plan
from simulator.trace import ISSUED

GRAPH = graph("a 1 persistent", "f: a ->", "g: a ->", "h: a ->")


def fixed(*computes):
    steps = Actions()
    for op, stream in computes:
        steps.compute(op, stream)
    return Plan("p", ("hbm",), (0,), steps)


IN_ORDER = [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("computes", "keeps"),
    [
        (IN_ORDER, True),
        ([(0, 0), (1, 0), (0, 0), (2, 0)], True),
        ([(0, 0), (2, 0), (1, 0)], False),
        ([(0, 0), (1, 1), (2, 0)], False),
    ],
)
def test_a_fixed_plan_keeps_the_program_if_first_runs_are_in_order(computes, keeps):
    assert keeps_program(GRAPH, fixed(*computes), (0, 0, 0), {}, []) is keeps


@pytest.mark.parametrize(
    ("computes", "keeps"),
    [
        (2 * IN_ORDER, True),
        ([*IN_ORDER, (0, 0), (2, 0), (1, 0)], False),
        ([(0, 0), (1, 0), (0, 0), (2, 0), (1, 0), (2, 0)], False),
    ],
)
def test_so_does_what_a_runtime_issued_in_each_step(computes, keeps):
    plan = Plan("p", ("hbm",), (0,), partial(iter, ()))
    two_steps = GRAPH.repeated(2)
    issued = np.array([(COMPUTE, op, stream, 0) for op, stream in computes]).T
    codes = dict(zip(ISSUED, issued, strict=True))
    starts = step_starts(two_steps, plan.home, machine(), codes)
    assert keeps_program(two_steps, plan, (0, 0, 0), codes, starts) is keeps


@pytest.mark.parametrize("syncs", [1, 2, 3])
def test_steps_that_a_plan_writes_out_need_not_be_equally_long(syncs, tmp_path):
    """Three steps of 13 ops of 100 us, with more lines in the second: each takes what its ops take."""
    head, home, *steps = chain.plan_lines()
    plan = [head | {"repeats": 1}, home, *steps, *[{"sync": "w"}] * syncs, *steps, *steps]
    text = chain.SCENARIO.replace("4.3 MB", "6.7 MB").replace("- static", "- mine.jsonl")
    scenario = chain.write(tmp_path, scenario=text, workload=chain.WORKLOAD.replace("steps: 2", "steps: 3"))
    chain.write_lines(tmp_path / "mine.jsonl", plan)
    row = hosim.run(scenario, policies=["mine"])["mine"]
    assert (row.summary["step_ns"], row.summary["compute_ns"]) == (1_300_000, 1_300_000)
    assert row.summary["gap_fraction"] == 0


def test_of_a_plan_on_other_streams_no_bound_is_told(tmp_path):
    hosim.run("tiny_train_910c", policies=["static"]).write(tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "static" / "plan.jsonl").read_text().splitlines()]
    for line in lines:
        if ".wgrad" in line.get("compute", ""):
            line["stream"] = 1
    (tmp_path / "out" / "beside.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = (tmp_path / "out" / "scenario.yaml").read_text()
    scenario = tmp_path / "out" / "again.yaml"
    scenario.write_text(text.replace("- policy: static\n", "- policy: beside.jsonl\n  label: static\n"))
    results = hosim.run(scenario)
    row = results["static"].summary
    found = [row[column] for column in ("status", "bound_ns", "bounded_by", "gap_fraction")]
    assert found == ["ok", None, "none", None]
    assert "least_peak_bytes" not in row
    assert any(sentence.startswith("static has no lower bound") for sentence in results.sentences)
