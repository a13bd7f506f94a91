"""Requests that come faster than they are served: one at a time, of which each takes 100 ns."""

from __future__ import annotations

import pytest
from serving_cases import told

from simulator.serving.counts import outpaced
from simulator.workload import Request

ROOM = (1000.0,)


def story(arrivals, max_sequences=1, output=1):
    """Ten tokens are read at 10 ns each."""
    return told([Request(at, 10, output) for at in arrivals], ROOM, max_sequences=max_sequences)[0]


def test_the_rate_and_the_growth_are_those_of_the_second_half():
    """Each waits 20 ns longer than the one before, who came 80 ns earlier."""
    found = story(range(0, 41 * 80, 80))
    assert found.status == "ok"
    pace = outpaced(found)
    assert pace is not None
    assert pace.come_per_s == pytest.approx(10**9 / 80)
    assert pace.admitted_per_s == pytest.approx(10**9 / 100)
    assert pace.growth == pytest.approx(20 / 80)


def test_the_rates_imply_the_growth_where_many_begin_side_by_side():
    """Eight run together, of 400 tokens each; while they do all others come, and nobody else is admitted."""
    found = story(range(0, 40 * 100, 100), max_sequences=8, output=400)
    assert found.status == "ok"
    pace = outpaced(found)
    assert pace is not None
    assert pace.come_per_s == pytest.approx(10**9 / 100)
    assert pace.growth == pytest.approx(pace.come_per_s / pace.admitted_per_s - 1)
    assert pace.growth > 100


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(range(0, 41 * 120, 120), id="slower than they are served"),
        pytest.param(range(0, 41 * 100, 100), id="as fast"),
        pytest.param([0] * 41, id="a crowd"),
        pytest.param([*[0] * 10, *range(100, 31 * 101, 101)], id="a crowd that is worked off"),
        pytest.param([*range(0, 20 * 80, 80), *range(3000, 3000 + 20 * 80, 80)], id="a pause in the second half"),
        pytest.param([0], id="one"),
    ],
)
def test_nothing_is_said_of_others(arrivals):
    assert outpaced(story(arrivals)) is None


def test_a_run_that_ended_early_knows_no_growth():
    found = story(range(0, 400 * 20, 20))
    assert found.status == "overloaded"
    pace = outpaced(found)
    assert pace is not None
    assert pace.growth is None
    assert pace.come_per_s > 2 * pace.admitted_per_s
