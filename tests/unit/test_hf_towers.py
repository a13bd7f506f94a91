"""Towers of multimodal models, with what takes their output to the decoder, against the modules of transformers."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from building import build
from hf_counts import STATED, parameters_of

import simulator as hosim
from simulator.builders.weights import parameters as parameters_in
from simulator.errors import ConfigError
from simulator.workload import DecoderModel

torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")

BEHIND = "what takes a tower's output to the decoder (multi_modal_projector)"
POOLED, SCALED = (
    "the head that makes one row of all (vision_use_head)",
    "two vectors of each layer, which scale its hal",
)
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False, "image_size": 896, "patch_size": 14}
AYA = {"vision_config": SIGLIP | {"num_attention_heads": 12}, "alignment_intermediate_size": 28672}
WHOLE: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # model_type: part, modules of the whole model that it has, keys, and what is told not to be counted
    "audioflamingo3": ("audio", "audio_tower multi_modal_projector", {}, ""),
    "aya_vision": ("vision", "vision_tower multi_modal_projector", AYA, ""),
    "blip-2": ("vision", "vision_model", {}, BEHIND),
    "cohere2_vision": ("vision", "vision_tower multi_modal_projector", {"vision_config": SIGLIP}, ""),
    "cohere_compass": ("vision", "visual", {}, ""),
    "cosmos3_edge": ("vision", "visual projector", {}, ""),
    "deepseek_vl": ("vision", "vision_model aligner", {"vision_config": SIGLIP}, ""),
    "ernie4_5_vl_moe": ("vision", "vision_tower resampler_model", {}, ""),
    "exaone4_5": ("vision", "visual", {}, ""),
    "gemma3": ("vision", "vision_tower multi_modal_projector", {"vision_config": SIGLIP}, ""),
    "gemma4": ("vision", "vision_tower embed_vision", {"vision_config": {"model_type": "gemma4_vision"}}, ""),
    "git": ("vision", "image_encoder", {}, BEHIND),
    "glm46v": ("vision", "visual", {}, ""),
    "glm4v": ("vision", "visual", {}, ""),
    "glm4v_moe": ("vision", "visual", {}, ""),
    "glm5_next": ("vision", "visual", {}, ""),
    "glm_ocr": ("vision", "visual", {}, ""),
    "glmasr": ("audio", "audio_tower multi_modal_projector", {}, ""),
    "hy_v4_vl": ("vision", "vision_tower", {}, "rows between lines of a picture (image_newline)"),
    "hyperclovax_vision_v2": ("vision", "vision_model projector", {}, ""),
    "idefics2": ("vision", "vision_model", {}, BEHIND),
    "idefics3": ("vision", "vision_model connector", {}, ""),
    "internvl": ("vision", "vision_tower multi_modal_projector", {}, SCALED),
    "janus": ("vision", "vision_model aligner", {}, ""),
    "kimi_k25": ("vision", "vision_tower mm_projector", {}, ""),
    "kosmos-2": ("vision", "vision_model", {}, BEHIND),
    "lfm2_vl": ("vision", "vision_tower multi_modal_projector", {}, POOLED),
    "lighton_ocr": ("vision", "vision_encoder vision_projection", {}, ""),
    "llama4": ("vision", "vision_model multi_modal_projector", {}, ""),  # which says what each linear takes
    "llava": ("vision", "vision_tower multi_modal_projector", {}, ""),
    "llava_next": ("vision", "vision_tower multi_modal_projector", {"multimodal_projector_bias": False}, ""),
    "llava_onevision": ("vision", "vision_tower multi_modal_projector", {}, ""),
    "minimax_m3_vl": ("vision", "vision_tower multi_modal_projector", {}, ""),
    "mistral3": ("vision", "vision_tower multi_modal_projector", {}, ""),
    "mistral_large4": ("vision", "vision_tower multi_modal_projector", {}, ""),
    "moss_transcribe_diarize": ("audio", "audio_tower multi_modal_projector", {}, ""),
    "muse_glimmer": ("vision", "vision_tower vision_adapter vision_projection", {}, ""),
    "muse_spark": ("vision", "vision_tower vision_adapter vision_projection", {}, ""),
    "ovis2": ("vision", "vision_tower.transformer", {}, BEHIND),
    "paddleocr_vl": ("vision", "visual projector", {}, ""),
    "paligemma": ("vision", "vision_tower multi_modal_projector", {}, ""),
    "qianfan_ocr": ("vision", "vision_tower multi_modal_projector", {}, SCALED),
    "qwen2_5_omni_thinker": ("vision", "visual", {}, ""),
    "qwen2_audio": ("audio", "audio_tower multi_modal_projector", {}, ""),
    "qwen3_asr": ("audio", "audio_tower multi_modal_projector", {}, ""),
    "qwen3_omni_moe_thinker": ("audio", "audio_tower", {}, ""),
    "smolvlm": ("vision", "vision_model connector", {}, ""),
    "step3p7": ("vision", "vision_model multi_modal_projector", {}, SCALED),
    "video_llama_3": ("vision", "vision_model projector", {}, ""),
    "voxtral": ("audio", "audio_tower multi_modal_projector", {}, ""),
}


def made(name: str, config: Any, **options: Any) -> Any:
    """The whole model."""
    from transformers.models.auto import modeling_auto

    of_pictures = name in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    of_sound = name in modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    auto = hf.AutoModelForMultimodalLM if of_sound else hf.AutoModelForSeq2SeqLM
    return (hf.AutoModelForImageTextToText if of_pictures else auto).from_config(config, **options)


LEFT_OUT = {"hy_v4_vl": 6144, "internvl": 49_152, "lfm2_vl": 7_087_104, "qianfan_ocr": 49_152, "step3p7": 144_384}
"""Parameters of what is told not to be counted."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_towers_of_multimodal_models_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    part, modules, keys, left_out = WHOLE[name]
    config = hf.CONFIG_MAPPING[name](**STATED.get(name, {}) | keys)
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    found = hosim.read_hf(tmp_path, part=part, phase="train")
    with torch.device("meta"):
        module = made(name, config)
    named = {path.removeprefix("model.").removeprefix("git."): inner for path, inner in module.named_modules()}
    right = parameters_of([named[path] for path in modules.split()])
    assert parameters_in(found.workload) == (right - LEFT_OUT.get(name, 0),) * 2
    assert [text for text in found.dropped if " " in text and not text.startswith(left_out or "-")] == []
    assert bool(left_out) == any(" " in text for text in found.dropped)
    held = sum(t.size_bytes for t in build(found.workload).tensors if t.kind == "weight")
    assert held == found.workload.dtypes.element_bytes * (right - LEFT_OUT.get(name, 0))


PICTURE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
}
PICTURE |= {"patch_size": 14, "vision_use_head": False}
TILED = {key: PICTURE[key] for key in PICTURE if key not in ("image_size", "vision_use_head")}
OF_GRID = {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 72, "out_hidden_size": 48}
OF_GRID |= {"patch_size": 14}
SIDES = {"image_size": [56, 56], "patch_size": [14, 14]}
TEXT = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 128}
TEXT |= {"num_key_value_heads": 2, "head_dim": 12}
TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
SOUND = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "num_mel_bins": 16}
SHAPES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any], int]] = {
    # model_type: the tower's and its keys, the decoder's and its keys, keys of the whole, and rows of a picture
    "llava": ("clip_vision_model", PICTURE, "llama", {}, {}, 17),
    "mistral3": ("pixtral", PICTURE, "mistral", {}, {}, 16),
    "internvl": ("internvl_vision", PICTURE | SIDES, "qwen2", {}, {}, 17),
    "gemma3": ("siglip_vision_model", PICTURE, "gemma3_text", {}, {"mm_tokens_per_image": 4}, 16),
    "cohere2_vision": ("siglip_vision_model", PICTURE, "cohere2", {}, {"alignment_intermediate_size": 40}, 16),
    "glm4v": ("glm4v_vision", OF_GRID | {"image_size": 56}, "glm4v_text", TURNED, {}, 16),
    "qwen2_5_vl": ("qwen2_5_vl_vision", OF_GRID, "qwen2_5_vl_text", TURNED, {}, 16),
    "kimi_k25": ("kimi_k25_vision", TILED, "deepseek_v3", LATENT, {"projection_hidden_size": 64}, 16),
    "qwen2_audio": ("qwen2_audio_encoder", SOUND, "qwen2", {}, {}, 1500),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_as_much_work_as_pytorch_runs_on_a_picture(name: str, tmp_path: Path) -> None:
    """Of all products with weights, convolutions included, as PyTorch counts them where it runs them."""
    from torch.utils.flop_counter import FlopCounterMode

    tower, own, decoder, keys, more, rows = SHAPES[name]
    part = "audio" if own is SOUND else "vision"
    text = {"text_config": {"model_type": decoder, **TEXT, **keys}}
    config = hf.CONFIG_MAPPING[name](**{f"{part}_config": {"model_type": tower, **own}}, **text, **more)
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    workload = hosim.read_hf(tmp_path, part=part, phase="prefill", sequence=rows).workload
    model = made(name, config, attn_implementation="sdpa").eval().float().model
    given: dict[str, Any] = {"pixel_values": torch.zeros(1, 3, 56, 56)}
    if "depth" in own or name == "kimi_k25":
        depth = getattr(config.vision_config, "temporal_patch_size", 1)
        shape = (16, 3, 14, 14) if name == "kimi_k25" else (16, 3 * depth * 14 * 14)
        given = {"pixel_values": torch.zeros(shape), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    given |= {"image_sizes": torch.tensor([[56, 56]])} if name == "mistral3" else {}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        if part == "audio":
            model.multi_modal_projector(model.audio_tower(torch.zeros(1, 16, 3000)).last_hidden_state)
        else:
            model.get_image_features(**given)
    counted = {str(op).rpartition(".")[2]: flops for op, flops in counter.get_flop_counts()["Global"].items()}
    right = sum(counted.get(kind, 0) for kind in ("mm", "addmm", "convolution"))
    assert right == sum(op.flops for op in build(workload).ops if op.op_class.startswith("matmul"))


LLAVA = {
    "model_type": "llava",
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 14, "image_size": 336},
}


def test_the_decoder_says_how_wide_a_towers_output_is(tmp_path: Path) -> None:
    """A file that lacks it takes the default of the decoder's class, and says so; the class token goes no further."""
    (tmp_path / "config.json").write_text(json.dumps(LLAVA | {"text_config": {"model_type": "llama"}}))
    found = hosim.read_hf(tmp_path, part="vision", sequence=577)
    assert isinstance(found.workload.model, DecoderModel)
    linear = {"bias": True, "width": 4096}
    assert [
        [part.model_dump(include={"width", "bias"}) for part in parts] for parts in found.workload.model.mergers
    ] == [[linear] * 2]
    assert any("text_config.hidden_size 4096" in text for text in found.derived)
    graph = build(found.workload)
    assert [graph.tensors[t].size_bytes for t in graph.outputs] == [576 * 4096 * 2]
    wide = {"text_config": {"model_type": "llama", "hidden_size": 5120, "num_attention_heads": 40}}
    (tmp_path / "config.json").write_text(json.dumps(LLAVA | wide | {"multimodal_projector_bias": "no"}))
    with pytest.raises(
        ConfigError, match=r"config\.json, multimodal_projector_bias: this is true or false, found 'no'"
    ):
        hosim.read_hf(tmp_path, part="vision")
    wide["text_config"]["hidden_size"] = -1
    (tmp_path / "config.json").write_text(json.dumps(LLAVA | wide))
    with pytest.raises(ConfigError, match=r"config\.json, text_config\.hidden_size: this is a whole number from 1"):
        hosim.read_hf(tmp_path, part="vision")


def test_what_is_behind_an_unknown_tower_is_told(tmp_path: Path) -> None:
    vision = {"model_type": "clip_vision_model"}
    for whole, told in (("llava", {}), ("vipllava", {BEHIND: 1})):
        keys = {"model_type": whole, "text_config": {"model_type": "llama"}, "vision_config": vision}
        (tmp_path / "config.json").write_text(json.dumps(keys))
        assert hosim.read_hf(tmp_path, part="vision").dropped == told
        assert (BEHIND in hosim.read_hf(tmp_path).dropped) == bool(told)


def test_a_sequence_of_a_tower_is_of_whole_rows_for_the_decoder(tmp_path: Path) -> None:
    """Of 27 x 27 patches each four become one."""
    vision = {"model_type": "paddleocr_vl_vision", "image_size": 378, "patch_size": 14}
    keys = {"model_type": "paddleocr_vl", "text_config": {"model_type": "ernie4_5"}, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert hosim.read_hf(tmp_path, part="vision").workload.sequence == 728
    must = "--sequence: a sequence has rows behind its 0 registers, a multiple of 4, found 729"
    with pytest.raises(ConfigError, match=must):
        hosim.read_hf(tmp_path, part="vision", sequence=729)


def test_a_projector_of_several_layers_is_refused(tmp_path: Path) -> None:
    """Its first linear takes them side by side; before, one was counted."""
    for layers, is_read in ((-2, True), ([-2], True), ([-2, -5], False)):
        stated = hf.CONFIG_MAPPING["llava"](vision_feature_layer=layers).to_json_string(use_diff=False)
        (tmp_path / "config.json").write_text(stated)
        with (
            nullcontext()
            if is_read
            else pytest.raises(ConfigError, match="vision_feature_layer: a projector takes one")
        ):
            hosim.read_hf(tmp_path, part="vision")
