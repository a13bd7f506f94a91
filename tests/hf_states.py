"""Published models with layers that keep a state, as their ``config.json`` has them, and small ones of each family.

Only keys that differ from the defaults of transformers stand here. Totals are those that transformers 5.24.0 builds on
the meta device, with the biases of routers, which it keeps as buffers.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Stateful(NamedTuple):
    """A model: its keys, its parameters, and what it keeps in all layers.

    Elements of the KV cache for a token; of a sequence, those of windows and of matrices.
    """

    config: dict[str, Any]
    total: int
    token: int
    window: int
    matrix: int


_FULL = [4, 8, 12, 16, 20, 24, 27]
_KIMI = {
    "linear_attn_config": {
        "full_attn_layers": _FULL, "kda_layers": [i for i in range(1, 28) if i not in _FULL],
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
    "head_dim": 72, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "model_max_length": 1048576, "mla_use_nope": True, "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1, "use_grouped_topk": True,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
_GRANITE = {
    "num_hidden_layers": 40, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "vocab_size": 100352,
    "tie_word_embeddings": True, "position_embedding_type": "nope",
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
}  # fmt: skip
_NEMOTRON = {"num_hidden_layers": 52, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "vocab_size": 131072}
MODELS = {
    "Qwen3-Next-80B-A3B": Stateful(
        {"model_type": "qwen3_next", "full_attention_interval": 4}, 79_674_391_296,
        12 * 2 * 2 * 256, 36 * 4 * 8192, 36 * 32 * 128 * 128,
    ),
    "Qwen3.5-9B": Stateful(
        {"model_type": "qwen3_5_text", "full_attention_interval": 4}, 8_953_803_264,
        8 * 2 * 4 * 256, 24 * 4 * 8192, 24 * 32 * 128 * 128,
    ),
    "Qwen3.5-35B-A3B": Stateful(
        {"model_type": "qwen3_5_moe_text", "full_attention_interval": 4}, 34_660_610_688,
        10 * 2 * 2 * 256, 30 * 4 * 8192, 30 * 32 * 128 * 128,
    ),
    "Olmo-Hybrid-7B": Stateful(
        {"model_type": "olmo_hybrid"}, 7_430_870_688,
        8 * 2 * 30 * 128, 24 * 4 * 11520, 24 * 30 * 96 * 192,
    ),
    "Kimi-Linear-48B-A3B": Stateful(
        {"model_type": "kimi_linear"} | _KIMI, 49_122_681_728,
        7 * (512 + 64), 20 * 4 * 3 * 4096, 20 * 32 * 128 * 128,
    ),
    "Bailing hybrid": Stateful(
        {"model_type": "bailing_hybrid"}, 124_414_211_552, 7 * (512 + 64), 35 * 4 * 3 * 4096, 35 * 32 * 128 * 128,
    ),
    "Jamba-v0.1": Stateful(
        {"model_type": "jamba"}, 51_570_323_328, 4 * 2 * 8 * 128, 28 * 4 * 8192, 28 * 8192 * 16,
    ),
    "mamba-130m": Stateful(
        {"model_type": "mamba", "num_hidden_layers": 24, "intermediate_size": 1536}, 129_135_360,
        0, 24 * 4 * 1536, 24 * 1536 * 16,
    ),
    "falcon-mamba-7b": Stateful(
        {"model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64, "intermediate_size": 8192}
        | {"vocab_size": 65024, "tie_word_embeddings": False, "time_step_rank": 256, "state_size": 16}, 7_272_665_088,
        0, 64 * 4 * 8192, 64 * 8192 * 16,
    ),
    "Mamba-Codestral-7B": Stateful(
        {"model_type": "mamba2"}, 7_285_403_648, 0, 64 * 4 * 10240, 64 * 128 * 64 * 128,
    ),
    "Bamba-9B": Stateful(
        {"model_type": "bamba", "attn_layer_indices": [9, 18, 27], "mamba_d_state": 128, "vocab_size": 128256},
        9_780_235_392, 3 * 2 * 8 * 128, 29 * 4 * (8192 + 256), 29 * 8192 * 128,
    ),
    "granite-4.0-h-small": Stateful(
        {"model_type": "granitemoehybrid", "num_attention_heads": 32, "num_key_value_heads": 8} | _GRANITE
        | {"num_local_experts": 72, "num_experts_per_tok": 10, "intermediate_size": 768, "hidden_size": 4096}
        | {"shared_intermediate_size": 1536, "mamba_n_heads": 128}, 32_207_337_984,
        4 * 2 * 8 * 128, 36 * 4 * (8192 + 256), 36 * 8192 * 128,
    ),
    "granite-4.0-h-1b": Stateful(
        {"model_type": "granitemoehybrid", "num_attention_heads": 12, "num_key_value_heads": 4} | _GRANITE
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 4096, "hidden_size": 1536}
        | {"shared_intermediate_size": 4096, "mamba_n_heads": 48}, 1_461_538_368,
        4 * 2 * 4 * 128, 36 * 4 * (3072 + 256), 36 * 3072 * 128,
    ),
    "Nemotron-H-8B": Stateful(
        {"model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "mamba_num_heads": 128}
        | {"num_attention_heads": 32, "num_key_value_heads": 8} | _NEMOTRON
        | {"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"}, 8_100_852_736,
        4 * 2 * 8 * 128, 24 * 4 * 10240, 24 * 8192 * 128,
    ),
    "Nemotron-3-Nano-30B-A3B": Stateful(
        {"model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "mamba_num_heads": 64}
        | {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128} | _NEMOTRON
        | {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 1856}
        | {"moe_shared_expert_intermediate_size": 3712}
        | {"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"}, 31_577_940_288,
        6 * 2 * 2 * 128, 23 * 4 * (4096 + 2048), 23 * 4096 * 128,
    ),
    "Nemotron 3 with latents": Stateful(
        {"model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "mamba_num_heads": 64}
        | {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "moe_latent_size": 1024} | _NEMOTRON
        | {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 1856}
        | {"moe_shared_expert_intermediate_size": 3712}
        | {"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"}, 13_520_150_848,
        6 * 2 * 2 * 128, 23 * 4 * (4096 + 2048), 23 * 4096 * 128,
    ),
    "Falcon-H1-7B": Stateful(
        {"model_type": "falcon_h1", "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 44}
        | {"num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128, "mamba_d_ssm": 3072}
        | {"mamba_n_heads": 24, "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 1, "vocab_size": 130048},
        7_585_513_568, 44 * 2 * 2 * 128, 44 * 4 * (3072 + 512), 44 * 3072 * 256,
    ),
    "LFM2-1.2B": Stateful(
        {"model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288, "num_hidden_layers": 16}
        | {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}, 1_170_340_608,
        6 * 2 * 8 * 64, 10 * 3 * 2048, 0,
    ),
    "LFM2-8B-A1B": Stateful(
        {"model_type": "lfm2_moe", "num_hidden_layers": 24}
        | {"layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)]},
        8_339_930_560, 6 * 2 * 8 * 64, 18 * 3 * 2048, 0,
    ),
    "rwkv-4-169m": Stateful(
        {"model_type": "rwkv", "hidden_size": 768, "num_hidden_layers": 12, "attention_hidden_size": 768}
        | {"intermediate_size": 3072, "rescale_every": 6}, 169_342_464, 0, 12 * 2 * 768, 12 * 3 * 768,
    ),
    "recurrentgemma-2b": Stateful(
        {"model_type": "recurrent_gemma", "num_key_value_heads": 1, "intermediate_size": 15360}, 0,
        8 * 2 * 256, 18 * 4 * 2560, 18 * 2560,
    ),
    "LFM3": Stateful(
        {"model_type": "lfm3", "num_hidden_layers": 4}
        | {"layer_types": ["conv", "full_attention", "sliding_attention", "conv"]}, 0, 2 * 2 * 4 * 128, 2 * 7 * 2048, 0,
    ),
    "Lara mini": Stateful(
        {"model_type": "lara_mini", "num_hidden_layers": 3}
        | {"layer_types": ["linear_attention", "sliding_attention", "full_attention"]},
        0, 2 * 2 * 4 * 128, 4 * 4096, 16 * 128 * 128,
    ),
}  # fmt: skip
