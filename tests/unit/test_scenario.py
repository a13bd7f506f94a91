"""The scenario: rows, expectations, and figures that it sets."""

import pytest
from pydantic import ValidationError

from simulator.scenario import Scenario


def scenario(**more):
    return {"name": "toy", "hardware": "box", "workload": "job", "policies": ["resident", "static"]} | more


def refusal(**more):
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(scenario(**more))
    return str(caught.value.errors()[0]["ctx"]["error"])


def test_a_bare_name_stands_for_a_policy():
    read = Scenario.model_validate(scenario(policies=["static", {"policy": "reactive", "label": "lru"}]))
    assert [choice.row for choice in read.policies] == ["static", "lru"]


def test_a_plan_from_a_file_is_named_by_its_stem():
    (choice,) = Scenario.model_validate(scenario(policies=["plans/best.jsonl"])).policies
    assert (choice.row, choice.is_file) == ("best", True)


def test_rows_have_distinct_labels():
    message = "each row of the table has a label of its own, found 'static' twice; give one of them another label"
    assert refusal(policies=["static", {"policy": "static"}]) == message


@pytest.mark.parametrize("label", ["../../x", "a\\b", "a\nb", "x" * 81])
def test_labels_are_safe_in_file_names(label):
    message = refusal(policies=[{"policy": "static", "label": label}])
    assert message.startswith("a label is at most 80 characters on one line, without slashes, found ")


def test_expectations_name_rows():
    message = (
        "an expectation names a row of policies, found 'statik'; use one of resident, static (did you mean 'static'?)"
    )
    assert refusal(expect=[{"row": "statik", "equals": "1 s"}]) == message
    assert refusal(expect=[{"row": "static", "faster_than": "statik"}]) == message


def test_expectations_say_something():
    message = "an expectation says about, at_most, at_least, equals or faster_than, found none of them; add one"
    assert refusal(expect=[{"row": "static"}]) == message


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ({"about": 5.36}, "a time has a unit, such as '10 us', found the bare value 5.36; write its unit"),
        ({"about": "5 GB"}, "a time is needed, such as '10 us', found '5 GB'; use one of ns, us, ms, s"),
        (
            {"column": "hidden_fraction", "at_least": "most"},
            "at_least of the column 'hidden_fraction' is a number, found 'most'; write a number, or use equals",
        ),
    ],
)
def test_expectations_have_the_unit_of_their_column(expectation, message):
    assert refusal(expect=[{"row": "static", **expectation}]) == message


@pytest.mark.parametrize(
    ("expectation", "key", "value"),
    [
        ({"about": "5.36 s"}, "about", 5_360_000_000),
        ({"column": "peak_hbm_bytes", "at_most": "64 GB"}, "at_most", 64_000_000_000),
        ({"column": "hidden_fraction", "at_least": 0.97}, "at_least", 0.97),
        ({"column": "status", "equals": "ok"}, "equals", "ok"),
        ({"about": "5.36 s"}, "at_most", None),
    ],
)
def test_expectations_in_numbers(expectation, key, value):
    read = Scenario.model_validate(scenario(expect=[{"row": "static", **expectation}]))
    assert read.expect[0].bound(key) == value


def test_figures_that_it_sets_have_origins():
    settings = {"links.d2h.bandwidth": "40 GB/s", "links.d2h.latency": "1 us", "compute.launch": "3 us"}
    read = Scenario.model_validate(
        scenario(set=settings, fitted={"links.d2h": "a step time"}, assumed={"links.h2d": "as d2h"})
    )
    assert [(error.at, error.do) for error in read.field_errors()] == [
        (
            ("set", "compute.launch"),
            "cite 'compute.launch' in sources, or say in assumed why it was chosen",
        ),
        (("assumed", "links.h2d"), "did you mean 'links.d2h'?"),
    ]
