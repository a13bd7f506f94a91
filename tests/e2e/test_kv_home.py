"""Where the KV cache of a step ends: at its home, if that is another tier, with room there."""

from __future__ import annotations

import documents
import pytest
from examples import some

import simulator as hosim

REACTIVE, AHEAD = "{policy: reactive, options: {look_ahead: 1}}", "{policy: lookahead, options: {distance: 2}}"
POLICIES = ("resident", REACTIVE, "static", AHEAD, "offload_saved", "upstream_greedy", "recompute")
STORY = f"""\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: HOMES
policies: [{", ".join(POLICIES)}]
"""
TOKEN_BYTES = 2 * 2 * 2 * 16 * 2
"""Of 2 layers with keys and values of 2 heads of 16 elements in bf16 [B]."""


@pytest.fixture
def rows(tmp_path):
    """Run a phase with some homes."""

    def run(phase, homes, window="", **fields):
        job = documents.decoder(2, "kind: dense, width: 64", batch=2, sequence=64, steps=2, **fields)
        job = job.replace("phase: decode", f"phase: {phase}").replace("head_size: 16", f"head_size: 16{window}")
        return hosim.run(documents.lay(tmp_path, job, STORY.replace("HOMES", homes)) / "story.yaml")

    return run


@pytest.mark.parametrize("fields", some([{"chunk": 32, "kv": "{block: 16}"}, {"chunk": 16}, {"kv": "{block: 16}"}], 3))
def test_a_prompt_ends_at_home_in_every_row(rows, fields):
    """Each block is stored once, and never copied in, as all that is read of it was made here."""
    for name, row in rows("prefill", "{kv_cache: ddr}", **fields).items():
        assert row.status == "ok"
        about = {key: row.summary[key] for key in ("peak_ddr_bytes", "moved_d2h_bytes", "moved_h2d_bytes")}
        cached = 2 * 64 * TOKEN_BYTES
        assert about == {"peak_ddr_bytes": cached, "moved_d2h_bytes": cached, "moved_h2d_bytes": 0}, name


@pytest.mark.parametrize("homes", ["{kv_cache: free}", "{kv_cache: hbm}", "{weight: hbm}"])
def test_a_prompt_without_a_home_elsewhere_moves_nothing_if_there_is_room(rows, homes):
    for row in rows("prefill", homes, chunk=16).values():
        assert (row.summary["peak_ddr_bytes"], row.summary["moved_d2h_bytes"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("new", ["as_needed", "reserved"])
def test_what_is_decoded_has_room_at_home_and_ends_there(rows, new):
    """64 tokens in 8 blocks and 32 new ones in 4, that are stored once, whether they came or were there."""
    kv = f"{{block: 8, new: {new}}}"
    for name, row in rows("decode", "{kv_cache: ddr}", "", new_tokens=32, kv=kv).items():
        assert row.status == "ok"
        assert row.summary["peak_ddr_bytes"] == 2 * 8 * 12 * TOKEN_BYTES, name
        if name in ("resident", "reactive", "static"):
            assert row.summary["moved_d2h_bytes"] == 2 * 8 * 4 * TOKEN_BYTES, name


@pytest.mark.slow
def test_what_comes_as_needed_and_leaves_takes_no_room_at_home(rows):
    """With a window of 20, blocks 5 to 7 are there for the first new token, and 9 to 11 for the one after the last."""
    kv = "{block: 8, new: as_needed}"
    for name, row in rows("decode", "{kv_cache: ddr}", ", window: 20", new_tokens=32, kv=kv).items():
        assert row.summary["peak_ddr_bytes"] == 2 * 8 * (3 + 3) * TOKEN_BYTES, name


STATE_BYTES = 2 * 2 * (4 * 16 * 16 * 4 + 4 * (3 * 64) * 2)
"""Of 2 sequences in 2 layers: matrices of 4 heads in fp32, and the last 4 inputs of the convolution in bf16 [B]."""


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_states_end_at_home(tmp_path, phase):
    """Those of prompts are stored once; those of decode come in and go home in each step, as each token writes them."""
    job = documents.decoder(2, "kind: dense, width: 64", batch=2, sequence=64, steps=2)
    job = job.replace("kind: gqa, heads: 4, kv_heads: 2", "kind: delta, heads: 4")
    job = job.replace("phase: decode", f"phase: {phase}")
    job, coming = job + ("chunk: 16\n" if phase == "prefill" else ""), STATE_BYTES * (phase == "decode")
    job = job.replace("assumed: {", "assumed: {chunk: a toy, ") if phase == "prefill" else job
    story = STORY.replace("HOMES", "{kv_cache: ddr}")
    for name, row in hosim.run(documents.lay(tmp_path, job, story) / "story.yaml").items():
        assert row.status == "ok", row.why
        assert row.summary["peak_ddr_bytes"] == STATE_BYTES, name
        assert row.summary["moved_h2d_bytes"] == coming, name
        if (phase, name) != ("prefill", "lookahead"):  # which stores states between chunks as well
            assert row.summary["moved_d2h_bytes"] == STATE_BYTES, name
