"""What less memory, or a longer sequence, costs: each such figure has a step beside it, and follows the links."""

from __future__ import annotations

import re

import pytest
from pages import PAGES
from stated import CLAIMS, SCENARIOS

import simulator as hosim
from simulator import catalog
from simulator.units import human

AT_A_PRICE: dict[tuple[str, str], tuple[str, ...]] = {
    ("deepseek_v3_nsa_peak", "offloaded"): ("",),
    ("deepseek_v3_nsa_least_peak", "offloaded"): ("at_1.01x_", "at_1.05x_", "at_1.25x_"),
    ("deepseek_v3_nsa_deployment_least_peak", "offloaded"): ("at_1.01x_", "at_1.25x_"),
    ("deepseek_v3_nsa_deployments_chunked", "offloaded"): ("",),
    ("kv_peak_calibrated", "offloaded"): ("",),
    ("llama3_8b_least_peak", "static"): ("at_1.01x_", "at_1.25x_"),
    ("llama3_8b_offload_bandwidths", "offload 33.6"): ("",),
    ("deepseek_v3_train_offload", "offload 33.6"): ("",),
}
"""Scenario and row -> how the columns of peak and step begin, in the order of the page."""
LENGTHS = ("deepseek_v3_nsa_longest", "kv_longest_calibrated")


def is_of_memory(one):
    """Whether a row is said to need less memory than another, or to go further in as much."""
    return "over" in one.rows and ("peak_" in one.column or "largest_" in one.column)


def has_price(one, expected):
    """Whether something is expected of the step with which it does so."""
    at = re.match(r"at_[^_]+_", one.column)
    if at and at[0] not in ("at_largest_", "at_least_"):
        return True  # found with a step at most so many times as long
    steps = {"step_ns", "at_largest_step_ns", "at_largest_slowdown"}
    return any(other.row == one.row and (other.column in steps or other.faster_than) for other in expected)


def test_whoever_needs_less_memory_says_with_which_step():
    claims = {name: SCENARIOS[name].expect for name in CLAIMS}
    assert [
        (name, one.why)
        for name, expected in claims.items()
        for one in expected
        if is_of_memory(one) and not has_price(one, expected)
    ] == []


def hosim_rows(name):
    """Labels of a scenario's rows; the first has room for all."""
    return [choice.row for choice in SCENARIOS[name].policies]


@pytest.mark.slow
def test_the_page_tells_saving_and_step():
    (table,) = re.findall(r"\| of \| saving \| step \| verdict \|\n\|[-|]+\|\n(.*?)\n\n", PAGES, re.DOTALL)
    told = []
    for (name, row), begins in AT_A_PRICE.items():
        policies = None if begins != ("",) else [row, next(iter(hosim_rows(name)))]
        rows = hosim.run(name, policies=policies).summaries
        stays = next(label for label in rows if label in ("resident", "room for all"))
        for begin in begins:
            own, all_stay = (
                {key: one[begin + key] for key in ("peak_hbm_bytes", "step_ns")} for one in (rows[row], rows[stays])
            )
            saving, step = (own[key] / all_stay[key] for key in own)
            told.append([f"{100 * (saving - 1):.1f} %", f"{step:.2f}x"])
    assert [line.split(" | ")[1:3] for line in table.splitlines()] == told


def test_the_page_tells_missed_from_shown():
    said = re.findall(r"^\| the same, .*at most \d+ %.*\| (missed|shown)", PAGES, re.MULTILINE)
    expected = [
        one for one in catalog.read_scenario("deepseek_v3_nsa_least_peak").expect if one.printed and is_of_memory(one)
    ]
    assert said == ["missed" if one.missed else one.kind for one in expected] == ["missed", "shown", "shown"]


@pytest.mark.slow
def test_no_plan_as_fast_saves_much_more_in_decode():
    (resident,) = hosim.run("deepseek_v3_nsa_peak", policies=["resident"]).summaries.values()
    rows = hosim.frontier("deepseek_v3_nsa_least_peak", policies=["offloaded"], slowdown=["1.01x"]).rows
    (least,) = (row["next"] for row in rows if row["policy"] == "bound")
    assert (
        f"has a peak below {human(least, 'B')}, {100 - 100 * least / resident['peak_hbm_bytes']:.1f} % less"
        in " ".join(PAGES.split())
    )


@pytest.mark.slow
def test_links_a_hundred_times_slower_turn_each_price_red():
    """Capacities decide what fits at any step; steps do not hold, nor what was searched within a step."""
    others = {"deepseek_v3_train_offload", "llama3_8b_offload_bandwidths"}  # test_broken has them, with more rows red
    names = [*dict.fromkeys(name for name, _ in AT_A_PRICE if name not in others), *LENGTHS]
    found = hosim.validate(names, scale={"links.*.bandwidth": 0.01}).judged
    red = [one.verdict.why for one in found if one.verdict.is_broken]
    assert {one.scenario for one in found if one.verdict.is_broken} == set(names)
    assert [why for why in red if why.startswith("step ")] == [
        "step at that peak, offloaded over resident, published dimensions",
        "step at that peak, offloaded over resident, a deployment",
        "step at that peak, offloaded over resident, in chunks",
        "step at that peak, offloaded over resident, calibrated",
        "step at that length, over compute alone, published dimensions",
        "step at that length, over compute alone, calibrated",
    ]
    priced = [
        one.verdict.why for one in found if re.match(r"at_1[.0-9]*x_", one.verdict.column) and not one.verdict.missed
    ]
    assert [why for why in priced if why not in red] == []
