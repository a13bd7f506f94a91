"""`Profile` against a plain list."""

import random

import pytest

from simulator.policies.profile import Profile


@pytest.mark.parametrize("n", [1, 15, 16, 17, 300, 1000])
def test_ranges_as_in_a_list(n):
    draw = random.Random(n)
    row = [draw.randrange(-50, 50) for _ in range(n)]
    profile = Profile(row)
    for _ in range(200):
        first, last = sorted((draw.randrange(n), draw.randrange(n)))
        delta, limit = draw.randrange(-40, 40), draw.randrange(-60, 60)
        profile.add(first, last, delta)
        row[first : last + 1] = [value + delta for value in row[first : last + 1]]
        first, last = sorted((draw.randrange(n), draw.randrange(n)))
        peak = max(row[first : last + 1])
        assert profile.peak(first, last) == peak
        assert [profile.exceeds(first, last, peak - below) for below in (1, 0, 0.5)] == [True, False, True]
        above = [i for i in range(first, last + 1) if row[i] > limit]
        assert profile.last_above(first, last, limit) == (above[-1] if above else first - 1)
    assert profile.values().tolist() == row


def test_empty_ranges():
    profile = Profile([3, 4])
    profile.add(1, 0, 100)
    assert profile.peak(1, 0) == 0
    assert [profile.exceeds(1, 0, limit) for limit in (-1, 0)] == [True, False]
    assert profile.last_above(1, 0, 0) == 0
    assert profile.values().tolist() == [3, 4]
