"""What less memory, or a longer sequence, costs: each such figure has a step beside it, and follows the links."""

from __future__ import annotations

import re

import pytest
from pages import PAGES

import simulator as hosim
from simulator import catalog
from simulator.claims import claims

NAMES = (
    "deepseek_v3_nsa_peak",
    "deepseek_v3_nsa_longest",
    "kv_peak_calibrated",
    "kv_longest_calibrated",
    "deepseek_v3_nsa_least_peak",
    "deepseek_v3_nsa_deployment_least_peak",
    "llama3_8b_least_peak",
)


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


NO_PRICE = {"deepseek_v3_nsa_deployments_chunked"}
"""It asks what peaks all deployments have; a step is none of it."""


@pytest.mark.parametrize("name", sorted({*claims()} - NO_PRICE))
def test_whoever_needs_less_memory_says_with_which_step(name):
    expected = catalog.read_scenario(name).expect
    assert [one.why for one in expected if is_of_memory(one) and not has_price(one, expected)] == []


@pytest.fixture(scope="module")
def found():
    return {one.verdict.why: one.verdict for one in hosim.validate(NAMES).judged}


@pytest.mark.slow
def test_the_page_tells_saving_step_and_verdict(found):
    """Each line of the table names two lines of `hosim validate`, and has what they found."""
    (table,) = re.findall(r"\| saving \| step \| verdict \|\n\|[-|]+\|\n(.*?)\n\n", PAGES, re.DOTALL)
    assert len(table.splitlines()) >= 8
