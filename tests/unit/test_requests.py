"""Requests: drawn, and read from published columns."""

from __future__ import annotations

import pytest

from simulator.errors import ConfigError
from simulator.formats import read_requests
from simulator.serving import drawn
from simulator.serving.story import quantile
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


@pytest.mark.parametrize(
    ("time", "later_ns"),
    [
        ("2024-05-10 00:00:00.009930+00:00", 9_930_000),
        ("2024-05-10 00:00:01+00:00", 1_000_000_000),
        ("2024-05-10 00:00:01 +00:00", 1_000_000_000),
        ("2024-05-10T02:00:00.5+02:00", 500_000_000),
        ("2024-05-10 00:00:00.0000001Z", 100),
        ("2024-05-09 19:00:02.25-0500", 2_250_000_000),
    ],
)
def test_a_time_is_told_with_its_offset(time, later_ns, tmp_path):
    """Azure's traces of 2024 are of this form."""
    path = tmp_path / "azure.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,1\n{time},2,2\n")
    assert [one.arrival_ns for one in read_requests(path).requests] == [0, later_ns]


@pytest.mark.parametrize("row", ["2024-05-10 00:00:00+25:00,1,1", f"0,{'9' * 5000},1", f"{'9' * 5000},1,1"])
def test_what_is_no_time_and_no_number_is_refused_in_few_words(row, tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n")
    with pytest.raises(ConfigError, match=r"is a (whole )?number") as refused:
        read_requests(path)
    assert len(str(refused.value)) < 700


def test_a_quantile_is_a_value_that_occurred():
    assert [quantile([30, 10, 20], percent) for percent in (0, 33, 34, 50, 67, 95)] == [30, 10, 20, 20, 30, 30]
    assert quantile([], 50) is None


def test_prefixes_form_a_tree(tmp_path):
    """A part is another one if what is before it differs, in name or in length."""
    path = tmp_path / "tree.csv"
    path.write_text(
        "arrival,prompt,output,prefix,prefix_tokens\n"
        "0,90,1,a b,16 32\n"
        "1,90,1,a b c,16 32 8\n"
        "2,90,1,x b,16 32\n"
        "3,90,1,a b,8 32\n"
        "4,90,1,a b,24\n"
        "5,90,1,a,16\n"
    )
    found = [(one.above, one.prefix, one.prefix_tokens) for one in read_requests(path).requests]
    assert found == [
        (((0, 16),), 1, 48),
        (((0, 16), (1, 48)), 2, 56),
        (((3, 16),), 4, 48),
        (((0, 8),), 5, 40),
        ((), 6, 24),
        ((), 0, 16),
    ]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("a b c,16 32", "each of several prefix_tokens is named in prefix, and of at most 10,000, found 3 names and 2"),
        ("a b,80 20", "a prefix is a part of its prompt, or of prompt and answer, found 100 of 91 tokens"),
        ("a b,80 -2", "prefix_tokens is a whole number from 0"),
        ("a,", "each of several prefix_tokens is named in prefix, and of at most 10,000, found 1 names and 0"),
    ],
)
def test_a_wrong_chain_is_one_message(cells, said, tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text(f"arrival,prompt,output,prefix,prefix_tokens\n0,90,1,{cells}\n")
    with pytest.raises(ConfigError) as refused:
        read_requests(path)
    assert f"tree.csv:2: {said}" in str(refused.value)
