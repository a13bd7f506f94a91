"""`hosim limits` and `hosim.limits`: on which figures of the machine a step hangs."""

from __future__ import annotations

import documents
import pytest
import some_ranks

import simulator as hosim_api
from simulator import catalog
from simulator.catalog.settings import amounts
from simulator.report.answers import limits_view

STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {activation: free}
budget: 60 MB
policies: [static, reactive]
assumed: {budget: a toy}
"""
JOB = """\
schema: hosim/workload/1
name: job
model: {layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, vocabulary: 1024}
sequence: 512
assumed: {model: a toy, sequence: a toy}
"""


@pytest.fixture
def story(tmp_path):
    return documents.lay(tmp_path, JOB, STORY) / "story.yaml"


def test_a_row_is_what_a_run_with_more_of_the_figure_gives(story):
    found = hosim_api.limits(story, policies=["static"], workers=1)
    assert found.rows
    usual = hosim_api.run(story, policies=["static"])["static"].summary["step_ns"]
    known = amounts(catalog.resolve(story, None).hardware)
    for row in found.rows:
        assert row["value"] == known[row["figure"]]
        assert row["step_ns"] != usual
        assert row["elasticity"] == pytest.approx((row["step_ns"] / usual - 1) / 0.1)
        assert row["origin"] == "assumed"
    strengths = [abs(row["elasticity"]) for row in found.rows]
    assert strengths == sorted(strengths, reverse=True)
    first = found.rows[0]
    number, _, unit = str(first["value"]).partition(" ")
    more = {first["figure"]: f"{float(number) * 1.1:.12g} {unit}" if unit else float(number) * 1.1}
    assert hosim_api.run(story, set=more, policies=["static"])["static"].summary["step_ns"] == first["step_ns"]


def test_a_figure_of_which_there_cannot_be_more_is_named(tmp_path):
    """It must not count among those that change no step."""
    scenario = some_ranks.lay(tmp_path, JOB.replace("name: job", "name: w"))
    path = "compute.achieved_fraction.matmul"
    found = hosim_api.limits(scenario, set={path: 0.95}, workers=1)
    (said,) = (text for text in found.sentences if text.startswith(f"{path} is not tried with 10 % more: "))
    assert "less than or equal to 1, found 1.045" in said
    assert path not in found.more["tried"]
    assert any(f"hosim raised each of {len(found.more['tried'])} figures" in text for text in found.sentences)


def test_what_changes_nothing_has_no_row(story):
    found = hosim_api.limits(story, policies=["static"], workers=1)
    assert {row["figure"] for row in found.rows} < set(found.more["tried"])
    assert "tiers.hbm.capacity" in found.more["tried"]
    assert "tiers.hbm.capacity" not in {row["figure"] for row in found.rows}, "the budget holds"


@pytest.mark.slow
def test_it_is_the_same_with_any_number_of_workers(story):
    asked = {"policies": ["reactive"]}
    assert hosim_api.limits(story, workers=1, **asked).json() == hosim_api.limits(story, workers=2, **asked).json()


def test_counts_and_what_has_no_end_are_not_tried(story):
    tried = amounts(catalog.resolve(story, None).hardware)
    assert "links.d2h.bandwidth" in tried
    assert not {path for path in tried if path.endswith("channels")}
    assert "tiers.ddr.capacity" not in tried


def test_it_is_told_and_written(hosim, story, tmp_path):
    done = hosim("limits", story, "--policy", "static", "--workers", 1, "--out", tmp_path / "out")
    assert done.code == 0
    assert "static takes" in done.out
    assert "The answer depends on 3 assumed figures: tiers.hbm.bandwidth" in done.out
    assert {"summary.json", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_a_policy_that_does_not_run_has_no_rows_and_is_told(hosim, story):
    found = hosim_api.limits(story, policies=["resident"], workers=1)
    assert found.rows == []
    assert found.more["statuses"] == {"resident": "infeasible"}
    done = hosim("limits", story, "--policy", "resident", "--workers", 1)
    assert (done.code, done.err) == (1, "hosim: no row ran to its end, all are infeasible\n")
    assert "resident is infeasible: " in done.out
    assert "change no step" not in done.out


def test_a_policy_that_nobody_has_is_refused(hosim, story):
    done = hosim("limits", story, "--policy", "nope", "--workers", 1)
    assert (done.code, done.out) == (1, "")
    assert "a policy is a row of the scenario or one that hosim has, found 'nope'" in done.err


@pytest.mark.slow
def test_a_figure_that_something_narrower_caps_is_told(hosim, tmp_path):
    """Links of 40 GB/s on a bus of 10: 44 change no step, and it is said why; a link below its bus is not capped."""
    bus = "set: {buses: {wire: {links: [d2h, h2d], bandwidth: 10 GB/s}}, links.*.bandwidth: 40 GB/s}\nassumed:"
    text = STORY.replace("assumed: {", f"{bus} {{buses: a toy, links: a toy, ")
    path = documents.lay(tmp_path, JOB, text) / "story.yaml"
    found = hosim_api.limits(path, policies=["static"], workers=1)
    assert "links.d2h.bandwidth" not in {row["figure"] for row in found.rows}
    assert any(
        one.startswith("links.d2h.bandwidth is 40.0 GB/s, but buses.wire.bandwidth is 10.0 GB/s: set both")
        for one in found.sentences
    )
    path.write_text(text.replace("10 GB/s", "400 GB/s"))
    assert not any("links.d2h.bandwidth is" in one for one in hosim_api.limits(path, workers=1).sentences)


def test_an_answer_that_hangs_on_cited_figures_alone_says_so():
    rows = [{"policy": "a", "figure": "x", "value": 1, "origin": "cited", "step_ns": 9, "elasticity": -0.5}]
    assert (
        limits_view(rows, {"a": 10}, 1, [], "").sentences[-1]
        == "No assumed figure changes the answer by 0.05 % or more."
    )
    fitted = [{**rows[0], "origin": "fitted"}]
    assert limits_view(fitted, {"a": 10}, 1, [], "").sentences[-1] == "The answer depends on 1 fitted figure: x."
