"""An indexer that chooses blocks of tokens for heads with keys of their own (MiniMax-M3), against closed forms."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hf_small import MINIMAX_M3, graph_of, read
from parameters import count

import simulator as hosim
from simulator.builders import iteration
from simulator.builders.inference import Iteration
from simulator.graph import Graph
from simulator.workload import DecoderModel

H, HEADS, KV, SIZE, IH, IS, BLOCK, TOP = 64, 4, 2, 16, 2, 8, 4, 3
LINEARS = [H * SIZE * (2 * HEADS + 2 * KV) + 3 * H * 96, H * SIZE * (2 * HEADS + 2 * KV)]
LINEARS[1] += H * 4 + 2 * 3 * H * 16 + 3 * H * 24 + H * (IH + 1) * IS


graph = partial(graph_of, MINIMAX_M3)


def seen(layer: int, tokens: range) -> int:
    """Pairs of a token (from 1) and what it attends to: its own block up to itself, and others that are chosen."""
    own = [(token - 1) % BLOCK + 1 for token in tokens]
    chosen = sum(min(token, (TOP - 1) * BLOCK + n) for token, n in zip(tokens, own, strict=True))
    return chosen if layer else sum(tokens)


def work(layer: int, tokens: range) -> int:
    scores = 2 * IH * IS * sum(tokens) * layer
    return 2 * len(tokens) * LINEARS[layer] + 4 * HEADS * SIZE * seen(layer, tokens) + scores


def of_layer(found: Graph, layer: int) -> int:
    return sum(op.flops for op in found.ops if f"L{layer:02d}/" in op.name)


@pytest.mark.parametrize("layer", [0, 1])
def test_work_is_that_of_matrices_scores_and_chosen_pairs(layer: int, tmp_path: Path) -> None:
    for options in ({}, {"chunk": 7}):
        found = graph(tmp_path, phase="prefill", sequence=21, **options)
        assert of_layer(found, layer) == work(layer, range(1, 22))
    found = graph(tmp_path, phase="decode", sequence=22, new_tokens=3)
    assert of_layer(found, layer) == work(layer, range(23, 26))


def test_training_scores_all_and_learns_from_what_is_chosen(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="train", sequence=21)
    chosen = seen(1, range(1, 22))
    right = 6 * 21 * LINEARS[1] - 2 * 21 * H * (IH + 1) * IS  # what the indexer takes is detached
    right += 14 * HEADS * SIZE * chosen + 2 * IH * IS * 21 * 21 // 2
    assert of_layer(found, 1) == right + (2 * HEADS * SIZE + 6 * IH * IS) * chosen


def test_its_key_is_cached_and_each_head_chooses_for_itself(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="decode", sequence=22)
    sizes = {tensor.name: tensor.size_bytes for tensor in found.tensors}
    assert [sizes[f"L{layer:02d}/kv"] for layer in (0, 1)] == [2 * 22 * 64, 2 * 22 * (64 + IS)]
    best = next(size for name, size in sizes.items() if name.endswith("L01/attn.index.out"))
    assert best == 4 * IH * TOP
    core = next(op for op in found.ops if op.name == "L01/decode/attn.core")
    assert core.read_bytes == 2 * HEADS * SIZE + best + 2 * 64 * seen(1, range(23, 24))


def test_requests_attend_to_chosen_blocks(tmp_path: Path) -> None:
    """Three sequences of 20 tokens add one, and a prompt goes on from its 7th token to its 12th."""
    workload = read(MINIMAX_M3, tmp_path, phase="requests").workload
    near = (3 * (seen(1, range(21, 22)) - 1), 7, seen(1, range(8, 13)))
    run = Iteration(decoding=3, context=60, reading=5, cached=7, pairs=sum(range(8, 13)), answers=3, near=(near,))
    found = iteration(workload, run, 1 << 20)
    pairs = 60 + 3 + sum(range(8, 13))
    chosen = 3 * seen(1, range(21, 22)) + seen(1, range(8, 13))
    assert of_layer(found, 0) == 2 * 8 * LINEARS[0] + 4 * HEADS * SIZE * pairs
    assert of_layer(found, 1) == 2 * 8 * LINEARS[1] + 4 * HEADS * SIZE * chosen + 2 * IH * IS * pairs


def test_keys_of_published_files_are_read_as_those_of_transformers(tmp_path: Path) -> None:
    stated = {"sparse_num_index_heads": 2, "sparse_index_dim": 8, "sparse_block_size": 4, "sparse_topk_blocks": 3}
    stated |= {"sparse_local_block": 1, "sparse_init_block": 0, "use_sparse_attention": True}
    more = {"sparse_attention_config": stated | {"sparse_attention_freq": [0, 1]}, "moe_layer_freq": [0, 1]}
    kept = {key: value for key, value in MINIMAX_M3.items() if "index" not in key and not key.endswith("layer_types")}
    found = read(kept | more, tmp_path, sequence=21)
    assert found.dropped == {}
    assert found.workload.model == read(MINIMAX_M3, tmp_path, sequence=21).workload.model
    with pytest.raises(hosim.ConfigError, match="another heads"):
        read(MINIMAX_M3 | {"index_n_heads": 4}, tmp_path, sequence=21)


@pytest.mark.slow
def test_parameters_and_keys_are_those_of_transformers(tmp_path: Path) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    keys = {key: value for key, value in MINIMAX_M3.items() if key != "model_type"}
    config = transformers.CONFIG_MAPPING["minimax_m3_vl_text"](**keys)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = read(MINIMAX_M3, tmp_path, sequence=21).workload.model
    assert isinstance(model, DecoderModel)
    buffers = sum(value.numel() for name, value in module.named_buffers() if "e_score_correction" in name)
    assert count(model).total == sum(weight.numel() for weight in module.parameters()) + buffers
    config.save_pretrained(tmp_path)
    assert hosim.read_hf(tmp_path, sequence=21).workload.model == model
    with torch.no_grad():
        cache = module(torch.ones(1, 21, dtype=torch.long), use_cache=True).cache
    held = [part.keys.numel() + part.values.numel() for part in cache.layers]
    assert [*held, cache.layers[1].idx_keys.numel()] == [21 * 64, 21 * 64, 21 * IS]
