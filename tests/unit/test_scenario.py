"""The scenario: rows, expectations, and figures that it sets."""

import pytest
from pydantic import ValidationError

from simulator.scenario import Question, Scenario

FIT = {"parameter": "rate of the link", "figure": "step_time", "why": "the printed step"}


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


@pytest.mark.parametrize("label", ["../../x", "a\\b", "a\nb", "x" * 81, "=1+1", "+1", "-1", "@x", "\x1b[31m"])
def test_labels_are_safe_in_file_names(label):
    message = refusal(policies=[{"policy": "static", "label": label}])
    assert message.startswith("a label is at most 80 characters on one line, without slashes, ")
    if "/" not in label:
        assert refusal(policies=[{"policy": f"plans/{label}.jsonl"}]) == message


def test_expectations_name_rows():
    message = (
        "an expectation names a row of policies, found 'statik'; use one of resident, static (did you mean 'static'?)"
    )
    assert refusal(expect=[{"row": "statik", "equals": "1 s"}]) == message
    assert refusal(expect=[{"row": "static", "faster_than": "statik"}]) == message


def test_expectations_say_something():
    message = (
        "an expectation says about, at_most, at_least, equals, faster_than or printed, found none of them; add one"
    )
    assert refusal(expect=[{"row": "static"}]) == message


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ({"about": 5.36}, "a time is a number and a unit, such as '10 us', found 5.36; write it as '10 us'"),
        ({"about": "5 GB"}, "a time is needed, such as '10 us', found '5 GB'; use one of ns, us, ms, s"),
        (
            {"column": "hidden_fraction", "at_least": "most"},
            (
                "at_least of the column 'hidden_fraction' is a number, or a range from less to more, found 'most'; "
                "write a finite number, or a text under equals"
            ),
        ),
        (
            {"column": "stal", "at_most": "3 ms"},
            (
                "at_most of the column 'stal' is a number, or a range from less to more, found '3 ms'; "
                "write a finite number, or a text under equals"
            ),
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
    assert read.expect[0].ends(key) == (() if value is None else (value,))


def test_figures_that_it_sets_have_origins():
    settings = {"links.d2h.bandwidth": "40 GB/s", "links.d2h.latency": "1 us", "compute.launch": "3 us"}
    read = Scenario.model_validate(scenario(set=settings, fitted={"links.d2h": FIT}, assumed={"links.h2d": "as d2h"}))
    assert [(error.path, error.do) for error in read.field_errors()] == [
        (
            ("set", "compute.launch"),
            "cite 'compute.launch' in sources, or say in assumed why it was chosen",
        ),
        (("assumed", "links.h2d"), "did you mean 'links.d2h'?"),
    ]


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ({"over": "statik", "at_most": 1.0}, "an expectation names a row of policies, found 'statik'; use one of "),
        ({"over": 5.5, "at_most": 1.0}, "a time is a number and a unit, such as '10 us', found 5.5"),
        (
            {"over": "0 s", "at_most": 1.0},
            "a value is divided by that of a row, or by a printed figure above 0, found ",
        ),
        ({"over": "resident", "printed": "26 percent"}, "a ratio is written as '2.7x', as a change such as '-26 %', "),
        ({"at_most": "1 s", "kind": "fitted"}, "only a printed figure is fitted, shown or missed, found none"),
        ({"at_most": "1 s", "missed": "unknown"}, "only a printed figure is fitted, shown or missed, found none"),
        ({"printed": ["2 s", "1 s"]}, "printed of the column 'step_ns' is a number, or a range from less to more"),
        ({"printed": "1 s", "kind": "shown", "missed": "why"}, "only a predicted figure is missed, found kind: shown"),
        ({"printed": "1 s", "range": ["1 s", "2 s"]}, "range is of a figure that is only shown, found kind: predicted"),
        ({"printed": "1 s", "agrees_if": "so"}, "agrees_if is of a figure that is only shown, found kind: predicted"),
        (
            {"printed": "1 s", "kind": "shown", "range": ["1 s", "2 s"]},
            "a range holds ours, beside one printed number, found about: None, printed: 1 s; write ",
        ),
        (
            {"printed": "1 s", "kind": "shown", "about": "3 s", "range": ["1 s", "2 s"]},
            "a range holds ours, beside one printed number, found about: 3 s",
        ),
        (
            {"printed": "seconds", "kind": "shown", "about": "1 s", "range": ["1 s", "2 s"]},
            "a range holds ours, beside one printed number, found about: 1 s, printed: seconds",
        ),
        (
            {"printed": "1 s", "kind": "shown", "about": "1 s", "range": ["2 s", "1 s"]},
            "range of the column 'step_ns' is a number, or a range from less to more",
        ),
    ],
)
def test_printed_figures_are_said_in_one_way(expectation, message):
    assert refusal(expect=[{"row": "static", **expectation}]).startswith(message)


@pytest.mark.parametrize(
    ("printed", "ratio"), [("2.7x", 2.7), ("2.7 x", 2.7), ("-26 %", 0.74), ("+25 %", 1.25), (0.5, 0.5)]
)
def test_ratios_in_numbers(printed, ratio):
    (one,) = Scenario.model_validate(
        scenario(expect=[{"row": "static", "over": "resident", "printed": printed}])
    ).expect
    assert one.ends("printed") == pytest.approx((ratio,), rel=1e-12)


def test_the_printed_figures_of_a_claim_have_names():
    claim = {"sentence": "a step takes 1 s", "source": "a paper"}
    message = "a printed figure that puts a claim to the test has a name, found none; add figure: "
    assert refusal(claim=claim, expect=[{"row": "static", "printed": "1 s"}]).startswith(message)


def question(multiple_of):
    asked = {"of": "compute.achieved_bandwidth", "start": 0.9, "at_least": 0.35, "at_most": 0.5, "over": "resident"}
    return Question.model_validate({**asked, "such_that": ["step <= 1 s"], "multiple_of": multiple_of})


@pytest.mark.parametrize(("multiple_of", "values"), [(0.05, [0.35, 0.4, 0.45, 0.5]), (0.2, [0.4]), (0.25, [0.5])])
def test_a_question_may_ask_for_multiples_of_a_fraction(multiple_of, values):
    assert [*question(multiple_of).values] == values
    with pytest.raises(ValidationError, match="a multiple of multiple_of lies between the ends"):
        question(0.3)


@pytest.mark.parametrize(("start", "most"), [(0.9, 1.0), (1.0, 1.0), (1.5, 1500.0), ("0.9 GB/s", 900 * 10**9)])
def test_a_share_is_searched_up_to_one(start, most):
    asked = {"of": "compute.achieved_bandwidth", "over": "resident", "such_that": ["step <= 1 s"]}
    assert Question.model_validate({**asked, "start": start}).read("at_most") == most
