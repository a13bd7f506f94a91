"""`hosim robust` and `hosim.robustness`: a plan under conditions that it was not made for."""

from __future__ import annotations

import json

import chain
import pandas as pd
import pytest

import simulator as hosim_api
from simulator.errors import CapacityError, ConfigError

FEW = ("--jitter", "5%,20%", "--slower-links", "10%,90%", "--inspect", "none", "--draws", "3")


def test_the_table_names_both_policies_and_where_the_other_wins(hosim, scenario):
    done = hosim("robust", scenario, *FEW, "--workers", 1)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["perturbation", "level", "policy"]
    assert [line.split()[0] for line in lines[1:11:2]] == ["nominal", "jitter", "jitter", "slower", "slower"]
    assert sum(line.startswith("Faster under ") for line in lines) == 2


def test_without_conditions_there_is_a_table_of_nominal_and_nothing_below_it(hosim, scenario):
    done = hosim("robust", scenario, "--jitter", "none", "--slower-links", "none", "--inspect", "none",
                 "--workers", 1)  # fmt: skip
    assert done.code == 0
    assert [line.split()[0] for line in done.out.split("\n")[:-1]] == ["perturbation", "nominal", "nominal"]


def test_the_result_is_the_same_again_and_with_any_number_of_workers(scenario):
    few = {"jitter": [0.1], "slower_links": [0.5], "draws": 4}
    one = hosim_api.robustness(scenario, **few)
    two = hosim_api.robustness(scenario, workers=2, **few)
    assert one.rows == two.rows
    other = hosim_api.robustness(scenario, seed=1, **few)
    assert other.rows != one.rows
    assert other.table["step_ns"].iloc[0] == one.table["step_ns"].iloc[0]


def test_from_python_comes_a_tidy_table_and_a_figure(scenario):
    told = []
    found = hosim_api.robustness(
        scenario, jitter=[0.1], slower_links=[], inspect=[], draws=2, progress=lambda *said: told.append(said)
    )
    table = found.table
    assert list(table.columns) == ["policy", "perturbation", "level", "draw", "status", "step_ns", "slowdown", "why"]
    assert len(table) == 2 * (1 + 2)
    assert (table[table["perturbation"] == "nominal"]["slowdown"] == 1).all()
    assert [panel.title for panel in found.view.panels] == ["jitter"]
    assert told[-1][0].startswith("points, ")
    assert told[-1][1:] == (3, 3)
    nominal = hosim_api.run(scenario, policies=["static", "reactive"])
    assert table["step_ns"].iloc[:2].tolist() == [row.summary["step_ns"] for row in nominal.values()]


def test_the_folder_holds_draws_quantiles_the_picture_and_the_documents(hosim, scenario, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        assert hosim("robust", scenario, *FEW, "--workers", 1, "--out", out).code == 0
    summary = json.loads((out / "summary.json").read_text())
    assert {p.name for p in out.iterdir()} == set(summary["files"])
    assert {"points.csv", "robust.png", "report.html", "summary.csv", "scenario.yaml"} <= set(summary["files"])
    draws = pd.read_csv(out / "points.csv")
    assert len(draws) == 2 * (1 + 2 * 3 + 2)
    assert summary["seed"] == 0
    jitter = draws[(draws["policy"] == "static") & (draws["level"] == 0.2)]
    (line,) = (row for row in summary["rows"] if row["policy"] == "static" and row["level"] == 0.2)
    assert line["median_step_ns"] == jitter["step_ns"].median()


def test_what_a_look_costs_is_swept(hosim, scenario):
    done = hosim("robust", scenario, "--jitter", "none", "--slower-links", "none", "--workers", 1)
    assert done.code == 0
    assert [" ".join(line.split()[1:3]) for line in done.out.splitlines()[3:12:2]] == [
        "100 ns", "500 ns", "1.00 us", "2.00 us", "5.00 us"
    ]  # fmt: skip
    assert "Faster under inspection: static at 100 ns, 500 ns, 1.00 us, 2.00 us and 5.00 us." in done.out


def test_a_plan_that_no_longer_fits_is_an_outcome(hosim):
    done = hosim("robust", "tiny_train_910c", "--jitter", "none", "--slower-links", "none", "--longer", "50%",
                 "--workers", 1)  # fmt: skip
    assert done.code == 0
    assert "blocked" in done.out
    assert "Faster under longer sequence: reactive at 50 %." in done.out


def test_headroom_lets_a_plan_survive_a_longer_sequence():
    few = {"jitter": [], "slower_links": [], "inspect": [], "longer": [0.02]}
    tight = hosim_api.robustness("tiny_train_910c", **few).table
    roomy = hosim_api.robustness("tiny_train_910c", headroom=0.05, **few).table
    assert tight["status"].tolist() == ["ok", "ok", "blocked", "ok"]
    assert roomy["status"].tolist() == ["ok"] * 4
    assert roomy["step_ns"].iloc[0] > tight["step_ns"].iloc[0]
    assert roomy["step_ns"].iloc[1] == tight["step_ns"].iloc[1]


def test_what_does_not_fit_under_nominal_conditions_has_no_plan_to_test(hosim, scenario):
    done = hosim("robust", scenario, "--policy", "resident", *FEW, "--workers", 2)
    assert done.code == 1
    assert done.err.startswith("hosim: ")
    assert " B short" in done.err
    with pytest.raises(CapacityError):
        hosim_api.robustness(scenario, policy="resident", jitter=[], slower_links=[])


def test_one_that_does_not_fit_is_a_row_where_it_is_the_other(scenario):
    found = hosim_api.robustness(scenario, against="resident", jitter=[], slower_links=[0.1])
    assert found.table[found.table["policy"] == "resident"]["status"].unique().tolist() == ["infeasible"]
    assert found.sentences[0] == "Faster under slower links: static at 10 %."


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--longer", "10%"), 1, "only the step of a model can be built for a longer sequence"),
        (("--slower-links", "100%"), 1, "a level is above 0 and at most 0.99"),
        (("--jitter", "1e300%"), 1, "a level is above 0 and at most 1,"),
        (("--draws", "100000000000"), 1, "at least 1 and at most 10,000"),
        (("--jitter", "5"), 1, "a level is above 0 and at most 1,"),
        (("--jitter", "much"), 2, "'much' is no list such as 5%,0.1"),
        (("--policy", "reactive"), 1, "two different rows are compared, with the same changes to the machine"),
        (("--against", "statik"), 1, "a policy is a row of the scenario or one that hosim has"),
        (("--headroom", "100%"), 1, "it is at least 0 % and below 100 %"),
        (("--draws", "0"), 2, "Invalid value for '--draws'"),
    ],
)
def test_wrong_wishes_are_one_message(arguments, code, said, hosim, scenario):
    done = hosim("robust", scenario, *arguments, "--workers", 1)
    assert done.code == code
    assert said in done.err


def test_wrong_numbers_from_python_are_refused(tmp_path):
    path = chain.write(tmp_path)
    for wrong in ({"draws": 0}, {"seed": -1}, {"draws": 1.5}):
        with pytest.raises(ConfigError, match="is a whole number, at least"):
            hosim_api.robustness(path, **wrong)


def test_a_level_is_told_as_it_was_asked_for(hosim):
    done = hosim("robust", "tiny_train_910c", "--longer", "0.001%", "--jitter", "none", "--slower-links", "none",
                 "--inspect", "none")  # fmt: skip
    assert "Faster under longer sequence: static at 0.001 %." in done.out


def test_too_much_headroom_is_told_so(hosim):
    done = hosim("robust", "tiny_train_910c", "--headroom", "99%", "--longer", "none", "--jitter", "none")
    assert done.code == 1
    assert done.err.rstrip().endswith("leave less headroom than 99 %")
