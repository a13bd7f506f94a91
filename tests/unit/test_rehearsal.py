"""Plans are tried over few steps, and run, checked and counted over all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import documents
import pytest

import simulator as hosim
from simulator import engine
from simulator.catalog import resolve
from simulator.policies.problem import REHEARSED
from simulator.run.case import prepare

pytestmark = pytest.mark.usefixtures("quick_plans")

STEPS = 3 * REHEARSED
EXPERTS = "kind: experts, routed: 6, top_k: 2, width: 512, shared: 1"
JOB = documents.decoder(2, EXPERTS, batch=1, sequence=16, steps=STEPS, experts="each")
STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {expert: ddr}
budget: 2 MB
policies:
  - {policy: reactive, label: on demand, options: {dynamic: on_demand}}
  - {policy: reactive, label: all}
  - {policy: hybrid, options: {prefetch: next_layer_all}}
  - static
  - lookahead
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    return documents.lay(tmp_path, JOB, STORY) / "story.yaml"


def test_policies_try_few_steps_and_all_are_run(story, monkeypatch):
    ran, run = [], engine.run
    monkeypatch.setattr(engine, "run", lambda programs, *a, **k: ran.append(programs[0]) or run(programs, *a, **k))
    results = hosim.run(story)
    assert {row.status for row in results.values()} == {"ok"}
    steps = [program.graph.steps for program in ran]
    assert sorted(set(steps)) == [REHEARSED, STEPS]
    assert steps.count(STEPS) == len(results)
    for row in results.values():
        spans = row.spans
        assert len(spans[spans["kind"] == "compute"]) == STEPS * len(row.graph.ops)


def test_a_plan_that_was_tried_takes_what_it_did(story):
    """A lap of a fixed plan leaves to the next what every lap leaves."""
    case = prepare(resolve(story))
    for label in ("static", "lookahead"):
        few = case.problem.rehearsal
        assert few.graph.steps == REHEARSED
        plan = case.rows([label])[label](case.problem)
        tried = few.replay(replace(plan, repeats=REHEARSED))
        assert tried.step_ns == case.problem.replay(plan).step_ns


def test_a_function_of_ones_own_has_all_steps_to_try(story):
    seen = []

    def mine(problem):
        seen.append(problem.graph.steps)
        return hosim.policies.POLICIES["offload_saved"].plan(problem)

    hosim.run(story, policies={"mine": mine})
    assert seen == [STEPS]


def test_short_runs_are_tried_as_they_are(story):
    job = story.with_name("job.yaml")
    job.write_text(JOB.replace(f"steps: {STEPS}", f"steps: {REHEARSED}"))
    problem = prepare(resolve(story)).problem
    assert problem.rehearsal is problem
