"""Files whose sizes are others than their class's defaults: each is what transformers builds of it, or is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hf_counts import STATED, module_of, parameters_of, parts_of

import simulator as hosim
from simulator.builders.weights import parameters
from simulator.errors import ConfigError
from simulator.workload import DecoderModel

SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, "image_size": 896, "patch_size": 14}
PICTURES = {"aya_vision": SIGLIP, "gemma3": SIGLIP, "gemma4": {"model_type": "gemma4_vision"}}
TIES = "tie_word_embeddings"
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "depth", "encoder_layers", "vt_num_hidden_layers")
TOWERS = {
    "aya_vision": "vision_tower multi_modal_projector",
    "ernie4_5_vl_moe": "vision_tower resampler_model",
    "gemma3": "vision_tower multi_modal_projector",
    "gemma4": "vision_tower embed_vision",
    "internvl": "vision_tower multi_modal_projector",
    "lighton_ocr": "vision_encoder vision_projection",
    "muse_glimmer": "vision_tower vision_adapter vision_projection",
    "paligemma": "vision_tower multi_modal_projector",
    "qwen2_5_vl": "visual",
    "qwen3_asr": "audio_tower multi_modal_projector",
    "qwen3_vl": "visual",
}
"""Model -> modules of its tower, and of what is behind it."""
BIASED = {"layer_types": ["linear_attention", "full_attention"] * 2, "tie_word_embeddings": True, "head_dim": 64}
CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("afmoe", {"num_dense_layers": 3, "num_shared_experts": 0}),
    ("bloom", {"n_inner": 100, TIES: False}),
    ("cohere2", {"head_dim": 64, "num_key_value_heads": 4}),
    ("deepseek_v3", {"q_lora_rank": None, "first_k_dense_replace": 0, "n_shared_experts": 3}),
    ("emu3", {TIES: True}),
    ("emu3", {f"text_config.{TIES}": True}),
    ("ernie4_5", {"use_bias": True}),
    ("falcon", {"new_decoder_architecture": True, "num_attention_heads": 71, "num_kv_heads": 71, "bias": True}),
    ("gemma2", {"head_dim": 100, "num_key_value_heads": 2}),
    ("glm4_moe", {"use_qk_norm": True, "attention_bias": True}),
    ("gpt_oss", {"attention_bias": False, "num_key_value_heads": 2}),
    ("granite", {"mlp_bias": True, "attention_bias": True}),
    ("helium", {"attention_bias": True}),
    ("led", {"attention_window": [512, 256, 512, 256], "max_decoder_position_embeddings": 512}),
    ("jamba", {"expert_layer_offset": 0, "mamba_proj_bias": True}),
    ("lfm2", {"conv_bias": True, "block_auto_adjust_ff_dim": False}),
    ("lfm3", {"use_attention_gate": False}),
    ("lfm3", {"use_sandwich_norm": False}),
    ("llama4", {f"text_config.{TIES}": True}),
    ("llava", {f"text_config.{TIES}": True}),
    ("mamba", {"use_bias": True, "use_conv_bias": False}),
    ("opt", {"word_embed_proj_dim": 512, "do_layer_norm_before": False}),
    ("qwen2_audio", {TIES: True}),
    ("qwen3_5", {TIES: True}),
    ("qwen3_next", BIASED),
    ("starcoder2", {"use_bias": False}),
    ("t5gemma", {f"decoder.{TIES}": False}),
]
CHANGED_TOWERS: list[tuple[str, dict[str, Any]]] = [
    ("aya_vision", {"alignment_intermediate_size": None}),
    ("ernie4_5_vl_moe", {"vision_config.temporal_merge_size": 3}),
    ("gemma3", {"mm_tokens_per_image": 1024, "vision_config.hidden_size": 384}),
    ("gemma4", {"vision_config.num_attention_heads": 24, "vision_config.attention_bias": True}),
    ("internvl", {"vision_config.use_mean_pooling": False, "vision_config.hidden_size": 512}),
    ("lighton_ocr", {"vision_config.num_attention_heads": 8}),
    ("muse_glimmer", {"vision_config.merge_size": 3, "out_hidden_size": 3072}),
    ("paligemma", {"projection_dim": 1024}),
    ("qwen2_5_vl", {"vision_config.spatial_merge_size": 3, "vision_config.num_heads": 8}),
    ("qwen3_asr", {"audio_config.num_mel_bins": 129}),
    ("qwen3_vl", {"vision_config.deepstack_visual_indexes": [0, 2]}),
]


def changed(config: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return a file in which some keys, by their paths, have other values, or none (None of one that may be absent)."""
    config = deepcopy(config)
    for path, value in keys.items():
        *sections, key = path.split(".")
        held = config
        for section in sections:
            held = held[section]
        held[key] = value
        if value is None and key == "alignment_intermediate_size":
            held.pop(key)
    return config


def sections_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a file, and the parts of a multimodal model in it."""
    return [config, *(part for part in config.values() if isinstance(part, dict) and "model_type" in part)]


def built(name: str, keys: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """Make a file of few layers, and its configuration and module in transformers."""
    hf = pytest.importorskip("transformers")
    stated = STATED.get(name, {}) | ({"vision_config": PICTURES[name]} if name in PICTURES else {})
    config = json.loads(hf.CONFIG_MAPPING[name](**stated).to_json_string(use_diff=False))
    for part in sections_of(config):
        few = {key: 4 for key in LAYERS if type(part.get(key)) is int}
        lists = {key: value[:4] for key, value in part.items() if isinstance(value, list) and len(value) > 4}
        part.update(few | lists)
        part.pop("per_layer_config", None)
    config = changed(config, keys)
    (folder / "config.json").write_text(json.dumps(config))
    of_class = hf.CONFIG_MAPPING[name](**{key: value for key, value in config.items() if key != "model_type"})
    return of_class, module_of(name, of_class)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "keys"), CHANGED, ids=[f"{name} {next(iter(keys))}" for name, keys in CHANGED])
def test_a_changed_decoder_is_that_of_transformers(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    config, module = built(name, keys, tmp_path)
    found = hosim.read_hf(tmp_path, phase="train", sequence=128)
    assert parameters(found.workload) is not None
    assert (parameters(found.workload) or (0,))[0] == parameters_of(parts_of(config, module)["decoder"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "keys"), CHANGED_TOWERS, ids=[f"{name} {next(iter(keys))}" for name, keys in CHANGED_TOWERS]
)
def test_a_changed_tower_is_that_of_transformers(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    _, module = built(name, keys, tmp_path)
    found = hosim.read_hf(tmp_path, part="audio" if name == "qwen3_asr" else "vision", phase="train")
    inner = {path.removeprefix("model."): part for path, part in module.named_modules()}
    right = parameters_of([inner[path] for path in TOWERS[name].split()])
    right -= 2 * 4 * 512 * (name == "internvl")  # two vectors of each layer, which are told
    assert parameters(found.workload) == (right, right)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "qwen2_5_vl", "vision_config": {"num_heads": 15}}, r"vision_config\.num_heads divides"),
    (
        {"model_type": "qwen2_5_vl", "vision_config": {"window_size": 20}},
        r"vision_config\.patch_size is at most .*, found",
    ),
    (
        {"model_type": "qwen3_vl", "vision_config": {"depth": 8, "deepstack_visual_indexes": [8]}},
        r"vision_config\.deepstack_visual_indexes: these are layers before the last of 8, from 0 on, found \[8\]",
    ),
    (
        {"model_type": "qwen3_vl", "vision_config": {"deepstack_visual_indexes": [5, 5]}},
        r"deepstack_visual_indexes: .*found \[5, 5\]",
    ),
    (
        {"model_type": "gemma3", "vision_config": SIGLIP, "mm_tokens_per_image": 255},
        r"mm_tokens_per_image divides \(\(vision_config\.image_size // vision_config\.patch_size\) \* \(",
    ),
    (
        {"model_type": "janus", "vision_config": {"model_type": "janus_vision_model", "depth": 4}},
        "is at most 3, found 4",
    ),
    (
        {"model_type": "janus", "vision_config": {"model_type": "janus_vision_model", "use_qk_norm": True}},
        r"vision_config\.use_qk_norm: each key",
    ),
]
"""Towers, and what is wrong with them."""
OF_DECODERS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "ernie4_5_moe", "use_bias": True}, "use_bias: no expert has biases, found true"),
    ({"model_type": "deepseek_v2", "num_experts_per_tok": 6, "mlp_bias": True}, "mlp_bias: "),
    (
        {"model_type": "helium", "hidden_size": 2560, "num_attention_heads": 10, "num_key_value_heads": 10},
        r"hidden_size divides \(num_attention_heads \* head_dim\), found 2,560 and 1,280",
    ),
    ({"model_type": "mpt", "n_heads": 17}, "n_heads divides d_model, found 17 and 2,048"),
    (
        {"model_type": "encoder-decoder", "encoder": {"model_type": "bert", "hidden_size": 384}}
        | {"decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}},
        r"encoder\.hidden_size: an encoder is as wide as its decoder, found 384 and 768",
    ),
]


@pytest.mark.parametrize(("config", "message"), [*REFUSED, *OF_DECODERS])
def test_sizes_that_no_model_has_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        hosim.read_hf(tmp_path, part="vision" if (config, message) in REFUSED else "decoder")


@pytest.mark.parametrize(("merged", "rows"), [(1, 64), (2, 64), (3, 36), (4, 64)])
def test_a_window_is_of_whole_rows_for_the_decoder(merged: int, rows: int, tmp_path: Path) -> None:
    """Of 112 pixels a side, in patches of 14: a window of 8 patches a side, or of as many as are merged whole."""
    config = {"model_type": "qwen2_5_vl", "vision_config": {"spatial_merge_size": merged}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = hosim.read_hf(tmp_path, part="vision").workload.model
    assert isinstance(model, DecoderModel)
    assert {getattr(part, "window", None) for part, _ in model.kinds} == {None, rows}


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        (["lm_head", "model.layers.0.mlp", "mlp.gate", "re:.*self_attn.*"], ""),
        (["model.layers.4.mlp", "lm_head"], "model.layers.4.mlp"),
        ([f"model.layers.1.mlp.experts.{expert}" for expert in range(8, 12)], "model.layers.1.mlp.experts.8, "),
        (["re:.*self_atn.*", "mlp.gat", "visual.*", "a.b"], "re:.*self_atn.*, mlp.gat, visual.*"),
    ],
)
def test_modules_that_there_are_not_are_told(modules: list[str], told: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}
    kept = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": modules}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen3_moe"} | sizes | {"quantization_config": kept})
    )
    text = "No matrix here is what quantization_config names, such as: "
    lines = [line.removeprefix(text) for line in hosim.read_hf(tmp_path).derived if line.startswith(text)]
    assert [line[: len(told)] for line in lines] == [told] * bool(told)
