"""What the README says of weights that are streamed from SSDs."""

from __future__ import annotations

import pytest

from simulator import catalog
from simulator.run import run_case
from simulator.run.case import prepare


@pytest.mark.parametrize(
    ("batch", "bounded_by", "gap"), [(1024, "link read", 0.02), (4096, "link h2d before head/decode/lm", 0.003)]
)
def test_a_batch_is_bounded_by_the_drives_until_its_caches_fill_the_link(batch, bounded_by, gap):
    """The bound knows that what goes over DDR passes both links; `static` reaches it on a machine that is crowded."""
    loaded = catalog.resolve("llama3_70b_stream_ssd")
    point = catalog.points(loaded)[loaded.scenario.scaling["batch"].index(batch)]
    row = run_case(prepare(point), ["static"])["static"].summary
    assert (row["status"], row["bound_kind"]) == ("ok", bounded_by)
    assert row["gap_fraction"] < gap
