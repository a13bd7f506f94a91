"""What happens in every row of every shipped scenario is what happened before, and what it expects and pages show.

Each is run once for all three, and for claims (`tests/claims/test_claims.py`). Where a number is meant to move,
``python tests/digests.py --renew`` renews the digests and says what moved.
"""

from __future__ import annotations

import digests
import pytest
from shipped import SHOWN, happened
from stated import SCENARIOS

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in digests.SMALL)) for name in SCENARIOS]


@pytest.mark.parametrize("name", NAMES)
def test_rows(name, tmp_path_factory):
    found = happened(name, tmp_path_factory)
    assert digests.moved_rows(name, digests.read()["scenarios"].get(name, {}), found.digests) == []
    assert found.broken == []
    assert name not in SHOWN or SHOWN[name][1] == found.printed


def test_what_pages_show_is_of_scenarios_that_ship():
    assert set(SHOWN) <= set(SCENARIOS)


def test_no_row_is_kept_of_a_scenario_that_is_gone():
    assert set(digests.read()["scenarios"]) <= set(SCENARIOS)
