"""What conversations find in each tier as they go on, beside what kvcache-ai printed of eight H800."""

from __future__ import annotations

import pytest

import simulator as hosim

pytestmark = pytest.mark.slow

BESIDE = [
    ({"hbm": "10.3 GB"}, 0.0, 0.00),
    ({"hbm": "10.3 GB", "ddr": {"room": "240 GB", "write": "through"}}, 0.056, 0.08),
    ({"hbm": "10.3 GB", "ddr": {"room": "816 GB", "write": "through"}}, 0.9, 0.90),
]
"""Tiers that keep blocks, the share of prompt tokens of round 10 that is found, and the printed one."""


@pytest.mark.parametrize(("tiers", "expected", "printed"), BESIDE, ids=["hbm", "ddr", "pool"])
def test_the_share_that_is_found_in_round_10_is_near_the_printed_one(tiers, expected, printed):
    """The setting alone leads there; with a pool each round finds what was said before, nine parts of ten."""
    requests = hosim.serve("sglang_h800_turns", set={"scenario.kv_tiers": tiers}).requests
    last = requests[requests["request"] // 80 == 9]
    hits = [column for column in last if column.startswith("hit_") and column.endswith("_tokens")]
    found = last[hits].to_numpy().sum() / last["prompt_tokens"].sum()
    assert found == pytest.approx(expected, abs=0.001)
    assert found == pytest.approx(printed, abs=0.03)
