"""Requests: drawn, and read from published columns."""

from __future__ import annotations

import pytest

from simulator.formats import read_requests
from simulator.run.serving.arrivals import drawn
from simulator.run.serving.counts import quantile
from simulator.workload import Requests

ASKED = {
    "count": 2000,
    "arrivals": {"interval": "10 ms"},
    "prompt": {"mean": 500, "spread": 0.5},
    "output": {"mean": 100},
    "prefixes": {"number": 3, "tokens": 64, "skew": 1.0},
}


def requests(**more):
    return drawn(Requests.model_validate(ASKED | more), 0)


def test_means_and_shares_are_those_asked_for():
    found = requests()
    assert found[-1].arrival_ns / 2000 == pytest.approx(10e6, rel=0.05)
    assert sum(one.prompt for one in found) / 2000 == pytest.approx(500, rel=0.05)
    assert {one.output for one in found} == {100}
    shares = [sum(one.prefix == prefix for one in found) / 2000 for prefix in range(3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)
    assert all(one.prefix_tokens == min(64, one.prompt) for one in found)


def test_what_is_drawn_of_one_kind_depends_on_no_other():
    other = requests(prompt={"mean": 9}, prefixes=None)
    assert [one.arrival_ns for one in other] == [one.arrival_ns for one in requests()]
    assert {one.prompt for one in other} == {9}
    assert [one.arrival_ns for one in requests(arrivals={"process": "even", "interval": "3 ns"})[:3]] == [0, 3, 6]


def test_the_columns_of_published_traces_are_known(tmp_path):
    azure, burst = tmp_path / "azure.csv", tmp_path / "burst.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0199600,396,109\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
    )
    assert [tuple(one)[:3] for one in read_requests(azure).requests] == [(0, 4808, 10), (40_000_000, 396, 109)]
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118.5,GPT-4,417,276,693,API log\n"
    )
    found = read_requests(burst)
    assert found.unanswered == 1
    assert [tuple(one)[:3] for one in found.requests] == [(0, 472, 18), (113_500_000_000, 417, 276)]


def test_a_quantile_is_a_value_that_occurred():
    assert [quantile([30, 10, 20], percent) for percent in (0, 33, 34, 50, 67, 95)] == [30, 10, 20, 20, 30, 30]
    assert quantile([], 50) is None
