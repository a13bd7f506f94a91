"""A tier that fills up in the middle of a decode: told with the token, with whose block came last, and what helps."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest

import simulator as hosim

KV = "{block: 4, sequences: 1, new: as_needed}"
JOB = documents.decoder(2, "kind: dense, width: 64", batch=3, sequence=32, new_tokens=16, kv=KV, steps=1)
STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {kv_cache: free}
budget: 164 kB
policies: [resident, static]
"""


@pytest.fixture
def story(tmp_path: Path) -> Path:
    return documents.lay(tmp_path, JOB, STORY) / "story.yaml"


def test_the_token_and_the_last_block_are_named(story):
    """Blocks of four tokens begin with every fourth: what is too much at the end is so from the ninth token on."""
    found = hosim.run(story)
    assert found["static"].status == "ok"
    short = found["resident"].shortfall
    assert short is not None
    assert short.at == "op t12/L01/decode/attn.core"
    assert short.full == "at op t08/L00/decode/attn.core, after L00/kv/s2/b0010 is allocated"
    assert (
        found.sentences[0] == f"resident does not fit in hbm: 6.12 kB short at {short.at}; hbm fills up {short.full}."
    )
    assert any("such as 'static'" in lever for lever in short.levers)


@pytest.mark.slow
def test_if_no_tier_has_room_no_plan_is_looked_for(story):
    box = story.with_name("box.yaml")
    box.write_text(documents.BOX.replace("capacity: inf", "capacity: 1 kB"))
    for row in hosim.run(story).values():
        assert row.shortfall is not None
        assert row.shortfall.full == "at op t08/L00/decode/attn.core, after L00/kv/s2/b0010 is allocated"
        assert len(row.shortfall.rooms) == 2


def test_a_runtime_names_the_op_and_what_it_lacks(story):
    story.write_text(STORY.replace("free}", "hbm}").replace("resident, static", "reactive").replace("164", "166"))
    short = hosim.run(story)["reactive"].shortfall
    assert short is not None
    assert (short.at, short.short_bytes) == ("op t12/L01/decode/attn.core", 3740)


def test_what_is_too_much_for_any_plan_tells_from_which_op_on_also_if_nothing_came(story):
    story.write_text(STORY.replace("free}", "hbm}").replace("164 kB", "100 kB"))
    found = hosim.run(story)
    assert [row.shortfall.full for row in found.values()] == ["at op t00/embed/decode/tokens"] * 2


def test_a_block_is_named_before_what_the_same_op_makes_for_the_next_only(story):
    story.write_text(STORY.replace("free}", "hbm}"))
    for row in hosim.run(story).values():
        assert row.shortfall.at == "op t12/L00/decode/attn.core"
        assert row.shortfall.full == "there, after L00/kv/s2/b0011 is allocated"
