"""What happens in 10,000 drawn cases is what happened before.

Where a number is meant to move, ``python tests/digests.py --renew`` renews the digests and says what moved.
"""

from __future__ import annotations

import digests
import pytest
from digest_cases import CASES, GROUP

DEFAULT = 1
"""So many groups are compared by default."""

GROUPS = [pytest.param(group, marks=[pytest.mark.slow] * (group >= DEFAULT)) for group in range(CASES // GROUP)]


@pytest.mark.parametrize("group", GROUPS)
def test_cases(group):
    assert digests.moved_cases(group, digests.read()["groups"][group], digests.of_group(group)) == []


def test_all_groups_are_kept():
    assert len(digests.read()["groups"]) == CASES // GROUP
