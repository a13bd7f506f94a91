"""Latent attention to the tokens that an indexer chooses (DeepSeek-V3.2), against closed forms of its report."""

from __future__ import annotations

from typing import Any

import pytest
from building import build
from parameters import count
from pydantic import ValidationError

from simulator.builders import build_job
from simulator.graph import Graph
from simulator.workload import DecoderModel, Workload

HIDDEN, HEADS, LATENT, ROPE, NOPE, VALUE, QUERY = 48, 4, 16, 4, 8, 6, 20
INDEX_HEADS, INDEX_SIZE, TOP = 2, 8, 5
BATCH, TOKENS, LAYERS, BYTES = 2, 12, 2, 2
INDEXER = {"heads": INDEX_HEADS, "head_size": INDEX_SIZE, "top": TOP}
MLA = {"kind": "mla", "heads": HEADS, "q_lora_rank": QUERY, "kv_lora_rank": LATENT}
MLA |= {"qk_nope": NOPE, "qk_rope": ROPE, "v_head": VALUE}


def workload(phase: str = "decode", indexer: dict[str, int] | None = INDEXER, **more: Any) -> Workload:
    attention = MLA | ({"indexer": indexer} if indexer else {}) | more.pop("attention", {})
    model = {"family": "decoder", "layers": LAYERS, "hidden": HIDDEN, "vocabulary": 64, "attention": attention}
    model["feed_forward"] = {"kind": "dense", "width": 24}
    data = {"name": "w", "phase": phase, "batch": BATCH, "sequence": TOKENS, "model": model}
    return Workload.model_validate(data | more)


def ops(graph: Graph, last: str) -> list[Any]:
    return [op for op in graph.ops if op.name.endswith(f"/{last}")]


def test_the_indexer_has_its_weights() -> None:
    counts = []
    for indexer in (INDEXER, None):
        model = workload(indexer=indexer).model
        assert isinstance(model, DecoderModel)
        counts.append(count(model).total)
    own = QUERY * INDEX_HEADS * INDEX_SIZE + HIDDEN * INDEX_SIZE + 2 * INDEX_SIZE + HIDDEN * INDEX_HEADS
    assert counts[0] - counts[1] == LAYERS * own


@pytest.mark.parametrize("tokens", [3, TOP - 1, TOP, TOKENS])
def test_a_new_token_scores_all_and_attends_to_the_best(tokens: int) -> None:
    graph = build(workload(sequence=tokens))
    seen, best = tokens + 1, min(tokens + 1, TOP)
    for index, core in zip(ops(graph, "attn.index"), ops(graph, "attn.core"), strict=True):
        assert index.flops == 2 * BATCH * seen * INDEX_HEADS * INDEX_SIZE
        assert core.flops == BATCH * best * 2 * HEADS * (2 * LATENT + ROPE)
        taken = BATCH * (INDEX_HEADS * INDEX_SIZE + INDEX_HEADS) * BYTES
        assert index.read_bytes == taken + BATCH * seen * INDEX_SIZE * BYTES
        queries = BATCH * HEADS * (LATENT + ROPE) * BYTES
        assert core.read_bytes == queries + BATCH * best * 4 + BATCH * best * (LATENT + ROPE) * BYTES
    assert len(ops(graph, "attn.index")) == LAYERS


def test_the_cache_holds_the_indexers_key_beside_the_latent() -> None:
    graph = build(workload())
    kept = {t.name: t.size_bytes for t in graph.tensors if t.kind == "kv_cache"}
    token = (LATENT + ROPE + INDEX_SIZE) * BYTES
    assert kept["L00/kv"] == BATCH * TOKENS * token
    assert kept["L00/kv.tail"] == BATCH * token
    (cached,) = [op for op in ops(graph, "attn.cache") if op.name.startswith("L00")]
    assert cached.write_bytes == BATCH * token


@pytest.mark.parametrize("chunk", [None, 5])
def test_prompts_attend_to_as_many_in_all(chunk: int | None) -> None:
    graph = build(workload("prefill", **({"chunk": chunk} if chunk else {})))
    pairs, best = sum(range(1, TOKENS + 1)), sum(min(t, TOP) for t in range(1, TOKENS + 1))
    assert sum(op.flops for op in ops(graph, "attn.index")) == LAYERS * 2 * BATCH * pairs * INDEX_HEADS * INDEX_SIZE
    assert sum(op.flops for op in ops(graph, "attn.core")) == LAYERS * BATCH * best * 2 * HEADS * (2 * LATENT + ROPE)


def test_each_rank_has_the_whole_indexer_and_its_heads() -> None:
    one, two = (build_job(workload(parallel={"ranks": "all", "tensor": ranks})).graphs[0] for ranks in (1, 2))
    assert [op.flops for op in ops(one, "attn.index")] == [op.flops for op in ops(two, "attn.index")]
    assert [op.flops for op in ops(one, "attn.core")] == [2 * op.flops for op in ops(two, "attn.core")]


def test_blocks_of_the_cache_are_all_read() -> None:
    graph = build(workload(sequence=16, kv={"block": 4}))
    (index,) = [op for op in ops(graph, "attn.index") if op.name.startswith("L00")]
    names = [graph.tensors[i].name for i in index.reads]
    assert sum("/kv/" in name for name in names) == BATCH * 5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"attention": {"window": 4}}, "an indexer stands alone"),
    ],
)
def test_what_an_indexer_does_not_go_with_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        workload(**more)
