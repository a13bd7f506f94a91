"""Decoders of pictures and text: layers that attend to pictures alone, experts of words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build
from parameters import count
from trained import flops

import simulator as hosim
from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.workload import DecoderModel

torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0}  # fmt: skip
MLLAMA = {"model_type": "mllama_text_model", "cross_attention_layers": [1, 3], "encoder_tokens": 512} | SMALL
ROWS = 512


def folder_of(path: Path, **keys: Any) -> Path:
    (path / "config.json").write_text(json.dumps(keys))
    return path


def test_layers_that_attend_to_pictures_have_no_attention_of_their_own(tmp_path: Path) -> None:
    found = hosim.read_hf(folder_of(tmp_path, **MLLAMA), phase="decode", sequence=100, batch=2)
    ops = {op.name for op in build(found.workload).ops}
    attending = {name.split("/")[0] for name in ops if name.endswith("/attn.core")}
    across = {name.split("/")[0] for name in ops if name.endswith("/attn.across")}
    assert (attending, across) == ({"L00", "L02", "L04"}, {"L01", "L03"})
    kept = {t.name: t.size_bytes for t in build(found.workload).tensors if t.kind == "kv_cache"}
    assert {name for name in kept if name.endswith("kv.across")} == {"L01/kv.across", "L03/kv.across"}
    assert {kept[f"L0{layer}/kv"] for layer in (0, 2, 4)} == {2 * 100 * 2 * 2 * 16 * 2}
    assert kept["L01/kv.across"] == 2 * ROWS * 2 * 2 * 16 * 2
    assert "L01/kv" not in kept
    assert found.card["KV cache"] == "384 B a token, 256 B of each of 512 rows of the encoder's output"


@pytest.mark.slow
def test_it_is_the_module_of_transformers_but_for_two_gates_of_each_such_layer(tmp_path: Path) -> None:
    workload = hosim.read_hf(folder_of(tmp_path, **MLLAMA), phase="train", batch=2, sequence=16).workload
    assert isinstance(workload.model, DecoderModel)
    config = hf.MllamaTextConfig(**{key: MLLAMA[key] for key in MLLAMA if key not in ("model_type", "encoder_tokens")})
    with hosim.torch.fake():
        module = hf.MllamaForCausalLM(config).eval()
        ids, rows = torch.randint(0, 128, (2, 16)), torch.randn(2, ROWS, 64, requires_grad=True)
        mask = torch.zeros(2, 1, 16, ROWS)
    assert count(workload.model).total + 2 * 2 == sum(parameter.numel() for parameter in module.parameters())
    step = hosim.torch.capture(
        module, input_ids=ids, labels=ids, cross_attention_states=rows, cross_attention_mask=mask,
        full_text_row_masked_out_mask=torch.ones(2, 1, 16, 1),
    )  # fmt: skip
    built = build(workload)
    assert sum(op.flops for op in step.graph.ops if op.op_class == "matmul") == sum(
        flops(built, phase, "matmul") for phase in ("forward", "backward")
    )


@pytest.mark.parametrize("options", [{}, {"tensor": 2}, {"data": 2, "zero_stage": 3}])
def test_all_that_is_trained_learns_and_the_rows_of_pictures_too(options: dict[str, int], tmp_path: Path) -> None:
    workload = hosim.read_hf(folder_of(tmp_path, **MLLAMA), phase="train", sequence=16, **options).workload
    graph = build_job(workload).graphs[0]
    updated = {t.name for t in graph.tensors if t.kind == "optimizer_state"}
    weights = {t.name for t in graph.tensors if t.kind == "weight" and t.persistent}
    assert updated == {f"{name}.state" for name in weights}
    back = {op.name for op in graph.ops}
    assert {f"L0{layer}/bwd/attn.across.{name}.dgrad" for layer in (1, 3) for name in "kv"} < back


@pytest.mark.parametrize("layers", [[1, 5], []])
def test_layers_that_are_not_there_attend_to_nothing(layers: list[int], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **MLLAMA | {"cross_attention_layers": layers})
    with pytest.raises(ConfigError, match=r"cross_attention_layers: some of 5 layers see an encoder alone, found \["):
        hosim.read_hf(folder)


@pytest.mark.parametrize(("encoded", "way"), [(0, "alone"), (0, "never"), (8, "never")])
def test_layers_say_how_they_attend_to_what_there_is(encoded: int, way: str) -> None:
    """Without an encoder's output, such a layer would cache nothing of the tokens that it attends to."""
    attention = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_size": 16, "across": way}
    model = {"family": "decoder", "layers": 2, "hidden": 64, "vocabulary": 128, "attention": attention,
             "feed_forward": {"kind": "dense", "width": 96}, "encoded": encoded}  # fmt: skip
    with pytest.raises(ValueError, match="some layer attends to an encoder's output"):
        DecoderModel.model_validate(model)


@pytest.mark.parametrize(
    ("vision", "rows"),
    [
        ({"image_size": 560, "patch_size": 14, "max_num_tiles": 4}, 6404),  # Llama 3.2 90B, as published
        ({"image_size": 28}, 4 * 5),
        (None, 4 * (32 * 32 + 1)),
    ],
)
def test_rows_of_pictures_are_those_of_all_tiles(vision: dict[str, int] | None, rows: int, tmp_path: Path) -> None:
    text = {key: MLLAMA[key] for key in MLLAMA if key != "encoder_tokens"}
    towers = {"vision_config": vision} if vision else {}
    found = hosim.read_hf(folder_of(tmp_path, model_type="mllama", text_config=text, **towers))
    assert isinstance(found.workload.model, DecoderModel)
    assert found.workload.model.encoded == rows
    text |= {"encoder_tokens": 7}
    stated = hosim.read_hf(folder_of(tmp_path, model_type="mllama", text_config=text, **towers)).workload.model
    assert isinstance(stated, DecoderModel)
    assert stated.encoded == 7


def test_the_tower_of_transformers_puts_out_as_many_rows(tmp_path: Path) -> None:
    vision = {"image_size": 56, "patch_size": 14, "max_num_tiles": 2, "hidden_size": 16, "intermediate_size": 32}
    vision |= {"num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2, "vision_output_dim": 32}
    vision |= {"intermediate_layers_indices": [1], "supported_aspect_ratios": [[1, 1], [1, 2]]}
    text = {key: MLLAMA[key] for key in MLLAMA if key not in ("model_type", "encoder_tokens")}
    with torch.device("meta"):
        tower = hf.MllamaVisionModel(hf.MllamaVisionConfig(**vision))
        given = {"pixel_values": torch.zeros(1, 1, 2, 3, 56, 56), "aspect_ratio_mask": torch.ones(1, 1, 2)}
        made = tower(aspect_ratio_ids=torch.ones(1, 1, dtype=torch.long), **given).last_hidden_state
    _, pictures, tiles, rows, _ = made.shape
    keys = {"text_config": text | {"model_type": "mllama_text_model"}, "vision_config": vision}
    model = hosim.read_hf(folder_of(tmp_path, model_type="mllama", **keys)).workload.model
    assert isinstance(model, DecoderModel)
    assert model.encoded == pictures * tiles * rows == 2 * 17


def test_a_size_of_a_picture_is_named_where_it_stands(tmp_path: Path) -> None:
    text, vision = {key: MLLAMA[key] for key in MLLAMA if key != "encoder_tokens"}, {"image_size": [560, 560]}
    with pytest.raises(ConfigError, match=r"config\.json, vision_config\.image_size: this is a whole number"):
        hosim.read_hf(folder_of(tmp_path, model_type="mllama", text_config=text, vision_config=vision))


ERNIE = {"model_type": "ernie4_5_moe_vl", "moe_num_experts": [8, 4], "moe_intermediate_size": [32, 16], "moe_k": 2}
ERNIE |= SMALL | {"moe_layer_start_index": [2, 2], "moe_layer_end_index": [9, 9], "moe_capacity": [1, 1, 1]}


def test_the_authors_of_ernie_state_words_and_pictures_in_one_key(tmp_path: Path) -> None:
    """It is as transformers has it, and a fault of a number is told by the key that holds it."""
    found = hosim.read_hf(folder_of(tmp_path, **ERNIE, vision_config={"depth": 2}))
    keys = SMALL | {"moe_intermediate_size": [32, 16], "moe_num_experts": 8, "moe_k": 2}
    keys |= {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 3}
    other = hosim.read_hf(folder_of(tmp_path, model_type="ernie4_5_vl_moe_text", **keys))
    assert found.workload.model == other.workload.model
    assert "vision_config (a tower beside the decoder)" in found.dropped
    alike = {"moe_num_experts": 8, "moe_intermediate_size": 32, "moe_layer_start_index": 2, "moe_layer_end_index": 9}
    assert hosim.read_hf(folder_of(tmp_path, **ERNIE | alike)).workload.model == found.workload.model
    for key, wrong in (("moe_num_experts", [-1, 8]), ("moe_intermediate_size", [0, 1])):
        with pytest.raises(ConfigError, match=rf"config\.json, {key}\.0: this is a whole number from 1"):
            hosim.read_hf(folder_of(tmp_path, **ERNIE | {key: wrong}))
    with pytest.raises(ConfigError, match=r"config\.json, moe_num_experts: this is a list of one kind of value"):
        hosim.read_hf(folder_of(tmp_path, **ERNIE | {"moe_num_experts": [8, "4"]}))


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"model_type": "ernie4_5_moe", "moe_num_experts": "8"}, "moe_num_experts"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 9}, "moe_k"),
        ({"model_type": "aria_text", "moe_topk": 0}, "moe_topk"),
        ({"model_type": "mixtral", "num_local_experts": True}, "num_local_experts"),
        ({"model_type": "gpt2", "n_layer": 20_000}, "n_layer"),
        ({"model_type": "gpt2", "n_head": "12"}, "n_head"),
        ({"model_type": "lfm2", "tie_embedding": "yes"}, "tie_embedding"),
    ],
)
def test_an_error_names_the_key_that_the_file_has(keys: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hosim.read_hf(folder_of(tmp_path, **keys))
    assert caught.value.where.rpartition(", ")[2] == name


def test_words_go_through_experts_of_their_own(tmp_path: Path) -> None:
    """Those of pictures are told, and not counted."""
    keys = SMALL | {"moe_intermediate_size": [32, 16], "moe_num_experts": 8, "moe_k": 2}
    keys |= {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [2, 2, 4]}}
    found = hosim.read_hf(folder_of(tmp_path, model_type="ernie4_5_vl_moe_text", **keys))
    assert isinstance(found.workload.model, DecoderModel)
    with torch.device("meta"):
        module = hf.Ernie4_5_VLMoeTextModel(hf.Ernie4_5_VLMoeTextConfig(**keys))
    of_words = [p.numel() for name, p in module.named_parameters() if "vision_moe" not in name]
    chosen = [b.numel() for name, b in module.named_buffers() if "e_score" in name and "vision_moe" not in name]
    biases = [p for p in chosen if p not in of_words]
    assert count(found.workload.model).total == sum(of_words) + sum(biases)
    assert "the experts of tokens of pictures (moe_intermediate_size.1), as many as others" in found.dropped


@pytest.mark.parametrize(("ratio", "width"), [(None, 4 * 1280), (4, 4 * 1280), (3, 3 * 1280)])
def test_the_tower_of_qwen2_vl_is_as_wide_as_it_says(tmp_path: Path, ratio: int | None, width: int) -> None:
    stated = {"mlp_ratio": ratio} if ratio else {}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "vision_config": stated}))
    model = hosim.read_hf(tmp_path, part="vision").workload.model
    assert isinstance(model, DecoderModel)
    assert {part.width for _, part in model.kinds} == {width}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "vision_config": {"mlp_ratio": 0}}))
    with pytest.raises(ConfigError, match=r"vision_config.mlp_ratio: this is a whole number from 1"):
        hosim.read_hf(tmp_path, part="vision")
