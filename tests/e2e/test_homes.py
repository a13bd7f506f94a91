"""Homes: where they have a meaning, and how they are set from outside."""

from __future__ import annotations

import documents
import pytest

import simulator
from simulator.scenario import Scenario

HOMES = "homes: {weight: hbm}"
KINDS = (
    "a home is for a kind of tensor that there is (activation, gradient, input, optimizer_state, weight), or for names"
)


JOB = documents.JOB.replace("name: job", "name: job\nsequence: 4").replace("{model", "{sequence: a toy, model")
"""Of 20 kB of optimizer state, 3.4 kB of weights and as much of gradients, and 6 kB of activations."""


@pytest.fixture
def story(tmp_path, monkeypatch):
    """Write the three documents, with these homes; return the path of the scenario."""
    monkeypatch.chdir(tmp_path)

    def written(homes="{}"):
        return documents.lay(tmp_path, JOB, documents.STORY.replace(HOMES, f"homes: {homes}")) / "story.yaml"

    return written


@pytest.mark.parametrize("homes", ["{activation: ddr}", "{optimizer_state: ddr, gradient: ddr}", '{"L*/fwd/*": ddr}'])
def test_a_home_elsewhere_of_what_lives_within_a_step_is_refused_by_name(story, homes):
    *_, named = (part.split(":")[0].strip('{ "') for part in homes.split(","))
    said = documents.refusal(simulator.run, story(homes.replace("L*/fwd/*", "L*/*.out")))
    named = named.replace("L*/fwd/*", "L*/*.out")
    where = f"story.yaml:7, homes.{named}"
    assert said.startswith(
        f"{where}: a home in another tier than hbm is for lasting tensors: persistent ones, inputs, outputs"
    )
    assert f"found ddr for {named}: tensors that are new in each step, and gone before it ends; say free" in said


def test_what_lives_within_a_step_may_be_free_or_stay(story):
    """To stay is a promise: no policy moves it, so that it needs more room."""
    status = {}
    for home in ("free", "hbm"):
        homes = f"{{optimizer_state: ddr, gradient: {home}, activation: {home}}}"
        status[home] = simulator.run(story(homes), policies=["static"], set={"budget": "8 kB"})["static"].status
    assert status == {"free": "ok", "hbm": "infeasible"}


@pytest.mark.parametrize("home", ["kv_cache: ddr", "expert: free", "workspace: hbm", '"L7/*": ddr'])
def test_a_home_that_no_tensor_has_is_refused(story, home):
    named = home.split(":")[0].strip('"')
    said = documents.refusal(simulator.run, story(f"{{{home}}}"))
    assert said.startswith(f"story.yaml:7, homes.{named}: {KINDS} that some tensor has, found {named!r}; correct it;")


CHANGES = [{"homes.weight": "ddr"}, {"scenario.homes.weight": "ddr"}, {"homes": {"weight": "ddr"}}]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("homes", [pytest.param("{}", marks=pytest.mark.slow), "{weight: hbm, '*.weight': hbm}"])
def test_a_home_is_set_from_outside_and_wins(story, changes, homes):
    told, changed = simulator.run(story("{weight: ddr}")), simulator.run(story(homes), set=changes)
    assert changed["resident"].summary == told["resident"].summary
    assert changed["resident"].summary["peak_ddr_bytes"] > 0


def test_a_home_and_the_budget_are_set_without_a_scenario(story):
    story()
    on = {"hardware": "box.yaml", "workload": "job.yaml", "policies": ["static"]}
    changes = {"homes.optimizer_state": "ddr", "budget": "20 kB", "scenario.seed": 3}
    row = simulator.run(**on, set=changes)["static"]
    assert row.summary["moved_h2d_bytes"] > 0
    assert (row.budget_bytes, row.case.loaded.scenario.seed) == (20_000, 3)


def test_homes_vary_in_a_sweep(story):
    grid = {"homes.optimizer_state": ["hbm", "ddr"], "budget": ["40 kB", "1 MB"]}
    swept = simulator.sweep(story(), grid, policies=["static"], cache=False, workers=1)
    assert [row["peak_hbm_bytes"] > 27_000 for row in swept.rows] == [True, True, False, False]


def test_rows_that_are_kept_are_those_of_their_homes(story, tmp_path):
    """Also of a scenario that is no file."""
    story()
    steps = []
    for homes in ({}, {"optimizer_state": "ddr"}):
        mine = Scenario(name="mine", hardware="box.yaml", workload="job.yaml", policies=("static",), homes=homes)
        grid = {"links.*.bandwidth": ["1 GB/s", "2 GB/s"]}
        steps.append([row["step_ns"] for row in simulator.sweep(mine, grid, cache=tmp_path / "kept", workers=1).rows])
    assert steps[0] != steps[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"homes.weight": "dram"}, "set, homes.weight: homes names tiers of the machine, found 'dram'"),
        ({"homes.kv_cache": "ddr"}, "set, homes.kv_cache: a home is for a kind of tensor that there is"),
        ({"homes.gradient": "ddr"}, "set, homes.gradient: a home in another tier than hbm is for lasting tensors"),
        ({"budget": "65 GB"}, "set, budget: a budget is at most the capacity of hbm (64.0 GB), found 65.0 GB"),
        ({"scenario.hardware": "box"}, "set, scenario.hardware: a change names a field of the scenario"),
        (
            {"scenario.set.links.*.latency": "1 us"},
            "set, scenario.set.links.*.latency: a change names a field of the sc",
        ),
        ({"scenario.expect": []}, "set, scenario.expect: a change names a field of the scenario"),
    ],
)
def test_what_is_wrong_with_a_change_is_said_where_it_was_asked(story, changes, message):
    assert documents.refusal(simulator.run, story(), set=changes).startswith(message)


def test_a_home_that_the_machine_lacks_is_an_outcome_of_a_cell(story):
    asked = {"homes.weight": ["dram", "hbm"]}
    rows = simulator.sweep(story(), asked, cache=False, workers=1).rows
    assert rows[0]["status"] == "failed"
    assert {row["status"] for row in rows[1:]} <= {"ok", "infeasible"}
    said = "grid, homes.weight (homes.weight: dram): homes names tiers of the machine, found 'dram'"
    assert said in rows[0]["notes"]


def test_the_option_that_helps_is_printed_and_helps(story, hosim):
    on = ["--hardware", "box.yaml", "--workload", "job.yaml", "--policy", "static", "--set", "budget=16 kB"]
    story()
    ran = hosim("run", *on)
    assert (ran.code, "(--home " in ran.out) == (1, True)
    options = ran.out.split("free (")[1].split(")")[0].split()
    assert hosim("run", *on, *options).code == 0
