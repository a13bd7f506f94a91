"""`hosim sweep --plans once`, jitter and headroom: a plan under conditions that it was not made for."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import simulator as hosim_api
from simulator.errors import ConfigError

ROWS = {"policies": ["static", "reactive"]}
PAIR = ("--policy", "static", "--policy", "reactive", "--workers", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_are_blank")
def test_each_level_of_jitter_has_lines_and_says_who_is_ahead(hosim, scenario, tmp_path):
    out = tmp_path / "out"
    done = hosim("sweep", scenario, "--plans", "once", "--jitter", "5%,20%", "--draws", 3, *PAIR, "--out", out)
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        [policy, level, "3"] for level in ("0.05", "0.2") for policy in ("static", "reactive")
    ]
    assert sum(" has the least median, " in line for line in lines) == 2
    draws = pd.read_csv(out / "points.csv")
    assert len(draws) == 2 * 2 * 3
    summary = json.loads((out / "summary.json").read_text())
    jitter = draws[(draws["policy"] == "static") & (draws["jitter"] == 0.2)]
    (line,) = (row for row in summary["quantiles"] if row["policy"] == "static" and row["jitter"] == 0.2)
    assert line["median_step_ns"] == jitter["step_ns"].median()
    again = hosim("sweep", out / "study.yaml", *PAIR)
    assert again.out == done.out


@pytest.mark.slow
def test_a_draw_moves_in_step_with_the_level_and_another_seed_is_another_draw(scenario):
    asked = {"plans": "once", "draws": 2, "cache": False, "workers": 1, **ROWS}
    both = hosim_api.sweep(scenario, jitter=[0.1, 0.2], **asked).table
    alone = hosim_api.sweep(scenario, jitter=0.1, **asked).table
    assert both[both["jitter"] == 0.1]["step_ns"].tolist() == alone["step_ns"].tolist()
    assert hosim_api.sweep(scenario, jitter=0.1, seed=1, **asked).rows != alone.to_dict("records")
    nominal = hosim_api.run(scenario, **ROWS).summary["step_ns"]
    still = hosim_api.sweep(scenario, jitter=[0.0, 0.1], **asked).table
    for policy, group in still[still["jitter"] == 0].groupby("policy"):
        assert set(group["step_ns"]) == {nominal[policy]}, "no jitter is no other time"


@pytest.mark.slow
def test_the_result_is_the_same_with_any_number_of_workers(scenario):
    asked = {"jitter": [0.1], "plans": "once", "draws": 4, "cache": False, **ROWS}
    one, two = (hosim_api.sweep(scenario, workers=workers, **asked) for workers in (1, 2))
    assert one.rows == two.rows


def test_factors_are_of_the_figures_that_the_documents_state(hosim, scenario):
    done = hosim("sweep", scenario, "--grid", "links.*.bandwidth=1x,0.5x", "--plans", "once", *PAIR)
    assert [line.split()[1] for line in done.out.splitlines()[1:5]] == ["1x", "1x", "0.5x", "0.5x"]
    named = hosim_api.sweep(scenario, {"links.*.bandwidth": ["4 GB/s", "2 GB/s"]}, plans="once", cache=False, **ROWS)
    factors = hosim_api.sweep(scenario, {"links.*.bandwidth": ["1x", "0.5x"]}, plans="once", cache=False, **ROWS)
    assert [row["step_ns"] for row in factors.rows] == [row["step_ns"] for row in named.rows]


def test_what_a_look_costs_is_paid_by_a_runtime_alone():
    look = {"host.reactive.inspect": ["100 ns", "5 us", "500 us"]}
    steps = hosim_api.sweep("tiny_train_910c", look, plans="once", cache=False, workers=1, **ROWS).table
    steps = steps.pivot_table("step_ns", "host.reactive.inspect", "policy")
    assert steps["static"].nunique() == 1
    assert steps["reactive"].is_monotonic_increasing
    assert steps["reactive"].nunique() > 1


def test_a_plan_that_no_longer_fits_is_an_outcome_and_headroom_lets_it_survive():
    longer = {"workload.sequence": [1024, 1044]}
    asked = {"plans": "once", "cache": False, "workers": 1, **ROWS}
    tight, roomy = (
        hosim_api.sweep("tiny_train_910c", longer, headroom=headroom, **asked).table for headroom in (0, 0.05)
    )
    assert tight["status"].tolist() == ["ok", "ok", "blocked", "ok"]
    assert roomy["status"].tolist() == ["ok"] * 4
    assert roomy["step_ns"].iloc[0] > tight["step_ns"].iloc[0], "a reserve costs"
    assert roomy["step_ns"].iloc[1] == tight["step_ns"].iloc[1], "a runtime has none"
    assert tight["slowdown_vs_fastest"].iloc[1] == tight["step_ns"].iloc[1] / tight["step_ns"].iloc[0]


def test_what_has_no_plan_for_the_documents_as_they_are_is_a_row(hosim, scenario):
    asked = ("--plans", "once", "--grid", "links.*.bandwidth=1x,0.9x", "--workers", 1)
    done = hosim("sweep", scenario, "--policy", "resident", *asked)
    assert done.code == 1
    assert "resident does not fit at links.*.bandwidth 1x and links.*.bandwidth 0.9x." in done.out


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (("--jitter", "1e300%"), 1, "--jitter"),
        (("--jitter", "5"), 1, "--jitter"),
        (("--jitter", "much"), 2, "'much' is no list such as 5%,0.1"),
        (("--jitter", "5%", "--draws", "100000000000"), 1, "--draws"),
        (("--jitter", "5%", "--draws", "0"), 2, "Invalid value for '--draws'"),
        (("--jitter", "5%", "--bounds"), 1, "bounds are of a machine without jitter"),
        (("--headroom", "5%"), 1, "is of plans that are made once, found 5 % of plans made anew"),
        (("--headroom", "100%", "--plans", "once"), 1, "to below 100 %"),
        (("--grid", "workload.steps=1x,2x"), 1, "found 'workload.steps'"),
    ],
)
def test_wrong_wishes_are_one_message(asked, code, said, hosim, scenario):
    more = () if "--grid" in asked or "--jitter" in asked else ("--grid", "links.*.bandwidth=1x,0.9x")
    done = hosim("sweep", scenario, *asked, *more, *PAIR)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_a_study_says_the_same(tmp_path, scenario):
    study = tmp_path / "mine.yaml"
    study.write_text(
        f"schema: hosim/study/1\nname: mine\nscenario: {scenario}\npolicies: [static, reactive]\nplans: once\n"
        "headroom: 0.02\nsample: {size: 2, jitter: [0.05, 0.1]}\nassumed: {sample.jitter: a test}\n"
    )
    said = {"jitter": [0.05, 0.1], "draws": 2, "plans": "once", "headroom": 0.02}
    assert hosim_api.sweep(study, cache=False).rows == hosim_api.sweep(scenario, **said, **ROWS, cache=False).rows
    study.write_text(study.read_text().replace("plans: once\n", ""))
    with pytest.raises(ConfigError, match="headroom is of plans that are made once, found plans: anew"):
        hosim_api.sweep(study, cache=False)


def test_too_much_headroom_is_told_so(scenario):
    asked = {"plans": "once", "headroom": 0.99, "cache": False, "policies": ["static"]}
    (row,) = hosim_api.sweep(scenario, {"links.*.bandwidth": ["1x"]}, **asked).rows
    assert row["status"] == "infeasible"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"draws": 5}, "draws: draws are of jitter, and uncertainty states its own number, found 5"),
        ({"draws": 5, "uncertainty": 2}, "draws: draws are of jitter, and uncertainty states its own number, found 5"),
        ({"seed": 0}, "seed: a seed is of draws that are asked for beside it, found 0 without"),
    ],
)
def test_draws_and_a_seed_without_what_is_drawn_are_refused(scenario, asked, said):
    with pytest.raises(ConfigError, match=said):
        hosim_api.sweep(scenario, {"links.*.bandwidth": ["1x"]}, **asked)


def test_one_share_is_left_free(hosim, scenario):
    done = hosim("sweep", scenario, "--plans", "once", "--grid", "links.*.bandwidth=1x", "--headroom", "5%,10%")
    assert done.code == 2
    assert "'5%,10%' is not one share, such as 5%" in done.err
