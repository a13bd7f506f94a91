"""Layers of imported models against closed forms: work, weights and what is cached, from the keys of the file alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from building import build
from hf_small import HY_V4, LONGCAT
from parameters import count

import simulator as hosim
from simulator.workload import DecoderModel

HIDDEN, TOKENS, VOCABULARY = 64, 32, 128
BASE = {"hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
BASE |= {"torch_dtype": "bfloat16", "tie_word_embeddings": False, "intermediate_size": 96}


class Part(NamedTuple):
    """Elements of the matrices of a token, and of a key and a value of all heads; what is cached of a token."""

    matrices: int
    by_pair: int = 0
    cached: int = 0
    window: int = TOKENS


def attention(
    heads: int, kv: int, key: int, value: int, *, own: bool = True, gate: int = 0, window: int = TOKENS
) -> Part:
    """Grouped-query attention: q, k, v (unless values are the keys), o and a gate."""
    matrices = HIDDEN * (heads * key + kv * key + kv * value * own + heads * value + gate)
    return Part(matrices, heads * (key + value), kv * (key + value), window)


def pairs(window: int) -> int:
    """Pairs of tokens that attend."""
    return sum(min(token + 1, window) for token in range(TOKENS))


def experts(top_k: int, routed: int, width: int, *, matrices: int = 3, shared: int = 0, latent: int = 0) -> Part:
    """Chosen experts, perhaps on a narrower row, beside those that all tokens go through."""
    row = latent or HIDDEN
    ends = 2 * HIDDEN * latent
    return Part(HIDDEN * routed + ends + top_k * matrices * row * width + matrices * HIDDEN * shared)


NEAR, FAR = "sliding_attention", "full_attention"
GEMMA4 = {"model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types": [NEAR, FAR], "head_dim": 16}
GEMMA4 |= {"sliding_window": 8, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
GEMMA4 |= {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16}
GEMMA4 |= {"hidden_size_per_layer_input": 0}
MIMO = {"model_type": "mimo_v2_flash", "num_hidden_layers": 2, "head_dim": 24, "v_head_dim": 16, "sliding_window": 8}
MIMO |= {"swa_num_key_value_heads": 4, "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "n_shared_experts": 0}
MIMO |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "swa_v_head_dim": 8}
BLOCKS = {"model_type": "nemotron-nas", "num_hidden_layers": 2, "num_key_value_heads": None, "intermediate_size": None}
BLOCKS |= {"block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
                             {"attention": {"no_op": True}, "ffn": {"ffn_mult": 4.0}}]}  # fmt: skip
LATENT = {"model_type": "nemotron_h", "hybrid_override_pattern": "*E", "head_dim": 16, "n_routed_experts": 8}
LATENT |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 32}
LATENT |= {"moe_latent_size": 24}
STEP = {
    "model_type": "step3p5",
    "num_hidden_layers": 2,
    "layer_types": [FAR, NEAR],
    "head_dim": 16,
    "sliding_window": 8,
}
STEP |= {"num_sliding_attention_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "share_expert_dim": 16}
STEP |= {"moe_intermediate_size": 16, "first_k_dense_replace": 1}
LAYERS: dict[str, tuple[dict[str, Any], Sequence[tuple[Part, ...]]]] = {
    "gemma4": (
        GEMMA4,
        [
            (attention(4, 2, 16, 16, window=8), experts(2, 8, 16, shared=96)),
            (attention(4, 1, 32, 32, own=False), experts(2, 8, 16, shared=96)),
        ],
    ),
    "mimo": (
        MIMO,
        [
            (attention(4, 2, 24, 16), Part(3 * HIDDEN * 96)),
            (attention(4, 4, 24, 8, window=8), experts(2, 8, 16)),
        ],
    ),
    "blocks": (BLOCKS, [(attention(4, 2, 16, 16), Part(3 * HIDDEN * 256)), (Part(3 * HIDDEN * 256),)]),
    "latent experts": (
        LATENT,
        [(attention(4, 2, 16, 16),), (experts(2, 8, 16, matrices=2, shared=32, latent=24),)],
    ),
    "step": (
        STEP,
        [
            (attention(4, 2, 16, 16, gate=4), Part(3 * HIDDEN * 96)),
            (attention(8, 2, 16, 16, gate=8, window=8), experts(2, 8, 16, shared=16)),
        ],
    ),
}


def built(config: dict[str, Any], folder: Path, **options: Any) -> Any:
    file = folder / "config.json"
    file.write_text(json.dumps(BASE | config))
    return build(hosim.read_hf(file, phase="prefill", sequence=TOKENS, **options).workload)


@pytest.mark.parametrize("name", LAYERS)
def test_the_work_of_layers_is_that_of_their_matrices_and_pairs(name: str, tmp_path: Path) -> None:
    config, layers = LAYERS[name]
    graph = built(config, tmp_path)
    for index, parts in enumerate(layers):
        matrices = sum(
            op.flops for op in graph.ops if op.name.startswith(f"L{index:02d}/") or f"/L{index:02d}/" in op.name
        )
        right = sum(2 * TOKENS * part.matrices + 2 * part.by_pair * pairs(part.window) for part in parts)
        assert matrices == right


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_cached_is_a_key_and_a_value_of_each_token(name: str, tmp_path: Path) -> None:
    config, layers = LAYERS[name]
    graph = built(config, tmp_path)
    for index, parts in enumerate(layers):
        cached = sum(t.size_bytes for t in graph.tensors if t.kind == "kv_cache" and f"L{index:02d}/" in t.name)
        assert cached == sum(2 * TOKENS * part.cached for part in parts)


def test_a_layer_that_reuses_a_choice_does_all_but_choose(tmp_path: Path) -> None:
    sizes = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "first_k_dense_replace": 2, **sizes}
    config |= {"index_topk": 6, "index_head_dim": 8, "index_n_heads": 2, "indexer_types": ["full", "shared"]}
    graph = built(config, tmp_path)
    work = [{op.name.rpartition("/")[2]: op.flops for op in graph.ops if f"L{i:02d}/" in op.name} for i in range(2)]
    index = {name for name in work[0] if ".index" in name}
    assert index >= {"attn.index", "attn.index.q", "attn.index.k", "attn.index.weights"}
    assert work[1] == {name: flops for name, flops in work[0].items() if name not in index}
    cached = [
        sum(t.size_bytes for t in graph.tensors if t.kind == "kv_cache" and f"L{i:02d}/" in t.name) for i in (0, 1)
    ]
    assert cached == [2 * TOKENS * (16 + 4 + 8), 2 * TOKENS * (16 + 4)]


def test_an_indexer_scores_with_rows_where_queries_have_no_latent(tmp_path: Path) -> None:
    """Of a layer without positions (Mistral Large 4) the latent is all that is cached beside the indexer's key."""
    sizes = {
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "no_rope_layers": [1, 0],
    }
    config = {"model_type": "mistral_large4_text", "num_hidden_layers": 2, "first_k_dense_replace": 2, **sizes}
    config |= {"index_topk": 6, "index_head_dim": 8, "index_n_heads": 2, "num_key_value_heads": 4}
    graph, seen = built(config, tmp_path), pairs(6)
    for layer, turned in enumerate((4, 0)):
        ops = {op.name.rpartition("/")[2]: op.flops for op in graph.ops if f"L{layer:02d}/" in op.name}
        rows = HIDDEN * (4 * 12 + 16 + turned + 2 * 8 + 8 + 2) + 16 * 4 * (12 - turned + 8) + 4 * 8 * HIDDEN
        scored = 2 * pairs(TOKENS) * 2 * 8 + 2 * seen * 4 * (2 * 16 + turned)
        assert sum(ops.values()) == 2 * TOKENS * (rows + 3 * HIDDEN * 96) + scored
        assert {name for name in ops if name.startswith("rope.")} == (
            {"rope.q", "rope.k", "rope.index.q", "rope.index.k"} if turned else set()
        )
        cached = sum(t.size_bytes for t in graph.tensors if t.kind == "kv_cache" and f"L{layer:02d}/" in t.name)
        assert cached == 2 * TOKENS * (16 + turned + 8)
    config |= {"kv_source_layers": [0, 0]}
    with pytest.raises(hosim.ConfigError, match="kv_source_layers: each layer makes keys and values of its own, found"):
        built(config, tmp_path)


@pytest.mark.parametrize(
    ("stated", "interval"), [({}, 4), ({"no_rope_layers": None}, 4), ({"no_rope_layer_interval": 3}, 3)]
)
def test_layers_without_positions_are_one_an_interval(stated: dict[str, Any], interval: int, tmp_path: Path) -> None:
    """Of any number of them: the default is no list of the 72 that the published model has."""
    config = {"model_type": "mistral_large4_text", "num_hidden_layers": 80, **stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = hosim.read_hf(tmp_path).workload.model
    assert isinstance(model, DecoderModel)
    alone = [i for i in range(80) if getattr(model.layer(i).attention, "qk_rope", None) == 0]
    assert alone == [*range(interval - 1, 80, interval)]


LATENT_MATRICES = HIDDEN * 24 + 24 * 4 * 12 + HIDDEN * 20 + 16 * 4 * 16 + 4 * 8 * HIDDEN


def test_choices_of_experts_without_weights_take_nothing(tmp_path: Path) -> None:
    """A layer of LongCat-Flash is two; of three choices among twelve experts two fall on the eight with weights."""
    graph = built({"num_key_value_heads": None, "intermediate_size": None} | LONGCAT, tmp_path)
    dense, by_pair = 3 * HIDDEN * 96, 4 * (12 + 8)
    for layer, chosen in enumerate([HIDDEN * 12 + 2 * 3 * HIDDEN * 16, 0]):
        found = sum(op.flops for op in graph.ops if f"L{layer:02d}/" in op.name)
        assert found == 2 * TOKENS * (LATENT_MATRICES + dense + chosen) + 2 * by_pair * pairs(TOKENS)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    assert sizes["L00/ffn.router_bias.weight"] == 2 * 12
    assert sizes["L00/ffn.up.weight"] == 2 * 8 * HIDDEN * 16
    assert [sizes[f"L{layer:02d}/kv"] for layer in (0, 1)] == [2 * TOKENS * 20] * 2


def test_few_tokens_read_fewer_experts_where_some_have_no_weights(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LONGCAT))
    graph = build(hosim.read_hf(file, phase="decode", sequence=TOKENS, batch=2, experts="grouped").workload)
    op = next(op for op in graph.ops if op.name == "L00/decode/ffn.experts")
    read, rows, size = 4, 4, 2 * 3 * HIDDEN * 16  # 12 * (1 - (3 / 4) ** 2) = 5.25 of 12, so 4 of 8; 2 * 3 * 8 / 12 rows
    inside = 2 * 3 * rows * 16
    assert op.read_bytes == 2 * rows * HIDDEN + inside + read * size
    assert op.flops == 2 * rows * 3 * HIDDEN * 16


def test_longcat_has_its_published_parameters(tmp_path: Path) -> None:
    """560 B in all, about 27 B of them for a token on average, without the input's table (arXiv 2509.01322)."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "longcat_flash"}))
    model = hosim.read_hf(file, phase="prefill", sequence=TOKENS).workload.model
    assert isinstance(model, DecoderModel)
    found = count(model)
    assert (found.total, round((found.active - found.table) / 1e9)) == (560_664_980_480, 27)
    assert found.total + 28 * 256 * 2 * 2048 * 6144 == 741_053_606_912  # transformers 5.24.0 has rows for zero experts
    with pytest.raises(hosim.ConfigError, match="chosen one by one all have weights"):
        hosim.read_hf(file, sequence=TOKENS, experts="each")


@pytest.mark.parametrize("layer", [0, 1])
def test_residuals_that_are_not_mixed_have_fewer_weights(layer: int, tmp_path: Path) -> None:
    """Hunyuan 4: latents of chosen tokens, with a gate and logits for attending to nothing."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(HY_V4))
    graph = build(hosim.read_hf(file, phase="prefill", sequence=TOKENS).workload)
    attending = LATENT_MATRICES + HIDDEN * 4 * 8 + (24 * 2 * 8 + HIDDEN * 2 + HIDDEN * 8) * (layer == 0)
    products = attending + 3 * HIDDEN * 96 + 2 * 3 * HIDDEN * 2 * 3
    chosen = 2 * 4 * (20 + 16) * pairs(6) + 2 * 2 * 8 * pairs(TOKENS) * (layer == 0)
    found = sum(op.flops for op in graph.ops if f"L{layer:02d}/" in op.name)
    assert found == 2 * TOKENS * products + chosen
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    assert sizes[f"L{layer:02d}/residuals1.weight"] == 2 * 3 * HIDDEN * 2 * 3
    assert [sizes[f"L{layer:02d}/{name}.weight"] for name in ("attn.sinks", "residuals2.scale")] == [2 * 4, 2 * 2]


LING = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "head_dim": 16}
LING |= {"intermediate_size": 96, "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_experts": 8}
LING |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_shared_experts": 2, "tie_word_embeddings": False}


@pytest.mark.parametrize(("shared", "keys"), [(16, {}), (24, {"moe_shared_expert_intermediate_size": 24})])
@pytest.mark.parametrize(
    ("more", "attends"),
    [
        ({"model_type": "bailing_moe"}, 4),
        ({"model_type": "bailing_moe", "use_qk_norm": True, "moe_router_enable_expert_bias": True, "n_group": 2}, 4),
        ({"model_type": "bailing_moe_linear", "use_qk_norm": True, "layer_group_size": 2, "use_qkv_bias": True}, 2),
    ],
)
def test_ling_and_ring_have_the_parameters_of_their_layers(
    shared: int, keys: dict[str, int], more: dict[str, Any], attends: int, tmp_path: Path
) -> None:
    """Ring's other layers have as many keys and values as queries, a gate as wide, and a norm over all heads."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LING | keys | more))
    found = hosim.read_hf(file, phase="prefill", sequence=TOKENS)
    assert isinstance(found.workload.model, DecoderModel)
    norms = 2 * 16 * more.get("use_qk_norm", False)
    attention_layers = attends * (64 * 16 * (4 + 2 + 2 + 4) + norms + 16 * 8 * more.get("use_qkv_bias", False))
    linear_layers = (4 - attends) * (5 * 64 * 64 + 64)
    dense = 3 * 64 * 96
    sparse = 8 * 3 * 64 * 16 + 3 * 64 * 2 * shared + 64 * 8 + 8 * more.get("moe_router_enable_expert_bias", False)
    total = 2 * 128 * 64 + 64 + attention_layers + linear_layers + dense + 3 * sparse + 4 * 2 * 64
    assert count(found.workload.model).total == total
    assert ("norms of queries and keys in layers with a state" in found.dropped) == (attends < 4)


def test_the_text_encoder_of_clip_has_the_parameters_of_its_layers(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "clip", "text_config": {"model_type": "clip_text_model"}}))
    found = hosim.read_hf(file, sequence=64)
    model = found.workload.model
    assert isinstance(model, DecoderModel)
    assert found.workload.phase == "prefill"
    layer = 4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512 + 2 * 2 * 512
    assert count(model).total == (49408 + 77) * 512 + 12 * layer + 2 * 512
