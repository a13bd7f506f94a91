"""Attention to one row of each token and to compressed ones (DeepSeek-V4), against closed forms of the keys alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from building import build
from hf_small import DEEPSEEK_V4, graph_of, read
from parameters import count

import simulator as hosim
from simulator.builders import cached_layers
from simulator.graph import Graph
from simulator.reach import Reach
from simulator.workload import DecoderModel

H, HEADS, SIZE, RANK, GROUPS, OUT, N = 32, 4, 16, 24, 2, 12, 4
WINDOW, STRIDE, FAR, TOP, IH, IS = 8, 4, 8, 3, 2, 8
ROUTED, WIDTH = 4, 8
PUBLISHED = {
    # Layers 0 and 1 have no compressed tokens, even ones from 2 on one of 4 tokens, odd ones one of 128.
    "DeepSeek-V4-Flash": ({"compress_ratios": [0, 0, *[4, 128] * 21]}, 284, 13),
    "DeepSeek-V4-Pro": (
        {"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16}
        | {"n_routed_experts": 384, "moe_intermediate_size": 3072, "index_topk": 1024}
        | {"compress_ratios": [128, 128, *[4, 128] * 30]}, 1600, 49,
    ),
}  # fmt: skip
"""What its two models state beside defaults; their parameters, in all and for a token [billions, as printed]."""


graph = partial(graph_of, DEEPSEEK_V4)


def linears(layer: int) -> int:
    """Elements of all matrices that a token goes through in a layer."""
    attention = H * RANK + RANK * HEADS * SIZE + H * SIZE + HEADS * SIZE * OUT + GROUPS * OUT * H
    if layer == 1:
        attention += 2 * H * 2 * SIZE + RANK * IH * IS + H * IH + 2 * H * 2 * IS
    attention += 2 * H * SIZE * (layer == 2)
    return attention + H * ROUTED + 3 * 3 * H * WIDTH + 2 * N * H * N * (2 + N)


def seen(layer: int, tokens: range) -> tuple[int, int]:
    """Pairs of a token (from 1) and what it attends to, and of one and what an indexer scores for it."""
    pairs = sum(min(token, WINDOW) for token in tokens)
    if layer == 1:
        scored = [token // STRIDE for token in tokens]
        return pairs + sum(min(TOP, number) for number in scored), sum(scored)
    return pairs + sum(token // FAR for token in tokens) * (layer == 2), 0


def work(layer: int, tokens: range) -> int:
    pairs, scored = seen(layer, tokens)
    return 2 * len(tokens) * linears(layer) + 4 * HEADS * SIZE * pairs + 2 * IH * IS * scored


def of_layer(found: Graph, layer: int) -> int:
    return sum(op.flops for op in found.ops if f"L{layer:02d}/" in op.name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str, tmp_path: Path) -> None:
    config, total, active = PUBLISHED[name]
    model = read({"model_type": "deepseek_v4", **config}, tmp_path, sequence=64).workload.model
    assert isinstance(model, DecoderModel)
    found = count(model)
    assert round(found.total / 1e9, -2 if total > 1000 else 0) == total
    assert round(found.active / 1e9) in (active, active + 1)  # with both tables


def test_keys_of_published_files_are_all_read(tmp_path: Path) -> None:
    """Experts are kept in four bits, all else in eight."""
    kept = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0"}
    kept |= {"weight_block_size": [128, 128]}
    more = {"first_k_dense_replace": 2, "qk_nope_head_dim": 448, "qk_rope_head_dim": 64, "num_nextn_predict_layers": 1}
    more |= {
        "compress_rope_parameters": {"factor": 16, "rope_type": "yarn"},
        "intermediate_size": 32,
        "num_hash_layers": 3,
    }
    more |= {"compress_rope_theta": 160000, "expert_dtype": "fp4", "quantization_config": kept, "kv_lora_rank": None}
    found = read(
        {"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 0, 4, 128, 0], **more}, tmp_path
    )
    assert (found.workload.dtypes.weights, found.workload.dtypes.experts) == ("fp8", "mxfp4")
    assert [key for key in found.dropped if "(" not in key] == []


@pytest.mark.parametrize("layer", range(3))
def test_work_is_that_of_matrices_and_pairs(layer: int, tmp_path: Path) -> None:
    assert of_layer(graph(tmp_path, phase="prefill", sequence=21), layer) == work(layer, range(1, 22))
    chunks = graph(tmp_path, phase="prefill", sequence=21, chunk=7)
    assert of_layer(chunks, layer) == work(layer, range(1, 22))
    assert of_layer(graph(tmp_path, phase="decode", sequence=22, new_tokens=3), layer) == work(layer, range(23, 26))


@pytest.mark.parametrize("layer", range(3))
def test_training_has_two_products_for_each_of_forward(layer: int, tmp_path: Path) -> None:
    """Three of five of attention, as scores are made again; an indexer learns from what all heads attend to."""
    pairs, scored = seen(layer, range(1, 22))
    chosen = pairs - seen(0, range(1, 22))[0]
    pairs = chosen + WINDOW * (2 * 21 - WINDOW) // 2  # of a window in training, without half of each token itself
    right = 3 * 2 * 21 * linears(layer) + 14 * HEADS * SIZE * pairs + 2 * IH * IS * scored
    right += (2 * HEADS * SIZE + 6 * IH * IS) * chosen * (layer == 1)
    right -= 2 * 21 * (RANK * IH * IS + H * IH + 2 * H * 2 * IS) * (layer == 1)  # what it takes is detached
    assert of_layer(graph(tmp_path, phase="train", sequence=21), layer) == right


def test_what_is_kept_is_near_rows_compressed_ones_and_those_to_come(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="decode", sequence=22)
    kept = {tensor.name: tensor.size_bytes for tensor in found.tensors if tensor.kind == "kv_cache"}
    near = {f"L{layer:02d}/kv": 2 * (WINDOW - 1) * SIZE for layer in range(3)}
    tails = {f"L{layer:02d}/kv.tail": 2 * SIZE for layer in range(3)}
    compressed = {"L01/kv.compressed": 2 * (22 // STRIDE) * (SIZE + IS), "L02/kv.compressed": 2 * (22 // FAR) * SIZE}
    to_come = {"L01/pool": 2 * STRIDE * 6 * (SIZE + IS), "L02/pool": 2 * FAR * 2 * SIZE}
    assert kept == near | tails | compressed | to_come


def test_a_step_that_completes_a_block_puts_out_one_more(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="decode", sequence=23)
    sizes = {tensor.name: tensor.size_bytes for tensor in found.tensors}
    assert sizes["L01/kv.tail.compressed"] == 2 * (SIZE + IS)
    assert sizes["L02/kv.tail.compressed"] == 2 * SIZE


def test_the_residual_has_residuals(tmp_path: Path) -> None:
    found = graph(tmp_path, phase="train", sequence=16)
    sizes = {tensor.name: tensor.size_bytes for tensor in found.tensors}
    assert sizes["L00/residuals1.add.out"] == sizes["embed/residuals.all.out"] == 2 * 16 * N * H
    assert sizes["L00/residuals1.sum.out"] == 2 * 16 * H


@pytest.mark.parametrize(("layer", "elements", "rows", "block"), [("L01", SIZE + IS, 2, STRIDE), ("L02", SIZE, 1, FAR)])
def test_a_decoded_token_adds_its_rows_and_reads_those_of_a_block_it_completes(
    layer: str, elements: int, rows: int, block: int, tmp_path: Path
) -> None:
    small = 2 * rows * elements * block + 2 * elements  # positions of rows, a norm
    for sequence, completes in ((22, 0), (23, 1)):
        (op,) = [
            op
            for op in graph(tmp_path, phase="decode", sequence=sequence).ops
            if f"{layer}/" in op.name and op.name.endswith("attn.pool")
        ]
        own, kept = 2 * 2 * rows * elements, 2 * block * (2 * rows * elements + 2 * elements * (rows - 1))
        assert op.write_bytes == own + 2 * elements * completes
        assert op.read_bytes == own + small + kept * completes


def test_a_request_keeps_near_rows_shares_of_compressed_ones_and_rows_to_come(tmp_path: Path) -> None:
    work = read(DEEPSEEK_V4, tmp_path, phase="requests").workload
    assert isinstance(work.model, DecoderModel)
    kept = {layers.reach: layers.token_bytes for layers in cached_layers(work.model, work.dtypes)}
    every = 2 * (SIZE + IS) // STRIDE + 2 * SIZE // FAR
    near = {Reach(WINDOW): 2 * SIZE * 3 + 2 * 3 * (SIZE + IS) + 2 * 2 * SIZE}  # a window of both pools is as long
    assert kept == {Reach(): every} | near


def test_short_sequences_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(hosim.ConfigError, match="at least 8 tokens"):
        read(DEEPSEEK_V4, tmp_path, phase="train", sequence=7)
    with pytest.raises(hosim.ConfigError, match="'5'"):
        read({**DEEPSEEK_V4, "layer_types": None, "compress_ratios": [0, 4, 5]}, tmp_path)


@pytest.mark.slow
def test_parameters_and_rows_are_those_of_transformers(tmp_path: Path) -> None:
    """A small instance reads a prompt; its cache then has as many elements, of rows to come at most as many."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.CONFIG_MAPPING["deepseek_v4"](
        **{k: v for k, v in DEEPSEEK_V4.items() if k not in ("model_type",)}
    )
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    config.save_pretrained(tmp_path)
    found = hosim.read_hf(tmp_path, phase="prefill", sequence=23)
    assert found.workload.model == read(DEEPSEEK_V4, tmp_path, phase="prefill", sequence=23).workload.model
    buffers = sum(value.numel() for name, value in module.named_buffers() if "e_score_correction" in name)
    model = found.workload.model
    assert isinstance(model, DecoderModel)
    assert count(model).total == sum(weight.numel() for weight in module.parameters()) + buffers
    with torch.no_grad():
        cache = module(torch.ones(1, 23, dtype=torch.long), use_cache=True).cache
    sizes = {tensor.name: tensor.size_bytes // 2 for tensor in build(found.workload).tensors}
    for layer, part in enumerate(cache.layers):
        assert part.keys.numel() == (WINDOW - 1) * SIZE
        compressed = sum(value.numel() for value in getattr(part, "compressed_kv", {}).values())
        assert compressed == sizes.get(f"L{layer:02d}/kv.compressed", 0)
        states = [getattr(part, f"{kind}_{name}", {}) for kind in ("buffer", "overlap") for name in ("kv", "gate")]
        to_come = sum(value.numel() for state in states for value in state.values())
        most = sizes.get(f"L{layer:02d}/pool", 0)
        assert most * (layer and 1) // 2 < to_come <= most or not layer
