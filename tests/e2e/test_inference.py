"""Prefill and decode of small models with weights at home in a slower tier, through the whole of a run."""

import re
from itertools import product

import documents
import pytest

import simulator as hosim

GQA = "{kind: gqa, heads: 4, kv_heads: 2, head_size: 64, qk_norms: true}"
MLA = "{kind: mla, heads: 4, q_lora_rank: 64, kv_lora_rank: 128, qk_nope: 64, qk_rope: 32, v_head: 64}"
DENSE = "{kind: dense, width: 1024}"
EXPERTS = f"{{kind: experts, routed: 8, top_k: 2, width: 256, shared: 1}}, others: [{{stop: 1, feed_forward: {DENSE}}}]"
WORK = """\
schema: hosim/workload/1
name: job
model:
  {{family: decoder, layers: 4, hidden: 256, vocabulary: 512, attention: {attention}, feed_forward: {feed_forward}}}
{phase}
batch: 2
sequence: 64
assumed: {{model: a toy, batch: a toy, sequence: a toy, {key}: a toy}}
"""
STORY = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {{weight: ddr, {experts}kv_cache: free}}
budget: 5 MB
policies: [resident, {{policy: reactive, options: {{look_ahead: 1}}}}, static]
"""


PREFILL, DECODE = "phase: prefill\nchunk: 24", "phase: decode\nnew_tokens: 3"


@pytest.mark.parametrize(
    ("attention", "feed_forward", "phase"),
    [
        (MLA, EXPERTS, PREFILL),
        (GQA, DENSE, DECODE),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in product((GQA, MLA), (DENSE, EXPERTS), (PREFILL, DECODE))
            if one not in ((MLA, EXPERTS, PREFILL), (GQA, DENSE, DECODE))
        ),
    ],
)
def test_a_model_runs_that_does_not_fit(tmp_path, attention, feed_forward, phase):
    key = phase.split("\n")[1].split(":")[0]
    job = WORK.format(attention=attention, feed_forward=feed_forward, phase=phase, key=key)
    for name, text in (
        ("box", documents.BOX),
        ("job", job),
        ("story", STORY.format(experts="expert: ddr, " * (feed_forward == EXPERTS))),
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
    results = hosim.run(tmp_path / "story.yaml")
    assert {name: row.status for name, row in results.items()} == {
        "resident": "infeasible",
        "reactive": "ok",
        "static": "ok",
    }
    weights = sum(t.size_bytes for t in results["static"].graph.tensors if t.kind in ("weight", "expert"))
    assert results["static"].summary["moved_h2d_bytes"] > weights - 5_000_000


SPARSE = "sparse: {compress: {block: 8, stride: 4}, select: {block: 8, top: 5}, window: 8}"
VIEWS = {"all": "", "window": "window: 20, sinks: 4", "sparse": SPARSE}
PHASES = ["phase: prefill\nchunk: 16\nkv: {block: 8}", "phase: decode\nnew_tokens: 3\nkv: {block: 8}"]
CACHES = """\
schema: hosim/scenario/1
name: story
hardware: box.yaml
workload: job.yaml
homes: {kv_cache: ddr}
policies: [{policy: reactive, options: {look_ahead: 1}}, static]
"""


@pytest.mark.slow
@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("phase", PHASES, ids=["prefill", "decode"])
def test_a_cache_in_blocks_comes_and_goes(tmp_path, attention, view, phase):
    """Blocks are at home in DDR: what is read comes in, and those that new tokens join go home."""
    seeing = attention.replace("}", f", {VIEWS[view]}}}" if VIEWS[view] else "}")
    key = phase.split("\n")[1].split(":")[0]
    job = WORK.format(attention=seeing, feed_forward=DENSE, phase=phase, key=key).replace("a toy}", "a toy, kv: a toy}")
    late = view == "sparse" and "decode" in phase
    rows = "policies: [reactive, static, hybrid, {policy: reactive, label: demand, options: {dynamic: on_demand}}]"
    story = re.sub("policies: .*", rows, CACHES) if late else CACHES
    for name, text in (("box", documents.BOX), ("job", job), ("story", story)):
        (tmp_path / f"{name}.yaml").write_text(text)
    results = hosim.run(tmp_path / "story.yaml")
    assert {row.status for row in results.values()} == {"ok"}
    static = results["static"]
    sizes = {t.name: t.size_bytes for t in static.graph.tensors if "/kv/" in t.name}
    if "decode" in phase:
        written, read = (
            {static.graph.tensors[t].name for op in static.graph.ops for t in getattr(op, way)} & set(sizes)
            for way in ("writes", "reads")
        )
        assert static.summary["moved_d2h_bytes"] == sum(sizes[name] for name in written)
        assert static.summary["moved_h2d_bytes"] >= sum(sizes[name] for name in read - written)
    if late:
        for row in ("hybrid", "demand"):
            assert results[row].summary["moved_h2d_bytes"] < static.summary["moved_h2d_bytes"]
        said = " ".join(static.remarks)
        assert "copies of dynamic reads were not chosen" in said
        assert "drop them" not in said


LEAVING = [("phase: prefill\nchunk: 16", 4), ("phase: decode\nnew_tokens: 40", 3)]
"""Blocks that go home of a sequence in a layer; what the window leaves behind is dropped.

The next token after 64 sees blocks 0 (sinks) and 5 to 7 of 8 tokens, which a prompt leaves for it; the next one after
104 sees 10 to 12 of those begun, 8 to 12.
"""


@pytest.mark.parametrize("row", ["static", pytest.param("reactive", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("phase", "blocks"), LEAVING, ids=["prefill", "decode"])
def test_what_the_window_leaves_behind_is_not_stored(tmp_path, phase, blocks, row):
    """Four layers, two sequences, and blocks of 8 tokens of 512 B, at home in DDR."""
    attention = GQA.replace("}", ", window: 20, sinks: 4}")
    key = phase.split("\n")[1].split(":")[0]
    job = WORK.format(attention=attention, feed_forward=DENSE, phase=f"{phase}\nkv: {{block: 8}}", key=key)
    job = job.replace("a toy}", "a toy, kv: a toy}")
    for name, about in (("box", documents.BOX), ("job", job), ("story", CACHES)):
        (tmp_path / f"{name}.yaml").write_text(about)
    found = hosim.run(tmp_path / "story.yaml", policies=[row])[row]
    assert found.status == "ok"
    assert found.summary["moved_d2h_bytes"] == 4 * 2 * blocks * 8 * 512


def test_a_tier_that_has_no_room_for_the_blocks_says_how_much_is_lacking(tmp_path):
    """Blocks are reserved from the start: 4 layers, 2 sequences, 9 blocks of 8 tokens, 512 B each."""
    job = WORK.format(attention=GQA, feed_forward=DENSE, phase=PHASES[1], key="new_tokens")
    job = job.replace("a toy}", "a toy, kv: a toy}")
    box = documents.BOX.replace("capacity: inf", "capacity: 200 kB")
    for name, text in (("box", box), ("job", job), ("story", CACHES)):
        (tmp_path / f"{name}.yaml").write_text(text)
    results = hosim.run(tmp_path / "story.yaml")
    assert {row.status for row in results.values()} == {"infeasible"}
    lacking = 4 * 2 * 9 * 8 * 512 - 200_000
    assert {row.summary["short_bytes"] for row in results.values()} == {lacking}
    assert "raise the capacity of ddr by 94.9 kB" in " ".join(results.sentences)
