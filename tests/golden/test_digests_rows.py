"""What happens in every row of every shipped scenario is what happened before, and what it expects and pages show.

Each is run once for all three. Where a number is meant to move, ``python tests/digests.py --renew`` renews the digests
and says what moved.
"""

from __future__ import annotations

import re

import digests
import pytest
from pages import PAGES, printed

import simulator as hosim
from simulator import catalog
from simulator.run.results import Results

NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in digests.SMALL)) for name in catalog.names("scenario")
]
SHOWN = dict(re.findall(r"<!-- output of: hosim run (\w+) -->\n```text\n(.*?)```", PAGES, re.DOTALL))
"""What pages show of scenarios that run."""


def check_rows(name: str, results: Results | hosim.Serving) -> None:
    assert digests.moved_rows(name, digests.read()["scenarios"].get(name, {}), digests.of_rows(results)) == []
    if isinstance(results, Results):
        assert [str(verdict) for verdict in results.expectations if verdict.is_broken] == []
        assert SHOWN.get(name) in (None, printed(results))


@pytest.mark.parametrize("name", NAMES)
def test_rows(name):
    check_rows(name, hosim.serve(name) if digests.is_served(name) else hosim.run(name))


def test_what_pages_show_is_of_scenarios_that_ship():
    assert set(SHOWN) <= set(catalog.names("scenario"))


def test_no_row_is_kept_of_a_scenario_that_is_gone():
    assert set(digests.read()["scenarios"]) <= set(catalog.names("scenario"))
