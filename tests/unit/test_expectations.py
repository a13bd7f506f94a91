"""Expectations against rows: values, ratios and sums, and what a verdict is called."""

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from simulator.claims import Judged, claims_view, sentences
from simulator.document import Fit
from simulator.report.expectations import verdicts
from simulator.report.words import signed
from simulator.scenario import Expectation

ROWS = {
    "slow": {"status": "ok", "step_ns": 15_000_000_000, "wait_host_ns": 2, "wait_compaction_ns": 5},
    "fast": {"status": "ok", "step_ns": 6_000_000_000, "wait_host_ns": 0, "wait_compaction_ns": None},
    "none": {"status": "infeasible"},
}
WITH_NOTHING, EXACT = "with nothing fitted or chosen", "off by at most 0 %"


def verdict(**said):
    (found,) = verdicts([Expectation.model_validate({"row": "slow", **said})], ROWS, "a paper")
    return found


def judged(scenario, *verdicts, fits=None):
    return [Judged(scenario, one, (fits or {}).get(one.row, {})) for one in verdicts]


def test_without_more_ours_is_held_against_what_is_printed():
    found = verdict(printed="15.3 s", within=0.02, figure="step")
    assert (found.holds, found.word, found.difference, found.tolerance) == (True, "holds", "-2.0 %", "2.0 %")
    assert (found.printed, found.found, found.source, found.figure) == ("15.3 s", "15.0 s", "a paper", "step")
    assert verdict(printed="15.3 s", within=0.019).word == "BROKEN"


@pytest.mark.parametrize(
    ("said", "found", "holds"),
    [
        ({"over": "fast", "printed": "2.4x"}, "2.50x", True),
        ({"over": "fast", "printed": "2.7x"}, "2.50x", False),
        ({"over": "fast", "printed": "+150 %"}, "+150.0 %", True),
        ({"over": "20 s", "printed": "-26 %"}, "-25.0 %", True),
        ({"over": "20 s", "printed": "-26 %", "at_least": "-27 %", "at_most": "-26 %"}, "-25.0 %", False),
        ({"over": "20 s", "printed": ["-30 %", "-20 %"]}, "-25.0 %", True),
        ({"over": "20 s", "printed": ["-24 %", "-20 %"]}, "-25.0 %", False),
        ({"printed": ["8 s", "inf"]}, "15.0 s", True),
        ({"printed": ["16 s", "inf"]}, "15.0 s", False),
        ({"column": "wait_host_ns + wait_compaction_ns", "printed": "7 ns"}, "7 ns", True),
        ({"over": "14.8 s", "printed": "-2 %"}, "+1.4 %", False),
        ({"over": "15.2 s", "printed": "-2 %"}, "-1.3 %", True),
        ({"over": "15.2 s", "printed": "+2 %"}, "-1.3 %", False),
        ({"over": "15 s", "printed": "-2 %"}, "+0.0 %", False),
        ({"over": "15 s", "printed": "+0 %"}, "+0.0 %", True),
        ({"over": "14.8 s", "printed": "0.98x"}, "1.01x", True),
        ({"over": "15.001 s", "printed": "-2 %"}, "-0.0 %", True),
    ],
)
def test_ratios_and_sums(said, found, holds):
    one = verdict(**said)
    assert (one.found, one.holds) == (found, holds)


def test_a_change_that_goes_the_other_way_is_said_to():
    assert verdict(over="14.8 s", printed="-2 %").must == "about -2.0 % (within 5.0 %) and a fall"
    assert verdict(over="14.8 s", printed="-2 %", about="+1.4 %", kind="shown").holds
    ways = {"-2 %": " and a fall", "+2 %": " and a rise", "+0 %": "", "1.02x": ""}
    for printed, goes in ways.items():
        assert verdict(over="14.8 s", printed=printed).must.partition("(within 5.0 %)")[2] == goes


@pytest.mark.parametrize(
    "said",
    [
        {"row": "none", "printed": "1 s"},
        {"over": "none", "printed": "1x"},
        {"row": "fast", "column": "wait_host_ns + wait_compaction_ns", "printed": "0 ns"},
    ],
)
def test_what_a_row_does_not_have_does_not_hold(said):
    found = "none, as the row is infeasible" if said.get("row") == "none" else "nothing"
    assert (verdict(**said).found, verdict(**said).holds, verdict(**said).error) == (found, False, None)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"printed": "15 s"}, "holds"),
        ({"printed": "15 s", "kind": "fitted", "figure": "step"}, "fitted"),
        ({"printed": "10 s", "kind": "fitted", "figure": "step"}, "BROKEN"),
        ({"printed": "10 s", "kind": "shown"}, "shown"),
        ({"printed": "10 s", "kind": "shown", "at_most": "12 s"}, "BROKEN"),
        ({"printed": "10 s", "missed": "not described"}, "missed"),
        ({"printed": "15 s", "missed": "not described"}, "holds"),
    ],
)
def test_a_verdict_in_a_word(said, word):
    assert verdict(**said).word == word
    assert verdict(**said).is_broken == (word == "BROKEN")


def test_differences_have_signs():
    assert [signed(share) for share in (0.031, -0.2, 0.0, -1e-9, math.nan, None)] == [
        "+3.1 %", "-20 %", "0 %", "0 %", "-", "-"
    ]  # fmt: skip


def fit(name, figure):
    return {Fit(parameter=name, figure=figure, why="so that it comes out"): ["compute.rate"]}


def test_a_figure_counts_once_by_its_worst_verdict():
    rate = fit("rate", "top_step")
    held = verdict(printed="15 s", figure="step", why="the step")
    other = verdict(printed="10 s", figure="other", missed="nobody knows", why="the other")
    fitted = verdict(printed="15 s", figure="top_step", kind="fitted", why="the fit")
    checked = [
        *judged("one", held, other, fits={"slow": rate}),
        *judged("two", held, fitted, fits={"slow": rate}),
        *judged("three", verdict(printed="15 s", figure="apart", why="apart")),
    ]
    assert sentences(checked) == [
        f"2 printed figures predicted and held: 1 with 1 number fitted (rate), {EXACT}; 1 {WITH_NOTHING}, {EXACT}.",
        "Of 4 printed figures 1 fitted and 1 missed.",
    ]
    broken = judged("four", verdict(printed="10 s", figure="step", why="the step"), fits={"slow": rate})
    assert sentences([*checked, *broken]) == [
        f"1 printed figure predicted and held: 1 {WITH_NOTHING}, {EXACT}.",
        "Of 4 printed figures 1 fitted, 1 missed and 1 BROKEN.",
        "BROKEN: four: slow: step_ns must be about 10.0 s (within 5.0 %), found 15.0 s",
    ]
    assert "the other: nobody knows" in str(claims_view(checked))
    assert "rate  compute.rate, to top_step: so that it comes out" in str(claims_view(checked))


def test_free_parameters_are_counted_that_held_figures_stand_on():
    rate, price = fit("rate", "rate_step"), fit("price", "price_step")
    held = [replace(verdict(printed="15 s", figure=row), row=row) for row in ("a", "b", "c", "d")]
    fits = {"a": rate, "b": rate, "c": {**rate, **price}}
    (told,) = sentences(judged("one", *held, fits=fits))
    assert told.startswith(f"4 printed figures predicted and held: 2 with 1 number fitted (rate), {EXACT}; 1 with 2 ")
    assert told.endswith(f" 1 with 2 numbers fitted (rate, price), {EXACT}; 1 {WITH_NOTHING}, {EXACT}.")


def test_what_was_chosen_to_explain_is_counted_and_listed_beside_what_was_fitted():
    chosen = {"length 8": "no other length explains it", "fused": "the recipe has it"}
    held = [verdict(printed=f"{seconds} s", figure=f"at-{number}") for number, seconds in enumerate((15.3, 14.9))]
    checked = [
        Judged("one", held[0], fit("rate", "top"), chosen),
        Judged("two", held[1], {}, {"fused": "the recipe has it"}),
        Judged("three", verdict(printed="15 s", figure="shown", kind="shown"), {}, {"slow": "it is shown"}),
    ]
    assert sentences(checked)[0] == (
        "2 printed figures predicted and held: 1 with 1 number fitted (rate) "
        "and 2 choices that explain (length 8, fused), "
        "off by at most 2.0 %; 1 with 1 choice that explains (fused), off by at most 0.7 %."
    )
    assert [one.row["chosen"] for one in checked] == ["length 8, fused", "fused", "slow"]
    (section,) = (section for section in claims_view(checked).sections if section.head == "Chosen")
    assert section.notes == [*chosen.items(), ("slow", "it is shown")]


def test_what_cannot_come_out_otherwise_is_no_prediction():
    found = verdict(printed="15 s", equals="15 s", kind="by construction", figure="step")
    assert (found.word, found.tolerance) == ("by construction", "15.0 s")
    assert sentences(judged("one", found)) == [
        "0 printed figures predicted and held.", "Of 1 printed figure 1 by construction."
    ]  # fmt: skip
    assert sentences(judged("one", found, verdict(printed="15 s", figure="step")))[1:] == [
        "Of 1 printed figure 1 by construction."
    ]
    assert verdict(printed="15 s", equals="14 s", kind="by construction", figure="step").word == "BROKEN"


def test_what_stands_for_a_headline_has_a_line_without_a_printed_figure():
    held, broken = (verdict(at_most=most, headline=True, why="no slower") for most in ("16 s", "14 s"))
    assert [one.is_shown for one in judged("one", held, verdict(at_most="16 s"))] == [True, False]
    view = claims_view(judged("one", held))
    assert view.sections[0].head == "a paper"
    assert view.sentences == ["0 printed figures predicted and held.", "Of 1 headline expectation 1 guarded."]
    assert "Of 2 headline expectations 1 guarded and 1 BROKEN." in sentences(judged("one", held, broken))
    missed = verdict(printed="10 s", missed="not described", headline=True)
    told = sentences(judged("one", held, broken, missed, missed))
    assert "Of 4 headline expectations 1 guarded, 2 missed and 1 BROKEN." in told


def test_on_a_machine_that_was_changed_nothing_is_predicted():
    by_luck = verdict(printed="15 s", figure="step", missed="not described")
    checked = judged("one", by_luck, verdict(printed="15 s", figure="other"))
    assert sentences(checked)[-1].endswith(": holds, though marked missed; drop missed from the scenario.")
    assert sentences(checked, "host.launch x 2") == [
        "2 printed figures held on machines with host.launch x 2, which predicts nothing."
    ]


def test_what_was_counted_before_is_shown_as_recorded_with_the_command_that_counts_anew():
    one = verdict(printed="15 s", figure="step")
    lines = ("a: 2 of 6 settings reproduce the step.", "it holds for 1 of 2.")
    view = claims_view([Judged("a", one, counted=lines), Judged("a", one, counted=lines), Judged("b", one)])
    (section,) = (section for section in view.sections if section.head.startswith("Counted"))
    assert section.head == "Counted by python tests/choices.py a, and recorded"
    assert section.notes == [("", line) for line in lines]


def test_a_figure_that_is_held_in_one_place_and_shown_in_another_is_held():
    shown = verdict(printed="15 s", figure="step", kind="shown")
    assert sentences(judged("one", shown, verdict(printed="15 s", figure="step"), shown)) == [
        f"1 printed figure predicted and held: 1 {WITH_NOTHING}, {EXACT}."
    ]


def test_what_suddenly_holds_is_said():
    found = judged("one", verdict(printed="15 s", figure="step", missed="nobody knows", why="the step"))
    assert sentences(found)[-1].endswith("holds, though marked missed; drop missed from the scenario.")


def test_a_range_is_told_by_its_ends_and_the_nearer_one_gives_the_error():
    inside = verdict(printed=["8 s", "inf"], figure="step")
    assert (inside.printed, inside.difference, inside.tolerance) == ("at least 8 s", "0 %", "within")
    below = verdict(printed=["20 s", "30 s"], figure="step")
    assert (below.printed, below.difference, below.word) == ("20 s to 30 s", "-25 %", "BROKEN")


def test_what_is_only_shown_may_be_any_text():
    found = verdict(over="fast", kind="shown", printed="by tens of %", figure="step")
    assert (found.word, found.printed, found.found, found.difference) == ("shown", "by tens of %", "+150.0 %", "-")
    assert verdict(kind="shown", printed="some time", figure="step").word == "shown"


@pytest.mark.parametrize("other", [{"equals": "15 s"}, {"at_most": "16 s"}, {"faster_than": "slow"}])
def test_a_tolerance_that_nothing_uses_is_refused(other):
    with pytest.raises(ValidationError, match=r"within is of about, or of a printed figure"):
        Expectation(row="a", within=0.02, **other)
    Expectation(row="a", within=0.02, about="15 s", **other)
