"""What happens in every row of every shipped scenario is what happened before.

Where a number is meant to move, ``python tests/digests.py --renew`` renews the digests and says what moved.
"""

from __future__ import annotations

import digests
import pytest

from simulator import catalog

NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in digests.SMALL)) for name in catalog.names("scenario")
]


@pytest.mark.parametrize("name", NAMES)
def test_rows(name):
    assert digests.moved_rows(name, digests.read()["scenarios"].get(name, {}), digests.of_scenario(name)) == []


def test_no_row_is_kept_of_a_scenario_that_is_gone():
    assert set(digests.read()["scenarios"]) <= set(catalog.names("scenario"))
