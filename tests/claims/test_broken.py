"""A model that is broken on purpose turns the rows red that depend on what was broken, and no others."""

from __future__ import annotations

import pytest

import simulator as hosim

pytestmark = pytest.mark.slow

TRAINING = ["llama3_8b_2x2x2", "llama3_8b_no1_910c", "llama3_8b_offload_bandwidths", "llama3_8b_runtime_910c"]
BY_BANDWIDTH = {
    "step at 33.6 GB/s, comparable to No.2",
    "step at 40 GB/s",
    "step at 50 GB/s, of the sweep",
    "step at 60 GB/s, of the sweep",
    "step at 70 GB/s",
    "nothing is left to gain at 70 GB/s",
    "computation, nothing hidden",
    "our own compute and transfers under the runtime",
    "our own compiled step",
    "our own step under the runtime",
    "transfer that is not hidden makes the step 1.65 to 1.75 times as long as the compiled one",
}
BY_COMPACTION = {
    "our own step of No.1",
    "our own step under the runtime",
    "our own compactions",
}


@pytest.mark.parametrize(
    ("scale", "broken"),
    [
        ({"links.*.bandwidth": 0.5}, BY_BANDWIDTH),
        ({"allocator.compaction.per_page": 0}, BY_COMPACTION),
    ],
)
def test_a_broken_model_turns_the_right_rows_red_and_no_others(scale, broken):
    found = hosim.validate(TRAINING, scale=scale)
    assert {row["claim"] for row in found.rows if row["verdict"] == "BROKEN"} == broken
    assert found.is_broken
