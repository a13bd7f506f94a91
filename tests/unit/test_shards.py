"""Shards of the slow tests: each test is in one, the same each time, and they are of like length."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import shards
from shards import SHARDS, chosen, piece, pieces, placed

TESTS = [f"tests/laws/test_{name}.py::test_{name}[{number}]" for name in "abcd" for number in range(25)]


def left(asked: str, ids: list[str], slow: bool = True) -> list[str]:
    """Of these tests, what a shard runs."""
    marker = (lambda name: True) if slow else (lambda name: None)
    items = [SimpleNamespace(nodeid=one, get_closest_marker=marker) for one in ids]
    options = SimpleNamespace(getoption=lambda name: asked, hook=SimpleNamespace(pytest_deselected=lambda items: None))
    shards.pytest_collection_modifyitems(options, items)
    return [item.nodeid for item in items]


def test_each_slow_test_is_in_one_shard_and_all_others_run():
    parts = [left(f"{number}/{SHARDS}", TESTS) for number in range(1, SHARDS + 1)]
    assert sorted(one for part in parts for one in part) == sorted(TESTS)
    assert all(parts)
    assert left("", TESTS) == left("2/4", TESTS, slow=False) == TESTS


def test_what_shares_a_case_or_a_file_that_is_listed_shares_a_shard():
    assert piece("tests/a.py::test_a[x-1]", {}) == piece("tests/b.py::test_b[x-1]", {}) == "[x-1]"
    assert piece("tests/a.py::test_a", {}) == "test_a"
    assert piece("tests/a.py::test_a[x-1]", {"tests/a.py": 3.0}) == "tests/a.py"


def test_the_shards_are_of_like_length():
    """As measured; each of them has much to do."""
    known = pieces()
    places = placed(known, SHARDS)
    held = [sum(known[name] for name, shard in places.items() if shard == number) for number in range(SHARDS)]
    assert max(held) < 1.05 * min(held)


def test_what_is_listed_and_gone_counts_nowhere(monkeypatch):
    monkeypatch.setattr(shards, "pieces", lambda: {"[1]": 10.0, "[2]": 6.0, "[3]": 5.0, "[gone]": 8.0})
    ids = [f"tests/a.py::test_a[{number}]" for number in (1, 2, 3)]
    assert [len(left(f"{number}/2", ids)) for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("source", "stored"),
    [("TESTPATHS", {"[1]": 4.0, "test_c": 2.0}), ("ARGS", {"[1]": 9.0, "[2]": 6.0, "test_c": 2.0})],
)
def test_where_only_some_are_measured_no_entry_is_lost_or_gets_less(source, stored, monkeypatch, tmp_path):
    file = tmp_path / "shards.json"
    file.write_text(json.dumps({"[1]": 9.0, "[2]": 6.0}))
    monkeypatch.setattr(shards, "FILE", file)
    monkeypatch.setattr(
        shards, "TOOK", {"tests/a.py::test_a[1]": 4.0, "tests/a.py::test_b": 0.5, "tests/a.py::test_c": 2.0}
    )
    options = {"renew_shards": True, "shard": None}
    config = SimpleNamespace(getoption=options.get, args_source=getattr(pytest.Config.ArgsSource, source))
    shards.pytest_sessionfinish(SimpleNamespace(config=config), pytest.ExitCode.OK)
    assert shards.pieces() == stored


def test_what_is_listed_is_there():
    files = {name for name in pieces() if name.startswith("tests/")}
    assert {name for name in files if not (Path(__file__).parents[2] / name).is_file()} == set()


@pytest.mark.parametrize("asked", ["0/4", "5/4", "1", "a/b", "-1/4", ""])
def test_a_shard_that_is_none_is_refused(asked):
    with pytest.raises(pytest.UsageError, match="must be K/N"):
        chosen(asked)


def test_a_commit_has_one_shard(monkeypatch):
    def named(name):
        return lambda *_, **__: SimpleNamespace(stdout=f"{name}\n")

    found = []
    for first in range(20, 20 + SHARDS):
        monkeypatch.setattr(shards.subprocess, "run", named(f"{first:08x}" + "0f1" * 10 + "02"))
        assert chosen("commit") == chosen("commit")
        found.append(chosen("commit"))
    assert sorted(found) == [(number, SHARDS) for number in range(SHARDS)]
    assert shards.pytest_report_header(SimpleNamespace(getoption=lambda name: "commit")) == "slow tests: shard 10/10"
