"""Families of Hugging Face with layers that keep a state: parameters, KV cache and states, to the last element."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hf_states import MODELS
from parameters import count

import simulator as hosim
from simulator.builders import cached_layers
from simulator.workload import DecoderModel, Dtypes


def read(config: dict[str, Any], folder: Path) -> DecoderModel:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    found = hosim.read_hf(file, phase="prefill", sequence=64)
    assert not [key for key in found.dropped if not key.startswith("norms without")]
    model = found.workload.model
    assert isinstance(model, DecoderModel)
    return model


def kept(model: DecoderModel) -> tuple[int, int, int]:
    """Elements that all layers keep of a token, and of a sequence in windows and in matrices."""
    states = [(part.state.kept_bytes(1, 0), part.state.kept_bytes(0, 1), count)
              for (part, _), count in model.kinds.items() if part.state]  # fmt: skip
    window = sum((sum(sizes.values()) - sizes.get("state", 0)) * number for sizes, _, number in states)
    return model.kv_elements, window, sum(sizes.get("state", 0) * number for _, sizes, number in states)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_what_a_sequence_keeps(name: str, tmp_path: Path) -> None:
    expected = MODELS[name]
    model = read(expected.config, tmp_path)
    assert count(model).total == (expected.total or count(model).total)
    assert kept(model) == (expected.token, expected.window, expected.matrix)
    groups = cached_layers(model, Dtypes())
    states = sum(group.token_bytes for group in groups if group.reach.block)
    assert states == 2 * expected.window + 4 * expected.matrix
    assert sum(group.token_bytes for group in groups if not group.reach.block) == 2 * expected.token
    small = cached_layers(model, Dtypes(states="bf16"))
    assert sum(group.token_bytes for group in small if group.reach.block) == 2 * (expected.window + expected.matrix)


def test_kimi_k3_has_its_published_parameters(tmp_path: Path) -> None:
    """2.8 T in all, 104 B for a token without the input's table; transformers 5.24.0 has no modules of it.

    Keys are those of NVIDIA NeMo AutoModel's ``kimi_k3/config.py``, which repeats the ``text_config`` of
    moonshotai/Kimi-K3; the counts are printed beside the weights.
    """
    full = [*range(4, 94, 4), 93]
    linear = {"head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4, "full_attn_layers": full}
    linear |= {"kda_layers": [i for i in range(1, 94) if i not in full], "use_full_rank_gate": True}
    config = {"model_type": "kimi_linear", "vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 33792}
    config |= {"num_hidden_layers": 93, "num_attention_heads": 96, "moe_intermediate_size": 3072, "num_experts": 896}
    config |= {"num_experts_per_token": 16, "num_shared_experts": 2, "routed_expert_hidden_size": 3584}
    config |= {"latent_moe_use_norm": True, "q_lora_rank": 1536, "mla_use_output_gate": True, "attn_res_block_size": 12}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "kimi_k3", "text_config": config | {"linear_attn_config": linear}}))
    found = hosim.read_hf(file, phase="prefill", sequence=64)
    model = found.workload.model
    assert isinstance(model, DecoderModel)
    counted = count(model)
    assert (round(counted.total / 1e12, 1), round((counted.active - counted.table) / 1e9)) == (2.8, 104)
    assert kept(model) == (24 * (512 + 64), 69 * 4 * 3 * 96 * 128, 69 * 96 * 128 * 128)
    told = ["attn_res_block_size (residuals over blocks of layers)"]
    assert [*found.dropped] == [*told, "latent_moe_use_norm (a norm of the latents of experts)"]


@pytest.mark.parametrize(("stated", "read_as"), [("float32", "fp32"), ("bfloat16", "bf16"), (None, "fp32")])
def test_the_type_of_matrices_is_the_one_that_is_stated(stated: str | None, read_as: str, tmp_path: Path) -> None:
    for key, name in (("mamba_ssm_cache_dtype", "Nemotron-H-8B"), ("mamba_ssm_dtype", "Qwen3.5-9B")):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(MODELS[name].config | ({key: stated} if stated else {})))
        found = hosim.read_hf(file, sequence=64)
        assert (found.workload.dtypes.states, found.dropped) == (read_as, {})
        hosim.read_hf(file, phase="train", sequence=64)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_modules_of_transformers(name: str, tmp_path: Path) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    keys = {key: value for key, value in MODELS[name].config.items() if key != "model_type"}
    config = transformers.CONFIG_MAPPING[MODELS[name].config["model_type"]](**keys)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    module.tie_weights()
    counted = sum({id(weight): weight.numel() for weight in module.parameters()}.values())
    counted += sum(
        buffer.numel() for key, buffer in module.named_buffers() if key.endswith(("correction_bias", "expert_bias"))
    )
    model = read(MODELS[name].config, tmp_path)
    assert count(model).total == counted
    config.save_pretrained(tmp_path / "saved")
    found = hosim.read_hf(tmp_path / "saved", phase="prefill", sequence=64).workload.model
    assert found == model


SMALL = {"hidden_size": 32, "vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 4}
STATE_SPACE = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 16}
WORDS = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
TINY: dict[str, dict[str, Any]] = {
    "qwen3_next": SMALL | WORDS | DELTA | EXPERTS | {"shared_expert_intermediate_size": 8},
    "qwen3_5_text": SMALL | WORDS | DELTA | {"intermediate_size": 16},
    "olmo_hybrid": SMALL | WORDS | DELTA | {"intermediate_size": 16, "pad_token_id": 0},
    "kimi_linear": SMALL | WORDS | {"linear_num_heads": 4, "linear_head_dim": 8, "intermediate_size": 16}
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "kv_lora_rank": 8}
    | {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8, "pad_token_id": 0},
    "jamba": {key: SMALL[key] for key in SMALL if key != "head_dim"}
    | {"num_hidden_layers": 8, "intermediate_size": 16, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 3},
    "mamba": {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 2, "state_size": 4},
    "mamba2": {"hidden_size": 32, "vocab_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8}
    | {"n_groups": 2, "state_size": 16, "chunk_size": 4},
    "bamba": {key: SMALL[key] for key in SMALL if key != "head_dim"} | STATE_SPACE
    | {"num_hidden_layers": 2, "intermediate_size": 16, "attn_layer_indices": [1]},
    "falcon_h1": SMALL | STATE_SPACE | {"num_hidden_layers": 2, "intermediate_size": 16, "mamba_d_ssm": 64},
    "lfm2": {key: SMALL[key] for key in SMALL if key != "head_dim"}
    | {"num_hidden_layers": 3, "intermediate_size": 48, "layer_types": ["conv", "full_attention", "conv"]},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY)
def test_states_are_those_that_transformers_allocates(kind: str, tmp_path: Path) -> None:
    """A small instance reads a prompt; its cache then has as many elements."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config, tokens = transformers.CONFIG_MAPPING[kind](**TINY[kind]), 7
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = module(torch.ones(1, tokens, dtype=torch.long), use_cache=True).cache
    of_token = window = matrix = 0
    for layer in cache.layers:
        window += sum(
            state.numel() for state in (getattr(layer, "conv_states", None) or {}).values() if state is not None
        )
        states = getattr(layer, "recurrent_states", None) or {}
        matrix += sum(state.numel() for state in states.values() if state is not None)
        of_token += sum(
            prod(part.shape)
            for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if part is not None
        )
    found = kept(read({"model_type": kind} | TINY[kind], tmp_path))
    assert of_token == tokens * found[0]
    assert (window, matrix) == found[1:]
