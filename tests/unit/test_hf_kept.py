"""Which matrices a ``quantization_config`` is about: the modules that it names, and those that it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from building import build

import simulator as hosim
from simulator.errors import ConfigError
from simulator.importers.imported import Imported

SIZES: dict[str, Any] = {
    "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
    "intermediate_size": 384, "vocab_size": 512, "moe_intermediate_size": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
LATENT = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": LATENT | {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    | {"num_key_value_heads": 4, "n_shared_experts": 1, "first_k_dense_replace": 2, "num_nextn_predict_layers": 0},
    "qwen3_next": {"num_experts": 8, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 128}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
    | {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
}  # fmt: skip
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
INT4 = {"num_bits": 4, "group_size": 32, "type": "int"}
GROUPS: dict[str, Any] = {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": INT4}}}
DENSE = {"L00/ffn.*": "nvfp4", "L01/ffn.*": "nvfp4", "*/ffn.shared.*": "nvfp4"}
KIMI = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
MIXED = {"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt", "config_groups": {}}
OF_PATTERNS = {"*/attn.k.*": "fp8", "*/attn.o.*": "bf16", "*/ffn.down.*": "fp8", "head/lm.weight": "int4"}
KEPT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "feed-forwards alone": (
        "llama",
        NVFP4 | {"ignore": ["lm_head", "model.layers.*.self_attn*"]},
        {"weights": "nvfp4", "others": {"*/attn.*": "bf16"}},
    ),
    "attention alone": (
        "llama",
        FP8 | {"modules_to_not_convert": ["lm_head", "mlp"]},
        {"others": {"*/attn.*": "fp8"}},
    ),
    "first and last layer": (
        "llama",
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.0.mlp", "model.layers.3", "lm_head"]},
        {"weights": "fp8", "others": {"L00/ffn.*": "bf16", "L03/*": "bf16"}},
    ),
    "all linears": ("llama", GROUPS, {"weights": "int4_of_32", "others": {"head/lm.weight": "int4_of_32"}}),
    "by patterns": (
        "llama",
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
        | {"dynamic": {r"+:.*down.*": {"bits": 8}, r".*k_proj": {"bits": 8}, r"-:.*o_proj.*": {}}},
        {"weights": "int4", "others": OF_PATTERNS},
    ),
    "experts alone": ("deepseek_v3", GROUPS | {"ignore": KIMI}, {"experts": "int4_of_32"}),
    "all but attention": (
        "deepseek_v3",
        NVFP4 | {"exclude_modules": ["lm_head", "model.layers.*.self_attn*"]},
        {"weights": "nvfp4", "others": {"*/attn.*": "bf16"}},
    ),
    "a matrix": (
        "deepseek_v3",
        {"quant_method": "awq", "bits": 4, "group_size": 128}
        | {"modules_to_not_convert": ["self_attn.kv_a_proj_with_mqa"]},
        {"weights": "int4", "others": {"*/attn.kv_a.*": "bf16"}},
    ),
    "a gate": (
        "qwen3_next",
        FP8 | {"modules_to_not_convert": ["model.layers.0.linear_attn.in_proj_ba", "mlp.shared_expert_gate"]},
        {"weights": "fp8", "others": {"L00/attn.rates.weight": "bf16", "*/ffn.shared_gate.*": "bf16"}},
    ),
    "listed": (
        "qwen3_moe",
        MIXED
        | {
            "quantized_layers": {f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(4)}
            | {f"model.layers.{i}.mlp.experts.{e}.up_proj": {"quant_algo": "NVFP4"} for i in range(4) for e in range(8)}
            | {"lm_head": {"quant_algo": "FP8"}}
        },
        {"others": {"*/attn.q.*": "fp8", "*/ffn.up.*": "nvfp4", "head/lm.weight": "fp8"}},
    ),
    "by groups": (
        "qwen3_moe",
        {
            "quant_method": "compressed-tensors",
            "ignore": ["lm_head"],
            "config_groups": {
                "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}},
                "b": {"targets": ["re:.*mlp.experts.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
            },
        },
        {"weights": "fp8", "experts": "nvfp4"},
    ),
    "bits of their own": (
        "llama",
        {"group_size": 64, "bits": 4, "model.layers.1.mlp.down_proj": {"bits": 8}, "lm_head": False},
        {"weights": "int4_of_32", "others": {"embed/tokens.weight": "int4_of_32", "L01/ffn.down.weight": "fp8"}},
    ),
    "left out by a pattern": (
        "llama",
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"-:model\.layers\.[0-1]\..*": {}}},
        {"weights": "int4", "others": {"L00/*": "bf16", "L01/*": "bf16"}},
    ),
}  # fmt: skip


def read(name: str, kept: dict[str, Any], folder: Path) -> Imported:
    config = {"model_type": name} | SIZES | CONFIGS[name] | {"quantization_config": kept}
    (folder / "config.json").write_text(json.dumps(config))
    return hosim.read_hf(folder, phase="prefill", sequence=32)


@pytest.mark.parametrize("case", KEPT)
def test_modules_that_are_named_are_kept_otherwise(case: str, tmp_path: Path) -> None:
    name, said, kept = KEPT[case]
    found = read(name, said, tmp_path)
    stated = found.workload.dtypes.model_dump(exclude_unset=True, exclude={"compute", "states"})
    assert stated == kept
    assert not [text for text in found.derived if "pattern" in text]


@pytest.mark.parametrize("pattern", ["(a+)+$", ".*(layers"])
def test_a_pattern_that_says_more_is_told(pattern: str, tmp_path: Path) -> None:
    found = read("llama", GROUPS | {"ignore": [f"re:{pattern}", "lm_head"]}, tmp_path)
    told = f"A pattern of modules is not understood, and leaves none out: 're:{pattern}'."
    assert told in found.derived
    assert found.workload.dtypes.weights == "int4_of_32"


@pytest.mark.parametrize("others", [1, 3, 4, 8])
def test_experts_of_a_layer_count_like_most_of_them_and_that_is_told_by_a_name_of_the_file(
    others: int, tmp_path: Path
) -> None:
    """Of eight, of which the last ones are named; before, one of them made those of its layer count as computed."""
    left_out = [f"model.layers.1.mlp.experts.{expert}" for expert in range(8 - others, 8)]
    found = read("qwen3_moe", FP8 | {"modules_to_not_convert": [*left_out, "lm_head"]}, tmp_path)
    assert (found.workload.dtypes.others != {}) == (others >= 4)
    told = f"{others} of 8 experts are named: all count like most (model.layers.1.mlp.experts.{8 - others})."
    assert (told in found.derived) == (others < 8)


@pytest.mark.parametrize("modules", [{"a": 1}, [1], 7])
def test_modules_are_named_in_a_list(modules: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="modules are named in a list"):
        read("llama", NVFP4 | {"ignore": modules}, tmp_path)


LISTS: list[tuple[str, list[str]]] = [
    ("llama", ["lm_head"]),
    ("qwen3_moe", ["lm_head", "model.layers.0.self_attn", "model.layers.1.mlp.experts"]),
    ("deepseek_v3", ["lm_head", "self_attn.kv_a_proj_with_mqa", "model.layers.0.mlp"]),
    ("qwen3_next", ["lm_head", "linear_attn.in_proj_ba", "mlp.shared_expert_gate", "model.layers.3"]),
]


@pytest.mark.parametrize("key", ["dynamic", "extra_config"])
def test_what_is_by_module_is_an_object(key: str, tmp_path: Path) -> None:
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 128, key: [1]}
    with pytest.raises(ConfigError, match=rf"quantization_config, {key}: this is an object, found \[\[1\]\]"):
        read("llama", stated, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plain"), LISTS)
def test_weights_take_as_many_bytes_as_in_the_modules_of_transformers(
    name: str, plain: list[str], tmp_path: Path
) -> None:
    """Made without memory, with linears and experts that transformers (5.24.0) itself puts in their place."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    config = transformers.CONFIG_MAPPING[name](**SIZES | CONFIGS[name])
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    said = FP8 | {"modules_to_not_convert": plain}
    form = transformers.FineGrainedFP8Config(weight_block_size=[128, 128])
    replaced = replace_with_fp8_linear(module, plain, form, pre_quantized=True)
    wide = {id(one): one.numel() * one.element_size() for key, one in replaced.named_parameters()}
    routers = [one.numel() for key, one in replaced.named_parameters() if key.endswith("gate.weight")]
    biases = [one.numel() for key, one in replaced.named_buffers() if "e_score_correction_bias" in key]
    wide_routers = name == "deepseek_v3"  # which transformers makes in fp32; files have them in bf16
    right = sum(wide.values()) - 2 * sum(routers) * wide_routers + 2 * sum(biases)
    graph = build(read(name, said, tmp_path).workload)
    assert sum(tensor.size_bytes for tensor in graph.tensors if tensor.kind in ("weight", "expert")) == right
