"""Prefill and decode of small models with weights at home in a slower tier, through the whole of a run."""

import documents
import pytest

import simulator as hosim

GQA = "{kind: gqa, heads: 4, kv_heads: 2, head_size: 64, qk_norms: true}"
MLA = "{kind: mla, heads: 4, q_lora_rank: 64, kv_lora_rank: 128, qk_nope: 64, qk_rope: 32, v_head: 64}"
DENSE = "{kind: dense, width: 1024}"
EXPERTS = "{kind: experts, routed: 8, top_k: 2, width: 256, shared: 1, dense_layers: 1, dense_width: 1024}"
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
homes: {weight: ddr, expert: ddr, kv_cache: free}
budget: 5 MB
policies: [resident, reactive, static]
"""


@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
@pytest.mark.parametrize("feed_forward", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("phase", ["phase: prefill\nchunk: 24", "phase: decode\nnew_tokens: 3"])
def test_a_model_runs_that_does_not_fit(tmp_path, attention, feed_forward, phase):
    key = phase.split("\n")[1].split(":")[0]
    job = WORK.format(attention=attention, feed_forward=feed_forward, phase=phase, key=key)
    for name, text in (("box", documents.BOX), ("job", job), ("story", STORY)):
        (tmp_path / f"{name}.yaml").write_text(text)
    results = hosim.run(tmp_path / "story.yaml")
    assert {name: row.status for name, row in results.items()} == {
        "resident": "infeasible",
        "reactive": "ok",
        "static": "ok",
    }
    weights = sum(t.size_bytes for t in results["static"].graph.tensors if t.kind in ("weight", "expert"))
    assert results["static"].summary["moved_h2d_bytes"] > weights - 5_000_000
